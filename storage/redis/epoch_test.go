package redis

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// losing is a pool of one slot on a primary whose replica does not hear any more
// what it writes, and is made the primary in its place.
type losing struct {
	*fleet
	primary, replica *server
	proxy            *proxy
	token            uint64
	lapses           time.Time // of the lease that the replica does not know
}

func lose(t *testing.T, quarantine, ttl time.Duration) *losing {
	l := &losing{primary: startRedis(t), replica: startRedis(t)}
	l.replica.do("REPLICAOF", "127.0.0.1", l.primary.port)
	l.proxy = newProxy(t, l.primary.addr())
	l.fleet = newFleet(t, l.primary, 2, func(c *Config) {
		c.URL, c.Quarantine = l.proxy.url(), quarantine
	})
	setup(t, l.node(0))
	l.must(0, &session.Open{NS: testNS, Session: "s1", Agent: "a", Digest: session.Digest{2}, IdleTTL: time.Hour})
	l.must(0, &session.PutPool{NS: testNS, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: "put"}})
	require.Eventually(t, func() bool {
		return l.replica.do("EXISTS", "{gov:test}:r:ptest/one", "{gov:test}:r:stest/s1").(int64) == 2
	}, 10*time.Second, 5*time.Millisecond, "the replica does not follow")
	l.replica.do("REPLICAOF", "NO", "ONE")

	r := l.must(0, l.acquire("lost", ttl))
	require.Equal(t, session.Admitted, r.Code)
	l.token, l.lapses = r.Grants[0].Token, time.Now().Add(ttl)
	for range 5 {
		l.must(1, &session.Increment{NS: testNS, Key: "k", Amount: 1, By: session.Maker{Client: "t", Request: fmt.Sprint("x", time.Now().UnixNano())}})
	}
	l.primary.kill()
	l.proxy.to(l.replica.addr())
	return l
}

func (l *losing) acquire(slot string, ttl time.Duration) session.Command {
	return &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "one", Weight: 1, TTL: ttl}
}

// The lease was acknowledged and is lost. Nobody else gets the slot while its
// holder may believe in it; afterwards everything from before has ended.
func TestRedisFailoverWithQuarantine(t *testing.T) {
	t.Parallel()
	l := lose(t, 2500*time.Millisecond, 2*time.Second)
	r := l.must(1, l.acquire("next", time.Minute))
	require.Equal(t, session.Admitted, r.Code)
	require.True(t, time.Now().After(l.lapses), "the slot was given out twice")
	require.Greater(t, r.Grants[0].Token, l.token, "tokens go on")
	b := l.must(0, &session.Begin{NS: testNS, Session: "s1", Call: "c", Digest: session.Digest{2}, Verdict: session.Verdict{Allow: true},
		Pools: []session.Want{{Pool: "policy/p2", Weight: 1}}, TTL: time.Minute, Tool: "t"})
	require.Equal(t, session.SessionClosed, b.Code, "counts of the session may be lost")
	stale := l.must(0, &session.Increment{NS: testNS, Key: "k", Amount: 1, By: session.Maker{Client: "t", Request: "01ARZ3NDEKTSV4RRFFQ69G5FAV"}})
	require.Equal(t, session.StaleID, stale.Code, "ids may be forgotten")
}

// The control: without quarantine the slot has two holders, so the test above
// can fail.
func TestRedisFailoverWithoutQuarantine(t *testing.T) {
	t.Parallel()
	l := lose(t, -1, 10*time.Minute)
	r := l.must(1, l.acquire("next", time.Minute))
	require.Equal(t, session.Admitted, r.Code)
	require.True(t, time.Now().Before(l.lapses), "the lost lease should still have been believed in")
}

// A primary has followed another that knew less, and is the primary again before any node
// has seen that other: its process is the same, and what it had to itself is lost. A node
// that comes later knows nothing but what the servers say.
func TestRedisPrimaryThatFollowedAnother(t *testing.T) {
	t.Parallel()
	s, other := startRedis(t), startRedis(t)
	r := s.open("one")
	acquire := func(slot string) session.Command {
		return &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "one", Weight: 1, TTL: time.Minute}
	}
	other.do("REPLICAOF", "127.0.0.1", s.port)
	one(t, r, &session.PutPool{NS: testNS, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: "put"}})
	require.Eventually(t, func() bool {
		return other.do("EXISTS", "{gov:test}:r:ptest/one").(int64) == 1
	}, 10*time.Second, 5*time.Millisecond, "the replica does not follow")
	other.do("REPLICAOF", "NO", "ONE")
	require.Equal(t, session.Admitted, one(t, r, acquire("lost")).Code)
	require.NoError(t, r.Close())
	s.do("REPLICAOF", "127.0.0.1", other.port)
	require.Eventually(t, func() bool {
		return parseInfo(s.do("INFO", "replication").(string))["master_link_status"] == "up"
	}, 30*time.Second, 5*time.Millisecond, "it does not follow")
	s.do("REPLICAOF", "NO", "ONE")
	answer := s.open("late").Apply(t.Context(), acquire("next"))[0]
	require.Equal(t, storage.NotApplied, answer.Outcome, "%v", answer.Result)
	require.ErrorContains(t, answer.Err, "quarantine")
}

