package session_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

// What has run out by the time that somebody looks is settled in the order of its
// deadlines, and of two that end at once the first that began comes first.
func TestLapsesAreInTheOrderOfTheirDeadlines(t *testing.T) {
	for _, ttls := range [][]int{{9, 5, 5, 7}, {5, 9, 7, 9}, {1, 2, 3, 4}, {4, 3, 2, 1}, {6, 6, 6, 6}} {
		s, do := waiting(t)
		do(0, &session.PutPolicy{NS: ns, By: session.Maker{Client: "op"}, Name: "wide", Digest: sessiontest.Digest(9), Tree: []byte{9},
			Limits: session.Limits{MaxConcurrent: 4, MaxToolCalls: 9, MaxAttempts: 9, Timeout: time.Hour}})
		do(0, &session.Open{NS: ns, Session: "t", Agent: "a", Policy: "wide", Digest: sessiontest.Digest(9), IdleTTL: time.Hour})
		var want []string
		for end := range 10 {
			for i, ttl := range ttls {
				if ttl == end {
					want = append(want, fmt.Sprint("c", i))
				}
			}
		}
		for i, ttl := range ttls {
			call := &session.Begin{NS: ns, Session: "t", Call: fmt.Sprint("c", i), CallKind: session.Model, Digest: sessiontest.Digest(9), Verdict: session.Verdict{Allow: true},
				Pools: []session.Want{{Pool: "policy/wide", Weight: 1}}, TTL: time.Duration(ttl) * time.Second}
			require.Equal(t, session.Admitted, do(0, call).Code)
		}
		r := do(time.Minute, &session.End{NS: ns, Session: "t", Call: "none", Status: session.Failed})
		var lapsed []string
		for _, l := range r.Lapsed {
			require.Equal(t, "t", l.Session)
			lapsed = append(lapsed, l.Call)
		}
		require.Equal(t, want, lapsed)
		x := s.Get(session.SessionKey(ns, "t")).(*session.Session)
		require.EqualValues(t, 4, x.Executions)
		require.Equal(t, time.Duration(max(ttls[0], ttls[1], ttls[2], ttls[3]))*time.Second, x.Used)
	}
}

// A call that waited in vain leaves the counts as they were, of whatever kind it was.
func TestWaitsInVainCountNothing(t *testing.T) {
	for kind := session.Tool; kind <= session.Sampling; kind++ {
		s, do := waiting(t)
		call := func(id string) *session.Begin {
			c := waiter(id)
			c.CallKind, c.Tool, c.Wait = kind, "ls", 5*time.Second
			return c
		}
		counts := func() session.Session {
			x := *s.Get(session.SessionKey(ns, "s")).(*session.Session)
			return session.Session{Calls: x.Calls, Tools: x.Tools, Gates: x.Gates, Reserved: x.Reserved, Executions: x.Executions, Tokens: x.Tokens}
		}
		for _, id := range []string{"1", "2"} { // as many as run at once
			require.Equal(t, session.Admitted, do(0, call(id)).Code)
		}
		before := counts()
		late := call("late")
		late.Tokens = 7
		require.Equal(t, session.Queued, do(0, late).Code)
		if kind != session.Tool && kind != session.Model && kind != session.Sampling {
			require.Equal(t, before.Calls, counts().Calls, "kind %d", kind)
		}
		require.NotEqual(t, before, counts(), "kind %d", kind)
		s.ApplyAll(20*time.Second, nil)
		require.Equal(t, before, counts(), "kind %d", kind)
		require.Equal(t, session.WaitTimeout, do(20*time.Second, late).Code)
		require.Equal(t, before, counts(), "kind %d", kind)
	}
}

// A session that is over lets go of its tree at once, when nobody asks for anything any
// more, and then is due an hour later.
func TestWhenASessionIsDue(t *testing.T) {
	s, do := waiting(t)
	k := session.SessionKey(ns, "t")
	do(0, &session.PutPolicy{NS: ns, By: session.Maker{Client: "op"}, Name: "q", Digest: sessiontest.Digest(9), Tree: []byte{9}, Limits: sessiontest.Limits(1)})
	do(0, &session.Open{NS: ns, Session: "t", Agent: "a", Policy: "q", Digest: sessiontest.Digest(9), IdleTTL: time.Minute})
	call := &session.Begin{NS: ns, Session: "t", Call: "c", CallKind: session.Model, Digest: sessiontest.Digest(9), Verdict: session.Verdict{Allow: true},
		Pools: []session.Want{{Pool: "policy/q", Weight: 1}}, TTL: time.Second}
	dueAt := func() time.Duration {
		at, ok := s.Stored(k).Due()
		require.True(t, ok)
		return at
	}
	require.Equal(t, time.Minute, dueAt())
	require.Equal(t, session.Admitted, do(30*time.Second, call).Code)
	require.Equal(t, 31*time.Second, dueAt())
	over := 91 * time.Second // a minute after the lapse
	require.Equal(t, session.SessionClosed, do(over, &session.End{NS: ns, Session: "t", Call: "none", Status: session.Failed}).Code)
	require.Equal(t, over, dueAt(), "its pin is to be let go")
	forget := &session.DeletePolicy{NS: ns, By: session.Maker{Client: "op"}, Name: "q", Digest: sessiontest.Digest(9), Names: []string{"q"}}
	require.Equal(t, session.PolicyPinned, do(over, forget).Code)
	tick := func(at time.Duration) {
		s.ApplyAll(at, nil)
		keys, more := s.DueKeys(100)
		require.False(t, more)
		require.Contains(t, keys, k)
		do(at, &session.Tick{Keys: keys})
	}
	tick(over)
	require.Equal(t, session.Done, do(over, forget).Code)
	require.Equal(t, over+session.KeptFor, dueAt())
	s.ApplyAll(over+session.KeptFor-1, nil)
	keys, _ := s.DueKeys(100)
	require.NotContains(t, keys, k)
	tick(over + session.KeptFor)
	require.Nil(t, s.Stored(k))
}

