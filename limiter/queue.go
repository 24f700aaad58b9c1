package limiter

import (
	"math"
	"slices"
	"time"

	"example.com/govnode/internal/seeded"
)

// Those who wait: how they get what becomes free, and when it is taken back.
//
// Everybody is admitted within his own limit, at the moment at which he is
// admitted: a waiter when he claims. Two things could come between the handing
// over of a slot and its claim. The limit of the pool is lowered: then what is
// above it is taken back (see SetSlots). Or others are admitted under a higher
// limit: then they wait for the claim (see bound).

// hand turns tickets into leases while they fit, the first in the queue first.
// One that does not fit is waited for: nobody overtakes it under the same limit
// or a lower one. Under a higher limit, that of another version of the policy,
// there is room that it could not have; but not while it waits for a claim
// alone.
func (p *Pool) hand(now time.Duration) {
	blocked := int32(0) // the highest limit under which somebody is waited for
	bound := p.bound()
	left := 0
	for i := range p.Queue {
		t := &p.Queue[i]
		if limit := p.limit(t.Slots); limit > blocked {
			if p.fits(t.Weight, min(limit, bound)) && p.mayHold() {
				bound = min(limit, bound)
				place := t.Place
				expires := now + ClaimTTL
				if seeded.On(seeded.ClaimStays) {
					expires = never
				}
				p.grant(Lease{
					Holder: t.Holder, Label: t.Label, Since: now, Expires: expires,
					Weight: t.Weight, Claim: true, Place: &place,
				})
				continue
			}
			if blocked = limit; p.fits(t.Weight, limit) {
				blocked = math.MaxInt32
			}
		}
		if left < i {
			p.Queue[left] = *t
		}
		left++
	}
	clear(p.Queue[left:])
	p.Queue = p.Queue[:left]
}

// bound returns how much may be in use whatever the limit of a grant is. Whoever
// was handed a slot claims it within his own limit: until then nothing is
// granted that goes beyond it.
func (p *Pool) bound() int32 {
	limit, left := int32(math.MaxInt32), p.claims
	for i := len(p.Leases) - 1; left > 0; i-- { // claims are among the latest
		if l := &p.Leases[i]; l.Claim {
			limit = min(limit, p.limit(l.Place.Slots))
			left--
		}
	}
	return limit
}

// enqueue puts a ticket behind all of its priority, or before them, and returns
// its position.
func (p *Pool) enqueue(t Ticket, before bool) int {
	i, _ := slices.BinarySearchFunc(p.Queue, t.Priority, func(o Ticket, priority int32) int {
		if o.Priority > priority || o.Priority == priority && !before {
			return -1
		}
		return 1
	})
	p.Queue = slices.Insert(p.Queue, i, t)
	p.sooner(t.Lapses())
	return i + 1
}

// Claim is what a waiter does when its turn may have come: Granted with the
// token if a slot was handed to it, Queued with its position if it still
// waits, Gone if it has lost its place. The token is a new one, so that tokens
// stand in the order in which holders were admitted.
func (p *Pool) Claim(now time.Duration, holder string) (a Admission, token uint64, position int) {
	p.Settle(now)
	if i := slices.IndexFunc(p.Leases, func(l Lease) bool { return l.Claim && l.Holder == holder }); i >= 0 {
		l := p.Leases[i]
		p.removeLease(i)
		l.Claim, l.Place, l.Since = false, nil, now
		token = p.grant(l)
		p.hand(now) // to those who waited for the claim alone
		return Granted, token, 0
	}
	if i := p.ticket(holder); i >= 0 {
		return Queued, 0, i + 1
	}
	return Gone, 0, 0
}

// Claimable reports whether a slot was handed to the holder, who has not claimed
// it yet.
func (p *Pool) Claimable(holder string) bool {
	return slices.ContainsFunc(p.Leases, func(l Lease) bool { return l.Claim && l.Holder == holder })
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

// Heard returns when the waiter was last heard of, be it before a slot was handed to it that
// it has not claimed; 0 if it waits no more.
func (p *Pool) Heard(now time.Duration, holder string) time.Duration {
	if i := p.ticket(holder); i >= 0 && p.Queue[i].Lapses() > now {
		return p.Queue[i].Seen
	}
	for i := range p.Leases {
		if l := &p.Leases[i]; l.Claim && l.Holder == holder && l.Expires > now {
			return l.Place.Seen
		}
	}
	return 0
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

// SetSlots changes the pool's own limit. Lowering it revokes nothing that is
// held and grants nothing until the leases are below it; what was handed over
// and not claimed is taken back; who waits for more than there will ever be has
// lost its place. Raising it hands on at once.
func (p *Pool) SetSlots(now time.Duration, slots int32) {
	p.Settle(now)
	p.Slots = slots
	p.takeBack(now)
	p.Queue = slices.DeleteFunc(p.Queue, func(t Ticket) bool { return t.Slots == 0 && t.Weight > slots })
	p.hand(now)
}

// takeBack takes back claims that are above their limit, the latest first. Each
// goes before all of its priority, where it came from: what it was handed went
// past those alone who could not have it.
func (p *Pool) takeBack(now time.Duration) {
	for i := len(p.Leases) - 1; i >= 0 && p.claims > 0; i-- {
		l := p.Leases[i]
		if !l.Claim || p.used <= int64(p.limit(l.Place.Slots)) {
			continue
		}
		p.removeLease(i)
		if t := (Ticket{l.Holder, l.Label, l.Weight, *l.Place}); t.Lapses() > now {
			p.enqueue(t, true)
		}
	}
}

func (p *Pool) ticket(holder string) int {
	return slices.IndexFunc(p.Queue, func(t Ticket) bool { return t.Holder == holder })
}