// A replica is promoted that has half of a restore, which was cut off there or came to its
// end elsewhere. No quarantine makes that half a whole: nothing is served until a snapshot
// is restored again, and then tokens are above those that were given out.
func TestRedisHalfARestoreIsPromoted(t *testing.T) {
	t.Parallel()
	for name, cutOff := range map[string]bool{"cut off": true, "acknowledged": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, replica := startRedis(t), startRedis(t)
			replica.do("REPLICAOF", "127.0.0.1", s.port)
			r := s.open("one")
			setup(t, r)
			var snapshot bytes.Buffer
			require.NoError(t, r.Save(t.Context(), &snapshot))
			record := r.place(testNS).Record(session.PoolKey(testNS, "a"))
			exists := func(s *server, n int64) func() bool {
				return func() bool { return s.do("EXISTS", record) == n }
			}
			require.Eventually(t, exists(replica, 1), 10*time.Second, 5*time.Millisecond, "the replica does not follow")
			promoted := false
			ctx := watched(t, r, func(redis.Cmder) {
				if promoted || exists(s, 1)() {
					return
				}
				promoted = true
				require.Eventually(t, exists(replica, 0), 10*time.Second, 5*time.Millisecond, "the replica does not follow")
				replica.do("REPLICAOF", "NO", "ONE")
				if cutOff {
					require.NoError(t, r.client.Close())
				}
			}, nil)
			err := r.Restore(ctx, bytes.NewReader(snapshot.Bytes()))
			require.True(t, promoted)
			acquire := &session.Acquire{NS: testNS, Client: "w", Slot: "l", Pool: "a", Weight: 1, TTL: time.Minute}
			var before session.Result
			if cutOff {
				require.ErrorContains(t, err, "nothing is served until it is repeated")
			} else {
				require.NoError(t, err)
				before = one(t, r, acquire)
				require.Equal(t, session.Admitted, before.Code)
			}

			late := replica.open("late", func(c *Config) { c.Quarantine = -1 }) // it would be over at once
			for range 3 {
				require.ErrorContains(t, late.Ready(t.Context()), "restore it again")
				require.Equal(t, storage.NotApplied, late.Apply(t.Context(), acquire)[0].Outcome)
				late.domain("").beat(t.Context())
			}
			require.NoError(t, late.Restore(t.Context(), bytes.NewReader(snapshot.Bytes())))
			after := one(t, late, acquire)
			require.Equal(t, session.Admitted, after.Code)
			if !cutOff {
				require.Greater(t, after.Grants[0].Token, before.Grants[0].Token)
			}
			sound(t, replica, late)
		})
	}
}

// A node of which nobody asks anything notices by its next beat that the data is older than
// what it has seen, whoever writes what meanwhile.
func TestRedisIdleNodeNoticesOlderData(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	for i := range 3 {
		one(t, r, count("w", fmt.Sprint(i)))
	}
	s.do("SET", "{gov}:clock", s.do("GET", "{gov}:clock").(string)[:20]+"1")
	r.domain("").beat(t.Context())
	require.ErrorContains(t, r.Ready(t.Context()), "quarantine")
}

// Emptied, or a record removed by hand: noticed, never taken for a fresh start.
func TestRedisDataIsGone(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(s *server){
		"everything": func(s *server) { s.do("FLUSHALL") },
		"the epoch":  func(s *server) { s.do("DEL", "{gov}:epoch") },
		"the clock":  func(s *server) { s.do("DEL", "{gov}:clock") },
		"a pool":     func(s *server) { s.do("DEL", "{gov:test}:r:ptest/a") },
		"the latest changes": func(s *server) { // the clock is as in an older data set
			s.do("SET", "{gov}:clock", s.do("GET", "{gov}:clock").(string)[:20]+"1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			const quarantine = 3 * time.Second
			r := s.open("one", func(c *Config) { c.Quarantine = quarantine })
			f := &fleet{t: t, nodes: []*Store{r}}
			setup(t, r)
			acquire := func(slot string) *session.Acquire {
				return &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "a", Weight: 1, TTL: time.Second}
			}
			first := f.must(0, acquire("1"))
			require.Equal(t, session.Admitted, first.Code)
			began := time.Now()
			remove(s)
			// A node that comes later is held to it as well.
			ctx, cancel := context.WithTimeout(t.Context(), quarantine)
			defer cancel()
			require.Eventually(t, func() bool {
				_, _, err := storage.One(ctx, r, acquire("2"))
				return err != nil
			}, 30*time.Second, time.Millisecond)
			late := s.open("late", func(c *Config) { c.Quarantine = quarantine })
			_, err := late.Get(t.Context(), session.PoolKey(testNS, "a"), storage.Latest)
			require.ErrorAs(t, err, new(*storage.ReadError))
			require.Contains(t, err.Error(), "quarantine")

			f.must(0, &session.PutPool{NS: testNS, Pool: "a", Slots: 1, By: session.Maker{Client: "w", Request: "again"}})
			require.GreaterOrEqual(t, time.Since(began), quarantine-300*time.Millisecond)
			next := f.must(0, acquire("3"))
			require.Equal(t, session.Admitted, next.Code)
			require.Greater(t, next.Grants[0].Token, first.Grants[0].Token)
		})
	}
}

