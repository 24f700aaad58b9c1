package durable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

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
	beside Store // has the log, and a note
}

// OpenSnapshots opens the snapshots in a directory, of which the newest so many
// stay, or refuses one without those that it had. What stands beside them is the log of
// the same directory.
func OpenSnapshots(dir string, stay int, beside Store, l hclog.Logger) (*Snapshots, error) {
	// What was being written when the process was killed. Raft would leave it for ever.
	short, err := FilesIn(filepath.Join(dir, "snapshots"), "*.tmp")
	for _, path := range short {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		return nil, err
	}
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, stay, l)
	if err != nil {
		return nil, err
	}
	s := &Snapshots{files, beside}
	all, err := s.List()
	if err != nil {
		return nil, err
	}
	newest := uint64(0)
	if len(all) > 0 {
		newest = all[0].Index
	}
	return s, s.stands(newest)
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
	return &notedSink{sink, func() error { return s.beside.SetUint64(keySnapshot, index) }}, nil
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

// Open implements raft.SnapshotStore. Where one cannot be opened Raft takes the next older
// one, which is refused if it does not stand for all that the node has.
func (s *Snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, r, err := s.SnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	var seal [snapshotSeal]byte
	if _, err = io.ReadFull(r, seal[:]); err == nil && string(seal[:]) != string(sealOf(m.Version, m.Index, m.Term, m.ConfigurationIndex, m.Configuration)) {
		err = fmt.Errorf("%w: what stands beside snapshot %s is not what was written", ErrDamaged, id)
	}
	if err == nil {
		err = s.stands(m.Index)
	}
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	m.Size -= snapshotSeal
	return m, r, nil
}

// stands refuses a snapshot, 0 for none, that is older than the latest that the node has
// written, unless the log goes on from there.
func (s *Snapshots) stands(index uint64) error {
	noted, err := s.beside.GetUint64(keySnapshot)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil || index >= noted {
		return err
	}
	if index > 0 {
		last, err := s.beside.LastIndex()
		if err != nil || last >= noted {
			return err // whether it has a hole is found when it is read
		}
	}
	return fmt.Errorf("%w: the snapshot at index %d is missing or damaged; %s", ErrDamaged, noted, AdviceReplace)
}
