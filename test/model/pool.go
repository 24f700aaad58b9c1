package model

import (
	"math"
	"slices"
	"time"

	"example.com/govnode/session"
)

// A pool is a number of slots, who holds them, and who waits, in order.
type pool struct {
	put                        bool // by PutPool; else it is that of a policy
	slots, threshold, maxQueue int32
	leases                     []lease // in the order of their tokens
	queue                      []ticket
	last                       uint64        // the latest token
	per, kept                  time.Duration // of a rate
}

type lease struct {
	ticket    // who holds it; of a claim, as he waited
	token     uint64
	since     time.Duration
	expires   time.Duration
	holdUntil time.Duration // renewals end here; 0: nowhere
	claim     bool          // handed to a waiter who did not claim it yet
}

type ticket struct {
	holder, label    string
	weight, priority int32
	slots            int32 // the limit that it brings; 0: the pool's
	until, seen      time.Duration
}

// A request is a ticket of somebody who was not admitted yet.
type request struct {
	ticket
	room               int32 // how many may wait
	expires, holdUntil time.Duration
}

type answer uint8

const (
	refused answer = iota
	granted
	queued
	queueFull
	gone
)

func (t *ticket) lapses() time.Duration { return min(t.until, t.seen+ticketTTL) }

func (p *pool) limit(t *ticket) int32 {
	if t.slots > 0 {
		return t.slots
	}
	return p.slots
}

func (p *pool) inUse() int32 { return int32(min(p.weights(), math.MaxInt32)) }

func (p *pool) weights() (n int64) {
	for _, l := range p.leases {
		n += int64(l.weight)
	}
	return n
}

func (p *pool) fits(weight, limit int32) bool { return p.weights()+int64(weight) <= int64(limit) }

// bound is what may be in use whatever the limit of a request: who was handed a
// slot must find room for it within his own limit when he claims it.
func (p *pool) bound() int32 {
	n := int32(math.MaxInt32)
	for _, l := range p.leases {
		if l.claim {
			n = min(n, p.limit(&l.ticket))
		}
	}
	return n
}

// next is when something here runs out.
func (p *pool) next() time.Duration {
	at := time.Duration(math.MaxInt64)
	for _, l := range p.leases {
		at = min(at, l.expires)
	}
	for _, t := range p.queue {
		at = min(at, t.lapses())
	}
	return at
}

// settle takes away what has run out, instant by instant, and hands the room on
// at the instant at which it became free.
func (p *pool) settle(now time.Duration) {
	for at := p.next(); at <= now; at = p.next() {
		p.leases = slices.DeleteFunc(p.leases, func(l lease) bool { return l.expires <= at })
		p.queue = slices.DeleteFunc(p.queue, func(t ticket) bool { return t.lapses() <= at })
		p.hand(at)
	}
}

// hand gives room to those who wait, in their order. Nobody overtakes one who
// does not fit, but under a higher limit, which gives room that the other could
// not have; and nobody at all one who only waits until a claim is made.
func (p *pool) hand(now time.Duration) {
	blocked := int32(0)
	var left []ticket
	for _, t := range p.queue {
		limit := p.limit(&t)
		switch {
		case limit <= blocked:
			left = append(left, t)
		case p.fits(t.weight, min(limit, p.bound())):
			p.grant(lease{ticket: t, since: now, expires: now + claimTTL, claim: true})
		case p.fits(t.weight, limit):
			blocked, left = math.MaxInt32, append(left, t)
		default:
			blocked, left = limit, append(left, t)
		}
	}
	p.queue = left
}

func (p *pool) grant(l lease) uint64 {
	p.last++
	l.token = p.last
	p.leases = append(p.leases, l)
	return l.token
}

// try says what acquire would.
func (p *pool) try(now time.Duration, q request) answer {
	limit := p.limit(&q.ticket)
	for _, t := range p.queue {
		if t.priority >= q.priority && (p.limit(&t) >= limit || p.fits(t.weight, p.limit(&t))) {
			limit = 0 // it would overtake
		}
	}
	switch {
	case p.fits(q.weight, min(limit, p.bound())):
		return granted
	case q.until <= now || q.weight > p.limit(&q.ticket):
		return refused
	case len(p.queue) >= int(q.room):
		return queueFull
	}
	return queued
}

func (p *pool) acquire(now time.Duration, q request) (a answer, token uint64, position int) {
	a = p.try(now, q)
	switch a {
	case granted:
		q.slots, q.priority, q.until = 0, 0, 0
		token = p.grant(lease{ticket: q.ticket, since: now, expires: q.expires, holdUntil: q.holdUntil})
	case queued:
		q.seen = now
		position = len(p.queue)
		for position > 0 && p.queue[position-1].priority < q.priority {
			position--
		}
		p.queue = slices.Insert(p.queue, position, q.ticket)
		position++
	}
	return a, token, position
}

