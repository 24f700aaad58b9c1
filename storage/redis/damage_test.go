package redis

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

func set(ns, key string, ttl time.Duration) *session.Set {
	return &session.Set{NS: ns, Key: key, Value: session.Value{Number: true, N: 7}, TTL: ttl, By: session.Maker{Client: "w"}}
}

// counters lists the names of the counters of a namespace.
func counters(t *testing.T, r *Store, ns string) (names []string) {
	t.Helper()
	v, err := r.View(t.Context(), ns, storage.Latest)
	require.NoError(t, err)
	all, err := v.Find(session.Prefix(session.KindCounter, ns), "", 1000, nil)
	require.NoError(t, err)
	for _, e := range all {
		names = append(names, e.Key.Name())
	}
	return names
}

// ruin is what may stand in the place of a record of a counter.
var ruin = map[string]func(s *server, key string){
	"nonsense":   func(s *server, key string) { s.do("SET", key, "garbage") },
	"nothing":    func(s *server, key string) { s.do("SET", key, "") },
	"a list":     func(s *server, key string) { s.do("DEL", key); s.do("RPUSH", key, "x") },
	"of another": func(s *server, key string) { s.do("SET", key, s.do("GET", key[:len(key)-3]+"good")) },
	"cut off":    func(s *server, key string) { s.do("SET", key, s.do("GETRANGE", key, 0, -2)) },
	"a bit of the stamp": func(s *server, key string) {
		flip(s, key, 3)
	},
	"a bit of what is due": func(s *server, key string) { flip(s, key, wire.StampLen+5) },
	"a bit of its sum":     func(s *server, key string) { flip(s, key, wire.SumAt) },
	"a bit of its head":    func(s *server, key string) { flip(s, key, wire.HeadAt+5) },
}

func flip(s *server, key string, at int) {
	b := []byte(s.do("GET", key).(string))
	b[at] ^= 0x10
	s.do("SET", key, b)
}

// A damaged record is set aside: what is kept of it is what stood there. All else
// goes on without it, and what needs it is refused.
func TestRedisDamagedRecord(t *testing.T) {
	t.Parallel()
	const key = "{gov:test}:r:ktest/bad"
	bad := session.CounterKey(testNS, "bad")
	for name, damage := range ruin {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			registry := prometheus.NewRegistry()
			var at clock
			r := s.timed("one", &at)
			for _, k := range []string{"good", "bad", "short", "last"} {
				ttl := time.Hour
				if k == "short" {
					ttl = time.Minute
				}
				require.Equal(t, session.Done, one(t, r, set(testNS, k, ttl)).Code)
			}
			require.NoError(t, r.Close())
			before := s.do("DUMP", key)
			damage(s, key)
			damaged := s.do("DUMP", key)
			r = s.timed("two", &at, func(c *Config) { c.Registry = registry })

			// A round with one that needs it, and with others that do not.
			answers := r.Apply(t.Context(), add("good", "w"), add("bad", "w"), add("last", "w"))
			require.Equal(t, []storage.Outcome{storage.Applied, storage.NotApplied, storage.Applied}, []storage.Outcome{answers[0].Outcome, answers[1].Outcome, answers[2].Outcome})
			require.ErrorContains(t, answers[1].Err, key)
			_, err := r.Get(t.Context(), bad, storage.Latest)
			require.ErrorContains(t, err, "set aside")
			_, err = r.GetAll(t.Context(), bad, session.CounterKey(testNS, "good"))
			require.ErrorContains(t, err, "set aside")
			all, err := r.Asides(t.Context())
			require.NoError(t, err)
			require.Equal(t, []Aside{{bad, "{gov:test}:a:ktest/bad"}}, all)
			require.Equal(t, damaged, s.do("DUMP", all[0].Kept), "nothing of it is thrown away")
			metrics := metricsOf(t, registry)
			require.EqualValues(t, 1, metrics["gov_redis_damaged_total"])
			require.EqualValues(t, 1, metrics["gov_redis_aside"])

			at.set(10 * time.Minute)
			r.settle(r.domain(""))
			require.Equal(t, []string{"good", "last"}, counters(t, r, testNS), "housekeeping has removed the short one")
			require.Zero(t, s.do("ZCOUNT", "{gov}:due", 0, wire.ScoreReached(10*time.Minute)))
			var snapshot bytes.Buffer
			require.NoError(t, r.Save(t.Context(), &snapshot))
			m := storage.NewMemory(nil)
			defer m.Close()
			require.NoError(t, m.Restore(t.Context(), bytes.NewReader(snapshot.Bytes())))

			err = r.BringBack(t.Context(), bad)
			require.Equal(t, storage.NotApplied, storage.OutcomeOf(err), "it is still damaged: %v", err)
			s.do("DEL", all[0].Kept)
			s.do("RESTORE", all[0].Kept, 0, before)
			require.NoError(t, r.BringBack(t.Context(), bad))
			all, err = r.Asides(t.Context())
			require.NoError(t, err)
			require.Empty(t, all)
			require.EqualValues(t, 7, valueOf(t, r, "bad"))
			require.EqualValues(t, 8, one(t, r, add("bad", "w")).Value)

			damage(s, key)
			_, err = s.timed("three", &at).Get(t.Context(), bad, storage.Latest)
			require.Error(t, err)
			require.NoError(t, r.Drop(t.Context(), bad))
			require.Equal(t, []string{"good", "last"}, counters(t, r, testNS))
			require.Equal(t, session.Done, one(t, r, set(testNS, "bad", time.Hour)).Code)
			require.EqualValues(t, 7, valueOf(t, r, "bad"))
			require.ErrorIs(t, r.Drop(t.Context(), bad), storage.ErrInvalid, "it is not set aside")
			require.ErrorIs(t, r.BringBack(t.Context(), "nonsense"), storage.ErrInvalid)
			sound(t, s, r)
		})
	}
}

