package policy

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
)

// What a guardrail made of the arguments is told however the decision is printed, and
// as JSON all that a node answers: which rules were asked, too.
func TestDecisionsArePrintedWhole(t *testing.T) {
	args, err := value.Parse([]byte(`{"q":"clean"}`))
	require.NoError(t, err)
	for _, output := range []string{"text", "json"} {
		var out bytes.Buffer
		require.NoError(t, new(evalFlags).print(&out, output, engine.Decision{Allowed: true, ModifiedArguments: &args}, engine.Digest{}))
		require.Contains(t, out.String(), "clean", output)
	}
	var out bytes.Buffer
	require.NoError(t, new(evalFlags).print(&out, "json", engine.Decision{Source: "yaml_precondition", SideEffect: "write", RulesEvaluated: 7, Records: []engine.RuleRecord{{Rule: "no-rm", Metadata: args}}}, engine.Digest{}))
	for _, field := range []string{`"source": "yaml_precondition"`, `"sideEffect": "write"`, `"rulesEvaluated": 7`, `"rule": "no-rm"`, `"q": "clean"`} {
		require.Contains(t, out.String(), field)
	}
}

// The help names every kind and order that is taken.
func TestHelpOfEvalNamesWhatIsTaken(t *testing.T) {
	fs := policyEvalCommand().Flags()
	for kind := range evalKinds {
		require.Contains(t, fs.Lookup("kind").Usage, kind)
	}
	for order := range evalOrders {
		require.Contains(t, fs.Lookup("order").Usage, order)
	}
}
