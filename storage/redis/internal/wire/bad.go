package wire

import (
	"errors"
	"fmt"
)

// What may stand in the place of a record and is none.

// AsideMark stands behind the stamp in the place of a record that was set aside.
const AsideMark = "aside"

// ErrAside says that there is the mark of a record that was set aside.
var ErrAside = errors.New("it was damaged and was set aside; bring it back or drop it, see docs/redis.md")

// IsAside reports whether a value is the mark of a record that was set aside.
func IsAside(v string) bool { return len(v) == StampLen+len(AsideMark) && v[StampLen:] == AsideMark }

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
