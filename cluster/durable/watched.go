package durable

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// Watched is a store that gives the disk up at its first error, or when an
// access takes too long: after a failed flush nobody knows what is on the disk,
// and a leader whose disk hangs still sends heartbeats, so that no one would
// take over.
type Watched struct {
	Store
	Limit   time.Duration
	Fatal   func(error)
	Appends prometheus.Observer // seconds of each append
	Kept    func() uint64       // index up to which entries are known to be applied or committed

	mu     sync.Mutex
	failed error
}

// access runs one access to the store. What is merely absent is no error.
func (w *Watched) access(what string, f func() error) error {
	w.mu.Lock()
	failed := w.failed
	w.mu.Unlock()
	if failed != nil {
		return failed
	}
	p := newPatience(w.Limit, func() { w.fail(fmt.Errorf("cluster: disk: %s has taken longer than %v", what, w.Limit)) })
	err := Guarded(f)
	p.end()
	if err == nil || errors.Is(err, raft.ErrLogNotFound) || errors.Is(err, ErrNotFound) {
		return err
	}
	if errors.Is(err, ErrDamaged) {
		return w.fail(fmt.Errorf("cluster: disk: %s: %w; %s", what, err, AdviceReplace))
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
func (w *Watched) fail(err error) error {
	w.mu.Lock()
	first := w.failed == nil
	if first {
		w.failed = err
	}
	w.mu.Unlock()
	if first {
		w.Fatal(err)
	}
	return err
}

func (w *Watched) FirstIndex() (i uint64, err error) {
	err = w.access("FirstIndex", func() error { i, err = w.Store.FirstIndex(); return err })
	return i, err
}

func (w *Watched) LastIndex() (i uint64, err error) {
	err = w.access("LastIndex", func() error { i, err = w.Store.LastIndex(); return err })
	return i, err
}

func (w *Watched) GetLog(i uint64, l *raft.Log) error {
	return w.access("GetLog", func() error { return w.Store.GetLog(i, l) })
}

func (w *Watched) StoreLog(l *raft.Log) error {
	return w.access("StoreLog", func() error { return w.Store.StoreLog(l) })
}

func (w *Watched) StoreLogs(l []*raft.Log) error {
	start := time.Now()
	err := w.access("StoreLogs", func() error { return w.Store.StoreLogs(l) })
	w.Appends.Observe(time.Since(start).Seconds())
	return err
}

// DeleteRange implements raft.LogStore. Raft removes the beginning of the log,
// for which a snapshot stands, and the end of it, where another leader has other
// entries. It never means an entry that this node has applied, or knows to be
// committed, by the end: two nodes would disagree from then on, and not know. Of an
// empty log nothing is removed: Raft means what went for a snapshot.
func (w *Watched) DeleteRange(from, to uint64) error {
	last, err := w.LastIndex()
	if err != nil || last == 0 {
		return err
	}
	if kept := w.Kept(); to >= last && from <= kept {
		return w.fail(fmt.Errorf("cluster: entries %d to %d of the log should be replaced by those of another leader, but those up to %d are committed: this node and that one disagree; find out which of them is right, and %s",
			from, to, kept, AdviceReplace))
	}
	return w.access("DeleteRange", func() error { return w.Store.DeleteRange(from, to) })
}

// Empty removes all entries, of which a snapshot stands for those that are kept, and
// returns the index of the last one.
func (w *Watched) Empty() (last uint64, err error) {
	if last, err = w.LastIndex(); err != nil || last == 0 {
		return last, err
	}
	return last, w.access("DeleteRange", func() error { return w.Store.DeleteRange(1, last) })
}

func (w *Watched) Set(k, v []byte) error {
	return w.access("Set", func() error { return w.Store.Set(k, v) })
}

func (w *Watched) Get(k []byte) (v []byte, err error) {
	err = w.access("Get", func() error { v, err = w.Store.Get(k); return err })
	return v, err
}

func (w *Watched) SetUint64(k []byte, v uint64) error {
	return w.access("SetUint64", func() error { return w.Store.SetUint64(k, v) })
}

func (w *Watched) GetUint64(k []byte) (v uint64, err error) {
	err = w.access("GetUint64", func() error { v, err = w.Store.GetUint64(k); return err })
	return v, err
}
