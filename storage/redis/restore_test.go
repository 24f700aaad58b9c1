package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
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
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	require.NoError(t, r.Ready(t.Context()), "it is refused before anything is stopped for it")
	require.EqualValues(t, 7, valueOf(t, r, "k"))

	_, err = s.open("three").Get(t.Context(), session.AccessKey(testNS), storage.Latest)
	require.Error(t, err)
	err = r.Restore(t.Context(), bytes.NewReader(snapshot.Bytes()))
	require.ErrorContains(t, err, "who may do what in the namespace test is damaged", "it is set aside by now")
	require.NoError(t, r.Drop(t.Context(), session.AccessKey(testNS)))
	require.NoError(t, r.Restore(t.Context(), bytes.NewReader(snapshot.Bytes())), "somebody has given it up")
	require.NoError(t, r.Ready(t.Context()))
	sound(t, s, r)
}

// Lists of records may be what was lost: what was in them is replaced all the same.
func TestRedisRestoreWhereAListIsGone(t *testing.T) {
	t.Parallel()
	for _, list := range []string{"{gov:test}:x:k", "{gov:test}:x:c", "{gov:test}:counts", "{gov}:namespaces"} {
		t.Run(list, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			r := s.open("one")
			one(t, r, count("w", "kept"))
			var snapshot bytes.Buffer
			require.NoError(t, r.Save(t.Context(), &snapshot))
			one(t, r, count("w", "undone"))
			one(t, r, add("k", "w"))
			one(t, r, set("gone", "k", time.Hour))
			require.EqualValues(t, 1, s.do("DEL", list))
			require.NoError(t, r.Restore(t.Context(), &snapshot))
			sound(t, s, r)
			require.Empty(t, counters(t, r, "gone"))
			require.True(t, one(t, r, count("w", "kept")).Repeat)
			require.False(t, one(t, r, count("w", "undone")).Repeat, "it is remembered, and was taken back")
			one(t, r, set("gone", "k", time.Hour))
			sound(t, s, r)
		})
	}
}

