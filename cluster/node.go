package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"example.com/govnode/cluster/durable"
	"example.com/govnode/cluster/transport"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A node: how it is opened, started and closed.

var (
	errClosed   = errors.New("this node is closed")
	errNoLeader = errors.New("no leader is known")
	errRemoved  = errors.New("this node was removed from the cluster: ask another node; start this one with --join to make it a member again, or end it and delete its data folder")
)

// A Node is one member of a cluster. Its methods are safe for concurrent use.
type Node struct {
	storage.Lapses

	cfg       Config
	disk      *disk
	port      *transport.Port
	peers     *transport.Peers
	http      *http.Server
	transport *transport.Raft
	raft      *raft.Raft
	fsm       *fsm
	metrics   *metrics
	members   *members
	roll      *roll
	run       string // names this process
	self      atomic.Pointer[nodev1.Identity]

	ctx     context.Context // done when the node closes
	cancel  context.CancelFunc
	tasks   sync.WaitGroup
	dead    chan struct{} // closed when Raft has stopped
	halt    sync.Once
	close   func() error // runs once
	failed  atomic.Pointer[error]
	onFatal func(error)
	opened  chan struct{}
	began   time.Time
	stopped raft.Future // of Raft, once it was told to stop

	cluster    atomic.Pointer[string] // id; never nil once the disk is open
	leading    atomic.Pointer[leadership]
	draining   atomic.Bool
	joining    atomic.Bool // not yet what it wants to be
	turnedAway atomic.Bool // the members do not let it be what it wants
	expelled   atomic.Bool // the leader says that this node is no member
	led        atomic.Bool // a leader has been known since the start
	started    atomic.Bool // Raft is there

	states states // of all members, as they compare them
	latest atomic.Pointer[stateAt]

	admission atomic.Pointer[func(session.Command) bool] // of what others pass on; nil: everything

	changing  chan struct{} // holds one place: one change of members at a time
	restoring chan struct{} // holds one place: one restore at a time

	mu      sync.Mutex
	forward *forwarder    // to the present leader
	moved   chan struct{} // closed, and replaced, when the leader may have changed
	greet   chan struct{} // asks for another look at the members
}

var _ storage.Store = (*Node)(nil)

