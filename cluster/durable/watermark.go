package durable

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"sync"
)

// A file that was damaged may look whole: with another bit in a page's reference
// to the next, or in a head, a page that was replaced long ago stands for the
// present one, and a log that ends earlier, or an earlier vote, has sound
// checksums. So a file of its own notes what the others hold at least, after
// they have flushed it. It is not flushed with them, which costs next to nothing:
// after a power cut it may be of any earlier time, and what it says still holds,
// as it is lowered, and flushed, before the end of the log is removed. One that
// is missing or cannot be read says nothing.

// A mark is what a node's disk holds at least.
type mark struct {
	last uint64 // the index of an entry, which the log holds or held at its beginning; 0 if none is known
	sum  uint32 // of that entry
	sets uint64 // how often the values beside the log were set
}

// markLen is the length of a mark in its file, with its checksum.
const markLen = 8 + 4 + 8 + 4

func (m mark) encode() []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, markLen), m.last)
	b = binary.LittleEndian.AppendUint32(b, m.sum)
	b = binary.LittleEndian.AppendUint64(b, m.sets)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeMark returns the mark that says nothing for what is none.
func decodeMark(b []byte) mark {
	if len(b) != markLen || crc32.Checksum(b[:markLen-4], castagnoli) != binary.LittleEndian.Uint32(b[markLen-4:]) {
		return mark{}
	}
	return mark{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint64(b[12:])}
}

// A watermark keeps a mark in a file.
type watermark struct {
	file interface {
		io.WriterAt
		io.Closer
		Sync() error
	}

	mu  sync.Mutex
	now mark
}

// openWatermark opens a file, or makes it.
func openWatermark(path string) (*watermark, error) {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil && len(b) > markLen {
		err = f.Truncate(markLen)
	}
	return &watermark{file: f, now: decodeMark(b)}, err
}

// Close implements io.Closer.
func (w *watermark) Close() error { return w.file.Close() }

func (w *watermark) mark() mark {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// change writes a mark that differs from the present one.
func (w *watermark) change(f func(*mark)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.now)
	_, err := w.file.WriteAt(w.now.encode(), 0)
	return err
}

// stored notes that the log ends with an entry, of which the sum is given.
func (w *watermark) stored(last uint64, sum uint32) error {
	return w.change(func(m *mark) { m.last, m.sum = last, sum })
}

// lower notes, for good, that the log will end with an entry.
func (w *watermark) lower(last uint64, sum uint32) error {
	if err := w.stored(last, sum); err != nil {
		return err
	}
	return w.file.Sync()
}

// set notes how often the values were set.
func (w *watermark) set(sets uint64) error {
	return w.change(func(m *mark) { m.sets = sets })
}
