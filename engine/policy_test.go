package engine

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/composition"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/enginetest"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

func TestPolicyName(t *testing.T) {
	require.Equal(t, "gov", mustCompileFiles(t, file("a.yaml", "name: doc\nrules: []"), file("b.yaml", "name: gov\nmax_tokens: 1")).Name())
	require.Equal(t, "doc", mustCompileFiles(t, file("a.yaml", "name: doc\nrules: []"), file("governance.yaml", "name: root\nrules: []")).Name())
	require.Equal(t, "near", mustCompileFiles(t, file("z/governance.yaml", "name: near\nrules: []"), file("a/b/governance.yaml", "name: far\nrules: []")).Name())
}

// Texts can be made again from a number, on every node alike.
func TestRuleText(t *testing.T) {
	files := []source.File{file("b.yaml", "rules: [{name: b, condition: {field: x, operator: eq, value: 1}, action: deny, message: no b}]"),
		file("a.yaml", "rules: [{name: a, condition: {field: x, operator: eq, value: 2}, action: deny}]")}
	p := mustCompileFiles(t, files[0], files[1])
	q := mustCompileFiles(t, files[1], files[0])
	d := p.Evaluate(context.Background(), call.Input{Context: enginetest.Value(t, `{"x":1}`)})
	require.Equal(t, "b", d.MatchedRule)
	for _, policy := range []*Policy{p, q} {
		again := policy.Recall(d.Rule, call.Input{})
		require.Equal(t, "b", again.MatchedRule)
		require.Equal(t, "no b", again.Reason)
		require.Equal(t, "b", policy.RuleName(d.Rule))
	}
	for n := range math.MaxUint16 {
		p.Recall(uint16(n), call.Input{}) // an unknown number is no panic
	}
	require.Equal(t, Decision{}, p.Recall(math.MaxUint16, call.Input{}))
	require.Empty(t, p.RuleName(math.MaxUint16))
}

// A defect of the program denies and is logged, on either way of judging; it
// never reaches the caller.
func TestPanicDenies(t *testing.T) {
	for _, explain := range []bool{false, true} {
		var out bytes.Buffer
		p := mustCompile(t, "rules: []\n", WithLogger(slog.New(slog.NewJSONHandler(&out, nil))))
		p.docs.FlatSet, p.directly = nil, nil
		d := p.Evaluate(context.Background(), call.Input{Tool: "t", Explain: explain})
		require.False(t, d.Allowed)
		require.Equal(t, "deny", d.Action)
		require.NotEmpty(t, d.Error)
		require.Contains(t, out.String(), "nil pointer")
	}
}

func TestContentHashRegisteredOutside(t *testing.T) {
	h := strings.Repeat("ab", 32)
	registered := func(tool string) (string, bool) { return h, tool == "known" }
	p := mustCompile(t, "rules: []")
	ctx := context.Background()
	in := call.Input{Tool: "known", ContentHash: registered}
	require.Equal(t, CategoryContentHash, p.Evaluate(ctx, in).Category)
	in.Context = enginetest.Value(t, `{"metadata":{"content_hash":"SHA256"}}`)
	require.False(t, p.Evaluate(ctx, in).Allowed)
	in.Context = enginetest.Value(t, `{"metadata":{"content_hash":"sha256:`+strings.ToUpper(h)+`"}}`)
	require.True(t, p.Evaluate(ctx, in).Allowed)
	require.True(t, p.Evaluate(ctx, call.Input{Tool: "other", ContentHash: registered}).Allowed)

	strict := mustCompile(t, "content_hash_mode: strict")
	require.True(t, strict.Evaluate(ctx, in).Allowed)
	require.False(t, strict.Evaluate(ctx, call.Input{Tool: "other", ContentHash: registered}).Allowed)
	lax := mustCompile(t, "content_hash_mode: warn")
	require.True(t, lax.Evaluate(ctx, call.Input{Tool: "other"}).Allowed)
}

func TestEvaluateIgnoresItsClock(t *testing.T) {
	// The time of an input is for the record; decisions rest on facts alone.
	p := mustCompile(t, "timeout_seconds: 5")
	d := p.Evaluate(context.Background(), call.Input{Tool: "t", Now: time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC), Facts: &call.Facts{Elapsed: time.Second}, CheckLimits: true})
	require.True(t, d.Allowed)
}