// Somebody was saving the state that is replaced, and holds changes up until his time is
// over.
func TestRedisRestoreWhileChangesAreHeldUp(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	s.do("SET", "{gov}:frozen", "another", "PX", 500)
	require.NoError(t, r.Restore(t.Context(), bytes.NewReader(snapshotOf(t, testNS, "restored"))))
	require.Equal(t, []string{"restored"}, counters(t, r, testNS))
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

// snapshotOf returns a snapshot of a state in which counters stand.
func snapshotOf(t *testing.T, ns string, names ...string) []byte {
	t.Helper()
	m := storage.NewMemory(nil)
	defer m.Close()
	for _, name := range names {
		_, _, err := storage.One(t.Context(), m, set(ns, name, time.Hour))
		require.NoError(t, err)
	}
	var b bytes.Buffer
	require.NoError(t, m.Save(t.Context(), &b))
	return b.Bytes()
}

// Another node makes namespaces while one restores, before some steps of it, and goes on
// to write in those that it had made before, and in one that there was. What it is told
// to have written is there afterwards with all of its namespace, or its namespace is
// empty, as what was restored; and nothing survives that was written before something
// that does not.
func TestRedisClusterRestoreWhileNamespacesAreMade(t *testing.T) {
	t.Parallel()
	all := startCluster(t, "--appendfsync", "no")
	r, other := openCluster(t, all, "restores"), openCluster(t, all, "makes")
	write := func(ns, name string) bool {
		return other.Apply(t.Context(), set(ns, name, time.Hour))[0].Outcome == storage.Applied
	}
	require.True(t, write("empty", "replaced"))
	const most = 4
	gone, stays := 0, 0
	for from := 0; ; from += 2 + from {
		one(t, other, set("old", "replaced", time.Hour))
		var made [][]string // what was acknowledged in each, in order
		old, step := -1, 0  // the last that was made before a write in the namespace that there was
		name := func(i int) string { return fmt.Sprint("new", from, "-", i) }
		ctx := watched(t, r, func(redis.Cmder) {
			i := len(made)
			if step++; step <= from || i == most {
				return
			}
			made = append(made, nil)
			for _, k := range []string{"first", "second"} {
				require.True(t, write(name(i), k), "it knows nothing of a restore")
				made[i] = append(made[i], k)
			}
			if i > 0 && write(name(i-1), "third") {
				made[i-1] = append(made[i-1], "third")
			}
			if write("old", name(i)) {
				old = i
			}
		}, nil)
		require.NoError(t, r.Restore(ctx, bytes.NewReader(snapshotOf(t, "old", "restored"))))
		for _, node := range []*Store{r, other} {
			require.Equal(t, []string{"restored"}, counters(t, node, "old"))
			require.Empty(t, counters(t, node, "empty"))
		}
		first := len(made) // that survives
		for i, want := range made {
			for _, node := range []*Store{r, other} {
				names := counters(t, node, name(i))
				if len(names) == 0 {
					require.Equal(t, len(made), first, "from step %d: %s is gone, and what was made before it is not", from, name(i))
					continue
				}
				require.Equal(t, want, names, name(i))
				first = min(first, i)
			}
			require.True(t, write(name(i), "after"))
			require.Equal(t, epochOpen, r.place(name(i)).d.current().state)
		}
		require.Greater(t, first, old, "from step %d: it was made before a write that is undone", from)
		gone, stays = gone+first, stays+len(made)-first
		if len(made) == 0 {
			break
		}
	}
	t.Logf("of the namespaces that were made %d are gone and %d stay", gone, stays)
	require.Positive(t, gone)
	require.Positive(t, stays)
}

// Of two restores at once one is told that it was done, if any is, and its state is
// there: whichever step of the one the other comes before.
func TestRedisTwoRestoresAtOnce(t *testing.T) {
	t.Parallel()
	s := startRedis(t, "--appendfsync", "no")
	a, b := s.open("a"), s.open("b")
	mine, others := snapshotOf(t, testNS, "a1", "a2", "a3"), snapshotOf(t, testNS, "b1", "b2")
	for n := 0; ; n++ {
		left, came := n, false
		ctx := watched(t, a, func(redis.Cmder) {
			if left == 0 {
				came = true
				require.NoError(t, b.Restore(t.Context(), bytes.NewReader(others)))
			}
			left--
		}, nil)
		err := a.Restore(ctx, bytes.NewReader(mine))
		want := []string{"b1", "b2"}
		if err == nil {
			want = []string{"a1", "a2", "a3"}
		}
		for _, node := range []*Store{a, b} {
			require.Equal(t, want, counters(t, node, testNS), "before step %d: %v", n, err)
		}
		sound(t, s, b)
		if !came {
			require.NoError(t, err)
			require.Greater(t, n, 10)
			return
		}
	}
}

// A node ends a quarantine while another restores, before whichever step of it: nothing
// that it would write of the old records is left beside the new ones.
func TestRedisRestoreWhileAQuarantineEnds(t *testing.T) {
	t.Parallel()
	s := startRedis(t, "--appendfsync", "no")
	long := func(c *Config) { c.Quarantine = time.Hour }
	a, b := s.open("a", long), s.open("b", long)
	restored := snapshotOf(t, testNS, "restored")
	d := a.domain("")
	for n := 0; ; n++ {
		one(t, b, set(testNS, "old", time.Hour))
		one(t, b, count("w", fmt.Sprint("old", n)))
		require.NoError(t, d.ready(t.Context()))
		require.NoError(t, d.lost(t.Context(), d.current(), "a test says so"))
		require.Equal(t, epochShut, d.current().state)
		left, came := n, false
		ctx := watched(t, a, func(redis.Cmder) {
			if left == 0 {
				came = true
				require.NoError(t, b.Restore(t.Context(), bytes.NewReader(restored)))
			}
			left--
		}, nil)
		err := a.recover(ctx, d, d.current())
		sound(t, s, b)
		if !came {
			require.NoError(t, err)
			require.Greater(t, n, 10)
			require.Eventually(t, func() bool { return b.Ready(t.Context()) == nil }, 30*time.Second, 10*time.Millisecond, "it hears of it soon")
			return
		}
		require.NoError(t, b.Ready(t.Context()), "before step %d", n)
		require.Error(t, err, "before step %d", n)
		require.Equal(t, []string{"restored"}, counters(t, b, testNS), "before step %d", n)
	}
}

// A restore is cut off before whichever step of it, or overtaken there by another: what was
// revoked since the snapshot stays revoked by the one that comes to its end, and what
// only the snapshot knows is as that says.
func TestRedisRestoreKeepsWhatIsRevoked(t *testing.T) {
	t.Parallel()
	s := startRedis(t, "--appendfsync", "no")
	b := s.open("b")
	deny := func(ns, subject string) *session.Deny {
		return &session.Deny{NS: ns, By: session.Maker{Client: "w"}, Denied: session.DeniedSubject{Subject: subject}}
	}
	one(t, b, set(testNS, "k", time.Hour))
	one(t, b, deny(testNS, "before"))
	var snapshot bytes.Buffer
	require.NoError(t, b.Save(t.Context(), &snapshot))
	one(t, b, deny(testNS, "since"))
	for name, come := range map[string]func(a *Store){
		"cut off":   func(a *Store) { require.NoError(t, a.client.Close()) },
		"overtaken": func(*Store) { require.NoError(t, b.Restore(t.Context(), bytes.NewReader(snapshot.Bytes()))) },
	} {
		for n := 0; ; n++ {
			a, left, came := s.open("a"), n, false
			ctx := watched(t, a, func(redis.Cmder) {
				if left == 0 {
					came = true
					come(a)
				}
				left--
			}, nil)
			err := a.Restore(ctx, bytes.NewReader(snapshot.Bytes()))
			if name == "cut off" && err != nil {
				require.NoError(t, b.Restore(t.Context(), bytes.NewReader(snapshot.Bytes())), "before step %d", n)
			}
			found, err := b.Get(t.Context(), session.AccessKey(testNS), storage.Latest)
			require.NoError(t, err, "%s before step %d", name, n)
			require.True(t, found.Record.(*session.Access).Denies("before"), "%s before step %d", name, n)
			require.True(t, found.Record.(*session.Access).Denies("since"), "%s before step %d", name, n)
			require.Equal(t, []string{"k"}, counters(t, b, testNS))
			sound(t, s, b)
			if !came {
				require.Greater(t, n, 20)
				break
			}
		}
	}
}

// Records of who may do what may have fallen out of their list, or be in it and gone:
// what there is of them is kept, and nothing is in the way of a restore.
func TestRedisRestoreKeepsWhatIsRevokedAndNotListed(t *testing.T) {
	t.Parallel()
	denied := func(ns string) *session.Deny {
		return &session.Deny{NS: ns, By: session.Maker{Client: "w"}, Denied: session.DeniedSubject{Subject: "x"}}
	}
	for lose, kept := range map[string]bool{"{gov:test}:x:w": true, "{gov:test}:counts": true, "{gov}:namespaces": true, "{gov:test}:r:wtest/": false} {
		t.Run(lose, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			r := s.open("one")
			one(t, r, set(testNS, "k", time.Hour))
			var snapshot bytes.Buffer
			require.NoError(t, r.Save(t.Context(), &snapshot))
			one(t, r, denied(testNS))
			require.EqualValues(t, 1, s.do("DEL", lose))
			require.NoError(t, r.Restore(t.Context(), &snapshot))
			found, err := r.Get(t.Context(), session.AccessKey(testNS), storage.Latest)
			require.NoError(t, err)
			x, _ := found.Record.(*session.Access)
			require.Equal(t, kept, x.Denies("x"))
			one(t, r, denied(testNS))
			sound(t, s, r)
		})
	}
}

