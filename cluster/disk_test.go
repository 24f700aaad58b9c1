package cluster

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// An entry that was acknowledged is on disk: nothing may ever turn that off.
func TestTheLogIsFlushed(t *testing.T) {
	o := boltOptions("")
	require.False(t, o.NoSync)
	require.False(t, o.BoltOptions.NoSync)
	require.False(t, o.BoltOptions.NoGrowSync)
}

// A gate is a log store whose writes can be held up or made to fail.
type gate struct {
	logStore
	mu     sync.Mutex
	hold   chan struct{} // nil: open
	held   atomic.Int32  // writes that stand before it
	broken atomic.Bool
}

var errDisk = errors.New("input/output error")

func (g *gate) StoreLogs(l []*raft.Log) error {
	g.mu.Lock()
	hold := g.hold
	g.mu.Unlock()
	if hold != nil {
		g.held.Add(1)
		<-hold
		g.held.Add(-1)
	}
	if g.broken.Load() {
		return errDisk
	}
	return g.logStore.StoreLogs(l)
}

func (g *gate) shut() (open func()) {
	hold := make(chan struct{})
	g.mu.Lock()
	g.hold = hold
	g.mu.Unlock()
	return sync.OnceFunc(func() {
		g.mu.Lock()
		g.hold = nil
		g.mu.Unlock()
		close(hold)
	})
}

// gates lets a test hold up the disk of each node.
type gates struct{ sync.Map }

func (g *gates) use(c *Config) {
	id := c.ID
	c.disk = func(s logStore) logStore {
		gate := &gate{logStore: s}
		g.Store(id, gate)
		return gate
	}
}

func (g *gates) of(n *testNode) *gate {
	v, _ := g.Load(n.cfg.ID)
	return v.(*gate)
}

func TestWatchedStore(t *testing.T) {
	var fatal []error
	var mu sync.Mutex
	failures := func() []error {
		mu.Lock()
		defer mu.Unlock()
		return fatal
	}
	open := func(limit time.Duration) (*watched, *gate) {
		fatal = nil
		g := &gate{logStore: struct {
			raft.LogStore
			raft.StableStore
			closer
		}{raft.NewInmemStore(), notFound{}, closer{}}}
		return &watched{logStore: g, limit: limit, appends: newMetrics().appendSeconds, kept: func() uint64 { return 0 }, fatal: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			fatal = append(fatal, err)
		}}, g
	}

	w, _ := open(time.Minute)
	require.NoError(t, w.StoreLog(&raft.Log{Index: 1}))
	require.ErrorIs(t, w.GetLog(7, new(raft.Log)), raft.ErrLogNotFound)
	_, err := w.Get([]byte("absent"))
	require.ErrorIs(t, err, errNotFound)
	require.EqualError(t, err, "not found", "Raft compares the text")
	require.Empty(t, failures(), "what is absent is no failure")

	w, g := open(time.Minute)
	g.broken.Store(true)
	require.ErrorIs(t, w.StoreLogs([]*raft.Log{{Index: 1}}), errDisk)
	g.broken.Store(false)
	require.ErrorIs(t, w.StoreLogs([]*raft.Log{{Index: 1}}), errDisk, "a disk that failed once is not trusted again")
	require.Len(t, failures(), 1)

	w, g = open(20 * time.Millisecond)
	release := g.shut()
	done := make(chan error)
	go func() { done <- w.StoreLogs([]*raft.Log{{Index: 1}}) }()
	require.Eventually(t, func() bool { return len(failures()) == 1 }, 5*time.Second, time.Millisecond)
	require.ErrorContains(t, failures()[0], "longer than 20ms")
	_, err = w.LastIndex()
	require.ErrorContains(t, err, "longer than 20ms")
	release()
	<-done
}

// A process that was stopped finds the timer of an access long overdue when it
// goes on. That is one step and not the whole time: the disk had no part in it.
func TestAPauseIsNoFaultOfTheDisk(t *testing.T) {
	lost := 0
	p := newPatience(time.Hour*patienceSteps, func() { lost++ })
	p.pass() // the timer fires, however late
	require.Zero(t, lost, "one pause, as long as it may have been")
	for range patienceSteps - 2 {
		p.pass()
	}
	require.Zero(t, lost)
	p.pass()
	require.Equal(t, 1, lost)
	p.pass()
	require.Equal(t, 1, lost, "it is lost once")

	p = newPatience(time.Hour*patienceSteps, func() { lost++ })
	p.end()
	for range 2 * patienceSteps {
		p.pass() // a timer that had fired already when the access ended
	}
	require.Equal(t, 1, lost, "an access that has ended takes no time")

	synctest.Test(t, func(t *testing.T) {
		start, after := time.Now(), time.Duration(0)
		p := newPatience(10*time.Second, func() { after = time.Since(start) })
		time.Sleep(time.Minute)
		synctest.Wait()
		p.end()
		require.Equal(t, 10*time.Second, after, "without a pause it is the whole limit")
	})
}

