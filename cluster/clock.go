package cluster

import (
	"context"
	"sync"
	"time"

	"example.com/govnode/internal/seeded"
	"example.com/govnode/session"
)

// Log time: the clock that a leader stamps entries with, and the housekeeping
// by which it goes on when nothing else is written.

const (
	// sampleEvery is how often a clock is looked at, and maxStep the most that
	// one look may add: a process that was paused adds one such step and can
	// never cut a lease short.
	sampleEvery = 250 * time.Millisecond
	maxStep     = 375 * time.Millisecond

	// leaseTick and restTick are how often log time is written to the log when
	// nothing else is. What was not written is lost with the leader, but for
	// what the next one knows to have passed, and lengthens leases by as much.
	leaseTick = 500 * time.Millisecond
	restTick  = 10 * time.Second

	// betweenMost is what elections take at most where there is a majority, with
	// the timeouts that nodes have by default or shorter ones; see electionsTake.
	betweenMost = 3 * time.Second
)

// electionsTake is the most that counts of the time between the last entry of one
// leader and the first of the next: as long as elections take where there is a
// majority. Of an outage no more than that counts, for nobody could renew in it.
func electionsTake(heartbeat, election time.Duration) time.Duration {
	return max(betweenMost, 6*max(heartbeat, election))
}

// A clock is a sum of steps, each of which is at most what has passed since the
// one before: the shortest of what the monotonic clock says, what the time of day
// says, and maxStep. So one of the two may jump, and only where both jump forward
// at once, or nobody has looked for longer than maxStep, does a step say more, or
// less, than has passed.
//
// Log time is such sums. A leadership's begins when its barrier has been applied,
// at the time of the last entry and what has passed since this node applied it:
// the entry was stamped before that, and so
//
//	never too early: between two entries passes at least as much as their
//	stamps say, whoever stamped them. No lease ends before its time.
//
// And as every node looks at its clock all the time, whether it leads or not, and
// a leader stamps an entry as soon as it may,
//
//	never too late: with entries and leaderships however short, log time goes on
//	while there is a majority, but for what an entry takes from its stamp to the
//	nodes that apply it, once for each leader.
type clock struct {
	read func() (monotonic, wall time.Duration)

	mu   sync.Mutex
	at   time.Duration // log time, or what has passed
	last [2]time.Duration
}

func newClock(base time.Duration, read func() (monotonic, wall time.Duration)) *clock {
	c := &clock{read: read, at: base}
	c.last[0], c.last[1] = read()
	return c
}

// systemClocks returns the clocks of the machine.
func systemClocks() func() (monotonic, wall time.Duration) {
	start := time.Now()
	return func() (monotonic, wall time.Duration) {
		now := time.Now()
		return now.Sub(start), time.Duration(now.UnixNano())
	}
}

// Now returns log time, which never runs backwards and never faster than the
// slower of its clocks.
func (c *clock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	monotonic, wall := c.read()
	if seeded.On(seeded.WallClock) {
		monotonic = c.last[0] + max(0, wall-c.last[1]) // which then says all
		c.at += max(0, wall-c.last[1]-maxStep)
	}
	c.at += max(0, min(monotonic-c.last[0], wall-c.last[1], maxStep))
	c.last = [2]time.Duration{monotonic, wall}
	return c.at
}

// restart begins anew at 0.
func (c *clock) restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = 0
	c.last[0], c.last[1] = c.read()
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
		keys, more := h.overdue(session.MaxTick / 4) // others wait while one is applied
		if err := h.propose(ctx, &session.Tick{Keys: keys}); err != nil {
			return err
		}
		again = more || len(keys) == 0 && h.due(h.now()) == atOnce
	}
	return nil
}
