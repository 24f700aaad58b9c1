package session_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

func waiter(call string, pools ...string) *session.Begin {
	c := &session.Begin{NS: ns, Session: "s", Call: call, CallKind: session.Model, Digest: sessiontest.Digest(2), Verdict: session.Verdict{Allow: true},
		Pools: []session.Want{{Pool: "policy/p2", Weight: 1}}, TTL: time.Minute, Wait: time.Minute}
	for _, p := range pools {
		c.Pools = append(c.Pools, session.Want{Pool: p, Weight: 1})
	}
	return c
}

func waiting(t *testing.T) (s *session.State, do func(time.Duration, session.Command) session.Result) {
	s = session.NewPartial()
	s.ApplyAll(0, sessiontest.Setup())
	do = func(at time.Duration, c session.Command) session.Result {
		require.NoError(t, session.Validate(c))
		return s.ApplyAll(at, []session.Command{c})[0]
	}
	do(0, &session.Open{NS: ns, Session: "s", Agent: "a", Digest: sessiontest.Digest(2), IdleTTL: time.Hour})
	return s, do
}

// A renewal keeps the place of a call that waits, and the slots that it has
// already in the pools before.
func TestRenewalOfAWait(t *testing.T) {
	s, do := waiting(t)
	do(0, &session.Acquire{NS: ns, Client: "w", Slot: "l", Pool: "a", Weight: 1, TTL: time.Hour})
	call := waiter("c", "a")
	require.Equal(t, session.Queued, do(0, call).Code)
	renew := &session.Renew{NS: ns, Session: "s", ID: "c", Pools: []string{"policy/p2", "a"}, TTL: time.Second}
	for at := 8 * time.Second; at <= 56*time.Second; at += 8 * time.Second {
		r := do(at, renew)
		require.Equal(t, session.Renewed, r.Code)
		deadline := min(at+10*time.Second, time.Minute) + 5*time.Second
		require.Equal(t, deadline-at, r.Grants[0].TTL)
		require.Equal(t, deadline, s.Get(session.SessionKey(ns, "s")).(*session.Session).Open[0].Deadline)
		require.Equal(t, deadline, s.Get(session.PoolKey(ns, "policy/p2")).(*session.Pool).Leases[0].Expires)
		require.Equal(t, at, s.Get(session.PoolKey(ns, "a")).(*session.Pool).Queue[0].Seen)
	}
	require.Equal(t, session.Fenced, do(57*time.Second, &session.Renew{NS: ns, Session: "s", ID: "c", Pools: []string{"policy/p2", "a"}, Token: 1, TTL: time.Second}).Code)
	require.Equal(t, session.WaitTimeout, do(time.Minute+5*time.Second, call).Code)
}

// Asking again keeps the place as well.
func TestAskingAgainKeepsThePlace(t *testing.T) {
	_, do := waiting(t)
	do(0, &session.Acquire{NS: ns, Client: "w", Slot: "l", Pool: "a", Weight: 1, TTL: time.Hour})
	call := waiter("c", "a")
	slot := &session.Acquire{NS: ns, Client: "v", Slot: "l", Pool: "a", Weight: 1, TTL: time.Minute, Wait: time.Minute}
	do(0, &session.PutRate{NS: ns, By: session.Maker{Client: "op"}, Rate: "r", Limit: 1, Per: time.Hour, Queue: 9})
	do(0, &session.TakeRate{NS: ns, Client: "w", ID: "t", Rate: "r", Cost: 1})
	take := &session.TakeRate{NS: ns, Client: "v", ID: "t", Rate: "r", Cost: 1, Wait: time.Minute}
	for at := time.Duration(0); at < time.Minute; at += 9 * time.Second {
		require.Equal(t, session.Place{Pool: "rate/r", Position: 1}, do(at, take).Queue)
		require.Equal(t, session.Place{Pool: "a", Position: 1}, do(at, call).Queue)
		require.Equal(t, session.Place{Pool: "a", Position: 2}, do(at, slot).Queue)
	}
}

