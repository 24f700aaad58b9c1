package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/internal/seeded"
)

// How an operation is sent: to one node after another, with pauses, for as long
// as it may take.

const (
	pauseFirst = 50 * time.Millisecond
	pauseMost  = time.Second
	redraws    = 3
	// Less time is not worth asking a node: an election takes about that long.
	attemptLeast = time.Second
	// A node that is well and need not wait for anything answers much sooner.
	answerWithin = 100 * time.Millisecond
)

// send asks one node after another until there is an answer, the caller is done,
// or the operation's own deadline is reached. ask makes one attempt.
func send[Res any](ctx context.Context, c *Client, op operation, ask func(*errand) (Res, error)) (Res, error) {
	var none Res
	now := time.Now()
	e := errands.Get().(*errand)
	e.operation, e.c, e.caller, e.end = op, c, ctx, now.Add(c.cfg.Timeout+op.wait)
	defer e.release()
	c.bucket.earn()
	var last error
	outcome := op.left
	for n := 0; ; n++ {
		if n > 0 {
			now = time.Now()
		}
		if why := e.over(now); why != nil {
			return none, e.gaveUp(why, outcome, last)
		}
		clock := c.cfg.Now()
		e.attempt(c.route(clock), now, clock)
		res, err := ask(e)
		if err == nil {
			return res, nil
		}
		last = err
		v := judge(err)
		outcome = outcome.join(v.outcome())
		switch {
		case v.fate == stale && outcome == untouched && e.drawn != nil && n < redraws:
			if err = c.redraw(&e.operation, v.newerThan); err != nil {
				return none, e.conclude(outcome, &v, err)
			}
			continue // the node is well: ask it at once
		case v.fate == final, v.fate == stale:
			// What was sent before may have been carried out, and be forgotten.
			return none, e.conclude(outcome, &v, err)
		}
		if seeded.On(seeded.RetryAnew) && e.drawn != nil {
			_ = c.redraw(&e.operation, 0)
		}
		now = time.Now()
		if v.fate == unknown && e.wait > 0 && c.cfg.Now().Sub(e.sent) >= answerWithin {
			e.placed = true // or it would have been answered
		}
		why := e.over(now)
		if !errors.Is(err, errNoToken) {
			c.moveOn(e, &v, why)
		}
		if why == nil {
			c.pause(e.context(), n, v.after, e.free(err))
		}
	}
}

// moveOn lets the next request go to another node than the one that has just
// failed this one. Why says why the errand is over, if it is: whoever hears
// nothing until its own deadline has learned as much about the node as one that
// can still send it again. But who gave up of itself, or before an answer had to
// come, proves nothing: then the node is looked at.
func (c *Client) moveOn(e *errand, v *verdict, why error) {
	silent := e.wait == 0 && c.cfg.Now().Sub(e.sent) >= answerWithin &&
		(errors.Is(why, context.DeadlineExceeded) || errors.Is(e.caller.Err(), context.DeadlineExceeded))
	switch {
	case why == nil || v.reason != "" || silent:
		c.routes.failed(e.node, v.reason == "")
	case !errors.Is(why, ErrClosed):
		c.routes.doubt(e.node)
	}
}

// redraw gives an operation another id, newer than what the service has
// forgotten.
func (c *Client) redraw(op *operation, newerThan uint64) (err error) {
	if err := c.ids.Raise(newerThan); err != nil {
		return connect.NewError(connect.CodeFailedPrecondition, err)
	}
	op.id, err = c.ids.Next()
	*op.drawn = op.id
	return err
}

// gaveUp returns the error of an operation that goes on no longer.
func (op *operation) gaveUp(why error, o outcome, last error) error {
	if last != nil {
		why = fmt.Errorf("%w; last: %w", why, last)
	}
	return op.conclude(o, nil, why)
}

// route returns the node to ask, and lets somebody find the leader where that
// is due. now is the time on the client's clock.
func (c *Client) route(now time.Time) *node {
	n, due := c.routes.pick(now)
	if due {
		if c.enter() != nil {
			return n
		}
		go func() {
			defer c.leave()
			c.routes.find(c.ctx)
		}()
	}
	return n
}

// pause waits before the attempt after number n: as long as the node asked for,
// a random part of a time that doubles (full jitter), then as long as the
// budget is empty, unless the attempt is free of charge.
func (c *Client) pause(ctx context.Context, n int, asked time.Duration, free bool) {
	most := min(pauseFirst<<min(n, 10), pauseMost)
	d := asked + time.Duration(c.cfg.Random()*float64(most))
	for {
		if !sleep(ctx, d) || free {
			return
		}
		// Whoever waited for the same token may be ahead.
		if d = c.bucket.take(c.cfg.Now()); d == 0 {
			return
		}
	}
}

// sleep reports whether it slept to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