// Open opens a node and lets it take part in its cluster. It returns when the
// node has been admitted, which for a node that was a member before is at once:
// Ready tells when it serves. The error names what is wrong with the
// configuration or the directory, and what to do.
func Open(cfg Config) (*Node, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, metrics: newMetrics(), dead: make(chan struct{}), moved: make(chan struct{}), greet: make(chan struct{}, 1), changing: make(chan struct{}, 1), restoring: make(chan struct{}, 1), run: rand.Text()}
	n.cfg.Fatal, n.onFatal = n.fatal, cfg.Fatal
	n.fsm = newFSM(n.fatal, n.metrics)
	n.fsm.since, n.fsm.between = newClock(0, n.cfg.Clocks), electionsTake(n.cfg.HeartbeatTimeout, n.cfg.ElectionTimeout)
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.fsm.snapshots, n.fsm.ended, n.fsm.own = filepath.Join(n.cfg.Dir, "snapshots"), n.ctx.Done(), new(atomic.Int64)
	n.close = sync.OnceValue(n.shutdown)
	n.opened, n.began = make(chan struct{}), time.Now()
	err = n.open()
	close(n.opened)
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *Node) open() (err error) {
	if n.disk, err = openDisk(&n.cfg, n.metrics); err != nil {
		return err
	}
	n.cluster.Store(&n.disk.cluster)
	if n.roll, err = n.disk.rollOf(); err != nil {
		return err
	}
	if !n.disk.empty {
		if err := n.identify(); err != nil {
			return err
		}
	}
	l := n.cfg.Listener
	if l == nil {
		if l, err = net.Listen("tcp", n.cfg.BindAddr); err != nil {
			return fmt.Errorf("cluster: BindAddr: %w", err)
		}
	}
	if n.cfg.Address == "" {
		n.cfg.Address = l.Addr().String()
	}
	if err := validAddress(n.cfg.Address); err != nil {
		return errors.Join(fmt.Errorf("cluster: Address: %w; name the one that other nodes use", err), l.Close())
	}
	n.port = transport.Listen(l, transport.Config{
		Node: n.cfg.ID, Address: n.cfg.Address, Dial: n.cfg.Dial, Logger: n.cfg.Logger,
		Cluster: n.clusterID, NameAt: n.nameAt, Shuns: n.roll.shuns, Foreign: n.foreign,
		TLS: n.cfg.TLS, Meant: n.meant, Strange: n.strange,
	})
	n.peers = transport.NewPeers(n.port)
	n.members = newMembers(n.cfg.ID, n.cfg.version, silentFor*n.cfg.HelloInterval)
	n.http = transport.NewServer(&service{n}, n.port, n.started.Load)
	n.tasks.Go(func() { _ = n.http.Serve(n.port.HTTP()) }) // returns when the node closes
	if err := n.bootstrap(); err != nil {
		return err
	}
	if err := n.enter(); err != nil {
		return err
	}
	if err := durable.Guarded(n.checkIdentity); errors.Is(err, durable.ErrDamaged) {
		return durable.DamagedFile(n.cfg.Dir, err)
	} else if err != nil {
		return err
	}
	notify := make(chan bool, 16)
	if err := n.startRaft(notify); err != nil {
		return err
	}
	if n.cfg.Registry != nil {
		if err := n.metrics.register(n.cfg.Registry, n); err != nil {
			return fmt.Errorf("cluster: Registry: %w", err)
		}
	}
	n.tasks.Go(func() { n.watchLeadership(notify) })
	n.tasks.Go(n.watchLeader)
	n.tasks.Go(n.greetMembers)
	n.tasks.Go(n.keepSnapshots)
	n.tasks.Go(func() { n.fsm.since.run(n.ctx) })
	n.tasks.Go(n.compareStates)
	n.settleIn()
	return nil
}

func (n *Node) clusterID() string { return *n.cluster.Load() }

// DataID implements storage.Store: it is the id of the cluster.
func (n *Node) DataID(string) string { return n.clusterID() }

// belong makes the node one of a cluster, for ever.
func (n *Node) belong(cluster string) error {
	if err := n.disk.belong(cluster); err != nil {
		return err
	}
	n.cluster.Store(&cluster)
	n.port.Admitted()
	return nil
}

func (n *Node) raftConfig(notify chan<- bool) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(n.cfg.ID)
	c.HeartbeatTimeout, c.ElectionTimeout = n.cfg.HeartbeatTimeout, n.cfg.ElectionTimeout
	c.LeaderLeaseTimeout, c.CommitTimeout = n.cfg.LeaderLeaseTimeout, n.cfg.CommitTimeout
	// Raft counts entries, and one may have 256 KiB here.
	c.MaxAppendEntries = 16
	c.TrailingLogs = n.cfg.TrailingLogs
	// Snapshots are taken by bytes of log instead; see keepSnapshots.
	c.SnapshotThreshold, c.SnapshotInterval = 1<<62, 24*time.Hour
	c.ShutdownOnRemove = false
	c.NotifyCh = notify
	c.Logger = transport.Logger(n.cfg.Logger)
	c.NoLegacyTelemetry = true
	return c
}

// startRaft starts Raft, which panics where the log has a hole.
func (n *Node) startRaft(notify chan<- bool) error {
	err := durable.Guarded(func() error { return n.newRaft(notify) })
	if failed := n.failed.Load(); failed != nil {
		return fmt.Errorf("cluster: Dir: cannot start from %s: %w", n.cfg.Dir, *failed)
	}
	if errors.Is(err, durable.ErrDamaged) {
		return durable.DamagedFile(n.cfg.Dir, err)
	}
	return err
}

