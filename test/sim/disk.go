package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"example.com/govnode/cluster/durable"
)

// A disk is what survives of a host. What a write takes is time; what is being
// written when the host crashes is there afterwards in part, wholly or not at
// all, and what was acknowledged is there.
type disk struct {
	mu     sync.Mutex
	rng    *rand.Rand
	access time.Duration
	stall  chan struct{}      // closed when the disk goes on; nil if it does
	now    *content           // another one after a crash
	ever   map[place]*written // for the record
}

// A place is where an entry stands in the log: there is one at most, and all
// disks that have it have the same before it.
type place struct{ index, term uint64 }

// A written entry is one that a disk was given.
type written struct {
	log    *raft.Log
	at     time.Time // for the first time
	before uint64    // term of the entry before; 0 if the disk had none
}

// A content is what is on a disk. A process that crashed is left with one of its
// own, which nobody else ever sees: it is ended, and not told that it is dead.
type content struct {
	log         map[uint64]*raft.Log
	first, last uint64
	values      map[string][]byte
	snapshots   []*snapshot // the oldest first
	pending     []*raft.Log // being written
}

const usualAccess = 500 * time.Microsecond

func newDisk(rng *rand.Rand) *disk {
	d := &disk{rng: rng, ever: map[place]*written{}}
	d.wipe()
	return d
}

// wipe is a new, empty disk in the same host.
func (d *disk) wipe() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.access = usualAccess
	d.now = &content{log: map[uint64]*raft.Log{}, values: map[string][]byte{}}
}

// blank reports whether nothing of a log is on the disk.
func (d *disk) blank() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.now.log) == 0 && len(d.now.snapshots) == 0
}

// crash forgets what was not acknowledged, or a part of it.
func (d *disk) crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := *d.now
	left.log, left.values, left.snapshots, left.pending = maps.Clone(left.log), maps.Clone(left.values), slices.Clone(left.snapshots), nil
	if n := len(d.now.pending); n > 0 {
		d.append(&left, d.now.pending[:d.rng.IntN(n+1)])
	}
	d.now = &left
}

// hang lets every access wait until release is called.
func (d *disk) hang() (release func()) {
	stall := make(chan struct{})
	d.mu.Lock()
	d.stall = stall
	d.mu.Unlock()
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.stall == stall {
			d.stall = nil
		}
		close(stall)
	}
}

// slow makes each write take longer, until release is called.
func (d *disk) slow(by time.Duration) (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.access += by
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.access = max(usualAccess, d.access-by)
	}
}

// opener returns cluster.Config.OpenDisk for a process that starts now.
func (d *disk) opener() func() (durable.Store, raft.SnapshotStore, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &store{d, d.now}
	return func() (durable.Store, raft.SnapshotStore, error) { return s, snapshots{s}, nil }
}

// append puts entries at the end of a log. A snapshot stands for all that is
// before a hole, as with package durable. d.mu is held.
func (d *disk) append(c *content, logs []*raft.Log) {
	for _, l := range logs {
		if c.last > 0 && l.Index > c.last+1 {
			clear(c.log)
			c.first, c.last = 0, 0
		}
		c.log[l.Index] = l
		if c.first == 0 {
			c.first = l.Index
		}
		c.last = max(c.last, l.Index)
		w := d.ever[place{l.Index, l.Term}]
		if w == nil {
			w = &written{log: l, at: time.Now()}
			d.ever[place{l.Index, l.Term}] = w
		}
		if before := c.log[l.Index-1]; before != nil {
			w.before = before.Term
		}
	}
}

// A store is the disk as one process on its host sees it.
type store struct {
	disk *disk
	*content
}

// change writes: begin notes what is being written, and done that it is.
func (s *store) change(begin, done func()) error {
	s.disk.mu.Lock()
	begin()
	access, stall := s.disk.access, s.disk.stall
	s.disk.mu.Unlock()
	if stall != nil {
		<-stall
	}
	time.Sleep(access)
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	done()
	return nil
}

func (s *store) Close() error { return nil }

func (s *store) FirstIndex() (uint64, error) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	return s.first, nil
}

