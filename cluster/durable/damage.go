package durable

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// How damage on a disk is told, and what to do about it.

// AdviceReplace is what to do with a folder that must not take part again.
const AdviceReplace = "move the folder away, and start the node on an empty one with --replace and --join"

// ErrDamaged is wrapped by what is said of a disk that does not hold what was
// written to it.
var ErrDamaged = errors.New("damaged")

// Guarded turns a panic, or a fault of mapped memory, into an error: a library
// that meets bytes which it cannot have written has no other word for it.
func Guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	return f()
}

// DamagedFile is the error for a file that does not hold what was written to it,
// with what to do.
func DamagedFile(path string, why error) error {
	return fmt.Errorf("cluster: Dir: %s is damaged: %w; %s", path, why, AdviceReplace)
}
