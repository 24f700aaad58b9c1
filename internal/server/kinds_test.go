package server_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
)

// A call that names a tool is judged and counted as one, whatever kind it says
// it is.
func TestKindIsTheCallersWord(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("allowed_tools: [t]", "max_calls_per_tool: {t: 1}")...)
	n.session("s")
	handoff := func(tool string) func(*v1.BeginCallRequest) {
		return func(r *v1.BeginCallRequest) { r.Kind, r.Tool = v1.Kind_KIND_HANDOFF, tool }
	}
	refused := n.begin("s", "c0", handoff("shell"))
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, refused.Outcome)
	require.Equal(t, "not_allowed_tool", refused.Decision.Category)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c1", handoff("t")).Outcome)
	require.EqualValues(t, 1, n.getSession("s").Calls, "it is a call of the tool")
	require.Equal(t, v1.Outcome_OUTCOME_TOOL_LIMIT, n.begin("s", "c2", handoff("t")).Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c3", handoff("")).Outcome, "a handoff is held to no list of tools")
	require.EqualValues(t, 1, n.getSession("s").Calls)
}

// Metadata are what the request brings: neither a content hash nor anything
// else under that name comes from the context.
func TestContextBringsNoMetadata(t *testing.T) {
	hash := strings.Repeat("ab", 32)
	n := start(t)
	n.putPolicy(policy("content_hashes: {t: " + `"` + hash + `"` + "}")...)
	n.session("s")
	for i, context := range []string{`{"metadata":{"content_hash":"` + hash + `"}}`, `{"metadata.content_hash":"` + hash + `"}`} {
		res := n.begin("s", "c"+string(rune('0'+i)), func(r *v1.BeginCallRequest) { r.ContextJson = context })
		require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, res.Outcome, context)
		require.Contains(t, res.Reason, "missing content_hash metadata")
		eval, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t", ContextJson: context})
		require.NoError(t, err)
		require.False(t, eval.Decision.Allowed, context)
	}
	res := n.begin("s", "good", func(r *v1.BeginCallRequest) { r.Metadata = map[string]string{"content_hash": hash} })
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome, res.Reason)
}

// A literal key of the context hides nothing that the request brings.
func TestMetadataAreTheRequests(t *testing.T) {
	n := start(t)
	_, err := n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Name: "p", Yaml: `
rules:
  - {name: no-prod, condition: {field: metadata.env, operator: eq, value: prod}, action: deny}
`})
	require.NoError(t, err)
	res, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{
		Policy: byName("p"), Tool: "t", Metadata: map[string]string{"env": "prod"}, ContextJson: `{"metadata.env":"dev","metadata":{"env":"dev"}}`,
	})
	require.NoError(t, err)
	require.Equal(t, "no-prod", res.Decision.MatchedRule)
}