// To drop a damaged pool is to lose whom it had admitted.
func TestRedisDropOfAPool(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	quick := func(c *Config) { c.Quarantine = 3 * time.Second }
	r := s.open("one", quick)
	setup(t, r)
	acquire := func(slot string) *session.Acquire {
		return &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "a", Weight: 1, TTL: time.Minute}
	}
	held := one(t, r, acquire("1"))
	require.NoError(t, r.Close())
	flip(s, "{gov:test}:r:ptest/a", wire.HeadAt+7)
	r = s.open("two", quick)
	require.Equal(t, storage.NotApplied, r.Apply(t.Context(), acquire("2"))[0].Outcome)
	require.NoError(t, r.Drop(t.Context(), session.PoolKey(testNS, "a")))
	require.ErrorContains(t, r.Apply(t.Context(), acquire("2"))[0].Err, "quarantine")
	f := &fleet{t: t, nodes: []*Store{r}}
	f.must(0, &session.PutPool{NS: testNS, Pool: "a", Slots: 1, By: session.Maker{Client: "z", Request: "anew"}})
	next := f.must(0, acquire("3"))
	require.Equal(t, session.Admitted, next.Code)
	require.Greater(t, next.Grants[0].Token, held.Grants[0].Token)
	sound(t, s, r)
}

// Names that somebody has put among what is due are put where they belong.
func TestRedisDueIsPutRight(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	var at clock
	r := s.timed("one", &at)
	one(t, r, set(testNS, "lasting", 0))
	one(t, r, set(testNS, "timed", time.Hour))
	for _, name := range []string{"ktest/lasting", "ktest/timed", "ktest/nobody"} {
		s.do("ZADD", "{gov}:due", 0, name)
	}
	require.Eventually(t, func() bool {
		r.settle(r.domain(""))
		return s.do("ZCOUNT", "{gov}:due", 0, 0) == int64(0)
	}, 30*time.Second, time.Millisecond)
	sound(t, s, r)
}

// A part of ids that is damaged is not taken for an empty one, nor is it gone: the
// record is set aside, and comes back once the part is repaired.
func TestRedisDamagedPart(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	c := count("w", "id")
	require.False(t, one(t, r, c).Repeat)
	k, part, _ := session.IDOf(c)
	key := r.place(testNS).Part(k, part)
	require.NoError(t, r.Close())
	flip(s, key, 9)
	r = s.open("two")
	a := r.Apply(t.Context(), c, count("other", "id"))
	require.Equal(t, storage.NotApplied, a[0].Outcome, "%v", a[0].Result)
	require.ErrorContains(t, a[0].Err, key)
	require.Equal(t, 1, strings.Count(a[0].Err.Error(), "damaged"), "%v", a[0].Err)
	require.Equal(t, storage.Applied, a[1].Outcome)
	err := r.BringBack(t.Context(), k)
	require.ErrorIs(t, err, session.ErrDamaged)
	require.Equal(t, 1, strings.Count(err.Error(), "damaged"), "%v", err)
	flip(s, key, 9)
	require.NoError(t, r.BringBack(t.Context(), k))
	require.True(t, one(t, r, c).Repeat)
	require.EqualValues(t, 2, counted(t, r))
}

