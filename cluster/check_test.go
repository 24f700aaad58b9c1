package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		voters  int    // v1, v2, ...
		answers string // a letter for each voter, then for n1, n2, ... without a vote; . is missing
		want    string // verdict of each, by its first letter; . is not asked
	}{
		{1, "A", "a"},
		{2, "AA", "aa"},
		{2, "AB", "ss"},
		{2, "A.", "u."},
		{3, "AAA", "aaa"},
		{3, "AAB", "aad"},
		{3, "BAA", "daa"},
		{3, "AB.", "uu."},
		{3, "AA.", "aa."},
		{3, ".AA", ".aa"},
		{3, "A.B", "u.u"},
		{3, "A..", "u.."},
		{3, "ABC", "sss"},
		{4, "AABB", "ssss"},
		{4, "AAB.", "uuu."},
		{4, "AAAB", "aaad"},
		{4, "AA..", "uu.."},
		{5, "AABBC", "sssss"},
		{5, "AABB.", "uuuu."},
		{5, "AABC.", "uuuu."},
		{5, "AAABB", "aaadd"},
		{5, "AAAB.", "aaad."},
		{5, "AA...", "uu..."},
		{5, "ABCD.", "ssss."},
		{3, "AAAA", "aaaa"}, // one without a vote
		{3, "AAAB", "aaad"},
		{3, "AA.B", "aa.d"},
		{3, "A..A", "u..u"}, // whose word does not count
		{3, "AB.BBBB", "uu.uuuu"},
		{3, "ABCCC", "sssss"},
	} {
		var voters []string
		digests := map[string]session.Digest{}
		name := func(i int) string {
			if i < c.voters {
				return fmt.Sprint("v", i+1)
			}
			return fmt.Sprint("n", i-c.voters+1)
		}
		for i, a := range c.answers {
			if i < c.voters {
				voters = append(voters, name(i))
			}
			if a != '.' {
				digests[name(i)] = session.Digest{byte(a)}
			}
		}
		for i, w := range c.want {
			if w != '.' {
				require.Equal(t, string(w), string("uads"[judge(name(i), voters, digests)]), "%d voters, %s: %s", c.voters, c.answers, name(i))
			}
		}
	}
}

// comparing is a cluster that compares its states often.
func comparing(t *testing.T, size int) *testCluster {
	c := newCluster(t, size, func(cfg *Config) { cfg.CheckInterval = 100 * time.Millisecond })
	for i := range 5 {
		_, _, err := storage.One(within(t, 10*time.Second), c.leader(), increment(fmt.Sprint(i)))
		require.NoError(t, err)
	}
	return c
}

// spoil changes the state of a node behind its back.
func (n *testNode) spoil(request string) {
	n.fsm.mu.Lock()
	defer n.fsm.mu.Unlock()
	n.fsm.state.ApplyAll(n.fsm.state.Now(), []session.Command{increment(request)})
}

// order orders a check, and returns when it is in the log.
func (c *testCluster) order(without ...*testNode) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		n := c.leader(without...)
		l, before, g := n.leading.Load(), n.fsm.lastCheck(), newCheck()
		if l == nil || l.queue.first(g) != nil {
			return false
		}
		select {
		case <-g.done:
		case <-l.ctx.Done():
		}
		return n.fsm.lastCheck() != before
	}, 20*time.Second, time.Millisecond)
}

// agreed returns how many checks found that a node agrees.
func (n *testNode) agreed() float64 { return counted(n.metrics.checks.WithLabelValues("agree")) }

// agreeAgain waits until nodes have agreed in two more checks.
func agreeAgain(t *testing.T, nodes ...*testNode) {
	t.Helper()
	for _, n := range nodes {
		before := n.agreed()
		require.Eventually(t, func() bool { return n.agreed() >= before+2 }, 20*time.Second, time.Millisecond, n.cfg.ID)
		require.Nil(t, n.failed.Load())
	}
}

func counted(c prometheus.Counter) float64 {
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	families, _ := r.Gather() // of one counter
	return families[0].GetMetric()[0].GetCounter().GetValue()
}

