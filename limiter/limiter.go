package limiter

import (
	"cmp"
	"math"
	"slices"
	"time"
	"unique"
)

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
	Claim     bool // handed to a waiter who has not claimed it yet
}

// A Ticket is a place in the queue. It carries the limit under which it was
// asked for, since two versions of a policy may share a pool.
type Ticket struct {
	Holder   string
	Label    unique.Handle[string]
	Until    time.Duration // the end of the wait
	Seen     time.Duration // when the waiter was last heard of
	Weight   int32
	Slots    int32 // 0: the pool's own Slots
	Priority int32
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

	// Derived, see Index. soonest is no later than the first instant at which
	// Settle would change the pool; 0 means not known, which costs one look.
	// used is the sum of the weights of the leases.
	soonest time.Duration
	used    int32
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

// Clone returns a copy that shares nothing with p.
func (p *Pool) Clone() *Pool {
	c := *p
	c.Leases = slices.Clone(p.Leases)
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
func (p *Pool) InUse() int32 { return p.used }

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

// hand turns tickets into leases while they fit, the first in the queue first.
// One that does not fit is waited for: nobody overtakes it under the same limit
// or a lower one. Under a higher limit, that of another version of the policy,
// there is room that it could not have.
func (p *Pool) hand(now time.Duration) {
	blocked := int32(0) // the highest limit under which somebody is waited for
	left := 0
	for i := range p.Queue {
		t := &p.Queue[i]
		if limit := p.limit(t.Slots); limit > blocked {
			if p.used+t.Weight <= limit {
				p.grant(Lease{
					Holder: t.Holder, Label: t.Label, Since: now, Expires: now + ClaimTTL,
					Weight: t.Weight, Claim: true,
				})
				continue
			}
			blocked = limit
		}
		if left < i {
			p.Queue[left] = *t
		}
		left++
	}
	clear(p.Queue[left:])
	p.Queue = p.Queue[:left]
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
	p.used += l.Weight
	p.sooner(l.Expires)
	return l.Token
}

// drop removes leases, and reports whether there were any.
func (p *Pool) drop(over func(*Lease) bool) bool {
	had := len(p.Leases)
	p.Leases = slices.DeleteFunc(p.Leases, func(l Lease) bool {
		if !over(&l) {
			return false
		}
		p.used -= l.Weight
		return true
	})
	return len(p.Leases) < had
}

// Try tells how Acquire would end, and changes nothing but the settling.
func (p *Pool) Try(now time.Duration, r Request) Admission {
	p.Settle(now)
	limit := p.limit(r.Slots)
	// Nobody overtakes: a request passes by those alone whose priority is below
	// its own, or whose limit is.
	first := !slices.ContainsFunc(p.Queue, func(t Ticket) bool {
		return t.Priority >= r.Priority && p.limit(t.Slots) >= limit
	})
	switch {
	case first && p.InUse()+r.Weight <= limit:
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
		t := Ticket{
			Holder: r.Holder, Label: r.Label, Until: r.Until, Seen: now,
			Weight: r.Weight, Slots: r.Slots, Priority: r.Priority,
		}
		// Behind all of the same or a higher priority.
		i, _ := slices.BinarySearchFunc(p.Queue, t, func(a, b Ticket) int {
			if a.Priority >= b.Priority {
				return -1
			}
			return 1
		})
		p.Queue = slices.Insert(p.Queue, i, t)
		p.sooner(t.Lapses())
		position = i + 1
	}
	return a, token, position
}

// Claim is what a waiter does when its turn may have come: Granted with the
// token if a slot was handed to it, Queued with its position if it still
// waits, Gone if it has lost its place. The token is a new one, so that tokens
// stand in the order in which holders were admitted.
func (p *Pool) Claim(now time.Duration, holder string) (a Admission, token uint64, position int) {
	p.Settle(now)
	if i := slices.IndexFunc(p.Leases, func(l Lease) bool { return l.Claim && l.Holder == holder }); i >= 0 {
		l := p.Leases[i]
		p.Leases = slices.Delete(p.Leases, i, i+1)
		p.used -= l.Weight
		l.Claim, l.Since = false, now
		return Granted, p.grant(l), 0
	}
	if i := p.ticket(holder); i >= 0 {
		return Queued, 0, i + 1
	}
	return Gone, 0, 0
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

// Hear notes that the waiter is still there, and reports whether it waits.
func (p *Pool) Hear(now time.Duration, holder string) bool {
	p.Settle(now)
	i := p.ticket(holder)
	if i >= 0 {
		p.Queue[i].Seen = now
	}
	return i >= 0
}

// Release frees the slot of token, hands the room on in the same step, and
// reports whether the lease was still there.
func (p *Pool) Release(now time.Duration, token uint64) bool {
	p.Settle(now)
	i := p.find(token)
	if i < 0 {
		return false
	}
	p.used -= p.Leases[i].Weight
	p.Leases = slices.Delete(p.Leases, i, i+1)
	p.hand(now)
	return true
}

// Cancel gives up whatever the holder has: its place in the queue, or a slot
// that it has not claimed.
func (p *Pool) Cancel(now time.Duration, holder string) bool {
	p.Settle(now)
	had := false
	if i := p.ticket(holder); i >= 0 {
		p.Queue, had = slices.Delete(p.Queue, i, i+1), true
	}
	if p.drop(func(l *Lease) bool { return l.Claim && l.Holder == holder }) {
		had = true
	}
	if had {
		p.hand(now)
	}
	return had
}

// SetSlots changes the pool's own limit. Lowering it revokes nothing and grants
// nothing until the leases are below it; who waits for more than there will
// ever be has lost its place. Raising it hands on at once.
func (p *Pool) SetSlots(now time.Duration, slots int32) {
	p.Settle(now)
	p.Slots = slots
	p.Queue = slices.DeleteFunc(p.Queue, func(t Ticket) bool { return t.Slots == 0 && t.Weight > slots })
	p.hand(now)
}

// Clear ends all leases and tickets.
func (p *Pool) Clear() { p.Leases, p.Queue, p.soonest, p.used = nil, nil, 0, 0 }

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

func (p *Pool) ticket(holder string) int {
	return slices.IndexFunc(p.Queue, func(t Ticket) bool { return t.Holder == holder })
}

// Index computes what is derived, after a pool was put together field by field.
func (p *Pool) Index() {
	p.soonest, p.used = p.next(), 0
	for i := range p.Leases {
		p.used += p.Leases[i].Weight
	}
}
