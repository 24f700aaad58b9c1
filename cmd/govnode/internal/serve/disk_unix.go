//go:build linux || darwin

package serve

import (
	"os"
	"syscall"
)

// freeOn returns what tells how much room there is on the disk of a folder, in bytes.
func freeOn(folder string) func() (uint64, error) {
	return func() (uint64, error) {
		var room syscall.Statfs_t
		if err := syscall.Statfs(folder, &room); err != nil {
			return 0, err
		}
		return room.Bavail * uint64(room.Bsize), nil
	}
}

// keepToItself has no core of the process written, which would hold secrets.
func keepToItself() error { return syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}) }

// openFiles is how many files this process may have open; 0 where that is not known.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<30 {
		return 0
	}
	return int(limit.Cur)
}

// isRemoved reports whether an open file has no name any more.
func isRemoved(f *os.File) bool {
	info, err := f.Stat()
	if err != nil {
		return false
	}
	on, ok := info.Sys().(*syscall.Stat_t)
	return ok && on.Nlink == 0
}
