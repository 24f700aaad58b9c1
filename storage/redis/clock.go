package redis

import (
	"sync"
	"time"
)

// A logClock is this node's estimate of log time. It goes on from what is known
// to be stored by the monotonic clock of this process. Neither the wall clock of
// Redis nor that of any node is looked at, so no jump of one can end a lease:
// the estimate is at most the time that really passed. When no node runs time
// stands still, which lengthens leases and never shortens them.
type logClock struct {
	monotonic func() time.Duration
	fixed     func() time.Duration // in tests: log time itself

	mu    sync.Mutex
	at    time.Duration // log time known to be stored
	since time.Duration // monotonic time from which it counts
	known bool
	seq   uint64        // most swaps that were seen
	epoch string        // id of the epoch in which they were
	mark  uint64        // what this node has left among the marks in it
	heard time.Duration // monotonic time of the last answer
}

const (
	// beatEvery is how often each node brings the stored clock up to its own,
	// so that idle time counts and a node that has just come reads today's time.
	beatEvery = 250 * time.Millisecond
	// maxAhead is how far a node's time runs ahead of the last that it knows to
	// be stored: a clock that jumps and a node that was paused add that much
	// and no more, and while Redis does not answer time stands still.
	maxAhead = 2 * beatEvery
	// maxBehind is how far the time of a round may be behind the stored clock
	// before it is applied again. It is what a node has not heard of yet, and
	// shortens what is granted in that round.
	maxBehind = beatEvery
)

// now returns log time, and the monotonic time at which it was so.
func (c *logClock) now() (at, mono time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mono = c.monotonic()
	if c.fixed != nil {
		return c.fixed(), mono
	}
	return c.estimate(mono), mono
}

func (c *logClock) estimate(mono time.Duration) time.Duration {
	return c.at + min(max(mono-c.since, 0), maxAhead)
}

// read notes what was found stored in an epoch.
func (c *logClock) read(stored time.Duration, seq uint64, epoch string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch == c.epoch {
		c.seq = max(c.seq, seq)
	}
	mono := c.monotonic()
	c.heard = mono
	if !c.known || stored > c.estimate(mono) {
		c.at, c.since, c.known = stored, mono, true
	}
}

// silent returns for how long Redis has not told its time.
func (c *logClock) silent() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.monotonic() - c.heard
}

// wrote notes that what now returned was stored, so that time goes on from
// there.
func (c *logClock) wrote(at, mono time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at > c.at {
		c.at, c.since, c.known = at, mono, true
	}
}

// swaps returns how many swaps were seen to have been made.
func (c *logClock) swaps() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seq
}

// begin counts swaps anew: this is another data set.
func (c *logClock) begin(epoch string, seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch, c.seq, c.mark = epoch, seq, 0
}

// left notes what a swap has left among the marks.
func (c *logClock) left(seq uint64, epoch string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch == c.epoch {
		c.mark = max(c.mark, seq)
	}
}

// marked returns what this node knows to have left among the marks.
func (c *logClock) marked() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mark
}
