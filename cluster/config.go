package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"regexp"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/cluster/durable"
	"example.com/govnode/internal/pki"
	"example.com/govnode/session"
)

// Config says how to open a Node. Fields that are zero have the defaults named
// here.
type Config struct {
	// ID names the node in its cluster, for ever: 1 to 64 of [A-Za-z0-9._-].
	ID string
	// Address is the host and port under which other nodes reach this one. The
	// default is the address of the listener.
	Address string
	// Listener takes the connections of other nodes; Close closes it. Without
	// one, BindAddr is listened on.
	Listener net.Listener
	// BindAddr is the host and port to listen on if there is no Listener.
	BindAddr string
	// APIAddress is where clients reach this node; told to the other nodes and
	// not used otherwise.
	APIAddress string
	// Dir holds the log, the snapshots and the node's identity. It is created
	// if need be, and belongs to one process at a time.
	Dir string

	// Bootstrap makes a node with an empty directory the first of a new
	// cluster. With a directory that is in use it changes nothing.
	Bootstrap bool
	// BootstrapWait is how long a node that has just founded a cluster listens
	// before it takes part in it. If its folder was lost and members of another
	// cluster still take it for theirs, they ask for it once a second, and Open
	// fails before anything was acknowledged. 0 does not wait.
	BootstrapWait time.Duration
	// Join are addresses of members to ask for admission, by a node with an
	// empty directory or with a new address, unless it comes to lead. With Bootstrap they are looked at
	// first, so that a node that lost its directory does not found a second
	// cluster beside the one it belongs to.
	Join []string
	// Nonvoter joins as a member that has the state and no vote.
	Nonvoter bool
	// Replace takes the place of a member of the same name whose directory is
	// lost. Without it a node that starts with an empty directory under a name
	// that the cluster knows is refused: it does not remember its votes.
	Replace bool
	// Enlist is called before the members are asked, by a node with an empty
	// directory that joins, for what makes it a member without a vote by another
	// way. Hello says which member is at an address and where its API is. Nil
	// leaves it to the members.
	Enlist func(ctx context.Context, hello func(ctx context.Context, address string) (node, api string, err error)) error
	// Invited lets nobody join who is no member yet: AddNode comes first. It has
	// to be the same on all nodes.
	Invited bool
	// JoinTimeout bounds how long Open waits for admission. Default 60 s.
	JoinTimeout time.Duration

	// LogStore selects what keeps the log: LogBoltDB, which is the default, or
	// LogWAL. A directory keeps the one that it was made with.
	LogStore string

	// HeartbeatTimeout is how long a follower that hears nothing waits before
	// it calls an election, ElectionTimeout how long one may take. Default
	// 500 ms each.
	HeartbeatTimeout, ElectionTimeout time.Duration
	// LeaderLeaseTimeout is how long a leader that no majority answers goes on.
	// Default 400 ms.
	LeaderLeaseTimeout time.Duration
	// CommitTimeout is how soon followers hear of the latest commit when
	// nothing follows it. Default 20 ms: clients wait on followers, too.
	CommitTimeout time.Duration
	// RPCTimeout bounds each request between nodes that does not wait for a
	// change. Default 2 s.
	RPCTimeout time.Duration
	// TransportTimeout bounds each Raft message to a peer. Default 5 s.
	TransportTimeout time.Duration
	// LeaderPatience is how long a command or a read waits for there to be a
	// leader, if its caller waits that long; then it is not applied. Default:
	// Patience of the two timeouts of elections.
	LeaderPatience time.Duration
	// ApplyTimeout is the deadline of callers that have none. Default 10 s.
	ApplyTimeout time.Duration
	// DiskTimeout is how long one access to the log may take before the node
	// gives its disk up. Default 10 s.
	DiskTimeout time.Duration

	// SnapshotBytes is how much log a node applies before it writes a snapshot.
	// Default 64 MiB.
	SnapshotBytes int64
	// TrailingLogs is how many entries stay in the log behind a snapshot, for
	// followers that are a little behind. Default 1,024.
	TrailingLogs uint64
	// MaxQueue is how many commands may wait for a place in the log; more are
	// refused at once. Default 4,096.
	MaxQueue int

	// HelloInterval is how often the members ask each other how they are. Who has
	// not been heard of for three times as long is down. Default 1 s.
	HelloInterval time.Duration
	// CheckInterval is how often the members compare their states. Default 60 s.
	CheckInterval time.Duration

	// Logger is told what happens. Default slog.Default().
	Logger *slog.Logger
	// Registry is given the node's metrics (gov_raft_*), if it is not nil.
	Registry *prometheus.Registry
	// Fatal is called once when the node must not go on: its disk fails or holds
	// something else than was written, its state differs from that of the others,
	// or it meets a command that it does not know. The default logs the error and
	// ends the process with code 70.
	Fatal func(error)

	// LogTime returns the log time of the next entry, instead of the leader's
	// own clock. For tests that choose the times of a history.
	LogTime func() time.Duration
	// Clocks returns two times since any fixed instants, of clocks that do not
	// jump together. Default: the monotonic clock and the time of day.
	Clocks func() (monotonic, wall time.Duration)
	// Dial opens connections to other nodes. Default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// TLS secures all connections between nodes: whoever is at the other end has to
	// show the certificate of a node of this cluster. Nil leaves them as they are.
	TLS *pki.Source
	// OpenDisk opens what keeps the log, the values beside it and the snapshots,
	// of one process at a time. Default: package durable, in Dir, which else has
	// only what a restore needs while it is under way.
	OpenDisk func() (durable.Store, raft.SnapshotStore, error)

	version uint32                            // announced; session.Version
	disk    func(durable.Store) durable.Store // wraps the log store, for tests of failing disks
	segment int                               // bytes of one file of a write-ahead log; durable.SegmentSize
}

