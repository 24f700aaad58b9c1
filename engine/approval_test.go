package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/enginetest"
	"example.com/govnode/engine/external"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// A rule that asks holds wherever one that denies would: with deny in the place
// of ask the same calls are not allowed. And none that is asked about is one that
// a rule that counts for it denies.
func TestAskIsADenyThatPeopleMayLift(t *testing.T) {
	rng := rand.New(rand.NewPCG(19, 23))
	asked, allowed := 0, 0
	for range 700 {
		tree := randomTree(rng)
		if len(tree.files) == 0 {
			continue
		}
		denying := slices.Clone(tree.files)
		for i := range denying {
			denying[i].Content = []byte(strings.ReplaceAll(string(denying[i].Content), "action: ask", "action: deny"))
		}
		opts := []Option{WithLogger(discard)}
		if rng.IntN(2) == 0 {
			opts = append(opts, WithStrict())
		}
		p, denies := mustCompileFilesWith(t, opts, tree.files...), mustCompileFilesWith(t, opts, denying...)
		for range 12 {
			ctx := value.OfMap(value.Pair{Key: "role", Value: value.OfString([]string{"admin", "guest", "other"}[rng.IntN(3)])})
			if at := []string{"", ".", "x/y/z/f.go", "w/f.go"}[rng.IntN(4)]; at != "" {
				ctx = ctx.With("path", value.OfString(at))
			}
			in := call.Input{Tool: []string{"a", "b", "c", "d"}[rng.IntN(4)], Context: ctx}
			d := p.Evaluate(context.Background(), in)
			about := fmt.Sprintf("%s %s: %s by %q\n%s", in.Tool, ctx.JSON(), d.Action, d.MatchedRule, printTree(tree.files))
			require.Equal(t, d.Ask != nil, d.Action == string(document.Ask), about)
			require.False(t, d.Allowed && d.Ask != nil, about)
			switch {
			case d.Ask != nil:
				asked++
				require.False(t, denies.Evaluate(context.Background(), in).Allowed, about)
				set, err := p.docs.SelectFor(matching.Begun(&in))
				require.NoError(t, err)
				for _, r := range set.Rules {
					hit, err := r.Matches(matching.Begun(&in))
					require.False(t, r.Action.Denies() && hit && err == nil && set.Denials == nil, "%s denies: %s", r.Name, about)
				}
			case d.Allowed:
				allowed++
				require.True(t, denies.Evaluate(context.Background(), in).Allowed, about)
			}
		}
	}
	require.Greater(t, asked, 500)
	require.Greater(t, allowed, 500)
}

// Whoever knows of two answers alone denies what is asked about, and a policy
// with a rule that asks keeps the short way for all other calls.
func TestAskLeavesTheShortWayToOthers(t *testing.T) {
	p := mustCompile(t, "rules:\n  - {name: ask, condition: {field: tool_name, operator: eq, value: pay}, action: ask}\n  - {name: no, condition: {field: tool_name, operator: eq, value: shell}, action: deny}\n")
	var d Decision
	require.False(t, p.decideDirectly(&call.Input{Tool: "pay"}, &d))
	require.True(t, p.decideDirectly(&call.Input{Tool: "read"}, &d))
	require.True(t, d.Allowed)
	require.True(t, p.decideDirectly(&call.Input{Tool: "shell"}, &d))
	d = p.Evaluate(context.Background(), call.Input{Tool: "pay"})
	require.Equal(t, &Approval{Required: 1, Denials: 1, Timeout: 5 * time.Minute, MaxPending: 16}, d.Ask)
	require.False(t, d.Allowed)
	require.True(t, p.MustAudit(&d))
	require.Same(t, d.Ask, p.Evaluate(context.Background(), call.Input{Tool: "pay"}).Ask, "nothing is made for each call")
}

// A policy is warned of an approval block that has no effect, and of a yes that
// nobody gives; of nothing else that asks.
func TestWarningsOfApproval(t *testing.T) {
	const rule = "rules: [{name: ask, condition: {field: tool_name, operator: eq, value: pay}, action: ask}]\n"
	for limits, warned := range map[string]int{
		"approval: {}\n": 0,
		"require_human_approval: true\napproval: {}\n":                  0,
		"require_human_approval: true\n":                                0,
		"require_human_approval: true\napproval: {on_timeout: allow}\n": 1,
		"max_tokens: 1\n": 0,
		"require_human_approval: false\napproval: {on_timeout: deny}\n": 0,
	} {
		require.Len(t, mustCompileFiles(t, file("limits.yaml", limits), file("rules.yaml", rule)).Warnings(), warned, limits)
	}
	for limits, warned := range map[string]int{
		"approval: {}\n":                                1,
		"approval: {on_timeout: allow}\n":               2,
		"require_human_approval: true\napproval: {}\n":  0,
		"require_human_approval: false\napproval: {}\n": 1,
	} {
		require.Len(t, mustCompile(t, limits).Warnings(), warned, limits)
	}
}

// A policy backend cannot ask: only rules can, and who says so is an error, which
// denies.
func TestBackendsCannotAsk(t *testing.T) {
	p := mustCompileFilesWith(t, []Option{WithRego(enginetest.LoadScripted("opa"))}, file("policy.yaml", "rules: []\n"), file("x.rego", "ask"))
	d := p.Evaluate(context.Background(), call.Input{Tool: "t"})
	require.False(t, d.Allowed)
	require.Nil(t, d.Ask)
	require.Equal(t, "deny", d.Action)
	require.Contains(t, d.Error, "a policy backend allows or denies, and cannot ask")
}

// What a guardrail makes of the arguments may be what is asked about.
func TestGuardrailMakesACallAskWorthy(t *testing.T) {
	p := mustCompile(t, "rules: [{name: large, condition: {field: arguments.amount, operator: eq, value: large}, action: ask}]\n", WithGuardrails(setting("one", "amount", "large")))
	d := p.Evaluate(context.Background(), call.Input{Tool: "t", Arguments: enginetest.Value(t, `{"amount":"small"}`)})
	require.NotNil(t, d.Ask)
	require.Equal(t, `{"amount":"large"}`, d.ModifiedArguments.JSON())
	p = mustCompile(t, "rules: [{name: large, condition: {field: arguments.amount, operator: eq, value: large}, action: ask}]\n",
		WithGuardrails(answering("no", external.GuardrailDeny, "no")))
	d = p.Evaluate(context.Background(), call.Input{Tool: "t", Arguments: enginetest.Value(t, `{"amount":"large"}`)})
	require.Nil(t, d.Ask)
	require.Equal(t, CategoryGuardrail, d.Category)
}

// Tables of tests expect an ask as any other answer, and count its rule.
func TestRunTestsOfAnAsk(t *testing.T) {
	p := mustCompile(t, "rules: [{name: ask, condition: {field: tool_name, operator: eq, value: pay}, action: ask}]\n")
	report, err := RunTests(context.Background(), p, []source.File{file("policy_test.yaml", "cases:\n- {tool: pay, expect: {allowed: false, action: ask, rule: ask, category: human_approval_required}}\n- {tool: pay, expect: {action: deny}}\n")}, nil)
	require.NoError(t, err)
	require.Empty(t, report.Cases[0].Failures)
	require.Equal(t, []string{`action: expected "deny", got "ask"`}, report.Cases[1].Failures)
	require.Equal(t, 2, report.Coverage[0].Hits)
}
