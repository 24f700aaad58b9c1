package edictum_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/value"
)

// Whatever a file holds, it is read or refused with a reason, and what is read judges
// every call.
func FuzzParse(f *testing.F) {
	f.Add([]byte(head+"- {id: a, type: pre, tool: '*', when: {args.x: {matches: 'a+'}}, then: {action: block, message: '{args.x}'}}"), `{"x": "aa"}`)
	f.Add([]byte(head+"- {id: a, type: sandbox, tools: [Bash], within: [/srv], allows: {commands: [ls]}, message: stop}"), `{"command": "ls; rm"}`)
	f.Add([]byte(head+"- {id: a, type: post, tool: '*', when: {result.x: {gt: 1}}, then: {action: redact, message: stop}}"), `{"x": 2}`)
	f.Add([]byte(head+"- {id: a, type: session, limits: {max_tool_calls: 2.0}, then: {action: block, message: stop}}"), `{}`)
	f.Add([]byte(strings.ReplaceAll(head, "Ruleset", "ContractBundle")), `{}`)
	f.Fuzz(func(t *testing.T, raw []byte, args string) {
		doc, err := edictum.Parse("f", raw)
		if err != nil {
			var p *edictum.Problem
			require.ErrorAs(t, err, &p)
			require.NotEmpty(t, p.Message)
			return
		}
		rs, err := edictum.Compile(doc)
		require.NoError(t, err)
		v, err := value.Parse([]byte(args))
		if err != nil || v.Kind() != value.Map {
			return
		}
		call := &edictum.Call{Tool: "Bash", Args: v, Explain: true}
		verdict := rs.Before(call)
		require.Equal(t, verdict, rs.Before(call), "it depends on the call alone")
		require.Equal(t, verdict.Action == edictum.Allow, verdict.Rule == "")
		after := rs.After(call, edictum.Output{Value: v})
		require.Equal(t, after.Changed || after.Suppressed, after.Changed)
		both, _, err := edictum.Compose(doc, doc)
		require.NoError(t, err)
		again, err := edictum.Compile(both)
		require.NoError(t, err)
		require.Equal(t, verdict.Action, again.Before(call).Action, "a file put over itself changes nothing")
	})
}
