package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"
)

// errDamaged reports that what keeps the log gave up on what it found.
var errDamaged = errors.New("the data folder is damaged")

// guarded runs f. What keeps the log takes its files for what it has written,
// and panics, or reads where there is no file any more, where they are not; that
// is an error here.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v; %s", errDamaged, p, adviceReplace)
		}
	}()
	return f()
}

// unusable is the error of a folder that cannot be opened, with what to do.
func unusable(dir string, err error) error {
	switch {
	case errors.Is(err, errDamaged):
		return fmt.Errorf("cluster: Dir: %s: %w", dir, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("cluster: Dir: cannot open the log in %s: %w", dir, err)
	}
	return fmt.Errorf("cluster: Dir: cannot open the log in %s: %w; if the disk is well the folder is damaged: %s", dir, err, adviceReplace)
}
