package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// The leases that a client holds: they are renewed, all together, until they
// are given back or lost.

const (
	renewMost = 256 // leases in one request
	// The share of a lease that its holder gives up, so that its clock may
	// run slower than the service's by as much.
	leaseMargin = 100
)

// A State is what the client knows of a lease.
type State int

const (
	Held   State = iota // the last renewal was answered
	AtRisk              // a renewal has failed; the lease has not run out
	Lost                // for good
	Ended               // given back by its holder
)

func (s State) String() string {
	return [...]string{"held", "at risk", "lost", "ended"}[s]
}

// A Loss tells which lease was lost.
type Loss struct {
	Pool    string // empty for a call
	Session string // empty for a slot
	ID      string // of the slot or call
	Token   uint64
	Reason  string
}

// A heldRef names what a lease is of: a slot, or those of a call.
type heldRef struct {
	pool    string // empty for a call
	session string // empty for a slot
	secret  string // of the session, if its calls bring one
	id      string
	token   uint64 // of a call: any of its grants stands for it
}

// A Lease is what a Slot and an OpenCall have in common: it is held for a TTL,
// renewed while its holder lives, and may be lost. It is safe for concurrent
// use.
type Lease struct {
	all *leases
	ref heldRef
	ttl time.Duration // that renewals ask for
	ctx context.Context
	end context.CancelCauseFunc // of ctx; nil unless it ends with the lease

	// Guarded by all.mu.
	deadline  time.Time
	state     State
	signal    *Signal       // with the last renewal
	lost      chan struct{} // nil until somebody asks for it
	renewing  bool          // a request is under way
	ended     bool          // being released or ended: no loss is told any more
	givenBack bool          // by Close

	result error // what came of that; read once all.back is closed
}

// State tells whether the lease is held, at risk, lost, or was given back.
func (l *Lease) State() State {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	switch {
	case l.state == Lost:
		return Lost
	case l.ended:
		return Ended
	case !l.all.c.cfg.Now().Before(l.deadline):
		return Lost // whether it has been noticed or not
	}
	return l.state
}

// Lost is closed when the lease is lost.
func (l *Lease) Lost() <-chan struct{} {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	if l.lost == nil {
		l.lost = make(chan struct{})
		if l.state == Lost {
			close(l.lost)
		}
	}
	return l.lost
}

// Deadline returns until when the lease lasts if no renewal succeeds, on the
// clock of this process.
func (l *Lease) Deadline() time.Time {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	return l.deadline
}

// Context returns the context that the lease was asked for with. With
// CancelOnLost it also ends, with ErrLeaseLost as its cause, when the lease is
// lost, and when it is given back.
func (l *Lease) Context() context.Context { return l.ctx }

// leases renews what a client holds.
type leases struct {
	c    *Client
	wake chan struct{}

	mu     sync.Mutex
	held   map[*Lease]struct{}
	due    map[time.Duration]time.Time // when leases of that TTL are renewed next
	next   time.Time                   // when turn is next
	runs   bool
	closed bool

	back chan struct{} // closed when Close has given everything back, or tried to
}

func newLeases(c *Client) *leases {
	return &leases{
		c: c, wake: make(chan struct{}, 1), held: make(map[*Lease]struct{}), due: make(map[time.Duration]time.Time), back: make(chan struct{}),
	}
}

// describe fills in a lease that nothing is done about yet.
func (l *Lease) describe(ctx context.Context, ref heldRef, ttl time.Duration, cancelOnLost bool) {
	l.ref, l.ttl, l.ctx = ref, ttl, ctx
	if cancelOnLost {
		l.ctx, l.end = context.WithCancelCause(ctx)
	}
}

// endContext ends the context of a lease that wants that.
func (l *Lease) endContext(why error) {
	if l.end != nil {
		l.end(why)
	}
}

// hold begins to renew a lease that was admitted. It must be called within an
// operation.
func (k *leases) hold(l *Lease, a *admission) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	l.all = k
	if k.closed {
		l.endContext(ErrClosed)
		return ErrClosed
	}
	l.deadline = a.sent.Add(a.ttl - a.ttl/leaseMargin)
	k.held[l] = struct{}{}
	due, first := a.sent.Add(a.ttl/3), k.due[l.ttl]
	if first.IsZero() || due.Before(first) {
		k.due[l.ttl], first = due, due
	}
	if !k.runs {
		k.runs = true
		k.c.work.Go(k.run)
	}
	if earlier(l.deadline, first).Before(k.next) {
		k.poke()
	}
	return nil
}

func (k *leases) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// run renews what is due and notices what has run out, until the client is
// closed.
func (k *leases) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-k.wake:
		case <-k.c.ctx.Done():
			return
		}
		timer.Reset(k.turn())
	}
}

