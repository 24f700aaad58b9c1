package redis

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// copyFiles keeps the files of a server as they are.
func copyFiles(s *server) {
	require.NoError(s.t, exec.Command("cp", "-r", s.dir, s.dir+".copy").Run())
}

// backToCopy has it start again with the files that were kept.
func backToCopy(s *server) {
	s.kill()
	require.NoError(s.t, os.RemoveAll(s.dir))
	require.NoError(s.t, os.Rename(s.dir+".copy", s.dir))
	s.start()
}

// A node has been given a slot and is cut off; what it wrote is lost; others, who
// knew less, serve on and write more than it knew. When it comes back it notices.
func TestRedisLossThatOnlyOneNodeKnowsOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		keep func(s *server) // what there is now is what comes back
		lose func(s *server)
	}{
		"restarted with an older file": {
			keep: copyFiles,
			lose: backToCopy,
		},
		"restarted twice with an older file": {
			keep: copyFiles,
			lose: func(s *server) {
				backToCopy(s)
				between := s.open("between") // adopts the first restart
				serve(s.t, between, "between")
				s.kill()
				s.start()
			},
		},
		"loaded from an older dump in place": {
			args: []string{"--enable-debug-command", "yes"},
			keep: func(s *server) { s.do("SAVE") },
			lose: func(s *server) { s.do("DEBUG", "RELOAD", "NOSAVE") },
		},
		"emptied, and filled from a copy": {
			keep: func(s *server) {
				copied := filepath.Join(s.dir, "copied")
				s.do("SAVE")
				require.NoError(s.t, exec.Command("cp", filepath.Join(s.dir, "dump.rdb"), copied).Run())
			},
			args: []string{"--enable-debug-command", "yes"},
			lose: func(s *server) {
				s.do("FLUSHALL")
				require.NoError(s.t, exec.Command("cp", filepath.Join(s.dir, "copied"), filepath.Join(s.dir, "dump.rdb")).Run())
				s.do("DEBUG", "RELOAD", "NOSAVE")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t, c.args...)
			p := newProxy(t, s.addr())
			quarantine := func(cfg *Config) { cfg.Quarantine = 3 * time.Second }
			away := s.open("away", quarantine, func(cfg *Config) { cfg.URL = p.url() })
			one(t, away, &session.PutPool{NS: testNS, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: "put"}})
			c.keep(s)
			lost := one(t, away, &session.Acquire{NS: testNS, Client: "w", Slot: "lost", Pool: "one", Weight: 1, TTL: time.Minute})
			require.Equal(t, session.Admitted, lost.Code)
			p.to("127.0.0.1:1")
			knew := away.domain("").clock.swaps()
			c.lose(s)

			here := s.open("here", quarantine)
			serve(t, here, "here")
			second := one(t, here, &session.Acquire{NS: testNS, Client: "w", Slot: "second", Pool: "one", Weight: 1, TTL: time.Minute})
			require.Equal(t, session.Admitted, second.Code, "this node cannot know")
			for i := 0; here.domain("").clock.swaps() <= knew; i++ {
				serve(t, here, fmt.Sprint("more", i))
			}

			p.to(s.addr())
			notReady(t, here, "quarantine for another")
			ready(t, here)
			ready(t, away)
			next := (&fleet{t: t, nodes: []*Store{away, here}}).must(0,
				&session.Acquire{NS: testNS, Client: "w", Slot: "third", Pool: "one", Weight: 1, TTL: time.Minute})
			require.Equal(t, session.Admitted, next.Code, "the leases of both have ended")
			require.Greater(t, next.Grants[0].Token, max(lost.Grants[0].Token, second.Grants[0].Token))
		})
	}
}

// serve makes a change through a node that may still be looking for Redis.
func serve(t testing.TB, r *Store, request string) {
	require.Eventually(t, func() bool {
		_, _, err := storage.One(context.Background(), r, &session.Increment{NS: testNS, Key: "served", Amount: 1, By: session.Maker{Client: "t", Request: request}})
		return err == nil
	}, 30*time.Second, time.Millisecond)
}

