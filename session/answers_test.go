package session_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/budget"
	"example.com/govnode/session/sessiontest"
)

// Who finds no room is told how full it is, and when trying again may be worth it: when
// something next runs out there, in 50 ms at the earliest and in a second at the latest.
func TestWhenToTryAgain(t *testing.T) {
	for left, want := range map[time.Duration]time.Duration{
		10 * time.Second: time.Second, time.Second: time.Second, time.Second - 1: time.Second - 1,
		51 * time.Millisecond: 51 * time.Millisecond, 50 * time.Millisecond: 50 * time.Millisecond, 1: 50 * time.Millisecond,
	} {
		_, do := waiting(t)
		do(0, &session.Acquire{NS: ns, Client: "x", Slot: "l", Pool: "a", Weight: 1, TTL: time.Minute})
		call := waiter("c", "a")
		call.Wait = 0
		for _, c := range []session.Command{call, &session.Acquire{NS: ns, Client: "w", Slot: "l", Pool: "a", Weight: 1, TTL: time.Minute}} {
			r := do(time.Minute-left, c)
			require.Equal(t, session.ConcurrencyLimit, r.Code)
			require.Equal(t, want, r.RetryAfter, "%v", left)
			require.Equal(t, session.Pressure{InUse: 1, Limit: 1, Threshold: 1}, r.Pressure)
			require.Equal(t, []string{"a"}, r.Pools)
		}
	}
}

// A refusal says how full a pool is as every other answer does: pressed from its threshold on.
func TestPressureOfRefusals(t *testing.T) {
	_, do := waiting(t)
	op := session.Maker{Client: "op"}
	do(0, &session.PutPool{NS: ns, By: op, Pool: "five", Slots: 5, Threshold: 2})
	acquire := func(slot string, weight int32) session.Result {
		return do(0, &session.Acquire{NS: ns, Client: "x", Slot: slot, Pool: "five", Weight: weight, TTL: time.Minute})
	}
	require.Equal(t, session.Admitted, acquire("held", 4).Code)
	want := session.Pressure{InUse: 4, Limit: 5, Threshold: 2}
	r := acquire("more", 3)
	require.Equal(t, session.ConcurrencyLimit, r.Code)
	require.Equal(t, want, r.Pressure)
	require.True(t, r.Pressure.Pressed())
	call := waiter("c", "five")
	call.Wait, call.Pools[1].Weight = 0, 3
	r = do(0, call)
	require.Equal(t, session.ConcurrencyLimit, r.Code)
	require.Equal(t, want, r.Pressure)
}

