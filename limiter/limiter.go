package limiter

import (
	"cmp"
	"math"
	"slices"
	"time"
	"unique"

	"example.com/govnode/internal/seeded"
)

// A pool: who holds its slots, and how they are taken and come free. Those who
// wait stand in queue.go.

const (
	// ClaimTTL is how long a slot that was handed to a waiter stays his
	// before he has claimed it.
	ClaimTTL = 5 * time.Second
	// TicketTTL is how long a waiter keeps his place without being renewed, so
	// that the waiters of a crashed process are gone soon.
	TicketTTL = 10 * time.Second
)

// never is later than every deadline.
const never = time.Duration(math.MaxInt64)

// A Lease is an occupied slot, or several of them if Weight is above 1.
type Lease struct {
	Holder    string                // unique among the leases and tickets of a pool
	Label     unique.Handle[string] // shown to people; means nothing here
	Token     uint64                // fencing token: rises with every grant of the pool, for ever
	Since     time.Duration         // when it was granted
	Expires   time.Duration         // the first instant at which it is no longer there
	HoldUntil time.Duration         // renewals end here; 0 means that they have no end
	Weight    int32
	Claim     bool   // handed to a waiter who has not claimed it yet
	Place     *Place // of a claim: where it goes back to if it is taken back; immutable
}

// A Place is what a ticket has that a lease has not.
type Place struct {
	Until    time.Duration // the end of the wait
	Seen     time.Duration // when the waiter was last heard of
	Slots    int32         // the limit that it was asked for under; 0: the pool's own
	Priority int32
}

// A Ticket is a place in the queue. It carries the limit under which it was
// asked for, since two versions of a policy may share a pool.
type Ticket struct {
	Holder string
	Label  unique.Handle[string]
	Weight int32
	Place
}

// Lapses returns the first instant at which the ticket is no longer there.
func (t Ticket) Lapses() time.Duration { return min(t.Until, t.Seen+TicketTTL) }

// A Pool is a bounded set of leases and the queue of those who wait for one.
// Its methods change it in place: whoever shares pools between readers clones
// them first.
type Pool struct {
	Leases []Lease  // by Token, rising
	Queue  []Ticket // by Priority, falling; then first come first served
	Last   uint64   // token of the latest grant
	// Slots bounds requests and tickets that bring no limit of their own.
	Slots int32
	// Per makes a rate of the pool: after it a slot that was spent returns by
	// itself. 0 means that slots are given back. See rate.go.
	Per  time.Duration
	Kept time.Duration // a shorter Per waits until then; see Under

	// Derived, see Index. soonest is no later than the first instant at which
	// Settle would change the pool; 0 means not known, which costs one look.
	// used is the sum of the weights of the leases, claims how many of them are
	// not claimed yet.
	soonest time.Duration
	used    int64
	claims  int32
}

// A Request asks for a slot.
type Request struct {
	Holder    string
	Label     unique.Handle[string]
	Weight    int32 // at least 1
	Slots     int32 // the limit; 0 means the pool's own
	Queue     int32 // how many may wait
	Expires   time.Duration
	HoldUntil time.Duration
	Until     time.Duration // how long to wait; 0 means not at all
	Priority  int32
}

// Admission says how a request ended.
type Admission uint8

const (
	// Refused: no room, and the request does not wait.
	Refused Admission = iota
	// Granted: the holder has a lease.
	Granted
	// Queued: the holder has a place in the queue.
	Queued
	// QueueFull: no room, neither in the pool nor in its queue.
	QueueFull
	// Gone: the place or the lease that was claimed is no longer there.
	Gone
)

// Clone returns a copy that shares nothing with p, with room for one lease more: most are
// made for a grant.
func (p *Pool) Clone() *Pool {
	c := *p
	c.Leases = append(make([]Lease, 0, len(p.Leases)+1), p.Leases...)
	c.Queue = slices.Clone(p.Queue)
	return &c
}

// Due returns no later than the first instant at which Settle would change the
// pool; ok is false if it never will.
func (p *Pool) Due() (at time.Duration, ok bool) {
	if len(p.Leases) == 0 && len(p.Queue) == 0 {
		return 0, false
	}
	if p.soonest == 0 {
		return p.next(), true
	}
	return p.soonest, true
}

// InUse returns the sum of the weights of all leases. It is the value of now
// only after Settle.
func (p *Pool) InUse() int32 { return int32(min(p.used, math.MaxInt32)) }

// Settle brings the pool to now: leases and tickets that have run out are gone,
// and room that became free was handed to the head of the queue at the instant
// at which it became free.
func (p *Pool) Settle(now time.Duration) {
	if p.soonest > now {
		return
	}
	for {
		at := p.next()
		if at > now {
			p.soonest = at
			return
		}
		p.drop(func(l *Lease) bool { return l.Expires <= at })
		p.Queue = slices.DeleteFunc(p.Queue, func(t Ticket) bool { return t.Lapses() <= at })
		p.hand(at)
	}
}

// Next returns the exact instant of the next event: when a lease or a place in
// the queue runs out. It is far in the future if there is none.
func (p *Pool) Next() time.Duration { return p.next() }

func (p *Pool) next() time.Duration {
	at := never
	for i := range p.Leases {
		at = min(at, p.Leases[i].Expires)
	}
	for i := range p.Queue {
		at = min(at, p.Queue[i].Lapses())
	}
	return at
}

// sooner notes that something will happen at that time.
func (p *Pool) sooner(at time.Duration) {
	if p.soonest != 0 {
		p.soonest = min(p.soonest, at)
	}
}

