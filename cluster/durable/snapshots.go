package durable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// Snapshots is a store of snapshots that knows those which do not stand for
// what they say. Raft's own has a checksum of the state and none of what stands
// beside it: where in the log it belongs, and who the members were. Here that
// begins the file of the state as well. It stays on the node: what is sent to
// others is the state.
type Snapshots struct {
	raft.SnapshotStore
	notes raft.StableStore
}

// OpenSnapshots opens the snapshots in a directory, of which the newest so many
// stay, or refuses one without those that it had.
func OpenSnapshots(dir string, stay int, notes raft.StableStore, l hclog.Logger) (*Snapshots, error) {
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, stay, l)
	if err != nil {
		return nil, err
	}
	s := &Snapshots{files, notes}
	return s, s.check()
}

// keySnapshot is where a node notes the latest snapshot that it has written: one
// whose description cannot be read is not listed.
var keySnapshot = []byte("govnode/snapshot")

// snapshotSeal is what begins a file: version, index, term and the index of the
// members, the checksum of the members, and one of all that.
const snapshotSeal = 8 + 8 + 8 + 8 + 4 + 4

func sealOf(v raft.SnapshotVersion, index, term, membersIndex uint64, members raft.Configuration) []byte {
	b := make([]byte, 0, snapshotSeal)
	for _, n := range []uint64{uint64(v), index, term, membersIndex} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(raft.EncodeConfiguration(members), castagnoli))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// Create implements raft.SnapshotStore.
func (s *Snapshots) Create(v raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, t raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(v, index, term, members, membersIndex, t)
	if err != nil {
		return nil, err
	}
	if _, err := sink.Write(sealOf(v, index, term, membersIndex, members)); err != nil {
		return nil, errors.Join(err, sink.Cancel())
	}
	return &notedSink{sink, func() error { return s.notes.SetUint64(keySnapshot, index) }}, nil
}

// A notedSink notes that a snapshot is written.
type notedSink struct {
	raft.SnapshotSink
	note func() error
}

// Close implements raft.SnapshotSink.
func (s *notedSink) Close() error {
	if err := s.SnapshotSink.Close(); err != nil {
		return err
	}
	return s.note()
}

// Open implements raft.SnapshotStore.
func (s *Snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, r, err := s.SnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	var seal [snapshotSeal]byte
	if _, err = io.ReadFull(r, seal[:]); err == nil && string(seal[:]) != string(sealOf(m.Version, m.Index, m.Term, m.ConfigurationIndex, m.Configuration)) {
		err = fmt.Errorf("%w: what stands beside snapshot %s is not what was written", ErrDamaged, id)
	}
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	m.Size -= snapshotSeal
	return m, r, nil
}

// check refuses a directory without the snapshots that it had.
func (s *Snapshots) check() error {
	noted, err := s.notes.GetUint64(keySnapshot)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := s.List()
	if err == nil && len(all) == 0 {
		return s.missing(noted)
	}
	if log, ok := s.notes.(raft.LogStore); ok && err == nil && all[0].Index < noted {
		// An older one may stand for it, if the log goes on from there.
		last, err := log.LastIndex()
		if err != nil || last >= noted {
			return err
		}
		return s.missing(noted)
	}
	return err
}

func (s *Snapshots) missing(noted uint64) error {
	return fmt.Errorf("%w: the snapshot at index %d is missing, or what stands beside it cannot be read; %s", ErrDamaged, noted, AdviceReplace)
}