func stops(t *testing.T, n *testNode) string {
	t.Helper()
	select {
	case err := <-n.fatal:
		return err.Error()
	case <-time.After(20 * time.Second):
		t.Fatalf("%s goes on", n.cfg.ID)
		return ""
	}
}

// Who differs stops, whether it follows or leads, and the others go on.
func TestANodeThatDiffersStops(t *testing.T) {
	t.Parallel()
	for _, leads := range []bool{false, true} {
		t.Run(fmt.Sprint("leads=", leads), func(t *testing.T) {
			t.Parallel()
			c := comparing(t, 3)
			agreeAgain(t, c.nodes...)
			bad := c.follower()
			if leads {
				bad = c.leader()
			}
			bad.spoil("rogue")
			text := stops(t, bad)
			require.Contains(t, text, "differs from that of a majority")
			require.Contains(t, text, "--replace")
			require.ErrorContains(t, bad.Ready(t.Context()), "failed: ")
			var others []*testNode
			for _, n := range c.nodes {
				if n != bad {
					others = append(others, n)
				}
			}
			agreeAgain(t, others...)
			require.EqualValues(t, 5, count(t, c.leader(bad), storage.Latest))
		})
	}
}

// So does one in whose memory a bit turns where nobody writes, within two rounds
// and without a majority that says so.
func TestANodeWhoseMemoryChangesStops(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 3} {
		t.Run(fmt.Sprint("nodes=", size), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, size, func(cfg *Config) { cfg.CheckInterval = time.Hour })
			_, _, err := storage.One(within(t, 10*time.Second), c.leader(), increment("1"))
			require.NoError(t, err)
			agree := func(want int) { // all that have not stopped
				for _, n := range c.nodes {
					require.Eventually(t, func() bool { return n.agreed() == float64(want) || n.failed.Load() != nil }, 20*time.Second, time.Millisecond, n.cfg.ID)
				}
			}
			c.order()
			agree(1)
			bad := c.nodes[size-1]
			bad.fsm.mu.Lock()
			bad.fsm.state.Stored(session.CounterKey("default", "k")).(*session.Counter).Value.N ^= 1 << 40
			bad.fsm.mu.Unlock()
			round := 1
			for ; bad.failed.Load() == nil; agree(round) {
				require.LessOrEqual(t, round, 2, "it goes on")
				c.order()
				round++
			}
			text := stops(t, bad)
			require.Contains(t, text, "changed by itself")
			require.Contains(t, text, "--replace")
			if size > 1 {
				c.order(bad)
				agree(round + 1)
				for _, n := range c.nodes[:size-1] {
					require.Nil(t, n.failed.Load())
					require.EqualValues(t, 1, count(t, n, storage.Latest))
				}
			}
		})
	}
}

// So does one that has left an entry out, and one without a vote.
func TestANodeThatLeftAnEntryOutStops(t *testing.T) {
	t.Parallel()
	c := comparing(t, 3)
	bad := c.add("watcher", func(cfg *Config) { cfg.Nonvoter, cfg.CheckInterval = true, 100*time.Millisecond })
	bad.waitReady(t)
	agreeAgain(t, c.nodes...)

	var b bytes.Buffer
	before, _ := bad.fsm.snapshot()
	require.NoError(t, session.WriteSnapshot(&b, before))
	_, index, err := storage.One(t.Context(), c.leader(), increment("left-out"))
	require.NoError(t, err)
	require.NoError(t, bad.wait(within(t, 10*time.Second), index))
	without, err := session.ReadSnapshot(&b)
	require.NoError(t, err)
	bad.fsm.mu.Lock()
	bad.fsm.state = without
	bad.fsm.mu.Unlock()
	require.Contains(t, stops(t, bad), "differs")
	agreeAgain(t, c.nodes[:3]...)
}

