package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// full reports whether the long form of the tests was asked for: make redis.
func full() bool { return os.Getenv("GOVNODE_REDIS") != "" }

// atLength leaves a test to make redis that takes ten seconds by itself.
func atLength(t *testing.T) {
	t.Helper()
	if !full() {
		t.Skip("it takes long, and is run by make redis")
	}
}

// A fleet is some nodes over one Redis, of which callers use another when one
// does not answer.
type fleet struct {
	t *testing.T

	mu    sync.Mutex
	nodes []*Store
}

func newFleet(t *testing.T, s *server, n int, change ...func(*Config)) *fleet {
	f := &fleet{t: t}
	for i := range n {
		f.nodes = append(f.nodes, s.open(fmt.Sprint("n", i), change...))
	}
	return f
}

func (f *fleet) node(i int) *Store {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[i%len(f.nodes)]
}

func (f *fleet) replace(i int, r *Store) (old *Store) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old, f.nodes[i] = f.nodes[i], r
	return old
}

// must sends a command until it has a result, as a client does that may send it
// again.
func (f *fleet) must(i int, c session.Command) session.Result {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for n := 0; ; n++ {
		r, _, err := storage.One(ctx, f.node(i+n), c)
		if err == nil {
			return r
		}
		if ctx.Err() != nil || !errors.As(err, new(*storage.Failure)) {
			f.t.Errorf("%T: %v", c, err)
			return session.Result{}
		}
		rest(ctx, 5*time.Millisecond)
	}
}

// fire lets callers ask for the one slot of a pool that is free, at once, round
// after round. Exactly one may have it.
func (f *fleet) fire(rounds, callers int, disturb func(round int)) {
	t := f.t
	f.must(0, &session.PutPool{NS: testNS, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: "put"}})
	last := uint64(0)
	for round := range rounds {
		if disturb != nil {
			disturb(round)
		}
		results := make([]session.Result, callers)
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				results[i] = f.must(i, &session.Acquire{NS: testNS, Client: fmt.Sprint("c", i), Slot: fmt.Sprint("r", round), Pool: "one", Weight: 1, TTL: time.Minute})
			})
		}
		wg.Wait()
		winner := -1
		for i, r := range results {
			if r.Code == session.Admitted {
				require.Equal(t, -1, winner, "round %d: callers %d and %d have the one slot", round, winner, i)
				winner = i
			} else {
				require.Equal(t, session.ConcurrencyLimit, r.Code, "round %d", round)
			}
		}
		require.NotEqual(t, -1, winner, "round %d: nobody has the free slot", round)
		token := results[winner].Grants[0].Token
		require.Greater(t, token, last)
		last = token
		r := f.must(winner, &session.Release{NS: testNS, Client: fmt.Sprint("c", winner), Slot: fmt.Sprint("r", round), Pool: "one", Token: token})
		require.Contains(t, []session.Code{session.Released, session.AlreadyReleased}, r.Code)
	}
}

func rounds(short, long int) int {
	if full() {
		return long
	}
	return short
}

func TestRedisLastSlot(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	f := newFleet(t, s, 3)
	f.fire(rounds(100, 1000), rounds(24, 64), nil)
	lost := uint64(0)
	for _, r := range f.nodes {
		lost += r.Stats().Lost
	}
	require.NotZero(t, lost, "the nodes never came between each other, so nothing was tested")
}

func TestRedisLastSlotWhileScriptsAreFlushed(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	newFleet(t, s, 3).fire(rounds(40, 1000), 24, func(int) { s.do("SCRIPT", "FLUSH") })
}

func TestRedisLastSlotWhileRedisIsPaused(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	every := rounds(20, 250)
	newFleet(t, s, 3).fire(rounds(40, 1000), 24, func(round int) {
		if round%every == every/2 {
			s.do("CLIENT", "PAUSE", 1000)
		}
	})
}

// The data is that of before: no quarantine, and nothing is forgotten.
func TestRedisLastSlotWhileRedisRestarts(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	every := rounds(20, 200)
	var restart sync.WaitGroup
	defer restart.Wait()
	newFleet(t, s, 3).fire(rounds(40, 1000), 24, func(round int) {
		if round%every == every/2 {
			restart.Wait()
			restart.Go(func() {
				s.kill()
				s.start()
			})
		}
	})
}