// A client is remembered for an hour, and a session is idle, from the last that was
// done with it, whatever that was and however it ended.
func TestWhatWasDoneLast(t *testing.T) {
	const at = 5 * time.Second
	take := func(client string) *session.TakeRate {
		return &session.TakeRate{NS: ns, Client: client, ID: "t", Rate: "r", Cost: 1, Wait: time.Minute}
	}
	slot := func(client string, wait time.Duration) *session.Acquire {
		return &session.Acquire{NS: ns, Client: client, Slot: "l", Pool: "a", Weight: 1, TTL: time.Minute, Wait: wait}
	}
	op := session.Maker{Client: "op"}
	state := func(idle time.Duration, before ...session.Command) (*session.State, func(time.Duration, session.Command) session.Code) {
		s, do := waiting(t)
		do(0, &session.PutRate{NS: ns, By: op, Rate: "r", Limit: 1, Per: 4 * time.Second, Queue: 9})
		do(0, &session.Open{NS: ns, Session: "t", Agent: "a", Digest: sessiontest.Digest(2), IdleTTL: idle})
		for _, c := range before {
			require.False(t, do(0, c).Code.Failure())
		}
		return s, func(at time.Duration, c session.Command) session.Code { return do(at, c).Code }
	}
	for name, tt := range map[string]struct {
		before []session.Command
		c      session.Command
		code   session.Code
	}{
		"a slot is refused":      {[]session.Command{slot("x", 0)}, slot("w", 0), session.ConcurrencyLimit},
		"a slot is given back":   {[]session.Command{slot("w", 0)}, &session.Release{NS: ns, Client: "w", Slot: "l", Pool: "a", Token: 1}, session.Released},
		"a slot is taken away":   {[]session.Command{slot("w", 0)}, &session.ForceRelease{NS: ns, By: op, Holder: "w", ID: "l", Pools: []string{"a"}}, session.Released},
		"a wait is given up":     {[]session.Command{slot("x", 0), slot("w", time.Minute)}, &session.Cancel{NS: ns, Client: "w", Call: "l", Pools: []string{"a"}}, session.WaitCancelled},
		"a wait is over":         {[]session.Command{slot("x", 0), slot("w", 3*time.Second)}, slot("w", 3*time.Second), session.WaitTimeout},
		"a pool is gone":         {[]session.Command{slot("x", 0), slot("w", time.Minute), &session.DeletePool{NS: ns, By: op, Pool: "a", Force: true}}, slot("w", time.Minute), session.WaitTimeout},
		"a rate has room":        {nil, take("w"), session.Admitted},
		"a rate has room, later": {[]session.Command{take("x"), take("w")}, take("w"), session.Admitted},
		"a slot lapses by then":  {[]session.Command{slot("w", 0)}, &session.Renew{NS: ns, Client: "w", ID: "l", Pools: []string{"a"}, Token: 1, TTL: time.Second}, session.Renewed},
	} {
		s, do := state(time.Hour, tt.before...)
		require.Equal(t, tt.code, do(at, tt.c), name)
		end := at + session.KeptFor
		if tt.code == session.Renewed {
			end += time.Second
		}
		x := s.Stored(session.ClientKey(ns, "w"))
		require.NotNil(t, x.At(end-1), name)
		require.Nil(t, x.At(end), name)
	}

	call := func(wait time.Duration, pools ...string) *session.Begin {
		c := waiter("c", pools...)
		c.Session, c.Wait = "t", wait
		return c
	}
	denied, asks := call(0), call(0)
	denied.Verdict.Allow = false
	asks.Verdict.Allow = false
	asks.Asking = &session.Asking{Agent: "a", Required: 1, Denials: 1, Timeout: time.Minute, MaxPending: 1, Request: session.Digest{1}}
	decide := &session.Decide{NS: ns, By: op, ID: session.ApprovalID(ns, "t", "c"), Session: "t", Call: "c", Approver: "amy"}
	pools := []string{"policy/p2", "a"}
	for name, tt := range map[string]struct {
		before []session.Command
		c      session.Command
		code   session.Code
	}{
		"a call is refused":      {nil, denied, session.Denied},
		"a call ends":            {[]session.Command{call(0)}, &session.End{NS: ns, Session: "t", Call: "c", Pools: pools, Status: session.Failed}, session.Ended},
		"a call is taken away":   {[]session.Command{call(0)}, &session.ForceRelease{NS: ns, By: op, Session: "t", ID: "c", Pools: pools}, session.Released},
		"a wait is given up":     {[]session.Command{slot("x", 0), call(time.Minute, "a")}, &session.Cancel{NS: ns, Session: "t", Call: "c", Pools: pools}, session.WaitCancelled},
		"a wait is over":         {[]session.Command{slot("x", 0), call(3*time.Second, "a")}, call(3*time.Second, "a"), session.WaitTimeout},
		"somebody has said no":   {[]session.Command{asks}, decide, session.Done},
		"nobody has to say more": {[]session.Command{asks}, &session.CancelApproval{NS: ns, By: op, ID: decide.ID, Session: "t", Call: "c"}, session.Done},
	} {
		s, do := state(10*time.Second, tt.before...)
		require.Equal(t, tt.code, do(at, tt.c), name)
		x := s.Stored(session.SessionKey(ns, "t"))
		require.Equal(t, session.PhaseOpen, x.At(at+10*time.Second-1).(*session.Session).Phase, name)
		require.Equal(t, session.PhaseExpired, x.At(at+10*time.Second).(*session.Session).Phase, name)
	}
}

