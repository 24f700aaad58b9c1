package wire

import (
	"errors"
	"fmt"
	"strconv"
)

// What may stand in the place of a record and is none.

// AsideMark stands behind the stamp in the place of a record that was set aside, and
// behind it the generation in which it was: what has ended since has ended for this
// record as well.
const AsideMark = "aside"

// MarkOf returns what is put in the place of a record that is set aside.
func MarkOf(s Stamp, generation uint32) string {
	return string(s) + AsideMark + strconv.FormatUint(uint64(generation), 10)
}

// ErrAside says that there is the mark of a record that was set aside.
var ErrAside = errors.New("it was damaged and was set aside; bring it back or drop it, see docs/redis.md")

// IsAside reports whether a value is the mark of a record that was set aside, and
// tells the generation; a mark that tells none is of the first.
func IsAside(v string) (generation uint32, yes bool) {
	if len(v) < StampLen+len(AsideMark) || v[StampLen:StampLen+len(AsideMark)] != AsideMark {
		return 0, false
	}
	digits := v[StampLen+len(AsideMark):]
	if digits == "" {
		return 0, true
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), err == nil
}

// A BadRecord reports what stands under a key and is no record of govnode. It is
// never taken for an absent one.
type BadRecord struct {
	Key string
	Err error
}

func (e *BadRecord) Error() string {
	if errors.Is(e.Err, ErrAside) {
		return fmt.Sprintf("the record under Redis key %q cannot be used: %v", e.Key, e.Err)
	}
	return fmt.Sprintf("the value of Redis key %q cannot be read: %v", e.Key, e.Err)
}

// Unwrap returns the reason.
func (e *BadRecord) Unwrap() error { return e.Err }

// ErrPartGone says that nothing is left of a part that had ids: acknowledged
// changes are lost.
var ErrPartGone = errors.New("a part of its ids is gone")

// ErrType says that somebody has put something else there.
var ErrType = errors.New("it is no string")
