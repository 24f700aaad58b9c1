package cluster

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"example.com/govnode/cluster/durable"
)

// The log of a node and its snapshots as Raft uses them: what becomes of the log when the
// leader sends a snapshot.
//
// The log stays if it has the entry with which the snapshot ends, and is emptied if not.
// Raft 1.7.3 itself empties a log at each snapshot that it is sent, or at none
// (raft.MonotonicLogStore). The former takes away what the node has acknowledged behind
// the snapshot. The latter leaves entries that never were committed: a node that has
// just begun to lead would send them to who lacks them, and one that has another
// entry in the place of the last one of the snapshot never gets further.

// logCached is how many entries are kept in memory for followers.
const logCached = 128

// ErrSuperseded ends a process whose Raft believes to have entries that are gone: it
// learns where a log ends when it starts. Config.Fatal is given it.
var ErrSuperseded = errors.New("cluster: the log of this node went on otherwise than that of the others, with entries that were never committed; a snapshot of the leader has taken their place: start the node again")

// A raftLog is the log, with its latest entries in memory.
type raftLog struct {
	*raft.LogCache
	disk *durable.Watched
}

func newRaftLog(disk *durable.Watched) (*raftLog, error) {
	cache, err := raft.NewLogCache(logCached, disk)
	return &raftLog{cache, disk}, err
}

// holds reports whether the log has an entry.
func (l *raftLog) holds(index, term uint64) bool {
	var own raft.Log
	return l.GetLog(index, &own) == nil && own.Term == term
}

// fits reports whether the log may stay beside a snapshot that ends with an entry: it has
// that one, or begins behind it.
func (l *raftLog) fits(index, term uint64) (bool, error) {
	var own raft.Log
	switch err := l.GetLog(index, &own); {
	case err == nil:
		return own.Term == term, nil
	case !errors.Is(err, raft.ErrLogNotFound):
		return false, err
	}
	last, err := l.LastIndex()
	return last == 0 || last > index, err
}

// empty removes all entries, for which a snapshot stands, and returns the index of the
// last one.
func (l *raftLog) empty() (last uint64, err error) {
	if last, err = l.disk.Empty(); err != nil {
		return last, err
	}
	return last, l.DeleteRange(1, 0) // nothing, but the memory of it all
}

// A superseding is the store of snapshots. Each one that is there is the end of what does
// not fit in the log.
type superseding struct {
	raft.SnapshotStore
	log   *raftLog
	fatal func(error)
}

// begin does what a process that was killed behind a snapshot did not come to.
func (s *superseding) begin() error {
	all, err := s.List() // the newest first
	if err != nil {
		return fmt.Errorf("cluster: Dir: %w", err)
	}
	if len(all) == 0 {
		return nil
	}
	if fits, err := s.log.fits(all[0].Index, all[0].Term); err != nil || fits {
		return err
	}
	_, r, err := s.Open(all[0].ID)
	if err != nil {
		return nil // a damaged one is not believed: Raft looks for another
	}
	_, err = s.log.empty()
	return errors.Join(err, r.Close())
}

// Create implements raft.SnapshotStore.
func (s *superseding) Create(v raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, t raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(v, index, term, members, membersIndex, t)
	if err != nil {
		return nil, err
	}
	return &supersedingSink{sink, s, index, term}, nil
}

// A supersedingSink is a snapshot that is being written.
type supersedingSink struct {
	raft.SnapshotSink
	store       *superseding
	index, term uint64
}

// Close implements raft.SnapshotSink. One that the node has written itself always fits:
// its last entry was applied.
func (s *supersedingSink) Close() error {
	if err := s.SnapshotSink.Close(); err != nil {
		return err
	}
	if fits, err := s.store.log.fits(s.index, s.term); err != nil || fits {
		return err
	}
	last, err := s.store.log.empty()
	if err == nil && last >= s.index {
		err = ErrSuperseded
		s.store.fatal(err)
	}
	return err
}