func (p *Pool) limit(slots int32) int32 {
	if slots > 0 {
		return slots
	}
	return p.Slots
}

// grant appends a lease with the next token.
func (p *Pool) grant(l Lease) uint64 {
	p.Last++
	l.Token = p.Last
	p.Leases = append(p.Leases, l)
	p.count(l, 1)
	p.sooner(l.Expires)
	return l.Token
}

// count adds a lease to what is derived, or takes it away again.
func (p *Pool) count(l Lease, by int32) {
	p.used += int64(by) * int64(l.Weight)
	if l.Claim {
		p.claims += by
	}
}

// drop removes leases, and reports whether there were any.
func (p *Pool) drop(over func(*Lease) bool) bool {
	had := len(p.Leases)
	p.Leases = slices.DeleteFunc(p.Leases, func(l Lease) bool {
		if !over(&l) {
			return false
		}
		p.count(l, -1)
		return true
	})
	return len(p.Leases) < had
}

// fits reports whether there is room for a weight under a limit.
func (p *Pool) fits(weight, limit int32) bool { return p.used+int64(weight) <= int64(limit) }

// Try tells how Acquire would end, and changes nothing but the settling.
func (p *Pool) Try(now time.Duration, r Request) Admission {
	p.Settle(now)
	limit := p.limit(r.Slots)
	// Nobody overtakes: a request passes by those alone whose priority is below
	// its own, or whose limit is and who have no room under it.
	first := !slices.ContainsFunc(p.Queue, func(t Ticket) bool {
		its := p.limit(t.Slots)
		return t.Priority >= r.Priority && (its >= limit || p.fits(t.Weight, its))
	})
	switch {
	case first && p.fits(r.Weight, min(limit, p.bound())) && p.mayHold():
		return Granted
	case seeded.On(seeded.OneTooMany) && first && p.used == int64(limit):
		return Granted
	case r.Until <= now || r.Weight > limit:
		return Refused
	case len(p.Queue) >= int(r.Queue):
		return QueueFull
	}
	return Queued
}

// Acquire asks for a slot on behalf of a holder that has none in this pool and
// does not wait for one. Granted returns the token of the lease; Queued the
// position, 1 being the head.
func (p *Pool) Acquire(now time.Duration, r Request) (a Admission, token uint64, position int) {
	switch a = p.Try(now, r); a {
	case Granted:
		token = p.grant(Lease{
			Holder: r.Holder, Label: r.Label, Since: now, Expires: r.Expires, HoldUntil: r.HoldUntil,
			Weight: r.Weight,
		})
	case Queued:
		// Behind all of the same or a higher priority.
		position = p.enqueue(Ticket{r.Holder, r.Label, r.Weight, Place{r.Until, now, r.Slots, r.Priority}}, false)
	}
	return a, token, position
}

// Extend sets when the lease of token ends, and when its renewals end, and
// reports whether it is still there. It never resurrects a lease.
func (p *Pool) Extend(now time.Duration, token uint64, expires, holdUntil time.Duration) bool {
	p.Settle(now)
	l := p.lease(token)
	if l == nil {
		return false
	}
	l.Expires, l.HoldUntil = expires, holdUntil
	p.sooner(expires)
	return true
}

// Renew lets the lease of token end at expires, or where its renewals end if
// that comes first. It returns the new end; ok is false if the lease is gone.
func (p *Pool) Renew(now time.Duration, token uint64, expires time.Duration) (end time.Duration, ok bool) {
	p.Settle(now)
	l := p.lease(token)
	if l == nil {
		return 0, false
	}
	if l.HoldUntil > 0 {
		expires = min(expires, l.HoldUntil)
	}
	// A renewal with a shorter TTL than the last one may end the lease sooner;
	// that is its caller's to say.
	l.Expires = expires
	p.sooner(expires)
	return expires, true
}

// Release frees the slot of token, hands the room on in the same step, and
// reports whether the lease was still there.
func (p *Pool) Release(now time.Duration, token uint64) bool {
	p.Settle(now)
	i := p.find(token)
	if i < 0 {
		return false
	}
	p.removeLease(i)
	p.hand(now)
	return true
}

func (p *Pool) removeLease(i int) {
	p.count(p.Leases[i], -1)
	p.Leases = slices.Delete(p.Leases, i, i+1)
}

// Clear ends all leases and tickets.
func (p *Pool) Clear() { p.Leases, p.Queue, p.soonest, p.used, p.claims = nil, nil, 0, 0, 0 }

// RaiseToken makes all later tokens larger than floor.
func (p *Pool) RaiseToken(floor uint64) { p.Last = max(p.Last, floor) }

// Lease returns the lease of token, if it is there.
func (p *Pool) Lease(token uint64) (Lease, bool) {
	if l := p.lease(token); l != nil {
		return *l, true
	}
	return Lease{}, false
}

func (p *Pool) lease(token uint64) *Lease {
	if i := p.find(token); i >= 0 {
		return &p.Leases[i]
	}
	return nil
}

// find relies on the order of the leases: tokens only rise.
func (p *Pool) find(token uint64) int {
	i, ok := slices.BinarySearchFunc(p.Leases, token, func(l Lease, t uint64) int { return cmp.Compare(l.Token, t) })
	if !ok {
		return -1
	}
	return i
}

// Index computes what is derived, after a pool was put together field by field.
func (p *Pool) Index() {
	p.soonest, p.used, p.claims = p.next(), 0, 0
	for i := range p.Leases {
		p.count(p.Leases[i], 1)
	}
}
