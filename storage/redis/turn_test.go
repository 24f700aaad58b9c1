package redis

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

func count(client, request string) *session.Increment {
	return &session.Increment{NS: testNS, Key: "k", Amount: 1, By: session.Maker{Client: client, Request: request}}
}

// counted is the value of the counter that count increments.
func counted(t *testing.T, r *Store) int64 {
	f, err := r.Get(t.Context(), session.CounterKey(testNS, "k"), storage.Latest)
	require.NoError(t, err)
	return f.Record.(*session.Counter).Value.N
}

// hammer lets callers of each node increment one counter, each so often.
func hammer(t *testing.T, nodes []*Store, name string, callers, times int) {
	var wg sync.WaitGroup
	for i, r := range nodes {
		for c := range callers {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // not that of a command
				defer cancel()
				for n := range times {
					client, request := fmt.Sprint(name, i, "-", c), fmt.Sprint(n)
					if _, _, err := storage.One(ctx, r, count(client, request)); err != nil {
						t.Errorf("node %d: %v", i, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
}

// Nodes that write one record do not make each other's rounds void. Without
// turns more than half of the rounds are.
func TestRedisTurns(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	f := newFleet(t, s, 3)
	hammer(t, f.nodes, "first", 8, 20) // by then they have met
	var rounds, lost uint64
	for _, r := range f.nodes {
		rounds, lost = rounds-r.Stats().Rounds, lost-r.Stats().Lost
	}
	hammer(t, f.nodes, "then", 8, 60)
	for _, r := range f.nodes {
		rounds, lost = rounds+r.Stats().Rounds, lost+r.Stats().Lost
	}
	require.Less(t, lost*4, rounds, "%d of %d rounds were lost", lost, rounds)
	require.EqualValues(t, 3*8*(20+60), counted(t, f.node(0)))
	// Whoever has nothing to do passes its turn on, so the line dissolves.
	p := f.node(0).place(testNS)
	require.Eventually(t, func() bool { return s.do("EXISTS", p.Turns()) == int64(0) }, 30*time.Second, 5*time.Millisecond)
}

// Who stands in line and is gone is passed over.
func TestRedisTurnOfTheDead(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	f := newFleet(t, s, 2)
	p := f.node(0).place(testNS)
	// To wait for each would take longer than a command may.
	dead := []any{"RPUSH", p.Turns()}
	for i := range 10 * int(defaultTimeout/leastWait) {
		dead = append(dead, fmt.Sprint(p.Turns(), ":dead", i))
	}
	s.do(dead...)
	hammer(t, f.nodes, "c", 8, 20)
	require.EqualValues(t, 2*8*20, counted(t, f.node(0)))
	require.Eventually(t, func() bool { return s.do("EXISTS", p.Turns()) == int64(0) }, 30*time.Second, 5*time.Millisecond)
}

// Turns are a hint: what is put in the place of the line stops nobody.
func TestRedisTurnsOfAnotherType(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	f := newFleet(t, s, 2)
	s.do("SET", f.node(0).place(testNS).Turns(), "no list")
	hammer(t, f.nodes, "c", 8, 20)
	require.EqualValues(t, 2*8*20, counted(t, f.node(0)))
	require.Equal(t, "no list", s.do("GET", f.node(0).place(testNS).Turns()))
}

// A node that stands in line and is not called tries its luck.
func TestRedisTurnThatDoesNotCome(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	one(t, r, count("c", "1"))
	l := r.lane(testNS)
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.running {
			l.turns.waits = true // nobody runs it now
		}
		return !l.running
	}, 30*time.Second, time.Millisecond)
	one(t, r, count("c", "2"))
	require.EqualValues(t, 2, counted(t, r))
}

// A node that is called while what answers is a replica listens no longer.
func TestRedisTurnAtAReplica(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one", func(c *Config) { c.Quarantine = -1 })
	one(t, r, count("c", "1"))
	l := r.lane(testNS)
	l.listen(nil)
	name := l.p.Turns() + ":" + r.name
	hear := func() any { return s.do("PUBSUB", "NUMSUB", name).([]any)[1] }
	require.Eventually(t, func() bool { return hear() == int64(1) }, 30*time.Second, time.Millisecond)
	s.do("REPLICAOF", "127.0.0.1", freePort(t))
	notReady(t, r, "is a slave")
	s.do("PUBLISH", name, "")
	require.Eventually(t, func() bool { return hear() == int64(0) }, 30*time.Second, time.Millisecond)
	s.do("REPLICAOF", "NO", "ONE")
	ready(t, r)
}

func TestReadTold(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	p := r.place(testNS)
	k := session.CounterKey(testNS, "k")
	st := wire.Stamp("0123456789abcdef")
	value := string(wire.AppendValue(nil, k, st, 7, session.Pack(k, &session.Counter{Value: session.Value{N: 5}}).Head))
	word := func(text string) string { return string([]byte{0, 0, 0, byte(len(text))}) + text }
	one := word(p.Record(k)) + word(value)

	all := readTold(p, one+one)
	require.Len(t, all, 2)
	require.Equal(t, k, all[1].key)
	require.Equal(t, st, all[1].entry.Stamp)
	require.EqualValues(t, 5, all[1].entry.Record.(*session.Counter).Value.N)
	for name, bad := range map[string]string{
		"nothing": "", "cut": one[:len(one)-1], "no value": word(p.Record(k)), "too long": "\xff\xff\xff\xff" + one,
		"of another kind": word(p.Record(session.PoolKey(testNS, "k"))) + word(value), "damaged": word(p.Record(k)) + word("x"),
	} {
		require.Empty(t, readTold(p, bad), name)
	}
}

// ahead lets a node decide one round while another is out, and returns both. By
// the time the first comes back, meanwhile has been called.
func ahead(t *testing.T, r *Store, meanwhile func()) (x *round, answers []*batch) {
	one(t, r, count("first", "1"))
	l := newLane(r, r.place(testNS)) // that nobody runs
	first := r.newBatch(t.Context(), []session.Command{count("a", "a")})
	first.state.Store(batchTaken)
	x = l.round([]*batch{first})
	e, err := l.p.d.serving(t.Context())
	require.NoError(t, err)
	a, err := x.read(e)
	require.NoError(t, err)
	x.decide(a)

	answers = []*batch{first}
	for i := range leastAhead {
		b := r.newBatch(t.Context(), []session.Command{count(fmt.Sprint("b", i), "b")})
		answers = append(answers, b)
		l.waiting, l.count = append(l.waiting, b), l.count+1
	}
	// What the round ahead reads has to be known, or it is not decided yet.
	y := l.round(answers[1:])
	_, err = y.read(e)
	require.NoError(t, err)

	meanwhile()
	_, err = x.carry(a)
	require.NoError(t, err)
	require.NotNil(t, l.ahead)
	return x, answers
}

func TestRedisDecidesTheNextRoundAhead(t *testing.T) {
	t.Parallel()
	r := startRedis(t).open("one")
	x, answers := ahead(t, r, func() {})
	y := x.l.ahead
	require.NotNil(t, y.ready, "it was decided while the first was out")
	require.NoError(t, y.run())
	require.Zero(t, r.Stats().Lost, "it was decided on what the first wrote")
	values := map[int64]bool{1: true}
	more := len(x.l.waiting)
	for _, b := range answers[:len(answers)-more] {
		<-b.done
		require.NoError(t, b.answers[0].Err)
		values[b.answers[0].Result.Value] = true
	}
	require.Len(t, values, 1+len(answers)-more, "each has a value of its own")
	require.EqualValues(t, 1+len(answers)-more, counted(t, r))
}

// What was decided ahead on a round that came to nothing is decided anew.
func TestRedisRoundAheadFallsWithItsRound(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r, other := s.open("one"), s.open("two")
	x, answers := ahead(t, r, func() {
		one(t, other, count("other", "1"))
	})
	y := x.l.ahead
	require.Nil(t, y.ready, "it was decided on what was never written")
	require.EqualValues(t, 1, r.Stats().Lost)
	select {
	case <-answers[0].done:
		t.Fatal("a round that was lost was answered")
	default:
	}
	x.l.turns.waits = false
	require.NoError(t, x.run())
	require.NoError(t, y.run())
	for _, b := range answers[:len(answers)-len(x.l.waiting)] {
		<-b.done
		require.NoError(t, b.answers[0].Err)
	}
	require.EqualValues(t, 2+len(answers)-len(x.l.waiting), counted(t, other))
}

// A caller that goes away while its round stands ready is not part of it.
func TestRedisRoundAheadWithoutThoseWhoWent(t *testing.T) {
	t.Parallel()
	r := startRedis(t).open("one")
	x, answers := ahead(t, r, func() {})
	y := x.l.ahead
	gone := y.batches[0]
	gone.until = time.Now().Add(-time.Second)
	require.NoError(t, y.run())
	require.Equal(t, storage.NotApplied, gone.answers[0].Outcome, "%v", gone.answers[0].Err)
	require.EqualValues(t, 1+len(answers)-len(x.l.waiting)-1, counted(t, r))
}
