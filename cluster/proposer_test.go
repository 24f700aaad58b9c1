package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/window"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

func sized(sizes ...int) *group {
	var p []pending
	for _, n := range sizes {
		p = append(p, pending{raw: make([]byte, n)})
	}
	return newGroup(p)
}

func TestQueue(t *testing.T) {
	q := newQueue(10, entrySize)
	small, large, other := sized(10, 10), sized(maxEntry), sized(5)
	for _, g := range []*group{small, large, other} {
		require.NoError(t, q.add(g))
	}
	require.ErrorIs(t, q.add(sized(1, 1, 1, 1, 1, 1, 1)), errFull)
	require.Equal(t, 4, q.len())
	take := func() []*group {
		groups := q.take(t.Context())
		if groups != nil {
			q.free(groups)
		}
		return groups
	}
	require.Equal(t, []*group{small}, take(), "what does not fit waits for the next entry")
	require.Equal(t, []*group{large}, take(), "a large one goes alone")
	require.Equal(t, []*group{other}, take(), "and nobody overtakes")
	require.Zero(t, q.len())

	left := sized(1)
	require.NoError(t, q.add(left))
	require.NoError(t, q.add(sized(2)))
	require.True(t, left.leave())
	require.NotContains(t, take(), left, "who went away is not proposed")
	require.False(t, left.leave())

	waits := sized(1)
	require.NoError(t, q.add(waits))
	q.close(errElsewhere)
	<-waits.done
	require.Equal(t, storage.NotApplied, waits.answers[0].Outcome)
	require.ErrorIs(t, q.add(sized(1)), errElsewhere)
	require.Nil(t, take())

	q = newQueue(10, entrySize)
	check, before, after := newCheck(), sized(1), sized(1)
	for _, g := range []*group{before, check, after} {
		require.NoError(t, q.add(g))
	}
	require.Equal(t, []*group{before}, take())
	require.Equal(t, []*group{check}, take(), "a check has an entry of its own")
	require.Equal(t, []*group{after}, take())

	q = newQueue(1<<20, entrySize)
	for range maxQueueBytes / maxEntry {
		require.NoError(t, q.add(sized(maxEntry)))
	}
	require.ErrorIs(t, q.add(sized(1)), errFull, "bytes are bounded, too")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Nil(t, newQueue(1, entrySize).take(ctx))
}

// Two entries are under way at once, and the next goes when one of them is over; whoever
// closes the queue can wait until all are.
func TestTwoEntriesAreUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(10, window.Size{Count: 1})
		for range 3 {
			require.NoError(t, q.add(sized(1)))
		}
		first, second := q.take(t.Context()), q.take(t.Context())
		third := make(chan []*group, 1)
		go func() { third <- q.take(t.Context()) }()
		synctest.Wait()
		require.Empty(t, third)
		require.Equal(t, 1, q.len())
		require.Equal(t, 2, q.underWay())
		q.free(first)
		last := <-third
		require.Len(t, last, 1)
		require.Equal(t, 2, q.underWay())

		q.close(errElsewhere)
		idle := make(chan struct{})
		go func() {
			q.idle()
			close(idle)
		}()
		for _, groups := range [][]*group{second, last} {
			synctest.Wait()
			select {
			case <-idle:
				t.Fatalf("%d are under way", q.underWay())
			default:
			}
			q.free(groups)
		}
		<-idle
		require.Zero(t, q.underWay())
	})
}

// Two full batches of two followers fill an entry, whatever they are full of.
func TestTwoBatchesFillAnEntry(t *testing.T) {
	for name, full := range map[string]func() *group{
		"of commands": func() *group { return sized(make([]int, batchSize.Count)...) },
		"of bytes":    func() *group { return sized(batchSize.Bytes) },
	} {
		q := newQueue(1<<20, entrySize)
		for range 3 {
			require.NoError(t, q.add(full()))
		}
		require.Len(t, q.take(t.Context()), 2, name)
		require.Len(t, q.take(t.Context()), 1, name)
	}
}

