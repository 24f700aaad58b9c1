package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"time"

	"example.com/govnode/session"
)

// A stamp is in front of each value and tells which attempt wrote it: 8 bytes
// that its node drew when it started, and a number. No two attempts have the
// same, so a value that is swapped for another and back is not taken for
// unchanged, and a node whose connection broke finds out whether its attempt was
// applied. The empty stamp is that of a record that is absent.
type stamp string

// A value is: the stamp, what is due, a checksum, the table of the parts of its
// ids, the head. The checksum is of the key and of all that stands before the
// head, which has one of its own.
const (
	stampLen = 16
	sumAt    = stampLen + 8
	tableAt  = sumAt + 4
)

// An entry is a record as this node last saw it.
type entry struct {
	stamp  stamp
	record session.Record // nil: absent, or not to be read
	bad    *badRecord     // why it is not to be read
	parts  *partTable     // of the ids that it remembers; nil: none
	// due is the time under which the record stands among those that are due,
	// no later than when it will have something to settle; 0 if it does not.
	due   time.Duration
	value int           // bytes of its value
	size  int           // and of its parts, roughly
	seen  time.Duration // of this process: when it was last known to be so
}

// A partTable says of each part of a record's ids how long it is, so that one
// that is gone or was cut is not taken for an empty one.
type partTable [session.ForgottenParts]uint32

// What is appended to a part is a frame: its length, a checksum of it, of the
// part and of the record's key, and the bytes.
const frameHead = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func frameSum(k session.Key, part int, b []byte) uint32 {
	return crc32.Update(crc32.Update(uint32(part), castagnoli, b), castagnoli, []byte(k))
}

func appendFrame(b []byte, k session.Key, part int, bytes []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(bytes)))
	b = binary.BigEndian.AppendUint32(b, frameSum(k, part, bytes))
	return append(b, bytes...)
}

// unframe returns what stands in the frames of a part, which has to be so long as
// the table says.
func (t *partTable) unframe(k session.Key, part int, b []byte) ([]byte, error) {
	if uint32(len(b)) < t.size(part) {
		return nil, errPartGone
	}
	if uint32(len(b)) > t.size(part) {
		return nil, fmt.Errorf("%w: a part of its ids is longer than it was written", session.ErrDamaged)
	}
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		if len(b) < frameHead {
			return nil, fmt.Errorf("%w: a part of its ids is cut off", session.ErrDamaged)
		}
		n, sum := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		if b = b[frameHead:]; uint64(n) > uint64(len(b)) || frameSum(k, part, b[:n]) != sum {
			return nil, fmt.Errorf("%w: the checksum of a part of its ids is wrong", session.ErrDamaged)
		}
		out, b = append(out, b[:n]...), b[n:]
	}
	return out, nil
}

// changed returns the table once parts have changed; t may be nil.
func (t *partTable) changed(changes []session.PartChange) *partTable {
	if len(changes) == 0 {
		return t
	}
	next := partTable{}
	if t != nil {
		next = *t
	}
	for _, c := range changes {
		if c.Whole {
			next[c.Part] = 0
		}
		if len(c.Bytes) > 0 {
			next[c.Part] += frameHead + uint32(len(c.Bytes))
		}
	}
	return &next
}

// size returns how long a part is.
func (t *partTable) size(part int) uint32 {
	if t == nil {
		return 0
	}
	return t[part]
}

// append appends which parts there are, and how long each is.
func (t *partTable) append(b []byte) []byte {
	if t == nil {
		return append(b, 0, 0)
	}
	there := uint16(0)
	for i := range t {
		if t[i] > 0 {
			there |= 1 << i
		}
	}
	b = binary.BigEndian.AppendUint16(b, there)
	for i := range t {
		if t[i] > 0 {
			b = binary.AppendUvarint(b, uint64(t[i]))
		}
	}
	return b
}

// readPartTable reads a table, and returns how many bytes it takes.
func readPartTable(b []byte) (t *partTable, n int, ok bool) {
	if len(b) < 2 {
		return nil, 0, false
	}
	there := binary.BigEndian.Uint16(b)
	if n = 2; there == 0 {
		return nil, n, true
	}
	t = &partTable{}
	for i := range t {
		if there&(1<<i) == 0 {
			continue
		}
		size, took := binary.Uvarint(b[n:])
		if took <= 0 || size > 1<<31 {
			return nil, 0, false
		}
		t[i], n = uint32(size), n+took
	}
	return t, n, true
}

