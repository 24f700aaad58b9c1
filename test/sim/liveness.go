package sim

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"example.com/govnode/test/check"
)

const (
	// settles is how long after a fault operations may take as long as they need,
	// with the heartbeat that nodes have by default.
	settles          = 3 * time.Second
	defaultHeartbeat = 500 * time.Millisecond
	// soon is what 99 of 100 operations may take when nothing is wrong, with that
	// heartbeat, and hangs what none may.
	soon  = 2 * time.Second
	hangs = 15 * time.Second
)

// Names of what has a bound in time.
const (
	answered = "an operation while nothing is wrong is answered (I20)"
	freed    = "a slot of a killed client is free after its TTL (I6)"
	healed   = "a cluster is whole again when nothing is wrong any more"
)

// A span is a time for which something lasted. Its end is 0 while it does.
type span struct {
	from, to time.Duration
	wait     time.Duration // of it that was asked for
}

// A weather knows when something was wrong with the cluster.
type weather struct {
	start  time.Time
	settle time.Duration
	soon   time.Duration

	mu  sync.Mutex
	bad []span
}

func newWeather(start time.Time, heartbeat time.Duration) *weather {
	scale := 1.0 // a product of two durations would not fit
	if heartbeat > 0 {
		scale = heartbeat.Seconds() / defaultHeartbeat.Seconds()
	}
	return &weather{start: start, settle: time.Duration(scale * float64(settles)), soon: time.Duration(scale * float64(soon))}
}

// begins notes that something goes wrong, until ends is called.
func (w *weather) begins() (ends func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := len(w.bad)
	w.bad = append(w.bad, span{from: time.Since(w.start)})
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.bad[i].to = time.Since(w.start)
	}
}

// fair returns the times at which nothing was wrong, nor had been shortly before.
func (w *weather) fair() (all []span) {
	w.mu.Lock()
	bad := slices.Clone(w.bad)
	w.mu.Unlock()
	slices.SortFunc(bad, func(a, b span) int { return int(a.from - b.from) })
	at := time.Duration(0)
	for _, b := range bad {
		if b.from > at {
			all = append(all, span{from: at, to: b.from})
		}
		if b.to == 0 {
			return all // it is under way
		}
		at = max(at, b.to+w.settle)
	}
	return append(all, span{from: at, to: max(at, time.Since(w.start))})
}

// within returns how much of a time is of those.
func within(fair []span, from, to time.Duration) (sum time.Duration) {
	i, _ := slices.BinarySearchFunc(fair, from, func(s span, from time.Duration) int { return int(s.to - from) })
	for ; i < len(fair) && fair[i].from < to; i++ {
		sum += max(0, min(to, fair[i].to)-max(from, fair[i].from))
	}
	return sum
}

// liveness judges what operations took.
func liveness(fair, ops []span, soon time.Duration) (took []time.Duration, broken []check.Violation) {
	for _, o := range ops {
		// What its caller was ready to wait for is no part of what it took.
		switch good, whole := within(fair, o.from, o.to), o.to-o.from; {
		case good > hangs+o.wait:
			broken = append(broken, check.Violation{Check: "liveness", Text: fmt.Sprintf(
				"an operation called at %v took %v, in %v of which nothing was wrong", o.from, whole, good)})
		case good == whole && o.wait == 0:
			took = append(took, whole)
		}
	}
	if p := p99(took); p > soon {
		broken = append(broken, check.Violation{Check: "liveness", Text: fmt.Sprintf(
			"of %d operations while nothing was wrong one in a hundred took %v or more", len(took), p)})
	}
	return took, broken
}

// p99 is what 99 of 100 are not above.
func p99(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Clone(all)
	slices.Sort(all)
	return all[len(all)*99/100]
}
