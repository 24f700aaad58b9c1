//go:build !seeded

package seeded

import "time"

// On reports whether a bug was chosen: none is in this program.
func On(Bug) bool { return false }

// Now is for a bug that reads a clock where none may be read.
func Now() time.Duration { return 0 }

// Toss is for a bug that lets the order of a map decide.
func Toss() bool { return false }
