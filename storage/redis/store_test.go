package redis

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
	"example.com/govnode/storage"
)

const testNS = sessiontest.NS

func setup(t testing.TB, s storage.Store) {
	t.Helper()
	for _, a := range s.Apply(context.Background(), sessiontest.Setup()...) {
		require.NoError(t, a.Err)
		require.Equal(t, session.Done, a.Result.Code)
	}
}

func TestRedisSmoke(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	setup(t, r)
	setup(t, r)
	acquire := &session.Acquire{NS: testNS, Client: "w", Slot: "l1", Pool: "a", Weight: 1, TTL: 10 * time.Second}
	res, index, err := storage.One(t.Context(), r, acquire)
	require.NoError(t, err)
	require.Zero(t, index)
	require.Equal(t, session.Admitted, res.Code)
	require.Equal(t, uint64(1), res.Grants[0].Token)

	two := s.open("two")
	for _, read := range []storage.Read{storage.Nearby, storage.Latest} {
		f, err := two.Get(t.Context(), session.PoolKey(testNS, "a"), read)
		require.NoError(t, err)
		require.Len(t, f.Record.(*session.Pool).Leases, 1)
	}
	v, err := two.View(t.Context(), testNS, storage.Latest)
	require.NoError(t, err)
	pools, err := v.Find(session.Prefix(session.KindPool, testNS), "", 10, nil)
	require.NoError(t, err)
	require.Len(t, pools, 5, "pools and rates")
	var b bytes.Buffer
	require.NoError(t, two.Save(t.Context(), &b))
	m := storage.NewMemory(nil)
	defer m.Close()
	require.NoError(t, m.Restore(t.Context(), bytes.NewReader(b.Bytes())))
	require.NoError(t, r.Restore(t.Context(), bytes.NewReader(b.Bytes())))
	// The other node sees at its next beat that the restore is over.
	f := &fleet{t: t, nodes: []*Store{two}}
	res = f.must(0, &session.Acquire{NS: testNS, Client: "w", Slot: "l2", Pool: "a", Weight: 1, TTL: 10 * time.Second})
	require.Equal(t, session.Admitted, res.Code, "a restore ends leases")
	require.Equal(t, uint64(1)<<40+1, res.Grants[0].Token)
}

// Quotas are held to the same numbers as over a store that counts by the way, of whatever
// kind the records are.
func TestRedisCountsAsOthersDo(t *testing.T) {
	t.Parallel()
	r, m := startRedis(t).open("one"), storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	by := session.Maker{Client: "w"}
	for _, cmds := range [][]session.Command{
		sessiontest.Setup(), // policies, pools, rates and budgets
		{&session.Open{NS: testNS, Session: "s", Agent: "a", Digest: sessiontest.Digest(2), IdleTTL: time.Hour}},
		{&session.Set{NS: testNS, By: by, Key: "k", Value: session.Value{Text: "v"}}},
		{&session.PutHash{NS: testNS, By: by, Tool: "t", Hash: strings.Repeat("a", 64)}},
		{&session.PutStanding{NS: testNS, By: by, Of: session.StandingOf{Scope: session.OfAgent, Name: "a", Tool: "t"}, TTL: time.Hour}},
		{&session.Append{NS: testNS, By: by, Key: "l", Items: []string{"a", "b"}, TTL: time.Hour}},
		{&session.Delete{NS: testNS, By: by, Key: "k"}},
		{&session.Begin{ // it makes the pool of its policy, which nobody has put
			NS: testNS, Session: "s", Call: "c", Tool: "t", Digest: sessiontest.Digest(2), Verdict: session.Verdict{Allow: true},
			Pools: []session.Want{{Pool: "policy/p2", Weight: 1}}, TTL: time.Minute, Hashes: 1,
		}},
	} {
		for _, s := range []storage.Store{r, m} {
			for _, a := range s.Apply(t.Context(), cmds...) {
				require.NoError(t, a.Err)
				require.Contains(t, []session.Code{session.Done, session.Admitted}, a.Result.Code)
			}
		}
		want, err := m.Count(t.Context(), testNS)
		require.NoError(t, err)
		got, err := r.countNow(t.Context(), testNS) // Count may be a second old
		require.NoError(t, err)
		require.Equal(t, want, got, "%T", cmds[0])
	}
	none, err := r.Count(t.Context(), "other")
	require.NoError(t, err)
	require.Zero(t, none)
}

// Two counters are always written together; whoever reads them together sees
// them equal.
func TestRedisGetAllIsOneInstant(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	writer, reader := s.open("writer"), s.open("reader")
	a, b := session.CounterKey(testNS, "a"), session.CounterKey(testNS, "b")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200 {
			for _, x := range writer.Apply(context.Background(),
				&session.Increment{NS: testNS, Key: "a", Amount: 1, By: session.Maker{Client: "w"}},
				&session.Increment{NS: testNS, Key: "b", Amount: 1, By: session.Maker{Client: "w"}}) {
				if x.Err != nil {
					t.Error(x.Err)
				}
			}
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		both, err := reader.GetAll(t.Context(), a, b)
		require.NoError(t, err)
		require.Equal(t, both[0].Record, both[1].Record)
	}
	_, err := reader.GetAll(t.Context(), a, session.CounterKey("other", "b"))
	require.ErrorIs(t, err, storage.ErrInvalid)
}

