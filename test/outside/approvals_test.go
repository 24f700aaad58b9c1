//go:build outside

package outside

import (
	"fmt"
	"strings"
	"sync"

	"github.com/stretchr/testify/require"
)

// What approvals promise, on three nodes, one of which dies.

type approval struct {
	ID, State string
	Ballots   []struct{ Approver string }
}

// askedAndApproved asks about ten calls on the first node, decides at the second,
// kills a node, and lets the calls go on at the nodes that are left: each exactly
// once, though many ask again for it at the same time.
func askedAndApproved(c *cluster) {
	const calls, callers = 10, 8
	c.open("asked", "max_concurrent: 100\nmax_tool_calls: 100\nrequire_human_approval: true\napproval: {required: 2, timeout: 300s}\n")
	nodes := c.list()
	body := func(i int) object {
		return object{"sessionId": "asked", "callId": fmt.Sprintf("c%d", i), "tool": "rm", "arguments": object{"path": fmt.Sprintf("/%d", i)}}
	}
	ids := make([]string, calls)
	for i := range calls {
		var a struct {
			Outcome  string
			Approval approval
		}
		c.post(nodes[0], "CallService/BeginCall", body(i), &a)
		require.Equal(c.t, "OUTCOME_APPROVAL_REQUIRED", a.Outcome)
		ids[i] = a.Approval.ID
	}
	decide := func(n node, i int, who, what string) (string, int) {
		var out struct{ Approval approval }
		status, err := c.try(n, "ApprovalService/Decide", object{"id": ids[i], "decision": what, "approver": who}, &out)
		if status == 200 {
			require.NoError(c.t, err)
		}
		return out.Approval.State, status
	}
	for i := range calls {
		state, _ := decide(nodes[1], i, "amy", "VOTE_APPROVE")
		require.Equal(c.t, "APPROVAL_STATE_PENDING", state, "two of two are needed")
		state, _ = decide(nodes[2], i, "AMY", "VOTE_APPROVE")
		require.Equal(c.t, "APPROVAL_STATE_PENDING", state, "the same one twice is one")
		_, status := decide(nodes[1], i, "outside", "VOTE_APPROVE")
		require.Equal(c.t, 400, status, "the agent itself is refused")
	}
	// Waits at the third node for what is decided at the second.
	waited, waitErr := answer{}, error(nil)
	var wait sync.WaitGroup
	wait.Go(func() {
		b := body(0)
		b["wait"] = "20s"
		_, waitErr = c.try(nodes[2], "CallService/BeginCall", b, &waited)
	})
	c.await("the call is held", func() bool { return strings.Contains(c.metrics(nodes[2]), "gov_stopped_requests 1") })
	for i := range calls - 1 { // about the last one nobody decides
		state, _ := decide(nodes[1], i, "bob", "VOTE_APPROVE")
		require.Equal(c.t, "APPROVAL_STATE_APPROVED", state)
	}
	wait.Wait()
	require.NoError(c.t, waitErr)
	require.Equal(c.t, admitted, waited.Outcome)

	dies, left := nodes[0], nodes[1:]
	if c.led() {
		dies, left = c.leader()
	}
	c.kill(dies)
	defer c.back(dies)
	answers := make([]answer, calls*callers)
	var all sync.WaitGroup
	for n := range answers {
		all.Go(func() {
			i := n % calls
			c.surely(n, "CallService/BeginCall", body(i), &answers[n])
		})
	}
	all.Wait()
	for n, a := range answers {
		if i := n % calls; i == calls-1 {
			require.Equal(c.t, "OUTCOME_APPROVAL_REQUIRED", a.Outcome)
		} else {
			require.Equal(c.t, admitted, a.Outcome)
			require.Equal(c.t, answers[i].Grants, a.Grants, "one admission, however often it is asked for")
		}
	}
	s := c.session(left[0], "asked")
	require.Equal(c.t, calls, s.Attempts)
	require.Equal(c.t, calls-1, s.Calls)
	for i := range calls - 1 {
		var out struct{ Approval approval }
		c.post(left[i%2], "ApprovalService/Get", object{"id": ids[i]}, &out)
		require.Equal(c.t, "APPROVAL_STATE_USED", out.Approval.State)
		require.Len(c.t, out.Approval.Ballots, 2)
	}
	other := body(calls - 1)
	other["arguments"] = object{"path": "/etc"}
	status, _ := c.try(left[0], "CallService/BeginCall", other, nil)
	require.Equal(c.t, 400, status, "the same callId with other arguments")
}