// An hour is kept to its last instant by whoever asks for something as well, and it counts
// from the lapse of what was held last.
func TestAskedForWithinTheHour(t *testing.T) {
	_, do := waiting(t)
	do(0, &session.Close{NS: ns, Session: "s", Digest: sessiontest.Digest(2)})
	slot := &session.Acquire{NS: ns, Client: "w", Slot: "l", Pool: "a", Weight: 1, TTL: time.Hour}
	require.Equal(t, session.Admitted, do(0, slot).Code)
	require.Equal(t, session.SessionClosed, do(session.KeptFor-1, waiter("c")).Code)
	require.Equal(t, session.NotFound, do(session.KeptFor, waiter("c")).Code)
	for _, at := range []time.Duration{time.Hour, 2*time.Hour - 1} {
		r := do(at, slot)
		require.Equal(t, session.LeaseLost, r.Code, "%v", at)
		require.True(t, r.Repeat)
	}
	require.Equal(t, session.Admitted, do(2*time.Hour, slot).Code, "nobody remembers it")
}

// After every step of a history the state says when something is due, no later than any
// record does, and so does one that was put together from its records.
func TestDueIsNoLaterThanAnyRecord(t *testing.T) {
	histories(t, 20, func(t *testing.T, h *sessiontest.History) {
		w := newWorld()
		for i := range 100 {
			at, cmds := w.step(h)
			w.state.ApplyAll(at, cmds)
			rebuilt := session.NewPartial()
			first, any := time.Duration(0), false
			for k, r := range w.state.Snapshot().All() {
				rebuilt.Put(k, r)
				if due, ok := r.Due(); ok && (!any || due < first) {
					first, any = due, true
				}
			}
			got, ok := w.state.Due()
			require.True(t, !any || ok && got <= first, "entry %d: %v, and a record at %v, after %s", i, got, first, show(cmds))
			got, ok = rebuilt.Due()
			require.Equal(t, any, ok)
			require.True(t, !any || got == first, "entry %d: %v, and a record at %v", i, got, first)
		}
	})
}

// Who is asked to slow down holds back 50 ms for each slot in use from the threshold on,
// and a second at most.
func TestPressure(t *testing.T) {
	for _, tt := range []struct {
		inUse, threshold int32
		want             time.Duration
	}{
		{0, 0, 0}, {9, 0, 0}, {0, 1, 0}, {1, 1, 50 * time.Millisecond}, {7, 8, 0}, {8, 8, 50 * time.Millisecond}, {9, 8, 100 * time.Millisecond},
		{26, 8, 950 * time.Millisecond}, {27, 8, time.Second}, {28, 8, time.Second}, {4096, 8, time.Second},
	} {
		p := session.Pressure{InUse: tt.inUse, Limit: 4096, Threshold: tt.threshold}
		require.Equal(t, tt.want, p.Delay(), "%+v", p)
		require.Equal(t, tt.want > 0, p.Pressed(), "%+v", p)
	}
}

// Each code has a name of its own, outcomes come before failures, and what is no code has
// none.
func TestNamesOfCodes(t *testing.T) {
	seen := map[string]session.Code{}
	for c := range session.Code(session.Codes) {
		if c > session.RateLimited && c < session.NotFound {
			require.Equal(t, "unknown code", c.String(), "%d is kept for outcomes to come", c)
			continue
		}
		require.NotEqual(t, "unknown code", c.String(), "%d", c)
		require.NotContains(t, seen, c.String())
		seen[c.String()] = c
		require.Equal(t, c >= session.NotFound, c.Failure(), "%s", c)
	}
	require.Equal(t, "unknown code", session.Code(session.Codes).String())
	require.Equal(t, "unknown code", session.Code(255).String())
	require.False(t, session.RateLimited.Failure())
	require.True(t, session.NotFound.Failure())
}
