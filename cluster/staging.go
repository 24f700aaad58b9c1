package cluster

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/hashicorp/raft"

	"example.com/govnode/session"
)

// A restore has its place in the log like everything else. It is an entry that
// begins it, pieces of the chunks of the snapshot, and one entry that ends it;
// other entries may stand between them. Every replica builds the new state
// beside the present one, where nobody reads it, and the last entry puts it in
// place: a restore is done where that entry is, and has not happened where it
// is not.
//
// What was staged is dropped when another restore begins, when an entry of
// another term is applied, or when restoreRest of log time has passed without
// another piece. All of that stands in the log, so that all replicas do it at
// the same entry. While something is staged no snapshot is taken: one is of an
// index at which nothing is, and the log behind it has the pieces. So whoever is
// sent a snapshot in the middle of a restore is sent all of its pieces as well.

// restoreRest is how much log time may pass between two entries of a restore.
const restoreRest = time.Minute

// What an entry of a restore does. The letter stands in the entry's extensions,
// behind the term.
const (
	restoreBegin   = 'B' // now, generation of the snapshot
	restorePiece   = 'P' // 1 if a chunk ends with it, otherwise 0; bytes
	restoreEnd     = 'E' // digest of all before it
	restoreAbandon = 'A'
)

// errNotStaged is the answer to an entry of a restore whose beginning was
// dropped, or that does not follow the one before it. It changes nothing.
var errNotStaged = errors.New("cluster: the restore was given up before this part of it")

// A restored is the answer to the entry that ends a restore.
type restored struct{ at time.Duration }

// A restoreEntry is an entry of a restore: log time, restore and place of 8
// bytes each, the body, and their checksum with that of the kind.
type restoreEntry struct {
	kind  byte
	at    time.Duration // log time
	id    uint64        // of the restore
	place uint64        // of the entry in it, from 0
	body  []byte
}

