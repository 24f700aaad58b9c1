package session_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/ids"
	"example.com/govnode/session/sessiontest"
)

// beside returns a state, what a backend of records has in its place, and what
// applies a command to both, which have to answer the same.
func beside(t *testing.T) (s *session.State, parts *stock, do func(time.Duration, session.Command) session.Result) {
	s, parts = session.NewPartial(), newStock()
	return s, parts, func(at time.Duration, c session.Command) session.Result {
		require.NoError(t, session.Validate(c))
		r := s.ApplyAll(at, []session.Command{c})
		require.Equal(t, encode(r), encode(parts.apply(t, at, []session.Command{c})))
		return r[0]
	}
}

// A session that is over and was not dropped yet makes room for one of its id,
// and lets go of its pin and its baseline, in the footprint of the command.
func TestOpenWhereASessionIsOver(t *testing.T) {
	for _, other := range []bool{false, true} {
		s, parts, do := beside(t)
		for _, c := range sessiontest.Setup() {
			do(0, c)
		}
		old, now := sessiontest.Digest(1), sessiontest.Digest(1)
		if other {
			now = sessiontest.Digest(2)
		}
		open := &session.Open{NS: ns, Session: "s", Agent: "a", Digest: old, IdleTTL: time.Minute}
		require.Equal(t, session.Done, do(0, open).Code)
		pool := []session.Want{{Pool: "policy/p1", Weight: 1}}
		require.Equal(t, session.Admitted, do(0, &session.Begin{NS: ns, Session: "s", Call: "c", CallKind: session.Model, Digest: old,
			Verdict: session.Verdict{Allow: true}, Pools: pool, TTL: time.Second}).Code)
		require.Equal(t, session.Ended, do(0, &session.End{NS: ns, Session: "s", Call: "c", Pools: []string{"policy/p1"},
			Status: session.Succeeded, Output: session.Output{Hash: session.Digest{1}, Text: "text"}}).Code)

		at := 2 * time.Hour
		again := *open
		again.Digest = now
		r := do(at, &again)
		if other {
			require.Equal(t, session.StalePremise, r.Code)
			require.Equal(t, now, r.Digest)
			again.Over = r.After.Session.Pin.Digest
			require.Equal(t, old, again.Over)
			r = do(at, &again)
		}
		require.Equal(t, session.Done, r.Code)
		for d, n := range map[session.Digest]int64{now: 1, old: 1} {
			if d == old && other {
				n = 0
			}
			for _, state := range []session.Record{s.Stored(session.PinsKey(ns, d, "s")), parts.load(t, session.PinsKey(ns, d, "s"), 0)} {
				if p, ok := state.(*session.Pins); ok {
					require.Equal(t, n, p.N)
				} else {
					require.Zero(t, n)
				}
			}
		}
		require.Nil(t, s.Stored(session.BaselineKey(ns, "s")))
		require.Nil(t, parts.load(t, session.BaselineKey(ns, "s"), 0))
		require.True(t, do(at, &again).Repeat, "what was over is no premise of a repeat")
	}
}

// A session whose id has a time is opened once: when it is over its id is stale,
// whether it was dropped by then or not.
func TestASessionIDWithATimeIsTakenOnce(t *testing.T) {
	for _, tick := range []bool{false, true} {
		s, parts := session.NewPartial(), newStock()
		do := func(at time.Duration, c session.Command) session.Result {
			require.NoError(t, session.Validate(c))
			r := s.ApplyAll(at, []session.Command{c})
			require.Equal(t, encode(r), encode(parts.apply(t, at, []session.Command{c})))
			return r[0]
		}
		for _, c := range sessiontest.Setup() {
			do(0, c)
		}
		id := timed(year2027, 0)
		open := &session.Open{NS: ns, Session: id, Agent: "a", Digest: sessiontest.Digest(1), IdleTTL: time.Minute}
		require.Equal(t, session.Done, do(0, open).Code)
		at, k := 2*time.Hour, session.SessionKey(ns, id)
		if tick {
			do(at, &session.Tick{Keys: session.TickKeys(k, s.Stored(k))})
			require.Nil(t, s.Stored(k))
		}
		r := do(at, open)
		require.Equal(t, session.StaleID, r.Code, "a tick: %v", tick)
		require.Equal(t, ids.Time(id), r.NewerThan, "a tick: %v", tick)
		require.Nil(t, s.Get(k))
		open.Session = timed(year2027+1, 0)
		require.Equal(t, session.Done, do(at, open).Code, "a tick: %v", tick)
	}
}

// A call is executed once in all sessions of an id that has no time, whether
// the one before is still there, was over and replaced, or was dropped. A
// session whose id has a time has not been there before: it takes its calls
// whatever others finished.
func TestACallIsExecutedOnceInAllSessionsOfAnID(t *testing.T) {
	for _, tick := range []bool{false, true} {
		s, _, result := beside(t)
		do := func(at time.Duration, c session.Command) session.Code { return result(at, c).Code }
		for _, c := range sessiontest.Setup() {
			do(0, c)
		}
		d := sessiontest.Digest(1)
		open := func(at time.Duration, id string) session.Code {
			return do(at, &session.Open{NS: ns, Session: id, Agent: "a", Digest: d, IdleTTL: time.Minute})
		}
		begin := func(at time.Duration, id, call string) session.Code {
			return do(at, &session.Begin{NS: ns, Session: id, Call: call, CallKind: session.Model, Digest: d,
				Verdict: session.Verdict{Allow: true}, Pools: []session.Want{{Pool: "policy/p1", Weight: 1}}, TTL: time.Second})
		}
		end := func(at time.Duration, id, call string) session.Code {
			return do(at, &session.End{NS: ns, Session: id, Call: call, Pools: []string{"policy/p1"}, Status: session.Succeeded})
		}
		require.Equal(t, session.Done, open(0, "bot"))
		for i := range 3 {
			require.Equal(t, session.Admitted, begin(0, "bot", timed(year2027, i)))
			require.Equal(t, session.Ended, end(0, "bot", timed(year2027, i)))
		}
		at := 2 * time.Hour
		if tick {
			k := session.SessionKey(ns, "bot")
			do(at, &session.Tick{Keys: session.TickKeys(k, s.Stored(k))})
			require.Nil(t, s.Stored(k))
		}
		require.Equal(t, session.Done, open(at, "bot"), "a tick: %v", tick)
		for i := range 3 {
			require.Equal(t, session.StaleID, begin(at, "bot", timed(year2027, i)), "a tick: %v", tick)
		}
		require.Equal(t, session.Admitted, begin(at, "bot", timed(year2027+1, 0)))
		require.Equal(t, session.Ended, end(at, "bot", timed(year2027+1, 0)))
		require.Equal(t, session.Done, open(at, timed(year2027+2, 0)))
		require.Equal(t, session.Admitted, begin(at, timed(year2027+2, 0), timed(year2027-1, 0)))
		require.Equal(t, session.Ended, end(at, timed(year2027+2, 0), timed(year2027-1, 0)))
	}
}