// A node that has the record at hand and not the part that it appends to finds
// out that the part is gone.
func TestRedisAppendToAPartThatIsGone(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one", func(c *Config) { c.Quarantine = 3 * time.Second })
	setup(t, r)
	client := "w"
	var gone, next *session.Increment
	for i := range 1000 {
		c := count(client, fmt.Sprint("id", i))
		if _, part, _ := session.IDOf(c); part != 3 {
			continue
		}
		if gone == nil {
			gone = c
		} else {
			next = c
			break
		}
	}
	one(t, r, gone)
	s.do("DEL", r.place(testNS).Part(session.ClientKey(testNS, client), 3))
	a := r.Apply(t.Context(), next)[0]
	require.Equal(t, storage.NotApplied, a.Outcome)
	require.ErrorContains(t, a.Err, "quarantine")
	ready(t, r)
	sound(t, s, r)
}

// One look settles all that is due, however much, with damage among it.
func TestRedisSettlesAll(t *testing.T) {
	t.Parallel()
	s := startRedis(t, "--appendfsync", "no")
	var at clock
	registry := prometheus.NewRegistry()
	r := s.timed("one", &at, func(c *Config) { c.Registry, c.Timeout = registry, time.Minute })
	each, spaces := rounds(1500, 25_000), 4
	for i := range spaces {
		var cmds []session.Command
		for j := range each {
			cmds = append(cmds, set(fmt.Sprint("ns", i), fmt.Sprint("k", j), time.Second))
		}
		for _, a := range r.Apply(t.Context(), cmds...) {
			require.NoError(t, a.Err)
		}
	}
	for j := 0; j < each; j += 100 {
		s.do("SET", fmt.Sprintf("{gov:ns0}:r:kns0/k%d", j), "garbage")
	}
	require.EqualValues(t, spaces*each, s.do("ZCOUNT", "{gov}:due", 0, "+inf"))
	at.set(time.Minute)
	// The node may be at it already.
	require.Eventually(t, func() bool {
		r.settle(r.domain(""))
		return s.do("ZCOUNT", "{gov}:due", 0, "+inf") == int64(0)
	}, 2*time.Minute, time.Millisecond)
	require.Empty(t, counters(t, r, "ns1"))
	all, err := r.Asides(t.Context())
	require.NoError(t, err)
	require.Len(t, all, (each+99)/100)
	require.Eventually(t, func() bool {
		m := metricsOf(t, registry)
		return m["gov_redis_due"] == 0 && m["gov_redis_aside"] == float64(len(all))
	}, 30*time.Second, 10*time.Millisecond)
	require.GreaterOrEqual(t, metricsOf(t, registry)["gov_redis_settled_total"], float64(spaces*each))
}

// No namespace waits for another that has much.
func TestInTurn(t *testing.T) {
	t.Parallel()
	many := make([]session.Key, 10_000)
	for i := range many {
		many[i] = session.CounterKey("many", fmt.Sprint(i))
	}
	few := []session.Key{session.CounterKey("few", "1"), session.CounterKey("few", "2"), session.CounterKey("few", "3")}
	pieces := inTurn(map[string][]session.Key{"many": many, "few": few}, 2)
	next, n := map[string]int{}, 0
	for i, p := range pieces {
		ns := p[0].Namespace()
		require.LessOrEqual(t, len(p), 2)
		if ns == "few" {
			require.LessOrEqual(t, i, 3, "it waits for the other")
		}
		from := map[string][]session.Key{"many": many, "few": few}[ns][next[ns]:]
		require.Equal(t, from[:len(p)], p, "each once, in order")
		next[ns], n = next[ns]+len(p), n+len(p)
	}
	require.Equal(t, len(many)+len(few), n)
}

// Nodes that read a namespace that never was leave nothing behind.
func TestRedisReadsWriteNothing(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	readsWriteNothing(t, s.open("one"), []*server{s})
}

