package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// repeats is how often an answer is asked for again that does not stand, until
// it is taken as it is.
const repeats = 3

// An admission is a request for a lease: of a slot, or of those of a call.
type admission struct {
	operation
	drawn bool // the id is the client's, not its user's

	sent     time.Time // the request that was answered
	left     time.Duration
	admitted bool
}

// granted is what both kinds of answer have in common.
type granted struct {
	outcome govnodev1.Outcome
	ttl     time.Duration // left, as of the answer
}

// newAdmission makes an admission whose id stands in a field of the request,
// and is drawn if that is empty.
func newAdmission(c *Client, name string, id *string, wait time.Duration) (*admission, error) {
	a := &admission{operation: operation{name: name, id: *id, wait: max(wait, 0)}}
	if *id != "" {
		return a, nil
	}
	a.drawn = true
	a.redraw = func(newerThan uint64) (string, error) {
		if !c.ids.raise(newerThan) {
			return "", fmt.Errorf("client: %s: the service wants ids newer than %d, which none is", name, newerThan)
		}
		drawn, err := c.ids.next()
		*id = drawn
		return drawn, err
	}
	var err error
	a.id, err = a.redraw(0)
	return a, err
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
func (a *admission) ask(ctx context.Context, c *Client, try func(context.Context, *node, *durationpb.Duration) (granted, error)) error {
	end := c.cfg.Now().Add(a.wait)
	for again := 0; ; again++ {
		got, err := send(ctx, c, a.operation, func(ctx context.Context, n *node) (granted, error) {
			a.sent = c.cfg.Now()
			var wait *durationpb.Duration
			if a.wait > 0 {
				wait = durationpb.New(max(end.Sub(a.sent), time.Millisecond))
			}
			return try(ctx, n, wait)
		})
		if err != nil {
			return err
		}
		a.admitted = got.outcome == govnodev1.Outcome_OUTCOME_ADMITTED
		a.left = got.ttl
		switch {
		case again >= repeats:
			return nil
		case got.outcome == govnodev1.Outcome_OUTCOME_CANCELLED && a.drawn:
			if a.id, err = a.redraw(0); err != nil {
				return err
			}
		case !a.admitted || c.cfg.Now().Sub(a.sent) <= a.left/3:
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
