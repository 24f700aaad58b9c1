package redis

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// meanwhile is what may happen between a decision and its swap: to the server, at
// another node, whose time is later, and to the attempt itself.
type meanwhile struct {
	t     *testing.T
	s     *server
	other *Store
	later *clock
	a     *attempt
}

// What a swap that arrives finds, and what Redis says to it: everything that it
// was decided on is compared.
func TestRedisSwapIsCompared(t *testing.T) {
	t.Parallel()
	const begins = time.Minute
	for name, c := range map[string]struct {
		change    []session.Command // of the attempt; empty: k
		meanwhile func(m meanwhile)
		says      string
	}{
		"nothing": {says: wire.ReplyOK},
		"the first record is another": {meanwhile: func(m meanwhile) {
			one(m.t, m.other, add("k", "o"))
		},
			change: []session.Command{add("k", "w"), add("l", "w"), add("m", "w")}, says: wire.ReplyLost},
		"the one between": {meanwhile: func(m meanwhile) {
			one(m.t, m.other, add("l", "o"))
		},
			change: []session.Command{add("k", "w"), add("l", "w"), add("m", "w")}, says: wire.ReplyLost},
		"the last": {meanwhile: func(m meanwhile) {
			one(m.t, m.other, add("m", "o"))
		},
			change: []session.Command{add("k", "w"), add("l", "w"), add("m", "w")}, says: wire.ReplyLost},
		"one of the large": {meanwhile: func(m meanwhile) {
			m.a.was[0].Value = wire.SmallRecords + 1 // they are looked at otherwise
			one(m.t, m.other, add("m", "o"))
		}, change: []session.Command{add("k", "w"), add("m", "w")}, says: wire.ReplyLost},
		"nothing of the large": {meanwhile: func(m meanwhile) { m.a.was[0].Value = wire.SmallRecords + 1 }, says: wire.ReplyOK},
		"one that is there by now": {meanwhile: func(m meanwhile) {
			one(m.t, m.other, add("new", "o"))
		},
			change: []session.Command{add("new", "w")}, says: wire.ReplyLost},
		"one that is gone": {meanwhile: func(m meanwhile) {
			one(m.t, m.other, &session.Delete{NS: testNS, Key: "k", By: session.Maker{Client: "o"}})
		}, says: wire.ReplyLost},
		"one that was only looked at": {meanwhile: func(m meanwhile) {
			require.False(m.t, m.a.wrote[m.a.at[session.CounterKey(testNS, "none")]])
			one(m.t, m.other, add("none", "o"))
		},
			change: []session.Command{add("k", "w"), &session.Delete{NS: testNS, Key: "none", By: session.Maker{Client: "w"}}}, says: wire.ReplyLost},
		"a later time, by little": {meanwhile: func(m meanwhile) {
			m.later.pass(maxBehind - time.Millisecond)
			one(m.t, m.other, add("l", "o"))
		}, says: wire.ReplyOK},
		"a later time": {meanwhile: func(m meanwhile) {
			m.later.pass(maxBehind + time.Millisecond)
			one(m.t, m.other, add("l", "o"))
		}, says: wire.ReplyLost},
		"a snapshot that is saved": {meanwhile: func(m meanwhile) { m.s.do("SET", "{gov}:frozen", "x") }, says: wire.ReplyFrozen},
		"another epoch": {meanwhile: func(m meanwhile) {
			var snapshot bytes.Buffer
			require.NoError(m.t, m.other.Save(m.t.Context(), &snapshot))
			require.NoError(m.t, m.other.Restore(m.t.Context(), &snapshot))
		}, says: wire.ReplyEpoch},
		"another primary": {meanwhile: func(m meanwhile) {
			other := *m.a.s.e
			other.replid = "0123456789012345678901234567890123456789"
			m.a.s.e = &other
		}, says: wire.ReplyServer},
		"no clock":                  {meanwhile: func(m meanwhile) { m.s.do("DEL", "{gov}:clock") }, says: wire.ReplyAbsent},
		"an older mark":             {meanwhile: func(m meanwhile) { m.s.do("DEL", "{gov}:marks") }, says: wire.ReplyBehind},
		"a shorter list":            {meanwhile: func(m meanwhile) { m.s.do("ZREM", "{gov:test}:x:k", "l") }, change: []session.Command{add("new", "w")}, says: wire.ReplyAbsent},
		"a record that was evicted": {meanwhile: func(m meanwhile) { m.s.do("DEL", "{gov:test}:r:ktest/k") }, says: wire.ReplyAbsent},
		"one of many that was": {meanwhile: func(m meanwhile) { m.s.do("DEL", "{gov:test}:r:ktest/l") },
			change: []session.Command{add("k", "w"), add("l", "w"), add("m", "w")}, says: wire.ReplyAbsent},
		"one of the large that was": {meanwhile: func(m meanwhile) {
			m.a.was[0].Value = wire.SmallRecords + 1
			m.s.do("DEL", "{gov:test}:r:ktest/m")
		}, change: []session.Command{add("k", "w"), add("m", "w")}, says: wire.ReplyAbsent},
		"one that was, beside one that is another": {meanwhile: func(m meanwhile) {
			one(m.t, m.other, add("k", "o"))
			m.s.do("DEL", "{gov:test}:r:ktest/l")
		}, change: []session.Command{add("k", "w"), add("l", "w")}, says: wire.ReplyAbsent},
		"one that was, with its name": {meanwhile: func(m meanwhile) {
			m.s.do("DEL", "{gov:test}:r:ktest/k")
			m.s.do("ZREM", "{gov:test}:x:k", "k")
		}, says: wire.ReplyAbsent},
		"one that was, with its index": {meanwhile: func(m meanwhile) { m.s.do("DEL", "{gov:test}:r:ktest/k", "{gov:test}:x:k") }, says: wire.ReplyAbsent},
		"others in line": {meanwhile: func(m meanwhile) {
			m.s.do("RPUSH", m.a.s.p.Turns(), "somebody")
			m.a.s.Turn = wire.Turn{Name: "me", More: "0"}
		}, says: wire.ReplyOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			now, later := clockAt(begins), clockAt(begins)
			r, other := s.timed("one", now), s.timed("two", later)
			for _, k := range []string{"k", "l", "m"} {
				one(t, r, add(k, "w"))
			}
			if len(c.change) == 0 {
				c.change = []session.Command{add("k", "w")}
			}
			_, a := unsent(t, r, until(t, r, time.Minute, c.change...))
			for _, node := range []*Store{r, other} { // their beats would find it first
				require.Eventually(t, func() bool { return node.domain("").beating.CompareAndSwap(false, true) }, 30*time.Second, time.Millisecond)
			}
			if c.meanwhile != nil {
				c.meanwhile(meanwhile{t, s, other, later, a})
			}
			before := dump(s)
			_, status, err := r.send(t.Context(), a.s, a.was, a.now, a.mono)
			require.NoError(t, err)
			require.Equal(t, c.says, status)
			if status != wire.ReplyOK {
				require.Equal(t, before, dump(s), "it wrote something all the same")
			}
		})
	}
}

