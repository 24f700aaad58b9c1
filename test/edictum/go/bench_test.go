package sdk_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/edictum-ai/edictum-go/guard"
	"github.com/edictum-ai/edictum-go/pipeline"
	"github.com/edictum-ai/edictum-go/session"
	"github.com/edictum-ai/edictum-go/toolcall"
	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/value"
)

// many is a ruleset of which a quarter is for other tools; the rest looks at the call and
// lets it pass.
func many(rules int) string {
	var b strings.Builder
	b.WriteString("apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: many}\ndefaults: {mode: enforce}\nrules:\n")
	for i := range rules {
		tool := "Bash"
		if i%4 == 3 {
			tool = fmt.Sprintf("tool%d", i)
		}
		when := []string{
			`args.command: {contains: "rm -rf %d"}`, `args.command: {matches: "^sudo +%d"}`, `principal.role: {equals: "guest%d"}`, `args.path: {starts_with: "/etc/%d"}`,
		}[i%4]
		fmt.Fprintf(&b, "  - {id: r%d, type: pre, tool: %s, when: {%s}, then: {action: block, message: stop}}\n", i, tool, fmt.Sprintf(when, i))
	}
	return b.String()
}

// An allowed call before it runs: the pipeline of the Go SDK over its backend in memory,
// and this project's engine, side by side.
func BenchmarkBeforeACall(b *testing.B) {
	for _, rules := range []int{10, 1000} {
		text := many(rules)
		b.Run(fmt.Sprintf("rules=%d/sdk", rules), func(b *testing.B) {
			g, err := guard.FromYAMLString(text)
			require.NoError(b, err)
			ctx := context.Background()
			sess, err := session.New("run", session.NewMemoryBackend())
			require.NoError(b, err)
			pipe := pipeline.New(g)
			who := toolcall.NewPrincipal(toolcall.WithRole("dev"))
			call, err := toolcall.CreateToolCall(ctx, toolcall.CreateToolCallOptions{
				ToolName: "Bash", Args: map[string]any{"command": "ls -la", "path": "/srv/app"}, Principal: &who,
			})
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				d, err := pipe.PreExecute(ctx, call, sess)
				if err != nil || d.Action != "allow" {
					b.Fatal(d, err)
				}
			}
		})
		b.Run(fmt.Sprintf("rules=%d/govnode", rules), func(b *testing.B) {
			d, err := edictum.Parse("many.yaml", []byte(text))
			require.NoError(b, err)
			rs, err := edictum.Compile(d)
			require.NoError(b, err)
			args, err := value.Parse([]byte(`{"command": "ls -la", "path": "/srv/app"}`))
			require.NoError(b, err)
			who, err := value.Parse([]byte(`{"role": "dev"}`))
			require.NoError(b, err)
			call := &edictum.Call{Tool: "Bash", Args: args, Principal: who}
			b.ReportAllocs()
			for b.Loop() {
				if v := rs.Before(call); v.Action != edictum.Allow {
					b.Fatal(v)
				}
			}
		})
	}
}