// Who gives up the place of somebody else says when that one was heard of last: he is wrong
// where that was later, and the place is kept.
func TestAPlaceThatIsWanted(t *testing.T) {
	slot := func(client string, wait time.Duration) *session.Acquire {
		return &session.Acquire{NS: ns, Client: client, Slot: "l", Pool: "a", Weight: 1, TTL: 5 * time.Minute, Wait: wait}
	}
	call := waiter("c", "a")
	call.Wait = time.Minute
	pools := []string{"policy/p2", "a"}
	for name, tt := range map[string]struct {
		wait, renew session.Command
		leave       *session.Cancel
	}{
		"a slot": {
			slot("w", time.Minute), &session.Renew{NS: ns, Client: "w", ID: "l", Pools: []string{"a"}, TTL: time.Minute},
			&session.Cancel{NS: ns, Client: "w", Call: "l", Pools: []string{"a"}},
		},
		"a call": {
			call, &session.Renew{NS: ns, Session: call.Session, ID: "c", Pools: pools, TTL: time.Minute},
			&session.Cancel{NS: ns, Session: call.Session, Call: "c", Pools: pools},
		},
	} {
		_, do := waiting(t)
		require.Equal(t, session.Admitted, do(0, slot("x", 0)).Code)
		require.Equal(t, session.Queued, do(time.Second, tt.wait).Code, name)
		require.Equal(t, session.Renewed, do(4*time.Second, tt.renew).Code, name)
		c := tt.leave
		for _, heard := range []time.Duration{time.Second, 4*time.Second - 1} {
			c.Heard = heard
			require.Equal(t, session.Queued, do(5*time.Second, c).Code, name)
		}
		require.Equal(t, session.Renewed, do(6*time.Second, tt.renew).Code, name)
		c.Heard = 4 * time.Second
		require.Equal(t, session.Queued, do(6*time.Second, c).Code, name)
		c.Heard = 6 * time.Second
		require.Equal(t, session.WaitCancelled, do(7*time.Second, c).Code, name)
	}
}

// A sum that does not fit is refused, at either end; the last that fits is not.
func TestTheEndsOfNumbers(t *testing.T) {
	for _, tt := range []struct {
		n, by int64
		fits  bool
	}{
		{math.MaxInt64 - 5, 5, true},
		{math.MaxInt64 - 5, 6, false},
		{math.MaxInt64, 1, false},
		{math.MaxInt64, 0, true},
		{math.MaxInt64, math.MinInt64, true},
		{0, math.MaxInt64, true},
		{1, math.MaxInt64, false},
		{math.MinInt64 + 5, -5, true},
		{math.MinInt64 + 5, -6, false},
		{math.MinInt64, -1, false},
		{math.MinInt64, 0, true},
		{math.MinInt64, math.MaxInt64, true},
		{0, math.MinInt64, true},
		{-1, math.MinInt64, false},
	} {
		_, do := waiting(t)
		by := session.Maker{Client: "w"}
		do(0, &session.Set{NS: ns, By: by, Key: "k", Value: session.Value{Number: true, N: tt.n}})
		r := do(0, &session.Increment{NS: ns, By: by, Key: "k", Amount: tt.by})
		if tt.fits {
			require.Equal(t, session.Result{Value: tt.n + tt.by}, r, "%+v", tt)
		} else {
			require.Equal(t, session.Overflow, r.Code, "%+v", tt)
		}
	}
}

// What few sessions have is kept of those that have it.
func TestWhatFewSessionsHave(t *testing.T) {
	s, do := waiting(t)
	for id, want := range map[string]*session.More{
		"none": nil, "parent": {Parent: "s"}, "attribute": {Attributes: []session.Attr{{Name: "a", Value: "1"}}}, "token": {Token: session.Digest{7}},
	} {
		c := &session.Open{NS: ns, Session: id, Agent: "a", Digest: sessiontest.Digest(2), IdleTTL: time.Hour}
		if want != nil {
			c.Parent, c.Attributes, c.Token = want.Parent, want.Attributes, want.Token
		}
		require.Equal(t, session.Done, do(0, c).Code)
		require.Equal(t, want, s.Get(session.SessionKey(ns, id)).(*session.Session).More, id)
	}
}

