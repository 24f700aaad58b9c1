//go:build !linux || !amd64

package skew

import (
	"errors"
	"time"
)

// A Clock is one of those of a process.
type Clock int

const (
	Wall      Clock = 0 // the time of day
	Monotonic Clock = 1
)

// Clocks are those of one process, until it ends.
type Clocks struct{}

// Of fails on this machine.
func Of(int) (*Clocks, error) { return nil, errors.New("skew: only on Linux with amd64") }

// Jump moves a clock.
func (*Clocks) Jump(Clock, time.Duration) error { return nil }

// Rate lets a clock go faster or slower.
func (*Clocks) Rate(Clock, float64) error { return nil }

// Close leaves the clocks as they are.
func (*Clocks) Close() error { return nil }
