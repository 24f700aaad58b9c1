package durable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
)

// checkTail looks at the file of a write-ahead log that is appended to, before
// raft-wal does: that takes whatever it cannot read for a write that was cut
// short when the machine died, and drops it without a word, with all that stands
// behind it. Here it is dropped only if it can be that: the last batch, of which
// a part was never written. What was written as a whole and has changed since is
// damage. What is dropped is overwritten, so that it is not found again behind
// later batches.
func checkTail(path string) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // noted, and not begun
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err := written(f)
	if err != nil {
		return err
	}
	t := readTail(b)
	if t.whole < len(b) {
		if !t.cutShort(b) {
			return fmt.Errorf("%w: the batch at byte %d of %s: %s", ErrDamaged, t.whole, path, t.why)
		}
		if _, err := f.WriteAt(make([]byte, len(b)-t.whole), int64(t.whole)); err != nil {
			return err
		}
	}
	return f.Sync() // the process may have ended before it flushed what is there
}

// written returns a file up to its last byte that is not 0, and up to seven
// more: the room for what is to come is taken beforehand.
func written(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	const piece = 1 << 20
	buf := make([]byte, piece)
	for end := info.Size(); end > 0; {
		from := max(0, end-piece)
		part := buf[:end-from]
		if _, err := f.ReadAt(part, from); err != nil {
			return nil, err
		}
		for i := len(part) - 1; i >= 0; i-- {
			if part[i] != 0 {
				all := make([]byte, (from+int64(i)+walFrame)/walFrame*walFrame)
				_, err := f.ReadAt(all, 0)
				if errors.Is(err, io.EOF) {
					err = nil // the rest is 0
				}
				return all, err
			}
		}
		end = from
	}
	return nil, nil
}

// A file of raft-wal is a head and frames, which begin at multiples of 8 bytes:
// a kind, three bytes of 0, and a length, or the CRC-32C of the batch that a
// commit ends.
const (
	walHead  = 32
	walFrame = 8

	walEntry  = 1
	walIndex  = 2
	walCommit = 3

	walSector = 512 // is written as a whole or not at all
)

// A tail is what the frames of a file say.
type tail struct {
	whole int    // bytes up to the end of the last batch that is as it was written
	why   string // the batch behind it is not
}

func readTail(b []byte) (t tail) {
	for at := walHead; at < len(b); {
		kind, number := b[at], int(binary.LittleEndian.Uint32(b[at+4:]))
		switch {
		case b[at+1]|b[at+2]|b[at+3] != 0:
			t.why = fmt.Sprintf("there is no frame at %d", at)
			return t
		case kind == walCommit:
			if crc32.Checksum(b[t.whole:at], castagnoli) != uint32(number) {
				t.why = "its checksum is wrong"
				return t
			}
			t.whole = at + walFrame
			at = t.whole
		case kind == walEntry || kind == walIndex:
			at += walFrame + (number+walFrame-1)/walFrame*walFrame
		default:
			t.why = fmt.Sprintf("there is no frame at %d", at)
			return t
		}
	}
	if t.whole < len(b) {
		t.why = "it has no end"
	}
	return t
}

// cutShort reports whether the batch that is not whole may be one that was never
// written as a whole: a sector of it is missing, or its end is, and no other
// stands behind it. A batch that was written ends with a commit; one whose kind
// has changed still has the checksum of the batch.
func (t *tail) cutShort(b []byte) bool {
	commit := 0
	for at := t.whole; at < len(b); at += walFrame {
		if binary.LittleEndian.Uint32(b[at:]) != walCommit {
			continue
		}
		if commit > 0 && crc32.Checksum(b[commit+walFrame:at], castagnoli) == binary.LittleEndian.Uint32(b[at+4:]) {
			return false // that is one
		}
		commit = at
	}
	for at := t.whole; at < len(b); {
		end := min((at/walSector+1)*walSector, len(b))
		if missing(b[at:end]) {
			return true
		}
		at = end
	}
	end := len(b) - walFrame
	kind, sum := binary.LittleEndian.Uint32(b[end:]), binary.LittleEndian.Uint32(b[end+4:])
	return kind != walCommit && sum != crc32.Checksum(b[t.whole:end], castagnoli)
}

func missing(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
