package waiting

import (
	"context"
	"time"

	"example.com/govnode/session"
)

// Those who wait for a rate. It comes free by itself, so that no command tells
// those who wait of it: the node of the first in the queue claims for him at that
// instant, and other nodes at which somebody waits order a Tick a little later.

const (
	// turnGrace is how much later a node orders a Tick if another one has the
	// first in the queue: it has not claimed by then.
	turnGrace = 25 * time.Millisecond
	// turnAgain is how soon a node tries again that has tried too early, and
	// longer each time up to turnRarely.
	turnAgain  = time.Millisecond
	turnRarely = 64 * turnAgain
)

// A clock estimates log time between the entries that tell it: it goes on no
// faster than time does.
type clock struct {
	began time.Time
	ahead time.Duration // of log time before the time since began
	last  time.Duration // log time as it was seen last
	fresh time.Duration // what ahead was by that
}

func (c *clock) now() time.Duration { return c.ahead + time.Since(c.began) }

// see takes over a log time that was just seen. An estimate that is ahead of it
// may be right: the entry that tells it may be old.
func (c *clock) see(now time.Duration) {
	if c.began.IsZero() {
		c.began, c.ahead = time.Now(), now
	}
	if now != c.last {
		c.last, c.fresh = now, now-time.Since(c.began)
	}
	c.ahead = max(c.ahead, c.fresh)
}

// early takes back what was estimated too far ahead.
func (c *clock) early() { c.ahead = c.fresh }

// A turn is when the first in the queue of a rate gets what he waits for.
type turn struct {
	pool  *session.Pool // as it was seen
	at    time.Duration // log time; 0 if nothing returns by itself
	own   bool          // he waits at this node
	tried time.Time     // when it was last claimed for him, or a Tick ordered
	again time.Duration // until then it is tried again
}

func (q *queue) noteTurn(p *session.Pool) {
	at, ok := p.Turn()
	if !ok {
		q.turn = turn{}
		return
	}
	if at != q.turn.at {
		q.turn = turn{at: at}
	}
	q.turn.pool, q.turn.own = p, len(q.holders[p.Queue[0].Holder]) > 0
}

// untilTurn returns how long it is until the next turn of somebody.
func (w *Waiters) untilTurn() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := pollWaits
	for _, q := range w.pools { // order-free: the least of all
		if q.turn.at > 0 {
			wait = min(wait, w.left(&q.turn))
		}
	}
	return wait
}

// left is how long it is until a turn is to be tried. w.mu is held.
func (w *Waiters) left(t *turn) time.Duration {
	left := t.at - w.clock.now()
	if !t.own {
		left += turnGrace
	}
	if t.again > 0 {
		left = max(left, t.again-time.Since(t.tried))
	}
	return max(left, 0)
}

// takeTurns claims for those whose turn has come, and orders a Tick of the rates
// at which others come first.
func (w *Waiters) takeTurns(ctx context.Context) {
	w.mu.Lock()
	var turns []*Wait
	tick := map[string]*session.Tick{} // by namespace
	for k, q := range w.pools {        // order-free: each in its own queue
		if q.turn.at == 0 || w.left(&q.turn) > 0 {
			continue
		}
		if q.turn.again > 0 {
			w.clock.early() // else the pool would have changed
		}
		q.turn.tried, q.turn.again = time.Now(), min(max(2*q.turn.again, turnAgain), turnRarely)
		found := len(turns)
		for _, holder := range q.turn.pool.Turns(q.turn.at) {
			turns = append(turns, q.holders[holder]...)
		}
		if len(turns) > found {
			continue
		}
		ns := k.Namespace()
		if tick[ns] == nil {
			tick[ns] = &session.Tick{}
		}
		tick[ns].Keys = append(tick[ns].Keys, k)
	}
	w.mu.Unlock()
	for _, t := range tick { // order-free: of namespaces that have nothing in common
		w.apply(ctx, []session.Command{t})
	}
	w.claim(ctx, turns)
}
