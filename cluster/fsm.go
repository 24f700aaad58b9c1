package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"example.com/govnode/limiter"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// The state machine of a node, as Raft drives it: entries and snapshots go in
// and come out here.

// errVoid is the answer of an entry that was stamped under another leadership
// than the one that gave it its place. No replica applies it.
var errVoid = errors.New("cluster: stamped under an earlier leadership")

// errStopped is the answer of a node that has failed.
var errStopped = errors.New("cluster: the node has failed")

// fsm is the state machine as Raft drives it: it decodes, applies, answers.
type fsm struct {
	fatal   func(error)
	metrics *metrics
	changed chan struct{}
	logged  logged
	staging *staging   // nil unless a restore is under way; used by what Raft calls alone
	checks  chan check // the latest that was ordered
	settled storage.Settled

	// Set before Raft starts: where its snapshots lie, and what is closed when
	// the node ends. Nil and empty in tests of the state machine alone.
	snapshots string
	ended     <-chan struct{}
	// How many entries are under way that this node has proposed. Of all others
	// nobody reads the results. Nil: somebody always does.
	own *atomic.Int64

	// Used by what Raft calls alone: what entries are decoded and applied with.
	decoder session.Decoder
	unread  []session.Result

	// Holds one place, of a snapshot of this node's own that ends or of one that
	// replaces the state; see Persist. How often the latter happened.
	ending   chan struct{}
	replaced uint64

	since   *clock        // what has passed since an entry was applied
	between time.Duration // the most of it that counts; see electionsTake

	mu      sync.RWMutex
	state   *session.State
	index   uint64        // of the latest entry applied
	members uint64        // index of the latest change of members
	leased  time.Duration // no lease or ticket lasts longer than this
	view    storage.View  // of the present index, if Find is set
	waiting []waiter
	checked time.Time // see lastCheck
	stopped bool
}

// A waiter waits until an index has been applied.
type waiter struct {
	index uint64
	done  chan struct{}
}

func newFSM(fatal func(error), m *metrics) *fsm {
	return &fsm{fatal: fatal, metrics: m, changed: make(chan struct{}, 1), checks: make(chan check, 1), ending: make(chan struct{}, 1), checked: time.Now(), since: newClock(0, systemClocks()), between: betweenMost, state: session.New()}
}

// termOf writes the term under which an entry was stamped, for its extensions.
func termOf(term uint64) []byte { return binary.BigEndian.AppendUint64(nil, term) }

// logged counts the bytes that were applied.
type logged struct{ all, saved atomic.Int64 }

func (l *logged) add(n int) { l.all.Add(int64(n)) }

// since returns the bytes that were applied since the last snapshot.
func (l *logged) since() int64 { return max(0, l.all.Load()-l.saved.Load()) }

// upTo notes that a snapshot stands for all that was applied when all had that
// value. One that was begun earlier may come in later.
func (l *logged) upTo(all int64) {
	for {
		saved := l.saved.Load()
		if saved >= all || l.saved.CompareAndSwap(saved, all) {
			return
		}
	}
}

// Apply implements raft.FSM. It returns []session.Result, or nil where nobody is there
// to read them, errVoid or errStopped, and what applyRestore returns.
func (f *fsm) Apply(l *raft.Log) any {
	if isRestore(l) {
		return f.applyRestore(l)
	}
	start := time.Now()
	at, cmds, err := f.decoder.Decode(l.Data)
	if err == nil && len(l.Extensions) != 8 {
		err = errors.New("no term")
	}
	if errors.Is(err, session.ErrDamaged) {
		err = fmt.Errorf("%w; %s", err, adviceReplace)
	}
	if err != nil {
		// Stop rather than diverge: others may know what this is.
		return f.fail(fmt.Errorf("cluster: log entry %d: %w", l.Index, err))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return errStopped
	}
	var answer any = errVoid
	if binary.BigEndian.Uint64(l.Extensions) == l.Term {
		answer = f.apply(at, cmds, l.Index)
		f.noteLeases(cmds)
		f.since.restart()
		if len(cmds) == 0 {
			f.noteCheck(check{l.Index, l.Term, f.state.Snapshot()})
		}
	}
	f.stale(l.Term, f.state.Now())
	f.logged.add(len(l.Data))
	f.moved(l.Index)
	f.metrics.applied(len(cmds), time.Since(start))
	return answer
}

