package limiter

import (
	"slices"
	"time"
	"unique"
)

// A rate: a pool whose slots nobody gives back. Each returns by itself Per after
// it was spent, so that no window of Per holds more than the limit. Who waits,
// and who holds a slot that is not spent yet, has a lease as in any pool.

const (
	// MaxWeight bounds the limit of a rate, and what one spends at once.
	MaxWeight = 1_000_000_000
	// MaxEntries is how many entries a rate has at most: those that begin within
	// Per and one spans-th of it, and one at each end.
	MaxEntries = spans + 2
	// MaxHeld is how many leases a rate gives out that are not spent yet.
	MaxHeld = 4096
	// spans is into how many parts of Per what is spent is divided. What is spent
	// within one returns with the last of it.
	spans = 256
)

var noLabel = unique.Make("")

// Spent reports whether the lease is an entry of a rate: slots that were spent
// from Since on, and return together. Its token is that of the first.
func (l *Lease) Spent() bool { return l.Holder == "" }

// mayHold reports whether one more lease may be given out.
func (p *Pool) mayHold() bool { return p.Per == 0 || len(p.Leases) < MaxHeld+MaxEntries }

// Spend turns the lease of token into slots that return by themselves. The token
// that it returns names them, beside the time; ok is false if the lease is gone.
func (p *Pool) Spend(now time.Duration, token uint64) (spent uint64, ok bool) {
	p.Settle(now)
	i := p.find(token)
	if i < 0 {
		return 0, false
	}
	held := p.mayHold()
	weight := p.Leases[i].Weight
	p.removeLease(i)
	spent = p.Charge(now, weight)
	if !held {
		p.hand(now)
	}
	return spent, true
}

// Charge spends what nobody has asked for before: it may be more than there is,
// and then nothing is granted until enough has returned.
func (p *Pool) Charge(now time.Duration, weight int32) (spent uint64) {
	p.Settle(now)
	p.Last++
	for i := len(p.Leases) - 1; i >= 0; i-- {
		l := &p.Leases[i]
		if !l.Spent() {
			continue
		}
		if now-l.Since >= p.Per/spans {
			break
		}
		p.weigh(l, weight)
		l.Expires = now + p.Per
		return p.Last
	}
	l := Lease{Label: noLabel, Token: p.Last, Since: now, Expires: now + p.Per, Weight: weight}
	p.Leases = append(p.Leases, l)
	p.count(l, 1)
	p.sooner(l.Expires)
	return p.Last
}

// weigh adds to an entry. More than the largest limit makes no difference.
func (p *Pool) weigh(l *Lease, by int32) {
	p.count(*l, -1)
	l.Weight = int32(min(int64(l.Weight)+int64(by), MaxWeight))
	p.count(*l, 1)
}

// Return gives back what was spent at that time under that token, as far as it
// has not returned by itself.
func (p *Pool) Return(now, at time.Duration, token uint64, weight int32) {
	p.Settle(now)
	for i := len(p.Leases) - 1; i >= 0; i-- {
		l := &p.Leases[i]
		if !l.Spent() || l.Token > token {
			continue
		}
		if at < l.Since || at > l.Expires-p.Per {
			return // it is of a rate of this name that is there no more
		}
		if weight >= l.Weight {
			p.removeLease(i)
		} else {
			p.weigh(l, -weight)
		}
		p.hand(now)
		return
	}
}

// Free returns how long it takes until there is room for a weight under a limit,
// 0 meaning the pool's own. It is exact if nobody else asks meanwhile; those who
// stand in the queue with the same priority or a higher one come first.
func (p *Pool) Free(now time.Duration, weight, slots, priority int32) time.Duration {
	limit := int64(p.limit(slots))
	if limit <= 0 || p.Per == 0 {
		return 0
	}
	asked := int64(weight)
	for i := range p.Queue {
		if t := &p.Queue[i]; t.Priority >= priority {
			asked += int64(t.Weight)
		}
	}
	// What does not fit into the first window comes a window later, or several.
	windows := (asked - 1) / limit
	if windows >= int64(never/p.Per) {
		return never // more than a duration holds, with the last of them
	}
	later, need := time.Duration(windows)*p.Per, p.used+asked-windows*limit-limit
	if need <= 0 {
		return later
	}
	left := p.Per
	for i := range p.Leases { // by their time: what is held is spent at the earliest now
		l := &p.Leases[i]
		if !l.Spent() {
			continue
		}
		if need -= int64(l.Weight); need <= 0 {
			left = l.Expires - now
			break
		}
	}
	return later + left
}

