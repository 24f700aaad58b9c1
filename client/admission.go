package client

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/seeded"
)

// How a lease is asked for until there is an answer that stands.

// repeats is how often an answer is asked for again that does not stand, until
// it is taken as it is.
const repeats = 3

// longest bounds times that callers give, so that two of them and the time of day can be
// added. The service takes none as long, and says so.
const longest = 100 * 365 * 24 * time.Hour

func within(wait time.Duration) time.Duration { return min(max(wait, 0), longest) }

// An admission is a request for a lease: of a slot, or of those of a call.
type admission struct {
	operation
	sent     time.Time     // the request that was answered
	until    time.Time     // when its node gives it up at the latest
	ttl      time.Duration // of the lease, as of the answer
	admitted bool
}

// granted is what both kinds of answer have in common.
type granted struct {
	outcome Outcome
	ttl     time.Duration // left, as of the answer
}

// identify takes an operation's id from the field of its request, or draws one
// if that is empty.
func (c *Client) identify(op *operation, id *string) error {
	if seeded.On(seeded.RetryAnew) {
		op.drawn = id
	}
	if op.id = *id; op.id != "" {
		return nil
	}
	op.drawn = id
	return c.redraw(op, 0)
}

// ask sends the request until there is an answer that stands.
//
// A lease counts from the sending of its request; one that was granted after a
// wait would be half over by that count. So a request that was long under way
// is sent again, with the same id, and the answer to that says what is left of
// the lease.
//
// A node takes a connection that breaks for a caller that has given up its
// wait. This caller has not: if the id is its own to choose it goes on waiting
// under another one.
func (a *admission) ask(ctx context.Context, c *Client, try func(*errand, *durationpb.Duration) (granted, error)) error {
	var end time.Time // of the wait
	if a.wait > 0 {
		end = c.cfg.Now().Add(a.wait)
	}
	for again := 0; ; again++ {
		got, err := send(ctx, c, a.operation, func(e *errand) (granted, error) {
			a.sent, a.until, a.id = e.sent, e.told(), e.id
			var wait *durationpb.Duration
			if a.wait > 0 {
				wait = durationpb.New(max(end.Sub(a.sent), time.Millisecond))
			}
			return try(e, wait)
		})
		if err != nil {
			return err
		}
		a.admitted = got.outcome == Admitted
		a.ttl = got.ttl
		a.left = answered // for whatever comes of asking once more
		switch {
		case again >= repeats:
			return nil
		case got.outcome == WaitCancelled && a.drawn != nil:
			if err := c.redraw(&a.operation, 0); err != nil {
				return err
			}
			a.left = untouched // under the new id
		case !a.admitted || c.cfg.Now().Sub(a.sent) <= a.ttl/3:
			return nil
		}
	}
}

// mayHold reports whether something may have been granted although there was
// an error.
func (a *admission) mayHold(err error) bool {
	var u *Unknown
	return a.admitted || errors.As(err, &u)
}