// Of counters that are made and deleted one after the other there are never
// more than two, and no view shows more, also one that had to look again.
func TestRedisViewsShowNothingThatIsGone(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	writer, reader := s.open("writer"), s.open("reader")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		by := session.Maker{Client: "w"}
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			for _, c := range []session.Command{
				&session.Increment{NS: testNS, Key: fmt.Sprint(i), Amount: 1, By: by},
				&session.Delete{NS: testNS, Key: fmt.Sprint(i - 1), By: by},
			} {
				if _, _, err := storage.One(context.Background(), writer, c); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	for range 40 {
		v, err := reader.View(t.Context(), testNS, storage.Latest)
		require.NoError(t, err)
		found, err := v.Find(session.Prefix(session.KindCounter, testNS), "", 100, nil)
		require.NoError(t, err)
		require.LessOrEqual(t, len(found), 2)
	}
	close(stop)
	<-done
}

// An intruder is what happens between two commands of a client: after it has read
// that sorted set, as often as is left.
type intruder struct {
	redis.Hook
	after string
	left  *atomic.Int32
	do    func()
}

func (x intruder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if args := cmd.Args(); cmd.Name() == "zrange" && args[1] == x.after && x.left.Add(-1) >= 0 {
				x.do()
			}
		}
		return err
	}
}

// A view of a small state is of one instant, though a change comes between its list
// of names and its look at the records, and again and again: what one round wrote is
// all there, or nothing of it is, also of kinds of which there was none before.
func TestRedisASmallViewIsOfOneInstant(t *testing.T) {
	t.Parallel()
	for _, changes := range []int32{1, lookTries, lookTries + 1} {
		t.Run(fmt.Sprint(changes), func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			writer, reader := s.open("writer"), s.open("reader")
			one(t, writer, count("w", "first"))
			var left atomic.Int32
			n := 0
			names := reader.place(testNS).Index(session.KindCounter)
			reader.client.AddHook(intruder{Hook: scriptWatch{reader.metrics}, after: names, left: &left, do: func() {
				n++
				id := fmt.Sprint("later", n)
				for _, a := range writer.Apply(context.Background(), count("w", id),
					&session.Increment{NS: testNS, Key: id, Amount: 1, By: session.Maker{Client: "w", Request: "new" + id}},
					&session.Append{NS: testNS, Key: "l", Items: []string{id}, TTL: time.Hour, By: session.Maker{Client: "w", Request: "list" + id}}) {
					if a.Err != nil {
						t.Error(a.Err)
					}
				}
			}})
			left.Store(changes)
			v, err := reader.View(t.Context(), testNS, storage.Latest)
			left.Store(0)
			require.NoError(t, err)
			found, err := v.Find(session.Prefix(session.KindCounter, testNS), "", 100, nil)
			require.NoError(t, err)
			require.EqualValues(t, changes, n, "it was looked at again after each change")
			require.Len(t, found, 1+n)
			lists, err := v.Find(session.Prefix(session.KindList, testNS), "", 100, nil)
			require.NoError(t, err)
			require.NotEmpty(t, lists)
			for _, e := range found {
				if e.Key == session.CounterKey(testNS, "k") {
					require.EqualValues(t, len(found), e.Record.(*session.Counter).Value.N, "each change counts, and makes a counter")
				}
			}
		})
	}
}

// Nothing waits for a view, and it looks once, though what is in its namespace changes all
// the time, and other namespaces get more.
func TestRedisAViewLooksOnce(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	writer, reader := s.open("writer"), s.open("reader")
	one(t, writer, count("w", "first"))
	looks := 0
	var left atomic.Int32
	left.Store(100)
	reader.client.AddHook(intruder{Hook: scriptWatch{reader.metrics}, after: reader.place(testNS).Index(session.KindCounter), left: &left, do: func() {
		looks++
		for _, c := range []session.Command{count("w", fmt.Sprint("again", looks)), set("another", fmt.Sprint(looks), time.Hour)} {
			if _, _, err := storage.One(context.Background(), writer, c); err != nil {
				t.Error(err)
			}
		}
	}})
	v, err := reader.View(t.Context(), testNS, storage.Latest)
	require.NoError(t, err)
	require.Equal(t, 1, looks)
	found, err := v.Find(session.CounterKey(testNS, "k"), "", 1, nil)
	require.NoError(t, err)
	require.EqualValues(t, 2, found[0].Record.(*session.Counter).Value.N)
}

