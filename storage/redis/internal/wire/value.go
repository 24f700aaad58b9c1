package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"time"

	"example.com/govnode/session"
)

// The value of a record, as it is stored.

// A Stamp is in front of each value and tells which attempt wrote it: 8 bytes
// that its node drew when it started, and a number. No two attempts have the
// same, so a value that is swapped for another and back is not taken for
// unchanged, and a node whose connection broke finds out whether its attempt was
// applied. The empty stamp is that of a record that is absent.
type Stamp string

// A value is: the stamp, what is due, a checksum, the head. The checksum is of
// the key, the stamp and what is due; the head has one of its own.
const (
	StampLen = 16
	SumAt    = StampLen + 8
	HeadAt   = SumAt + 4
)

// An Entry is a record as this node last saw it.
type Entry struct {
	Stamp  Stamp
	Record session.Record // nil: absent, or not to be read
	Bad    *BadRecord     // why it is not to be read
	// due is the time under which the record stands among those that are due,
	// no later than when it will have something to settle; 0 if it does not.
	Due   time.Duration
	Value int           // bytes of its value
	Size  int           // and of its parts, roughly
	Seen  time.Duration // of this process: when it was last known to be so
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendValue appends what is stored of a record.
func AppendValue(b []byte, k session.Key, s Stamp, due time.Duration, head []byte) []byte {
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

// DecodeValue reads the value of a record. If there is an error the entry has
// the stamp all the same: that is what Redis compares, whatever stands behind it.
func DecodeValue(k session.Key, v string) (e Entry, err error) {
	b := []byte(v)
	e = Entry{Stamp: Stamp(b[:min(len(b), StampLen)]), Size: len(v), Value: len(v)}
	if _, yes := IsAside(v); yes {
		return e, ErrAside
	}
	if len(b) < HeadAt {
		return e, errors.New("it is too short for a record of govnode")
	}
	if sumOf(k, b[:SumAt]) != binary.BigEndian.Uint32(b[SumAt:]) {
		return e, fmt.Errorf("%w: the checksum before its head is wrong, or it is that of another key", session.ErrDamaged)
	}
	r, err := session.Unpack(b[HeadAt:])
	if err == nil && !session.Belongs(k, r) {
		err = fmt.Errorf("it is a %T", r)
	}
	if err != nil {
		return e, err
	}
	e.Record, e.Due = r, time.Duration(binary.BigEndian.Uint64(b[StampLen:]))
	return e, nil
}

// Standing returns the time under which a record is to stand among those that
// are due. One that stands there already and comes up no later is left where it
// is: the look at it that is too early puts it right, and costs less than moving
// it with every call.
func Standing(r session.Record, stands, now time.Duration) time.Duration {
	at, ok := r.Due()
	if !ok {
		return 0
	}
	if stands > now && stands <= at {
		return stands
	}
	return max(at, 1)
}

// ScoreOf is the time in milliseconds, rounded up, so that what is found due is.
func ScoreOf(due time.Duration) int64 { return int64((due + time.Millisecond - 1) / time.Millisecond) }

// Score is the same as Redis is told it.
func Score(due time.Duration) string { return strconv.FormatInt(ScoreOf(due), 10) }

// ClockText is fixed in width, so that its order is that of numbers; Lua has
// none of 64 bits.
func ClockText(d time.Duration) string { return fmt.Sprintf("%019d", int64(d)) }

// ErrClock says that what stands in the place of the clock is none.
var ErrClock = errors.New("not a time")

// ParseClock reads the value of the clock: log time, and the number of swaps.
func ParseClock(v any) (at time.Duration, seq uint64, err error) {
	s, _ := v.(string)
	if len(s) < 21 || s[19] != ' ' {
		return 0, 0, fmt.Errorf("the clock is %q, %w", s, ErrClock)
	}
	n, err := strconv.ParseUint(s[:19], 10, 63) // digits alone: with a sign it would be another text than it was written as
	seq, err2 := strconv.ParseUint(s[20:], 10, 64)
	if err != nil || err2 != nil {
		return 0, 0, fmt.Errorf("the clock is %q, %w", s, ErrClock)
	}
	return time.Duration(n), seq, nil
}

// ScoreReached is the highest score of what is due by now.
func ScoreReached(now time.Duration) string {
	return strconv.FormatInt(int64(now/time.Millisecond), 10)
}

// DueMark is the first among what is due while all that is due stands there. It goes
// with the list if that is evicted, and stands last while the list is made anew.
const DueMark = "!"

// Where DueMark stands.
var (
	DueWhole  = math.Inf(-1)
	DueBroken = float64(1 << 52)
)
