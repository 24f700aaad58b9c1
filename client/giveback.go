package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/client/internal/wire"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// How leases are given back: one by its holder, or all that are left when the
// client is closed.

// endedBefore is why what was to be given back was not held.
const endedBefore = "the lease ended before it was given back"

// wasReleased reports whether a slot was held until it was given back.
func wasReleased(o Outcome) bool {
	return o == govnodev1.Outcome_OUTCOME_RELEASED || o == govnodev1.Outcome_OUTCOME_ALREADY_RELEASED
}

// wasEnded reports whether a call was open until it was ended.
func wasEnded(o Outcome) bool { return o == govnodev1.Outcome_OUTCOME_ENDED || o == AlreadyEnded }

// giveBackOne notes that a lease is about to be given back; gaveBack must be
// called when that is over. Until then it is renewed, and Close waits. If it is
// not to go on, err says why: the client is closed, or else what came of it that
// Close gives the lease back, for which it waits until a while after ctx is done.
func (k *leases) giveBackOne(ctx context.Context, l *Lease, while time.Duration) (goOn bool, err error) {
	err = k.c.enter()
	k.mu.Lock()
	byClose := l.givenBack
	if goOn = err == nil && !byClose; goOn {
		l.ended = true
	}
	k.mu.Unlock()
	if !byClose {
		return goOn, err
	}
	if err == nil {
		k.c.leave()
	}
	ctx, stop := linger(ctx, while)
	defer stop()
	select {
	case <-k.back:
		return false, l.result
	case <-ctx.Done():
		return false, &Unknown{Operation: "BatchCalls", ID: l.ref.id, Err: context.Cause(ctx)}
	}
}

// A turn is for one at a time, who asks a node meanwhile: so others wait for it no longer
// than they like. Its zero value is free.
type turn struct {
	mu    sync.Mutex
	taken bool
	left  chan struct{} // closed when it is free again; nil while nobody waits for that
}

// take waits for the turn until a while after ctx is done, and then says why. Who takes it
// leaves it.
func (t *turn) take(ctx context.Context, while time.Duration) error {
	left := t.try()
	if left == nil {
		return nil
	}
	ctx, stop := linger(ctx, while)
	defer stop()
	for ; left != nil; left = t.try() {
		select {
		case <-left:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// try takes the turn, or returns what tells that it is free again.
func (t *turn) try() (left chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.taken {
		t.taken = true
		return nil
	}
	if t.left == nil {
		t.left = make(chan struct{})
	}
	return t.left
}

func (t *turn) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken = false
	if t.left != nil {
		close(t.left)
		t.left = nil
	}
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
	var rest []*Lease
	var refs []heldRef
	for l := range k.held {
		if l.ended {
			continue // somebody is at it
		}
		rest, refs = append(rest, l), append(refs, l.ref)
		l.ended, l.givenBack = true, true
		l.endContext(ErrClosed)
		delete(k.held, l)
	}
	k.mu.Unlock()
	defer close(k.back)
	var errs []error
	for len(rest) > 0 {
		n := min(len(rest), renewMost)
		for i, err := range k.c.releaseAll(ctx, refs[:n]) {
			rest[i].result = err
			if err != nil && !errors.Is(err, ErrLeaseLost) && !slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }) {
				errs = append(errs, err)
			}
		}
		rest, refs = rest[n:], refs[n:]
	}
	return errors.Join(errs...)
}

// releaseOne is releaseAll for one, where it makes no difference whether that was
// still held.
func (c *Client) releaseOne(ctx context.Context, ref heldRef) error {
	err := c.releaseAll(ctx, []heldRef{ref})[0]
	if errors.Is(err, ErrLeaseLost) {
		return nil
	}
	return err
}

// releaseAll releases slots and ends calls as cancelled in one request, and returns
// what came of each.
func (c *Client) releaseAll(ctx context.Context, part []heldRef) []error {
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
	batch := operation{name: "BatchCalls", id: part[0].id, farewell: true}
	if n := len(part) - 1; n > 0 {
		batch.id = fmt.Sprintf("%s and %d more", batch.id, n)
	}
	all := make([]error, len(part)) // by tag
	before := untouched             // what earlier attempts have left
	_, err := send(ctx, c, batch, func(e *errand) (*govnodev1.BatchCallsResponse, error) {
		res, err := alone(e, func(ctx context.Context) (*govnodev1.BatchCallsResponse, error) {
			return e.node.calls.BatchCalls(ctx, req)
		})
		if err == nil {
			req.Operations, err = unanswered(req.GetOperations(), res.GetResults(), before, all)
		}
		if err != nil {
			v := judge(err)
			before = before.join(v.outcome())
		}
		return res, err
	})
	for _, op := range req.GetOperations() {
		all[op.GetTag()] = err
	}
	return all
}

var errLeftOut = errors.New("client: the node has left out the answer")

// unanswered returns the operations that got no answer and are worth sending
// again, with the error that says the most of them: one of which the outcome is
// unknown, if there is one. What is against the others goes into all, by their tags:
// that they were held no longer, or an objection, which may come after an attempt that
// has had an effect.
func unanswered(ops []*govnodev1.Operation, results []*govnodev1.OperationResult, before outcome, all []error) (rest []*govnodev1.Operation, err error) {
	answers := make(map[uint64]*govnodev1.OperationResult, len(results))
	for _, r := range results {
		answers[r.GetTag()] = r
	}
	joined := untouched
	for _, op := range ops {
		r, e := answers[op.GetTag()], errLeftOut
		switch {
		case r.GetError() != nil:
			e = wire.Error(r.GetError())
		case op.GetEnd() != nil && r.GetEnd() != nil:
			if o := r.GetEnd().GetOutcome(); !wasEnded(o) {
				all[op.GetTag()] = &Refused{Outcome: o, Reason: endedBefore}
			}
			continue
		case op.GetRelease() != nil && r.GetRelease() != nil:
			if o := r.GetRelease().GetOutcome(); !wasReleased(o) {
				all[op.GetTag()] = &Refused{Outcome: o, Reason: endedBefore}
			}
			continue
		}
		v := judge(e)
		switch {
		case v.fate == unknown, v.fate == notApplied:
			rest = append(rest, op)
			if o := joined.join(v.outcome()); err == nil || o != joined {
				joined, err = o, e
			}
		case v.fate == final && !gone(&v, e):
			one := operation{name: "BatchCalls", id: op.GetEnd().GetCallId() + op.GetRelease().GetSlotId()}
			all[op.GetTag()] = one.conclude(before, &v, e)
		}
	}
	return rest, err
}

// gone reports whether an objection says that there is nothing to give back: no
// such call or slot is held, or the call was ended otherwise.
func gone(v *verdict, err error) bool {
	return connect.CodeOf(err) == connect.CodeNotFound || v.reason == ReasonSessionClosed || v.reason == ReasonIDReused
}
