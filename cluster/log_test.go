package cluster

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"example.com/govnode/cluster/durable"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A log that has the last entry of a snapshot stays when that is installed, and so does one
// that begins behind it; any other is emptied, in memory as well, and one of which Raft
// would miss the end ends the process. A process that was killed before that is made up for.
func TestWhatASnapshotLeavesOfTheLog(t *testing.T) { onEachStore(t, testWhatASnapshotLeavesOfTheLog) }

func testWhatASnapshotLeavesOfTheLog(t *testing.T, use func(*Config)) {
	for name, x := range map[string]struct {
		first, last uint64 // of the log, which is of term 3
		index, term uint64 // of the snapshot
		stays, ends bool
	}{
		"no log":                     {1, 0, 9, 3, true, false},
		"its last entry":             {1, 20, 20, 3, true, false},
		"entries behind it":          {1, 20, 15, 3, true, false},
		"its first entry":            {10, 20, 10, 3, true, false},
		"none but what is behind it": {10, 20, 9, 3, true, false},
		"none by far":                {10, 20, 3, 2, true, false},
		"another entry":              {1, 20, 15, 4, false, true},
		"another one, of before":     {1, 20, 15, 2, false, true},
		"another one, at its end":    {1, 20, 20, 4, false, true},
		"another one, at its begin":  {10, 20, 10, 4, false, true},
		"it ends just before":        {1, 20, 21, 3, false, false},
		"it ends long before":        {1, 20, 100, 4, false, false},
	} {
		for _, killed := range []bool{false, true} {
			cfg := Config{Dir: tempDir(t)}
			use(&cfg)
			store, err := durable.Open(durable.Options{Dir: cfg.Dir, LogStore: cfg.LogStore, Segment: 16 << 10, Logger: hclog.NewNullLogger(), Metrics: newMetrics().wal})
			require.NoError(t, err)
			applied := min(x.last, x.index-1)
			log, err := newRaftLog(&durable.Watched{Store: store, Limit: time.Minute, Fatal: noFatal(t), Appends: newMetrics().appendSeconds, Kept: func() uint64 { return applied }})
			require.NoError(t, err)
			for i := x.first; i <= x.last; i++ {
				require.NoError(t, log.StoreLog(&raft.Log{Index: i, Term: 3, Data: []byte("x")}))
			}
			files, err := raft.NewFileSnapshotStoreWithLogger(cfg.Dir, 2, hclog.NewNullLogger())
			require.NoError(t, err)
			var ended []error
			s := &superseding{files, log, func(err error) { ended = append(ended, err) }}
			require.NoError(t, s.begin(), "no snapshot")
			into := raft.SnapshotStore(s)
			if killed {
				into = files
			}
			sink, err := into.Create(raft.SnapshotVersionMax, x.index, x.term, raft.Configuration{}, 1, nil)
			require.NoError(t, err)
			err = sink.Close()
			if x.ends && !killed {
				require.ErrorIs(t, err, ErrSuperseded, name)
				require.Equal(t, []error{ErrSuperseded}, ended, name)
			} else {
				require.NoError(t, err, name)
				require.Empty(t, ended, name)
			}
			require.NoError(t, s.begin(), name)
			last, err := log.LastIndex()
			require.NoError(t, err)
			if x.stays {
				require.Equal(t, x.last, last, name)
			} else {
				require.Zero(t, last, name)
			}
			for i := x.first; i <= x.last; i++ {
				require.Equal(t, x.stays, log.holds(i, 3), "%s: entry %d", name, i)
				require.False(t, log.holds(i, 4))
			}
			next := max(last, x.index) + 1
			require.NoError(t, log.StoreLog(&raft.Log{Index: next, Term: 5}), name)
			require.True(t, log.holds(next, 5), name)
			require.NoError(t, store.Close())
		}
	}
}