// What Redis has evicted is never taken for what never was: quarantine follows,
// and what is left of the data is whole afterwards.
func TestRedisEvicted(t *testing.T) {
	t.Parallel()
	acquire := func(slot string) session.Command {
		return &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "a", Weight: 1, TTL: time.Minute}
	}
	again := &session.Increment{NS: testNS, Key: "k", Amount: 1, By: session.Maker{Client: "w", Request: "r1"}}
	put := &session.PutPool{NS: testNS, Pool: "a", Slots: 1, By: session.Maker{Client: "w", Request: "again"}}
	for name, c := range map[string]struct {
		evict func(s *server, r *Store)
		then  session.Command // of a node that comes afterwards; nil: a node looks by itself
	}{
		"the parts of ids": {func(s *server, r *Store) {
			for part := range session.ForgottenParts {
				s.do("DEL", r.place(testNS).Part(session.ClientKey(testNS, "w"), part))
			}
		}, again},
		"the index of pools":          {func(s *server, r *Store) { s.do("DEL", "{gov:test}:x:p") }, acquire("l2")},
		"the index of pools, unasked": {func(s *server, r *Store) { s.do("DEL", "{gov:test}:x:p") }, nil},
		"the index of pools and the pool": {func(s *server, r *Store) {
			s.do("DEL", "{gov:test}:x:p", "{gov:test}:r:ptest/a")
		}, put},
		"a name of the index, and the pool": {func(s *server, r *Store) {
			s.do("ZREM", "{gov:test}:x:p", "a")
			s.do("DEL", "{gov:test}:r:ptest/a")
		}, put},
		"the counts of names": {func(s *server, r *Store) { s.do("DEL", "{gov:test}:counts") }, put},
		"the counts, the index and the pools": {func(s *server, r *Store) {
			s.do("DEL", "{gov:test}:counts", "{gov:test}:x:p", "{gov:test}:r:ptest/a", "{gov:test}:r:ptest/b")
		}, put},
		"the list of namespaces":          {func(s *server, r *Store) { s.do("DEL", "{gov}:namespaces") }, put},
		"the list of namespaces, unasked": {func(s *server, r *Store) { s.do("DEL", "{gov}:namespaces") }, nil},
		"the epoch and the clock":         {func(s *server, r *Store) { s.do("DEL", "{gov}:epoch", "{gov}:clock") }, put},
		"all but records and indexes": {func(s *server, r *Store) {
			s.do("DEL", "{gov}:epoch", "{gov}:clock", "{gov}:due", "{gov}:marks", "{gov:test}:counts")
		}, put},
		"the clock is damaged": {func(s *server, r *Store) { s.do("SET", "{gov}:clock", "12 o'clock") }, put},
		"a record":             {func(s *server, r *Store) { s.do("DEL", "{gov:test}:r:ptest/a") }, put},
		"the marks":            {func(s *server, r *Store) { s.do("DEL", "{gov}:marks") }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			risky := func(c *Config) { c.AcceptRisk, c.Quarantine = []string{RiskEviction}, 3*time.Second }
			r := s.open("one", risky)
			setup(t, r)
			first := one(t, r, again)
			require.False(t, first.Repeat)
			held := one(t, r, acquire("l1"))
			require.Equal(t, session.Admitted, held.Code)
			if c.then != nil {
				require.NoError(t, r.Close()) // nobody is left who knows anything
			}
			c.evict(s, r)
			late := r
			if c.then != nil {
				late = s.open("late", risky)
				answer := late.Apply(t.Context(), c.then)[0]
				require.Equal(t, storage.NotApplied, answer.Outcome, "%v", answer.Result)
				require.ErrorContains(t, answer.Err, "quarantine")
			} else {
				late.verify(t.Context())
				notReady(t, late, "quarantine")
			}
			ready(t, late)
			f := &fleet{t: t, nodes: []*Store{late}}
			f.must(0, &session.PutPool{NS: testNS, Pool: "a", Slots: 1, By: session.Maker{Client: "z", Request: "anew"}})
			next := f.must(0, acquire("l9"))
			require.Equal(t, session.Admitted, next.Code, "the lease from before has ended")
			require.Greater(t, next.Grants[0].Token, held.Grants[0].Token)
			require.EqualValues(t, late.domain("").current().generation, next.Grants[0].Token>>40)
			require.Equal(t, session.Released, f.must(0, &session.Release{NS: testNS, Client: "w", Slot: "l9", Pool: "a", Token: next.Grants[0].Token}).Code)
			sound(t, s, late)
		})
	}
}

