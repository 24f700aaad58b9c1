package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"example.com/govnode/bench"
	"example.com/govnode/client"
	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/dev"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// A benchCluster says how a cluster is started, and reached.
type benchCluster struct {
	nodes     int
	transport string
	logStore  string // empty for the default
	snapshots string // likewise
}

// When the nodes take snapshots.
const (
	snapshotsNone = "none"
	snapshotsRaft = "raft"
	snapshotsSave = "save"
)

// Bytes of log after which a node takes a snapshot: never, and whenever it has
// taken the last one. They are the bounds of the setting.
const (
	snapshotNever  = 1 << 40
	snapshotAlways = 1 << 16
)

// settings are those of dev for a cluster in a folder.
func (c benchCluster) settings(folder string) (*config.Config, error) {
	s := dev.Settings()
	s.Nodes, s.Data = c.nodes, folder
	if c.logStore != "" {
		s.LogStore = c.logStore
	}
	switch c.snapshots {
	case snapshotsNone, snapshotsSave:
		s.SnapshotBytes = snapshotNever
	case snapshotsRaft:
		s.SnapshotBytes = snapshotAlways
	}
	if c.snapshots != "" {
		s.Note("raft-snapshot-bytes", "flag --snapshots") // dev has no such flag, and passes it on all the same
	}
	return s, s.Check(config.OnDev)
}

// A benchNodes is a cluster that runs for as long as it is measured.
type benchNodes struct {
	*dev.Cluster
	folder string
}

// startNodes runs dev on free ports, in a folder that goes away with it.
func (c benchCluster) startNodes(ctx context.Context, logs io.Writer) (_ *benchNodes, err error) {
	folder, err := os.MkdirTemp("", "govnode-bench-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(folder))
		}
	}()
	settings, err := c.settings(folder)
	if err != nil {
		return nil, err
	}
	// It is stopped after what works on it.
	cluster, err := dev.Start(context.WithoutCancel(ctx), settings, logs)
	return &benchNodes{cluster, folder}, err
}

func (n *benchNodes) stop() error { return errors.Join(n.Cluster.Stop(), os.RemoveAll(n.folder)) }

// processes are the nodes; the leader is marked, since it does more.
func (n *benchNodes) processes(ctx context.Context) (all []bench.Process) {
	leader := n.Leader(ctx, "")
	for _, node := range n.List() {
		name := node.Name
		if name == leader {
			name += " (leader)"
		}
		all = append(all, bench.Process{Name: name, PID: node.PID})
	}
	return all
}

// dataFolders are where the nodes keep what outlives them.
func (n *benchNodes) dataFolders() (all []string) {
	for _, node := range n.List() {
		all = append(all, filepath.Join(n.folder, node.Name))
	}
	return all
}

// Start starts a cluster and drives it.
func (b *benchRun) startCluster(ctx context.Context, c benchCluster, plan bench.Plan) (*benchDriver, error) {
	nodes, err := c.startNodes(ctx, b.logs)
	if err != nil {
		return nil, fmt.Errorf("the cluster did not start: %w", err)
	}
	d, err := b.onCluster(ctx, nodes.Addresses(), c.transport, plan)
	if err != nil {
		return nil, errors.Join(err, nodes.stop())
	}
	d.processes, d.folders = alsoSelf(nodes.processes), nodes.dataFolders()
	switch c.snapshots {
	case snapshotsRaft: // the nodes take them by themselves, and the folders tell
		d.snapshots = func(context.Context) func() (int, error) { return func() (int, error) { return 0, nil } }
	case snapshotsSave:
		d.snapshots = func(ctx context.Context) func() (int, error) { return saveSnapshots(ctx, nodes.Addresses()[0]) }
	}
	return d.over(nodes.stop), nil
}

// saveSnapshots has a node send snapshots, one after another, until it is told
// to stop, which returns how many there were.
func saveSnapshots(ctx context.Context, address string) (stop func() (int, error)) {
	ctx, cancel := context.WithCancel(ctx)
	cluster := govnodev1connect.NewClusterServiceClient(http.DefaultClient, "http://"+address)
	taken, ended := 0, make(chan error, 1)
	go func() {
		for {
			stream, err := cluster.Snapshot(ctx, &govnodev1.SnapshotRequest{})
			if err == nil {
				for stream.Receive() {
				}
				err = errors.Join(stream.Err(), stream.Close())
			}
			if ctx.Err() != nil {
				ended <- nil
				return
			}
			if err != nil {
				ended <- fmt.Errorf("saving a snapshot: %w", err)
				return
			}
			taken++
		}
	}()
	return func() (int, error) {
		cancel()
		err := <-ended
		return taken, err
	}
}

// onCluster drives a cluster that runs.
func (b *benchRun) onCluster(ctx context.Context, addresses []string, transport string, plan bench.Plan) (*benchDriver, error) {
	cfg := bench.GovnodeConfig{Addresses: addresses, Namespace: b.options.namespace, Unary: transport == "unary", Clients: b.options.clients}
	if o := b.options; o.addr != "" {
		cfg.Token = o.token
		if o.tlsCA != "" {
			secure, err := client.LoadTLS(o.tlsCA, "", "")
			if err != nil {
				return nil, fmt.Errorf("tls-ca: %w", err)
			}
			cfg.TLS = secure
		}
	}
	t, err := bench.NewGovnode(ctx, cfg, plan)
	if err != nil {
		return nil, err
	}
	return driverOf(t), nil
}
