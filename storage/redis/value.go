package redis

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

// A value is: the stamp, what is due, a checksum, the head. The checksum is of
// the key, the stamp and what is due; the head has one of its own.
const (
	stampLen = 16
	sumAt    = stampLen + 8
	headAt   = sumAt + 4
)

// An entry is a record as this node last saw it.
type entry struct {
	stamp  stamp
	record session.Record // nil: absent, or not to be read
	bad    *badRecord     // why it is not to be read
	// due is the time under which the record stands among those that are due,
	// no later than when it will have something to settle; 0 if it does not.
	due   time.Duration
	value int           // bytes of its value
	size  int           // and of its parts, roughly
	seen  time.Duration // of this process: when it was last known to be so
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendValue appends what is stored of a record.
func appendValue(b []byte, k session.Key, s stamp, due time.Duration, head []byte) []byte {
	from := len(b)
	b = append(b, s...)
	b = binary.BigEndian.AppendUint64(b, uint64(due))
	b = binary.BigEndian.AppendUint32(b, sumOf(k, b[from:]))
	return append(b, head...)
}

// sumOf returns the checksum of what stands before it in the value of a key.
func sumOf(k session.Key, b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, []byte(k))
}

// decodeValue reads the value of a record. If there is an error the entry has
// the stamp all the same: that is what Redis compares, whatever stands behind it.
func decodeValue(k session.Key, v string) (e entry, err error) {
	b := []byte(v)
	e = entry{stamp: stamp(b[:min(len(b), stampLen)]), size: len(v), value: len(v)}
	if isAside(v) {
		return e, errAside
	}
	if len(b) < headAt {
		return e, errors.New("it is too short for a record of govnode")
	}
	if sumOf(k, b[:sumAt]) != binary.BigEndian.Uint32(b[sumAt:]) {
		return e, fmt.Errorf("%w: the checksum before its head is wrong, or it is that of another key", session.ErrDamaged)
	}
	r, err := session.Unpack(b[headAt:])
	if err == nil && !session.Belongs(k, r) {
		err = fmt.Errorf("it is a %T", r)
	}
	if err != nil {
		return e, err
	}
	e.record, e.due = r, time.Duration(binary.BigEndian.Uint64(b[stampLen:]))
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
