package client

import (
	"errors"
	"sync/atomic"

	"connectrpc.com/connect"
)

// An outcome is what is known of a change that has been sent: of one attempt by
// what came of it, and of an operation by all of its attempts together.
type outcome uint8

const (
	untouched outcome = iota // nothing that was sent had an effect, or will have one
	uncertain                // something that was sent may have had one
	answered                 // something that was sent has had its effect
)

// outcome is that of the attempt which an error answers.
func (v *verdict) outcome() outcome {
	if v.fate == unknown {
		return uncertain
	}
	return untouched
}

// join is what two attempts come to: what one of them may have done no other one
// takes back.
func (o outcome) join(p outcome) outcome { return max(o, p) }

// conclude is the error of an operation that ends without an answer, the one
// place where it is decided which. objection is what the service has against it,
// or nil where it only gave up.
func (op *operation) conclude(o outcome, objection *verdict, err error) error {
	switch {
	case o != untouched && !op.reads:
		return &Unknown{Operation: op.name, ID: op.id, Err: err}
	case objection != nil:
		return &Error{Operation: op.name, Code: connect.CodeOf(err), Reason: objection.reason, Err: err}
	}
	return &Unavailable{Operation: op.name, Err: err}
}

// A breach is one thing that goes wrong for many requests at once: a stream that
// breaks, or that cannot be had. The budget is charged for it once.
type breach struct {
	error
	charged atomic.Bool
}

func (b *breach) Unwrap() error { return b.error }

// free reports whether an operation whose attempt has failed may be sent again
// without a charge: another one has paid for what broke, or it has a place in a
// queue, to which it must get back before that lapses.
func (e *errand) free(err error) bool {
	if e.placed {
		return true // and leaves the charge to one who has none
	}
	var b *breach
	return errors.As(err, &b) && !b.charged.CompareAndSwap(false, true)
}
