package session_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

// A command whose premise does not hold says what holds, and changes nothing.
func TestPremises(t *testing.T) {
	one, two := sessiontest.Digest(1), sessiontest.Digest(2)
	by := func(id string) session.Maker { return session.Maker{Client: "op", Request: id} }
	begin := func(call string, pools ...string) *session.Begin {
		c := &session.Begin{NS: ns, Session: "s", Call: call, CallKind: session.Model, Digest: one,
			Verdict: session.Verdict{Allow: true}, TTL: time.Minute, Wait: time.Minute}
		for _, p := range pools {
			c.Pools = append(c.Pools, session.Want{Pool: p, Weight: 1})
		}
		return c
	}
	s := session.NewPartial()
	s.ApplyAll(0, sessiontest.Setup())
	s.ApplyAll(0, []session.Command{
		&session.Open{NS: ns, Session: "s", Agent: "a", Policy: "p1", Digest: one, IdleTTL: time.Hour},
		begin("runs", "policy/p1", "a"),
		begin("waits", "policy/p1", "a"),
		&session.Acquire{NS: ns, Client: "w", Slot: "held", Pool: "b", Weight: 2, TTL: time.Minute},
		&session.Acquire{NS: ns, Client: "w", Slot: "queued", Pool: "b", Weight: 1, TTL: time.Minute, Wait: time.Minute},
	})
	both := []string{"policy/p1", "a"}
	stale := func(r session.Result) session.Result { r.Code = session.StalePremise; return r }
	wrong := begin("new", "policy/p1")
	wrong.Digest = two
	saw := begin("new", "policy/p1")
	saw.Seen = []session.Premise{{Fact: session.FactActiveSlots, Lo: 0, Hi: 0}, {Fact: session.FactCalls, Lo: 2, Hi: 2}}
	for _, tt := range []struct {
		name string
		c    session.Command
		want session.Result
	}{
		{"open: the tree", &session.Open{NS: ns, Session: "t", Agent: "a", Policy: "p1", Digest: two, IdleTTL: time.Hour}, stale(session.Result{Digest: one})},
		{"begin: the tree", wrong, stale(session.Result{Digest: one})},
		{"begin: the policy's pool", begin("new", "policy/p2"), stale(session.Result{Pools: []string{"policy/p1"}})},
		{"begin: what was seen", saw, stale(session.Result{Facts: []int64{2, 2}})},
		{"begin of what runs: its pools", begin("runs", "policy/p2", "a"), stale(session.Result{Pools: both})},
		{"begin of what waits: its pools", begin("waits", "policy/p1"), stale(session.Result{Pools: both})},
		{"end: its pools", &session.End{NS: ns, Session: "s", Call: "runs", Pools: []string{"a"}, Status: session.Failed}, stale(session.Result{Pools: both})},
		{"end: the baseline", &session.End{NS: ns, Session: "s", Call: "runs", Pools: both, Status: session.Failed,
			Output: session.Output{Hash: one, Against: two}}, stale(session.Result{})},
		{"cancel: its pools", &session.Cancel{NS: ns, Session: "s", Call: "waits", Pools: []string{"policy/p1"}}, stale(session.Result{Pools: both})},
		{"cancel of a slot: its pool", &session.Cancel{NS: ns, Client: "w", Call: "queued", Pools: []string{"a"}}, stale(session.Result{Pools: []string{"b"}})},
		{"close: the pools", &session.Close{NS: ns, Session: "s", Pools: []string{"a"}, Digest: one}, stale(session.Result{Pools: both, Digest: one})},
		{"close: the tree", &session.Close{NS: ns, Session: "s", Pools: both, Digest: two}, stale(session.Result{Pools: both, Digest: one})},
		{"acquire of what is held: its pool", &session.Acquire{NS: ns, Client: "w", Slot: "held", Pool: "a", Weight: 2, TTL: time.Minute}, session.Result{Code: session.IDReused}},
		{"renew: its pools", &session.Renew{NS: ns, Session: "s", ID: "runs", Pools: []string{"policy/p1"}, Token: 1, TTL: time.Minute}, stale(session.Result{Pools: both})},
		{"renew of a slot: its pool", &session.Renew{NS: ns, Client: "w", ID: "held", Pools: []string{"a"}, Token: 1, TTL: time.Minute}, stale(session.Result{Pools: []string{"b"}})},
		{"release: its pool", &session.Release{NS: ns, Client: "w", Slot: "held", Pool: "a", Token: 1}, stale(session.Result{Pools: []string{"b"}})},
		{"force: its pools", &session.ForceRelease{NS: ns, By: by("1"), Session: "s", ID: "runs", Pools: []string{"a"}}, stale(session.Result{Pools: both})},
		{"force of a slot: its pool", &session.ForceRelease{NS: ns, By: by("2"), Holder: "w", ID: "held", Pools: []string{"a"}}, stale(session.Result{Pools: []string{"b"}})},
		{"delete a policy: what the name points to", &session.DeletePolicy{NS: ns, By: by("3"), Name: "p1", Digest: two, Names: []string{"p1"}}, stale(session.Result{Digest: one})},
		{"delete a policy: its names", &session.DeletePolicy{NS: ns, By: by("4"), Name: "p1", Digest: one, Names: []string{"p1", "q"}},
			stale(session.Result{Digest: one, Names: []string{"p1"}})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.NoError(t, session.Validate(tt.c))
			before := sessiontest.Dump(s)
			got := s.ApplyAll(0, []session.Command{tt.c})[0]
			got.Counters = session.Counters{}
			require.Equal(t, tt.want, got)
			require.Equal(t, before, sessiontest.Dump(s))
		})
	}
	bare := s.ApplyAll(0, []session.Command{begin("new", "p1")})[0] // which Validate refuses
	require.Equal(t, session.StalePremise, bare.Code, "a pool of the policy's name")
}

