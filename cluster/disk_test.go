package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/cluster/durable"
	"example.com/govnode/cluster/transport"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A gate is a log store whose writes can be held up or made to fail.
type gate struct {
	durable.Store
	mu     sync.Mutex
	hold   chan struct{} // nil: open
	held   atomic.Int32  // writes that stand before it
	broken atomic.Bool
}

var errDisk = errors.New("input/output error")

func (g *gate) StoreLog(l *raft.Log) error { return g.StoreLogs([]*raft.Log{l}) }

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
	return g.Store.StoreLogs(l)
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
	c.disk = func(s durable.Store) durable.Store {
		gate := &gate{Store: s}
		g.Store(id, gate)
		return gate
	}
}

func (g *gates) of(n *testNode) *gate {
	v, _ := g.Load(n.cfg.ID)
	return v.(*gate)
}

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
	n.cfg.disk = func(s durable.Store) durable.Store {
		g := &gate{Store: s}
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
	l, address, _ := n.leader()
	require.Nil(t, l)
	require.Empty(t, address, "nor does it ask itself as it would another")
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
	// The node may stop before it answers.
	_ = leader.transport.AppendEntries("n2", raft.ServerAddress(n.Address()), &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("n1"), Addr: []byte(leader.Address())},
		Term:      term, PrevLogEntry: before.Index, PrevLogTerm: before.Term,
		Entries: []*raft.Log{{Index: index, Term: term, Data: l.Data, Extensions: termOf(term)}},
	}, new(raft.AppendEntriesResponse))
	text := stops(t, n)
	require.Contains(t, text, fmt.Sprintf("entries %d to ", index))
	require.Contains(t, text, "--replace")
	require.ErrorContains(t, n.Ready(t.Context()), "failed: ")
}

// A log that something else keeps looks empty; a node that took it for that
// would have forgotten what it acknowledged.
func TestALogIsNotTakenForAnother(t *testing.T) {
	t.Parallel()
	for made, other := range map[string]string{LogBoltDB: LogWAL, LogWAL: LogBoltDB} {
		c := newCluster(t, 1, func(c *Config) { c.LogStore = made })
		n := c.nodes[0]
		_, _, err := storage.One(t.Context(), n, increment("r"))
		require.NoError(t, err)
		require.NoError(t, n.Close())
		c.forget(n)

		cfg := n.cfg
		cfg.LogStore, cfg.Listener = other, listen(t, cfg.Address)
		_, err = c.open(cfg)
		require.ErrorContains(t, err, "cluster: LogStore: the log in "+cfg.Dir+" is kept by "+made+" and not by "+other+"; start the node with "+made)
		require.NoError(t, cfg.Listener.Close())
		cfg.LogStore, cfg.Listener = made, listen(t, cfg.Address)
		again, err := c.open(cfg)
		require.NoError(t, err)
		again.waitReady(t)
		require.EqualValues(t, 1, count(t, again, storage.Latest), "nothing changed")
	}
}

func TestWALMetrics(t *testing.T) {
	m := newMetrics()
	s, err := durable.Open(durable.Options{Dir: tempDir(t), LogStore: LogWAL, Segment: 4 << 10, Logger: transport.Logger(testLogger()), Metrics: m.wal})
	require.NoError(t, err)
	for i := range uint64(20) {
		require.NoError(t, s.StoreLog(&raft.Log{Index: i + 1, Term: 1, Data: make([]byte, 400), Extensions: termOf(1)}))
	}
	require.NoError(t, s.DeleteRange(18, 20))
	require.NoError(t, s.DeleteRange(1, 17))
	require.NoError(t, s.Close())
	value := func(name string) float64 {
		r := prometheus.NewRegistry()
		require.NoError(t, r.Register(m.wal[name]))
		families, err := r.Gather()
		require.NoError(t, err)
		return families[0].GetMetric()[0].GetCounter().GetValue()
	}
	require.EqualValues(t, 20, value("log_appends"))
	require.EqualValues(t, 20, value("log_entries_written"))
	require.Greater(t, value("log_entry_bytes_written"), 8000.0)
	require.Positive(t, value("segment_rotations"))
	require.EqualValues(t, 3, value("tail_truncations"))
	require.LessOrEqual(t, value("head_truncations"), 17.0, "what is below zero is no count")
}

// A folder is made for its owner alone, with nothing of a member in it, and is known again
// with all that it was told to keep.
func TestWhatAFolderKeeps(t *testing.T) { onEachStore(t, testWhatAFolderKeeps) }

func testWhatAFolderKeeps(t *testing.T, use func(*Config)) {
	dir := filepath.Join(tempDir(t), "new")
	open := func() *disk {
		cfg := Config{ID: "n1", Dir: dir, BindAddr: "127.0.0.1:0", Logger: testLogger(), Fatal: noFatal(t), segment: 16 << 10}
		use(&cfg)
		cfg, err := cfg.withDefaults()
		require.NoError(t, err)
		d, err := openDisk(&cfg, newMetrics())
		require.NoError(t, err)
		return d
	}
	d := open()
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	require.True(t, d.empty)
	require.Empty(t, d.cluster)
	require.Zero(t, d.admitted)
	require.Zero(t, d.term)
	incarnation := d.incarnation
	require.NotEmpty(t, incarnation)

	require.NoError(t, d.admit(7))
	require.EqualValues(t, 7, d.admitted)
	require.NoError(t, d.belong("c"))
	require.NoError(t, d.log.SetUint64(keyTerm, 3))
	require.NoError(t, d.log.Close())
	d = open()
	require.False(t, d.empty, "it has voted")
	require.Equal(t, incarnation, d.incarnation)
	require.Equal(t, "c", d.cluster)
	require.EqualValues(t, 7, d.admitted)
	require.EqualValues(t, 3, d.term)
	require.NoError(t, d.log.Close())
}

// The newest snapshot stays, and the one before it.
func TestTwoSnapshotsAreKept(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, nil).leader()
	for i := range 4 {
		_, _, err := storage.One(t.Context(), n, increment(fmt.Sprint(i)))
		require.NoError(t, err)
		require.NoError(t, await(n.raft.Snapshot(), n.dead))
		kept, err := filepath.Glob(filepath.Join(n.cfg.Dir, "snapshots", "*", "state.bin"))
		require.NoError(t, err)
		require.Len(t, kept, min(i+1, 2))
	}
}

// A node that was stopped while it founded its cluster founds it when it is started again.
func TestACutShortFoundingIsFinished(t *testing.T) { onEachStore(t, testACutShortFoundingIsFinished) }

func testACutShortFoundingIsFinished(t *testing.T, use func(*Config)) {
	c := &testCluster{t: t, net: &network{cut: map[string]bool{}, conns: map[net.Conn][2]string{}}}
	cfg := c.config("n1")
	use(&cfg)
	cfg.disk = func(s durable.Store) durable.Store {
		g := &gate{Store: s}
		g.broken.Store(true)
		return g
	}
	_, err := c.open(cfg)
	require.ErrorContains(t, err, errDisk.Error())
	cfg.disk = nil
	for _, founds := range []bool{false, true, false} {
		cfg.Bootstrap, cfg.Listener = founds, listen(t, cfg.Address)
		n, err := c.open(cfg)
		if !founds && len(c.nodes) == 0 {
			require.ErrorContains(t, err, "found one with Bootstrap")
			continue
		}
		require.NoError(t, err)
		n.waitReady(t)
		require.NoError(t, n.Apply(within(t, 20*time.Second), increment("r"))[0].Err)
		require.EqualValues(t, 1, count(t, n, storage.Latest))
		require.NoError(t, n.Close())
	}
}