// A call keeps its priority in the queues that it comes to later.
func TestPriorityInEveryQueue(t *testing.T) {
	_, do := waiting(t)
	do(0, &session.PutPool{NS: ns, By: session.Maker{Client: "op"}, Pool: "a", Slots: 1, Queue: 9})
	do(0, &session.Acquire{NS: ns, Client: "w", Slot: "l", Pool: "a", Weight: 1, TTL: time.Hour})
	do(0, waiter("1"))
	do(0, waiter("2"))
	call := waiter("c", "a")
	call.Priority = 3
	require.Equal(t, session.Place{Pool: "policy/p2", Position: 1}, do(0, call).Queue)
	low := &session.Acquire{NS: ns, Client: "v", Slot: "l", Pool: "a", Weight: 1, TTL: time.Minute, Wait: time.Minute, Priority: 2}
	require.Equal(t, session.Queued, do(0, low).Code)
	do(time.Second, &session.End{NS: ns, Session: "s", Call: "1", Pools: []string{"policy/p2"}, Status: session.Succeeded})
	require.Equal(t, session.Place{Pool: "a", Position: 1}, do(time.Second, call).Queue)
	high := &session.Acquire{NS: ns, Client: "u", Slot: "l", Pool: "a", Weight: 1, TTL: time.Minute, Wait: time.Minute, Priority: 4}
	require.Equal(t, session.Place{Pool: "a", Position: 1}, do(time.Second, high).Queue)
	require.Equal(t, session.Place{Pool: "a", Position: 3}, do(time.Second, low).Queue)
}

// A request of exactly as many tokens as one may have is admitted.
func TestTokensOfOneRequest(t *testing.T) {
	_, do := waiting(t)
	most := waiter("most")
	most.Tokens = sessiontest.Limits(2).MaxTokens
	require.Equal(t, session.Admitted, do(0, most).Code)
	more := waiter("more")
	more.Tokens = most.Tokens + 1
	r := do(0, more)
	require.Equal(t, session.TokenLimit, r.Code)
	require.Equal(t, most.Tokens, r.Limit)
}

// What is kept for an hour is there to its last instant, and not longer.
func TestKeptForAnHour(t *testing.T) {
	s, do := waiting(t)
	do(time.Second, &session.Close{NS: ns, Session: "s", Digest: sessiontest.Digest(2)})
	do(time.Second, &session.Increment{NS: ns, By: session.Maker{Client: "w", Request: "r"}, Key: "k", Amount: 1})
	end := time.Second + session.KeptFor
	for _, k := range []session.Key{session.SessionKey(ns, "s"), session.ClientKey(ns, "w")} {
		require.NotNil(t, s.Stored(k).At(end-1), "%s", k)
		require.Nil(t, s.Stored(k).At(end), "%s", k)
	}
	// An expired one counts from the instant of its expiry.
	do(end, &session.Open{NS: ns, Session: "t", Agent: "a", Digest: sessiontest.Digest(2), IdleTTL: time.Minute})
	k := session.SessionKey(ns, "t")
	require.Equal(t, session.PhaseOpen, s.Stored(k).At(end+time.Minute-1).(*session.Session).Phase)
	require.Equal(t, session.PhaseExpired, s.Stored(k).At(end+time.Minute).(*session.Session).Phase)
	require.NotNil(t, s.Stored(k).At(end+time.Minute+session.KeptFor-1))
	require.Nil(t, s.Stored(k).At(end+time.Minute+session.KeptFor))
}