func TestRedisClusterReadsWriteNothing(t *testing.T) {
	t.Parallel()
	all := startCluster(t)
	readsWriteNothing(t, openCluster(t, all, "one"), all)
}

func readsWriteNothing(t *testing.T, r *Store, all []*server) {
	keys := func() (n int) {
		for _, s := range all {
			for _, key := range s.do("KEYS", "*").([]any) {
				if strings.Contains(key.(string), "nobody") {
					n++
				}
			}
		}
		return n
	}
	domains := len(r.allDomains())
	for i := range 50 {
		ns := fmt.Sprint("nobody", i)
		for _, read := range []storage.Read{storage.Nearby, storage.Latest} {
			f, err := r.Get(t.Context(), session.PoolKey(ns, "p"), read)
			require.NoError(t, err)
			require.Nil(t, f.Record)
		}
		both, err := r.GetAll(t.Context(), session.PoolKey(ns, "p"), session.PoolKey(ns, "q"))
		require.NoError(t, err)
		require.Len(t, both, 2)
		v, err := r.View(t.Context(), ns, storage.Latest)
		require.NoError(t, err)
		found, err := v.Find(session.Prefix(session.KindPool, ns), "", 10, nil)
		require.NoError(t, err)
		require.Empty(t, found)
		_ = r.DataID(ns)
	}
	r.mu.Lock()
	places := len(r.places)
	r.mu.Unlock()
	require.Zero(t, places, "the node keeps what is not there")
	require.Len(t, r.allDomains(), domains, "the node keeps the time of what is not there")
	require.Zero(t, keys())
	_, _, err := storage.One(context.Background(), r, set("somebody", "k", time.Hour))
	require.NoError(t, err)
	f, err := r.Get(t.Context(), session.CounterKey("somebody", "k"), storage.Latest)
	require.NoError(t, err)
	require.NotNil(t, f.Record)
}

// keepGood sets a record aside, and puts what it was before it was damaged in the
// place of what is kept of it.
func keepGood(t *testing.T, s *server, r *Store, k session.Key) {
	t.Helper()
	p := r.place(k.Namespace())
	good := s.do("DUMP", p.Record(k))
	flip(s, p.Record(k), wire.HeadAt+5)
	_, err := r.Get(t.Context(), k, storage.Latest)
	require.ErrorContains(t, err, p.Record(k))
	s.do("DEL", p.Aside(k))
	s.do("RESTORE", p.Aside(k), 0, good)
}

