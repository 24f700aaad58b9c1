package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/cluster"
	"example.com/govnode/cmd/govnode/internal/address"
	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/internal/pki"
	"example.com/govnode/internal/server"
	"example.com/govnode/storage"
)

// openStore opens what puts commands in order. It returns the members where
// there are some.
func (n *node) openStore(ctx context.Context, c *config.Config, secure *pki.Source, api net.Addr, log *slog.Logger, registry *prometheus.Registry) (server.Cluster, error) {
	switch c.Backend {
	case "memory":
		n.store = storage.NewMemory(nil)
		return nil, nil
	case "redis":
		store, err := openRedis(ctx, c, log, registry)
		if err != nil {
			return nil, err
		}
		n.store, n.ready = store, store.Ready
		return nil, nil
	}
	member, err := openMember(ctx, c, secure, api, log, registry)
	if err != nil {
		return nil, err
	}
	n.store, n.member, n.drain = member, member, member.Drain
	return members{member}, nil
}

// raftConnections bounds the connections from other nodes; each keeps a few.
const raftConnections = 1024

// errEnded says that the node was told to end before it had begun.
var errEnded = errors.New("ended before it was a member of its cluster")

// openMember opens a node of a Raft cluster. Admission may take long; whoever
// ends the process meanwhile need not wait for it.
func openMember(ctx context.Context, c *config.Config, secure *pki.Source, api net.Addr, log *slog.Logger, registry *prometheus.Registry) (*cluster.Node, error) {
	l, err := address.Listen("raft-listen", c.RaftListen, raftConnections)
	if err != nil {
		return nil, err
	}
	type opened struct {
		node *cluster.Node
		err  error
	}
	result := make(chan opened, 1)
	go func() {
		node, err := cluster.Open(cluster.Config{
			ID: c.Node, Dir: c.Data, Listener: l,
			Address: reachable(c, l.Addr()), APIAddress: reachable(c, api),
			Bootstrap: c.Bootstrap, BootstrapWait: c.BootstrapWait, Join: c.Join, JoinTimeout: c.JoinTimeout,
			Nonvoter: c.Nonvoter, Replace: c.Replace,
			Enlist: enlistment(c, secure, reachable(c, l.Addr()), log), Invited: c.Admission == config.AdmitToken,
			HeartbeatTimeout: c.Heartbeat, ElectionTimeout: c.Election, LeaderLeaseTimeout: c.LeaderLease,
			DiskTimeout: c.DiskTimeout, LogStore: c.LogStore, MaxQueue: c.Queue,
			SnapshotBytes: int64(c.SnapshotBytes), TrailingLogs: uint64(c.TrailingLogs),
			Logger: log, Registry: registry, TLS: secure,
		})
		result <- opened{node, err}
	}()
	select {
	case r := <-result:
		if r.err != nil {
			return nil, errors.Join(inFlags(r.err), ignoreClosed(l.Close()))
		}
		return r.node, nil
	case <-ctx.Done():
		return nil, errEnded
	}
}

// flagOf is the flag behind each field of cluster.Config that an error can be
// about.
var flagOf = map[string]string{
	"ID": "node", "Dir": "data", "Address": "advertise", "LogStore": "log-store",
	"Bootstrap": "bootstrap", "Join": "join", "Nonvoter": "nonvoter", "Replace": "replace",
	"Enlist": "join-token", "JoinTimeout": "join-timeout", "HeartbeatTimeout": "raft-heartbeat", "ElectionTimeout": "raft-election",
	"LeaderLeaseTimeout": "raft-leader-lease", "DiskTimeout": "raft-disk-timeout",
	"MaxQueue": "raft-queue", "SnapshotBytes": "raft-snapshot-bytes",
}

// fieldsInText are the fields where an error advises to give them or to leave
// them out.
var fieldsInText = strings.NewReplacer(
	"name members of the cluster to join, or found one with Bootstrap", "name members of the cluster to join with --join, or begin a cluster with --bootstrap",
	"start without Bootstrap", "start without --bootstrap", "start it with Replace", "start it with --replace",
	"with Replace if", "with --replace if", "started with Join", "started with --join",
)

// inFlags is an error of cluster.Open in the words of the command line: it names
// the flag that a field of cluster.Config was filled from. Why a member refused
// this node is said without what passed it on.
func inFlags(err error) error {
	text := err.Error()
	field, rest, ok := strings.Cut(strings.TrimPrefix(text, "cluster: "), ": ")
	flag := flagOf[field]
	if !ok || flag == "" {
		return err
	}
	if refused := (*storage.InvalidError)(nil); errors.As(err, &refused) {
		rest = refused.Why.Error()
	}
	return errors.New(flag + ": " + fieldsInText.Replace(rest))
}

// ignoreClosed drops the error of closing a listener that is closed.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// members shows a cluster to the API in its own words.
type members struct{ *cluster.Node }

// Status implements server.Cluster.
func (m members) Status(ctx context.Context) (server.Status, error) {
	s, err := m.Node.Status(ctx)
	if err != nil {
		return server.Status{}, fmt.Errorf("status: %w", err)
	}
	out := server.Status{Node: s.Node, Leader: s.Leader, Term: s.Term, AppliedIndex: s.AppliedIndex, Health: s.Health, SeenBy: s.SeenBy}
	for _, p := range s.Peers {
		out.Peers = append(out.Peers, server.Peer{
			Node: p.Node, Address: p.Address, APIAddress: p.APIAddress, Role: p.Role,
			Known: p.Known, Up: p.Up, Silent: p.Silent, AtLeast: p.AtLeast, Applied: p.Applied, Lag: p.Lag,
		})
	}
	return out, nil
}
