//go:build unix

package demo

import (
	"time"

	"golang.org/x/sys/unix"
)

// machineTime is a clock that all processes of this machine share and that
// nobody sets: what workers note down by it can be put in one order.
func machineTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic("the monotonic clock cannot be read: " + err.Error()) // it is part of the kernel's interface
	}
	return time.Duration(t.Nano())
}