// A node that knows a record does not read it again before it swaps: whichever kind
// of record was evicted meanwhile, what it decides on it is not applied, and it is
// not taken for one that somebody has removed.
func TestRedisEvictedUnderWhoKnowsIt(t *testing.T) {
	t.Parallel()
	by := func(request string) session.Maker { return session.Maker{Client: "w", Request: request} }
	acquire := func(slot string) session.Command {
		return &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "p", Weight: 1, TTL: time.Minute}
	}
	put := &session.PutPool{NS: testNS, Pool: "p", Slots: 9, By: by("put")}
	rate := &session.PutRate{NS: testNS, Rate: "r", Limit: 9, Per: time.Hour, By: by("rate")}
	take := func(id string) session.Command {
		return &session.TakeRate{NS: testNS, Client: "w", ID: id, Rate: "r", Cost: 1}
	}
	budget := func(request string) session.Command {
		return &session.PutBudget{NS: testNS, Budget: "b", Amount: 9, By: by(request)}
	}
	list := func(request string) session.Command {
		return &session.Append{NS: testNS, Key: "l", Items: []string{"x"}, TTL: time.Hour, By: by(request)}
	}
	for name, c := range map[string]struct {
		known []session.Command
		evict session.Key
		then  session.Command
	}{
		"a pool":                  {[]session.Command{put, acquire("1")}, session.PoolKey(testNS, "p"), acquire("2")},
		"a pool that is put anew": {[]session.Command{put, acquire("1")}, session.PoolKey(testNS, "p"), &session.PutPool{NS: testNS, Pool: "p", Slots: 1, By: by("anew")}},
		"a client":                {[]session.Command{put, acquire("1")}, session.ClientKey(testNS, "w"), acquire("1")},
		"a rate":                  {[]session.Command{rate, take("1")}, session.PoolKey(testNS, session.RatePool("r")), take("2")},
		"a counter":               {[]session.Command{add("k", "w")}, session.CounterKey(testNS, "k"), add("k", "w")},
		"a budget":                {[]session.Command{budget("1")}, session.BudgetKey(testNS, "b"), budget("2")},
		"a list":                  {[]session.Command{list("1")}, session.ListKey(testNS, "l"), list("2")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			r := s.open("one", func(c *Config) { c.AcceptRisk = []string{RiskEviction} })
			for _, cmd := range c.known {
				require.False(t, one(t, r, cmd).Code.Failure())
			}
			require.EqualValues(t, 1, s.do("DEL", r.place(testNS).Record(c.evict)))
			answer := r.Apply(t.Context(), c.then)[0]
			require.Equal(t, storage.NotApplied, answer.Outcome, "%v", answer.Result)
			require.ErrorContains(t, answer.Err, "quarantine")
		})
	}
}

