package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"example.com/govnode/cluster/durable"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A spy tells of some entries before a node stores them.
type spy struct {
	durable.Store
	of  func(l *raft.Log) bool
	see func(l *raft.Log)
}

func entriesOfARestore(l *raft.Log) bool { return l.Type == raft.LogCommand && isRestore(l) }
func changesOfMembers(l *raft.Log) bool  { return l.Type == raft.LogConfiguration }

func (s *spy) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s *spy) StoreLogs(logs []*raft.Log) error {
	for _, l := range logs {
		if s.of(l) {
			s.see(l)
		}
	}
	return s.Store.StoreLogs(logs)
}

// restoreFault is what happens to the leader of a restore, and when.
type restoreFault struct {
	point string
	what  string
	waits bool // the caller goes on waiting; otherwise it gives up at once
	via   string
}

// Whatever becomes of the leader in the middle of a restore: all nodes agree in
// the end, nobody ever reads what was not committed, and what the caller was
// told is true.
func TestRestoreUnderFaults(t *testing.T) {
	for _, point := range []string{"begin", "middle", "end", "applied"} {
		for _, what := range []string{"isolated", "closed", "deposed"} {
			f := restoreFault{point: point, what: what, waits: what != "isolated", via: "leader"}
			if what == "closed" || what == "deposed" && point == "middle" {
				f.via = "follower"
			}
			t.Run(point+"/"+what, func(t *testing.T) {
				t.Parallel()
				testRestoreFault(t, f)
			})
		}
	}
}

// bigState is more than one chunk, and its counter is 1.
func bigState(t *testing.T) []byte {
	t.Helper()
	s := session.New()
	s.ApplyAll(0, []session.Command{increment("1")})
	for i := range 40 {
		s.ApplyAll(0, []session.Command{&session.Set{
			NS: "default", By: session.Maker{Client: "c", Request: fmt.Sprint("s", i)}, Key: fmt.Sprint("s", i),
			Value: session.Value{Text: strings.Repeat("x", 4096)},
		}})
	}
	for i := range 10_000 {
		s.ApplyAll(0, []session.Command{&session.PutPool{NS: "default", Pool: fmt.Sprint("pool-with-a-long-name-", i), Slots: 1,
			By: session.Maker{Client: fmt.Sprint("c", i/100), Request: fmt.Sprint("p", i)}}})
	}
	var b bytes.Buffer
	require.NoError(t, session.WriteSnapshot(&b, s.Snapshot()))
	require.Greater(t, b.Len(), 3*restoreData)
	return b.Bytes()
}

// watchCounters polls nearby reads of every node until stop, and returns what
// each has seen, in order and without repetition.
func watchCounters(nodes []*testNode) (stop func() map[string][]int64) {
	done := make(chan struct{})
	var watching sync.WaitGroup
	var mu sync.Mutex
	seen := map[string][]int64{}
	for _, n := range nodes {
		watching.Go(func() {
			for {
				k := counterOf(n.fsm)
				mu.Lock()
				if s := seen[n.cfg.ID]; len(s) == 0 || s[len(s)-1] != k {
					seen[n.cfg.ID] = append(s, k)
				}
				mu.Unlock()
				select {
				case <-done:
					return
				case <-time.After(time.Millisecond): // between two looks
				}
			}
		})
	}
	return func() map[string][]int64 { close(done); watching.Wait(); return seen }
}

// A snapshot is not restored where a member may not know what is in it.
func TestRestoreWhileAMemberIsOld(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	c.add("old", func(cfg *Config) { cfg.version, cfg.Nonvoter = session.Version-1, true })
	c.waitReady()
	for _, n := range c.nodes {
		err := n.Restore(within(t, 20*time.Second), bytes.NewReader(bigState(t)))
		require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
		require.ErrorIs(t, err, storage.ErrInvalid)
		require.ErrorContains(t, err, fmt.Sprintf("member old does not know commands of kind %d", session.Version))
		require.Zero(t, count(t, n, storage.Latest))
	}
}

