package cluster

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// errDamaged is wrapped by what is said of a disk that does not hold what was
// written to it.
var errDamaged = errors.New("damaged")

// guarded turns a panic, or a fault of mapped memory, into an error: a library
// that meets bytes which it cannot have written has no other word for it.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errDamaged, p)
		}
	}()
	return f()
}

// damagedFile is the error for a file that does not hold what was written to it,
// with what to do.
func damagedFile(path string, why error) error {
	return fmt.Errorf("cluster: Dir: %s is damaged: %w; %s", path, why, adviceReplace)
}