// A node that has looked before a record was made knows that there is none. If it was
// made elsewhere and evicted, it is not taken for one that never was: neither is it
// made anew, nor is anybody told that there is none.
func TestRedisEvictedUnderWhoKnowsThatThereIsNone(t *testing.T) {
	t.Parallel()
	by := func(request string) session.Maker { return session.Maker{Client: "w", Request: request} }
	put := &session.PutPool{NS: testNS, Pool: "p", Slots: 1, By: by("put")}
	acquire := func(slot string) session.Command {
		return &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "p", Weight: 1, TTL: time.Minute}
	}
	for name, then := range map[string]session.Command{"made anew": put, "used": acquire("2")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			risky := func(c *Config) { c.AcceptRisk = []string{RiskEviction} }
			r, other := s.open("one", risky), s.open("other", risky)
			require.True(t, one(t, r, acquire("1")).Code.Failure())
			require.False(t, one(t, other, put).Code.Failure())
			require.Equal(t, session.Admitted, one(t, other, acquire("1")).Code)
			require.EqualValues(t, 1, s.do("DEL", r.place(testNS).Record(session.PoolKey(testNS, "p"))))
			answer := r.Apply(t.Context(), then)[0]
			require.Equal(t, storage.NotApplied, answer.Outcome, "%v", answer.Result)
			require.ErrorContains(t, answer.Err, "quarantine")
		})
	}
}

// sound looks whether indexes, counts, parts and what is due agree with the
// records.
func sound(t *testing.T, s *server, r *Store) {
	t.Helper()
	soundOf(t, r)
}

func soundOf(t testing.TB, r *Store) {
	t.Helper()
	wrong := ""
	for range 200 { // housekeeping may be at it
		if wrong = unsound(t, r); wrong == "" {
			return
		}
		rest(context.Background(), 20*time.Millisecond)
	}
	t.Fatal(wrong)
}

func unsound(t testing.TB, r *Store) string {
	ctx, c := context.Background(), r.client
	lists, err := r.lists(ctx, "")
	require.NoError(t, err)
	listed, parts := map[session.Key]bool{}, map[string]bool{}
	var due int64
	for _, l := range lists {
		p := r.place(l.ns)
		names := c.ZRange(ctx, p.Index(l.prefix.Kind()), 0, -1).Val()
		n, err := c.ZScore(ctx, p.Counts(), string(l.prefix.Kind())).Result()
		if err != redis.Nil { // none was ever there
			require.NoError(t, err)
		}
		if int(n) != len(names) {
			return fmt.Sprintf("the count of %s is %v of %d", p.Index(l.prefix.Kind()), n, len(names))
		}
		for _, name := range names {
			k := l.prefix + session.Key(name)
			listed[k] = true
			w := wire.Want{Key: k}
			if session.HasParts(k) {
				w.Parts = wire.AllParts
			}
			keys := wire.AppendParts([]string{p.Record(k)}, &p.Place, []wire.Want{w})
			values, err := c.MGet(ctx, keys...).Result()
			require.NoError(t, err)
			x := p.Entry(w, values[0], values[1:])
			if x.Bad != nil {
				return x.Bad.Error()
			}
			for _, key := range keys[1:] {
				parts[key] = true
			}
			if x.Due == 0 {
				continue
			}
			due++
			if at := c.ZScore(ctx, p.d.key("due"), string(k)).Val(); int64(at) != wire.ScoreOf(x.Due) {
				return fmt.Sprintf("%s is due at %d and stands at %v", k, wire.ScoreOf(x.Due), at)
			}
		}
	}
	d := r.domain("")
	found, err := r.scanRecords(ctx, d, wire.Kinds)
	require.NoError(t, err)
	for _, keys := range found {
		for _, k := range keys {
			if !listed[k] {
				return fmt.Sprintf("%s is not listed", k)
			}
		}
	}
	all := c.Scan(ctx, 0, "{"+r.cfg.Prefix+":*}:i?:*", 1000).Iterator()
	for all.Next(ctx) {
		if !parts[all.Val()] {
			return fmt.Sprintf("%s is of no record", all.Val())
		}
	}
	require.NoError(t, all.Err())
	if n := c.ZCard(ctx, d.key("due")).Val(); n != due+1 || c.ZScore(ctx, d.key("due"), wire.DueMark).Val() != wire.DueWhole {
		return fmt.Sprintf("%d records are due, and %d stand among those beside the mark", due, n-1)
	}
	return ""
}

