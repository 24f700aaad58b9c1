package model

import (
	"slices"
	"time"

	"example.com/govnode/session"
)

// Rates: pools whose slots return by themselves. What was spent is a lease of
// nobody.

const (
	mostAtOnce = 1_000_000_000 // of one entry
	spans      = 256           // of a time: within one of them what is spent is one entry
)

// spent is what a call has spent when it was admitted, and its end corrects.
type spent struct {
	pool   string
	token  uint64
	weight int32
	per    time.Duration
}

// want is what a call asks for: slots 0 means the pool's own limit, per is that
// of a policy's rate.
type want struct {
	pool          string
	weight, slots int32
	per           time.Duration
}

// wantsOf returns the pools of a call and then its rates.
func wantsOf(c *session.Begin, concurrent int32) (all []want) {
	for _, w := range c.Pools {
		all = append(all, want{pool: w.Pool, weight: w.Weight})
	}
	all[0].slots = concurrent
	for _, w := range c.Rates {
		all = append(all, want{w.Pool, w.Cost, w.Limit, w.Per})
	}
	return all
}

func (s *space) ratesThere(c *session.Begin, r *session.Result) bool {
	for _, w := range c.Rates {
		p, limit := s.pools[w.Pool], w.Limit
		if limit == 0 {
			if p == nil {
				r.Code, r.Pools = session.NotFound, []string{w.Pool}
				return false
			}
			limit = p.slots
		}
		if w.Cost > limit {
			r.Code, r.Limit, r.Pools = session.Invalid, int64(limit), []string{w.Pool}
			return false
		}
	}
	return true
}

// dropRates drops the rates of policies of which nothing is left.
func (s *space) dropRates() {
	for id, p := range s.pools {
		if p.per > 0 && !p.put && len(p.leases)+len(p.queue) == 0 {
			delete(s.pools, id)
		}
	}
}

// under makes the windows of a policy's rate at least as long as per, and no
// longer if nobody has asked for longer ones of late.
func (p *pool) under(now, per time.Duration) {
	switch {
	case per == 0:
	case per < p.per && now < p.kept, per == p.per && now+per < p.kept:
	default:
		p.setPer(now, per)
		p.kept = now + 2*per
		p.hand(now)
	}
}

func (p *pool) setPer(now, per time.Duration) {
	was := p.per
	p.per = per
	if per == was {
		return
	}
	old := p.leases
	p.leases = nil
	for _, l := range old {
		if l.holder == "" {
			if l.expires += per - was; l.expires <= now {
				continue
			}
			if e := p.entry(); e != nil && l.since-e.since < per/spans {
				e.expires, e.weight = l.expires, min(e.weight+l.weight, mostAtOnce)
				continue
			}
		}
		p.leases = append(p.leases, l)
	}
}

// entry returns the latest that was spent.
func (p *pool) entry() *lease {
	for i := len(p.leases) - 1; i >= 0; i-- {
		if p.leases[i].holder == "" {
			return &p.leases[i]
		}
	}
	return nil
}

// charge spends, whether there is room or not.
func (p *pool) charge(now time.Duration, weight int32) uint64 {
	p.last++
	if e := p.entry(); e != nil && now-e.since < p.per/spans {
		e.expires, e.weight = now+p.per, int32(min(int64(e.weight)+int64(weight), mostAtOnce))
	} else {
		p.leases = append(p.leases, lease{ticket: ticket{weight: weight}, token: p.last, since: now, expires: now + p.per})
	}
	return p.last
}

// free is how long it takes until there is room for a weight, if all who wait
// with that priority or a higher one come first.
func (p *pool) free(now time.Duration, weight, slots, priority int32) (wait time.Duration) {
	limit := int64(p.limit(&ticket{slots: slots}))
	if p.per == 0 || limit == 0 {
		return 0
	}
	asked := int64(weight)
	for _, t := range p.queue {
		if t.priority >= priority {
			asked += int64(t.weight)
		}
	}
	for ; asked > limit; asked -= limit {
		wait += p.per
	}
	need := p.weights() + asked - limit
	for _, l := range p.leases {
		if need <= 0 {
			return wait
		}
		if l.holder != "" {
			continue
		}
		if need -= int64(l.weight); need <= 0 {
			return wait + l.expires - now
		}
	}
	if need <= 0 {
		return wait
	}
	return wait + p.per
}

func (s *space) noRate(p *pool, name string, t ticket, which int, r *session.Result) (session.Code, uint64) {
	r.Limit, r.Pools, r.RetryAfter = int64(p.limit(&t)), []string{name}, p.free(s.Now, t.weight, t.slots, t.priority)
	if r.RetryAfter == 0 {
		r.RetryAfter = 50 * time.Millisecond
	}
	return session.RateLimited, remembered(which, s.Now+r.RetryAfter)
}

// remembered is which rate refused, and when it was to have room.
func remembered(which int, at time.Duration) uint64 {
	us := at / time.Microsecond
	if at%time.Microsecond > 0 {
		us++
	}
	return uint64(us)*16 + uint64(which)
}

// spend makes what a call holds at its rates what it has spent.
func (s *space) spend(c *session.Begin, h *held) {
	for i, at := range h.pools[len(c.Pools):] {
		p := s.pools[at.pool]
		p.leases = slices.DeleteFunc(p.leases, func(l lease) bool { return l.token == at.token })
		token := p.charge(s.Now, at.weight)
		if c.Rates[i].Tokens {
			h.spent = append(h.spent, spent{at.pool, token, at.weight, c.Rates[i].Per})
		}
	}
	h.pools = h.pools[:len(c.Pools):len(c.Pools)]
}

func (h *held) rates() (names []string) {
	for _, at := range h.spent {
		names = append(names, at.pool)
	}
	return names
}