// What was damaged when a quarantine ended comes back with all that this has ended,
// whether it was set aside before or is found only afterwards.
func TestRedisBroughtBackAfterQuarantine(t *testing.T) {
	t.Parallel()
	const old = "01JE0000000000000000000000"
	acquire := func(slot string) *session.Acquire {
		return &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "a", Weight: 1, TTL: time.Hour}
	}
	begin := func(call string) *session.Begin {
		return &session.Begin{NS: testNS, Session: "s", Call: call, Digest: session.Digest{2}, Verdict: session.Verdict{Allow: true},
			Pools: []session.Want{{Pool: "policy/p2", Weight: 1}}, TTL: time.Hour, Tool: "t"}
	}
	for name, c := range map[string]struct {
		key session.Key
		is  func(t *testing.T, r *Store, found session.Record, held session.Result)
	}{
		"a session": {session.SessionKey(testNS, "s"), func(t *testing.T, r *Store, found session.Record, _ session.Result) {
			x := found.(*session.Session)
			require.Equal(t, session.PhaseClosed, x.Phase)
			require.Empty(t, x.Open)
			require.Equal(t, session.SessionClosed, one(t, r, begin("next")).Code)
		}},
		"a pool": {session.PoolKey(testNS, "a"), func(t *testing.T, r *Store, found session.Record, held session.Result) {
			require.Empty(t, found.(*session.Pool).Leases)
			next := one(t, r, acquire("next"))
			require.Equal(t, session.Admitted, next.Code)
			require.Greater(t, next.Grants[0].Token, held.Grants[0].Token)
			require.EqualValues(t, r.domain("").current().generation, next.Grants[0].Token>>40)
		}},
		"a client": {session.ClientKey(testNS, "w"), func(t *testing.T, r *Store, found session.Record, _ session.Result) {
			require.Empty(t, found.(*session.Client).Open)
			require.Equal(t, session.LeaseLost, one(t, r, acquire("held")).Code)
			require.True(t, one(t, r, count("w", old)).Repeat)
			require.Equal(t, session.StaleID, one(t, r, count("w", "01JD0000000000000000000000")).Code, "it may have been forgotten")
		}},
		"what a namespace has forgotten": {session.NamespaceKey(testNS), func(t *testing.T, r *Store, found session.Record, _ session.Result) {
			x := found.(*session.Namespace)
			require.Positive(t, x.ForgotSessions)
			require.Positive(t, x.ForgotClients)
			require.EqualValues(t, r.domain("").current().generation, x.TokenFloor>>40)
		}},
	} {
		for when, before := range map[string]bool{"set aside before": true, "found afterwards": false} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				s := startRedis(t)
				quick := func(c *Config) { c.Quarantine = -1 }
				r := s.open("one", quick)
				setup(t, r)
				require.Equal(t, session.Done, one(t, r, &session.Open{NS: testNS, Session: "s", Agent: "a", Digest: session.Digest{2}, IdleTTL: time.Hour}).Code)
				require.Equal(t, session.Admitted, one(t, r, begin("c")).Code)
				require.False(t, one(t, r, count("w", old)).Repeat)
				require.Equal(t, session.Done, one(t, r, &session.DeletePool{NS: testNS, Pool: "c", By: session.Maker{Client: "t", Request: "delete"}}).Code)
				held := one(t, r, acquire("held"))
				require.Equal(t, session.Admitted, held.Code)
				p := r.place(testNS)
				good := s.do("DUMP", p.Record(c.key))
				flip(s, p.Record(c.key), wire.HeadAt+5)
				if before {
					_, err := r.Get(t.Context(), c.key, storage.Latest)
					require.ErrorContains(t, err, "cannot be read")
				}
				s.do("DEL", "{gov}:epoch")
				require.Eventually(t, func() bool {
					e := r.domain("").current()
					return e.generation > 0 && e.state == epochOpen
				}, time.Minute, time.Millisecond, "the quarantine does not end")
				_, err := r.Get(t.Context(), c.key, storage.Latest)
				require.ErrorContains(t, err, "set aside")
				s.do("DEL", p.Aside(c.key))
				s.do("RESTORE", p.Aside(c.key), 0, good)
				require.NoError(t, r.BringBack(t.Context(), c.key))
				found, err := r.Get(t.Context(), c.key, storage.Latest)
				require.NoError(t, err)
				c.is(t, r, found.Record, held)
				sound(t, s, r)
			})
		}
	}
}

// Of two who decide at once what becomes of a record that is set aside, one does, and
// the other is told so, whichever step of the one the other comes before.
func TestRedisDropBesideBringBack(t *testing.T) {
	t.Parallel()
	type decide func(r *Store, ctx context.Context, k session.Key) error
	back, drop := decide((*Store).BringBack), decide((*Store).Drop)
	for name, c := range map[string]struct {
		make          func(name string) (session.Command, session.Key)
		first, second decide
	}{
		"a counter is dropped while it is brought back": {aCounter, back, drop},
		"a counter is brought back while it is dropped": {aCounter, drop, back},
		"a pool is dropped while it is brought back":    {aPool, back, drop},
		"a pool is brought back while it is dropped":    {aPool, drop, back},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			quick := func(c *Config) { c.Quarantine = -1 }
			r, other := s.open("one", quick), s.open("two", quick)
			for n := 0; ; n++ {
				cmd, k := c.make(fmt.Sprint(n))
				require.Equal(t, session.Done, (&fleet{t: t, nodes: []*Store{r}}).must(0, cmd).Code)
				keepGood(t, s, r, k)
				id := r.domain("").current().id
				left, came := n, false
				var second error
				ctx := watched(t, r, func(redis.Cmder) {
					if left == 0 {
						came, second = true, c.second(other, t.Context(), k)
					}
					left--
				}, nil)
				first := c.first(r, ctx, k)
				if !came {
					require.NoError(t, first)
					require.Positive(t, n)
					break
				}
				require.True(t, (first == nil) != (second == nil), "before step %d: %v, %v", n, first, second)
				for _, err := range []error{first, second} {
					if err != nil {
						require.Equal(t, storage.NotApplied, storage.OutcomeOf(err), "%v", err)
					}
				}
				isBack := (first == nil) == (strings.HasSuffix(name, "while it is brought back"))
				var found storage.Found
				require.Eventually(t, func() (ok bool) {
					var err error
					found, err = other.Get(t.Context(), k, storage.Latest)
					return err == nil
				}, time.Minute, time.Millisecond)
				require.Equal(t, isBack, found.Record != nil)
				if isBack {
					require.Equal(t, id, other.domain("").current().id, "a quarantine")
				}
				asides, err := other.Asides(t.Context())
				require.NoError(t, err)
				require.Empty(t, asides)
				require.Zero(t, s.do("EXISTS", r.place(testNS).Aside(k)))
				ready(t, r)
			}
			sound(t, s, r)
		})
	}
}

