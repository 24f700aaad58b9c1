package client

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client/internal/ids"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Slots of pools: how one is acquired and released.

const (
	defaultTTL  = 30 * time.Second // the service's own
	defaultWait = 10 * time.Second
	// NoWait is a wait for those who want a slot at once or not at all.
	NoWait time.Duration = -1
)

// A SlotOption says how to acquire a slot.
type SlotOption func(*slotRequest)

type slotRequest struct {
	id           string
	weight       int32
	ttl, maxHold time.Duration
	wait         time.Duration
	priority     int32
	label        string
	cancelOnLost bool
}

// SlotID chooses the id of the slot, under which the request can be sent
// again after an Unknown. Drawn if not given.
func SlotID(id string) SlotOption { return func(r *slotRequest) { r.id = id } }

// Weight is how many slots to take, all or none. 1 if not given.
func Weight(n int) SlotOption { return func(r *slotRequest) { r.weight = clampInt32(n) } }

// TTL is how long the lease lasts without renewal, 1 s to 1 h. 30 s if not
// given.
func TTL(d time.Duration) SlotOption { return func(r *slotRequest) { r.ttl = d } }

// MaxHold is how long the slot may be held, renewals included. No limit if not
// given.
func MaxHold(d time.Duration) SlotOption { return func(r *slotRequest) { r.maxHold = d } }

// Wait is how long to stand in the pool's queue, up to 10 min; NoWait is not
// at all. 10 s if not given.
func Wait(d time.Duration) SlotOption { return func(r *slotRequest) { r.wait = d } }

// Priority in the queue: the highest first. 0 if not given.
func Priority(n int) SlotOption { return func(r *slotRequest) { r.priority = clampInt32(n) } }

// Label is shown to those who look at the holders of a pool.
func Label(text string) SlotOption { return func(r *slotRequest) { r.label = text } }

// CancelOnLost makes Slot.Context end, with ErrLeaseLost as its cause, when
// the slot is lost.
func CancelOnLost() SlotOption { return func(r *slotRequest) { r.cancelOnLost = true } }

func clampInt32(n int) int32 { return int32(max(-1<<31, min(n, 1<<31-1))) }

func (r *slotRequest) validate() error {
	if err := ids.Check("slot id", r.id); err != nil {
		return err
	}
	if !utf8.ValidString(r.label) {
		return errors.New("client: Label: not valid UTF-8")
	}
	return nil
}

// A Slot is a share of a pool, held under a lease. It is safe for concurrent
// use.
type Slot struct {
	*Lease
	c        *Client
	pressure Pressure

	release  turn
	released bool
	result   error
}

// Pressure tells how full a pool was when a slot in it was granted
// (policy engine spec 15.1).
type Pressure struct {
	InUse, Limit int
	// AdvisedDelay is how long the holder is asked to hold back before its
	// next call; 0 below the threshold of the pool.
	AdvisedDelay time.Duration
}

func pressureOf(p *govnodev1.Pressure) Pressure {
	return Pressure{InUse: int(p.GetInUse()), Limit: int(p.GetLimit()), AdvisedDelay: p.GetAdvisedDelay().AsDuration()}
}