func testRestoreFault(t *testing.T, fault restoreFault) {
	var mu sync.Mutex // of what see knows
	var leader *testNode
	var restore uint64
	var nodes []*testNode // nil: nothing is looked at yet
	pieces := 0
	hit := make(chan struct{})
	var once sync.Once
	strike := func(c *testCluster, leader *testNode) {
		once.Do(func() {
			if fault.what == "isolated" {
				c.net.isolate(leader.Address(), true)
			}
			close(hit)
		})
	}
	var c *testCluster
	see := func(id string, l *raft.Log) {
		mu.Lock()
		defer mu.Unlock()
		if of := binary.BigEndian.Uint64(l.Data[8:]); of != restore { // whose leader is the first to store it
			for _, n := range nodes {
				if n.cfg.ID == id {
					restore, leader, pieces = of, n, 0
				}
			}
		}
		if leader == nil || leader.cfg.ID != id {
			return
		}
		switch kind := l.Extensions[8]; {
		case kind == restoreBegin && fault.point == "begin", kind == restoreEnd && fault.point == "end":
			strike(c, leader)
		case kind == restorePiece:
			if pieces++; fault.point == "middle" && pieces == 2 {
				strike(c, leader)
			}
		}
	}
	c = newCluster(t, 3, func(cfg *Config) {
		id := cfg.ID
		cfg.disk = func(s durable.Store) durable.Store {
			return &spy{s, entriesOfARestore, func(l *raft.Log) { see(id, l) }}
		}
	})
	for _, r := range []string{"1", "2", "3"} {
		_, _, err := storage.One(t.Context(), c.leader(), increment(r))
		require.NoError(t, err)
	}
	for _, n := range c.nodes {
		require.Eventually(t, func() bool { return counterOf(n.fsm) == 3 }, 10*time.Second, time.Millisecond)
	}
	snapshot := bigState(t)
	mu.Lock()
	nodes = append(nodes, c.nodes...)
	mu.Unlock()
	stop := watchCounters(nodes)
	via := c.leader()
	if fault.via == "follower" {
		via = c.follower()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if fault.point == "applied" {
		go func() {
			for ctx.Err() == nil {
				mu.Lock()
				n := leader
				mu.Unlock()
				if n != nil && counterOf(n.fsm) == 1 {
					strike(c, n)
					return
				}
			}
		}()
	}
	said := make(chan error, 1)
	go func() { said <- via.Restore(ctx, bytes.NewReader(snapshot)) }()
	select {
	case <-hit:
	case <-ctx.Done():
		t.Fatal("the fault did not come")
	}
	if !fault.waits {
		cancel()
	}
	mu.Lock()
	old := leader
	mu.Unlock()
	switch fault.what {
	case "isolated":
		c.leader(old)
		c.net.isolate(old.Address(), false)
	case "closed":
		require.NoError(t, old.Close())
	case "deposed":
		_ = old.TransferLeadership(within(t, 5*time.Second), "") // the restore may be over
	}
	err := <-said
	seen := stop()
	if fault.what == "closed" {
		c.restart(old)
	}
	c.waitReady()
	final := count(t, c.leader(), storage.Latest)
	for _, n := range c.nodes {
		require.EqualValues(t, final, count(t, n, storage.Latest), n.cfg.ID)
		require.EqualValues(t, final, counterOf(n.fsm), n.cfg.ID)
	}
	t.Logf("told: %v; the counter is %d; seen %v", err, final, seen)
	switch storage.OutcomeOf(err) {
	case storage.Applied:
		require.EqualValues(t, 1, final)
	case storage.NotApplied:
		require.EqualValues(t, 3, final)
	}
	for node, s := range seen {
		if final == 3 {
			require.Equal(t, []int64{3}, s, "%s read what was never committed", node)
		} else {
			require.Subset(t, []int64{3, 1}, s, node)
			require.LessOrEqual(t, len(s), 2, "%s read it, and then what was before", node)
		}
	}
	if fault.point == "applied" {
		require.EqualValues(t, 1, final, "what a node has applied stays")
	}
	// Again is safe, however often, and nothing is left of the one before.
	require.Eventually(t, func() bool {
		return c.nodes[0].Restore(within(t, 30*time.Second), bytes.NewReader(snapshot)) == nil
	}, time.Minute, 10*time.Millisecond)
	for _, n := range c.nodes {
		require.EqualValues(t, 1, count(t, n, storage.Latest))
	}
}

// A node that ends in the middle of a restore and starts again, with a snapshot
// from before it, stages again what it had staged, and comes to the same state.
func TestARestartInTheMiddleOfARestore(t *testing.T) {
	onEachStore(t, testARestartInTheMiddleOfARestore)
}

func testARestartInTheMiddleOfARestore(t *testing.T, use func(*Config)) {
	var stops atomic.Pointer[testNode]
	var pieces atomic.Int32
	middle := make(chan struct{})
	c := newCluster(t, 3, func(cfg *Config) {
		use(cfg)
		id := cfg.ID
		cfg.disk = func(s durable.Store) durable.Store {
			return &spy{s, entriesOfARestore, func(l *raft.Log) {
				if n := stops.Load(); n != nil && n.cfg.ID == id && l.Extensions[8] == restorePiece && pieces.Add(1) == 3 {
					close(middle)
				}
			}}
		}
	})
	leader, f := c.leader(), c.follower()
	_, _, err := storage.One(t.Context(), leader, increment("9"))
	require.NoError(t, err)
	require.EqualValues(t, 1, count(t, f, storage.Latest))
	require.NoError(t, f.raft.Snapshot().Error())
	stops.Store(f)
	said := make(chan error, 1)
	go func() { said <- leader.Restore(within(t, 30*time.Second), bytes.NewReader(bigState(t))) }()
	<-middle
	require.NoError(t, f.Close())
	c.restart(f)
	if err := <-said; err != nil { // the leadership ended meanwhile, and the restore with it
		require.Equal(t, storage.Unknown, storage.OutcomeOf(err), "%v", err)
		require.Eventually(t, func() bool {
			return c.leader().Restore(within(t, 30*time.Second), bytes.NewReader(bigState(t))) == nil
		}, 60*time.Second, 10*time.Millisecond)
	}
	for _, n := range c.nodes {
		n.waitReady(t)
		v, err := n.View(t.Context(), "", storage.Latest)
		require.NoError(t, err)
		found, err := v.Find(session.Prefix(session.KindPool, "default"), "", 20_000, nil)
		require.NoError(t, err)
		require.Len(t, found, 10_000)
		require.NoError(t, n.raft.Snapshot().Error())
	}
}

// The end of a restore that was given up meanwhile has changed nothing, and says so: who
// asked for it may ask the next leader.
func TestTheEndOfARestoreThatWasGivenUp(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	w := newRestoring(within(t, 20*time.Second), c.leader().leading.Load())
	err := w.end()
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	require.ErrorIs(t, err, errNotStaged)
	require.ErrorIs(t, err, errElsewhere)
}

// The time of a leader goes on from that of what was restored, though its caller gave up
// before the end: else no lease would run out until log time is as far by itself.
func TestARestoreThatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	const ahead = 1000 * time.Hour
	state := session.New()
	state.ApplyAll(ahead, []session.Command{increment("1")})
	var b bytes.Buffer
	require.NoError(t, session.WriteSnapshot(&b, state.Snapshot()))
	n := newCluster(t, 1, nil).leader()
	l := n.leading.Load()
	ctx, giveUp := context.WithCancel(t.Context())
	w := newRestoring(ctx, l)
	require.NoError(t, w.stage(&b))
	giveUp()
	require.True(t, isUnknown(w.end()))
	require.Eventually(t, func() bool { return n.fsm.now() >= ahead }, 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return l.now() >= ahead }, 10*time.Second, time.Millisecond)
}

