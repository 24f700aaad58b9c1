package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"

	"github.com/hashicorp/raft"
)

// Whatever a node reads from its disk and believes is sealed there: behind an
// entry of the log, of whatever type, and behind each value beside the log
// stands its CRC-32C, which finds every change of up to 32 bits that follow each
// other. An entry's covers where it stands, its index and term, and a value's
// the key that it is kept under, so that nothing sound is taken for something
// else. The time at which a leader appended an entry is not covered; nothing but
// a metric of Raft's looks at it.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const sealLen = 4

// sumOf returns the checksum of an entry.
func sumOf(l *raft.Log, extensions []byte) uint32 {
	var head [8 + 8 + 1 + 8]byte
	binary.LittleEndian.PutUint64(head[0:], l.Index)
	binary.LittleEndian.PutUint64(head[8:], l.Term)
	head[16] = byte(l.Type)
	binary.LittleEndian.PutUint64(head[17:], uint64(len(l.Data)))
	sum := crc32.Update(0, castagnoli, head[:])
	sum = crc32.Update(sum, castagnoli, l.Data)
	return crc32.Update(sum, castagnoli, extensions)
}

// sealEntry returns an entry as it is stored: its seal ends its extensions. The
// entry itself belongs to Raft and stays as it is.
func sealEntry(l *raft.Log) *raft.Log {
	stored := *l
	stored.Extensions = make([]byte, 0, len(l.Extensions)+sealLen)
	stored.Extensions = append(stored.Extensions, l.Extensions...)
	stored.Extensions = binary.LittleEndian.AppendUint32(stored.Extensions, sumOf(l, l.Extensions))
	return &stored
}

// openEntry checks and removes the seal of what was found under an index.
func openEntry(index uint64, l *raft.Log) error {
	n := len(l.Extensions) - sealLen
	if n < 0 {
		return fmt.Errorf("%w: it has no checksum", errDamaged)
	}
	extensions := l.Extensions[:n:n]
	if sumOf(l, extensions) != binary.LittleEndian.Uint32(l.Extensions[n:]) {
		return fmt.Errorf("%w: its checksum is wrong", errDamaged)
	}
	if l.Index != index {
		return fmt.Errorf("%w: it is entry %d", errDamaged, l.Index)
	}
	l.Extensions = extensions
	if n == 0 {
		l.Extensions = nil
	}
	return nil
}

// sealValue returns what is stored under a key.
func sealValue(key, value []byte) []byte {
	b := append(make([]byte, 0, len(value)+sealLen), value...)
	return binary.LittleEndian.AppendUint32(b, valueSum(key, value))
}

// openValue returns a copy of what was sealed.
func openValue(key, stored []byte) ([]byte, error) {
	n := len(stored) - sealLen
	if n < 0 || valueSum(key, stored[:n]) != binary.LittleEndian.Uint32(stored[n:]) {
		return nil, fmt.Errorf("%w: the checksum of %q is wrong", errDamaged, key)
	}
	return append([]byte{}, stored[:n]...), nil
}

func valueSum(key, value []byte) uint32 {
	return crc32.Update(crc32.Update(uint32(len(key)), castagnoli, key), castagnoli, value)
}

// A sealedLog is a store of entries that knows those that were damaged.
type sealedLog struct {
	raft.LogStore
	where string // its files
}

// StoreLog implements raft.LogStore.
func (s *sealedLog) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (s *sealedLog) StoreLogs(logs []*raft.Log) error {
	stored := make([]*raft.Log, len(logs))
	for i, l := range logs {
		stored[i] = sealEntry(l)
	}
	return guarded(func() error { return s.LogStore.StoreLogs(stored) })
}

// GetLog implements raft.LogStore.
func (s *sealedLog) GetLog(index uint64, l *raft.Log) error {
	err := guarded(func() error { return s.LogStore.GetLog(index, l) })
	if errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	if err == nil {
		err = openEntry(index, l)
	} else if !errors.As(err, new(*fs.PathError)) && !errors.Is(err, errDamaged) {
		err = fmt.Errorf("%w: %w", errDamaged, err) // it could be read, and not be made out
	}
	if err != nil {
		return fmt.Errorf("entry %d in %s: %w", index, s.where, err)
	}
	return nil
}

// DeleteRange implements raft.LogStore.
func (s *sealedLog) DeleteRange(from, to uint64) error {
	return guarded(func() error { return s.LogStore.DeleteRange(from, to) })
}

// check reads every entry. The log has no holes.
func (s *sealedLog) check() error {
	first, err := s.FirstIndex()
	if err != nil {
		return err
	}
	last, err := s.LastIndex()
	if err != nil {
		return err
	}
	for i := first; i > 0 && i <= last; i++ {
		if err := s.GetLog(i, new(raft.Log)); err != nil {
			if errors.Is(err, raft.ErrLogNotFound) {
				err = fmt.Errorf("entry %d in %s: %w: it is missing", i, s.where, errDamaged)
			}
			return err
		}
	}
	return nil
}
