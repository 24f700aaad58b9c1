package engine_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine"
	"example.com/govnode/engine/cedar"
	"example.com/govnode/engine/opa"
	"example.com/govnode/engine/value"
)

func compile(tb testing.TB, files map[string]string) *engine.Policy {
	tb.Helper()
	var list []engine.File
	for path, content := range files {
		list = append(list, engine.File{Path: path, Content: []byte(content)})
	}
	tree, err := engine.NewTree(list)
	require.NoError(tb, err)
	p, err := engine.Compile(tree, engine.WithCedar(cedar.Load), engine.WithRego(opa.Load), engine.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(tb, err)
	return p
}

const (
	nativeRules = "name: native\nrules: [{name: no-shell, condition: {field: tool_name, operator: eq, value: shell}, action: deny}]\n"
	regoAllow   = "package agentos\n\ndefault allow := false\n\nallow if input.tool_name == \"read_file\"\n"
	cedarPolicy = "permit (principal, action == Action::\"ReadFile\", resource);\n"
)

// Worked example 21.3 with the real OPA: native rules first, then the backend.
func TestExternalBackendFallthrough(t *testing.T) {
	p := compile(t, map[string]string{"native.yaml": nativeRules, "policy.rego": regoAllow})
	ctx := context.Background()

	d := p.Evaluate(ctx, engine.Input{Tool: "shell"})
	require.Equal(t, "no-shell", d.MatchedRule)
	require.Empty(t, d.Backend)

	d = p.Evaluate(ctx, engine.Input{Tool: "read_file"})
	require.True(t, d.Allowed, d.Reason)
	require.Equal(t, "allow", d.Action)
	require.Equal(t, "opa", d.Backend)
	require.Equal(t, "external:opa", d.Policy)

	d = p.Evaluate(ctx, engine.Input{Tool: "write_file"})
	require.False(t, d.Allowed)
	require.Equal(t, "opa", d.Backend)
	require.Empty(t, d.Error)
}

// Cedar is asked before Rego and decides where it does not fail.
func TestCedarBeforeRego(t *testing.T) {
	p := compile(t, map[string]string{"a.rego": regoAllow, "z.cedar": cedarPolicy})
	d := p.Evaluate(context.Background(), engine.Input{Tool: "read_file", AgentID: "a-1"})
	require.True(t, d.Allowed, d.Reason)
	require.Equal(t, "cedar", d.Backend)
	require.Equal(t, "cedar", p.Evaluate(context.Background(), engine.Input{Tool: "write_file"}).Backend)
}

// A counter that a Cedar policy names comes from the service, whatever the
// caller claims, and leaves an exact premise.
func TestBackendSeesFacts(t *testing.T) {
	p := compile(t, map[string]string{"p.cedar": "permit (principal, action, resource) when { context.call_count < 3 };\n"})
	in := engine.Input{
		Tool: "read_file", AgentID: "a-1", SessionID: "s-1", Facts: &engine.Facts{CallCount: 2},
		Context: value.OfMap(value.Pair{Key: "call_count", Value: value.OfInt(99)}),
	}
	d := p.Evaluate(context.Background(), in)
	require.True(t, d.Allowed, d.Reason+d.Error)
	require.Equal(t, []engine.Premise{{Fact: engine.CallCount, Lo: 2, Hi: 2}}, d.Premises)
	in.Facts = &engine.Facts{CallCount: 3}
	require.False(t, p.Evaluate(context.Background(), in).Allowed)
}

// A file of a backend that does not compile refuses the tree with its place,
// and so does a backend that this program was built without.
func TestBackendFilesAreCompiledAtLoad(t *testing.T) {
	tree, err := engine.NewTree([]engine.File{{Path: "sub/p.cedar", Content: []byte("permit (principal,\n  nonsense;\n")}})
	require.NoError(t, err)
	_, err = engine.Compile(tree, engine.WithCedar(cedar.Load))
	require.ErrorContains(t, err, "sub/p.cedar:2")
	_, err = engine.Compile(tree)
	require.ErrorContains(t, err, "sub/p.cedar: this program was built without the cedar backend")
}

func BenchmarkBackends(b *testing.B) {
	for name, files := range map[string]map[string]string{
		"cedar": {"p.cedar": cedarPolicy}, "opa": {"p.rego": regoAllow},
		"native": {"p.yaml": "rules: [{name: r, condition: {field: tool_name, operator: eq, value: read_file}, action: allow}]\ndefaults: {action: deny}\n"},
	} {
		b.Run(name, func(b *testing.B) {
			p := compile(b, files)
			in := engine.Input{Tool: "read_file", AgentID: "a-1"}
			require.True(b, p.Evaluate(context.Background(), in).Allowed)
			b.ReportAllocs()
			for b.Loop() {
				p.Evaluate(context.Background(), in)
			}
		})
	}
}
