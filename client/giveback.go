package client

import (
	"context"
	"errors"
	"fmt"

	"example.com/govnode/client/internal/wire"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// How leases are given back: one by its holder, or all that are left when the
// client is closed.

// giveBackOne notes that a lease is about to be given back; gaveBack must be
// called when that is over. Until then it is renewed, and Close waits. If it is
// not to go on there is nothing to do: Close has given the lease back, or cannot
// any more.
func (k *leases) giveBackOne(l *Lease) (goOn bool, err error) {
	err = k.c.enter()
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.givenBack {
		if err == nil {
			k.c.leave()
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l.ended = true
	return true, nil
}

// gaveBack ends what giveBackOne began.
func (k *leases) gaveBack(l *Lease) {
	k.mu.Lock()
	delete(k.held, l)
	k.mu.Unlock()
	l.endContext(context.Canceled)
	k.c.leave()
}

// giveBack gives back everything at once, and takes nothing on any more.
func (k *leases) giveBack(ctx context.Context) error {
	k.mu.Lock()
	k.closed = true
	var rest []heldRef
	for l := range k.held {
		if l.ended {
			continue // somebody is at it
		}
		rest = append(rest, l.ref)
		l.ended, l.givenBack = true, true
		l.endContext(ErrClosed)
		delete(k.held, l)
	}
	k.mu.Unlock()
	var errs []error
	for len(rest) > 0 {
		n := min(len(rest), renewMost)
		errs = append(errs, k.c.releaseAll(ctx, rest[:n]))
		rest = rest[n:]
	}
	return errors.Join(errs...)
}

// releaseAll releases slots and ends calls as cancelled in one request.
func (c *Client) releaseAll(ctx context.Context, part []heldRef) error {
	req := &govnodev1.BatchCallsRequest{}
	for i, ref := range part {
		op := &govnodev1.Operation{Tag: uint64(i)}
		if ref.session != "" {
			op.Op = &govnodev1.Operation_End{End: &govnodev1.EndCallRequest{SessionId: ref.session, CallId: ref.id, Status: Cancelled, SessionToken: ref.secret}}
		} else {
			op.Op = &govnodev1.Operation_Release{Release: &govnodev1.ReleaseSlotRequest{Pool: ref.pool, SlotId: ref.id, Client: c.cfg.Name, Token: ref.token}}
		}
		req.Operations = append(req.Operations, op)
	}
	id := part[0].id
	if n := len(part) - 1; n > 0 {
		id = fmt.Sprintf("%s and %d more", id, n)
	}
	_, err := send(ctx, c, operation{name: "BatchCalls", id: id, farewell: true}, func(e *errand) (*govnodev1.BatchCallsResponse, error) {
		res, err := alone(e, func(ctx context.Context) (*govnodev1.BatchCallsResponse, error) {
			return e.node.calls.BatchCalls(ctx, req)
		})
		if err != nil {
			return nil, err
		}
		req.Operations, err = unanswered(req.GetOperations(), res.GetResults())
		return res, err
	})
	return err
}

// unanswered returns the operations that got no answer and are worth sending
// again, with the error that says the most of them: one of which the outcome is
// unknown, if there is one.
func unanswered(ops []*govnodev1.Operation, results []*govnodev1.OperationResult) (rest []*govnodev1.Operation, err error) {
	again := make(map[uint64]bool)
	joined := untouched
	for _, r := range results {
		if r.GetError() == nil {
			continue
		}
		e := wire.Error(r.GetError())
		v := judge(e)
		if v.fate != unknown && v.fate != notApplied {
			continue
		}
		again[r.GetTag()] = true
		if o := joined.join(v.outcome()); err == nil || o != joined {
			joined, err = o, e
		}
	}
	for _, op := range ops {
		if again[op.GetTag()] {
			rest = append(rest, op)
		}
	}
	return rest, err
}
