package client

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
)

const (
	pauseFirst = 50 * time.Millisecond
	pauseMost  = time.Second
	redraws    = 3
	// Less time is not worth asking a node: an election takes about that long.
	attemptLeast = time.Second
)

// An operation is one thing that is asked for, however often it is sent.
type operation struct {
	name string        // of the RPC
	id   string        // under which sending it again has no second effect; empty for reads
	wait time.Duration // for which a node may hold back its answer
	// redraw gives the operation another id, which must be newer than a time.
	// Nil if the id is not the client's to choose.
	redraw func(newerThan uint64) (id string, err error)
}

// send asks one node after another until there is an answer, the context is
// done, or the operation's own deadline is reached. ask is called with a
// context for that attempt alone.
func send[Res any](ctx context.Context, c *Client, op operation, ask func(context.Context, *node) (Res, error)) (Res, error) {
	var none Res
	ctx, cancel := c.bound(ctx, op.wait)
	defer cancel()
	c.bucket.earn()
	var last error
	sent := false // and nobody said that it had no effect
	for n := 0; ; n++ {
		if ctx.Err() != nil {
			return none, op.gaveUp(ctx, sent, last)
		}
		at := c.route()
		attempt, stop := context.WithTimeout(ctx, c.forOneNode(ctx, op))
		res, err := ask(attempt, at)
		stop()
		if err == nil {
			return res, nil
		}
		last = err
		f, reason, newerThan := judge(err)
		switch {
		case f == final:
			return none, &Error{Operation: op.name, Code: connect.CodeOf(err), Reason: reason, Err: err}
		case f == stale && sent:
			// What was sent before may have been carried out and forgotten.
			return none, &Unknown{Operation: op.name, ID: op.id, Err: err}
		case f == stale:
			if op.redraw == nil || n >= redraws {
				return none, &Error{Operation: op.name, Code: connect.CodeOf(err), Reason: reason, Err: err}
			}
			if op.id, err = op.redraw(newerThan); err != nil {
				return none, err
			}
			continue // the node is well: ask it at once
		case f == unknown:
			sent = true
		}
		if ctx.Err() == nil {
			c.routes.failed(at, reason == "")
			c.pause(ctx, n)
		}
	}
}

// forOneNode is how long one node may take. What does not wait leaves half of
// its time for another node, lest one that hangs should take all of it.
func (c *Client) forOneNode(ctx context.Context, op operation) time.Duration {
	most := c.cfg.AttemptTimeout + op.wait
	if end, ok := ctx.Deadline(); ok && op.wait == 0 {
		most = min(most, max(time.Until(end)/2, attemptLeast))
	}
	return most
}

// gaveUp returns the error of an operation that has run out of time.
func (op *operation) gaveUp(ctx context.Context, sent bool, last error) error {
	err := context.Cause(ctx)
	if last != nil {
		err = fmt.Errorf("%w; last: %w", err, last)
	}
	if sent && op.id != "" {
		return &Unknown{Operation: op.name, ID: op.id, Err: err}
	}
	return &Unavailable{Operation: op.name, Err: err}
}

// bound ends an operation with its own deadline or with the client, whichever
// comes first. What cleans up after Close runs under farewellContext and is
// not ended by it.
func (c *Client) bound(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout+wait)
	if ctx.Value(farewellKey{}) != nil {
		return ctx, cancel
	}
	ctx, end := context.WithCancelCause(ctx)
	detach := context.AfterFunc(c.ctx, func() { end(ErrClosed) })
	return ctx, func() {
		detach()
		end(nil)
		cancel()
	}
}

// farewellKey marks contexts of what still has to be done while the client
// closes.
type farewellKey struct{}

func farewellContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, farewellKey{}, true)
}

// route returns the node to ask, and lets somebody find the leader where that
// is due.
func (c *Client) route() *node {
	n, due := c.routes.pick()
	if due {
		leave, err := c.enter()
		if err != nil {
			return n
		}
		go func() {
			defer leave()
			c.routes.find(c.ctx)
		}()
	}
	return n
}

// pause waits before the attempt after number n: a random part of a time that
// doubles (full jitter), then as long as the budget is empty.
func (c *Client) pause(ctx context.Context, n int) {
	most := min(pauseFirst<<min(n, 10), pauseMost)
	d := time.Duration(c.cfg.Random() * float64(most))
	for {
		if !sleep(ctx, d) {
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

// linger returns a context that ends a while after ctx does, for what must be
// sent even if its caller has gone.
func linger(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	l, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if sleep(l, d) {
			cancel(context.Cause(ctx))
		}
	})
	return l, func() {
		stop()
		cancel(nil)
	}
}
