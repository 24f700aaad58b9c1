package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/enginetest"
	"example.com/govnode/engine/source"
)

// benchPolicy has n deny rules, each for another tool, and one allow rule that
// the call of benchInput reaches last.
func benchPolicy(tb testing.TB, n int) *Policy {
	var b strings.Builder
	b.WriteString("name: bench\nrules:\n")
	for i := range n - 1 {
		fmt.Fprintf(&b, "  - name: deny-%d\n    condition: {field: tool_name, operator: eq, value: tool_%d}\n    action: deny\n    priority: %d\n", i, i, n-i)
	}
	b.WriteString("  - name: allow-read\n    condition: {field: tool_name, operator: in, value: [read_file, search]}\n    action: allow\n")
	b.WriteString("defaults: {action: deny}\n")
	return mustCompile(tb, b.String())
}

// benchNumbers has n rules that compare a number, which no index can skip.
func benchNumbers(tb testing.TB, n int) *Policy {
	var b strings.Builder
	b.WriteString("name: bench\nrules:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - name: deny-%d\n    condition: {field: token_count, operator: gt, value: %d}\n    action: deny\n    priority: %d\n", i, 5000+i, n-i)
	}
	return mustCompile(tb, b.String())
}

func benchInput(tb testing.TB) call.Input {
	return call.Input{
		Tool:      "read_file",
		AgentID:   "agent-1",
		Arguments: enginetest.Value(tb, `{"path":"docs/readme.md","limit":10}`),
		Context:   enginetest.Value(tb, `{"token_count":120,"environment":"production"}`),
	}
}

func BenchmarkEvaluate(b *testing.B) {
	for _, bench := range []struct {
		name   string
		policy func(testing.TB, int) *Policy
	}{{"tools", benchPolicy}, {"numbers", benchNumbers}} {
		for _, n := range []int{10, 1000} {
			b.Run(fmt.Sprintf("%s/%d", bench.name, n), func(b *testing.B) {
				p, in, ctx := bench.policy(b, n), benchInput(b), context.Background()
				require.True(b, p.Evaluate(ctx, in).Allowed)
				b.ReportAllocs()
				for b.Loop() {
					p.Evaluate(ctx, in)
				}
			})
		}
	}
}

func BenchmarkEvaluateFacts(b *testing.B) {
	p := mustCompile(b, "name: n\nrules:\n  - {name: cap, condition: {field: call_count, operator: gte, value: 100}, action: deny}\n")
	in, ctx := benchInput(b), context.Background()
	in.Facts = &call.Facts{CallCount: 5}
	b.ReportAllocs()
	for b.Loop() {
		p.Evaluate(ctx, in)
	}
}

func BenchmarkEvaluateFolders(b *testing.B) {
	p := mustCompileFiles(b,
		source.File{Path: "governance.yaml", Content: []byte("name: root\nrules: [{name: no-delete, condition: {field: tool_name, operator: eq, value: delete}, action: deny}]\n")},
		source.File{Path: "src/governance.yaml", Content: []byte("name: src\nrules: [{name: read, condition: {field: tool_name, operator: eq, value: read_file}, action: allow}]\n")},
	)
	in, ctx := benchInput(b), context.Background()
	in.Context = enginetest.Value(b, `{"path":"src/a/b.go"}`)
	require.True(b, p.Evaluate(ctx, in).Allowed)
	b.ReportAllocs()
	for b.Loop() {
		p.Evaluate(ctx, in)
	}
}

func BenchmarkCompile(b *testing.B) {
	var text strings.Builder
	text.WriteString("rules:\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "  - {name: r%d, condition: {field: tool_name, operator: eq, value: t%d}, action: deny}\n", i, i)
	}
	tree, err := source.SingleFile(text.String())
	require.NoError(b, err)
	for b.Loop() {
		if _, err := Compile(tree); err != nil {
			b.Fatal(err)
		}
	}
}

// TestNoAllocation holds the promise that an allow without a pattern costs no
// allocation, however many rules were tried.
func TestNoAllocation(t *testing.T) {
	ctx := context.Background()
	for _, n := range []int{10, 1000} {
		for name, p := range map[string]*Policy{"tools": benchPolicy(t, n), "numbers": benchNumbers(t, n)} {
			in := benchInput(t)
			require.True(t, p.Evaluate(ctx, in).Allowed)
			require.Zero(t, testing.AllocsPerRun(100, func() { p.Evaluate(ctx, in) }), "%s/%d", name, n)
			require.NotEmpty(t, p.answers)
			p.answers = nil
			require.Zero(t, testing.AllocsPerRun(100, func() { p.Evaluate(ctx, in) }), "%s/%d, the long way", name, n)
		}
	}
}

func mustCompile(tb testing.TB, yaml string, opts ...Option) *Policy {
	tb.Helper()
	return mustCompileFilesWith(tb, opts, source.File{Path: "policy.yaml", Content: []byte(yaml)})
}

func mustCompileFiles(tb testing.TB, files ...source.File) *Policy {
	tb.Helper()
	return mustCompileFilesWith(tb, nil, files...)
}

func mustCompileFilesWith(tb testing.TB, opts []Option, files ...source.File) *Policy {
	tb.Helper()
	tree, err := source.NewTree(files)
	require.NoError(tb, err)
	p, err := Compile(tree, append([]Option{WithLogger(discard)}, opts...)...)
	require.NoError(tb, err)
	return p
}
