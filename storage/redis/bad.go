package redis

import (
	"errors"
	"fmt"
)

// asideMark stands behind the stamp in the place of a record that was set aside.
const asideMark = "aside"

var errAside = errors.New("it was damaged and was set aside; bring it back or drop it, see docs/redis.md")

// isAside reports whether a value is the mark of a record that was set aside.
func isAside(v string) bool { return len(v) == stampLen+len(asideMark) && v[stampLen:] == asideMark }

// A badRecord reports what stands under a key and is no record of govnode. It is
// never taken for an absent one.
type badRecord struct {
	key string
	err error
}

func (e *badRecord) Error() string {
	if errors.Is(e.err, errAside) {
		return fmt.Sprintf("the record under Redis key %q cannot be used: %v", e.key, e.err)
	}
	return fmt.Sprintf("the value of Redis key %q is damaged or not of govnode: %v", e.key, e.err)
}

// Unwrap returns the reason.
func (e *badRecord) Unwrap() error { return e.err }

// errPartGone says that nothing is left of a part that had ids: acknowledged
// changes are lost.
var errPartGone = errors.New("a part of its ids is gone")

// errType says that somebody has put something else there.
var errType = errors.New("it is no string")