const (
	restoreHead = 8 + 8 + 8
	// restoreData is how much of a chunk one entry carries; with all else it has
	// less than 256 KiB.
	restoreData = 256<<10 - 256
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (e *restoreEntry) sum(b []byte) uint32 { return crc32.Update(uint32(e.kind), castagnoli, b) }

// log returns the entry for Raft, stamped with the term of its leadership.
func (e *restoreEntry) log(term uint64) raft.Log {
	b := make([]byte, 0, restoreHead+len(e.body)+crc32.Size)
	b = binary.BigEndian.AppendUint64(b, uint64(e.at))
	b = binary.BigEndian.AppendUint64(b, e.id)
	b = binary.BigEndian.AppendUint64(b, e.place)
	b = append(b, e.body...)
	return raft.Log{Data: binary.BigEndian.AppendUint32(b, e.sum(b)), Extensions: append(termOf(term), e.kind)}
}

// isRestore reports whether an entry is one of a restore.
func isRestore(l *raft.Log) bool { return len(l.Extensions) == 8+1 }

func readRestoreEntry(l *raft.Log) (*restoreEntry, error) {
	e := &restoreEntry{kind: l.Extensions[8]}
	n := len(l.Data) - crc32.Size
	if n < restoreHead || e.sum(l.Data[:n]) != binary.BigEndian.Uint32(l.Data[n:]) {
		return nil, fmt.Errorf("%w: the checksum of an entry of a restore is wrong", session.ErrDamaged)
	}
	e.at = time.Duration(binary.BigEndian.Uint64(l.Data))
	e.id, e.place = binary.BigEndian.Uint64(l.Data[8:]), binary.BigEndian.Uint64(l.Data[16:])
	e.body = l.Data[restoreHead:n]
	size, known := map[byte]int{restoreBegin: 12, restorePiece: -1, restoreEnd: sha256.Size, restoreAbandon: 0}[e.kind]
	switch {
	case !known:
		return nil, fmt.Errorf("%w: entry %q of a restore", session.ErrUnknownKind, e.kind)
	case size >= 0 && len(e.body) != size, size < 0 && len(e.body) == 0:
		return nil, fmt.Errorf("%w: entry %q of a restore has a body of %d bytes", session.ErrDamaged, e.kind, len(e.body))
	}
	return e, nil
}

// A digest is that of the bodies of a restore so far.
type digest [sha256.Size]byte

func (d digest) with(e *restoreEntry) digest {
	h := sha256.New()
	h.Write(d[:])
	h.Write([]byte{e.kind})
	h.Write(e.body)
	return digest(h.Sum(nil))
}

// A staging is a restore that has begun and has not ended.
type staging struct {
	id, term uint64
	next     uint64 // place
	digest   digest
	last     time.Duration // log time of the latest entry of it
	rest     []byte        // of a chunk that has not ended
	loader   *session.Loader
}

// stale drops what is staged if it may not go on at an entry of that term, at
// that log time.
func (f *fsm) stale(term uint64, at time.Duration) {
	if s := f.staging; s != nil && (s.term != term || at > s.last+restoreRest) {
		f.staging = nil
	}
}

// applyRestore applies an entry of a restore. It returns nil, *restored, errVoid,
// errNotStaged or errStopped.
func (f *fsm) applyRestore(l *raft.Log) any {
	e, err := readRestoreEntry(l)
	if err != nil {
		return f.fail(fmt.Errorf("cluster: log entry %d: %w", l.Index, err))
	}
	f.stale(l.Term, e.at)
	var state *session.State
	var answer any = errVoid
	if binary.BigEndian.Uint64(l.Extensions) == l.Term {
		if state, err = f.stage(l.Term, e); errors.Is(err, errNotStaged) {
			answer = err
		} else if err != nil {
			// Its leader has read all of it: this build does not know what is in
			// it, or this machine errs.
			return f.fail(fmt.Errorf("cluster: log entry %d: %w", l.Index, err))
		} else if answer = nil; state != nil {
			answer = &restored{state.Now()}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return errStopped
	}
	f.logged.add(len(l.Data))
	if state != nil {
		f.replace(state)
		f.metrics.restored()
	}
	f.moved(l.Index)
	return answer
}

// stage takes an entry of a restore in. It returns the new state at the end of
// one.
func (f *fsm) stage(term uint64, e *restoreEntry) (*session.State, error) {
	if e.kind == restoreBegin {
		now, generation := time.Duration(binary.BigEndian.Uint64(e.body)), binary.BigEndian.Uint32(e.body[8:])
		f.staging = &staging{id: e.id, term: term, next: 1, digest: digest{}.with(e), last: e.at, loader: session.NewLoader(now, generation)}
		return nil, nil
	}
	s := f.staging
	if s == nil || s.id != e.id {
		return nil, errNotStaged
	}
	if s.next != e.place || e.kind == restoreAbandon || e.kind == restoreEnd && s.digest != digest(e.body) {
		f.staging = nil
		return nil, errNotStaged
	}
	if e.kind == restoreEnd {
		f.staging = nil
		return f.renewed(s.loader.State(), e.at), nil
	}
	s.next, s.digest, s.last = s.next+1, s.digest.with(e), e.at
	s.rest = append(s.rest, e.body[1:]...)
	if e.body[0] == 0 {
		return nil, nil
	}
	err := s.loader.Put(s.rest)
	s.rest = s.rest[:0]
	return nil, err
}

// renewed makes a snapshot the state that follows the present one: nobody ever
// sees one in which the leases of the snapshot live, in which tokens begin again
// below those that were given out, or in which time runs back.
func (f *fsm) renewed(state *session.State, at time.Duration) *session.State {
	now, generation := f.clock()
	state.SetClock(max(now, at), generation)
	state.KeepAccess(f.state)
	state.ApplyAll(state.Now(), []session.Command{&session.Restore{}})
	return state
}
