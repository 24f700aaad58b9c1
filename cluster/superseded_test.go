package cluster

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"example.com/govnode/cluster/durable"
	"example.com/govnode/storage"
)

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
