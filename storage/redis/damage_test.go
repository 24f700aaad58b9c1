package redis

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	v, err := r.View(t.Context(), storage.Latest)
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
		v, err := r.View(t.Context(), storage.Latest)
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