// Patience is how long there may be no leader before it is no use to wait for
// one: longer than some elections one after another take, which split votes can
// ask for.
func Patience(heartbeat, election time.Duration) time.Duration {
	return max(5*time.Second, 10*max(heartbeat, election))
}

// nodeName is what names of nodes look like: they stand in logs, file names and
// on the command line.
var nodeName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// fatalWait is how long a node that must not go on waits for its log to say so.
const fatalWait = 2 * time.Second

// withDefaults returns the configuration to run with, or an error that names
// the field that is wrong and changes nothing.
func (c Config) withDefaults() (Config, error) {
	orDuration := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	orDuration(&c.JoinTimeout, time.Minute)
	orDuration(&c.HeartbeatTimeout, 500*time.Millisecond)
	orDuration(&c.ElectionTimeout, 500*time.Millisecond)
	orDuration(&c.LeaderLeaseTimeout, min(400*time.Millisecond, c.HeartbeatTimeout))
	orDuration(&c.LeaderPatience, Patience(c.HeartbeatTimeout, c.ElectionTimeout))
	orDuration(&c.CommitTimeout, 20*time.Millisecond)
	orDuration(&c.RPCTimeout, 2*time.Second)
	orDuration(&c.TransportTimeout, 5*time.Second)
	orDuration(&c.ApplyTimeout, 10*time.Second)
	orDuration(&c.DiskTimeout, 10*time.Second)
	orDuration(&c.HelloInterval, time.Second)
	orDuration(&c.CheckInterval, time.Minute)
	if c.SnapshotBytes == 0 {
		c.SnapshotBytes = 64 << 20
	}
	if c.TrailingLogs == 0 {
		c.TrailingLogs = 1024
	}
	if c.MaxQueue == 0 {
		c.MaxQueue = 4096
	}
	if c.LogStore == "" {
		c.LogStore = LogBoltDB
	}
	if c.segment == 0 {
		c.segment = durable.SegmentSize
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = c.Logger.With("node", c.ID)
	if c.Fatal == nil {
		logger := c.Logger
		c.Fatal = func(err error) {
			said := make(chan struct{})
			go func() {
				defer close(said)
				logger.Error("the node stops", "error", err)
			}()
			select {
			case <-said:
			case <-time.After(fatalWait): // the log may hang
			}
			os.Exit(70) // EX_SOFTWARE: a supervisor may start it again
		}
	}
	if c.Clocks == nil {
		c.Clocks = systemClocks()
	}
	if c.Dial == nil {
		var d net.Dialer
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", address)
		}
	}
	if c.version == 0 {
		c.version = session.Version
	}
	return c, c.validate()
}

