package server_test

import (
	"fmt"
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
