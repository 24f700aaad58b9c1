package examples_test

import (
	"context"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
)

const basic = `version: "1.0"
name: "no-code-execution"
rules:
  - name: block-execute
    condition:
      field: tool_name
      operator: eq
      value: execute_code
    action: deny
    priority: 100
    message: "Code execution is not permitted in this environment"
defaults:
  action: allow
`

const orgRoot = `version: "1.0"
name: "org-security"
rules:
  - name: no-delete
    condition:
      field: tool_name
      operator: eq
      value: delete_resource
    action: deny
    priority: 200
    message: "Deletion blocked by org policy"
`

const devFolder = `version: "1.0"
name: "dev-environment"
rules:
  - name: no-delete
    condition:
      field: tool_name
      operator: eq
      value: delete_resource
    action: allow
    priority: 300
    override: true
    message: "Dev environment allows deletion"
`

const regoAllow = `package agentos

default allow := false

allow if input.tool_name == "read_file"
`

const agentScope = `name: agent-reads
level: agent
combining: deny_overrides
rules:
  - name: allow-read
    condition: {field: tool_name, operator: eq, value: read}
    action: allow
    priority: 50
`

const globalScope = `name: everything
rules:
  - name: block-all
    condition: {field: tool_name, operator: ne, value: ""}
    action: deny
    priority: 10
`

