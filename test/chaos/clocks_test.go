package chaos

import (
	"math/rand/v2"
	"sync"
	"time"

	"example.com/govnode/test/processes/skew"
)

// clocks are those of the nodes' processes that were ever moved. One clock is
// wrong at a time: of both going ahead at once no lease is promised anything.
type clocks struct {
	wrong sync.Mutex // held while one is

	mu  sync.Mutex
	all map[int]*skew.Clocks // by process
}

// of returns the clocks of a process, or nil where nobody can move them.
func (c *clocks) of(pid int) *skew.Clocks {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.all[pid]; x != nil {
		return x
	}
	x, err := skew.Of(pid)
	if err != nil {
		return nil
	}
	if c.all == nil {
		c.all = map[int]*skew.Clocks{}
	}
	c.all[pid] = x
	return x
}

// move moves a clock of a node. What it returns moves it back, unless the process
// has ended, with which its clocks ended.
func (n *nemesis) move(rng *rand.Rand, there, back func(*skew.Clocks) error) func() {
	pid := n.any(rng).Pid()
	if pid == 0 || !n.clocks.wrong.TryLock() {
		return nil
	}
	c := n.clocks.of(pid)
	if c == nil || there(c) != nil {
		n.clocks.wrong.Unlock()
		return nil
	}
	return func() {
		defer n.clocks.wrong.Unlock()
		_ = back(c)
	}
}

// wallJump lets the time of day of a node be wrong by less than the hour from
// which on it refuses the ids of clients.
func (n *nemesis) wallJump(rng *rand.Rand) func() {
	by := time.Duration(rng.Int64N(int64(100*time.Minute))) - 50*time.Minute
	return n.move(rng, func(c *skew.Clocks) error { return c.Jump(skew.Wall, by) }, func(c *skew.Clocks) error { return c.Jump(skew.Wall, -by) })
}

// monotonicJump lets the monotonic clock of a node go ahead at once. It does not
// come back.
func (n *nemesis) monotonicJump(rng *rand.Rand) func() {
	by := time.Duration(rng.Int64N(int64(30 * time.Second)))
	return n.move(rng, func(c *skew.Clocks) error { return c.Jump(skew.Monotonic, by) }, func(*skew.Clocks) error { return nil })
}

// clockRate lets one of the clocks of a node go fast or slow.
func (n *nemesis) clockRate(rng *rand.Rand) func() {
	clock, rate := skew.Clock(rng.IntN(2)), 0.5+1.5*rng.Float64()
	return n.move(rng, func(c *skew.Clocks) error { return c.Rate(clock, rate) }, func(c *skew.Clocks) error { return c.Rate(clock, 1) })
}
