package session_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

// A session that is over and was not dropped yet makes room for one of its id,
// and lets go of its pin and its baseline, in the footprint of the command.
func TestOpenWhereASessionIsOver(t *testing.T) {
	for _, other := range []bool{false, true} {
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