// Names that were deleted, or that point elsewhere by now, do not count among
// those of a tree for ever.
func TestNamesThatAreGoneDoNotCount(t *testing.T) {
	s := session.NewPartial()
	d, other, limits := sessiontest.Digest(8), sessiontest.Digest(9), sessiontest.Limits(1)
	do := func(c session.Command) session.Code {
		require.NoError(t, session.Validate(c))
		return s.ApplyAll(0, []session.Command{c})[0].Code
	}
	put := func(name string, d session.Digest) session.Code {
		return do(&session.PutPolicy{NS: ns, By: session.Maker{Client: "x"}, Name: name, Digest: d, Tree: []byte{8}, Limits: limits})
	}
	names := func() []string { return s.Get(session.PolicyKey(ns, d)).(*session.Policy).Names }
	drop := func(name string) session.Code {
		return do(&session.DeletePolicy{NS: ns, By: session.Maker{Client: "x"}, Name: name, Digest: d, Names: names()})
	}
	require.Equal(t, session.Done, put("main", d))
	for i := range session.MaxNames + 1 {
		name := fmt.Sprint("n", i)
		require.Equal(t, session.Done, put(name, d), "%d", i)
		require.Equal(t, session.Done, drop(name))
		require.Equal(t, []string{"main"}, names())
	}
	for i := range session.MaxNames - 1 {
		require.Equal(t, session.Done, put(fmt.Sprint("n", i), d))
		require.Equal(t, session.Done, put(fmt.Sprint("n", i), other))
	}
	require.Equal(t, session.TooManyNames, put("more", d))
	require.Equal(t, session.Done, put("n0", d))
	require.Equal(t, session.Done, drop("n0"))
	require.Equal(t, []string{"main"}, names())
	require.Equal(t, session.Done, put("more", d))
	require.Equal(t, session.Done, drop("main"))
	require.Equal(t, session.Done, drop("more"))
	require.Nil(t, s.Get(session.PolicyKey(ns, d)))

	// Of those that still point here each but the one that is deleted is kept,
	// wherever it stands among others.
	open := func(name string) session.Code {
		return do(&session.Open{NS: ns, Session: name, Agent: "a", Policy: name, Digest: d, IdleTTL: time.Hour})
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		require.Equal(t, session.Done, put(name, d))
	}
	require.Equal(t, session.Done, put("a", other))
	require.Equal(t, session.Done, drop("c"))
	require.Equal(t, []string{"b", "d"}, names())
	require.Equal(t, session.NotFound, open("c"), "its name points to nothing")
	require.Equal(t, session.Done, open("d"))
	require.Equal(t, session.Done, do(&session.Close{NS: ns, Session: "d", Digest: d}))

	// A tree is deleted with all the names that it has.
	gone := &session.DeletePolicy{NS: ns, By: session.Maker{Client: "x"}, Digest: d, Names: names()}
	require.Equal(t, session.Done, do(gone))
	require.Equal(t, session.NotFound, do(gone))
	require.Equal(t, session.NotFound, open("b"))
	require.EqualValues(t, 1, s.Get(session.NameKey(ns, "b")).(*session.Name).Version, "a name keeps its version")
}