// Whoever asked for a restore may go away in the midst of it: it comes to its end.
func TestRedisRestoreGoesOnWithoutWhoAsked(t *testing.T) {
	t.Parallel()
	s := startRedis(t, "--appendfsync", "no")
	r := s.open("one")
	for n := 0; ; n++ {
		one(t, r, set(testNS, "replaced", time.Hour))
		left := n
		var leave context.CancelFunc
		watching := watched(t, r, func(redis.Cmder) {
			if left == 0 {
				leave()
			}
			left--
		}, nil)
		ctx, cancel := context.WithCancel(watching)
		leave = cancel
		err := r.Restore(ctx, bytes.NewReader(snapshotOf(t, testNS, "restored")))
		leave()
		want := []string{"restored"}
		if storage.OutcomeOf(err) == storage.NotApplied {
			want = []string{"replaced"}
		} else {
			require.NoError(t, err, "before step %d", n)
		}
		require.Equal(t, want, counters(t, r, testNS), "before step %d", n)
		if left >= 0 {
			require.Greater(t, n, 20)
			return
		}
	}
}

// A namespace whose name is gone from the list of all, which lies elsewhere, is replaced
// with the others by a node that knows it.
func TestRedisClusterRestoreOfWhatIsNotListed(t *testing.T) {
	t.Parallel()
	all := startCluster(t)
	r := openCluster(t, all, "one")
	one(t, r, set("unlisted", "k", time.Hour))
	serves(t, all, r.keys.Namespaces()).do("DEL", r.keys.Namespaces())
	require.NoError(t, r.Restore(t.Context(), bytes.NewReader(snapshotOf(t, testNS, "restored"))))
	one(t, r, set("unlisted", "new", time.Hour))
	require.Equal(t, []string{"new"}, counters(t, r, "unlisted"))
	require.Equal(t, []string{"restored"}, counters(t, r, testNS))
}

// A snapshot is of all namespaces, or none is made: also if this node cannot ask for those
// that it does not know.
func TestRedisClusterSnapshotKnowsAll(t *testing.T) {
	t.Parallel()
	all := startCluster(t)
	r := openCluster(t, all, "one")
	one(t, openCluster(t, all, "two"), set("others", "k", time.Hour))
	failed := false
	ctx := watchedBy(t, r, spy{refuse: func(cmd redis.Cmder) error {
		if failed || cmd.Name() != "smembers" {
			return nil
		}
		failed = true
		return errors.New("for once")
	}})
	var b bytes.Buffer
	if err := r.Save(ctx, &b); err == nil {
		state, err := session.ReadSnapshot(&b)
		require.NoError(t, err)
		require.NotNil(t, state.Stored(session.CounterKey("others", "k")))
	}
	require.True(t, failed)
}