// A snapshot that cannot be read takes nothing away: Raft goes on from an older one.
func TestADamagedSnapshotLeavesTheLog(t *testing.T) {
	dir := tempDir(t)
	inner := raft.NewInmemStore()
	log, err := newRaftLog(&durable.Watched{Store: struct {
		raft.LogStore
		raft.StableStore
		io.Closer
	}{inner, inner, nil}, Limit: time.Minute, Fatal: noFatal(t), Appends: newMetrics().appendSeconds, Kept: func() uint64 { return 0 }})
	require.NoError(t, err)
	require.NoError(t, log.StoreLog(&raft.Log{Index: 1, Term: 1}))
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, hclog.NewNullLogger())
	require.NoError(t, err)
	sink, err := files.Create(raft.SnapshotVersionMax, 5, 1, raft.Configuration{}, 1, nil)
	require.NoError(t, err)
	require.NoError(t, sink.Close())
	path := filepath.Join(dir, "snapshots", sink.ID(), "state.bin")
	require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	s := &superseding{files, log, noFatal(t)}
	require.NoError(t, s.begin())
	require.True(t, log.holds(1, 1))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, s.begin())
	require.False(t, log.holds(1, 1))
}

// A press is a store of snapshots that can be held up: who begins one then waits with
// whatever is written.
type press struct {
	raft.SnapshotStore
	hold    atomic.Pointer[chan struct{}] // nil: it goes on
	waiting atomic.Int32
}

type pressed struct {
	raft.SnapshotSink
	press *press
	hold  *chan struct{}
}

func (p *press) Create(v raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, t raft.Transport) (raft.SnapshotSink, error) {
	sink, err := p.SnapshotStore.Create(v, index, term, members, membersIndex, t)
	return &pressed{sink, p, p.hold.Load()}, err
}

func (p *pressed) Write(b []byte) (int, error) {
	if p.hold != nil {
		p.press.waiting.Add(1)
		<-*p.hold
	}
	return p.SnapshotSink.Write(b)
}

// use opens the disk of a node with a press.
func (p *press) use(cfg *Config) {
	dir := cfg.Dir
	cfg.OpenDisk = func() (durable.Store, raft.SnapshotStore, error) {
		store, err := durable.Open(durable.Options{Dir: dir, LogStore: LogBoltDB, Logger: hclog.NewNullLogger()})
		if err != nil {
			return nil, nil, err
		}
		p.SnapshotStore, err = raft.NewFileSnapshotStoreWithLogger(dir, 2, hclog.NewNullLogger())
		return store, p, err
	}
}

// counts adds some increments at a node.
func (n *testNode) counts(t *testing.T, name string, times int) {
	t.Helper()
	for i := range times {
		_, _, err := storage.One(within(t, 20*time.Second), n, increment(fmt.Sprint(name, i)))
		require.NoError(t, err)
	}
}

// reaches waits until a node has applied what another one has.
func (n *testNode) reaches(t *testing.T, other *testNode) {
	t.Helper()
	require.Eventually(t, func() bool { return n.fsm.applied() >= other.fsm.applied() }, 30*time.Second, time.Millisecond)
}

// leads makes a node the leader.
func (n *testNode) leads(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		return n.Leader() || n.TransferLeadership(within(t, 10*time.Second), n.cfg.ID) == nil && n.Leader()
	}, 30*time.Second, time.Millisecond)
}

// A node that was sent a snapshot while it wrote one of its own goes on from the one that
// it was sent, whether its own comes in before or behind the entries that follow: it hears
// of those, and as the leader it brings in whoever has nothing yet.
func TestASnapshotOfItsOwnThatComesTooLate(t *testing.T) {
	for name, more := range map[string]int{"before the entries that follow": 0, "behind them": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var presses sync.Map
			c := newCluster(t, 3, func(cfg *Config) {
				cfg.SnapshotBytes, cfg.TrailingLogs = 1<<40, 1
				p := &press{}
				presses.Store(cfg.ID, p)
				p.use(cfg)
			})
			late, leader := c.follower(), c.leader()
			leader.counts(t, "before", 5)
			late.reaches(t, leader)
			v, _ := presses.Load(late.cfg.ID)
			p, hold := v.(*press), make(chan struct{})
			p.hold.Store(&hold)
			own := late.raft.Snapshot()
			require.Eventually(t, func() bool { return p.waiting.Load() > 0 }, 20*time.Second, time.Millisecond)
			p.hold.Store(nil)

			c.net.isolate(late.Address(), true)
			leader.counts(t, "after", 20)
			require.NoError(t, await(leader.raft.Snapshot(), leader.dead))
			c.net.isolate(late.Address(), false)
			require.Eventually(t, func() bool { return counted(late.metrics.restores) > 0 }, 30*time.Second, time.Millisecond)
			leader.counts(t, "more", more)
			late.reaches(t, leader)
			close(hold)
			_ = await(own, late.dead) // whatever became of it

			leader.counts(t, "then", 1)
			late.reaches(t, leader)
			late.leads(t)
			c.add("n4", nil).waitReady(t)
			late.counts(t, "last", 1)
		})
	}
}

