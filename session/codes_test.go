package session_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

// How something ended is told apart, at once and when it is asked for again.
func TestHowItEnded(t *testing.T) {
	_, do := waiting(t)
	do(0, &session.Acquire{NS: ns, Client: "x", Slot: "l", Pool: "a", Weight: 1, TTL: time.Hour})
	slot := &session.Acquire{NS: ns, Client: "w", Slot: "l", Pool: "a", Weight: 1, TTL: time.Minute, Wait: time.Second}
	require.Equal(t, session.Queued, do(0, slot).Code)
	second := waiter("second", "a")
	require.Equal(t, session.Queued, do(0, second).Code)
	full, none := waiter("full", "a"), waiter("none", "a")
	none.Wait = 0
	for range 2 {
		r := do(0, full)
		require.Equal(t, session.QueueFull, r.Code)
		require.Equal(t, []string{"a"}, r.Pools)
		r = do(0, none)
		require.Equal(t, session.ConcurrencyLimit, r.Code)
		require.Equal(t, []string{"a"}, r.Pools)
	}
	for range 2 {
		require.Equal(t, session.WaitTimeout, do(7*time.Second, slot).Code, "it never had the slot")
	}
	do(7*time.Second, &session.Close{NS: ns, Session: "s", Pools: []string{"policy/p2", "a"}, Digest: sessiontest.Digest(2)})
	require.Equal(t, session.SessionClosed, do(7*time.Second, second).Code, "it waited when the session was closed")
}

// A wait whose pool was deleted by force is over, with one answer whenever it is
// asked for.
func TestAWaitWhosePoolIsGone(t *testing.T) {
	for _, again := range []bool{false, true} {
		_, do := waiting(t)
		do(0, &session.Acquire{NS: ns, Client: "x", Slot: "l", Pool: "a", Weight: 1, TTL: time.Hour})
		slot := &session.Acquire{NS: ns, Client: "w", Slot: "l", Pool: "a", Weight: 1, TTL: time.Minute, Wait: time.Minute}
		require.Equal(t, session.Queued, do(0, slot).Code)
		do(0, &session.DeletePool{NS: ns, By: session.Maker{Client: "op"}, Pool: "a", Force: true})
		if again {
			do(0, &session.PutPool{NS: ns, By: session.Maker{Client: "op"}, Pool: "a", Slots: 1})
		}
		for _, at := range []time.Duration{0, time.Second, 2 * time.Minute} {
			r := do(at, slot)
			require.Equal(t, session.WaitTimeout, r.Code, "at %v, made again: %v", at, again)
			require.True(t, r.Repeat)
		}
	}
}

// Who held in a pool that was deleted by force and made again is fenced there, with any
// token of the old pool and for as long as anybody asks; its tokens begin above all of those.
func TestWhoHeldInADeletedPoolIsFenced(t *testing.T) {
	_, do := waiting(t)
	op := session.Maker{Client: "op"}
	acquire := func(client, id string) session.Result {
		return do(0, &session.Acquire{NS: ns, Client: client, Slot: id, Pool: "b", Weight: 1, TTL: time.Minute})
	}
	release := func(at time.Duration, client, id string, token uint64) session.Result {
		return do(at, &session.Release{NS: ns, Client: client, Slot: id, Pool: "b", Token: token})
	}
	do(0, &session.PutPool{NS: ns, By: op, Pool: "b", Slots: 3})
	first, last, third := acquire("w", "1").Grants[0].Token, acquire("w", "2").Grants[0].Token, acquire("v", "3").Grants[0].Token
	do(0, &session.DeletePool{NS: ns, By: op, Pool: "b", Force: true})
	require.Equal(t, session.LeaseExpired, release(0, "v", "3", third).Code, "nobody can have the slot")
	do(0, &session.PutPool{NS: ns, By: op, Pool: "b", Slots: 1})
	require.Equal(t, session.Fenced, release(0, "w", "2", last).Code, "before the new pool has granted anything")
	taken := acquire("new", "n")
	require.Equal(t, session.Admitted, taken.Code)
	require.Greater(t, taken.Grants[0].Token, third)
	for _, at := range []time.Duration{0, time.Second, 2 * time.Minute} {
		require.Equal(t, session.Fenced, release(at, "w", "1", first).Code)
		require.Equal(t, session.Fenced, release(at, "w", "2", last).Code)
		require.Equal(t, session.Fenced, release(at, "v", "3", third).Code)
	}
	require.Equal(t, session.LeaseExpired, release(2*time.Minute, "new", "n", taken.Grants[0].Token).Code, "its own lease ran out, and nobody else has the slot")
}