// The first output of a session is what later ones are compared to, and stays it.
func TestTheFirstOutputIsTheBaseline(t *testing.T) {
	s, do := waiting(t)
	first, second := session.Digest{1}, session.Digest{2}
	for i, out := range []session.Output{{Hash: first, Text: "one"}, {}, {Hash: second, Text: "two", Against: first, Score: 70}, {}, {Hash: first, Text: "one", Against: first}} {
		call := waiter(fmt.Sprint("c", i))
		require.Equal(t, session.Admitted, do(0, call).Code)
		require.Equal(t, session.Ended, do(0, &session.End{NS: ns, Session: "s", Call: call.Call, Pools: []string{"policy/p2"}, Status: session.Succeeded, Output: out}).Code)
		x := s.Get(session.SessionKey(ns, "s")).(*session.Session)
		require.Equal(t, &session.More{Baseline: first, Drift: []int64{0, 0, 70, 70, 0}[i]}, x.More)
		require.Equal(t, &session.Baseline{Hash: first, Text: "one"}, s.Get(session.BaselineKey(ns, "s")))
	}
}

// A premise may name more pools than there are, and has to name all that there are,
// however many it names.
func TestALongPremise(t *testing.T) {
	for _, others := range []int{3, 14, 15, 40} {
		_, do := waiting(t)
		require.Equal(t, session.Admitted, do(0, waiter("c", "a")).Code)
		pools := []string{"policy/p2"}
		for i := range others {
			pools = append(pools, fmt.Sprint("other", i))
		}
		c := &session.Close{NS: ns, Session: "s", Pools: pools, Digest: sessiontest.Digest(2)}
		r := do(0, c)
		require.Equal(t, session.StalePremise, r.Code, "%d", others)
		require.Equal(t, []string{"policy/p2", "a"}, r.Pools)
		c.Pools = append(c.Pools, "a")
		r = do(0, c)
		require.Equal(t, session.Done, r.Code, "%d", others)
		require.EqualValues(t, 2, r.Value)
	}
}

// A tree is pinned as long as one session pins it, however the others have ended and
// however often they are looked after.
func TestATreeIsPinnedByEachSession(t *testing.T) {
	const sessions = 24
	for _, closed := range []bool{true, false} {
		s, do := waiting(t)
		d := sessiontest.Digest(1)
		id := func(i int) string { return fmt.Sprint("of-many-", i) }
		for i := range sessions {
			idle := time.Hour
			if !closed {
				idle = time.Duration(1+i) * time.Minute
			}
			do(0, &session.Open{NS: ns, Session: id(i), Agent: "a", Policy: "p1", Digest: d, IdleTTL: idle})
		}
		for i := range sessions {
			at := time.Duration(1+i) * time.Minute
			drop := &session.DeletePolicy{NS: ns, By: session.Maker{Client: "op"}, Name: "p1", Digest: d, Names: []string{"p1"}}
			require.Equal(t, session.PolicyPinned, do(at-1, drop).Code, "%d sessions are left", sessions-i)
			if closed {
				require.Equal(t, session.Done, do(at, &session.Close{NS: ns, Session: id(i), Digest: d}).Code)
			}
			k := session.SessionKey(ns, id(i))
			do(at, &session.Close{NS: ns, Session: id(i), Digest: d}) // it finds out that the session has ended
			before := s.Stored(k)
			seen := string(session.EncodeRecord(before))
			for range 2 {
				do(at, &session.Tick{Keys: session.TickKeys(k, s.Stored(k))})
			}
			require.Equal(t, seen, string(session.EncodeRecord(before)), "what a reader holds was written into")
			if i == sessions-1 {
				require.Equal(t, session.Done, do(at, drop).Code)
			}
		}
	}
}

