package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/value"
)

// Which calls the limits of a policy hold, of every kind, in either order of the checks, at
// the limit and one before it: those that are counted nowhere else, by what is known of
// them.
func TestWhichCallsLimitsHold(t *testing.T) {
	none := mustCompileFiles(t, file("g.yaml", "name: g\nmax_tool_calls: 0\n"))
	some := mustCompileFiles(t, file("g.yaml", "name: g\nmax_tool_calls: 3\ntimeout_seconds: 60\nconfidence_threshold: 0.5\n"))
	for _, kind := range []call.Kind{call.KindTool, call.KindModel, call.KindAgent, call.KindHandoff, call.KindSampling} {
		for i, order := range []call.Order{call.OrderInterceptor, call.OrderPreExecute, call.OrderInterceptor, call.OrderPreExecute} {
			tool := []string{"t", ""}[i/2]
			counted := tool != "" || kind == call.KindTool || kind == call.KindModel // what has the name of a tool is one of it
			says := func(p *Policy, facts *call.Facts, check bool, confidence string) string {
				in := call.Input{Tool: tool, Kind: kind, Order: order, Facts: facts, CheckLimits: check}
				if confidence != "" {
					v, err := value.Parse([]byte(`{"confidence": ` + confidence + `}`))
					require.NoError(t, err)
					in.Context = v
				}
				d := p.Evaluate(t.Context(), in)
				require.Equal(t, d.Category == "", d.Allowed)
				return d.Category
			}
			what := fmt.Sprint(kind, order, tool)
			held := func(category string) string {
				if counted {
					return category
				}
				return ""
			}
			require.Equal(t, held(CategoryMaxToolCalls), says(none, nil, false, ""), what)
			require.Equal(t, held(CategoryMaxToolCalls), says(none, nil, true, ""), what)
			require.Equal(t, held(CategoryMaxToolCalls), says(none, &call.Facts{}, true, ""), what)
			require.Empty(t, says(none, &call.Facts{}, false, ""), "%s: it is counted elsewhere", what)
			require.Empty(t, says(some, nil, false, ""), what)
			require.Empty(t, says(some, &call.Facts{CallCount: 2}, true, ""), what)
			require.Equal(t, held(CategoryMaxToolCalls), says(some, &call.Facts{CallCount: 3}, true, ""), what)
			require.Empty(t, says(some, &call.Facts{CallCount: 9}, false, ""), what)
			require.Empty(t, says(some, &call.Facts{Elapsed: time.Minute}, true, ""), what)
			require.Equal(t, CategoryTimeout, says(some, &call.Facts{Elapsed: time.Minute + 1}, true, ""), what)
			require.Empty(t, says(some, &call.Facts{Elapsed: time.Hour}, false, ""), what)
			require.Empty(t, says(some, nil, false, "0.5"), what)
			require.Empty(t, says(some, nil, false, "null"), what)
			require.Equal(t, CategoryConfidence, says(some, nil, false, "0.49"), what)
			require.Equal(t, CategoryPolicyError, says(some, nil, false, "true"), what)
			require.Equal(t, CategoryPolicyError, says(some, nil, false, `"1"`), what)
		}
	}
}