// held is a cluster of one whose disk is held up, with both entries that may be
// under way before it.
func held(t *testing.T, queue int) (n *testNode, open func(), underWay *sync.WaitGroup) {
	var disks gates
	c := newCluster(t, 1, func(cfg *Config) {
		disks.use(cfg)
		cfg.MaxQueue = queue
	})
	n, underWay = c.nodes[0], new(sync.WaitGroup)
	require.Eventually(t, func() bool { // the first Tick of the leadership
		return n.fsm.applied() > n.fsm.memberIndex() && n.leading.Load().queue.underWay() == 0
	}, 5*time.Second, time.Millisecond)
	open = disks.of(n).shut()
	t.Cleanup(open)
	for i := range inFlight {
		underWay.Go(func() {
			if _, _, err := storage.One(t.Context(), n, increment(fmt.Sprint("first", i))); err != nil {
				t.Error(err)
			}
		})
		// The first stands before the disk; the second before Raft.
		require.Eventually(t, func() bool {
			l := n.leading.Load()
			return disks.of(n).held.Load() == 1 && l.queue.len() == 0 && l.queue.underWay() == i+1
		}, 5*time.Second, time.Millisecond)
	}
	return n, open, underWay
}

func TestWhatWaitsGoesIntoOneEntry(t *testing.T) {
	n, open, underWay := held(t, 0)
	const callers = 200
	indexes := make([]uint64, callers)
	for i := range callers {
		underWay.Go(func() {
			_, index, err := storage.One(t.Context(), n, increment(fmt.Sprint("r", i)))
			if err != nil {
				t.Error(err)
			}
			indexes[i] = index
		})
	}
	require.Eventually(t, func() bool { return n.queued() == callers }, 5*time.Second, time.Millisecond)
	open()
	underWay.Wait()
	for _, i := range indexes {
		require.Equal(t, indexes[0], i)
	}
	require.EqualValues(t, callers+inFlight, count(t, n, storage.Latest))
}

