package redis

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/limiter"
	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// Where it cannot be read who may do what, a restore does not go on as if nothing had
// been revoked; and nothing of what was set aside before is left behind one that does.
func TestRedisRestoreOverDamage(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	for _, ns := range []string{"a", testNS} {
		one(t, r, set(ns, "k", time.Hour))
	}
	var snapshot bytes.Buffer
	require.NoError(t, r.Save(t.Context(), &snapshot))
	k := session.CounterKey(testNS, "k")
	p := r.place(testNS)
	s.do("SET", p.Record(k), "garbage")
	two := s.open("two")
	_, err := two.Get(t.Context(), k, storage.Latest)
	require.Error(t, err)
	all, err := two.Asides(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.NoError(t, r.Restore(t.Context(), bytes.NewReader(snapshot.Bytes())))
	all, err = r.Asides(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
	require.Zero(t, s.do("EXISTS", p.Aside(k), p.d.key("aside")))
	require.EqualValues(t, 7, valueOf(t, r, "k"))

	one(t, r, &session.Deny{NS: testNS, By: session.Maker{Client: "w"}, Denied: session.DeniedSubject{Subject: "x"}})
	s.do("SET", p.Record(session.AccessKey(testNS)), "garbage")
	err = r.Restore(t.Context(), bytes.NewReader(snapshot.Bytes()))
	require.ErrorContains(t, err, "who may do what in the namespace test is damaged")
	require.Equal(t, storage.Unknown, storage.OutcomeOf(err))
}

// Of what a Tick names in several namespaces one error is enough, whichever comes last.
func TestRedisATickFailsAsAWhole(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	one(t, s.open("one"), set("a", "k", time.Hour))
	names := []string{"a", "b", "c", "d"}
	tick := &session.Tick{}
	for _, ns := range names {
		one(t, s.open("one"), set(ns, "k", time.Hour))
		tick.Keys = append(tick.Keys, session.CounterKey(ns, "k"))
	}
	r := s.open("two")
	s.do("SET", r.place("b").Record(session.CounterKey("b", "k")), "garbage")
	for range 8 { // in whatever order they are carried out
		a := r.Apply(t.Context(), tick)[0]
		require.ErrorAs(t, a.Err, new(*wire.BadRecord))
	}
}

// Other nodes are told where somebody has to claim, or will never get what he waits for.
func TestHanded(t *testing.T) {
	pool := func(last uint64, leases ...limiter.Lease) *session.Pool {
		p := &session.Pool{}
		p.Leases, p.Last = leases, last
		return p
	}
	held, claim := func(token uint64) limiter.Lease { return limiter.Lease{Token: token} }, func(token uint64) limiter.Lease { return limiter.Lease{Token: token, Claim: true} }
	waited := pool(1, held(1))
	waited.Queue = []limiter.Ticket{{Holder: "w"}}
	for name, x := range map[string]struct {
		was, after session.Record
		want       bool
	}{
		"made":                            {nil, pool(1, held(1)), false},
		"made with a claim":               {nil, pool(1, claim(1)), true},
		"granted":                         {pool(1, held(1)), pool(2, held(1), held(2)), false},
		"handed over":                     {pool(1, held(1)), pool(2, claim(2)), true},
		"handed over, and granted behind": {pool(1, held(1)), pool(3, claim(2), held(3)), true},
		"was handed over before":          {pool(2, held(1), claim(2)), pool(3, claim(2), held(3)), false},
		"gone, and nobody waited":         {pool(1, held(1)), nil, false},
		"gone under one who waits":        {waited, nil, true},
		"no pool":                         {nil, &session.Counter{}, false},
	} {
		require.Equal(t, x.want, handed(x.was, x.after), name)
	}
}

// Who waits is looked after as long as he may wait, whatever he waits for.
func TestWaitsAreNoted(t *testing.T) {
	queued := session.Result{Code: session.Queued}
	for _, c := range []session.Command{
		&session.Begin{Wait: time.Minute}, &session.Acquire{Wait: time.Minute}, &session.TakeRate{Wait: time.Minute},
	} {
		r := &Store{cfg: Config{monotonic: func() time.Duration { return time.Second }}}
		r.noteWaits([]session.Command{c}, []session.Result{{Code: session.Admitted}})
		require.Zero(t, r.waits.Load())
		r.noteWaits([]session.Command{&session.Acquire{Wait: time.Hour}, c}, []session.Result{{Code: session.Admitted}, queued})
		require.EqualValues(t, 61*time.Second, r.waits.Load(), "%T", c)
		r.noteWaits([]session.Command{&session.Acquire{Wait: time.Second}}, []session.Result{queued})
		require.EqualValues(t, 61*time.Second, r.waits.Load(), "who waits shorter ends nothing")
	}
}