func (h *held) corrects(named []string) bool {
	return !slices.ContainsFunc(h.spent, func(at spent) bool { return !slices.Contains(named, at.pool) })
}

// correct brings what a call has spent to what it has used.
func (s *space) correct(c *session.End, h *held) {
	if c.Tokens < 0 {
		return
	}
	for _, at := range h.spent {
		p := s.pools[at.pool]
		switch more := int32(min(c.Tokens, mostAtOnce)) - at.weight; {
		case more > 0 && p == nil && at.per > 0:
			p = s.makePool(at.pool)
			p.under(s.Now, at.per)
			p.charge(s.Now, more)
		case more > 0 && p != nil:
			p.under(s.Now, at.per)
			p.charge(s.Now, more)
		case more < 0 && p != nil:
			p.comesBack(s.Now, h.started, at.token, -more)
		}
	}
}

// comesBack takes away from the entry of that time and token, if it is there.
func (p *pool) comesBack(now, at time.Duration, token uint64, weight int32) {
	for i, l := range p.leases {
		if l.holder != "" || l.token > token || at < l.since || at > l.expires-p.per {
			continue
		}
		if slices.ContainsFunc(p.leases[i+1:], func(o lease) bool { return o.holder == "" && o.token <= token }) {
			continue
		}
		if p.leases[i].weight -= weight; l.weight <= weight {
			p.leases = slices.Delete(p.leases, i, i+1)
		}
		p.hand(now)
		return
	}
}

func (s *space) putRate(c *session.PutRate, r *session.Result) {
	id := session.RatePool(c.Rate)
	s.request(c.By, r, func() bool {
		fresh := s.pools[id] == nil
		p := s.makePool(id)
		if fresh {
			p.last = max(p.last, s.tokenFloor)
		}
		p.put, p.maxQueue = true, c.Queue
		p.setPer(s.Now, c.Per)
		p.setSlots(s.Now, c.Limit)
		return true
	})
	if r.Code == session.Done {
		s.afterPool(id, r)
	}
}

func (s *space) deleteRate(c *session.DeleteRate, r *session.Result) bool {
	id := session.RatePool(c.Rate)
	p := s.pools[id]
	switch {
	case p == nil:
		r.Code = session.NotFound
	case len(p.queue) > 0 || slices.ContainsFunc(p.leases, func(l lease) bool { return l.holder != "" }):
		r.Code = session.PoolInUse
	default:
		s.tokenFloor = max(s.tokenFloor, p.last+1)
		delete(s.pools, id)
	}
	return r.Code == session.Done
}

func (s *space) takeRate(c *session.TakeRate, r *session.Result) {
	id := session.RatePool(c.Rate)
	x, h, f := s.slot(c.Client, c.ID)
	p := s.pools[id]
	who := holder('c', c.Client, c.ID)
	switch {
	case h != nil && (h.content != c.Content || h.pools[0].pool != id), h == nil && f != nil && f.content != c.Content:
		r.Code = session.IDReused
	case h != nil:
		r.Repeat, r.Code = true, session.WaitTimeout
		x.used = s.Now
		how, token, position := gone, uint64(0), 0
		if p != nil {
			how, token, position = p.claim(s.Now, who)
		}
		switch how {
		case granted:
			p.take(s.Now, token)
			r.Code = session.Admitted
		case queued:
			h.deadline = s.waitDeadline(h.until)
			p.hear(s.Now, who)
			r.Code, r.Queue = session.Queued, session.Place{Pool: id, Position: int32(position)}
			return
		}
		x.finish(h, r.Code, 0)
	case f != nil:
		if r.Repeat, r.Code = true, f.code; f.code == session.RateLimited {
			r.Pools, r.RetryAfter = []string{id}, max(0, time.Duration(f.value>>4)*time.Microsecond-s.Now)
		}
	case stale(c.ID, s.forgotten(c.Client), r):
	case x != nil && len(x.open) >= maxOpen:
		r.Code = session.TooManyOpen
	case p == nil:
		r.Code = session.NotFound
	case c.Cost > p.slots:
		r.Code, r.Limit = session.Invalid, int64(p.slots)
	default:
		s.firstTake(c, p, s.makeClient(c.Client), request{
			ticket: ticket{holder: who, weight: c.Cost, priority: c.Priority}, room: p.maxQueue, expires: s.Now + claimTTL,
		}, r)
	}
}

func (s *space) firstTake(c *session.TakeRate, p *pool, x *client, q request, r *session.Result) {
	if c.Wait > 0 {
		q.until = s.Now + c.Wait
	}
	id, value := session.RatePool(c.Rate), uint64(0)
	switch how, token, position := p.acquire(s.Now, q); how {
	case granted:
		p.take(s.Now, token)
		r.Code = session.Admitted
	case queued:
		r.Code, r.Queue = session.Queued, session.Place{Pool: id, Position: int32(position)}
		x.open = append(x.open, &held{
			id: c.ID, content: c.Content, started: s.Now, until: q.until, deadline: s.waitDeadline(q.until), pools: []hold{{id, 0, c.Cost}},
		})
		return
	case queueFull:
		s.noRoom(p, id, 0, 0, session.QueueFull, r)
		r.Code = session.QueueFull
	default:
		r.Code, value = s.noRate(p, id, q.ticket, 0, r)
	}
	x.ids.add(finished{c.ID, c.Content, r.Code, 0, value})
}

// take spends what was granted.
func (p *pool) take(now time.Duration, token uint64) {
	weight := p.lease(token).weight
	p.leases = slices.DeleteFunc(p.leases, func(l lease) bool { return l.token == token })
	p.charge(now, weight)
}
