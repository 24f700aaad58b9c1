package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

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