// What stands in one namespace is nothing to another, and those in which sessions are
// to be closed are told in order.
func TestSignalsOfOtherNamespaces(t *testing.T) {
	s, do := waiting(t)
	var want []session.Key
	for i := range 9 {
		other := fmt.Sprint("other", (i*5)%9)
		want = append(want, session.SignalsKey(other))
		by := session.Maker{Client: "op"}
		do(0, &session.PutHash{NS: other, By: by, Tool: "ls", Hash: "one"})
		r := do(0, &session.Signal{NS: other, By: by, Target: session.Target{Scope: session.Everything}, Signal: session.Kill})
		require.EqualValues(t, 1, r.Value)
	}
	slices.Sort(want)
	require.Equal(t, want, s.Unswept())
	require.Equal(t, session.Admitted, do(0, waiter("c")).Code)
	require.Equal(t, session.Done, do(0, &session.Open{NS: ns, Session: "new", Agent: "a", Digest: sessiontest.Digest(2), IdleTTL: time.Hour}).Code)
}

// Whom a signal is for follows from what sessions have; that of a single session is for
// none of them.
func TestWhomASignalIsFor(t *testing.T) {
	for target, want := range map[session.Target]bool{
		{Scope: session.Everything}:              true,
		{Scope: session.OfAgent, Name: "amy"}:    true,
		{Scope: session.OfAgent, Name: "bob"}:    false,
		{Scope: session.OfPolicy, Name: "p"}:     true,
		{Scope: session.OfPolicy, Name: "q"}:     false,
		{Scope: session.OfSession, Name: "amy"}:  false,
		{}:                                       false,
		{Scope: session.OfPolicy, Name: "amy"}:   false,
		{Scope: session.OfAgent, Name: "p"}:      false,
		{Scope: session.OfSession, Name: "none"}: false,
	} {
		require.Equal(t, want, target.Hits("amy", "p"), "%+v", target)
	}
}

// A call may name as many pools and rates as there may be, and takes all of them.
func TestAsMuchAsACallMayName(t *testing.T) {
	s, do := waiting(t)
	by := session.Maker{Client: "op"}
	call := waiter("c")
	for i := range session.MaxPools {
		name := fmt.Sprint("p", i)
		do(0, &session.PutPool{NS: ns, By: by, Pool: name, Slots: 1})
		call.Pools = append(call.Pools, session.Want{Pool: name, Weight: 1})
	}
	for i := range session.MaxRates {
		name := fmt.Sprint("r", i)
		do(0, &session.PutRate{NS: ns, By: by, Rate: name, Limit: 1, Per: time.Hour})
		call.Rates = append(call.Rates, session.RateWant{Pool: session.RatePool(name), Cost: 1})
	}
	r := do(0, call)
	require.Equal(t, session.Admitted, r.Code)
	require.Len(t, r.Grants, 1+session.MaxPools)
	for i := range session.MaxPools {
		require.EqualValues(t, 1, s.Get(session.PoolKey(ns, fmt.Sprint("p", i))).(*session.Pool).InUse())
	}
	for i := range session.MaxRates {
		require.EqualValues(t, 1, s.Get(session.PoolKey(ns, session.RatePool(fmt.Sprint("r", i)))).(*session.Pool).InUse())
	}
}

// The label of a model's server is counted among the tools of a session where its policy
// limits that, and nothing else is beside tools.
func TestWhatIsCountedAmongTools(t *testing.T) {
	limits := sessiontest.Limits(3)
	limits.MaxToolCalls, limits.MaxAttempts, limits.MaxConcurrent = 4000, 4000, session.MaxSlots
	for _, limited := range []bool{true, false} {
		if !limited {
			limits.Kinds = nil
		}
		s := session.NewPartial()
		d := session.Digest{8}
		s.ApplyAll(0, []session.Command{
			&session.PutPolicy{NS: ns, Name: "big", Digest: d, Tree: []byte{8}, Limits: limits},
			&session.Open{NS: ns, Session: "s", Agent: "a", Policy: "big", Digest: d, IdleTTL: time.Hour},
		})
		n := 0
		begin := func(kind session.CallKind, tool string) session.Code {
			n++
			return s.ApplyAll(0, []session.Command{&session.Begin{NS: ns, Session: "s", Call: fmt.Sprint("c", n), CallKind: kind, Tool: tool, Digest: d,
				Verdict: session.Verdict{Allow: true}, Pools: []session.Want{{Pool: "policy/big", Weight: 1}}, TTL: time.Minute}})[0].Code
		}
		for i := range session.MaxTools {
			require.Equal(t, session.Admitted, begin(session.Tool, fmt.Sprint("t", i)))
		}
		require.Equal(t, session.TooManyTools, begin(session.Tool, "new"))
		require.Equal(t, session.Admitted, begin(session.Model, "new"))
		require.Equal(t, session.Admitted, begin(session.Agent, "new"))
		require.Equal(t, session.Admitted, begin(session.Sampling, "t7"))
		want := session.Admitted
		if limited {
			want = session.TooManyTools
		}
		require.Equal(t, want, begin(session.Sampling, "new"))
	}
}

