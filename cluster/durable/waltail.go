package durable

import (
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// mendTail makes the last file of a write-ahead log one that can be appended
// to, before the log is opened.
//
// The append that fills a file closes it with an index; that the file is closed
// is noted afterwards. A process that ends in between leaves a file that says it
// is closed and a note that says it is not, and raft-wal 0.4.2 then refuses
// every append to it, after each start anew. The entries of such a file are
// copied to a new one that takes its place: they are those that raft-wal itself
// reads back, so that what was acknowledged is kept, and what was cut short in
// the middle of a write is not.
func mendTail(dir string, meta types.MetaStore) (err error) {
	state, err := meta.Load(dir)
	if err != nil {
		return err
	}
	if len(state.Segments) == 0 {
		return nil
	}
	last := &state.Segments[len(state.Segments)-1]
	if !last.SealTime.IsZero() {
		return nil
	}
	if err := checkTail(filepath.Join(dir, segment.FileName(*last))); err != nil {
		return err
	}
	filer := segment.NewFiler(dir, walfs.New())
	tail, err := filer.RecoverTail(*last)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // noted, and not begun
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tail.Close()) }()
	if closed, _, err := tail.Sealed(); err != nil || !closed {
		return err
	}
	next := *last
	next.ID, next.BaseIndex, next.CreateTime = state.NextSegmentID, last.MinIndex, time.Now()
	size, err := sizeOf(tail, next.BaseIndex)
	if err != nil {
		return err
	}
	next.SizeLimit += size // there is room behind what is copied, however large the last append was
	if err := copySegment(filer, tail, next); err != nil {
		return err
	}
	*last = next
	state.NextSegmentID++
	return meta.CommitState(state) // what was replaced is removed when the log is opened
}

// sizeOf returns at most how many bytes the entries of a file take from an index
// on, each with its frame.
func sizeOf(s types.SegmentWriter, from uint64) (size uint32, err error) {
	const frame = 32 // its head, its padding and its place in the index
	for i := from; i <= s.LastIndex(); i++ {
		b, err := s.GetLog(i)
		if err != nil {
			return 0, err
		}
		size += uint32(len(b.Bs)) + frame
		b.Close()
	}
	return size, nil
}

// copyBatch is how many bytes of entries are copied with one flush.
const copyBatch = 1 << 20

// copySegment writes the entries of a file that are still part of the log to a
// new one.
func copySegment(filer *segment.Filer, from types.SegmentWriter, info types.SegmentInfo) (err error) {
	// One that an earlier attempt has left behind.
	if err := filer.Delete(info.BaseIndex, info.ID); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	to, err := filer.Create(info)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	var batch []types.LogEntry
	size := 0
	for i := info.BaseIndex; i <= from.LastIndex(); i++ {
		b, err := from.GetLog(i)
		if err != nil {
			return err
		}
		e := types.LogEntry{Index: i, Data: append([]byte(nil), b.Bs...)}
		b.Close()
		if batch, size = append(batch, e), size+len(e.Data); size < copyBatch && i < from.LastIndex() {
			continue
		}
		if err := to.Append(batch); err != nil {
			return err
		}
		batch, size = batch[:0], 0
	}
	return nil
}
