package client

import (
	"context"
	"sync"
	"time"
)

// An errand is an operation under way: to one node after another, until its
// caller is done, its time is up or the client is closed. It does what a context
// would without the cost of one: what goes over a stream asks for no channel
// and has no timer of its own. Only its caller's goroutine uses it.
type errand struct {
	operation
	c      *Client
	caller context.Context
	end    time.Time // when it is given up
	gone   time.Time // when its caller was found to be done, if it lingers

	// The attempt under way.
	node  *node
	sent  time.Time // on the client's clock (Config.Now)
	until time.Time // when the node is given up

	placed bool // it was seen to stand in a queue, where it keeps its place for a while

	ctx  context.Context // what all this comes to as a context; nil until somebody needs one
	stop func()
}

// An operation is one thing that is asked for, however often it is sent.
type operation struct {
	name string        // of the RPC
	id   string        // under which sending it again has no second effect; empty for reads
	wait time.Duration // for which a node may hold back its answer
	// drawn is the field of the request that holds an id of the client's own
	// choosing, which another one may take the place of. Nil if the id is not
	// the client's to choose.
	drawn *string
	// farewell marks what gives something back: it goes on while the client
	// closes.
	farewell bool
	reads    bool          // it changes nothing
	left     outcome       // what earlier operations under this id have left
	linger   time.Duration // for how long it goes on when its caller is done
}

var errands = sync.Pool{New: func() any { return new(errand) }}

// over returns why the errand must go on no longer, or nil.
func (e *errand) over(now time.Time) error {
	if e.ctx != nil {
		if e.ctx.Err() != nil {
			return context.Cause(e.ctx)
		}
		return nil
	}
	switch {
	case !e.farewell && e.c.ctx.Err() != nil:
		return ErrClosed
	case e.caller.Err() != nil && !e.lingers(now):
		return context.Cause(e.caller)
	case !now.Before(e.end):
		return context.DeadlineExceeded
	}
	return nil
}

// lingers reports whether the errand goes on although its caller is done.
func (e *errand) lingers(now time.Time) bool {
	if e.linger == 0 {
		return false
	}
	if e.gone.IsZero() {
		e.gone = now
	}
	return now.Sub(e.gone) < e.linger
}

// attempt begins to ask a node, which may take as long as this. What does not
// wait leaves half of its time for another node, lest one that hangs should
// take all of it.
func (e *errand) attempt(n *node, now, sent time.Time) {
	e.node, e.sent = n, sent
	most := e.c.cfg.AttemptTimeout + e.wait
	left := e.end.Sub(now)
	if end, ok := e.callerDeadline(); ok {
		left = min(left, end.Sub(now))
	}
	if e.wait == 0 {
		most = min(most, max(left/2, attemptLeast))
	}
	e.until = earlier(now.Add(most), e.end)
}

// callerDeadline returns when its caller will be done, if that ends the errand.
func (e *errand) callerDeadline() (time.Time, bool) {
	if e.linger > 0 {
		return time.Time{}, false
	}
	return e.caller.Deadline()
}

// told returns when the attempt is over, as its node is told.
func (e *errand) told() time.Time {
	if end, ok := e.callerDeadline(); ok {
		return earlier(e.limit(), end)
	}
	return e.limit()
}

// limit returns when the attempt is given up whatever its caller does.
func (e *errand) limit() time.Time {
	if e.gone.IsZero() {
		return e.until
	}
	return earlier(e.until, e.gone.Add(e.linger))
}

// done returns a channel that is closed when somebody has to look whether the
// errand is over; nil if that cannot be.
func (e *errand) done() <-chan struct{} {
	switch {
	case e.ctx != nil:
		return e.ctx.Done()
	case !e.gone.IsZero():
		return nil // it lingers, which has an end of its own
	}
	return e.caller.Done()
}

// context returns the errand as a context, which ends with release at the
// latest.
func (e *errand) context() context.Context {
	if e.ctx != nil {
		return e.ctx
	}
	ctx, unlinger := e.caller, func() {}
	if e.linger > 0 {
		d := e.linger
		if !e.gone.IsZero() {
			d = max(d-time.Since(e.gone), 0)
		}
		ctx, unlinger = linger(ctx, d)
	}
	ctx, cancel := context.WithDeadline(ctx, e.end)
	if e.farewell {
		e.ctx, e.stop = ctx, func() { cancel(); unlinger() }
		return e.ctx
	}
	ctx, end := context.WithCancelCause(ctx)
	detach := context.AfterFunc(e.c.ctx, func() { end(ErrClosed) })
	e.ctx, e.stop = ctx, func() {
		detach()
		end(nil)
		cancel()
		unlinger()
	}
	return e.ctx
}

// attemptContext is context for the attempt under way.
func (e *errand) attemptContext() (context.Context, context.CancelFunc) {
	return context.WithDeadline(e.context(), e.until)
}

// release ends what the errand may have started. It is not used afterwards.
func (e *errand) release() {
	if e.stop != nil {
		e.stop()
	}
	*e = errand{}
	errands.Put(e)
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
