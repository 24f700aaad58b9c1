package cluster

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/raft"

	"example.com/govnode/cluster/durable"
	"example.com/govnode/cluster/transport"
)

// The data directory of a node: which files there are, and whose it is.

// What may keep the log of a node; see Config.LogStore.
const (
	LogBoltDB = durable.BoltDB
	LogWAL    = durable.WAL
)

// A disk is the data directory of a node.
type disk struct {
	log       *durable.Watched
	snapshots raft.SnapshotStore
	cluster   string // id of the cluster that the node belongs to, if any
	empty     bool   // no vote, no entry, no snapshot; or no more than the beginning of a founding

	// See identity.go.
	incarnation string
	admitted    uint64
	term        uint64 // when the directory was opened
}

var (
	keyNode    = []byte("govnode/node")
	keyCluster = []byte("govnode/cluster")
	keyFolder  = []byte("govnode/incarnation")
	keyAdmit   = []byte("govnode/admitted")
	keyRoll    = []byte("govnode/known")
	keyTerm    = []byte("CurrentTerm") // Raft's own
)

// snapshotsKept is how many snapshots stay: the newest, and the one before it
// for the case that the newest cannot be read.
const snapshotsKept = 2

func openDisk(cfg *Config, m *metrics) (*disk, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("cluster: Dir: %w", err)
	}
	store, snapshots, err := openStores(cfg, m)
	if err != nil {
		return nil, err
	}
	if cfg.disk != nil {
		store = cfg.disk(store)
	}
	d := &disk{log: &durable.Watched{Store: store, Limit: cfg.DiskTimeout, Fatal: cfg.Fatal, Appends: m.appendSeconds, Kept: func() uint64 { return 0 }}, snapshots: snapshots}
	if err := d.open(cfg); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return d, nil
}

// openStores opens what a node is kept in. The snapshots of package durable are
// opened later, as they make notes in a log that is watched.
func openStores(cfg *Config, m *metrics) (durable.Store, raft.SnapshotStore, error) {
	if cfg.OpenDisk != nil {
		return cfg.OpenDisk()
	}
	store, err := durable.Open(durable.Options{Dir: cfg.Dir, LogStore: cfg.LogStore, Segment: cfg.segment, Logger: transport.Logger(cfg.Logger), Metrics: m.wal})
	return store, nil, err
}

func (d *disk) open(cfg *Config) (err error) {
	if d.snapshots == nil {
		if d.snapshots, err = durable.OpenSnapshots(cfg.Dir, snapshotsKept, d.log, transport.Logger(cfg.Logger)); err != nil {
			return fmt.Errorf("cluster: Dir: %w", err)
		}
	}
	// What a restore left behind that was cut short.
	old, err := durable.FilesIn(cfg.Dir, restoreFiles)
	for _, f := range old {
		err = errors.Join(err, os.Remove(f))
	}
	if err != nil {
		return fmt.Errorf("cluster: Dir: %w", err)
	}
	used, err := raft.HasExistingState(d.log, d.log, d.snapshots)
	if err != nil {
		return fmt.Errorf("cluster: Dir: %w", err)
	}
	d.empty = !used
	node, err := d.text(keyNode)
	if err != nil {
		return err
	}
	if node == "" && used {
		return fmt.Errorf("cluster: Dir: %s has a log that is not a node's; choose another directory, or, if this was one, %s", cfg.Dir, adviceReplace)
	}
	if node != "" && node != cfg.ID {
		return fmt.Errorf("cluster: ID: %s belongs to node %q; start it under that name, or choose another directory", cfg.Dir, node)
	}
	if d.cluster, err = d.text(keyCluster); err != nil {
		return err
	}
	if err := d.identity(); err != nil {
		return err
	}
	if d.admitted == founders {
		last, err := d.last()
		if err != nil {
			return err
		}
		d.empty = last == 0 // it was stopped while it founded its cluster
	}
	return d.log.Set(keyNode, []byte(cfg.ID))
}

// identity reads which folder this is, and makes one of its own of a new one.
func (d *disk) identity() (err error) {
	if d.incarnation, err = d.text(keyFolder); err != nil {
		return err
	}
	if d.incarnation == "" {
		d.incarnation = rand.Text()
		if err := d.log.Set(keyFolder, []byte(d.incarnation)); err != nil {
			return err
		}
	}
	if d.admitted, err = d.number(keyAdmit); err != nil {
		return err
	}
	d.term, err = d.number(keyTerm)
	return err
}

// number returns what is kept under a key; 0 if nothing is.
func (d *disk) number(key []byte) (uint64, error) {
	v, err := d.log.GetUint64(key)
	if errors.Is(err, durable.ErrNotFound) {
		return 0, nil
	}
	return v, err
}

// founders is the place in the log of the first members: nobody else is admitted there.
const founders = 1

// found writes the first entry of a cluster. It is what raft.BootstrapCluster does, but that
// does not go on where it was stopped between the two steps.
func (d *disk) found(members raft.Configuration) error {
	if err := d.admit(founders); err != nil {
		return err
	}
	if err := d.log.SetUint64(keyTerm, 1); err != nil {
		return err
	}
	err := d.log.StoreLog(&raft.Log{Index: founders, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(members)})
	d.empty = err != nil
	return err
}

// admit keeps the place in the log at which the folder became a member's.
func (d *disk) admit(index uint64) error {
	d.admitted = index
	return d.log.SetUint64(keyAdmit, index)
}

// text returns what is kept under a key; "" if nothing is.
func (d *disk) text(key []byte) (string, error) {
	b, err := d.log.Get(key)
	if err != nil && !errors.Is(err, durable.ErrNotFound) {
		return "", err
	}
	return string(b), nil
}

// belong keeps the id of the cluster that the node belongs to from now on.
func (d *disk) belong(cluster string) error { return d.log.Set(keyCluster, []byte(cluster)) }