func TestTheQueueIsBounded(t *testing.T) {
	n, open, underWay := held(t, 2)
	for i := range 2 {
		underWay.Go(func() {
			if _, _, err := storage.One(t.Context(), n, increment(fmt.Sprint("waits", i))); err != nil {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool { return n.queued() == 2 }, 5*time.Second, time.Millisecond)
	start := time.Now()
	_, _, err := storage.One(t.Context(), n, increment("too-many"))
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	require.ErrorIs(t, err, errFull)
	require.Less(t, time.Since(start), 2*time.Second, "it is refused at once")
	open()
	underWay.Wait()
	require.EqualValues(t, 2+inFlight, count(t, n, storage.Latest))
}

// However much callers ask for, log time has its place, before all that waits.
func TestTicksPassAFullQueue(t *testing.T) {
	n, open, underWay := held(t, 1)
	underWay.Go(func() {
		if _, _, err := storage.One(t.Context(), n, increment("waits")); err != nil {
			t.Error(err)
		}
	})
	require.Eventually(t, func() bool { return n.queued() == 1 }, 5*time.Second, time.Millisecond)
	l := n.leading.Load()
	require.ErrorIs(t, l.queue.add(sized(1)), errFull)
	ticked := make(chan error, 1)
	go func() { ticked <- l.tick(t.Context(), &session.Tick{}) }()
	require.Eventually(t, func() bool { return n.queued() == 2 }, 5*time.Second, time.Millisecond)
	l.queue.mu.Lock()
	line, _ := l.queue.window.Line()
	require.IsType(t, &session.Tick{}, line[0].commands[0].cmd)
	l.queue.mu.Unlock()
	open()
	require.NoError(t, <-ticked)
	underWay.Wait()
}

// Who goes away while his command waits has not sent it; who goes away later
// does not know.
func TestWhoGoesAway(t *testing.T) {
	n, open, underWay := held(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error)
	go func() {
		_, _, err := storage.One(ctx, n, increment("waits"))
		answered <- err
	}()
	require.Eventually(t, func() bool { return n.queued() == 1 }, 5*time.Second, time.Millisecond)
	cancel()
	err := <-answered
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	require.ErrorIs(t, err, context.Canceled)
	open()
	underWay.Wait()
	require.EqualValues(t, inFlight, count(t, n, storage.Latest), "it was not applied")

	// The caller's deadline is also looked at when the entry is made.
	l := n.leading.Load()
	late := newGroup([]pending{
		{cmd: increment("late"), raw: session.EncodeCommand(increment("late")), until: time.Now().Add(-time.Second)},
		{cmd: increment("in-time"), raw: session.EncodeCommand(increment("in-time")), until: time.Now().Add(time.Minute)},
	})
	require.NoError(t, l.submit(late))
	<-late.done
	require.ErrorIs(t, late.answers[0].Err, errTooLate)
	require.NoError(t, late.answers[1].Err)
}

func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want storage.Outcome
	}{
		{raft.ErrNotLeader, storage.NotApplied},
		{raft.ErrLeadershipTransferInProgress, storage.NotApplied},
		{raft.ErrEnqueueTimeout, storage.NotApplied},
		{raft.ErrLeadershipLost, storage.Unknown},
		{raft.ErrAbortedByRestore, storage.Unknown},
		{raft.ErrRaftShutdown, storage.Unknown},
		{errDisk, storage.Unknown},
	} {
		a := proposed(c.err)
		require.Equal(t, c.want, a.Outcome)
		require.ErrorIs(t, a.Err, c.err)
		require.Equal(t, c.want == storage.NotApplied, errors.Is(a.Err, errElsewhere), "only what was not applied is sent elsewhere")
	}
}

// A command that not every member knows is refused, by name of the member.
func TestCommandsThatAMemberDoesNotKnow(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	old := c.add("old", func(cfg *Config) { cfg.version = 18 })
	c.waitReady()
	hash := &session.PutHash{NS: "default", By: session.Maker{Client: "c", Request: "h"}, Tool: "t", Hash: "sha256:" + strings.Repeat("0", 64)}
	require.EqualValues(t, 19, hash.Kind())
	for _, n := range c.nodes {
		answers := n.Apply(t.Context(), increment("before-"+n.cfg.ID), hash, increment("after-"+n.cfg.ID))
		require.NoError(t, answers[0].Err)
		require.ErrorIs(t, answers[1].Err, storage.ErrInvalid)
		require.ErrorContains(t, answers[1].Err, "member old does not know commands of kind 19")
		require.NoError(t, answers[2].Err)
	}
	require.NoError(t, (&leadership{known: newMembers("new", 19, silentAfter)}).check(&pending{cmd: hash, valid: true}), "one that knows it as the newest")
	require.NoError(t, old.Close())
	old.cfg.version = 0
	c.restart(old)
	require.Eventually(t, func() bool { return c.leader().Apply(t.Context(), hash)[0].Err == nil }, 10*time.Second, 10*time.Millisecond)
}

// A member that is down, and that the leader never heard of since it began, knows what the
// first release knows: the others go on with all of it. So does one that was added and was
// not started yet.
func TestCommandsWithoutAMemberThatIsDown(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, session.Version, firstVersion, "nothing is released yet")
	c := newCluster(t, 3, nil)
	nodes := slices.Clone(c.nodes)
	for _, n := range nodes {
		require.NoError(t, n.Close())
	}
	c.forget(nodes[2])
	for _, n := range nodes[:2] {
		c.restart(n)
	}
	c.waitReady()
	token := func(id string) *session.PutToken {
		return &session.PutToken{NS: "default", By: session.Maker{Client: "c", Request: id}, Token: session.Token{ID: id, Hash: session.Digest{1}, Roles: 2}}
	}
	_, _, err := storage.One(within(t, 20*time.Second), c.leader(), token("t1"))
	require.NoError(t, err)
	require.NoError(t, c.leader().AddNode(within(t, 10*time.Second), "n9", "127.0.0.1:1", true))
	_, _, err = storage.One(within(t, 20*time.Second), c.leader(), token("t2"))
	require.NoError(t, err)
}

