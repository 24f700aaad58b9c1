package cluster

import (
	"context"
	"sync"
	"time"

	"example.com/govnode/session"
)

const (
	// sampleEvery is how often the clock is looked at, and maxStep the most
	// that one look may add: a process that was paused, or a clock that jumps,
	// adds one such step and can never cut a lease short.
	sampleEvery = 250 * time.Millisecond
	maxStep     = 375 * time.Millisecond

	// leaseTick and restTick are how often log time is written to the log when
	// nothing else is. What was not written is lost with the leader, and
	// lengthens leases by as much.
	leaseTick = 500 * time.Millisecond
	restTick  = 10 * time.Second
)

// A clock is the log time of one leadership. It is made after that leadership's
// barrier with the state's time as its base, and dropped with it, so that time
// under which nobody led does not count.
type clock struct {
	monotonic func() time.Duration

	mu   sync.Mutex
	at   time.Duration // log time
	last time.Duration // monotonic time of the last look
}

func newClock(base time.Duration, monotonic func() time.Duration) *clock {
	return &clock{monotonic: monotonic, at: base, last: monotonic()}
}

// Now returns log time, which never runs backwards and never faster than the
// monotonic clock.
func (c *clock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.monotonic()
	c.at += min(max(now-c.last, 0), maxStep)
	c.last = now
	return c.at
}

// raise makes log time at least at: a snapshot that was restored may come from
// a log that is ahead.
func (c *clock) raise(at time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = max(c.at, at)
}

// run samples the clock, so that idle time counts, until ctx is done.
func (c *clock) run(ctx context.Context) {
	t := time.NewTicker(sampleEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			c.Now()
		}
	}
}

// A housekeeper writes log time to the log, and settles what has run out, while
// its node leads.
type housekeeper struct {
	now func() time.Duration
	// due tells how often time must be written: see fsm.due.
	due func(now time.Duration) cadence
	// overdue returns what has run out by the time of the log.
	overdue func(limit int) (keys []session.Key, more bool)
	// propose gives a Tick its place and waits until it is applied.
	propose func(context.Context, *session.Tick) error
}

// A cadence says how often log time must be written.
type cadence int

const (
	never  cadence = iota // nothing ever runs out
	seldom                // something will
	often                 // there may be leases or tickets
	atOnce                // something has run out
)

// run writes a Tick directly, then as often as the state asks for it, until ctx
// is done or the leadership has ended.
func (h *housekeeper) run(ctx context.Context) {
	h.tick(ctx)
	last := h.now()
	t := time.NewTicker(leaseTick)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := h.now()
		switch h.due(now) {
		case never:
			continue
		case seldom:
			if now-last < restTick {
				continue
			}
		case often, atOnce:
		}
		h.tick(ctx)
		last = now
	}
}

// tick proposes Ticks until nothing is overdue. The first may name nothing and
// move time alone: what has run out since the latest entry is found after it.
func (h *housekeeper) tick(ctx context.Context) error {
	for again := true; again; {
		keys, more := h.overdue(session.MaxTick)
		if err := h.propose(ctx, &session.Tick{Keys: keys}); err != nil {
			return err
		}
		again = more || len(keys) == 0 && h.due(h.now()) == atOnce
	}
	return nil
}