// textsOf is a snapshot of so many bytes, whose counter is 1.
func textsOf(t *testing.T, size int) []byte {
	t.Helper()
	last := 1 << 14
	for range 4 {
		s := session.New()
		s.ApplyAll(0, []session.Command{increment("1")})
		for i := range size >> 16 {
			n := 65_000
			if i == 0 {
				n = last
			}
			s.ApplyAll(0, []session.Command{&session.Set{NS: "default", By: session.Maker{Client: "c"}, Key: fmt.Sprint("text", i), Value: session.Value{Text: strings.Repeat("x", n)}}})
		}
		var b bytes.Buffer
		require.NoError(t, session.WriteSnapshot(&b, s.Snapshot()))
		if b.Len() == size {
			return b.Bytes()
		}
		last += size - b.Len()
	}
	t.Fatal("no snapshot has that size")
	return nil
}

// leftovers returns what restores have left in the folder of a node.
func (n *testNode) leftovers(t *testing.T) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(n.cfg.Dir, restoreFiles))
	require.NoError(t, err)
	return left
}

// All of a snapshot comes to the leader, whichever node is given it and however many
// messages that takes, up to a last one of one byte. One restore after another is done, and
// none leaves anything behind.
func TestRestoresOfSeveralMessages(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, nil)
	for i, size := range []int{1<<20 + 1, 2 << 20, 1<<20 + 1} {
		for _, n := range c.nodes {
			_, _, err := storage.One(within(t, 20*time.Second), n, increment(fmt.Sprint("more", i)))
			require.NoError(t, err)
			require.NoError(t, n.Restore(within(t, 20*time.Second), bytes.NewReader(textsOf(t, size))))
			require.EqualValues(t, 1, count(t, n, storage.Latest))
		}
	}
	for _, n := range c.nodes {
		require.Empty(t, n.leftovers(t))
	}
}