func (c *Config) validate() error {
	switch {
	case !nodeName.MatchString(c.ID):
		return fmt.Errorf("cluster: ID: %q is no node name; use 1 to 64 letters, digits, '.', '_' or '-'", c.ID)
	case c.TLS != nil && !c.TLS.HasCA():
		return errors.New("cluster: TLS: has no authorities to know other nodes by; name their file")
	case c.Dir == "":
		return errors.New("cluster: Dir: must name the directory of the node's data")
	case c.Listener == nil && c.BindAddr == "":
		return errors.New("cluster: BindAddr: must name the host and port to listen on, or give a Listener")
	case c.Listener != nil && c.BindAddr != "":
		return errors.New("cluster: BindAddr: is not used with a Listener; leave one of them out")
	case c.LogStore != LogBoltDB && c.LogStore != LogWAL:
		return fmt.Errorf("cluster: LogStore: %q is unknown; use %s or %s", c.LogStore, LogBoltDB, LogWAL)
	case c.Replace && len(c.Join) == 0:
		return errors.New("cluster: Replace: needs Join, the addresses of members to ask")
	case c.Bootstrap && c.Nonvoter:
		return errors.New("cluster: Nonvoter: the first node of a cluster must have a vote")
	case c.LeaderLeaseTimeout > c.HeartbeatTimeout:
		return fmt.Errorf("cluster: LeaderLeaseTimeout: %v is longer than HeartbeatTimeout, %v: two nodes could lead at once for that long",
			c.LeaderLeaseTimeout, c.HeartbeatTimeout)
	case c.SnapshotBytes < 0:
		return errors.New("cluster: SnapshotBytes: must be positive")
	case c.MaxQueue < 0:
		return errors.New("cluster: MaxQueue: must be positive")
	}
	for name, d := range map[string]time.Duration{
		"JoinTimeout": c.JoinTimeout, "HeartbeatTimeout": c.HeartbeatTimeout, "ElectionTimeout": c.ElectionTimeout,
		"LeaderLeaseTimeout": c.LeaderLeaseTimeout, "CommitTimeout": c.CommitTimeout, "RPCTimeout": c.RPCTimeout,
		"TransportTimeout": c.TransportTimeout, "ApplyTimeout": c.ApplyTimeout, "DiskTimeout": c.DiskTimeout, "HelloInterval": c.HelloInterval, "CheckInterval": c.CheckInterval,
	} {
		if d < 0 {
			return fmt.Errorf("cluster: %s: must be positive, not %v", name, d)
		}
	}
	if c.Address != "" {
		if err := validAddress(c.Address); err != nil {
			return fmt.Errorf("cluster: Address: %w", err)
		}
	}
	for _, a := range c.Join {
		if err := validAddress(a); err != nil {
			return fmt.Errorf("cluster: Join: %w", err)
		}
	}
	return nil
}

// validAddress reports what is wrong with an address under which a node is to
// be reached by others.
func validAddress(a string) error {
	host, port, err := net.SplitHostPort(a)
	if err != nil {
		return fmt.Errorf("%q is not host:port", a)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%q names no host that others can reach", a)
	}
	if port == "" || port == "0" || len(a) > 256 {
		return fmt.Errorf("%q names no port that others can reach", a)
	}
	return nil
}