// A standing approval for a number of uses is there for that many, and one without a
// number for as many as there are. The narrowest is used.
func TestUsesOfAStandingApproval(t *testing.T) {
	s, do := waiting(t)
	by := session.Maker{Client: "op"}
	of := func(scope session.Scope, name string, exact bool) session.StandingOf {
		return session.StandingOf{Scope: scope, Name: name, Tool: "ls", Exact: exact}
	}
	all := []session.StandingOf{ // the narrowest first
		of(session.OfSession, "s", true), of(session.OfSession, "s", false), of(session.OfAgent, "a", true),
		of(session.OfAgent, "a", false), of(session.OfPolicy, "p2", true), of(session.OfPolicy, "p2", false),
	}
	for i := range all {
		uses := uint32(2)
		if i == len(all)-1 {
			uses = 0
		}
		do(0, &session.PutStanding{NS: ns, By: by, Of: all[i], Uses: uses, TTL: time.Hour})
	}
	left := func() (uses []uint32) {
		for i := range all {
			if a, ok := s.Get(session.StandingKey(ns, all[i].ID())).(*session.Standing); ok {
				uses = append(uses, a.Uses)
			}
		}
		return uses
	}
	want := []uint32{2, 2, 2, 2, 2, 0}
	for i := range 14 {
		require.Equal(t, want, left())
		call := waiter(fmt.Sprint("c", i))
		call.CallKind, call.Tool, call.Verdict.Allow = session.Tool, "ls", false
		call.Asking = &session.Asking{Agent: "a", Required: 1, Denials: 1, Timeout: time.Minute, MaxPending: 1}
		require.Equal(t, session.Admitted, do(0, call).Code)
		require.Equal(t, session.Ended, do(0, &session.End{NS: ns, Session: "s", Call: call.Call, Pools: []string{"policy/p2"}, Status: session.Succeeded}).Code)
		switch {
		case len(want) == 1: // without a number
		case want[0] == 1:
			want = want[1:]
		default:
			want[0]--
		}
	}
	require.Equal(t, []uint32{0}, left())
}

// An answer says who has decided and why; nobody has where time did.
func TestWhoHasDecided(t *testing.T) {
	_, do := waiting(t)
	by := session.Maker{Client: "op"}
	asks := func(call string) *session.Begin {
		c := waiter(call)
		c.Verdict.Allow = false
		c.Asking = &session.Asking{Agent: "a", Required: 2, Denials: 2, Timeout: time.Minute, AllowOnTimeout: call == "late", MaxPending: 9, Request: session.Digest{1}}
		return c
	}
	vote := func(call, approver string, approve bool) session.Result {
		return do(0, &session.Decide{NS: ns, By: by, ID: session.ApprovalID(ns, "s", call), Session: "s", Call: call, Approver: approver, Approve: approve, Reason: approver + " says so"})
	}
	for _, call := range []string{"yes", "no", "late"} {
		require.Equal(t, session.ApprovalRequired, do(0, asks(call)).Code)
	}
	for _, approver := range []string{"amy", "bob"} {
		require.Equal(t, session.Done, vote("yes", approver, true).Code)
		require.Equal(t, session.Done, vote("no", approver, false).Code)
	}
	for call, want := range map[string][2]string{"yes": {"bob", "bob says so"}, "no": {"bob", "bob says so"}} {
		r := do(0, asks(call))
		require.Equal(t, want, [2]string{r.Approval.By, r.Approval.Reason}, call)
	}
	r := do(time.Minute, asks("late"))
	require.Equal(t, session.Admitted, r.Code)
	require.Equal(t, [2]string{}, [2]string{r.Approval.By, r.Approval.Reason})
}

