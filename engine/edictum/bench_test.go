package edictum_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/value"
)

// An allowed call against so many rules, none of which applies.
func BenchmarkBefore(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			rs := many(b, n)
			args, err := value.Parse([]byte(`{"command": "ls -la", "path": "/srv/app/notes.txt", "n": 5}`))
			require.NoError(b, err)
			call := &edictum.Call{Tool: "Bash", Args: args}
			require.Equal(b, edictum.Allow, rs.Before(call).Action)
			b.ReportAllocs()
			for b.Loop() {
				rs.Before(call)
			}
		})
	}
}

func many(b *testing.B, n int) *edictum.Ruleset {
	var rules strings.Builder
	for i := range n {
		switch i % 4 {
		case 0:
			fmt.Fprintf(&rules, "- {id: r%d, type: pre, tool: Bash, when: {args.command: {contains: 'rm -rf %d'}}, then: {action: block, message: stop}}\n", i, i)
		case 1:
			fmt.Fprintf(&rules, "- {id: r%d, type: pre, tool: '*', when: {args.n: {gt: %d}}, then: {action: block, message: stop}}\n", i, 10+i)
		case 2:
			fmt.Fprintf(&rules, "- {id: r%d, type: pre, tool: 'tool_%d', when: {args.x: {exists: true}}, then: {action: block, message: stop}}\n", i, i)
		default:
			fmt.Fprintf(&rules, "- {id: r%d, type: pre, tool: 'Ba*', when: {all: [{environment: {equals: staging}}, {args.command: {matches: 'x{%d}'}}]}, then: {action: ask, message: stop}}\n", i, 1+i%50)
		}
	}
	doc, err := edictum.Parse("many", []byte(head+rules.String()))
	require.NoError(b, err)
	rs, err := edictum.Compile(doc)
	require.NoError(b, err)
	return rs
}