// Searches that would take too long are given up and denied.
func TestCeiling(t *testing.T) {
	long := value.OfMap(value.Pair{Key: "x", Value: value.OfString(strings.Repeat("a", (4 << 10)))})
	for name, yaml := range map[string]string{
		"condition": "rules: [{name: r, condition: {field: x, operator: matches, value: 'b'}, action: deny}]",
		"pattern":   "blocked_patterns: [{pattern: '[g-z][h-z]{40}', type: regex}]",
	} {
		in := call.Input{Tool: "t", Context: long, Arguments: long}
		require.True(t, mustCompile(t, yaml).Evaluate(context.Background(), in).Allowed, name)
		d := mustCompile(t, yaml, WithCeiling(-time.Second)).Evaluate(context.Background(), in)
		require.False(t, d.Allowed, name)
		require.Equal(t, CategoryBudgetExhausted, d.Category, name)
		require.Equal(t, "the evaluation took too long", d.Error, name)
	}
}

func TestPolicyAccessors(t *testing.T) {
	tree, err := source.NewTree([]source.File{file("b/governance.yaml", "name: b\nrules: []"), file("a.yaml", "name: a\nmode: strict\nrules: []")})
	require.NoError(t, err)
	p, err := Compile(tree)
	require.NoError(t, err)
	require.Equal(t, tree.Digest(), p.Digest())
	require.True(t, p.Strict())
	var got []string
	for _, d := range p.Documents() {
		got = append(got, d.Path)
	}
	require.Equal(t, []string{"a.yaml", "b/governance.yaml"}, got)
	require.True(t, mustCompile(t, "rules: []", WithStrict()).Strict())

	res, err := composition.Resolver{Strategy: document.DenyOverrides}.Resolve([]composition.Candidate{{Rule: "a", Action: document.Allow}, {Rule: "d", Action: document.Deny}})
	require.NoError(t, err)
	require.Equal(t, "d", res.Winner.Rule)
	_, err = composition.Resolver{Strategy: "COIN_TOSS"}.Resolve([]composition.Candidate{{Action: document.Allow}, {Action: document.Deny}})
	require.ErrorContains(t, err, "unknown strategy")
}

// A call of another kind that names no tool is not held to what concerns tools,
// and has the text of approvals that names none. One that names a tool is judged
// as one, whatever it calls itself.
func TestKinds(t *testing.T) {
	p := mustCompile(t, "require_human_approval: true\nallowed_tools: [a]")
	for _, kind := range []call.Kind{call.KindModel, call.KindAgent, call.KindHandoff} {
		require.Equal(t, "Execution requires human approval per governance policy", p.Evaluate(context.Background(), call.Input{Kind: kind}).Reason)
		require.Equal(t, "Tool 'x' requires human approval per governance policy", p.Evaluate(context.Background(), call.Input{Kind: kind, Tool: "x"}).Reason)
	}
	p = mustCompile(t, "rules: [{name: k, condition: {field: action_type, operator: in, value: [model_call, agent_call]}, action: audit}]")
	for kind, want := range map[call.Kind]string{call.KindTool: "", call.KindModel: "k", call.KindAgent: "k", call.KindHandoff: ""} {
		in := call.Input{Kind: kind, SessionID: "s", Context: enginetest.Value(t, `{"action_type":"tool_call"}`)}
		require.Equal(t, want, p.Evaluate(context.Background(), in).MatchedRule, kind.String())
	}
	// Without a session the caller may describe a call of any kind.
	require.Equal(t, "k", p.Evaluate(context.Background(), call.Input{Context: enginetest.Value(t, `{"action_type":"model_call"}`)}).MatchedRule)
}

// Within a session a context cannot name an agent or claim counts, for rules,
// backends and records alike (policy engine spec 22.3).
func TestSessionOverridesClaims(t *testing.T) {
	p := mustCompileFilesWith(t, []Option{WithRego(enginetest.LoadScripted("opa"))},
		file("rules.yaml", "rules:\n  - {name: agent, condition: {field: agent_id, operator: eq, value: root}, action: audit}\n  - {name: counts, condition: {field: tool_calls, operator: eq, value: {t: 0}}, action: audit}\n"),
		file("p.rego", "echo"))
	claims := call.Input{Tool: "t", Context: enginetest.Value(t, `{"agent_id":"root"}`)}
	counts := call.Input{Tool: "t", Context: enginetest.Value(t, `{"tool_calls":{"t":0}}`)}
	require.Equal(t, "agent", p.Evaluate(context.Background(), claims).MatchedRule)
	require.Equal(t, "counts", p.Evaluate(context.Background(), counts).MatchedRule)
	claims.SessionID, counts.SessionID = "s", "s"
	counts.Facts = &call.Facts{}
	d := p.Evaluate(context.Background(), claims)
	require.Equal(t, "opa", d.Backend)
	require.Contains(t, d.Reason, `{"agent_id":"",`)
	require.Empty(t, p.Audit(claims, d, ContextHash{}).AgentID)
	d = p.Evaluate(context.Background(), counts)
	require.Equal(t, "opa", d.Backend)
	require.Contains(t, d.Reason, `{"tool_calls":null,`)
}