// Who decides names the call of which the approval is, if it is of one: of another nothing
// is decided. One that a client has asked for is of none, with whatever session it is shown.
func TestOfWhichCallAnApprovalIs(t *testing.T) {
	s, do := waiting(t)
	by := session.Maker{Client: "op"}
	call := waiter("c")
	call.Verdict.Allow = false
	call.Asking = &session.Asking{Agent: "a", Required: 1, Denials: 1, Timeout: time.Minute, MaxPending: 9, Request: session.Digest{1}}
	require.Equal(t, session.ApprovalRequired, do(0, call).Code)
	require.Equal(t, session.Done, do(0, &session.Ask{NS: ns, By: by, ID: "asked", Agent: "a", Session: "s", Tool: "ls", Required: 1, Denials: 1, Timeout: time.Minute}).Code)
	before := sessiontest.Dump(s)
	for _, tt := range []struct{ id, session, call string }{
		{session.ApprovalID(ns, "s", "c"), "other", "c"}, {session.ApprovalID(ns, "s", "c"), "s", "other"}, {session.ApprovalID(ns, "s", "c"), "", ""},
		{"asked", "s", "c"},
	} {
		of := []string{"s", "c"}
		if tt.id == "asked" {
			of = []string{"s", ""}
		}
		for _, c := range []session.Command{
			&session.Decide{NS: ns, By: by, ID: tt.id, Session: tt.session, Call: tt.call, Approver: "amy", Approve: true},
			&session.CancelApproval{NS: ns, By: by, ID: tt.id, Session: tt.session, Call: tt.call},
		} {
			r := do(0, c)
			require.Equal(t, session.StalePremise, r.Code, "%+v", tt)
			require.Equal(t, of, r.Names)
		}
	}
	require.Equal(t, before, sessiontest.Dump(s))
	r := do(0, &session.Decide{NS: ns, By: by, ID: "asked", Approver: "amy", Approve: true})
	require.EqualValues(t, 1, r.Value)
}

// Nobody decides what he asked for himself, under whatever name; others do, and so does
// anybody where nobody is asked who he is.
func TestNobodyDecidesForHimself(t *testing.T) {
	for _, tt := range []struct {
		asked, decides byte // principals
		approver       string
		code           session.Code
	}{
		{1, 1, "amy", session.SelfApproval},
		{1, 2, "amy", session.Done},
		{1, 0, "amy", session.Done},
		{0, 0, "amy", session.Done},
		{0, 2, "amy", session.Done},
		{1, 2, "bob", session.SelfApproval},
		{0, 0, "bob", session.SelfApproval},
	} {
		s := session.New()
		do := func(who byte, c session.Command) session.Result {
			if who != 0 {
				c.(interface{ Authorize(*session.Authority) }).Authorize(&session.Authority{Principal: session.Principal{who}})
			}
			return s.ApplyAll(0, []session.Command{c})[0]
		}
		by := session.Maker{Client: "op"}
		require.Equal(t, session.Done, do(tt.asked, &session.Ask{NS: ns, By: by, ID: "x", Agent: "Bob", Tool: "ls", Required: 1, Denials: 1, Timeout: time.Minute}).Code)
		r := do(tt.decides, &session.Decide{NS: ns, By: by, ID: "x", Approver: tt.approver, Approve: true})
		require.Equal(t, tt.code, r.Code, "%+v", tt)
	}
}

// What is left of a period is counted from when the budget was made.
func TestWhenThePeriodOfABudgetEnds(t *testing.T) {
	b := &session.Budget{Budget: budget.Budget{Amount: 5, Per: time.Minute, Made: 10 * time.Second}}
	for now, want := range map[time.Duration]time.Duration{
		10 * time.Second: time.Minute, 11 * time.Second: 59 * time.Second, 70*time.Second - 1: 1, 70 * time.Second: time.Minute, 200 * time.Second: 50 * time.Second,
	} {
		n := b.Count("b", now)
		require.Equal(t, want, n.PeriodEnds, "at %v", now)
	}
	b.Per = 0
	require.Zero(t, b.Count("b", time.Hour).PeriodEnds, "without periods nothing ends")
}