func (s *store) LastIndex() (uint64, error) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	return s.last, nil
}

func (s *store) GetLog(index uint64, l *raft.Log) error {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	stored := s.log[index]
	if stored == nil {
		return raft.ErrLogNotFound
	}
	*l = *cloneLog(stored)
	return nil
}

func (s *store) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s *store) StoreLogs(logs []*raft.Log) error {
	own := make([]*raft.Log, len(logs))
	for i, l := range logs {
		own[i] = cloneLog(l)
	}
	return s.change(func() { s.pending = own }, func() {
		if s.disk.now == s.content {
			s.disk.append(s.content, own)
		} else {
			for _, l := range own { // nobody ever sees it
				s.log[l.Index] = l
			}
			s.last = own[len(own)-1].Index
		}
		s.pending = nil
	})
}

func (s *store) DeleteRange(from, to uint64) error {
	return s.change(func() {}, func() {
		for i := from; i <= to; i++ {
			delete(s.log, i)
		}
		switch {
		case len(s.log) == 0:
			s.first, s.last = 0, 0
		case from <= s.first:
			s.first = to + 1
		default:
			s.last = from - 1
		}
	})
}

func (s *store) Set(key, value []byte) error {
	value = slices.Clone(value)
	return s.change(func() {}, func() { s.values[string(key)] = value })
}

func (s *store) Get(key []byte) ([]byte, error) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	v, known := s.values[string(key)]
	if !known {
		return nil, durable.ErrNotFound
	}
	return slices.Clone(v), nil
}

func (s *store) SetUint64(key []byte, n uint64) error { return s.Set(key, fmt.Append(nil, n)) }

func (s *store) GetUint64(key []byte) (n uint64, err error) {
	b, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(string(b), &n)
	return n, err
}

func cloneLog(l *raft.Log) *raft.Log {
	own := *l
	own.Data, own.Extensions = slices.Clone(l.Data), slices.Clone(l.Extensions)
	return &own
}

// snapshots are those of a disk. One is there once it was closed.
type snapshots struct{ *store }

type snapshot struct {
	meta  raft.SnapshotMeta
	state []byte
}

const snapshotsKept = 2

func (s snapshots) Create(v raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if v != raft.SnapshotVersionMax {
		return nil, fmt.Errorf("version %d of a snapshot", v)
	}
	return &sink{store: s.store, snapshot: snapshot{meta: raft.SnapshotMeta{
		Version: v, ID: fmt.Sprintf("%d-%d-%d", term, index, time.Now().UnixNano()), Index: index, Term: term,
		Configuration: members.Clone(), ConfigurationIndex: membersIndex,
	}}}, nil
}

func (s snapshots) List() (all []*raft.SnapshotMeta, err error) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	for _, x := range slices.Backward(s.content.snapshots) {
		m := x.meta
		all = append(all, &m)
	}
	return all, nil
}

func (s snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.disk.mu.Lock()
	defer s.disk.mu.Unlock()
	for _, x := range s.content.snapshots {
		if x.meta.ID == id {
			m := x.meta
			return &m, io.NopCloser(bytes.NewReader(x.state)), nil
		}
	}
	return nil, nil, errors.New("no such snapshot")
}

// A sink is a snapshot that is being written.
type sink struct {
	*store
	snapshot snapshot
	ended    bool
}

func (s *sink) Write(b []byte) (int, error) {
	s.snapshot.state = append(s.snapshot.state, b...)
	return len(b), nil
}

func (s *sink) Close() error {
	if s.ended {
		return nil
	}
	s.ended = true
	s.snapshot.meta.Size = int64(len(s.snapshot.state))
	return s.change(func() {}, func() {
		all := append(s.content.snapshots, &s.snapshot)
		slices.SortStableFunc(all, func(a, b *snapshot) int {
			return int(int64(a.meta.Term-b.meta.Term))<<32 + int(int64(a.meta.Index-b.meta.Index))
		})
		s.content.snapshots = all[max(0, len(all)-snapshotsKept):]
	})
}

func (s *sink) ID() string { return s.snapshot.meta.ID }

func (s *sink) Cancel() error {
	s.ended = true
	return nil
}