// The five examples of section 21. Policies are put on the first node; what
// they decide is asked for on the second; why, on the third.
func TestSection21(t *testing.T) {
	nodes, audit, log := start(t)
	one, two, three := nodes[0], nodes[1], nodes[2]
	put := func(name string, files ...*v1.TextFile) *v1.PolicyRef {
		t.Helper()
		res, err := one.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: name, Files: files, RequestId: name})
		require.NoError(t, err)
		return &v1.PolicyRef{Ref: &v1.PolicyRef_Digest{Digest: res.Digest}}
	}
	evaluate := func(t *testing.T, policy *v1.PolicyRef, context string) (*v1.EvaluateResponse, *v1.DecisionRecord) {
		t.Helper()
		res, err := two.policies.Evaluate(t.Context(), &v1.EvaluateRequest{Policy: policy, ContextJson: context})
		require.NoError(t, err)
		why, err := three.explains.Explain(t.Context(), &v1.ExplainRequest{DecisionId: res.DecisionId})
		require.NoError(t, err, "the third node asks the second")
		require.Equal(t, "n2", why.Record.Node)
		return res, why.Record
	}
	// begin asks for the same in a session: the decision that counts.
	begin := func(t *testing.T, policy *v1.PolicyRef, session, tool, context string) *v1.BeginCallResponse {
		t.Helper()
		_, err := three.sessions.CreateSession(t.Context(), &v1.CreateSessionRequest{SessionId: session, AgentId: "assistant-1", Policy: policy})
		require.NoError(t, err)
		res, err := one.calls.BeginCall(t.Context(), &v1.BeginCallRequest{SessionId: session, CallId: "c", Tool: tool, ContextJson: context})
		require.NoError(t, err)
		return res
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := three.events.Follow(ctx, &v1.FollowRequest{Cluster: true})
	require.NoError(t, err)
	require.True(t, stream.Receive(), "%v", stream.Err())
	require.Len(t, splitCursor(stream.Msg().Cursor), 3, "from here on nothing is missed on any node")

	t.Run("21.1-basic-tool-blocking", func(t *testing.T) {
		policy := put("basic", &v1.TextFile{Path: "policy.yaml", Content: basic})
		res, why := evaluate(t, policy, `{"tool_name":"execute_code","agent_id":"assistant-1"}`)
		d := res.Decision
		require.False(t, d.Allowed)
		require.Equal(t, []string{"block-execute", "deny", "Code execution is not permitted in this environment"}, []string{d.MatchedRule, d.Action, d.Reason})
		require.Equal(t, []string{"no-code-execution", "block-execute", "deny", "assistant-1"}, []string{why.Decision.Policy, why.Decision.MatchedRule, why.Decision.Action, why.AgentId})
		res, _ = evaluate(t, policy, `{"tool_name":"read","agent_id":"assistant-1"}`)
		require.True(t, res.Decision.Allowed)
		called := begin(t, policy, "basic", "execute_code", "")
		require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, called.Outcome)
		require.Equal(t, d.Reason, called.Reason)
	})

	t.Run("21.2-folder-merge-deny-override", func(t *testing.T) {
		policy := put("folders", &v1.TextFile{Path: "governance.yaml", Content: orgRoot}, &v1.TextFile{Path: "dev/governance.yaml", Content: devFolder})
		res, why := evaluate(t, policy, `{"tool_name":"delete_resource","path":"dev/tool.py"}`)
		d := res.Decision
		require.False(t, d.Allowed)
		require.Equal(t, []string{"no-delete", "deny", "Deletion blocked by org policy"}, []string{d.MatchedRule, d.Action, d.Reason})
		require.Equal(t, []string{"org-security", "dev-environment"}, why.Decision.PolicyChain)
		require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, begin(t, policy, "folders", "delete_resource", `{"path":"dev/tool.py"}`).Outcome)
	})

	t.Run("21.3-external-backend-fallthrough", func(t *testing.T) {
		policy := put("opa", &v1.TextFile{Path: "policy.yaml", Content: basic}, &v1.TextFile{Path: "agent.rego", Content: regoAllow})
		res, why := evaluate(t, policy, `{"tool_name":"read_file"}`)
		require.True(t, res.Decision.Allowed)
		require.Equal(t, []string{"allow", "opa", "external:opa"}, []string{res.Decision.Action, res.Decision.Backend, res.Decision.Policy})
		require.Equal(t, "opa", why.Decision.Backend)
		require.Contains(t, audit.String(), `"backend":"opa"`)
		res, _ = evaluate(t, policy, `{"tool_name":"execute_code"}`)
		require.Empty(t, res.Decision.Backend, "a rule that matches is not asked about again")
		require.Equal(t, "block-execute", res.Decision.MatchedRule)
		require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, begin(t, policy, "opa", "write_file", "").Outcome)
	})

	t.Run("21.4-fail-closed-on-exception", func(t *testing.T) {
		_, err := one.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: "broken", Yaml: "name: broken\nrules:\n  - name: r\n    condition: {field: x, operator: matches, value: '('}\n    action: deny\n"})
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "a pattern that is malformed is caught when it is put: %v", err)
		// A type that an operator cannot work on is only met at evaluation.
		policy := put("typed", &v1.TextFile{Path: "policy.yaml", Content: "name: typed\nrules:\n  - name: big\n    condition: {field: size, operator: gt, value: 10}\n    action: allow\n"})
		res, why := evaluate(t, policy, `{"tool_name":"read","size":"huge"}`)
		require.False(t, res.Decision.Allowed)
		require.Equal(t, "deny", res.Decision.Action)
		require.Equal(t, "Policy evaluation error — access denied (fail closed)", res.Decision.Reason)
		require.NotEmpty(t, why.Decision.Error)
		require.Contains(t, audit.String(), `"error":true`)
		require.Contains(t, log.String(), "level=ERROR")
		// So is a part of the program that panics.
		fine := &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: "basic"}}
		called := begin(t, fine, "breaks", "breaks", "")
		require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, called.Outcome)
		require.Contains(t, called.Reason, "fail-closed")
	})

	t.Run("21.5-deny-overrides", func(t *testing.T) {
		policy := put("scopes",
			&v1.TextFile{Path: "agent.yaml", Content: agentScope}, &v1.TextFile{Path: "global.yaml", Content: globalScope})
		res, why := evaluate(t, policy, `{"tool_name":"read"}`)
		require.False(t, res.Decision.Allowed)
		require.Equal(t, "block-all", res.Decision.MatchedRule)
		require.Equal(t, "block-all", why.Decision.MatchedRule)
		require.Contains(t, res.Trace, "DENY_OVERRIDES: 1 deny rule(s) found")
		require.Contains(t, res.Trace, "Winner: block-all (priority=10, scope=global)")
		require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, begin(t, policy, "scopes", "read", "").Outcome)
	})

	// Everything was seen by one who follows the cluster on the third node.
	seen := map[string]int{}
	for seen["n1 tool_call_blocked"] < 5 || seen["n2 tool_call_blocked"] < 5 {
		require.True(t, stream.Receive(), "%v after %v", stream.Err(), seen)
		if ev := stream.Msg().Event; ev != nil {
			seen[ev.Node+" "+ev.Type]++
		}
	}
	require.Zero(t, seen["n3 policy_check"], "the third node decided nothing")
	for _, n := range []string{"n1", "n2"} {
		require.Equal(t, seen[n+" tool_call_blocked"], seen[n+" policy_violation"])
	}
}

func splitCursor(text string) []string { return strings.Split(text, ",") }