// What a verdict has seen holds within its range, both ends included, of each
// fact; else the answer has the fact of today, and nothing is counted.
func TestWhatWasSeenHoldsWithinItsRange(t *testing.T) {
	d := sessiontest.Digest(1)
	begin := func(call string, seen ...session.Premise) *session.Begin {
		return &session.Begin{NS: ns, Session: "s", Call: call, Tool: "ls", Digest: d, Seen: seen, Verdict: session.Verdict{Allow: true},
			Pools: []session.Want{{Pool: "policy/p1", Weight: 1}}, TTL: time.Hour, Tokens: 100}
	}
	end := func(call string) *session.End {
		return &session.End{NS: ns, Session: "s", Call: call, Pools: []string{"policy/p1"}, Status: session.Succeeded, Tokens: 7}
	}
	denied := begin("denied")
	denied.Verdict.Allow = false
	for _, tt := range []struct {
		fact session.Fact
		name string
		is   int64
	}{
		{session.FactCalls, "", 3},
		{session.FactAttempts, "", 4},
		{session.FactTokens, "", 7 + 200},
		{session.FactToolCalls, "ls", 3},
		{session.FactToolCalls, "rm", 0},
		{session.FactActiveSlots, "", 2},
		{session.FactElapsed, "", int64(5 * time.Second)},
	} {
		for _, r := range []struct {
			lo, hi int64
			holds  bool
		}{
			{math.MinInt64, tt.is, true},
			{tt.is, tt.is, true},
			{tt.is, math.MaxInt64, true},
			{math.MinInt64, tt.is - 1, false},
			{tt.is + 1, math.MaxInt64, false},
		} {
			s := session.NewPartial()
			s.ApplyAll(0, sessiontest.Setup())
			s.ApplyAll(time.Second, []session.Command{
				&session.Open{NS: ns, Session: "s", Agent: "a", Policy: "p1", Digest: d, IdleTTL: time.Hour},
				begin("one"), end("one"), begin("two"), begin("three"), denied,
			})
			seen := session.Premise{Fact: tt.fact, Name: tt.name, Lo: r.lo, Hi: r.hi}
			c := begin("new", session.Premise{Fact: session.FactCalls, Lo: 3, Hi: 3}, seen)
			require.NoError(t, session.Validate(c))
			before := sessiontest.Dump(s)
			got := s.ApplyAll(6*time.Second, []session.Command{c})[0]
			if r.holds {
				require.Equal(t, session.Admitted, got.Code, "%+v", seen)
				continue
			}
			require.Equal(t, session.StalePremise, got.Code, "%+v", seen)
			require.Equal(t, []int64{3, tt.is}, got.Facts)
			require.Equal(t, before, sessiontest.Dump(s))
		}
	}
}

