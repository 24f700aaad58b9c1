package server_test

import (
	"fmt"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
)

// In a session that is over nothing is admitted, and Evaluate does not say that
// it would be.
func TestEvaluateInAClosedSession(t *testing.T) {
	n := furnished(t)
	_, err := n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	_, err = n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t"})
	requireRefused(t, err, connect.CodeFailedPrecondition, "SESSION_CLOSED", `sessionId "s"`)
}

// A session has its agent: what is asked about it for another one is refused, and not
// judged as if it had not been said.
func TestEvaluateForTheAgentOfASession(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	agent := n.session("s").AgentId
	_, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t", AgentId: agent})
	require.NoError(t, err)
	_, err = n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t", AgentId: "other"})
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", `agentId: is "other"`)
	require.Equal(t, "agentId", info(t, err).Metadata["field"])
}

// The slots that are in use are those of now, also at a node that has not heard of them.
func TestEvaluateWithTheSlotsOfNow(t *testing.T) {
	up := start(t)
	up.putPolicy("name: p", "rules: [{name: busy, condition: {field: active_slots, operator: gt, value: 0}, action: deny}]")
	up.session("s")
	late := &behind{Store: up.store}
	n := startOn(t, late)
	late.freeze(t)
	evaluate := func() string {
		res, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t"})
		require.NoError(t, err)
		return res.Decision.MatchedRule
	}
	require.Empty(t, evaluate())
	up.begin("s", "c")
	require.Equal(t, "busy", evaluate())
}

// Evaluate answers as BeginCall would, at every limit of a session that it
// reports.
func TestEvaluateAtTheLimitsOfASession(t *testing.T) {
	for name, test := range map[string]struct {
		lines    []string
		category string
	}{
		"attempts":                 {policy("max_attempts: 2"), "max_attempts"},
		"attempts before verdicts": {policy("max_attempts: 2", "allowed_tools: [other]"), "max_attempts"},
		"a tool":                   {policy("max_calls_per_tool: {t: 2}"), "max_calls_per_tool"},
		"calls":                    {[]string{"name: p", "max_tool_calls: 2", "max_calls_per_tool: {t: 2}"}, "max_tool_calls"},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			n.putPolicy(test.lines...)
			n.session("s")
			evaluate := func(tool string) *v1.EvaluateResponse {
				res, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: tool})
				require.NoError(t, err)
				return res
			}
			for i := range 2 {
				said := evaluate("t").Decision
				done := n.begin("s", fmt.Sprintf("c%d", i))
				require.Equal(t, done.Decision.Allowed, said.Allowed)
				require.NotEqual(t, test.category, said.Category, "one more was left")
			}
			said, refused := evaluate("t"), n.begin("s", "c")
			require.False(t, said.Decision.Allowed)
			require.Equal(t, refused.Reason, said.Decision.Reason)
			require.Equal(t, test.category, said.Decision.Category)
			require.Equal(t, refused.Decision.Category, said.Decision.Category)
			require.Equal(t, refused.Decision.Policy, said.Decision.Policy)
			require.Equal(t, refused.Decision.PublicMessage, said.Decision.PublicMessage)
			require.Equal(t, refused.Decision.MatchedRule, said.Decision.MatchedRule)
			if test.category != "max_tool_calls" { // which the engine says
				require.Contains(t, said.Trace, said.Decision.Reason)
			}
			if name == "a tool" {
				require.True(t, evaluate("other").Decision.Allowed)
			}
			explained, err := n.explains.Explain(n.ctx(), &v1.ExplainRequest{DecisionId: said.DecisionId})
			require.NoError(t, err)
			require.Equal(t, said.Decision.Reason, explained.Record.Decision.Reason)
		})
	}
}

// Which reason is given to a call that fails twice: BeginCall counts behind the
// whole verdict, Evaluate where the order of the checks says.
func TestEvaluateCountsWhereTheOrderSays(t *testing.T) {
	n := start(t)
	n.putPolicy("name: p", "max_concurrent: 5", "max_tool_calls: 1", "blocked_patterns: ['rm -rf']")
	n.session("s")
	n.begin("s", "first")
	for order, counted := range map[v1.Order]bool{v1.Order_ORDER_INTERCEPTOR: false, v1.Order_ORDER_PRE_EXECUTE: true} {
		begun := n.begin("s", order.String(), func(r *v1.BeginCallRequest) { r.ArgumentsJson, r.Order = `{"command":"rm -rf /"}`, order })
		require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, begun.Outcome)
		require.Contains(t, begun.Reason, "rm -rf")
		eval, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t", ArgumentsJson: `{"command":"rm -rf /"}`, Order: order})
		require.NoError(t, err)
		require.False(t, eval.Decision.Allowed)
		if counted {
			require.Equal(t, "Max tool calls exceeded (1)", eval.Decision.Reason)
		} else {
			require.Equal(t, begun.Reason, eval.Decision.Reason)
		}
	}
}
