package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine"
	"example.com/govnode/session"
)

// What the policy engine accepts the state machine can hold, and what the one
// refuses as too large the other refuses too: their caps are the same.
func TestCapsOfPoliciesAreThoseOfTheState(t *testing.T) {
	limits := func(change func(*session.Limits)) session.Command {
		l := session.Limits{MaxConcurrent: 1}
		change(&l)
		return &session.PutPolicy{
			NS: "n", By: session.Maker{Client: "c", Request: "r"}, Name: "p",
			Digest: session.Digest{1}, Tree: []byte("x"), Limits: l,
		}
	}
	number := func(field string) func(int64) string {
		return func(n int64) string { return fmt.Sprintf("%s: %d\n", field, n) }
	}
	for field, c := range map[string]struct {
		most int64
		yaml func(int64) string
		set  func(*session.Limits, int64)
	}{
		"max_tokens": {
			engine.MaxTokenLimit, number("max_tokens"),
			func(l *session.Limits, n int64) { l.MaxTokens = n },
		},
		"defaults.max_tokens": {
			engine.MaxTokenLimit, func(n int64) string { return fmt.Sprintf("defaults: {max_tokens: %d}\n", n) },
			func(l *session.Limits, n int64) { l.MaxTokens = n },
		},
		"timeout_seconds": {
			engine.MaxTimeoutSeconds, number("timeout_seconds"),
			func(l *session.Limits, n int64) { l.Timeout = time.Duration(n) * time.Second },
		},
		"max_concurrent": {
			engine.MaxConcurrentCalls, number("max_concurrent"),
			func(l *session.Limits, n int64) { l.MaxConcurrent = int32(n) },
		},
		"max_calls_per_tool": {
			engine.MaxToolLimits,
			func(n int64) string { return "max_calls_per_tool: {" + strings.Join(toolNames(n), ": 1, ") + ": 1}\n" },
			func(l *session.Limits, n int64) {
				for _, tool := range toolNames(n) {
					l.PerTool = append(l.PerTool, session.ToolLimit{Tool: tool, Max: 1})
				}
			},
		},
		"max_calls_per_tool: the name": {
			engine.MaxToolName,
			func(n int64) string { return fmt.Sprintf("max_calls_per_tool: {%s: 1}\n", strings.Repeat("t", int(n))) },
			func(l *session.Limits, n int64) {
				l.PerTool = []session.ToolLimit{{Tool: strings.Repeat("t", int(n)), Max: 1}}
			},
		},
	} {
		t.Run(field, func(t *testing.T) {
			for _, n := range []int64{1, c.most} {
				require.NoError(t, compileText(c.yaml(n)))
				require.NoError(t, session.Validate(limits(func(l *session.Limits) { c.set(l, n) })))
			}
			err := compileText("# a line before it\n" + c.yaml(c.most+1))
			require.ErrorContains(t, err, "policy.yaml:2: "+field)
			require.ErrorContains(t, err, fmt.Sprint(c.most))
			require.Error(t, session.Validate(limits(func(l *session.Limits) { c.set(l, c.most+1) })))
		})
	}
}

// A name that no call can have is refused by both.
func TestToolNamesOfPoliciesAreThoseOfTheState(t *testing.T) {
	for _, tool := range []string{"a b/c: é", "\u00a0", "a\u200bb", "\u0430b", "a ", "", "a\tb", "\x7f", "\u0085"} {
		inState := session.Validate(&session.PutPolicy{
			NS: "n", By: session.Maker{Client: "c", Request: "r"}, Name: "p", Digest: session.Digest{1}, Tree: []byte("x"),
			Limits: session.Limits{MaxConcurrent: 1, PerTool: []session.ToolLimit{{Tool: tool, Max: 1}}},
		})
		inFile := compileText(fmt.Sprintf("max_calls_per_tool: {%+q: 1}\n", tool))
		require.Equal(t, inState == nil, inFile == nil, "%q: %v; %v", tool, inState, inFile)
	}
}

func toolNames(n int64) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("t%05d", i)
	}
	return names
}

func compileText(yaml string) error {
	tree, err := engine.SingleFile(yaml)
	if err != nil {
		return err
	}
	_, err = engine.Compile(tree)
	return err
}