// claim makes a lease with a new token of what was handed to a waiter.
func (p *pool) claim(now time.Duration, holder string) (a answer, token uint64, position int) {
	for i, l := range p.leases {
		if l.claim && l.holder == holder {
			p.leases = slices.Delete(p.leases, i, i+1)
			l.claim, l.since = false, now
			token = p.grant(l)
			p.hand(now) // to those who waited for the claim
			return granted, token, 0
		}
	}
	if i := p.waits(holder); i >= 0 {
		return queued, 0, i + 1
	}
	return gone, 0, 0
}

func (p *pool) waits(holder string) int {
	return slices.IndexFunc(p.queue, func(t ticket) bool { return t.holder == holder })
}

// hear notes that a waiter is still there.
func (p *pool) hear(now time.Duration, holder string) bool {
	i := p.waits(holder)
	if i >= 0 {
		p.queue[i].seen = now
	}
	return i >= 0
}

func (p *pool) lease(token uint64) *lease {
	for i := range p.leases {
		if p.leases[i].token == token {
			return &p.leases[i]
		}
	}
	return nil
}

func (p *pool) release(now time.Duration, token uint64) bool {
	if p.lease(token) == nil {
		return false
	}
	p.leases = slices.DeleteFunc(p.leases, func(l lease) bool { return l.token == token })
	p.hand(now)
	return true
}

// heard is when a waiter was last heard of; he may have a slot that he has not claimed.
func (p *pool) heard(holder string) time.Duration {
	for _, l := range p.leases {
		if l.claim && l.holder == holder {
			return l.seen
		}
	}
	if i := p.waits(holder); i >= 0 {
		return p.queue[i].seen
	}
	return 0
}

// cancel gives up a place in the queue, or a slot that was not claimed.
func (p *pool) cancel(now time.Duration, holder string) {
	n := len(p.queue) + len(p.leases)
	p.queue = slices.DeleteFunc(p.queue, func(t ticket) bool { return t.holder == holder })
	p.leases = slices.DeleteFunc(p.leases, func(l lease) bool { return l.claim && l.holder == holder })
	if len(p.queue)+len(p.leases) < n {
		p.hand(now)
	}
}

// setSlots changes the limit. It revokes nothing that is held. Claims that have
// no room any more go back to the head of their priority, the latest first; who
// asks for more than there is has lost his place.
func (p *pool) setSlots(now time.Duration, slots int32) {
	p.slots = slots
	for i := len(p.leases) - 1; i >= 0; i-- {
		l := p.leases[i]
		if !l.claim || p.inUse() <= p.limit(&l.ticket) {
			continue
		}
		p.leases = slices.Delete(p.leases, i, i+1)
		if l.lapses() > now {
			first := slices.IndexFunc(p.queue, func(t ticket) bool { return t.priority <= l.priority })
			if first < 0 {
				first = len(p.queue)
			}
			p.queue = slices.Insert(p.queue, first, l.ticket)
		}
	}
	p.queue = slices.DeleteFunc(p.queue, func(t ticket) bool { return t.slots == 0 && t.weight > slots })
	p.hand(now)
}

// makePool returns the pool, made if there is none.
func (s *space) makePool(id string) *pool {
	if s.pools[id] == nil {
		s.pools[id] = &pool{last: s.Generation << 40}
	}
	return s.pools[id]
}

func (s *space) putPool(c *session.PutPool, r *session.Result) {
	s.request(c.By, r, func() bool {
		fresh := s.pools[c.Pool] == nil
		p := s.makePool(c.Pool)
		if fresh {
			p.last = max(p.last, s.tokenFloor)
		}
		p.put, p.threshold, p.maxQueue = true, c.Threshold, c.Queue
		p.setSlots(s.Now, c.Slots)
		return true
	})
	if r.Code != session.Done {
		return
	}
	s.afterPool(c.Pool, r)
}

func (s *space) afterPool(id string, r *session.Result) {
	r.After = &session.After{Now: s.Now}
	if p := s.pools[id]; p != nil {
		r.After.Pool = &session.PoolCounts{
			Slots: p.slots, Threshold: p.threshold, MaxQueue: p.maxQueue,
			InUse: p.inUse(), Waiting: int32(len(p.queue)), Last: p.last,
			Per: p.per, Free: p.free(s.Now, 1, 0, 0),
		}
	}
}

func (s *space) deletePool(c *session.DeletePool, r *session.Result) bool {
	p := s.pools[c.Pool]
	switch {
	case p == nil:
		r.Code = session.NotFound
	case !c.Force && len(p.leases)+len(p.queue) > 0:
		r.Code = session.PoolInUse
	default:
		s.tokenFloor = max(s.tokenFloor, p.last+1)
		delete(s.pools, c.Pool)
	}
	return r.Code == session.Done
}
