package durable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"

	"github.com/hashicorp/raft"
)

// Whatever a node reads from its disk and believes is sealed there: behind an
// entry of the log, of whatever type, and behind the values beside the log stands
// their CRC-32C, which finds every change of up to 32 bits that follow each
// other. An entry's covers where it stands, its index and term, so that nothing
// sound is taken for something else. The time at which a leader appended an entry
// is not covered; nothing but a metric of Raft's looks at it.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const sealLen = 4

// sumOf returns the checksum of an entry.
func sumOf(l *raft.Log) uint32 {
	var head [8 + 8 + 1 + 8]byte
	binary.LittleEndian.PutUint64(head[0:], l.Index)
	binary.LittleEndian.PutUint64(head[8:], l.Term)
	head[16] = byte(l.Type)
	binary.LittleEndian.PutUint64(head[17:], uint64(len(l.Data)))
	sum := crc32.Update(0, castagnoli, head[:])
	sum = crc32.Update(sum, castagnoli, l.Data)
	return crc32.Update(sum, castagnoli, l.Extensions)
}

// sealEntry returns an entry as it is stored: its seal ends its extensions. The
// entry itself belongs to Raft and stays as it is.
func sealEntry(l *raft.Log) *raft.Log {
	stored := *l
	stored.Extensions = make([]byte, 0, len(l.Extensions)+sealLen)
	stored.Extensions = append(stored.Extensions, l.Extensions...)
	stored.Extensions = binary.LittleEndian.AppendUint32(stored.Extensions, sumOf(l))
	return &stored
}

// sealIn returns the seal of an entry as it is stored.
func sealIn(stored *raft.Log) uint32 {
	return binary.LittleEndian.Uint32(stored.Extensions[len(stored.Extensions)-sealLen:])
}

// openEntry checks and removes the seal of what was found under an index.
func openEntry(index uint64, l *raft.Log) error {
	n := len(l.Extensions) - sealLen
	if n < 0 {
		return fmt.Errorf("%w: it has no checksum", ErrDamaged)
	}
	sum := sealIn(l)
	if l.Extensions = l.Extensions[:n:n]; sumOf(l) != sum {
		return fmt.Errorf("%w: its checksum is wrong", ErrDamaged)
	}
	if l.Index != index {
		return fmt.Errorf("%w: it is entry %d", ErrDamaged, l.Index)
	}
	if n == 0 {
		l.Extensions = nil
	}
	return nil
}

// seal returns what is stored of a value.
func seal(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(append(make([]byte, 0, len(b)+sealLen), b...), crc32.Checksum(b, castagnoli))
}

// unseal returns what was sealed.
func unseal(stored []byte) ([]byte, error) {
	n := len(stored) - sealLen
	if n < 0 || crc32.Checksum(stored[:n], castagnoli) != binary.LittleEndian.Uint32(stored[n:]) {
		return nil, fmt.Errorf("%w: the checksum is wrong", ErrDamaged)
	}
	return stored[:n], nil
}

// A sealedLog is a log that knows whether it is what was written, whatever store
// keeps it.
//
// It has no holes, and Raft is not told so (raft.MonotonicLogStore): it would
// empty the log at every snapshot that it is sent, entries behind the snapshot
// that the node has acknowledged included, and then read them. Package cluster
// empties it where a snapshot asks for that; at the latest it is emptied here, when
// the first entry behind a hole is written.
type sealedLog struct {
	raft.LogStore
	where string // its files
	water *watermark
}

// FirstIndex implements raft.LogStore.
func (s *sealedLog) FirstIndex() (i uint64, err error) {
	err = Guarded(func() error { i, err = s.LogStore.FirstIndex(); return err })
	return i, err
}

// LastIndex implements raft.LogStore.
func (s *sealedLog) LastIndex() (i uint64, err error) {
	err = Guarded(func() error { i, err = s.LogStore.LastIndex(); return err })
	return i, err
}

// StoreLog implements raft.LogStore.
func (s *sealedLog) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (s *sealedLog) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	last, err := s.LastIndex()
	if err != nil {
		return err
	}
	if last > 0 && logs[0].Index > last+1 {
		// A snapshot stands for all that is before the hole.
		if err := s.DeleteRange(0, last); err != nil {
			return err
		}
	}
	stored := make([]*raft.Log, len(logs))
	for i, l := range logs {
		stored[i] = sealEntry(l)
	}
	if err := Guarded(func() error { return s.LogStore.StoreLogs(stored) }); err != nil {
		return err
	}
	end := logs[len(logs)-1]
	return s.water.stored(end.Index, sealIn(stored[len(stored)-1]))
}

// GetLog implements raft.LogStore.
func (s *sealedLog) GetLog(index uint64, l *raft.Log) error {
	err := Guarded(func() error { return s.LogStore.GetLog(index, l) })
	if errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	if err == nil {
		err = openEntry(index, l)
	} else if !errors.As(err, new(*fs.PathError)) && !errors.Is(err, ErrDamaged) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err) // it could be read, and not be made out
	}
	if err != nil {
		return fmt.Errorf("entry %d in %s: %w", index, s.where, err)
	}
	return nil
}

// DeleteRange implements raft.LogStore.
func (s *sealedLog) DeleteRange(from, to uint64) error {
	last, err := s.LastIndex()
	if err != nil {
		return err
	}
	if to >= last {
		if err := s.lower(from); err != nil {
			return err
		}
	}
	return Guarded(func() error { return s.LogStore.DeleteRange(from, to) })
}

// lower makes sure that nothing is said of entries from an index on, before they
// are removed.
func (s *sealedLog) lower(from uint64) error {
	if s.water.mark().last < from {
		return nil
	}
	first, err := s.FirstIndex()
	if err != nil {
		return err
	}
	if from <= first {
		return s.water.lower(0, 0) // nothing is left
	}
	var l raft.Log
	if err := s.GetLog(from-1, &l); err != nil {
		return err
	}
	return s.water.lower(from-1, sumOf(&l))
}

// check reads every entry. There is no hole, and none is missing that is known to
// be there.
func (s *sealedLog) check() error {
	first, err := s.FirstIndex()
	if err != nil {
		return err
	}
	last, err := s.LastIndex()
	if err != nil {
		return err
	}
	known := s.water.mark()
	if last < known.last {
		return fmt.Errorf("%w: it ends with entry %d, and entry %d was written", ErrDamaged, last, known.last)
	}
	for i := first; i > 0 && i <= last; i++ {
		var l raft.Log
		err := s.GetLog(i, &l)
		if errors.Is(err, raft.ErrLogNotFound) {
			err = fmt.Errorf("entry %d in %s: %w: it is missing", i, s.where, ErrDamaged)
		}
		if err == nil && i == known.last && sumOf(&l) != known.sum {
			err = fmt.Errorf("entry %d in %s: %w: another one was written", i, s.where, ErrDamaged)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