// A call that has waited meets at the rates behind, each with a limit of its own,
// what it meets that asks at once: the one that has no room is the one it waits
// for, and where all have room it spends at all of them.
func TestRatesBehindAWait(t *testing.T) {
	const then = time.Second // when it has its turn
	rates := []session.RateWant{
		{Pool: "rate/a", Cost: 1}, {Pool: "rate/policy/p2/x", Cost: 1, Limit: 2, Per: time.Hour},
		{Pool: "rate/policy/p2/y", Cost: 1, Limit: 1, Per: time.Hour}, {Pool: "rate/policy/p2/z", Cost: 2, Limit: 4, Per: 2 * time.Hour}, {Pool: "rate/z", Cost: 1},
	}
	limits := []int32{3, 2, 1, 4, 2}
	// meets lets a call come to those rates where so much is spent at them, at once
	// or behind its wait for a pool, or for the first of them.
	meets := func(spent []int32, waits, atFirst bool) (r session.Result, inUse []int32, waiters []int) {
		s, do := waiting(t)
		by := session.Maker{Client: "op"}
		do(0, &session.PutPool{NS: ns, By: by, Pool: "a", Slots: 1, Queue: 9})
		per := time.Hour
		if atFirst {
			per = then
		}
		do(0, &session.PutRate{NS: ns, By: by, Rate: "a", Limit: limits[0], Per: per, Queue: 9})
		do(0, &session.PutRate{NS: ns, By: by, Rate: "z", Limit: limits[4], Per: time.Hour, Queue: 9})
		for i, n := range spent {
			if n == 0 {
				continue
			}
			c := waiter(fmt.Sprint("before", i))
			c.Rates = []session.RateWant{rates[i]}
			c.Rates[0].Cost = n
			require.Equal(t, session.Admitted, do(0, c).Code)
			require.Equal(t, session.Ended, do(0, &session.End{NS: ns, Session: "s", Call: c.Call, Pools: []string{"policy/p2"}, Status: session.Succeeded, Tokens: -1}).Code)
		}
		call := waiter("c", "a")
		call.Rates = rates
		if waits && !atFirst {
			r := do(0, &session.Acquire{NS: ns, Client: "w", Slot: "l", Pool: "a", Weight: 1, TTL: then})
			require.Equal(t, session.Admitted, r.Code)
		}
		if waits {
			r := do(0, call)
			require.Equal(t, session.Queued, r.Code)
			require.Equal(t, map[bool]string{false: "a", true: "rate/a"}[atFirst], r.Queue.Pool)
		}
		r = do(then, call)
		for _, w := range rates {
			p, _ := s.Get(session.PoolKey(ns, w.Pool)).(*session.Pool)
			if p == nil {
				p = &session.Pool{}
			}
			inUse, waiters = append(inUse, p.InUse()), append(waiters, len(p.Queue))
		}
		return r, inUse, waiters
	}
	spent := make([]int32, len(rates))
	var each func(i int)
	each = func(i int) {
		if i < len(rates) {
			for spent[i] = 0; spent[i] <= limits[i]; spent[i]++ {
				each(i + 1)
			}
			return
		}
		for _, atFirst := range []bool{false, true} {
			if atFirst && spent[0] < limits[0] {
				continue
			}
			full := ""
			for i, n := range spent {
				if n+rates[i].Cost > limits[i] && !(atFirst && i == 0) {
					full = rates[i].Pool
					break
				}
			}
			r, inUse, waiters := meets(spent, true, atFirst)
			require.Equal(t, full == "", r.Code == session.Admitted, "%v: %v", spent, r.Code)
			require.Equal(t, full, r.Queue.Pool, spent)
			once, inUse2, waiters2 := meets(spent, false, atFirst)
			require.Equal(t, once.Code, r.Code, spent)
			require.Equal(t, once.Queue, r.Queue, spent)
			require.Equal(t, inUse2, inUse, spent)
			require.Equal(t, waiters2, waiters, spent)
		}
	}
	each(0)
}

// A call that is asked for again stands in the pools of the first asking: whoever names more
// of them is told so, while it waits and when it runs, and it goes on as it was.
func TestMorePoolsThanACallHas(t *testing.T) {
	_, do := waiting(t)
	held := &session.Acquire{NS: ns, Client: "w", Slot: "l", Pool: "a", Weight: 1, TTL: time.Hour}
	slot := do(0, held)
	require.Equal(t, session.Admitted, slot.Code)
	call, more := waiter("c", "a"), waiter("c", "a", "b")
	require.Equal(t, session.Queued, do(0, call).Code)
	stale := func(at time.Duration) {
		r := do(at, more)
		require.Equal(t, session.StalePremise, r.Code)
		require.Equal(t, []string{"policy/p2", "a"}, r.Pools)
	}
	stale(time.Second)
	do(2*time.Second, &session.Release{NS: ns, Client: "w", Slot: "l", Pool: "a", Token: slot.Grants[0].Token})
	stale(3 * time.Second)
	require.Equal(t, session.Admitted, do(4*time.Second, call).Code)
	stale(5 * time.Second)
	require.Equal(t, session.Admitted, do(6*time.Second, call).Code)
}
