package session

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"time"

	"example.com/govnode/internal/seeded"
	"example.com/govnode/session/ids"
	"example.com/govnode/session/wire"
)

// Snapshots as bytes: how a state is written, and read back.

// The format of snapshots is described in log.proto, before SnapshotHeader.
const (
	snapshotMagic   = "govnsnap"
	snapshotVersion = 2

	frameHead    = 1 + 4 + 4 // kind, length, CRC-32C
	frameHeader  = 'H'
	frameChunk   = 'C'
	frameTrailer = 'T'

	// chunkFull is the length from which a chunk is closed.
	chunkFull = 1 << 20
	// maxFrame is the longest payload that is read or written. The largest
	// record, a session whose open calls are all charged to as many rates and
	// budgets as they may, has less than 10 MiB, and may come on top of a chunk that
	// is nearly full.
	maxFrame = 12 << 20
)

// WriteSnapshot writes all records of a snapshot in its order, so that equal
// states have equal snapshots, byte for byte.
func WriteSnapshot(w io.Writer, s *Snapshot) error {
	out := snapshotWriter{w: w, sum: sha256.New()}
	head := binary.LittleEndian.AppendUint16([]byte(snapshotMagic), snapshotVersion)
	if err := out.write(head); err != nil {
		return err
	}
	header := snapshotHeader{now: s.now, generation: s.generation, count: s.len()}
	f := out.frame()
	for m := f.Top(); f.Visit(&m); {
		header.fields(&f)
	}
	if err := out.close(frameHeader, f.Bytes()); err != nil {
		return err
	}

	f = out.frame()
	for k, r := range s.All() {
		for m := f.Message(1, true); f.Visit(&m); {
			f.item(&k, &r)
		}
		if len(f.Bytes())-frameHead < chunkFull {
			continue
		}
		if err := out.close(frameChunk, f.Bytes()); err != nil {
			return err
		}
		f = out.frame()
	}
	if len(f.Bytes()) > frameHead {
		if err := out.close(frameChunk, f.Bytes()); err != nil {
			return err
		}
	}

	trailer := snapshotTrailer{count: header.count}
	out.sum.Sum(trailer.sum[:0])
	f = out.frame()
	for m := f.Top(); f.Visit(&m); {
		trailer.fields(&f)
	}
	return out.close(frameTrailer, f.Bytes())
}

func (v *Snapshot) len() (n uint64) {
	for _, sh := range v.shards {
		n += uint64(len(sh.records))
	}
	return n
}

type snapshotHeader struct {
	now        time.Duration
	generation uint32
	count      uint64
}

func (h *snapshotHeader) fields(f *codec) {
	f.Duration(1, &h.now)
	f.Uint32(2, &h.generation)
	f.Uint64(3, &h.count)
}

type snapshotTrailer struct {
	count uint64
	sum   Digest
}

func (t *snapshotTrailer) fields(f *codec) {
	f.Uint64(1, &t.count)
	f.digest(2, &t.sum)
}

func (f *codec) item(k *Key, r *Record) {
	f.Kept(1, (*string)(k))
	for m := f.Message(2, true); f.Visit(&m); {
		f.record(r)
	}
}

type snapshotWriter struct {
	w   io.Writer
	sum hash.Hash
	buf []byte // of the previous frame, used again
}

// frame returns a codec for the next payload, with room for the head before it.
func (o *snapshotWriter) frame() codec {
	return codec{Coder: wire.NewWriter(append(o.buf[:0], make([]byte, frameHead)...))}
}

