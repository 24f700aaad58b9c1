package session_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

// What is reserved is what is open has reserved, and so are the counts: each of
// the ways in which a call leaves gives back what it has to.
func TestReservedIsGivenBack(t *testing.T) {
	const waits, runs = "waits", "runs"
	pool := []string{"policy/p2"}
	d := sessiontest.Digest(2) // two slots
	begin := func(call string) *session.Begin {
		return &session.Begin{NS: ns, Session: "s", Call: call, Tool: "ls", Digest: d, Verdict: session.Verdict{Allow: true},
			Pools: []session.Want{{Pool: pool[0], Weight: 1}}, TTL: 30 * time.Second, Wait: 8 * time.Second, Tokens: 100}
	}
	for _, tt := range []struct {
		name     string
		at       time.Duration
		c        session.Command // is told of the call that waits, which then is the only one left to count
		code     session.Code
		reserved int64
		calls    uint32
		used     int64
	}{
		{"cancelled", time.Second, &session.Cancel{NS: ns, Session: "s", Call: waits, Pools: pool}, session.WaitCancelled, 200, 2, 0},
		{"the wait is over", 8*time.Second + 1, begin(waits), session.WaitTimeout, 200, 2, 0},
		{"settled", 20 * time.Second, begin(waits), session.WaitTimeout, 200, 2, 0},
		{"forced", time.Second, &session.ForceRelease{NS: ns, By: session.Maker{Client: "op"}, Session: "s", ID: waits, Pools: pool}, session.Released, 200, 2, 0},
		{"ended", time.Second, &session.End{NS: ns, Session: "s", Call: runs, Pools: pool, Status: session.Succeeded, Tokens: 7}, session.Ended, 200, 3, 7},
		{"ended without a count", time.Second, &session.End{NS: ns, Session: "s", Call: runs, Pools: pool, Status: session.Succeeded, Tokens: -1}, session.Ended, 200, 3, 100},
		{"what runs is forced", time.Second, &session.ForceRelease{NS: ns, By: session.Maker{Client: "op"}, Session: "s", ID: runs, Pools: pool}, session.Released, 200, 3, 100},
		{"closed", time.Second, &session.Close{NS: ns, Session: "s", Pools: pool, Digest: d}, session.Done, 0, 2, 200},
		{"restored", time.Second, &session.Restore{}, session.Done, 0, 2, 200},
		{"all lapsed", time.Minute, begin("new"), session.Admitted, 100, 3, 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := session.NewPartial()
			s.ApplyAll(0, sessiontest.Setup())
			r := s.ApplyAll(0, []session.Command{
				&session.Open{NS: ns, Session: "s", Agent: "a", Policy: "", Digest: d, IdleTTL: time.Hour},
				begin(runs), begin("other"), begin(waits),
			})
			require.Equal(t, session.Queued, r[3].Code)
			require.Equal(t, tt.code, s.ApplyAll(tt.at, []session.Command{tt.c})[0].Code)
			x := s.Get(session.SessionKey(ns, "s")).(*session.Session)
			require.Equal(t, tt.reserved, x.Reserved)
			require.Equal(t, tt.calls, x.Calls)
			require.Equal(t, tt.calls, x.ToolCalls("ls"))
			require.Equal(t, tt.used, x.Tokens)
		})
	}
}

// The end of all renewals stands in the pools from the admission on, of a call
// and of a slot, whether it waited or not: pools alone bound a renewal.
func TestMaxHoldStandsInThePools(t *testing.T) {
	d := sessiontest.Digest(1) // three slots
	for _, waited := range []bool{false, true} {
		s := session.NewPartial()
		s.ApplyAll(0, sessiontest.Setup())
		do := func(at time.Duration, c session.Command) session.Result {
			return s.ApplyAll(at, []session.Command{c})[0]
		}
		do(0, &session.Open{NS: ns, Session: "s", Agent: "a", Digest: d, IdleTTL: time.Hour})
		call := &session.Begin{NS: ns, Session: "s", Call: "c", CallKind: session.Model, Digest: d, Verdict: session.Verdict{Allow: true},
			Pools: []session.Want{{Pool: "policy/p1", Weight: 1}, {Pool: "a", Weight: 1}}, TTL: 10 * time.Second, MaxHold: 25 * time.Second, Wait: time.Minute}
		slot := &session.Acquire{NS: ns, Client: "w", Slot: "l", Pool: "b", Weight: 2, TTL: 10 * time.Second, MaxHold: 25 * time.Second, Wait: time.Minute}
		if waited {
			do(0, &session.Acquire{NS: ns, Client: "x", Slot: "a", Pool: "a", Weight: 1, TTL: time.Second})
			do(0, &session.Acquire{NS: ns, Client: "x", Slot: "b", Pool: "b", Weight: 1, TTL: time.Second})
			require.Equal(t, session.Queued, do(0, call).Code)
			require.Equal(t, session.Queued, do(0, slot).Code)
		}
		at := time.Second
		granted := do(at, call)
		require.Equal(t, session.Admitted, granted.Code)
		held := do(at, slot)
		require.Equal(t, session.Admitted, held.Code)
		end := at + 25*time.Second
		for _, name := range []string{"policy/p1", "a", "b"} {
			p := s.Get(session.PoolKey(ns, name)).(*session.Pool)
			require.Equal(t, end, p.Leases[0].HoldUntil, "%s, waited: %v", name, waited)
		}
		renewCall := &session.Renew{NS: ns, Session: "s", ID: "c", Pools: []string{"policy/p1", "a"}, Token: granted.Grants[0].Token, TTL: 10 * time.Second}
		renewSlot := &session.Renew{NS: ns, Client: "w", ID: "l", Pools: []string{"b"}, Token: held.Grants[0].Token, TTL: 10 * time.Second}
		for at < end {
			ttl := min(10*time.Second, end-at)
			for _, c := range []session.Command{renewCall, renewSlot} {
				r := do(at, c)
				require.Equal(t, session.Renewed, r.Code)
				require.Equal(t, ttl, r.Grants[0].TTL)
			}
			at += 5 * time.Second
		}
		require.Equal(t, session.LeaseExpired, do(end, renewCall).Code)
		require.Equal(t, session.LeaseExpired, do(end, renewSlot).Code)
	}
}

func TestFailuresInARow(t *testing.T) {
	_, do := waiting(t)
	for i, tt := range []struct {
		status                session.Status
		failures, consecutive uint32
	}{
		{session.Failed, 1, 1}, {session.Failed, 2, 2}, {session.Cancelled, 2, 2}, {session.Succeeded, 2, 0}, {session.Failed, 3, 1},
	} {
		do(0, waiter("c"+string(rune('0'+i))))
		r := do(0, &session.End{NS: ns, Session: "s", Call: "c" + string(rune('0'+i)), Pools: []string{"policy/p2"}, Status: tt.status})
		require.Equal(t, session.Ended, r.Code)
		require.Equal(t, tt.failures, r.Counters.Failures)
		require.Equal(t, tt.consecutive, r.Counters.Consecutive)
	}
}
