package session_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/ids"
	"example.com/govnode/session/sessiontest"
)

// What a command says stands after it is what a read right after it finds, and
// later commands of the same entry do not write into it.
func TestAfterIsWhatStands(t *testing.T) {
	histories(t, 30, func(t *testing.T, h *sessiontest.History) {
		at, entries := record(h, 250)
		together, apart := newWorld().state, newWorld().state
		for i := range entries {
			var want []session.Result
			for _, c := range entries[i] {
				r := apart.ApplyAll(at[i], []session.Command{c})[0]
				want = append(want, r)
				stands(t, apart, c, r)
				counts(t, apart, c, r)
			}
			got := together.ApplyAll(at[i], entries[i])
			require.Equal(t, encode(want), encode(got), "entry %d: %s", i, show(entries[i]))
		}
	})
}

// counts checks what an answer says of the session and of the first pool.
func counts(t *testing.T, s *session.State, c session.Command, r session.Result) {
	t.Helper()
	var id, pool string
	switch c := c.(type) {
	case *session.Begin:
		switch r.Code {
		case session.Admitted, session.Queued:
			id, pool = c.Session, c.Pools[0].Pool
		case session.ApprovalRequired:
			id = c.Session
		case session.Denied, session.CallLimit, session.ToolLimitReached, session.TokenLimit, session.TimedOut, session.KindLimitReached,
			session.BreakerOpen, session.ConcurrencyLimit, session.QueueFull, session.RateLimited, session.WaitTimeout, session.Stopped,
			session.ApprovalDenied, session.ApprovalExpired:
			id = c.Session
		}
	case *session.End:
		if r.Code == session.Ended {
			id = c.Session
		}
	case *session.Cancel:
		if r.Code == session.WaitCancelled && !r.Repeat {
			id = c.Session
		}
	case *session.Open:
		if r.Code == session.Done && r.Repeat {
			id = c.Session
		}
	case *session.Close:
		if r.Code == session.Done {
			id = c.Session
		}
	case *session.Acquire:
		if r.Code == session.Admitted && !r.Repeat || r.Code == session.Queued {
			pool = c.Pool
		}
	}
	msg := fmt.Sprintf("%s: %v", show([]session.Command{c}), r.Code)
	if id != "" {
		require.Equal(t, s.Get(session.SessionKey(ns, id)).(*session.Session).Counters(), r.Counters, msg)
	}
	if pool == "" {
		return
	}
	p := s.Get(session.PoolKey(ns, pool)).(*session.Pool)
	want := session.Pressure{InUse: p.InUse(), Limit: p.Slots, Threshold: p.Threshold}
	if id != "" {
		limits := s.Get(session.SessionKey(ns, id)).(*session.Session).Pin.Limits
		want.Limit, want.Threshold = limits.MaxConcurrent, limits.Backpressure
	}
	require.Equal(t, want, r.Pressure, msg)
}

func stands(t *testing.T, s *session.State, c session.Command, r session.Result) {
	t.Helper()
	msg := show([]session.Command{c})
	shown := true
	var k session.Key
	switch c := c.(type) {
	case *session.PutPool:
		k = session.PoolKey(c.NS, c.Pool)
	case *session.PutRate:
		k = session.PoolKey(c.NS, session.RatePool(c.Rate))
	case *session.Close:
		k = session.SessionKey(c.NS, c.Session)
	case *session.Open:
		k = session.SessionKey(c.NS, c.Session)
	case *session.PutStanding:
		k = session.StandingKey(c.NS, c.Of.ID())
	case *session.Ask:
		k = session.ApprovalKey(c.NS, c.ID)
	case *session.Decide:
		k = session.ApprovalKey(c.NS, c.ID)
	case *session.CancelApproval:
		k = session.ApprovalKey(c.NS, c.ID)
	default:
		shown = false
	}
	if r.Code == session.StalePremise && r.After != nil { // see Open.Over
		require.IsType(t, &session.Open{}, c)
		return
	}
	if !shown || r.Code.Failure() {
		require.Nil(t, r.After, msg)
		return
	}
	require.NotNil(t, r.After, msg)
	require.Equal(t, s.Now(), r.After.Now, msg)
	switch x := s.Get(k).(type) {
	case *session.Session:
		y := *x
		y.IDs, y.Pinned = ids.Set{}, false
		require.Equal(t, text(&y), text(r.After.Session), msg)
	case *session.Pool:
		require.Equal(t, &session.PoolCounts{
			Slots: x.Slots, Threshold: x.Threshold, MaxQueue: x.MaxQueue,
			InUse: x.InUse(), Waiting: int32(len(x.Queue)), Last: x.Last,
			Per: x.Per, Free: x.Free(s.Now(), 1, 0, 0),
		}, r.After.Pool, msg)
	case *session.Standing:
		require.Equal(t, x, r.After.Standing, msg)
	case *session.Approval:
		require.Equal(t, session.EncodeRecord(x), session.EncodeRecord(r.After.Approval), msg)
	default:
		require.Nil(t, r.After.Approval, "%s: it was dropped since", msg)
		require.Nil(t, r.After.Pool, "%s: it was deleted since", msg)
	}
}

// A repeat tells how things stand now, also where the pool is gone.
func TestAfterOfARepeat(t *testing.T) {
	s := session.New()
	put := &session.PutPool{NS: ns, By: session.Maker{Client: "op", Request: "1"}, Pool: "a", Slots: 2, Threshold: 1, Queue: 7}
	do := func(c session.Command) session.Result { return s.ApplyAll(time.Second, []session.Command{c})[0] }
	require.Equal(t, &session.PoolCounts{Slots: 2, Threshold: 1, MaxQueue: 7}, do(put).After.Pool)
	do(&session.Acquire{NS: ns, Client: "w", Slot: "1", Pool: "a", Weight: 2, TTL: time.Minute})
	do(&session.Acquire{NS: ns, Client: "w", Slot: "2", Pool: "a", Weight: 1, TTL: time.Minute, Wait: time.Minute})
	r := do(put)
	require.True(t, r.Repeat)
	require.Equal(t, &session.PoolCounts{Slots: 2, Threshold: 1, MaxQueue: 7, InUse: 2, Waiting: 1, Last: 1}, r.After.Pool)
	do(&session.DeletePool{NS: ns, By: session.Maker{Client: "op", Request: "2"}, Pool: "a", Force: true})
	r = do(put)
	require.Equal(t, session.Done, r.Code)
	require.Nil(t, r.After.Pool)
}