// dump returns all records.
func dump(s *server) map[string]any {
	all := map[string]any{}
	for _, key := range s.do("KEYS", "*}:r:*").([]any) {
		all[key.(string)] = s.do("GET", key)
	}
	return all
}

// The clock that is stored never goes back, though nodes be behind it.
func TestRedisStoredClockGoesForward(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	late := clockAt(time.Minute + maxBehind/2)
	one(t, s.timed("late", late), add("k", "w"))
	behind := s.timed("early", clockAt(time.Minute))
	for i := range 3 {
		one(t, behind, count("w", fmt.Sprint(i)))
		stored, _, err := wire.ParseClock(s.do("GET", "{gov}:clock"))
		require.NoError(t, err)
		require.Equal(t, late.now(), stored)
	}
}

func TestRedisStampsAreUsedOnce(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	seen := map[wire.Stamp]bool{}
	for i := range 3 {
		r := s.open(fmt.Sprint("n", i%2)) // the same name, even
		for range 1000 {
			st := r.nextStamp()
			require.Len(t, st, wire.StampLen)
			require.False(t, seen[st])
			seen[st] = true
		}
	}
}

// Data that has lost swaps is not read.
func TestRedisLoadOfOlderData(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	for i := range 5 {
		one(t, r, count("w", fmt.Sprint(i)))
	}
	p := r.place(testNS)
	e, err := p.d.serving(t.Context())
	require.NoError(t, err)
	_, status, err := r.load(t.Context(), p, e, []wire.Want{{Key: session.CounterKey(testNS, "k")}}, true)
	require.NoError(t, err)
	require.Equal(t, wire.ReplyOK, status)
	for what, e := range map[string]*epoch{
		"of another epoch":   epoch{state: epochOpen, id: "x", replid: e.replid, runid: e.runid}.with(),
		"of another primary": {text: e.text, replid: "0123456789012345678901234567890123456789"},
	} {
		_, status, err := r.load(t.Context(), p, e, []wire.Want{{Key: session.CounterKey(testNS, "k")}}, true)
		require.NoError(t, err)
		require.NotEqual(t, wire.ReplyOK, status, what)
	}
	s.do("SET", "{gov}:clock", s.do("GET", "{gov}:clock").(string)[:20]+"1")
	_, status, err = r.load(t.Context(), p, e, []wire.Want{{Key: session.CounterKey(testNS, "k")}}, true)
	require.NoError(t, err)
	require.NotEqual(t, wire.ReplyOK, status)
}

