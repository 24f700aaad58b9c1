package server_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
)

func TestOneCallFromBeginToEnd(t *testing.T) {
	n := start(t)
	p := n.putPolicy(policy()...)
	require.Equal(t, "p", p.Name)
	require.EqualValues(t, 1, p.Version)
	s := n.session("s")
	require.Equal(t, p.Digest, s.PolicyDigest)

	b := n.begin("s", "c")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, b.Outcome)
	require.Len(t, b.Grants, 1)
	require.Equal(t, "policy/p", b.Grants[0].Pool)
	require.True(t, b.Decision.Allowed)
	require.Empty(t, b.Reason)

	e := n.end("s", "c")
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, e.Outcome)
	require.Greater(t, e.Index, b.Index)
	got := n.getSession("s")
	require.EqualValues(t, 1, got.Attempts)
	require.EqualValues(t, 1, got.Calls)
	require.EqualValues(t, 1, got.Executions)
	require.Empty(t, got.OpenCalls)
	require.Equal(t, map[string]int32{"t": 1}, got.CallsByTool)
}

// From outside: 40 parallel calls on a policy of 5 admit exactly 5, attempts
// are 40, and the same 40 ids again give the same answers and move nothing.
func TestFortyCallsOnFiveSlots(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	first := n.parallel(40)
	admitted := 0
	for _, res := range first {
		if res.Outcome == v1.Outcome_OUTCOME_ADMITTED {
			admitted++
			continue
		}
		require.Equal(t, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT, res.Outcome)
		require.Equal(t, "Max concurrency reached (5)", res.Reason)
		require.NotNil(t, res.RetryAfter)
	}
	require.Equal(t, 5, admitted)
	before := n.getSession("s")
	require.EqualValues(t, 40, before.Attempts)
	require.EqualValues(t, 5, before.Calls)

	for i, res := range n.parallel(40) {
		require.Equal(t, first[i].Outcome, res.Outcome)
		require.Equal(t, first[i].Reason, res.Reason)
		require.Equal(t, first[i].DecisionId, res.DecisionId)
		require.Equal(t, first[i].Decision.MatchedRule, res.Decision.MatchedRule)
		for g := range first[i].Grants {
			require.Equal(t, first[i].Grants[g].Token, res.Grants[g].Token)
		}
	}
	after := n.getSession("s")
	require.Equal(t, before.Attempts, after.Attempts)
	require.Equal(t, before.Calls, after.Calls)
}

func (n *node) parallel(count int, change ...func(*v1.BeginCallRequest)) []*v1.BeginCallResponse {
	out := make([]*v1.BeginCallResponse, count)
	errs := make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			out[i], errs[i] = n.calls.BeginCall(n.ctx(), beginRequest("s", fmt.Sprintf("c%d", i), change...))
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(n.t, err)
	}
	return out
}

// What became of a call is told once its session is over and its policy was deleted, by
// nodes that never had it as well.
func TestARepeatWithoutItsPolicy(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("allowed_tools: [t, u]", "max_calls_per_tool: {u: 1}", "rate_limits: [{name: r, limit: 2, per: 1h}]")...)
	n.session("s")
	calls := []*v1.BeginCallRequest{
		beginRequest("s", "ended"), beginRequest("s", "counted", func(r *v1.BeginCallRequest) { r.Tool = "u" }),
		beginRequest("s", "over", func(r *v1.BeginCallRequest) { r.Tool = "u" }),
		beginRequest("s", "limited"), beginRequest("s", "denied", func(r *v1.BeginCallRequest) { r.Tool = "other" }),
	}
	for _, req := range calls {
		n.begin("s", req.CallId, func(r *v1.BeginCallRequest) { r.Tool = req.Tool })
	}
	n.end("s", "ended")
	_, err := n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	calls = append(calls, beginRequest("s", "late"))
	var were []*v1.BeginCallResponse
	var outcomes []string
	for _, req := range calls {
		res, err := n.calls.BeginCall(n.ctx(), req)
		require.NoError(t, err)
		were, outcomes = append(were, res), append(outcomes, strings.TrimPrefix(res.Outcome.String(), "OUTCOME_"))
	}
	require.Equal(t, []string{"ALREADY_ENDED", "LEASE_LOST", "TOOL_LIMIT", "RATE_LIMITED", "DENIED_BY_POLICY", "SESSION_CLOSED"}, outcomes)
	_, err = n.policies.DeletePolicy(n.ctx(), &v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Name{Name: "p"}, RequestId: "d"})
	require.NoError(t, err)
	other := startOn(t, n.store)
	for i, req := range calls {
		is, err := other.calls.BeginCall(t.Context(), req)
		require.NoError(t, err, req.CallId)
		was := were[i]
		switch was.Outcome { // neither their names nor their words are kept beside the policy
		case v1.Outcome_OUTCOME_RATE_LIMITED:
			was.Rate, was.Decision.Reason = "", "Rate limit reached"
		case v1.Outcome_OUTCOME_DENIED_BY_POLICY:
			was.Decision.Reason = "The policy is not kept any more"
			was.Decision.Category, was.Decision.PublicMessage = "", "Action not permitted by governance policy."
		}
		require.Equal(t,
			[]any{was.Outcome, was.DecisionId, was.Counters.String(), was.Rate, was.Decision.PolicyDigest, was.Decision.Reason, was.Decision.Category, was.Decision.PublicMessage},
			[]any{is.Outcome, is.DecisionId, is.Counters.String(), is.Rate, is.Decision.PolicyDigest, is.Decision.Reason, is.Decision.Category, is.Decision.PublicMessage}, req.CallId)
		require.False(t, is.Decision.Allowed)
		require.Equal(t, was.DecisionId, other.explain(is.DecisionId).DecisionId)
	}
	require.NotContains(t, other.audit.text(), "failure_reason")
}