// errPartGone says that a part is shorter than it was: acknowledged changes are
// lost.
var errPartGone = errors.New("a part of its ids is gone")

// appendValue appends what is stored of a record.
func appendValue(b []byte, k session.Key, s stamp, due time.Duration, parts *partTable, head []byte) []byte {
	from := len(b)
	b = append(b, s...)
	b = binary.BigEndian.AppendUint64(b, uint64(due))
	b = append(b, 0, 0, 0, 0)
	b = parts.append(b)
	to := len(b)
	b = append(b, k...) // for the checksum
	sum := crc32.Update(0, castagnoli, b[from:])
	b = append(b[:to], head...)
	binary.BigEndian.PutUint32(b[from+sumAt:], sum)
	return b
}

// sumOf returns the checksum of what stands before the head, and where it stands
// itself are zeros.
func sumOf(k session.Key, b []byte) uint32 {
	sum := crc32.Update(0, castagnoli, b[:sumAt])
	sum = crc32.Update(sum, castagnoli, make([]byte, tableAt-sumAt))
	sum = crc32.Update(sum, castagnoli, b[tableAt:])
	return crc32.Update(sum, castagnoli, []byte(k))
}

// decodeValue reads the value of a record. If there is an error the entry has
// the stamp all the same: that is what Redis compares, whatever stands behind it.
func decodeValue(k session.Key, v string) (e entry, err error) {
	b := []byte(v)
	e = entry{stamp: stamp(b[:min(len(b), stampLen)]), size: len(v), value: len(v)}
	if isAside(v) {
		return e, errAside
	}
	if len(b) < tableAt {
		return e, errors.New("it is too short for a record of govnode")
	}
	parts, n, ok := readPartTable(b[tableAt:])
	if !ok || sumOf(k, b[:tableAt+n]) != binary.BigEndian.Uint32(b[sumAt:]) {
		return e, fmt.Errorf("%w: the checksum before its head is wrong, or it is that of another key", session.ErrDamaged)
	}
	r, err := session.Unpack(b[tableAt+n:])
	if err == nil && !session.Belongs(k, r) {
		err = fmt.Errorf("it is a %T", r)
	}
	if err != nil {
		return e, err
	}
	e.record, e.parts, e.due = r, parts, time.Duration(binary.BigEndian.Uint64(b[stampLen:]))
	return e, nil
}

// standing returns the time under which a record is to stand among those that
// are due. One that stands there already and comes up no later is left where it
// is: the look at it that is too early puts it right, and costs less than moving
// it with every call.
func standing(r session.Record, stands, now time.Duration) time.Duration {
	at, ok := r.Due()
	if !ok {
		return 0
	}
	if stands > now && stands <= at {
		return stands
	}
	return max(at, 1)
}

// scoreOf is the time in milliseconds, rounded up, so that what is found due is.
func scoreOf(due time.Duration) int64 { return int64((due + time.Millisecond - 1) / time.Millisecond) }

func score(due time.Duration) string { return strconv.FormatInt(scoreOf(due), 10) }

// clockText is fixed in width, so that its order is that of numbers; Lua has
// none of 64 bits.
func clockText(d time.Duration) string { return fmt.Sprintf("%019d", int64(d)) }

// errClock says that what stands in the place of the clock is none.
var errClock = errors.New("not a time")

// parseClock reads the value of the clock: log time, and the number of swaps.
func parseClock(v any) (at time.Duration, seq uint64, err error) {
	s, _ := v.(string)
	if len(s) < 21 || s[19] != ' ' {
		return 0, 0, fmt.Errorf("the clock is %q, %w", s, errClock)
	}
	n, err := strconv.ParseInt(s[:19], 10, 64)
	seq, err2 := strconv.ParseUint(s[20:], 10, 64)
	if err != nil || err2 != nil {
		return 0, 0, fmt.Errorf("the clock is %q, %w", s, errClock)
	}
	return time.Duration(n), seq, nil
}

// scoreReached is the highest score of what is due by now.
func scoreReached(now time.Duration) string {
	return strconv.FormatInt(int64(now/time.Millisecond), 10)
}