// Of a pool that nobody has used yet no slot is in use.
func TestNoSlotOfANewPoolIsInUse(t *testing.T) {
	d := sessiontest.Digest(1)
	for _, is := range []int64{0, 1} {
		s := session.NewPartial()
		s.ApplyAll(0, sessiontest.Setup())
		r := s.ApplyAll(0, []session.Command{
			&session.Open{NS: ns, Session: "s", Agent: "a", Policy: "p1", Digest: d, IdleTTL: time.Hour},
			&session.Begin{NS: ns, Session: "s", Call: "c", Tool: "ls", Digest: d, Seen: []session.Premise{{Fact: session.FactActiveSlots, Lo: is, Hi: is}},
				Verdict: session.Verdict{Allow: true}, Pools: []session.Want{{Pool: "policy/p1", Weight: 1}}, TTL: time.Hour},
		})[1]
		if is == 0 {
			require.Equal(t, session.Admitted, r.Code)
		} else {
			require.Equal(t, session.StalePremise, r.Code)
			require.Equal(t, []int64{0}, r.Facts)
		}
	}
}

// What was judged by another session than the one that has the id now is carried out by
// none, whatever it asks for; by the same one, or by none, it is.
func TestJudgedByAnotherSession(t *testing.T) {
	one := sessiontest.Digest(1)
	opened := 2 * time.Hour
	for name, make := range map[string]func(at time.Duration) session.Command{
		"begin": func(at time.Duration) session.Command {
			return &session.Begin{NS: ns, Session: "s", Call: "new", CallKind: session.Model, Digest: one, Verdict: session.Verdict{Allow: true},
				TTL: time.Minute, Pools: []session.Want{{Pool: "policy/p1", Weight: 1}}, Opened: at}
		},
		"end": func(at time.Duration) session.Command {
			return &session.End{NS: ns, Session: "s", Call: "runs", Pools: []string{"policy/p1", "a"}, Status: session.Succeeded, Opened: at}
		},
		"cancel": func(at time.Duration) session.Command {
			return &session.Cancel{NS: ns, Session: "s", Call: "waits", Pools: []string{"policy/p1", "a"}, Opened: at}
		},
		"renew": func(at time.Duration) session.Command {
			return &session.Renew{NS: ns, Session: "s", ID: "waits", Pools: []string{"policy/p1", "a"}, TTL: time.Minute, Opened: at}
		},
		"close": func(at time.Duration) session.Command {
			return &session.Close{NS: ns, Session: "s", Pools: []string{"policy/p1", "a"}, Digest: one, Opened: at}
		},
	} {
		t.Run(name, func(t *testing.T) {
			state := func() *session.State {
				s := session.New()
				begin := func(call string) *session.Begin {
					return &session.Begin{NS: ns, Session: "s", Call: call, CallKind: session.Model, Digest: one, Verdict: session.Verdict{Allow: true},
						TTL: time.Minute, Wait: time.Minute, Pools: []session.Want{{Pool: "policy/p1", Weight: 1}, {Pool: "a", Weight: 1}}}
				}
				s.ApplyAll(0, sessiontest.Setup())
				for _, c := range []session.Command{
					&session.PutPool{NS: ns, By: session.Maker{Client: "op"}, Pool: "a", Slots: 1, Queue: 5},
					&session.Open{NS: ns, Session: "s", Agent: "a", Policy: "p1", Digest: one, IdleTTL: time.Hour}, begin("runs"), begin("waits"),
				} {
					require.False(t, s.ApplyAll(opened, []session.Command{c})[0].Code.Failure())
				}
				return s
			}
			s := state()
			before := sessiontest.Dump(s)
			for _, at := range []time.Duration{opened - 1, opened + 1} {
				c := make(at)
				require.NoError(t, session.Validate(c))
				require.Equal(t, session.Result{Code: session.StaleSession}, s.ApplyAll(opened, []session.Command{c})[0])
			}
			require.Equal(t, before, sessiontest.Dump(s))
			for _, at := range []time.Duration{opened, 0} {
				r := state().ApplyAll(opened, []session.Command{make(at)})[0]
				require.False(t, r.Code.Failure(), "%s", r.Code)
			}
			// Once it is gone there is no other.
			require.NotEqual(t, session.StaleSession, s.ApplyAll(opened+1000*time.Hour, []session.Command{make(1)})[0].Code)
		})
	}
}