// A record stands among what is due no later than it comes up, and is moved when
// it came up too early.
func TestRedisStandsWhereItIsDue(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	var at clock
	r := s.timed("one", &at)
	one(t, r, &session.PutPool{NS: testNS, Pool: "one", Slots: 5, By: session.Maker{Client: "t", Request: "put"}})
	acquire := func(slot string, ttl time.Duration) session.Result {
		return one(t, r, &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "one", Weight: 1, TTL: ttl})
	}
	stands := func() time.Duration {
		return time.Duration(s.client.ZScore(t.Context(), "{gov}:due", "ptest/one").Val()) * time.Millisecond
	}
	long := acquire("long", time.Minute)
	require.Equal(t, time.Minute, stands())
	short := acquire("short", 10*time.Second)
	require.Equal(t, 10*time.Second, stands(), "it comes up earlier than it stood")
	one(t, r, &session.Release{NS: testNS, Client: "w", Slot: "short", Pool: "one", Token: short.Grants[0].Token})
	at.set(20 * time.Second)
	require.Eventually(t, func() bool {
		r.settle(r.domain(""))
		return stands() == time.Minute
	}, 30*time.Second, time.Millisecond, "it stands where there is nothing to settle")
	_ = long
	sound(t, s, r)
}

// Who waits at another node is told at once that a slot was handed over.
func TestRedisTellsOfWhatIsHandedOver(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	one(t, r, &session.PutPool{NS: testNS, Pool: "one", Slots: 1, Queue: 10, By: session.Maker{Client: "t", Request: "put"}})
	first := one(t, r, take("first", 0))
	require.Equal(t, session.Queued, one(t, r, take("second", time.Minute)).Code)
	sub := s.client.Subscribe(t.Context(), "{gov}:hints")
	defer sub.Close()
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	one(t, r, give("first", first.Grants[0].Token))
	select {
	case m := <-sub.Channel():
		require.Equal(t, r.name+" "+testNS, m.Payload)
	case <-time.After(20 * time.Second):
		t.Fatal("nobody was told")
	}
}

// Redis has no memory left: what would be written is refused, and nothing of it
// is there.
func TestRedisFull(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	setup(t, r)
	s.do("CONFIG", "SET", "maxmemory", "1")
	_, _, err := storage.One(t.Context(), r, &session.Acquire{NS: testNS, Client: "w", Slot: "1", Pool: "a", Weight: 1, TTL: time.Minute})
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	s.do("CONFIG", "SET", "maxmemory", "0")
	f := &fleet{t: t, nodes: []*Store{r}}
	res := f.must(0, &session.Acquire{NS: testNS, Client: "w", Slot: "1", Pool: "a", Weight: 1, TTL: time.Minute})
	require.Equal(t, session.Admitted, res.Code)
	require.False(t, res.Repeat, "the refused attempt left nothing")
	require.Equal(t, uint64(1), res.Grants[0].Token)
}
