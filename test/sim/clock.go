package sim

import (
	"sync"
	"time"
)

// A clock is the two clocks of a host, each of which may run at a rate of its own
// and jump. Log time takes what the slower one says, so one of them at a time is
// wrong: see cluster.Config.Clocks.
type clock struct {
	mu       sync.Mutex
	last     time.Time
	rates    [2]float64
	readings [2]time.Duration
}

func newClock() *clock { return &clock{last: time.Now(), rates: [2]float64{1, 1}} }

// read is cluster.Config.Clocks.
func (c *clock) read() (monotonic, wall time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pass()
	return c.readings[0], c.readings[1]
}

// pass counts the time since the last look. c.mu is held.
func (c *clock) pass() {
	now := time.Now()
	passed := now.Sub(c.last)
	c.last = now
	for i, rate := range c.rates {
		c.readings[i] += time.Duration(float64(passed) * rate)
	}
}

// set gives the clocks their rates.
func (c *clock) set(monotonic, wall float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pass()
	c.rates = [2]float64{monotonic, wall}
}

// jump moves one of the clocks.
func (c *clock) jump(which int, by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pass()
	c.readings[which] += by
}