// A snapshot that is not there as a whole changes nothing and leaves nothing behind.
func TestARestoreOfHalfASnapshot(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, nil).leader()
	for _, r := range []string{"1", "2"} {
		_, _, err := storage.One(t.Context(), n, increment(r))
		require.NoError(t, err)
	}
	var whole bytes.Buffer
	require.NoError(t, n.Save(t.Context(), &whole))
	half, broken := whole.Bytes()[:whole.Len()/2], errors.New("the connection broke")
	err := n.Restore(t.Context(), io.MultiReader(bytes.NewReader(half), iotest.ErrReader(broken)))
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	require.ErrorIs(t, err, broken)
	err = n.Restore(t.Context(), bytes.NewReader(half))
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	require.ErrorIs(t, err, storage.ErrInvalid)
	require.Empty(t, n.leftovers(t))
	require.EqualValues(t, 2, count(t, n, storage.Latest))
	require.NoError(t, await(n.raft.Snapshot(), n.dead), "nothing is staged")
}

// A restore that is given up in the middle has changed nothing and keeps nothing staged: a
// snapshot can be taken again.
func TestARestoreThatIsGivenUpInTheMiddle(t *testing.T) {
	t.Parallel()
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	n := newCluster(t, 1, func(cfg *Config) {
		cfg.disk = func(s durable.Store) durable.Store {
			return &spy{s, entriesOfARestore, func(l *raft.Log) {
				if l.Extensions[8] == restorePiece {
					giveUp()
				}
			}}
		}
	}).leader()
	for _, r := range []string{"1", "2"} {
		_, _, err := storage.One(t.Context(), n, increment(r))
		require.NoError(t, err)
	}
	err := n.Restore(ctx, bytes.NewReader(bigState(t)))
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err), "%v", err)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, errElsewhere, "it is not for another leader")
	require.Eventually(t, func() bool { return await(n.raft.Snapshot(), n.dead) == nil }, 10*time.Second, time.Millisecond)
	require.EqualValues(t, 2, count(t, n, storage.Latest))
}