// Where no majority agrees any more nobody knows who is right: all stop, and all
// say so.
func TestWithoutAMajorityAllStop(t *testing.T) {
	t.Parallel()
	c := comparing(t, 5)
	agreeAgain(t, c.nodes...)
	for spoiled := false; !spoiled; {
		for _, n := range c.nodes {
			n.fsm.mu.Lock()
		}
		spoiled = true
		for _, n := range c.nodes { // no check comes in between
			spoiled = spoiled && n.fsm.index == c.nodes[0].fsm.index
		}
		for i, n := range c.nodes {
			if spoiled && i > 1 {
				n.fsm.state.ApplyAll(n.fsm.state.Now(), []session.Command{increment(fmt.Sprint("rogue", i/2))})
			}
		}
		for _, n := range c.nodes {
			n.fsm.mu.Unlock()
		}
	}
	for _, n := range c.nodes {
		text := stops(t, n)
		require.Contains(t, text, "no majority of the voters")
		require.Contains(t, text, "n1, n2 have ")
	}
}

// Checks go on, and fool nobody, while leaders change and nodes begin anew from a
// snapshot of another.
func TestChecksSpanLeaderships(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(cfg *Config) {
		cfg.CheckInterval, cfg.SnapshotBytes, cfg.TrailingLogs = 50*time.Millisecond, 1, 1
	})
	late := c.follower()
	require.NoError(t, late.Close())
	for i := range 20 {
		_, _, err := storage.One(within(t, 20*time.Second), c.leader(late), increment(fmt.Sprint(i)))
		require.NoError(t, err)
	}
	for _, n := range c.nodes {
		if n != late {
			require.NoError(t, await(n.raft.Snapshot(), n.dead))
		}
	}
	late = c.restart(late)
	for i := range 10 {
		_ = late.TransferLeadership(within(t, 10*time.Second), "") // some transfers fail
		_, _, err := storage.One(within(t, 20*time.Second), late, increment(fmt.Sprint("more", i)))
		require.NoError(t, err)
	}
	late.waitReady(t)
	require.Positive(t, counted(late.metrics.restores))
	agreeAgain(t, c.nodes...)
}

// Leaders that change faster than checks are due order them all the same.
func TestChecksAreOrderedInTime(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(cfg *Config) { cfg.CheckInterval = time.Second })
	before := c.nodes[0].agreed()
	for deadline := time.Now().Add(30 * time.Second); c.nodes[0].agreed() < before+2; {
		// No leadership is as old as the interval.
		require.True(t, time.Now().Before(deadline), "no check is ordered")
		_ = c.leader().TransferLeadership(within(t, 10*time.Second), "") // some fail
	}
}

// A check is ordered an interval after the latest one, whoever ordered that, and an interval
// after one that came to nothing, as long as the leadership lasts.
func TestWhenACheckIsOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{fsm: newFSM(noFatal(t), newMetrics()), cfg: Config{CheckInterval: time.Minute}}
		ctx, end := context.WithCancel(t.Context())
		l := &leadership{ctx: ctx, queue: newQueue(10, entrySize)}
		ordered := func(after time.Duration) *group {
			t.Helper()
			begin := time.Now()
			groups := l.queue.take(t.Context())
			require.Len(t, groups, 1)
			require.True(t, groups[0].check)
			require.Equal(t, after, time.Since(begin))
			l.queue.free(groups)
			return groups[0]
		}
		time.Sleep(20 * time.Second)
		go n.orderChecks(l)
		ordered(40 * time.Second).fail(storage.Refused(errVoid))
		g := ordered(time.Minute)
		time.Sleep(5 * time.Second)
		n.fsm.Apply(logEntry(1, 1, 0))
		g.fail(storage.Answer{})
		ordered(time.Minute)
		end()
		synctest.Wait()
		require.Zero(t, l.queue.len())
	})
}

// The states of the latest four checks are remembered.
func TestWhichStatesAreRemembered(t *testing.T) {
	var s states
	for i := range uint64(4) {
		s.note(i+1, "n1", session.Digest{1})
	}
	require.Equal(t, []uint64{1, 2, 3, 4}, s.indexes())
	s.note(5, "n1", session.Digest{1})
	s.note(3, "n2", session.Digest{2})
	require.Equal(t, []uint64{2, 3, 4, 5}, s.indexes())
	require.Equal(t, map[string]session.Digest{"n1": {1}, "n2": {2}}, s.of(3))
	require.Empty(t, s.of(1))
}