// Which of as many budgets as a call may charge had no room, and what was left there, is
// said again to who asks again.
func TestWhichBudgetHadNoRoomIsRemembered(t *testing.T) {
	for _, amount := range []int64{0, 5, budget.MaxAmount - 1} {
		for full := range session.MaxBudgets {
			_, do := waiting(t)
			call := waiter("c")
			for i := range session.MaxBudgets {
				c := &session.PutBudget{NS: ns, By: session.Maker{Client: "op"}, Budget: fmt.Sprintf("b%02d", i), Amount: budget.MaxAmount}
				if i == full {
					c.Amount = amount
				}
				require.Equal(t, session.Done, do(0, c).Code)
				call.Budgets = append(call.Budgets, session.Charge{Budget: c.Budget, Amount: budget.MaxAmount})
			}
			name := call.Budgets[full].Budget
			r := do(0, call)
			require.Equal(t, session.BudgetExceeded, r.Code)
			require.Equal(t, []session.BudgetCount{{Budget: name, Amount: amount, Depth: 1}}, r.Budgets)
			r = do(0, call)
			require.True(t, r.Repeat)
			require.Equal(t, []session.BudgetCount{{Budget: name, Amount: amount}}, r.Budgets, name)
		}
	}
}

// The rate of a policy has a name of its own for each agent or session that it is of, and
// one where it is of all.
func TestNamesOfRatesOfPolicies(t *testing.T) {
	require.Equal(t, "policy/p/r", session.PolicyRate("p", "r", ""))
	require.Equal(t, "policy/p/r#amy", session.PolicyRate("p", "r", "amy"))
	require.Equal(t, "policy//r", session.PolicyRate("", "r", ""), "of the namespace")
}

// An audited client that is repaired when it is over leaves its chain to its namespace, as
// one does that is dropped.
func TestTheChainOfARepairedClient(t *testing.T) {
	s := session.NewPartial()
	count := &session.Increment{NS: ns, By: session.Maker{Client: "w", Request: "r"}, Key: "k", Amount: 1}
	count.Authorize(&session.Authority{Audited: session.Digest{1}})
	chain := s.ApplyAll(0, []session.Command{count})[0].Chain
	require.NotNil(t, chain)
	r := s.ApplyAll(2*time.Hour, []session.Command{&session.Repair{NS: ns, By: session.Maker{Client: "op"}, Client: "w", NewerThan: 1}})[0]
	require.EqualValues(t, 1, r.Value)
	require.Len(t, r.Folds, 1)
	require.Equal(t, session.ClientKey(ns, "w"), r.Folds[0].Key)
	require.Equal(t, *chain, r.Folds[0].Chain)
	require.Equal(t, &r.Folds[0].Into, s.Get(session.NamespaceKey(ns)).(*session.Namespace).Chain)
}

// A call that is heavier than its policy has slots is refused, also where nobody has used
// them yet.
func TestACallThatIsHeavierThanItsPolicy(t *testing.T) {
	_, do := waiting(t)
	d := sessiontest.Digest(9)
	limits := session.Limits{MaxConcurrent: 2, MaxToolCalls: 9, MaxAttempts: 9, Timeout: time.Hour}
	do(0, &session.PutPolicy{NS: ns, By: session.Maker{Client: "op"}, Name: "narrow", Digest: d, Tree: []byte{9}, Limits: limits})
	do(0, &session.Open{NS: ns, Session: "t", Agent: "bob", Policy: "narrow", Digest: d, IdleTTL: time.Hour})
	for weight, want := range map[int32]session.Code{3: session.ConcurrencyLimit, 2: session.Admitted} {
		c := &session.Begin{NS: ns, Session: "t", Call: fmt.Sprint("c", weight), CallKind: session.Model, Digest: d, TTL: time.Hour,
			Verdict: session.Verdict{Allow: true}, Pools: []session.Want{{Pool: "policy/narrow", Weight: weight}}}
		require.Equal(t, want, do(0, c).Code)
	}
}
