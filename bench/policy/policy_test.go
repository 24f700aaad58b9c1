package policy

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/stretchr/testify/require"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
)

// A rule denies calls by the name of the tool, by a list of names, by a regular
// expression, or by a number of tokens: a quarter of the rules each.
type rule struct {
	eq    string
	in    []string
	regex string // with its Cedar form: a literal prefix and a star
	like  string
	above int
}

func rules(n int) []rule {
	rs := make([]rule, n)
	for i := range rs {
		switch i % 4 {
		case 0:
			rs[i].eq = fmt.Sprintf("tool_%d", i)
		case 1:
			rs[i].in = []string{fmt.Sprintf("a_%d", i), fmt.Sprintf("b_%d", i), fmt.Sprintf("c_%d", i)}
		case 2:
			rs[i].regex, rs[i].like = fmt.Sprintf("^svc_%d_[a-z_]+$", i), fmt.Sprintf("svc_%d_*", i)
		case 3:
			rs[i].above = 100_000 + i
		}
	}
	return rs
}

type call struct {
	name   string
	tool   string
	tokens int
	deny   bool
}

// calls: the last rule by name matches, the last regular expression does, none.
func calls(n int) []call {
	eq := (n - 1) / 4 * 4
	re := (n-3)/4*4 + 2
	return []call{
		{"last", fmt.Sprintf("tool_%d", eq), 5000, true},
		{"regex", fmt.Sprintf("svc_%d_repo_write", re), 5000, true},
		{"none", "web_search", 5000, false},
	}
}

type evaluator func(tool string, tokens int) (denied bool)

func BenchmarkPolicy(b *testing.B) {
	for _, n := range []int{10, 1000} {
		rs := rules(n)
		for _, e := range []struct {
			name string
			make func(testing.TB, []rule) evaluator
		}{{"govnode", govnode}, {"cedar", cedarGo}, {"opa", opa}} {
			f := e.make(b, rs)
			for _, c := range calls(n) {
				require.Equal(b, c.deny, f(c.tool, c.tokens), "%s, %d rules, %s", e.name, n, c.name)
				b.Run(fmt.Sprintf("rules=%d/%s/%s", n, c.name, e.name), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						f(c.tool, c.tokens)
					}
				})
			}
		}
	}
}

// TestSameDecisions holds the three to each other and to what the rules say,
// so that the benchmark compares equals.
func TestSameDecisions(t *testing.T) {
	rs := rules(40)
	all := []evaluator{govnode(t, rs), cedarGo(t, rs), opa(t, rs)}
	for _, tool := range []string{"tool_0", "tool_36", "tool_1", "a_1", "c_37", "d_1", "svc_2_x", "svc_38_y_z", "svc_3_x", "other"} {
		for _, tokens := range []int{0, 100_003, 100_004, 100_040} {
			want := false
			for _, r := range rs {
				want = want || r.eq == tool && r.eq != "" || r.regex != "" && regexp.MustCompile(r.regex).MatchString(tool) || r.above > 0 && tokens > r.above
				for _, name := range r.in {
					want = want || name == tool
				}
			}
			for i, f := range all {
				require.Equal(t, want, f(tool, tokens), "evaluator %d: %s, %d tokens", i, tool, tokens)
			}
		}
	}
}

func govnode(tb testing.TB, rs []rule) evaluator {
	var y strings.Builder
	y.WriteString("name: bench\nrules:\n")
	for i, r := range rs {
		var cond string
		switch {
		case r.eq != "":
			cond = fmt.Sprintf("{field: tool_name, operator: eq, value: %s}", r.eq)
		case r.in != nil:
			cond = fmt.Sprintf("{field: tool_name, operator: in, value: [%s]}", strings.Join(r.in, ", "))
		case r.regex != "":
			cond = fmt.Sprintf("{field: tool_name, operator: matches, value: '%s'}", r.regex)
		default:
			cond = fmt.Sprintf("{field: token_count, operator: gt, value: %d}", r.above)
		}
		fmt.Fprintf(&y, "  - {name: r%d, condition: %s, action: deny, priority: %d}\n", i, cond, len(rs)-i)
	}
	tree, err := engine.SingleFile(y.String())
	require.NoError(tb, err)
	p, err := engine.Compile(tree)
	require.NoError(tb, err)
	ctx := context.Background()
	contexts := map[int]value.Value{} // what a request brings is parsed once, for all three
	return func(tool string, tokens int) bool {
		c, ok := contexts[tokens]
		if !ok {
			c = value.OfMap(value.Pair{Key: "token_count", Value: value.OfInt(int64(tokens))})
			contexts[tokens] = c
		}
		return !p.Evaluate(ctx, engine.Input{Tool: tool, Context: c}).Allowed
	}
}