// SetRate changes limit and Per, as SetSlots does. What was spent counts by the
// new Per at once, as far as it is still there.
func (p *Pool) SetRate(now time.Duration, slots int32, per time.Duration) {
	p.setPer(now, per)
	p.SetSlots(now, slots)
}

// Under has the rate count by per for somebody who asks under it: two versions of
// a policy may differ in it. The longest that is asked under counts, and a
// shorter one once nobody has asked under it for as long.
func (p *Pool) Under(now, per time.Duration) {
	if p.Suits(now, per) {
		return
	}
	p.setPer(now, per)
	p.Kept = now + 2*per
	p.hand(now)
}

// Suits reports whether Under has nothing to do. The time until which a Per is
// kept is moved once in a Per, and not at each request.
func (p *Pool) Suits(now, per time.Duration) bool {
	if per < p.Per {
		return now < p.Kept
	}
	return per == p.Per && now+per < p.Kept
}

// setPer counts what was spent by another Per: from the last of each entry on.
func (p *Pool) setPer(now, per time.Duration) {
	p.Settle(now)
	by := per - p.Per
	p.Per = per
	if by == 0 {
		return
	}
	entry := -1 // the last one before
	for i := 0; i < len(p.Leases); {
		l := &p.Leases[i]
		if !l.Spent() {
			i++
			continue
		}
		l.Expires += by
		switch {
		case l.Expires <= now:
			p.removeLease(i)
		case entry >= 0 && l.Since-p.Leases[entry].Since < per/spans:
			p.Leases[entry].Expires = l.Expires
			weight := l.Weight
			p.removeLease(i)
			p.weigh(&p.Leases[entry], weight)
		default:
			entry = i
			i++
		}
	}
	p.soonest = p.next()
}

// EndWaits ends what is not spent: all leases of others, and the queue.
func (p *Pool) EndWaits() {
	p.Leases = slices.DeleteFunc(p.Leases, func(l Lease) bool { return !l.Spent() })
	p.Queue = nil
	p.Index()
}

// Waits reports whether somebody waits, or holds what he has not spent.
func (p *Pool) Waits() bool {
	return len(p.Queue) > 0 || slices.ContainsFunc(p.Leases, func(l Lease) bool { return !l.Spent() })
}

// Turn returns when the head of the queue gets its slot from what returns by
// itself; ok is false if nobody waits for that.
func (p *Pool) Turn() (at time.Duration, ok bool) {
	if p.Per == 0 || len(p.Queue) == 0 {
		return 0, false
	}
	head := &p.Queue[0]
	need := p.used + int64(head.Weight) - int64(p.limit(head.Slots))
	for i := 0; need > 0 && i < len(p.Leases); i++ {
		if l := &p.Leases[i]; l.Spent() {
			need -= int64(l.Weight)
			at = l.Expires
		}
	}
	return at, need <= 0 && at > 0
}

// Turns returns who gets what returns until at, the first in the queue first.
func (p *Pool) Turns(at time.Duration) (holders []string) {
	used := p.used
	for i := range p.Leases {
		if l := &p.Leases[i]; l.Spent() && l.Expires <= at {
			used -= int64(l.Weight)
		}
	}
	for i := range p.Queue {
		t := &p.Queue[i]
		if used += int64(t.Weight); used > int64(p.limit(t.Slots)) {
			break
		}
		holders = append(holders, t.Holder)
	}
	return holders
}