type closer struct{}

func (closer) Close() error { return nil }

// notFound is a stable store with nothing in it.
type notFound struct{ raft.StableStore }

func (notFound) Get([]byte) ([]byte, error) { return nil, errNotFound }

func TestANodeWhoseDiskFailsStops(t *testing.T) { onEachStore(t, testANodeWhoseDiskFailsStops) }

func testANodeWhoseDiskFailsStops(t *testing.T, use func(*Config)) {
	var disks gates
	c := newCluster(t, 3, func(cfg *Config) {
		use(cfg)
		disks.use(cfg)
	})
	leader := c.leader()
	disks.of(leader).broken.Store(true)
	// Whoever is asked, the command has one effect, by the next leader.
	_, _, err := storage.One(within(t, 10*time.Second), c.follower(), increment("r"))
	require.NoError(t, err)
	require.ErrorIs(t, <-leader.fatal, errDisk)
	require.ErrorContains(t, leader.Ready(t.Context()), "failed: ")
	require.NotEqual(t, leader, c.leader(leader))
	require.EqualValues(t, 1, count(t, c.leader(leader), storage.Latest))
}

func TestANodeWhoseDiskHangsStops(t *testing.T) { onEachStore(t, testANodeWhoseDiskHangsStops) }

func testANodeWhoseDiskHangsStops(t *testing.T, use func(*Config)) {
	var disks gates
	c := newCluster(t, 3, func(cfg *Config) {
		use(cfg)
		disks.use(cfg)
		cfg.DiskTimeout = 300 * time.Millisecond
	})
	leader := c.leader()
	defer disks.of(leader).shut()()
	_, _, err := storage.One(within(t, 10*time.Second), leader, increment("there"))
	require.Equal(t, storage.Unknown, storage.OutcomeOf(err), "nobody can say what a disk that hangs has written")
	require.ErrorContains(t, <-leader.fatal, "longer than 300ms")
	next := c.leader(leader)
	_, _, err = storage.One(within(t, 10*time.Second), next, increment("here"))
	require.NoError(t, err)
}

// A leader that has not applied yet what was acknowledged before it led answers
// nothing: not even that it leads.
func TestANewLeaderServesOnlyAfterItsBarrier(t *testing.T) {
	c := newCluster(t, 1, nil)
	n := c.nodes[0]
	_, _, err := storage.One(t.Context(), n, increment("r"))
	require.NoError(t, err)
	require.NoError(t, n.Close())
	var open func()
	n.cfg.disk = func(s logStore) logStore {
		g := &gate{logStore: s}
		open = g.shut()
		return g
	}
	n = c.restart(n)
	defer open()
	require.Eventually(t, func() bool { return n.raft.State() == raft.Leader }, 10*time.Second, time.Millisecond)
	_, err = n.Get(within(t, 100*time.Millisecond), session.CounterKey("default", "k"), storage.Latest)
	require.ErrorAs(t, err, new(*storage.ReadError))
	_, _, err = storage.One(within(t, 100*time.Millisecond), n, increment("s"))
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	require.False(t, n.Leader())
	open()
	n.waitReady(t)
	require.EqualValues(t, 1, count(t, n, storage.Latest))
}

func TestUnknownCommandStopsANode(t *testing.T) {
	c := newCluster(t, 1, nil)
	n := c.nodes[0]
	f := n.raft.ApplyLog(raft.Log{Data: []byte("from the future"), Extensions: termOf(n.raft.CurrentTerm())}, time.Second)
	require.NoError(t, f.Error())
	require.Equal(t, errStopped, f.Response())
	require.ErrorContains(t, <-n.fatal, "log entry")
	require.ErrorContains(t, n.Ready(t.Context()), "failed: ")
}

func TestOneDirectoryOneNode(t *testing.T) { onEachStore(t, testOneDirectoryOneNode) }

func testOneDirectoryOneNode(t *testing.T, use func(*Config)) {
	c := newCluster(t, 1, use)
	n := c.nodes[0]
	open := func(change func(*Config)) error {
		cfg := c.config(n.cfg.ID)
		cfg.Dir, cfg.Bootstrap, cfg.Join = n.cfg.Dir, true, nil
		use(&cfg)
		change(&cfg)
		node, err := Open(cfg)
		if node != nil {
			_ = node.Close()
		}
		return err
	}
	require.ErrorContains(t, open(func(*Config) {}), "in use by another process")
	require.NoError(t, n.Close())
	require.ErrorContains(t, open(func(c *Config) { c.ID = "other" }), `belongs to node "n1"`)
	require.ErrorContains(t, open(func(c *Config) { c.Dir = t.TempDir(); c.Bootstrap = false }), "found one with Bootstrap")
	require.NoError(t, open(func(*Config) {}), "the same start again is harmless")
}