// A leader writes nothing that a member may not know from which it has not heard since it began. Nobody
// holds up a node that is alone, or those who have just come together.
func TestCommandsBeforeAMemberIsHeardOf(t *testing.T) {
	t.Parallel()
	const silent = "127.0.0.1:1"
	newer := func(cfg *Config) {
		cfg.version = firstVersion + 1
		dial := cfg.Dial
		cfg.Dial = func(ctx context.Context, to string) (net.Conn, error) {
			if to == silent {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return dial(ctx, to)
		}
	}
	c := newCluster(t, 1, newer)
	n := c.leader()
	require.NoError(t, n.members.know(firstVersion+1))
	require.NoError(t, n.AddNode(within(t, 10*time.Second), "n9", silent, true))
	require.NoError(t, n.Close())
	c.restart(n)
	n = c.leader()
	require.NoError(t, n.members.know(firstVersion))
	why := n.members.know(firstVersion + 1)
	require.ErrorContains(t, why, "n9 has not been heard of yet")
	require.NotErrorIs(t, why, storage.ErrInvalid, "it may be heard of")
	snapshot := bytes.NewReader(bigState(t))
	require.ErrorContains(t, n.Restore(within(t, time.Second), snapshot), "n9 has not been heard of yet")

	fresh := newCluster(t, 3, newer).leader()
	require.Eventually(t, func() bool { return fresh.members.know(firstVersion+1) == nil }, 10*time.Second, time.Millisecond)
}

// What nobody wants any more takes no place: neither in the log, nor among those that may
// be under way.
func TestWhatNobodyWantsTakesNoPlace(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, nil).leader()
	l := n.leading.Load()
	require.Eventually(t, func() bool { // the first Tick of the leadership
		return n.fsm.applied() > n.fsm.memberIndex() && l.queue.underWay() == 0
	}, 10*time.Second, time.Millisecond)
	before := n.fsm.applied()
	for range inFlight + 1 {
		g := newGroup([]pending{{cmd: increment("late"), raw: session.EncodeCommand(increment("late")), until: time.Now().Add(-time.Second)}})
		require.NoError(t, l.submit(g))
		<-g.done
		require.Equal(t, storage.NotApplied, g.answers[0].Outcome)
		require.ErrorIs(t, g.answers[0].Err, errTooLate)
	}
	_, index, err := storage.One(within(t, 10*time.Second), n, increment("1"))
	require.NoError(t, err)
	require.Equal(t, before+1, index)
	require.EqualValues(t, 1, count(t, n, storage.Latest))
}

// Whoever drains waits for what is under way, as long as there is time.
func TestADrainWaitsForWhatIsUnderWay(t *testing.T) {
	n, open, underWay := held(t, 0)
	require.ErrorContains(t, n.Drain(within(t, 20*time.Millisecond)), "commands are still under way")
	open()
	require.NoError(t, n.Drain(within(t, 10*time.Second)))
	underWay.Wait()
}

// An outcome is the future of an entry that is there already.
type outcome struct {
	err      error
	response any
}

func (o outcome) Error() error  { return o.err }
func (o outcome) Index() uint64 { return 7 }
func (o outcome) Response() any { return o.response }

// What became of an entry is said to all commands of it that have no answer: what is not
// known to be harmless is unknown, and only what was not applied is sent elsewhere. Calls
// whose lease it found to have run out are told of.
func TestWhatBecameOfAnEntry(t *testing.T) {
	found := []session.Lapse{{Session: "s", Call: "c"}}
	for name, x := range map[string]struct {
		of   outcome
		want storage.Outcome
		says string
	}{
		"applied":             {outcome{nil, []session.Result{{Value: 3, Lapsed: found}}}, storage.Applied, ""},
		"of an earlier term":  {outcome{nil, errVoid}, storage.NotApplied, errVoid.Error()},
		"the node has failed": {outcome{nil, errStopped}, storage.Unknown, errStopped.Error()},
		"something else":      {outcome{nil, "rubbish"}, storage.Unknown, "the state machine answered string"},
		"the leader has lost": {outcome{raft.ErrLeadershipLost, nil}, storage.Unknown, raft.ErrLeadershipLost.Error()},
		"it was none":         {outcome{raft.ErrNotLeader, nil}, storage.NotApplied, raft.ErrNotLeader.Error()},
	} {
		var lapses storage.Lapses
		var told []session.Lapse
		lapses.OnLapse(func(l []session.Lapse) { told = append(told, l...) })
		g := sized(1, 1)
		g.answers[0] = storage.Refused(errTooLate)
		l := &leadership{metrics: newMetrics(), lapses: &lapses}
		l.finish(&entry{groups: []*group{g}}, x.of)
		<-g.done
		require.ErrorIs(t, g.answers[0].Err, errTooLate, name)
		a := g.answers[1]
		require.Equal(t, x.want, a.Outcome, name)
		require.Equal(t, x.want == storage.NotApplied, errors.Is(a.Err, errElsewhere), name)
		if x.want == storage.Applied {
			require.NoError(t, a.Err)
			require.EqualValues(t, 3, a.Result.Value)
			require.EqualValues(t, 7, a.Index)
			require.Equal(t, found, told)
			continue
		}
		require.ErrorContains(t, a.Err, x.says, name)
		require.Empty(t, told)
	}
}
