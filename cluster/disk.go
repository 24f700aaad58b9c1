package cluster

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// watched is a store that gives the disk up at its first error, or when an
// access takes too long: after a failed flush nobody knows what is on the disk,
// and a leader whose disk hangs still sends heartbeats, so that no one would
// take over.
type watched struct {
	logStore
	limit   time.Duration
	fatal   func(error)
	appends prometheus.Observer // seconds of each append

	mu     sync.Mutex
	failed error
}

// access runs one access to the store. What is merely absent is no error.
func (w *watched) access(what string, f func() error) error {
	w.mu.Lock()
	failed := w.failed
	w.mu.Unlock()
	if failed != nil {
		return failed
	}
	p := newPatience(w.limit, func() { w.fail(fmt.Errorf("cluster: disk: %s has taken longer than %v", what, w.limit)) })
	err := guarded(f)
	p.end()
	if err == nil || errors.Is(err, raft.ErrLogNotFound) || errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return err
	}
	return w.fail(fmt.Errorf("cluster: disk: %s: %w", what, err))
}

// patienceSteps is in how many steps the time of an access is counted.
const patienceSteps = 10

// A patience is the time that one access may take. It is counted in steps, of
// which a process that was stopped, or a machine that was suspended, misses all
// but one: a healthy disk is not given up for the time in which nobody ran.
type patience struct {
	step time.Duration
	lost func() // called once, when it is over

	mu    sync.Mutex
	left  int // steps
	timer *time.Timer
	done  bool
}

func newPatience(limit time.Duration, lost func()) *patience {
	p := &patience{step: limit / patienceSteps, lost: lost, left: patienceSteps}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(p.step, p.pass)
	return p
}

// pass counts one step, however late it is called.
func (p *patience) pass() {
	if p.over() {
		p.lost()
	}
}

// over counts one step and reports whether it was the last.
func (p *patience) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return false
	}
	if p.left--; p.left > 0 {
		p.timer.Reset(p.step)
		return false
	}
	p.done = true
	return true
}

// end stops the count.
func (p *patience) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = true
	p.timer.Stop()
}

// fail keeps the first error, which is the answer from then on.
func (w *watched) fail(err error) error {
	w.mu.Lock()
	first := w.failed == nil
	if first {
		w.failed = err
	}
	w.mu.Unlock()
	if first {
		w.fatal(err)
	}
	return err
}

func (w *watched) FirstIndex() (i uint64, err error) {
	err = w.access("FirstIndex", func() error { i, err = w.logStore.FirstIndex(); return err })
	return i, err
}

func (w *watched) LastIndex() (i uint64, err error) {
	err = w.access("LastIndex", func() error { i, err = w.logStore.LastIndex(); return err })
	return i, err
}

func (w *watched) GetLog(i uint64, l *raft.Log) error {
	return w.access("GetLog", func() error { return w.logStore.GetLog(i, l) })
}

func (w *watched) StoreLog(l *raft.Log) error {
	return w.access("StoreLog", func() error { return w.logStore.StoreLog(l) })
}

func (w *watched) StoreLogs(l []*raft.Log) error {
	start := time.Now()
	err := w.access("StoreLogs", func() error { return w.logStore.StoreLogs(l) })
	w.appends.Observe(time.Since(start).Seconds())
	return err
}

func (w *watched) DeleteRange(from, to uint64) error {
	return w.access("DeleteRange", func() error { return w.logStore.DeleteRange(from, to) })
}

func (w *watched) Set(k, v []byte) error {
	return w.access("Set", func() error { return w.logStore.Set(k, v) })
}

func (w *watched) Get(k []byte) (v []byte, err error) {
	err = w.access("Get", func() error { v, err = w.logStore.Get(k); return err })
	return v, err
}

func (w *watched) SetUint64(k []byte, v uint64) error {
	return w.access("SetUint64", func() error { return w.logStore.SetUint64(k, v) })
}

func (w *watched) GetUint64(k []byte) (v uint64, err error) {
	err = w.access("GetUint64", func() error { v, err = w.logStore.GetUint64(k); return err })
	return v, err
}

// A disk is the data directory of a node.
type disk struct {
	log       *watched
	snapshots raft.SnapshotStore
	cluster   string // id of the cluster that the node belongs to, if any
	empty     bool   // no vote, no entry, no snapshot

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
	store, err := openLogStore(cfg, m)
	if err != nil {
		return nil, err
	}
	if cfg.disk != nil {
		store = cfg.disk(store)
	}
	d := &disk{log: &watched{logStore: store, limit: cfg.DiskTimeout, fatal: cfg.Fatal, appends: m.appendSeconds}}
	if err := d.open(cfg); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return d, nil
}

func (d *disk) open(cfg *Config) (err error) {
	d.snapshots, err = raft.NewFileSnapshotStoreWithLogger(cfg.Dir, snapshotsKept, newHclog(cfg.Logger))
	if err != nil {
		return fmt.Errorf("cluster: Dir: %w", err)
	}
	// What a restore left behind that was cut short.
	old, err := filepath.Glob(filepath.Join(cfg.Dir, restoreFiles))
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
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return 0, nil
	}
	return v, err
}

// admit keeps the place in the log at which the folder became a member's.
func (d *disk) admit(index uint64) error {
	d.admitted = index
	return d.log.SetUint64(keyAdmit, index)
}

// text returns what is kept under a key; "" if nothing is.
func (d *disk) text(key []byte) (string, error) {
	b, err := d.log.Get(key)
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return "", err
	}
	return string(b), nil
}

// belong keeps the id of the cluster that the node belongs to from now on.
func (d *disk) belong(cluster string) error { return d.log.Set(keyCluster, []byte(cluster)) }