// A snapshot from before what a node has in its log is not taken, also while the node has
// yet to apply that: its state would go back.
func TestAnOldSnapshotWhileTheStateIsBehind(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(cfg *Config) { cfg.SnapshotBytes = 1 << 40 })
	leader, f := c.leader(), c.follower()
	f.fsm.mu.Lock()
	resume := sync.OnceFunc(f.fsm.mu.Unlock)
	defer resume()
	leader.counts(t, "before", 3)
	require.NoError(t, await(leader.raft.Snapshot(), leader.dead))
	all, err := leader.disk.snapshots.List()
	require.NoError(t, err)
	m, state, err := leader.disk.snapshots.Open(all[0].ID)
	require.NoError(t, err)
	defer func() { require.NoError(t, state.Close()) }()
	leader.counts(t, "after", 40)
	require.Eventually(t, func() bool { return f.raft.AppliedIndex() >= leader.fsm.applied() }, 20*time.Second, time.Millisecond)
	var got raft.InstallSnapshotResponse
	sent := make(chan error, 1)
	go func() {
		sent <- leader.transport.InstallSnapshot(raft.ServerID(f.cfg.ID), raft.ServerAddress(f.Address()), &raft.InstallSnapshotRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(leader.cfg.ID), Addr: []byte(leader.Address())}, SnapshotVersion: m.Version,
			Term: leader.raft.CurrentTerm(), LastLogIndex: m.Index, LastLogTerm: m.Term,
			Configuration: raft.EncodeConfiguration(m.Configuration), ConfigurationIndex: m.ConfigurationIndex, Size: m.Size,
		}, &got, state)
	}()
	select {
	case err = <-sent:
	case <-time.After(4 * time.Second):
		resume()
		err = <-sent
	}
	require.NoError(t, err)
	require.True(t, got.Success)
	resume()
	require.EqualValues(t, 43, count(t, f, storage.Latest))
	require.Zero(t, counted(f.metrics.restores))
}

// A node that is sent a snapshot of other entries than its own, which nobody else has, has
// none of those any more once it was started again.
func TestASnapshotOfOtherEntries(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(cfg *Config) {
		cfg.SnapshotBytes, cfg.TrailingLogs = 1<<40, 1
		cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 2*time.Second, 2*time.Second, 2*time.Second
	})
	old := c.leader()
	old.counts(t, "before", 3)
	base := old.raft.LastIndex()
	c.net.isolate(old.Address(), true)
	for range 60 {
		old.raft.ApplyLog(raft.Log{Data: session.EncodeEntry(old.fsm.now(), []session.Command{increment("lost")}), Extensions: termOf(old.raft.CurrentTerm())}, time.Second)
	}
	require.Eventually(t, func() bool { return old.raft.LastIndex() >= base+30 }, 20*time.Second, time.Millisecond)

	var others []*testNode
	for _, n := range c.nodes {
		if n != old {
			others = append(others, n)
		}
	}
	leads := func() (next *testNode) {
		require.Eventually(t, func() bool {
			for _, n := range others {
				if n.Leader() {
					next = n
				}
			}
			return next != nil
		}, time.Minute, time.Millisecond)
		return next
	}
	next := leads()
	next.counts(t, "after", 5)
	for _, n := range others {
		n.reaches(t, next)
		require.NoError(t, await(n.raft.Snapshot(), n.dead))
		first, err := n.disk.log.FirstIndex()
		require.NoError(t, err)
		require.Greater(t, first, base)
	}
	for i, n := range others { // else it may be about to send what is no longer in the log
		require.NoError(t, n.Close())
		others[i] = c.restart(n)
	}
	next = leads()
	require.LessOrEqual(t, next.raft.LastIndex(), old.raft.LastIndex())
	c.net.isolate(old.Address(), false)
	select {
	case err := <-old.fatal:
		require.ErrorIs(t, err, ErrSuperseded)
	case <-time.After(30 * time.Second):
		t.Error("it goes on with them")
	}
	require.NoError(t, old.Close())
	old = c.restart(old)
	old.waitReady(t)
	old.reaches(t, next)
	require.EqualValues(t, 8, count(t, old, storage.Latest))
	old.leads(t)
	old.counts(t, "then", 1)
}