// A clock that jumps by an hour ends no lease: that of a node adds half a second
// at most, that of Redis is not looked at.
func TestRedisClockJumps(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]time.Duration{"forwards": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			var ahead clock
			start := time.Now()
			r := s.open("one", func(c *Config) {
				c.monotonic = func() time.Duration { return time.Since(start) + ahead.now() }
			})
			two := s.open("two")
			setup(t, r)
			f := &fleet{t: t, nodes: []*Store{r}}
			f.must(0, &session.Acquire{NS: testNS, Client: "w", Slot: "1", Pool: "a", Weight: 1, TTL: 30 * time.Second})
			before, err := two.Get(t.Context(), session.PoolKey(testNS, "a"), storage.Latest)
			require.NoError(t, err)
			ahead.set(jump)
			f.must(0, &session.Increment{NS: testNS, By: session.Maker{Client: "w"}, Key: "k", Amount: 1})
			after, err := two.Get(t.Context(), session.PoolKey(testNS, "a"), storage.Latest)
			require.NoError(t, err)
			require.Len(t, after.Record.(*session.Pool).Leases, 1)
			require.Less(t, after.Now-before.Now, time.Since(start)+maxAhead+beatEvery)
			// Time goes on, on this node as well.
			require.Eventually(t, func() bool {
				f, err := r.Get(t.Context(), session.PoolKey(testNS, "a"), storage.Latest)
				return err == nil && f.Now > after.Now+time.Second
			}, 10*time.Second, 20*time.Millisecond)
			require.NotContains(t, s.do("INFO", "commandstats"), "cmdstat_time:", "something looks at the clock of Redis")
		})
	}
}

// After a quarantine no pool gives out a token that was given out before, also one
// that is made anew.
func TestRedisTokensAfterQuarantine(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one", func(c *Config) { c.Quarantine = -1 })
	f := &fleet{t: t, nodes: []*Store{r}}
	setup(t, r)
	s.do("DEL", "{gov}:epoch")
	f.must(0, count("c", "1"))
	ready(t, r)
	require.Eventually(t, func() bool {
		x, err := r.Get(t.Context(), session.NamespaceKey(testNS), storage.Latest)
		return err == nil && x.Record != nil && x.Record.(*session.Namespace).TokenFloor == uint64(r.domain("").current().generation)<<40 &&
			r.domain("").current().generation > 0
	}, 30*time.Second, 5*time.Millisecond)
}

// What names the data is known as long as the node runs, also while what answers is
// no primary: decisions are named by it, those that fail as well.
func TestRedisDataIDStaysKnown(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	id := r.DataID(testNS)
	require.NotEmpty(t, id)
	s.do("REPLICAOF", "127.0.0.1", "1")
	notReady(t, r, "is a slave")
	require.Equal(t, id, r.DataID(testNS))
}

// In a Redis Cluster each namespace has a name of its own, which all nodes say that
// have looked at it, whether they have written there or not.
func TestRedisClusterDataID(t *testing.T) {
	t.Parallel()
	all := startCluster(t)
	one, two := openCluster(t, all, "one"), openCluster(t, all, "two")
	names := map[string]bool{}
	for _, ns := range []string{"a", "b"} {
		require.Empty(t, one.DataID(ns))
		_, _, err := storage.One(t.Context(), one, set(ns, "k", time.Hour))
		require.NoError(t, err)
		names[one.DataID(ns)] = true
		_, err = two.Get(t.Context(), session.CounterKey(ns, "k"), storage.Latest)
		require.NoError(t, err)
		require.Equal(t, one.DataID(ns), two.DataID(ns))
	}
	require.Len(t, names, 2)
	require.NotContains(t, names, "")
}
