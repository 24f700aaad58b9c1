package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"example.com/govnode/session"
)

// A stamp is in front of each value and tells which round wrote it: 8 bytes that
// its node drew when it started, and the number of the round. No two rounds have
// the same, so a value that is swapped for another and back is not taken for
// unchanged, and a node whose connection broke finds out whether its round was
// applied. The empty stamp is that of a record that is absent.
type stamp string

const (
	stampLen = 16
	valueLen = stampLen + 8 // before the head
)

// An entry is a record as this node last saw it.
type entry struct {
	stamp  stamp
	record session.Record // nil: absent
	// due is the time under which the record stands among those that are due,
	// no later than when it will have something to settle; 0 if it does not.
	due   time.Duration
	value int           // bytes of its value
	size  int           // and of its parts, roughly
	seen  time.Duration // of this process: when it was last known to be so
}

// appendValue appends what is stored of a record: the stamp, what is due, the
// head.
func appendValue(b []byte, s stamp, due time.Duration, head []byte) []byte {
	b = append(b, s...)
	b = binary.BigEndian.AppendUint64(b, uint64(due))
	return append(b, head...)
}

func decodeValue(v string) (entry, error) {
	if len(v) < valueLen {
		return entry{}, errors.New("it is too short for a record of govnode")
	}
	b := []byte(v)
	r, err := session.Unpack(b[valueLen:])
	if err != nil {
		return entry{}, err
	}
	return entry{
		stamp: stamp(b[:stampLen]), record: r, due: time.Duration(binary.BigEndian.Uint64(b[stampLen:])), size: len(v), value: len(v),
	}, nil
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

// score is the time in milliseconds, rounded up, so that what is found due is.
func score(due time.Duration) string {
	return strconv.FormatInt(int64((due+time.Millisecond-1)/time.Millisecond), 10)
}

// clockText is fixed in width, so that its order is that of numbers; Lua has
// none of 64 bits.
func clockText(d time.Duration) string { return fmt.Sprintf("%019d", int64(d)) }

// parseClock reads the value of the clock: log time, and the number of swaps.
func parseClock(v any) (at time.Duration, seq uint64, err error) {
	s, _ := v.(string)
	if len(s) < 21 || s[19] != ' ' {
		return 0, 0, fmt.Errorf("the clock is %q, not a time", s)
	}
	n, err := strconv.ParseInt(s[:19], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("the clock is %q, not a time", s)
	}
	seq, err = strconv.ParseUint(s[20:], 10, 64)
	return time.Duration(n), seq, err
}

// scoreReached is the highest score of what is due by now.
func scoreReached(now time.Duration) string {
	return strconv.FormatInt(int64(now/time.Millisecond), 10)
}