func cedarGo(tb testing.TB, rs []rule) evaluator {
	var y strings.Builder
	y.WriteString("permit(principal, action, resource);\n")
	for _, r := range rs {
		var cond string
		switch {
		case r.eq != "":
			cond = fmt.Sprintf("context.tool_name == %q", r.eq)
		case r.in != nil:
			cond = fmt.Sprintf("[%q, %q, %q].contains(context.tool_name)", r.in[0], r.in[1], r.in[2])
		case r.regex != "":
			cond = fmt.Sprintf("context.tool_name like %q", r.like)
		default:
			cond = fmt.Sprintf("context.token_count > %d", r.above)
		}
		fmt.Fprintf(&y, "forbid(principal, action, resource) when { %s };\n", cond)
	}
	set, err := cedar.NewPolicySetFromBytes("bench.cedar", []byte(y.String()))
	require.NoError(tb, err)
	return func(tool string, tokens int) bool {
		decision, _ := cedar.Authorize(set, types.EntityMap{}, request(tool, tokens))
		return decision == cedar.Deny
	}
}

var requests = map[string]map[int]cedar.Request{}

// request makes a request once, so that only the decision is measured.
func request(tool string, tokens int) cedar.Request {
	r, ok := requests[tool][tokens]
	if !ok {
		if requests[tool] == nil {
			requests[tool] = map[int]cedar.Request{}
		}
		r = cedar.Request{
			Principal: types.NewEntityUID("Agent", "a"), Action: types.NewEntityUID("Action", "call"), Resource: types.NewEntityUID("Resource", "default"),
			Context: types.NewRecord(types.RecordMap{"tool_name": types.String(tool), "token_count": types.Long(tokens)}),
		}
		requests[tool][tokens] = r
	}
	return r
}

func opa(tb testing.TB, rs []rule) evaluator {
	var y strings.Builder
	y.WriteString("package bench\n\ndefault allow := true\n\nallow := false if denied\n\n")
	for _, r := range rs {
		var cond string
		switch {
		case r.eq != "":
			cond = fmt.Sprintf("input.tool_name == %q", r.eq)
		case r.in != nil:
			cond = fmt.Sprintf("input.tool_name in {%q, %q, %q}", r.in[0], r.in[1], r.in[2])
		case r.regex != "":
			cond = fmt.Sprintf("regex.match(%q, input.tool_name)", r.regex)
		default:
			cond = fmt.Sprintf("input.token_count > %d", r.above)
		}
		fmt.Fprintf(&y, "denied if { %s }\n", cond)
	}
	ctx := context.Background()
	q, err := rego.New(rego.Query("data.bench.allow"), rego.Module("bench.rego", y.String())).PrepareForEval(ctx)
	require.NoError(tb, err)
	inputs := map[string]map[int]ast.Value{} // parsed once, as for the others
	return func(tool string, tokens int) bool {
		in, ok := inputs[tool][tokens]
		if !ok {
			in, err = ast.InterfaceToValue(map[string]any{"tool_name": tool, "token_count": tokens})
			require.NoError(tb, err)
			if inputs[tool] == nil {
				inputs[tool] = map[int]ast.Value{}
			}
			inputs[tool][tokens] = in
		}
		rs, err := q.Eval(ctx, rego.EvalParsedInput(in))
		return err != nil || !rs.Allowed()
	}
}