// Each field that is wrong is named, and nothing is left behind.
func TestConfigIsValidated(t *testing.T) {
	valid := func() Config { return Config{ID: "n", Dir: t.TempDir(), BindAddr: "127.0.0.1:0", Bootstrap: true} }
	for field, spoil := range map[string]func(*Config){
		"ID":                 func(c *Config) { c.ID = "no blanks" },
		"Dir":                func(c *Config) { c.Dir = "" },
		"BindAddr":           func(c *Config) { c.BindAddr = "" },
		"LogStore":           func(c *Config) { c.LogStore = "paper" },
		"Replace":            func(c *Config) { c.Replace = true },
		"Nonvoter":           func(c *Config) { c.Nonvoter = true },
		"LeaderLeaseTimeout": func(c *Config) { c.LeaderLeaseTimeout = time.Second },
		"Address":            func(c *Config) { c.Address = "0.0.0.0:1" },
		"Join":               func(c *Config) { c.Join = []string{"host"} },
		"SnapshotBytes":      func(c *Config) { c.SnapshotBytes = -1 },
		"MaxQueue":           func(c *Config) { c.MaxQueue = -1 },
		"DiskTimeout":        func(c *Config) { c.DiskTimeout = -1 },
	} {
		cfg := valid()
		spoil(&cfg)
		_, err := Open(cfg)
		require.ErrorContains(t, err, fmt.Sprintf("cluster: %s: ", field))
	}
	cfg, err := valid().withDefaults()
	require.NoError(t, err)
	require.Equal(t, 500*time.Millisecond, cfg.HeartbeatTimeout)
	require.Equal(t, 400*time.Millisecond, cfg.LeaderLeaseTimeout)
	require.EqualValues(t, 64<<20, cfg.SnapshotBytes)
}

// A leader whose log is another one makes no node forget what it has applied, or
// knows to be committed.
func TestAppliedEntriesAreNotReplaced(t *testing.T) { onEachStore(t, testAppliedEntriesAreNotReplaced) }

func testAppliedEntriesAreNotReplaced(t *testing.T, use func(*Config)) {
	c := newCluster(t, 2, use)
	leader, n := c.leader(), c.follower()
	for i := range 3 {
		_, _, err := storage.One(t.Context(), n, increment(fmt.Sprint(i)))
		require.NoError(t, err)
	}
	n.waitReady(t)
	index := n.fsm.applied()
	var before, l raft.Log
	require.NoError(t, n.disk.log.GetLog(index-1, &before))
	require.NoError(t, n.disk.log.GetLog(index, &l))
	term := n.raft.CurrentTerm() + 1
	require.NoError(t, leader.transport.AppendEntries("n2", raft.ServerAddress(n.Address()), &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("n1"), Addr: []byte(leader.Address())},
		Term:      term, PrevLogEntry: before.Index, PrevLogTerm: before.Term,
		Entries: []*raft.Log{{Index: index, Term: term, Data: l.Data, Extensions: termOf(term)}},
	}, new(raft.AppendEntriesResponse)))
	text := stops(t, n)
	require.Contains(t, text, fmt.Sprintf("entries %d to ", index))
	require.Contains(t, text, "--replace")
	require.ErrorContains(t, n.Ready(t.Context()), "failed: ")
}

// The end of the log may go down to what is kept, and the beginning may go as
// far as snapshots stand for it.
func TestWhatMayBeRemoved(t *testing.T) {
	for _, c := range []struct {
		from, to uint64
		allowed  bool
	}{
		{8, 10, true}, {10, 10, true}, {7, 10, false}, {1, 10, false}, {7, 20, false}, {11, 20, true},
		{1, 5, true}, {1, 7, true}, {1, 9, true},
	} {
		inner := raft.NewInmemStore()
		for i := range uint64(10) {
			require.NoError(t, inner.StoreLog(&raft.Log{Index: i + 1}))
		}
		var fatal error
		w := &watched{logStore: parts{inner, notFound{}, closer{}}, limit: time.Minute, appends: newMetrics().appendSeconds,
			kept: func() uint64 { return 7 }, fatal: func(err error) { fatal = err }}
		err := w.DeleteRange(c.from, c.to)
		require.Equal(t, c.allowed, err == nil, "%d to %d: %v", c.from, c.to, err)
		require.Equal(t, err, fatal)
	}
}
