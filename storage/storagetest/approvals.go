package storagetest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/approval"
	"example.com/govnode/storage"
)

// What approvals promise on every store.

// ask is a call of a session that wants to be approved by two.
func ask(id, call string, timeout time.Duration) *session.Begin {
	c := begin(id, call)
	c.Verdict.Allow = false
	c.Asking = &session.Asking{Agent: "a", Required: 2, Denials: 2, Timeout: timeout, MaxPending: session.MaxPending, Request: session.Digest{1}}
	return c
}

func vote(id, call, approver string, approve bool) *session.Decide {
	return &session.Decide{NS: ns, By: by(fmt.Sprint("vote-", call, approver, approve)), ID: session.ApprovalID(ns, id, call), Session: id, Call: call, Approver: approver, Approve: approve}
}

func (r rig) approval(id, call string) *session.Approval {
	r.Helper()
	a, _ := r.get(session.ApprovalKey(ns, session.ApprovalID(ns, id, call)), storage.Latest).Record.(*session.Approval)
	require.NotNil(r, a, "approval of %s", call)
	return a
}

// asked has many vote at once, of whom half say no, while each call comes back
// again and again. What the votes have come to is what the calls are answered.
func asked(t *testing.T, r rig) {
	const calls, voters, callers = 12, 8, 3
	r.openSession("s", 100, 1000)
	for _, res := range r.each(calls, func(i int) session.Command { return ask("s", fmt.Sprint("c", i), time.Hour) }) {
		require.Equal(t, session.ApprovalRequired, res.Code)
	}
	decided := make([]int64, calls*voters)
	results := r.each(calls*(voters+callers), func(i int) session.Command {
		call := fmt.Sprint("c", i%calls)
		if n := i / calls; n < voters {
			return vote("s", call, fmt.Sprint("v", n), n%2 == 0)
		}
		return ask("s", call, time.Hour)
	})
	for i, res := range results[:calls*voters] {
		require.Contains(t, []session.Code{session.Done, session.AlreadyDecided}, res.Code)
		decided[i%calls] += res.Value
	}
	for i := range calls {
		call := fmt.Sprint("c", i)
		require.EqualValues(t, 1, decided[i], "one vote decides")
		first, again := r.must(ask("s", call, time.Hour)), r.must(ask("s", call, time.Hour))
		switch a := r.approval("s", call); a.State() {
		case approval.Used:
			require.EqualValues(t, 2, a.Approval.Count(true))
			require.Equal(t, session.Admitted, first.Code)
			require.Equal(t, tokens(first), tokens(again), "it is admitted once")
		case approval.Denied:
			require.EqualValues(t, 2, a.Approval.Count(false))
			require.Equal(t, session.ApprovalDenied, first.Code)
			require.Equal(t, session.ApprovalDenied, again.Code)
		default:
			require.Fail(t, "it was decided, and its call came back", "%+v", a)
		}
	}
	s, used := r.session("s"), 0
	for i := range calls {
		if r.approval("s", fmt.Sprint("c", i)).State() == approval.Used {
			used++
		}
	}
	require.EqualValues(t, calls, s.Attempts, "each is counted once")
	require.EqualValues(t, used, s.Calls)
	if used > 0 { // else nobody has used the pool
		require.EqualValues(t, used, r.pool(session.PolicyPool("p")).InUse())
	}
}

// stands has more calls come at once than a standing approval is for.
func stands(t *testing.T, r rig) {
	const callers, uses = 32, 5
	r.openSession("s", 100, 1000)
	of := session.StandingOf{Scope: session.OfAgent, Name: "a", Tool: "t"}
	r.must(&session.PutStanding{NS: ns, By: by("stand"), Of: of, Uses: uses, TTL: time.Hour})
	count := map[session.Code]int{}
	for _, res := range r.each(callers, func(i int) session.Command { return ask("s", fmt.Sprint("c", i), time.Hour) }) {
		count[res.Code]++
	}
	require.Equal(t, map[session.Code]int{session.Admitted: uses, session.ApprovalRequired: callers - uses}, count)
	require.Nil(t, r.get(session.StandingKey(ns, of.ID()), storage.Latest).Record)
	require.Equal(t, session.NotFound, r.must(&session.DeleteStanding{NS: ns, By: by("unstand"), ID: of.ID()}).Code)
}

// undecided leaves one call to time, which refuses it, and another, which time
// approves; and what is open when a state comes back is cancelled.
func undecided(t *testing.T, r rig) {
	r.openSession("s", 100, 1000)
	for _, c := range []session.Command{ask("s", "late", time.Second), ask("s", "open", time.Hour)} {
		require.Equal(t, session.ApprovalRequired, r.must(c).Code)
	}
	require.Eventually(t, func() bool { return r.must(ask("s", "late", time.Second)).Code == session.ApprovalExpired }, patience, 20*time.Millisecond)
	require.Equal(t, session.AlreadyDecided, r.must(vote("s", "late", "v", true)).Code)
	for timeout := time.Second; ; timeout *= 2 { // until it is long enough to come back in
		call := fmt.Sprint("allowed-", timeout)
		c := ask("s", call, timeout)
		c.Asking.AllowOnTimeout = true
		require.Equal(t, session.ApprovalRequired, r.must(c).Code)
		require.Eventually(t, func() bool { return r.approval("s", call).State() != approval.Pending }, patience+timeout, 20*time.Millisecond)
		if res := r.must(c); res.Code != session.ApprovalExpired {
			require.Equal(t, session.Admitted, res.Code)
			require.Equal(t, approval.Used, res.Approval.State)
			require.True(t, r.approval("s", call).ByTimeout())
			break
		}
	}

	var snapshot bytes.Buffer
	require.NoError(t, r.Save(t.Context(), &snapshot))
	r.must(vote("s", "open", "v", true))
	r.restore(snapshot.Bytes())
	require.Equal(t, approval.Cancelled, r.approval("s", "open").State())
	require.Equal(t, session.AlreadyDecided, r.must(vote("s", "open", "w", true)).Code)
	res := r.must(ask("s", "open", time.Hour))
	require.Equal(t, session.ApprovalDenied, res.Code)
	require.Equal(t, session.RefusedCancelled, res.Approval.Why)
}

// counted asks with a call and without one: both are keys of their namespace, decided or
// not, and so is what stands.
func counted(t *testing.T, r rig) {
	counts, ok := r.Store.(storage.Counting)
	require.True(t, ok)
	keys := func(want int64) {
		require.Eventually(t, func() bool { // a count may be a second old
			n, err := counts.Count(t.Context(), ns)
			return err == nil && n.Keys == want
		}, patience, 10*time.Millisecond)
	}
	r.openSession("s", 1, 10)
	keys(0)
	r.must(ask("s", "c", time.Hour))
	r.must(&session.Ask{NS: ns, By: by("ask"), ID: "asked", Agent: "a", Tool: "t", Required: 1, Denials: 1, Timeout: time.Hour})
	r.must(&session.PutStanding{NS: ns, By: by("stand"), Of: session.StandingOf{Scope: session.OfSession, Name: "s", Tool: "t"}, TTL: time.Hour})
	keys(3)
	r.must(vote("s", "c", "v1", true))
	r.must(vote("s", "c", "v2", true))
	r.must(increment("k", "i"))
	keys(4)
}