func aCounter(name string) (session.Command, session.Key) {
	return set(testNS, name, time.Hour), session.CounterKey(testNS, name)
}

func aPool(name string) (session.Command, session.Key) {
	return &session.PutPool{NS: testNS, Pool: name, Slots: 1, By: session.Maker{Client: "t", Request: "put" + name}}, session.PoolKey(testNS, name)
}

// A record is damaged again the moment it was brought back: what is kept of it then
// is not thrown away with what was kept before.
func TestRedisDamagedAgainWhileBroughtBack(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r, other := s.open("one"), s.open("two")
	cmd, k := aCounter("k")
	one(t, r, cmd)
	keepGood(t, s, r, k)
	p := r.place(testNS)
	again := ""
	ctx := watched(t, r, nil, func(redis.Cmder) {
		if again != "" || isAside(s.do("GET", p.Record(k)).(string)) {
			return
		}
		again = "garbage"
		s.do("SET", p.Record(k), again)
		_, err := other.Get(context.Background(), k, storage.Latest)
		require.Error(t, err)
	})
	require.NoError(t, r.BringBack(ctx, k))
	require.NotEmpty(t, again)
	require.Equal(t, again, s.do("GET", p.Aside(k)))
	asides, err := r.Asides(t.Context())
	require.NoError(t, err)
	require.Len(t, asides, 1)
}

func isAside(v string) bool { _, yes := wire.IsAside(v); return yes }

// Nothing that is kept is written over: neither if the mark in the place of the record
// is damaged itself, nor if somebody has put something there that is.
func TestRedisAsideKeepsAll(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	cmd, k := aCounter("k")
	one(t, r, cmd)
	p := r.place(testNS)
	good := s.do("DUMP", p.Record(k))
	flip(s, p.Record(k), wire.HeadAt+5)
	var kept []string
	look := func() {
		t.Helper()
		kept = append(kept, s.do("GET", p.Record(k)).(string))
		_, err := r.Get(t.Context(), k, storage.Latest)
		require.ErrorContains(t, err, p.Record(k))
	}
	keys := p.Asides(k)
	all := func() (all []string) {
		for _, key := range keys {
			if v, ok := s.do("GETRANGE", key, 0, -1).(string); ok && v != "" {
				all = append(all, v)
			}
		}
		return all
	}
	look()
	require.Equal(t, kept, all())
	flip(s, p.Record(k), wire.StampLen+1) // of the mark
	look()
	require.ElementsMatch(t, kept, all())
	require.Equal(t, kept[1], s.do("GET", keys[0]), "what stood there last is where it is looked for")
	for i := 2; i < len(keys); i++ {
		s.do("SET", p.Record(k), fmt.Sprint("garbage", i))
		look()
		require.ElementsMatch(t, kept, all())
	}
	s.do("SET", p.Record(k), "there is no place for this one")
	look()
	require.ElementsMatch(t, kept[:len(kept)-1], all())
	require.Equal(t, "there is no place for this one", s.do("GET", p.Record(k)), "it stays where it is")
	asides, err := r.Asides(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Aside{{k, keys[0]}}, asides)

	// Once it is decided, nothing is kept.
	s.do("DEL", keys[3])
	_, err = r.Get(t.Context(), k, storage.Latest)
	require.Error(t, err)
	s.do("DEL", keys[0])
	s.do("RESTORE", keys[0], 0, good)
	require.NoError(t, r.BringBack(t.Context(), k))
	require.Empty(t, all())
	require.EqualValues(t, 7, valueOf(t, r, "k"))
	sound(t, s, r)
}