// turn does what is due now, and returns in how long something is next.
func (k *leases) turn() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.c.cfg.Now()
	batches := make(map[time.Duration][]*Lease)
	ttls := make(map[time.Duration]bool)
	next := now.Add(time.Hour)
	for l := range k.held {
		if !now.Before(l.deadline) {
			k.lose(l, "no renewal was answered before the lease ran out")
			continue
		}
		ttls[l.ttl] = true
		next = earlier(next, l.deadline)
		if !l.renewing && !now.Before(k.due[l.ttl]) {
			batches[l.ttl] = append(batches[l.ttl], l)
		}
	}
	for ttl, due := range k.due {
		switch {
		case !ttls[ttl]:
			delete(k.due, ttl)
			continue
		case !now.Before(due):
			due = now.Add(ttl / 3)
			k.due[ttl] = due
		}
		next = earlier(next, due)
	}
	for ttl, batch := range batches {
		for len(batch) > 0 {
			n := min(len(batch), renewMost)
			part := batch[:n]
			batch = batch[n:]
			for _, l := range part {
				l.renewing = true
			}
			k.c.work.Go(func() { k.renew(part, ttl) })
		}
	}
	k.next = next
	return next.Sub(now)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// renew sends one request. If it is not answered the next turn tries again,
// soon; that has a pace of its own and is outside of the budget, since what is
// not renewed is lost.
func (k *leases) renew(part []*Lease, ttl time.Duration) {
	req := &govnodev1.RenewSlotsRequest{Client: k.c.cfg.Name, Ttl: durationpb.New(ttl)}
	for _, l := range part {
		req.Slots = append(req.Slots, &govnodev1.SlotRef{Pool: l.ref.pool, SessionId: l.ref.session, SlotId: l.ref.id, Token: l.ref.token, SessionToken: l.ref.secret})
	}
	sent := k.c.cfg.Now()
	n := k.c.route(sent)
	end := time.Now().Add(max(ttl/6, 100*time.Millisecond))
	e := errands.Get().(*errand)
	e.c, e.caller, e.end, e.node, e.until = k.c, k.c.ctx, end, n, end
	defer e.release()
	res, err := e.renewSlots(req)
	if err == nil && len(res.GetResults()) != len(part) {
		err = fmt.Errorf("client: %d leases were renewed and %d answers came", len(part), len(res.GetResults()))
	}
	if err != nil && k.c.ctx.Err() == nil {
		if !errors.Is(err, errNoToken) {
			k.c.routes.failed(n, judge(err).reason == "")
		}
		k.c.cfg.Logger.Warn("govnode: leases at risk: a renewal failed", "leases", len(part), "node", n.address, "error", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.c.cfg.Now()
	soon := err != nil
	for i, l := range part {
		l.renewing = false
		switch {
		case l.state == Lost:
		case !now.Before(l.deadline):
			k.lose(l, "the answer to its renewal came when it had run out") // State may have said so already
		case err != nil:
			l.state = AtRisk
		case res.GetResults()[i].GetOutcome() == govnodev1.Outcome_OUTCOME_RENEWED:
			l.state = Held
			left := res.GetResults()[i].GetTtl().AsDuration()
			l.deadline = sent.Add(left - left/leaseMargin)
			l.signal = res.GetResults()[i].GetSignal()
		case res.GetResults()[i].GetOutcome() == govnodev1.Outcome_OUTCOME_UNSPECIFIED: // the node could not tell
			l.state, soon = AtRisk, true
		default:
			k.lose(l, "the service holds it no longer: "+res.GetResults()[i].GetOutcome().String())
		}
	}
	if soon {
		again := now.Add(time.Duration(k.c.cfg.Random() * float64(min(ttl/12, time.Second))))
		k.due[ttl] = earlier(k.due[ttl], again)
	}
	k.poke()
}

// lose ends a lease. k.mu must be held.
func (k *leases) lose(l *Lease, reason string) {
	delete(k.held, l)
	if l.ended {
		return // it is being given back: that it is gone is what was wanted
	}
	l.state = Lost
	l.endContext(ErrLeaseLost) // before it is told, so that who hears of it finds it ended
	if l.lost != nil {
		close(l.lost)
	}
	loss := Loss{Pool: l.ref.pool, Session: l.ref.session, ID: l.ref.id, Token: l.ref.token, Reason: reason}
	k.c.cfg.Logger.Warn("govnode: lease lost", "pool", loss.Pool, "session", loss.Session, "id", loss.ID, "reason", reason)
	if k.c.cfg.OnLost != nil {
		go k.c.cfg.OnLost(loss)
	}
}