// The list of what is due is evicted and nothing else: it is made anew, so that what has
// run out is settled, and nobody has to wait for that.
func TestRedisDueIsEvicted(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	at := clockAt(time.Minute)
	dueIsEvicted(t, []*server{s}, s.timed("one", at), at)
}

func TestRedisClusterDueIsEvicted(t *testing.T) {
	t.Parallel()
	all, at := startCluster(t), clockAt(time.Minute)
	dueIsEvicted(t, all, openCluster(t, all, "one", func(c *Config) { c.logTime = at.now }), at)
}

func dueIsEvicted(t *testing.T, all []*server, r *Store, at *clock) {
	one(t, r, set("other", "short", time.Minute))
	one(t, r, set(testNS, "short", time.Minute))
	one(t, r, set(testNS, "long", time.Hour))
	one(t, r, &session.PutPool{NS: testNS, Pool: "p", Slots: 1, Queue: 1, By: session.Maker{Client: "t", Request: "put"}})
	require.Equal(t, session.Admitted, one(t, r, &session.Acquire{NS: testNS, Client: "w", Slot: "held", Pool: "p", Weight: 1, TTL: time.Minute}).Code)
	ids := map[string]string{}
	for _, ns := range []string{"other", testNS} {
		d := r.place(ns).d
		ids[ns] = d.current().id
		primary := all[0]
		if len(all) > 1 {
			primary = serves(t, all, d.key("due"))
		}
		primary.do("DEL", d.key("due"))
	}
	if len(all) > 1 { // the list of namespaces is no help
		serves(t, all, r.keys.Namespaces()).do("DEL", r.keys.Namespaces())
	}
	at.pass(10 * time.Minute)
	listed := func(ns string, kind byte) int64 { return r.client.ZCard(t.Context(), r.place(ns).Index(kind)).Val() }
	require.Eventually(t, func() bool {
		for _, d := range r.allDomains() {
			r.settle(d)
		}
		p, err := r.client.Get(t.Context(), r.place(testNS).Record(session.PoolKey(testNS, "p"))).Result()
		require.NoError(t, err)
		x, err := wire.DecodeValue(session.PoolKey(testNS, "p"), p)
		require.NoError(t, err)
		return listed("other", session.KindCounter) == 0 && listed(testNS, session.KindCounter) == 1 && len(x.Record.(*session.Pool).Leases) == 0
	}, 30*time.Second, 10*time.Millisecond, "nobody sees to what has run out")
	for ns, id := range ids {
		require.Equal(t, id, r.place(ns).d.current().id, "a quarantine")
	}
	if len(all) == 1 {
		soundOf(t, r)
	}
}

// The list is evicted again before each step of making it anew: either all that is due
// is in it, or it is not taken for whole.
func TestRedisDueIsEvictedAgain(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.timed("one", clockAt(time.Minute))
	d := r.domain("")
	d.settling.Store(true) // its housekeeping looks away
	for _, ns := range []string{"a", "b"} {
		one(t, r, set(ns, "k", time.Hour))
	}
	whole := 0
	for n := 0; ; n++ {
		s.do("DEL", "{gov}:due")
		left := n
		ctx := watched(t, r, func(redis.Cmder) {
			if left == 0 {
				s.do("DEL", "{gov}:due")
			}
			left--
		}, nil)
		require.NoError(t, r.remakeDue(ctx, d))
		due := s.do("ZRANGE", "{gov}:due", 0, -1).([]any)
		if len(due) > 0 && due[0] == wire.DueMark {
			require.Len(t, due, 3, "before step %d", n)
			whole++
		}
		if left >= 0 {
			break
		}
	}
	require.GreaterOrEqual(t, whole, 2, "the first and the last")
	sound(t, s, r)
}