// apply returns the results as Apply does. f.mu is held.
func (f *fsm) apply(at time.Duration, cmds []session.Command, index uint64) any {
	// An entry is counted before it is proposed, and until its results were read: where
	// none is, this is nobody's here. Were it somebody's, he would find no results.
	if f.own == nil || f.own.Load() > 0 {
		results := f.state.ApplyAll(at, cmds)
		f.settled.Note(cmds, results, index)
		return results
	}
	results := f.state.ApplyInto(f.unread, at, cmds)
	f.settled.Note(cmds, results, index)
	clear(results)
	if f.unread = results[:0]; len(results) > maxEntryCommands {
		f.unread = nil
	}
	return nil
}

// fail stops the state machine for good.
func (f *fsm) fail(err error) error {
	f.mu.Lock()
	first := !f.stopped
	f.stopped = true
	f.mu.Unlock()
	if first {
		f.fatal(err)
	}
	return errStopped
}

// StoreConfiguration implements raft.ConfigurationStore: a change of members
// has its place in the log, too.
func (f *fsm) StoreConfiguration(index uint64, _ raft.Configuration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = index
	f.moved(index)
}

// moved notes that an entry has been applied. f.mu is held.
func (f *fsm) moved(index uint64) {
	f.index = max(f.index, index)
	f.view = storage.View{}
	still := f.waiting[:0]
	for _, w := range f.waiting {
		if w.index > f.index {
			still = append(still, w)
		} else {
			close(w.done)
		}
	}
	clear(f.waiting[len(still):])
	f.waiting = still
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// noteLeases keeps an upper bound of when the last lease or ticket ends, which
// decides how often the leader writes time to the log, and nothing else. f.mu
// is held.
func (f *fsm) noteLeases(cmds []session.Command) {
	for _, c := range cmds {
		var lasts time.Duration
		switch c := c.(type) {
		case *session.Begin:
			lasts = max(c.TTL, c.Wait+limiter.ClaimTTL)
		case *session.Acquire:
			lasts = max(c.TTL, c.Wait+limiter.ClaimTTL)
		case *session.TakeRate:
			lasts = c.Wait + limiter.ClaimTTL
		case *session.Renew:
			lasts = max(c.TTL, limiter.TicketTTL+limiter.ClaimTTL)
		default:
			continue
		}
		f.leased = max(f.leased, f.state.Now()+lasts)
	}
}

// reached returns a channel that is closed when the index has been applied.
func (f *fsm) reached(index uint64) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	done := make(chan struct{})
	if f.index >= index {
		close(done)
	} else {
		f.waiting = append(f.waiting, waiter{index, done})
	}
	return done
}

// leave forgets one who waited for an index and does so no more.
func (f *fsm) leave(done <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, w := range f.waiting {
		if w.done == done {
			f.waiting = append(f.waiting[:i], f.waiting[i+1:]...)
			return
		}
	}
}

// applied returns the index of the latest entry applied.
func (f *fsm) applied() uint64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.index
}

// now returns the time of the latest entry applied.
func (f *fsm) now() time.Duration {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.state.Now()
}

// begin returns the log time at which a leadership begins that has applied all
// entries of those before it.
func (f *fsm) begin() time.Duration {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.state.Now() + min(f.since.Now(), f.between)
}

// clock returns the time of the latest entry and the generation of tokens.
func (f *fsm) clock() (time.Duration, uint32) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.state.Now(), f.state.Generation()
}

// memberIndex returns the index of the latest change of members that was
// applied; 0 if it lies before a snapshot.
func (f *fsm) memberIndex() uint64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.members
}

// get returns a record as it stands at the time of the latest entry: every
// replica that has applied the same entries gives the same answer.
func (f *fsm) get(k session.Key) storage.Found {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return storage.Found{Record: f.state.Get(k), Now: f.state.Now(), Index: f.index, Generation: f.state.Generation()}
}

// tally returns how much there is in a namespace.
func (f *fsm) tally(ns string) session.Tally {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.state.TallyOf(ns)
}

// unswept returns where KILLs stand that are not swept.
func (f *fsm) unswept() []session.Key {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.state.Unswept()
}

// viewed returns the state of the present index. Asking again costs nothing
// until it has moved on.
func (f *fsm) viewed() storage.View {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.view.Find == nil {
		f.view = storage.ViewOf(f.state.Snapshot(), f.index)
	}
	return f.view
}

// snapshot returns the present state.
func (f *fsm) snapshot() (*session.Snapshot, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state.Snapshot(), f.index
}

// due tells how often time must be written to the log as of log time now.
func (f *fsm) due(now time.Duration) cadence {
	f.mu.RLock()
	defer f.mu.RUnlock()
	at, ok := f.state.Due()
	switch {
	case !ok:
		return never
	case at <= now:
		return atOnce
	case now < f.leased:
		return often
	}
	return seldom
}