// Of what nobody writes to half is looked at in each round: a bit that turns there is found
// in two.
func TestAllIsLookedAtInTwoRounds(t *testing.T) {
	n := &Node{ctx: t.Context(), metrics: newMetrics()}
	for i := range 8 {
		key := fmt.Sprint("k", i)
		state := session.New()
		state.ApplyAll(0, []session.Command{&session.Set{NS: "default", By: session.Maker{Client: "c"}, Key: key, Value: session.Value{Text: "text"}}})
		_, err := n.digest(check{index: 1, term: 1, state: state.Snapshot()}, i)
		require.NoError(t, err)
		state.Stored(session.CounterKey("default", key)).(*session.Counter).Value.Text = "tezt"
		for round := range 2 {
			_, again := n.digest(check{index: 2, term: 1, state: state.Snapshot()}, i+1+round)
			err = errors.Join(err, again)
		}
		require.ErrorIs(t, err, session.ErrDamaged, key)
	}
}

// A node tells its state again and again until the others have told theirs, or the next check
// is there. That it agreed before, or knows of a check that it had no part in, says nothing.
func TestANodeTellsItsStateUntilOthersTellTheirs(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(cfg *Config) { cfg.CheckInterval = time.Hour })
	const before, earlier, now = 997, 998, 999
	mine, other := session.Digest{1}, session.Digest{2}
	n := &Node{ // the first of the members, with nothing else to do
		cfg: c.nodes[0].Node.cfg, raft: c.nodes[0].raft, peers: c.nodes[0].peers, ctx: t.Context(),
		metrics: newMetrics(), fsm: newFSM(noFatal(t), newMetrics()),
	}
	n.cfg.CheckInterval = 8 * time.Millisecond
	n.states.note(before, "n2", other)
	for _, id := range []string{"n1", "n2", "n3"} {
		n.states.note(earlier, id, mine)
	}
	n.states.note(now, "n1", mine)
	compare := func() (done chan struct{}) {
		done = make(chan struct{})
		go func() {
			n.compare(now, mine)
			close(done)
		}()
		return done
	}
	told := func() {
		for _, o := range c.nodes[1:] { // and each time it forgets
			o.states.note(now, "n1", other)
			require.Eventually(t, func() bool { return o.states.of(now)["n1"] == mine }, 20*time.Second, time.Millisecond)
		}
	}
	over := func(done chan struct{}) bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	done := compare()
	for range 3 {
		told()
	}
	require.False(t, over(done))
	n.fsm.Apply(logEntry(1, 1, 0))
	require.Eventually(t, func() bool { return over(done) }, 20*time.Second, time.Millisecond, "the next check is there")
	<-n.fsm.checks
	require.Zero(t, counted(n.metrics.checks.WithLabelValues("agree")))

	done = compare()
	for _, o := range c.nodes[1:] {
		o.states.note(now, o.cfg.ID, mine)
	}
	require.Eventually(t, func() bool { return over(done) }, 20*time.Second, time.Millisecond, "they agree")
	require.EqualValues(t, 1, counted(n.metrics.checks.WithLabelValues("agree")))
}

// What a node says when it stops names who has which state.
func TestWhoHasWhichState(t *testing.T) {
	digests := map[string]session.Digest{"b": {1}, "a": {1}, "d": {0xab, 2}, "c": {0xab, 2}, "x": {3}}
	for range 20 { // maps have no order
		for _, v := range []verdict{differs, split} {
			err := v.sentence(7, []string{"b", "d", "e", "a", "c"}, digests)
			require.ErrorContains(t, err, "index 7 of the log")
			require.ErrorContains(t, err, "(a, b have 01000000; c, d have ab020000)")
			require.Equal(t, v == differs, strings.Contains(err.Error(), "--replace"))
		}
	}
}

// The digest that a node made last is there for others to look at.
func TestTheLatestDigest(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(cfg *Config) { cfg.CheckInterval = time.Hour })
	n := c.leader()
	index, digest := n.LatestDigest()
	require.Zero(t, index)
	require.Zero(t, digest)
	c.order()
	require.Eventually(t, func() bool { return n.agreed() == 1 }, 20*time.Second, time.Millisecond)
	index, digest = n.LatestDigest()
	require.NotZero(t, index)
	require.Equal(t, map[string]session.Digest{"n1": digest}, n.states.of(index))
}