// A name is gone from a list, and nobody has asked for it: that is noticed by who looks at
// all there is. He is refused, rather than told half of it.
func TestRedisAViewMissesNames(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	one(t, r, set(testNS, "k", time.Hour))
	one(t, r, set(testNS, "l", time.Hour))
	s.do("ZREM", r.place(testNS).Index(session.KindCounter), "k")
	_, err := r.View(t.Context(), testNS, storage.Latest)
	require.ErrorContains(t, err, "quarantine")
}

// What a node answers without a change it answers by what stands in Redis, though
// it has seen the records.
func TestRedisAnswersByWhatStandsThere(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	f := newFleet(t, s, 2)
	remove := &session.Delete{NS: testNS, Key: "k", By: session.Maker{Client: "w"}}
	absent := f.must(1, remove)
	require.Equal(t, absent, f.must(1, remove))
	f.must(0, count("c", "1"))
	f.must(1, remove)
	x, err := f.node(0).Get(t.Context(), session.CounterKey(testNS, "k"), storage.Latest)
	require.NoError(t, err)
	require.Nil(t, x.Record, "it was there, and is still")
}

// A read nearby shows in a moment what another node has changed.
func TestRedisNearbyIsNotOld(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	f := newFleet(t, s, 2)
	f.must(0, count("c", "1"))
	nearby := func() int64 {
		x, err := f.node(1).Get(t.Context(), session.CounterKey(testNS, "k"), storage.Nearby)
		require.NoError(t, err)
		return x.Record.(*session.Counter).Value.N
	}
	require.EqualValues(t, 1, nearby())
	f.must(0, count("c", "2"))
	require.Eventually(t, func() bool { return nearby() == 2 }, 30*time.Second, time.Millisecond)
}

// Whoever held changes up and was too slow is told so, and does not let those go
// on that another holds up by now.
func TestRedisFrozenByAnother(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	f, err := r.freeze(t.Context())
	require.NoError(t, err)
	require.NoError(t, f.hold(t.Context()))
	key := f.domains[0].key("frozen")
	s.do("DEL", key) // its time was over
	require.Error(t, f.hold(t.Context()))
	s.do("SET", key, "another")
	require.Error(t, f.hold(t.Context()))
	f.thaw()
	require.Equal(t, "another", s.do("GET", key))
}

// While changes are held up no lease can be renewed. So none runs out either: log time
// stands still, whichever node beats, until they go on, and a node is ready meanwhile.
func TestRedisTimeStandsStillWhileChangesAreHeldUp(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	at := clockAt(0)
	ours := func(c *Config) { c.monotonic = at.now }
	r, other := s.open("one", ours), s.open("other", ours)
	const ttl = 2 * time.Second
	pass := func(d time.Duration, meanwhile func()) {
		for range d / beatEvery {
			at.pass(beatEvery)
			for _, node := range []*Store{r, other} {
				node.domain("").beat(t.Context())
			}
			meanwhile()
		}
	}
	renew := func(token uint64) session.Code {
		return one(t, r, &session.Renew{NS: testNS, Client: "w", ID: "l", Pools: []string{"p"}, Token: token, TTL: ttl}).Code
	}
	one(t, r, &session.PutPool{NS: testNS, Pool: "p", Slots: 1, By: session.Maker{Client: "t", Request: "put"}})
	held := one(t, r, &session.Acquire{NS: testNS, Client: "w", Slot: "l", Pool: "p", Weight: 1, TTL: ttl})
	require.Equal(t, session.Admitted, held.Code)
	token := held.Grants[0].Token

	f, err := r.freeze(t.Context())
	require.NoError(t, err)
	pass(2*ttl, func() {
		require.NoError(t, f.hold(t.Context()))
		for _, node := range []*Store{r, other} {
			require.NoError(t, node.Ready(t.Context()))
		}
	})
	f.thaw()
	require.Equal(t, session.Renewed, renew(token))
	pass(2*ttl, func() {})
	require.Equal(t, session.LeaseExpired, renew(token), "it goes on")
}

// Of a request that takes several rounds nothing is applied behind a round that
// failed: its commands keep their order.
func TestRedisRequestEndsWithAFailedRound(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one", func(c *Config) { c.RoundSize = 2 })
	one(t, s.open("two"), add("bad", "w"))
	s.do("SET", r.place(testNS).Record(session.CounterKey(testNS, "bad")), "garbage")
	for i, a := range r.Apply(t.Context(), add("k", "w"), add("l", "w"), add("bad", "w"), add("bad", "w"), add("k", "w"), add("l", "w"), add("m", "w")) {
		if i < 2 {
			require.Equal(t, storage.Applied, a.Outcome, "%d: %v", i, a.Err)
		} else {
			require.Equal(t, storage.NotApplied, a.Outcome, i)
		}
	}
	require.EqualValues(t, 1, valueOf(t, r, "k"))
	require.EqualValues(t, 1, valueOf(t, r, "l"))
}