// Where everything is gone and nobody writes afterwards, quarantine ends all the same, and
// does not begin again: the list of namespaces is as empty as what it is of.
func TestRedisQuarantineOfNothingEnds(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	short := func(c *Config) { c.Quarantine = 3 * time.Second }
	nodes := []*Store{s.open("one", short), s.open("two", short), s.open("three", short)}
	setup(t, nodes[0])
	s.do("FLUSHALL")
	for _, r := range nodes {
		notReady(t, r, "quarantine")
	}
	for _, r := range nodes {
		ready(t, r)
	}
	id := nodes[0].domain("").current().id
	late := s.open("late", short) // it looks at everything that there is
	for _, r := range append(nodes, late) {
		ready(t, r)
		r.verify(t.Context())
		require.NoError(t, r.domain("").inspect(t.Context(), r.domain("").gate.Load()))
		require.Equal(t, id, r.domain("").current().id, "another quarantine")
	}
}

// Redis is emptied, and before any node notices one is started that knows of
// nothing and begins anew. Those that know better are not taken in: everything
// is in quarantine, and tokens go on above those from before.
func TestRedisBegunAnewIsNoticed(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	p := newProxy(t, s.addr())
	quarantine := func(c *Config) { c.Quarantine = 3 * time.Second }
	knows := s.open("knows", quarantine, func(c *Config) { c.URL = p.url() })
	f := &fleet{t: t, nodes: []*Store{knows}}
	acquire := func(slot string) session.Command {
		return &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "one", Weight: 1, TTL: time.Minute}
	}
	put := func(request string) session.Command {
		return &session.PutPool{NS: testNS, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: request}}
	}
	f.must(0, put("first"))
	held := f.must(0, acquire("held"))
	require.Equal(t, session.Admitted, held.Code)

	p.to("127.0.0.1:1") // it notices nothing
	s.do("FLUSHALL")
	anew := &fleet{t: t, nodes: []*Store{s.open("anew", quarantine)}}
	anew.must(0, put("second"))
	p.to(s.addr())
	notReady(t, anew.node(0), "quarantine for another")
	ready(t, anew.node(0))
	ready(t, knows)
	next := anew.must(0, acquire("next"))
	require.Equal(t, session.Admitted, next.Code)
	require.Greater(t, next.Grants[0].Token, held.Grants[0].Token, "the token is that of a holder who may still be at work")
}

// A member of a Redis Cluster has lost a namespace while no node ran. The list of
// namespaces lies on another, and says that there was one.
func TestRedisClusterNamespaceIsGone(t *testing.T) {
	t.Parallel()
	all := startCluster(t)
	quarantine := func(c *Config) { c.Quarantine = 3 * time.Second }
	r := openCluster(t, all, "before", quarantine)
	lists := serves(t, all, r.keys.Namespaces())
	ns, of := "", (*server)(nil)
	for _, ns = range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		if of = serves(t, all, r.keys.Tag(ns)); of != lists {
			break
		}
	}
	require.NotEqual(t, lists, of)
	put := func(request string) session.Command {
		return &session.PutPool{NS: ns, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: request}}
	}
	f := &fleet{t: t, nodes: []*Store{r}}
	f.must(0, put("first"))
	require.NoError(t, r.Close())
	of.do("FLUSHALL")
	after := &fleet{t: t, nodes: []*Store{openCluster(t, all, "after", quarantine)}}
	_, _, err := storage.One(t.Context(), after.node(0), put("second"))
	require.ErrorContains(t, err, "quarantine")
	require.Equal(t, session.Done, after.must(0, put("third")).Code)
	// One that there never was begins at once.
	one(t, after.node(0), &session.PutPool{NS: "new-" + ns, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: "put"}})
}