// Acquire takes a slot of a pool, or waits for one, 10 s if no Wait is given.
// The slot is renewed until it is released, lost, or the client is closed. A
// pool that gives none is a *Refused.
func (c *Client) Acquire(ctx context.Context, pool string, options ...SlotOption) (*Slot, error) {
	r := slotRequest{}
	for _, o := range options {
		o(&r)
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	orElse(&r.wait, defaultWait)
	req := &govnodev1.AcquireSlotRequest{
		Pool: pool, SlotId: r.id, Client: c.cfg.Name, Weight: r.weight, Priority: r.priority, Label: r.label,
		Ttl: optional(r.ttl), MaxHold: optional(r.maxHold),
	}
	orElse(&r.ttl, defaultTTL)
	a := admission{operation: operation{name: "AcquireSlot", wait: within(r.wait)}}
	if err := c.identify(&a.operation, &req.SlotId); err != nil {
		return nil, err
	}
	var res *govnodev1.AcquireSlotResponse
	err := a.ask(ctx, c, func(e *errand, wait *durationpb.Duration) (granted, error) {
		var err error
		req.Wait = wait
		res, err = e.acquireSlot(req)
		return granted{res.GetOutcome(), res.GetTtl().AsDuration()}, err
	})
	if err != nil {
		if a.drawn != nil && a.mayHold(err) {
			c.cleanUp(farewell, func(ctx context.Context) error { return c.abandonSlot(ctx, req) })
		}
		return nil, err
	}
	if res.GetOutcome() != Admitted {
		return nil, &Refused{Outcome: res.GetOutcome(), Reason: res.GetReason(), RetryAfter: res.GetRetryAfter().AsDuration()}
	}
	held := heldRef{pool: pool, id: req.GetSlotId(), token: res.GetToken()}
	s := &Slot{c: c, pressure: pressureOf(res.GetPressure()), Lease: &Lease{}}
	s.describe(ctx, held, r.ttl, r.cancelOnLost)
	if err := c.leases.hold(s.Lease, &a); err != nil {
		c.cleanUp(farewell, func(ctx context.Context) error { return c.releaseOne(ctx, held) })
		return nil, err
	}
	return s, nil
}

// Pool returns the name of the pool.
func (s *Slot) Pool() string { return s.ref.pool }

// ID returns the id of the slot.
func (s *Slot) ID() string { return s.ref.id }

// Token returns the fencing token: unique and rising in its pool for ever.
func (s *Slot) Token() uint64 { return s.ref.token }

// Pressure tells how full the pool was when the slot was granted.
func (s *Slot) Pressure() Pressure { return s.pressure }

// Release gives the slot back; it takes 5 seconds at most. Whether it is
// released once or several times makes no difference. It returns ErrLeaseLost
// if the slot was no longer held. If no node answers, the slot is free when
// its lease has run out, since it is renewed no longer.
func (s *Slot) Release() error {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	return s.ReleaseContext(ctx)
}

// ReleaseContext is Release, bounded by ctx instead of 5 seconds.
func (s *Slot) ReleaseContext(ctx context.Context) error {
	if err := s.release.take(ctx, 0); err != nil {
		return &Unknown{Operation: "ReleaseSlot", ID: s.ID(), Err: err}
	}
	defer s.release.leave()
	if s.released {
		return s.result
	}
	if goOn, err := s.c.leases.giveBackOne(ctx, s.Lease, 0); !goOn {
		return err
	}
	defer s.c.leases.gaveBack(s.Lease)
	req := &govnodev1.ReleaseSlotRequest{Pool: s.Pool(), SlotId: s.ID(), Client: s.c.cfg.Name, Token: s.Token()}
	res, err := send(ctx, s.c, operation{name: "ReleaseSlot", id: s.ID(), farewell: true}, func(e *errand) (*govnodev1.ReleaseSlotResponse, error) {
		return e.releaseSlot(req)
	})
	if err != nil {
		return err
	}
	s.released = true
	if o := res.GetOutcome(); !wasReleased(o) {
		s.result = fmt.Errorf("client: slot %s of %s: %w", s.ID(), s.Pool(), &Refused{Outcome: o, Reason: endedBefore})
	}
	return s.result
}

// abandonSlot gives back what a request may have been granted whose caller
// does not wait for the answer any more.
func (c *Client) abandonSlot(ctx context.Context, req *govnodev1.AcquireSlotRequest) error {
	req.Wait = durationpb.New(time.Millisecond)
	res, err := send(ctx, c, operation{name: "AcquireSlot", id: req.GetSlotId(), farewell: true}, func(e *errand) (*govnodev1.AcquireSlotResponse, error) {
		return e.acquireSlot(req)
	})
	if err != nil || res.GetOutcome() != Admitted {
		return err
	}
	return c.releaseOne(ctx, heldRef{pool: req.GetPool(), id: req.GetSlotId(), token: res.GetToken()})
}

func optional(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