func (o *snapshotWriter) close(kind byte, b []byte) error {
	payload := b[frameHead:]
	if len(payload) > maxFrame {
		return fmt.Errorf("session: snapshot: a frame of %d bytes is above the cap of %d", len(payload), maxFrame)
	}
	b[0] = kind
	binary.LittleEndian.PutUint32(b[1:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[5:], frameSum(b[:5], payload))
	o.buf = b
	return o.write(b)
}

func (o *snapshotWriter) write(b []byte) error {
	o.sum.Write(b)
	_, err := o.w.Write(b)
	return err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func frameSum(head, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, payload)
}

// ReadSnapshot builds a state from a snapshot. It reads r to its end, trusts
// nothing in it, and holds no more of it at once than one chunk; the error says
// what is wrong and where.
func ReadSnapshot(r io.Reader) (*State, error) {
	in := snapshotReader{r: r, sum: sha256.New()}
	var l *Loader
	header, trailer, err := in.chunks(func(now time.Duration, generation uint32) error {
		l = NewLoader(now, generation)
		return nil
	}, func(chunk []byte) error { return l.Put(chunk) })
	if err == nil {
		if n := uint64(l.state.Len()); n != trailer || n != header {
			err = fmt.Errorf("it has %d records under different keys; its header says %d, its trailer %d", n, header, trailer)
		}
	}
	if err != nil {
		return nil, in.fail(err)
	}
	return l.State(), nil
}

// ReadChunks reads a snapshot as ReadSnapshot does and builds nothing: begin is
// given its clock, and then each its chunks in their order, for a Loader. What
// was given is right only once all has been read without an error. A chunk is
// valid until each returns.
func ReadChunks(r io.Reader, begin func(now time.Duration, generation uint32) error, each func(chunk []byte) error) error {
	in := snapshotReader{r: r, sum: sha256.New()}
	if _, _, err := in.chunks(begin, each); err != nil {
		return in.fail(err)
	}
	return nil
}

// A Loader builds a state from the chunks of a snapshot.
type Loader struct {
	state *State
	names *wire.Names
	pins  pins

	last   Key // that was put; records stand in the order of places and keys
	place  int
	ending bool // the latest chunk was not full, so it is the last
}

// NewLoader returns a Loader of an empty state with that clock.
func NewLoader(now time.Duration, generation uint32) *Loader {
	l := &Loader{state: New(), names: wire.NewNames(), pins: pins{}}
	l.state.SetClock(now, generation)
	return l
}

// State returns the state that the chunks so far make. The Loader is not used
// afterwards.
func (l *Loader) State() *State { return l.state }

type snapshotReader struct {
	r    io.Reader
	sum  hash.Hash
	read int64 // bytes that were checked
	buf  []byte
}

func (in *snapshotReader) fail(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("truncated: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("session: snapshot, at byte %d: %w", in.read, err)
}

// chunks reads to the end. It returns how many records there are by the header
// and by the trailer.
func (in *snapshotReader) chunks(begin func(now time.Duration, generation uint32) error, each func([]byte) error) (byHeader, byTrailer uint64, err error) {
	if err := in.magic(); err != nil {
		return 0, 0, err
	}
	kind, b, err := in.frame()
	if err != nil {
		return 0, 0, err
	}
	var header snapshotHeader
	if kind != frameHeader {
		return 0, 0, fmt.Errorf("frame %q, where the header has to be", kind)
	}
	if err := readFrame(b, func(f *codec) { header.fields(f) }); err != nil {
		return 0, 0, err
	}
	if header.now < 0 {
		return 0, 0, errors.New("its time is negative")
	}
	if err := begin(header.now, header.generation); err != nil {
		return 0, 0, err
	}
	for {
		before := Digest(in.sum.Sum(nil))
		if kind, b, err = in.frame(); err != nil {
			return 0, 0, err
		}
		if kind == frameTrailer {
			byTrailer, err = in.trailer(b, before)
			return header.count, byTrailer, err
		}
		if kind != frameChunk {
			return 0, 0, fmt.Errorf("frame %q, where a chunk or the trailer has to be", kind)
		}
		if err := each(b); err != nil {
			return 0, 0, err
		}
	}
}

func (in *snapshotReader) magic() error {
	head := make([]byte, len(snapshotMagic)+2)
	if _, err := io.ReadFull(in.r, head); err != nil {
		return err
	}
	if !bytes.HasPrefix(head, []byte(snapshotMagic)) {
		return errors.New("this is not a snapshot of govnode")
	}
	if v := binary.LittleEndian.Uint16(head[len(snapshotMagic):]); v != snapshotVersion {
		return wire.Foreign("a snapshot", uint64(v), snapshotVersion)
	}
	in.note(head)
	return nil
}

// note counts and sums up what was read.
func (in *snapshotReader) note(b []byte) {
	in.sum.Write(b)
	in.read += int64(len(b))
}

// frame returns the next frame, checked; its payload is valid until the next
// call.
func (in *snapshotReader) frame() (kind byte, payload []byte, err error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(in.r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes is above the cap of %d", n, maxFrame)
	}
	if int(n) > cap(in.buf) {
		in.buf = make([]byte, max(n, chunkFull+chunkFull/8))
	}
	payload = in.buf[:n]
	if _, err := io.ReadFull(in.r, payload); err != nil {
		return 0, nil, err
	}
	if frameSum(head[:5], payload) != binary.LittleEndian.Uint32(head[5:]) {
		return 0, nil, fmt.Errorf("%w: the checksum of a frame is wrong, use another snapshot", ErrDamaged)
	}
	in.note(head[:])
	in.note(payload)
	return head[0], payload, nil
}

func readFrame(b []byte, fields func(*codec)) error {
	f := codec{Coder: wire.NewReader(b, nil)}
	for m := f.Top(); f.Visit(&m); {
		fields(&f)
	}
	return f.Err()
}

// Put puts the records of the next chunk into the state.
func (l *Loader) Put(chunk []byte) error {
	if l.ending || len(chunk) == 0 {
		return errors.New("a chunk behind the last one")
	}
	l.ending = len(chunk) < chunkFull
	f := codec{Coder: wire.NewReader(chunk, l.names), pins: l.pins}
	for m := f.Top(); f.Visit(&m); {
		for f.Field() == 1 {
			f.Require(f.Pos() <= chunkFull, "a chunk that was to be closed before") // one byte of the tag is taken
			var k Key
			var r Record
			for m := f.Message(1, true); f.Visit(&m); {
				f.item(&k, &r)
			}
			f.Require(r != nil && Belongs(k, r), "a record that does not belong to its key")
			place := placeOf([]byte(k))
			f.Require(place > l.place || place == l.place && k > l.last, "a record out of its order")
			if f.Err() != nil {
				return f.Err()
			}
			l.place, l.last = place, k
			if seeded.On(seeded.SnapshotForgets) {
				if m := idsOf(r); m != nil {
					*m = ids.Set{}
				}
			}
			l.state.Put(k, r)
		}
	}
	return f.Err()
}

// kindOf returns the letter with which the keys of a record begin.
func kindOf(r Record) byte {
	return letters[recordNumber(r)-1]
}

// trailer checks that nothing was changed, and that nothing follows. It returns
// how many records there are.
func (in *snapshotReader) trailer(b []byte, sum Digest) (count uint64, err error) {
	var t snapshotTrailer
	if err := readFrame(b, func(f *codec) { t.fields(f) }); err != nil {
		return 0, err
	}
	if t.sum != sum {
		return 0, fmt.Errorf("%w: the SHA-256 is wrong and the file was changed, use another snapshot", ErrDamaged)
	}
	var more [1]byte
	if _, err := io.ReadFull(in.r, more[:]); err == nil {
		return 0, errors.New("there is more behind the trailer")
	} else if err != io.EOF {
		return 0, err
	}
	return t.count, nil
}

// Digest returns a hash of all that the state is: clock, generation, and every
// record with its key, as a snapshot has them. It follows from the history
// alone, so that replicas which have applied the same entries have the same
// digest, restored in between or not; one that has another has diverged. States
// made by New and by NewPartial are not compared.
//
// Each shard keeps its hash, and only those are hashed that were written into
// since, and those that again reports, if it is not nil: a kept hash is no proof
// that the records in memory are what they were. An error that wraps ErrDamaged
// tells of a shard whose records changed though nobody wrote into it.
//
// After each shard that was hashed pace is called, if it is not nil; its error
// ends the work, of which nothing is lost. Entries may be applied meanwhile. Two
// digests of one state must not be made at the same time.
func (v *Snapshot) Digest(again func(shard int) bool, pace func() error) (Digest, error) {
	f := codec{Coder: wire.NewWriter(nil)}
	header := snapshotHeader{v.now, v.generation, v.len()}
	for m := f.Top(); f.Visit(&m); {
		header.fields(&f)
	}
	all := sha256.New()
	buf := f.Bytes()
	var keys []Key
	all.Write(buf)
	for i, sh := range v.shards {
		if len(sh.records) == 0 {
			continue
		}
		if !sh.hashed || again != nil && again(i) {
			var hash Digest
			hash, keys, buf = v.hashOf(sh, keys[:0], buf[:0])
			if sh.hashed && hash != sh.hash {
				return Digest{}, fmt.Errorf("%w: nobody wrote into shard %d, and its records are not those that were there", ErrDamaged, i)
			}
			sh.hash, sh.hashed = hash, true
			if pace != nil {
				if err := pace(); err != nil {
					return Digest{}, err
				}
			}
		}
		all.Write(sh.hash[:])
	}
	return Digest(all.Sum(nil)), nil
}

// hashOf returns the hash of a shard's records, and the buffers it used.
func (v *Snapshot) hashOf(sh *shard, keys []Key, buf []byte) (Digest, []Key, []byte) {
	f := codec{Coder: wire.NewWriter(buf)}
	keys = v.keys(keys, sh)
	for _, k := range keys {
		for m := f.Message(1, true); f.Visit(&m); {
			f.item(&k, &sh.records[k].record)
		}
	}
	return sha256.Sum256(f.Bytes()), keys, f.Bytes()
}