// overdue returns what has run out by the time of the latest entry, with what a
// Tick names beside it.
func (f *fsm) overdue(limit int) ([]session.Key, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state.DueKeys(limit)
}

// Snapshot implements raft.FSM. It copies pointers; the state is written beside
// Apply. While a restore is under way there is none: see staging.go.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if f.staging != nil {
		return nil, raft.ErrNothingNewToSnapshot
	}
	s, index := f.snapshot()
	return &fsmSnapshot{state: s, index: index, logged: f.logged.all.Load(), fsm: f, replaced: f.replaced}, nil
}

// A snapshot as Raft keeps it is snapshotMagic, the index, and what
// session.WriteSnapshot writes.
const snapshotMagic = "govraft1"

type fsmSnapshot struct {
	state    *session.Snapshot
	index    uint64
	logged   int64 // how much was applied when it was taken
	fsm      *fsm
	replaced uint64 // how often the state had been replaced
	ends     bool   // has the place of fsm.ending
}

// errReplaced is why a snapshot is given up that a later one has overtaken.
var errReplaced = errors.New("a later one was sent by the leader meanwhile")

// Persist implements raft.FSMSnapshot. A snapshot is there once its sink was closed,
// which Raft does once more.
//
// Raft takes the one that ends last for the latest. One that a leader sends may come
// while this one is written, which takes minutes; the log then begins behind that one,
// and Raft would look for its beginning behind this one. So this one is given up then;
// and if it ends first, the other waits until Raft has taken note of it: see Release.
func (s *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	start := time.Now()
	w := &paced{w: sink, rest: snapshotRest, ended: s.fsm.ended, sync: func() error { return syncSnapshot(s.fsm.snapshots, sink.ID()) }}
	err := writeSnapshot(w, s.index, s.state)
	if err == nil {
		s.fsm.ending <- struct{}{}
		s.ends = true
		if s.replaced != s.fsm.replaced {
			return errReplaced // which is no failure of this node's
		}
		err = sink.Close()
	}
	if err == nil {
		s.fsm.logged.upTo(s.logged)
	}
	s.fsm.metrics.snapshot(time.Since(start), err)
	return err
}

// Release implements raft.FSMSnapshot. Raft calls it last of all.
func (s *fsmSnapshot) Release() {
	if s.ends {
		s.ends = false
		<-s.fsm.ending
	}
}

func writeSnapshot(w io.Writer, index uint64, s *session.Snapshot) error {
	if _, err := w.Write(binary.BigEndian.AppendUint64([]byte(snapshotMagic), index)); err != nil {
		return err
	}
	return session.WriteSnapshot(w, s)
}

func readSnapshot(r io.Reader) (*session.State, uint64, error) {
	var head [len(snapshotMagic) + 8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, 0, fmt.Errorf("cluster: snapshot is truncated: %w", err)
	}
	if string(head[:len(snapshotMagic)]) != snapshotMagic {
		return nil, 0, errors.New("cluster: not a snapshot of a node, or one of a newer version")
	}
	s, err := session.ReadSnapshot(r)
	return s, binary.BigEndian.Uint64(head[len(snapshotMagic):]), err
}

// Restore implements raft.FSM. The state is built beside the present one, which
// stays as it is if anything is wrong; the node then stops, since Raft would
// try for ever.
func (f *fsm) Restore(r io.ReadCloser) error {
	state, index, err := readSnapshot(r)
	if errors.Is(err, session.ErrDamaged) {
		err = fmt.Errorf("%w; %s", err, adviceReplace)
	}
	if err != nil {
		return f.fail(fmt.Errorf("cluster: restore: %w", err))
	}
	f.ending <- struct{}{}
	f.replaced++
	<-f.ending
	f.staging = nil // none where the snapshot was taken
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replace(state)
	f.members = 0 // what was known of them may have changed in what the snapshot stands for
	f.logged.upTo(f.logged.all.Load())
	f.index = index // also if it lies back: who reads waits for what is missing
	f.moved(index)
	f.metrics.restored()
	return nil
}

// replace puts another state in place of the present one. f.mu is held.
func (f *fsm) replace(state *session.State) {
	f.state = state
	f.since.restart()
	f.leased = 0
	if at, ok := state.Due(); ok && at <= state.Now()+session.MaxTTL {
		f.leased = state.Now() + session.MaxTTL // leases of the snapshot end by then
	}
}