func TestRedisLastSlotWhileNodesEnd(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	f := newFleet(t, s, 3)
	every := rounds(20, 100)
	f.fire(rounds(40, 1000), 24, func(round int) {
		if round%every == every/2 {
			old := f.replace(round%3, s.open(fmt.Sprint("new", round)))
			go old.Close()
		}
	})
}

// A proxy stands between nodes and Redis, as an address does that can be given
// to another server.
type proxy struct {
	l net.Listener
	// dropAnswers is how many answers to a swap are not passed on: the
	// connection ends instead.
	dropAnswers atomic.Int64

	mu     sync.Mutex
	target string
	open   map[net.Conn]bool
}

func newProxy(t *testing.T, target string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{l: l, target: target, open: map[net.Conn]bool{}}
	t.Cleanup(func() {
		l.Close()
		p.to("127.0.0.1:1")
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	return p
}

func (p *proxy) url() string { return "redis://" + p.l.Addr().String() + "/0" }

// to sends all further connections to another server, and ends those there are.
func (p *proxy) to(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
	for c := range p.open {
		c.Close()
	}
	clear(p.open)
}

func (p *proxy) serve(c net.Conn) {
	defer c.Close()
	p.mu.Lock()
	back, err := net.Dial("tcp", p.target)
	if err != nil {
		p.mu.Unlock()
		return
	}
	p.open[c], p.open[back] = true, true
	p.mu.Unlock()
	defer back.Close()
	var writes atomic.Bool // a record was sent, and its answer is still to come
	go func() {
		defer back.Close()
		b := make([]byte, 64<<10)
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			if sent := string(b[:n]); strings.Contains(sent, wire.SwapScript.Hash) && strings.Contains(sent, "}:r:") {
				writes.Store(true)
			}
			if _, err := back.Write(b[:n]); err != nil {
				return
			}
		}
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := back.Read(b)
		if err != nil {
			return
		}
		if writes.Swap(false) && p.dropAnswers.Add(-1) >= 0 {
			return
		}
		if _, err := c.Write(b[:n]); err != nil {
			return
		}
	}
}

// The answer to a swap is lost with its connection. The node finds out by the
// stamps whether it was applied, so that even what has no id has its effect
// once.
func TestRedisFindsOutWhatBecameOfASwap(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	p := newProxy(t, s.addr())
	r := s.open("one", func(c *Config) { c.URL = p.url() })
	const n = 20
	for i := range n {
		if i%2 == 1 {
			p.dropAnswers.Store(1)
		}
		res := one(t, r, &session.Increment{NS: testNS, By: session.Maker{Client: "w"}, Key: "k", Amount: 1})
		require.EqualValues(t, i+1, res.Value)
	}
	require.Zero(t, p.dropAnswers.Load(), "an answer was to be dropped and was not")
	require.EqualValues(t, n, counted(t, r))
}

// What it finds out is told, though whoever asked for it has gone.
func TestRedisTellsWhatBecameOfASwap(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	p := newProxy(t, s.addr())
	r := s.open("one", func(c *Config) { c.URL = p.url() })
	r.Settled().Keep()
	cmd := &session.Increment{NS: testNS, By: session.Maker{Client: "w", Request: "r"}, Key: "k", Amount: 1}
	cmd.Authorize(&session.Authority{Behalf: true, Audited: session.Digest{1}})
	first := &session.Increment{NS: testNS, By: session.Maker{Client: "w", Request: "first"}, Key: "k", Amount: 1}
	first.Authorize(&session.Authority{Behalf: true, Audited: session.Digest{2}})
	one(t, r, first)
	p.dropAnswers.Store(1)
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan storage.Answer, 1)
	go func() { answer <- r.Apply(ctx, cmd)[0] }()
	require.Eventually(t, func() bool { return p.dropAnswers.Load() < 1 }, 30*time.Second, 100*time.Microsecond)
	p.to("127.0.0.1:1")
	cancel()
	told := make(chan storage.Answer, 1)
	a := <-answer
	found := r.Settled().Find(session.Digest{1}, 0, func(a storage.Answer) { told <- a })
	p.to(s.addr())
	if len(found) > 0 { // before the connections ended
		a = found[0]
	} else {
		require.Equal(t, storage.Unknown, a.Outcome)
		select {
		case a = <-told:
		case <-time.After(10 * time.Second):
			t.Fatal("it was not told")
		}
	}
	require.EqualValues(t, 2, a.Result.Chain.N)
	require.EqualValues(t, 2, counted(t, s.open("two")))
}