func (n *Node) newRaft(notify chan<- bool) error {
	n.disk.log.Kept = n.kept
	c := n.raftConfig(notify)
	log, err := newRaftLog(n.disk.log)
	if err != nil {
		return err
	}
	snapshots := &superseding{n.disk.snapshots, log, n.fatal}
	if err := snapshots.begin(); err != nil {
		return err
	}
	// Entries may be committed that wait to be applied, so the log is asked, too.
	has := func(index, term uint64) bool { return log.holds(index, term) || index <= n.fsm.applied() }
	n.transport = transport.NewRaft(n.ctx, n.port, n.cfg.TransportTimeout, n.cfg.TransportTimeout+closeWait/2, has, c.Logger)
	r, err := raft.NewRaft(c, n.fsm, log, n.disk.log, snapshots, n.transport)
	if r != nil {
		n.raft = r // it runs, and is ended with the node
	}
	if err != nil {
		return fmt.Errorf("cluster: Dir: cannot start from %s, of which the log or the snapshot is damaged: %w; %s", n.cfg.Dir, err, adviceReplace)
	}
	n.started.Store(true)
	return n.electAlone()
}

// kept returns the index up to which the log must not change any more.
func (n *Node) kept() uint64 {
	i := n.fsm.applied()
	if n.started.Load() {
		i = max(i, n.raft.CommitIndex())
	}
	return i
}

// electAlone lets the only voter of a cluster become its leader at once. It
// would wait until it has missed the heartbeats of a leader that cannot exist;
// Raft looks at them again when their timeout is lowered.
func (n *Node) electAlone() error {
	s, known := n.member(n.cfg.ID)
	if !known || !isVoter(&s) || n.voters() > 1 {
		return nil
	}
	c := n.raft.ReloadableConfig()
	c.HeartbeatTimeout--
	if c.HeartbeatTimeout < n.cfg.LeaderLeaseTimeout {
		return nil // it may not be lower
	}
	if err := n.raft.ReloadConfig(c); err != nil {
		return err
	}
	c.HeartbeatTimeout++
	return n.raft.ReloadConfig(c)
}

// fatal ends the node: nothing that it holds in memory or will write can be
// trusted. It is called from within Raft, which may be stuck.
func (n *Node) fatal(err error) {
	if n.failed.CompareAndSwap(nil, &err) {
		go func() {
			<-n.opened
			_ = n.stop() // the first error is the one that counts
		}()
		n.onFatal(err)
	}
}

// servers returns the members as this node knows them.
func (n *Node) servers() []raft.Server {
	return n.raft.GetConfiguration().Configuration().Servers
}

// deadline gives a context that has none the default one.
func (n *Node) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, n.cfg.ApplyTimeout)
}

// Close stops the node at once; Drain before it lets others take over first.
func (n *Node) Close() error { return n.close() }

// closeWait is how much longer Close waits for Raft than a message to a peer
// may take: one of its goroutines may hang on a disk that does.
const closeWait = 2 * time.Second

func (n *Node) shutdown() error {
	err := n.stop()
	if n.stopped != nil {
		stopped := make(chan error, 1)
		go func() { stopped <- n.stopped.Error() }()
		select {
		case <-stopped: // it returns no error
		case <-time.After(n.cfg.TransportTimeout + closeWait):
			return errors.Join(err, fmt.Errorf("cluster: Raft has not stopped within %v", n.cfg.TransportTimeout+closeWait))
		}
	}
	close(n.dead)
	n.tasks.Wait()
	if n.raft != nil && n.failed.Load() == nil {
		err = errors.Join(err, n.remember(n.servers(), true))
	}
	if n.disk != nil {
		err = errors.Join(err, n.disk.log.Close())
	}
	return err
}

// stop ends all connections and tells Raft to stop, without waiting for it.
func (n *Node) stop() (err error) {
	n.halt.Do(func() {
		n.cancel()
		if n.raft != nil {
			n.stopped = n.raft.Shutdown()
		}
		if n.transport != nil {
			err = n.transport.Close()
			n.transport.CloseStreams()
		}
		if n.port != nil { // before the server, which waits until nobody accepts for it
			err = errors.Join(err, n.port.Close())
		}
		if n.http != nil {
			err = errors.Join(err, n.http.Close())
		}
		if n.peers != nil {
			n.peers.Close()
		}
	})
	return err
}
