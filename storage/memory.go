package storage

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"sync"
	"time"

	"example.com/govnode/session"
)

// Memory is a Store for one process that forgets everything when it ends. A
// mutex is its order.
type Memory struct {
	Lapses

	id      string
	clock   func() time.Duration
	changed chan struct{}
	stop    chan struct{}
	stopped sync.WaitGroup
	once    sync.Once

	mu    sync.RWMutex
	state *session.State
	index uint64
	ahead time.Duration // of the clock: a snapshot that was restored may come from a later time
}

// housekeeping is how often what has run out is settled in a store that has no
// log to stamp.
const housekeeping = 250 * time.Millisecond

// NewMemory returns an empty store. The function now returns log time, which
// never runs backwards; nil means the time since NewMemory.
func NewMemory(now func() time.Duration) *Memory {
	if now == nil {
		start := time.Now()
		now = func() time.Duration { return time.Since(start) }
	}
	m := &Memory{id: rand.Text(), clock: now, changed: make(chan struct{}, 1), stop: make(chan struct{}), state: session.New()}
	m.stopped.Add(1)
	go m.keepHouse()
	return m
}

// DataID implements Store.
func (m *Memory) DataID(string) string { return m.id }

// logTime is the clock, and what it was set ahead by. m.mu is held.
func (m *Memory) logTime() time.Duration { return m.clock() + m.ahead }

// Apply implements Store.
func (m *Memory) Apply(_ context.Context, cmds ...session.Command) []Answer {
	answers := make([]Answer, len(cmds))
	valid := make([]session.Command, 0, len(cmds))
	for i, c := range cmds {
		if err := session.Validate(c); err != nil {
			answers[i] = Refused(Invalid(err))
			continue
		}
		valid = append(valid, c)
	}
	results, index := m.apply(valid)
	m.TellLapses(results)
	for i := range answers {
		if answers[i].Err == nil {
			index++
			answers[i] = Done(results[0], index)
			results = results[1:]
		}
	}
	return answers
}

// apply makes one entry of commands, so that a pool is copied once. It returns the
// index before them.
func (m *Memory) apply(cmds []session.Command) (results []session.Result, index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	results, index = m.state.ApplyAll(m.logTime(), cmds), m.index
	m.index += uint64(len(cmds))
	m.tell()
	return results, index
}

// Get implements Store. Both kinds of read are the same here.
func (m *Memory) Get(_ context.Context, k session.Key, _ Read) (Found, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.foundAt(k, max(m.logTime(), m.state.Now())), nil
}

// GetAll implements Gatherer.
func (m *Memory) GetAll(_ context.Context, keys ...session.Key) ([]Found, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	now := max(m.logTime(), m.state.Now())
	all := make([]Found, len(keys))
	for i, k := range keys {
		all[i] = m.foundAt(k, now)
	}
	return all, nil
}

// foundAt is a record as it stands. m.mu is held.
func (m *Memory) foundAt(k session.Key, now time.Duration) Found {
	f := Found{Now: now, Index: m.index, Generation: m.state.Generation()}
	if r := m.state.Stored(k); r != nil {
		f.Record = r.At(now)
	}
	return f
}

// View implements Store. It has all namespaces, whatever is asked for.
func (m *Memory) View(context.Context, string, Read) (View, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.ApplyAll(m.logTime(), nil)
	return ViewOf(m.state.Snapshot(), m.index), nil
}

// ViewOf makes a View of a snapshot.
func ViewOf(s *session.Snapshot, index uint64) View {
	return View{Now: s.Now(), Index: index,
		Find: func(prefix, after session.Key, limit int, keep func(session.Key, session.Record) bool) ([]session.Entry, error) {
			return s.Find(prefix, after, limit, keep), nil
		}}
}

// Count implements Counting.
func (m *Memory) Count(_ context.Context, ns string) (session.Tally, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.TallyOf(ns), nil
}

// Unswept implements Sweeping.
func (m *Memory) Unswept(context.Context) []session.Key {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.state.Unswept()
}

// Changed implements Store.
func (m *Memory) Changed() <-chan struct{} { return m.changed }

// Save implements Store.
func (m *Memory) Save(_ context.Context, w io.Writer) error {
	m.mu.Lock()
	snap := m.state.Snapshot()
	m.mu.Unlock()
	return session.WriteSnapshot(w, snap)
}

// Restore implements Store.
func (m *Memory) Restore(_ context.Context, r io.Reader) error {
	state, err := session.ReadSnapshot(r)
	if err != nil {
		return Fail(NotApplied, Invalid(fmt.Errorf("snapshot: %w", err)))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.logTime()
	state.SetClock(now, m.state.Generation())
	m.ahead += state.Now() - now
	state.KeepAccess(m.state)
	state.ApplyAll(state.Now(), []session.Command{&session.Restore{}})
	m.state = state
	m.index++
	m.tell()
	return nil
}

// Close implements Store.
func (m *Memory) Close() error {
	m.once.Do(func() { close(m.stop) })
	m.stopped.Wait()
	return nil
}

func (m *Memory) tell() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// keepHouse settles what has run out, so that it costs no memory and those who
// wait are told.
func (m *Memory) keepHouse() {
	defer m.stopped.Done()
	t := time.NewTicker(housekeeping)
	defer t.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-t.C:
			m.TellLapses(m.tick())
		}
	}
}

// tick returns what it found.
func (m *Memory) tick() (results []session.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := max(m.logTime(), m.state.Now())
	if at, ok := m.state.Due(); !ok || at > now {
		return nil
	}
	m.state.ApplyAll(now, nil)
	if keys, _ := m.state.DueKeys(session.MaxTick); len(keys) > 0 {
		results = m.state.ApplyAll(now, []session.Command{&session.Tick{Keys: keys}})
		m.tell()
	}
	return results
}