// Where others have written over all of it since, nobody can say: what may be
// repeated is, the rest is answered as unknown.
func TestRedisSaysWhatIsUnknown(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	p := newProxy(t, s.addr())
	r := s.open("one", func(c *Config) { c.URL = p.url() })
	other := s.open("two")
	add := func(r *Store, request string) (session.Result, error) {
		res, _, err := storage.One(t.Context(), r, &session.Increment{NS: testNS, Key: "k", Amount: 1, By: session.Maker{Client: "w" + request, Request: request}})
		return res, err
	}
	_, err := add(r, "")
	require.NoError(t, err)

	for _, request := range []string{"", "with-id"} {
		// No connection is taken until the other node has written.
		p.dropAnswers.Store(1)
		var res session.Result
		done := make(chan error, 1)
		go func() {
			var err error
			res, err = add(r, request)
			done <- err
		}()
		require.Eventually(t, func() bool { return p.dropAnswers.Load() < 1 }, 30*time.Second, time.Millisecond)
		p.to("127.0.0.1:1")
		for range 3 {
			_, err = add(other, "")
			require.NoError(t, err)
		}
		p.to(s.addr())
		err = <-done
		if request == "" {
			// It may have found out in time, before the connections ended.
			if err != nil {
				require.Equal(t, storage.Unknown, storage.OutcomeOf(err))
			}
		} else {
			require.NoError(t, err)
			require.Positive(t, res.Value)
		}
	}
	require.EqualValues(t, 1+1+3+1+3, counted(t, other), "each had its effect once")
}

// The answer to a round of two callers is lost, one of them goes away, and others
// write the record of the other meanwhile: the effect is there once.
func TestRedisFindsOutThoughACallerLeaves(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	p := newProxy(t, s.addr())
	r := s.open("one", func(c *Config) { c.URL = p.url() })
	other := s.open("two")
	for _, k := range []string{"k", "other"} {
		one(t, r, add(k, "w"))
	}
	leaves, cancel := context.WithCancel(t.Context())
	stays, cancelLate := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancelLate()
	a, b := r.newBatch(leaves, []session.Command{add("other", "leaves")}), r.newBatch(stays, []session.Command{add("k", "stays")})
	a.until = time.Now().Add(30 * time.Second)
	l := r.lane(testNS)
	p.dropAnswers.Store(1)
	l.mu.Lock()
	l.waiting, l.count = append(l.waiting, a, b), l.count+2
	l.start()
	l.mu.Unlock()
	require.Eventually(t, func() bool { return valueOf(t, other, "k") == 2 }, 30*time.Second, time.Millisecond)
	p.to("127.0.0.1:1") // before it can find out, or it has
	for range 3 {
		one(t, other, add("k", "w"))
	}
	cancel()
	<-a.done
	p.to(s.addr())
	<-b.done
	require.Contains(t, []storage.Outcome{storage.Applied, storage.Unknown}, a.answers[0].Outcome)
	require.Equal(t, storage.Applied, b.answers[0].Outcome, "%v", b.answers[0].Err)
	require.EqualValues(t, 2, b.answers[0].Result.Value)
	require.EqualValues(t, 5, valueOf(t, other, "k"))
	require.EqualValues(t, 2, valueOf(t, other, "other"))
}

func TestRedisUnreachable(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one", func(c *Config) { c.Timeout = 500 * time.Millisecond })
	setup(t, r)
	s.kill()
	_, _, err := storage.One(t.Context(), r, &session.Acquire{NS: testNS, Client: "w", Slot: "1", Pool: "a", Weight: 1, TTL: time.Minute})
	require.Error(t, err)
	require.True(t, errors.As(err, new(*storage.Failure)), "%v", err)
	_, err = r.Get(t.Context(), session.PoolKey(testNS, "a"), storage.Latest)
	require.ErrorAs(t, err, new(*storage.ReadError))
	s.start()
	require.Eventually(t, func() bool {
		_, err := r.Get(t.Context(), session.PoolKey(testNS, "a"), storage.Latest)
		return err == nil
	}, 10*time.Second, 20*time.Millisecond, "it recovers by itself")
}
