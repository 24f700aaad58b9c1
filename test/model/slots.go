package model

import (
	"slices"
	"time"

	"example.com/govnode/session"
)

// Slots of clients; what renews and frees slots of calls as well.

// client returns the client, nil if there is none or it is over.
func (s *space) client(id string) *client {
	if x := s.clients[id]; x != nil && !x.over(s.Now) {
		return x
	}
	return nil
}

// makeClient returns the client, made if there is none, in use now.
func (s *space) makeClient(id string) *client {
	x := s.client(id)
	if x == nil {
		s.dropClient(id)
		x = &client{born: s.forgotClients}
		s.clients[id] = x
	}
	x.used, x.born = s.Now, min(x.born, s.forgotClients)
	return x
}

func (s *space) dropClient(id string) {
	if x := s.clients[id]; x != nil {
		s.forgotClients = max(s.forgotClients, x.ids.newest)
		delete(s.clients, id)
	}
}

// forgotten is the time up to which an id that a client does not know may have
// been known to it.
func (s *space) forgotten(id string) uint64 {
	if x := s.client(id); x != nil {
		return max(x.ids.forgot, min(x.born, s.forgotClients))
	}
	if x := s.clients[id]; x != nil { // it is over
		return max(s.forgotClients, x.ids.newest)
	}
	return s.forgotClients
}

// slot returns an open slot, or what is remembered of it.
func (s *space) slot(maker, id string) (*client, *held, *finished) {
	x := s.client(maker)
	if x == nil {
		return nil, nil, nil
	}
	return x, find(x.open, id), x.ids.find(id)
}

func (s *space) acquire(c *session.Acquire, r *session.Result) {
	x, h, f := s.slot(c.Client, c.Slot)
	if h != nil {
		s.acquireAgain(c, x, h, r)
		return
	}
	if f != nil {
		if r.Code = f.code; f.content != c.Content {
			r.Code = session.IDReused
			return
		}
		if r.Repeat = true; f.code == session.Released {
			r.Code = session.AlreadyEnded
		}
		return
	}
	p := s.pools[c.Pool]
	switch {
	case stale(c.Slot, s.forgotten(c.Client), r):
		return
	case x != nil && len(x.open) >= maxOpen:
		r.Code = session.TooManyOpen
		return
	case p == nil:
		r.Code = session.NotFound
		return
	case c.Weight > p.slots:
		r.Code, r.Limit = session.Invalid, int64(p.slots)
		return
	}
	x = s.makeClient(c.Client)
	h = &held{id: c.Slot, content: c.Content, started: s.Now, deadline: s.Now + c.TTL}
	q := request{ticket: ticket{holder: holder('c', c.Client, c.Slot), label: c.Label, weight: c.Weight, priority: c.Priority}, room: p.maxQueue}
	if c.MaxHold > 0 {
		q.holdUntil = s.Now + c.MaxHold
		h.deadline = min(h.deadline, q.holdUntil)
	}
	if c.Wait > 0 {
		q.until = s.Now + c.Wait
	}
	q.expires = h.deadline
	how, token, position := p.acquire(s.Now, q)
	h.pools = []hold{{c.Pool, token, c.Weight}}
	if a := c.Authority(); a != nil {
		h.owner = a.Principal
	}
	switch how {
	case granted:
		r.Code = session.Admitted
		s.grants(h, r)
	case queued:
		r.Code, r.Queue = session.Queued, session.Place{Pool: c.Pool, Position: int32(position)}
		h.until, h.deadline = q.until, s.waitDeadline(q.until)
	default:
		r.Code = session.ConcurrencyLimit
		if how == queueFull {
			r.Code = session.QueueFull
		}
		s.noRoom(p, c.Pool, 0, p.threshold, r.Code, r)
		x.ids.add(finished{c.Slot, c.Content, r.Code, 0, 0})
		return
	}
	x.open = append(x.open, h)
	r.Pressure = session.Pressure{InUse: p.inUse(), Limit: p.slots, Threshold: p.threshold}
}

func (s *space) acquireAgain(c *session.Acquire, x *client, h *held, r *session.Result) {
	if h.content != c.Content || h.pools[0].pool != c.Pool || !h.isOf(c) {
		r.Code = session.IDReused
		return
	}
	r.Repeat = true
	p := s.pools[c.Pool]
	if h.until != 0 {
		x.used = s.Now
	}
	switch {
	case h.until != 0 && p == nil: // deleted by force
		x.finish(h, session.WaitTimeout, 0)
		r.Code = session.WaitTimeout
		return
	case h.until != 0:
		if !s.claimSlot(c, x, h, p, r) {
			return
		}
	case p == nil || p.lease(h.pools[0].token) == nil:
		r.Code = session.LeaseLost
		return
	default:
		r.Code = session.Admitted
		s.grants(h, r)
	}
	r.Pressure = session.Pressure{InUse: p.inUse(), Limit: p.slots, Threshold: p.threshold}
}

// claimSlot reports whether the slot is still open.
func (s *space) claimSlot(c *session.Acquire, x *client, h *held, p *pool, r *session.Result) bool {
	who := holder('c', c.Client, c.Slot)
	how, token, position := p.claim(s.Now, who)
	switch how {
	case granted:
		var holdUntil time.Duration
		h.until, h.started, h.deadline, h.pools[0].token = 0, s.Now, s.Now+c.TTL, token
		if c.MaxHold > 0 {
			holdUntil = s.Now + c.MaxHold
			h.deadline = min(h.deadline, holdUntil)
		}
		l := p.lease(token)
		l.expires, l.holdUntil = h.deadline, holdUntil
		r.Code = session.Admitted
		s.grants(h, r)
	case queued:
		h.deadline = s.waitDeadline(h.until)
		p.hear(s.Now, who)
		r.Code, r.Queue = session.Queued, session.Place{Pool: c.Pool, Position: int32(position)}
	default:
		if r.Code = session.WaitTimeout; c.Weight > p.slots {
			r.Code, r.Limit = session.ConcurrencyLimit, int64(p.slots)
		}
		x.finish(h, r.Code, 0)
		return false
	}
	return true
}

// release gives back a slot with its token. With another token it does nothing:
// somebody else may have the slot.
func (s *space) release(c *session.Release, r *session.Result) {
	x, h, f := s.slot(c.Client, c.Slot)
	p := s.pools[c.Pool]
	switch {
	case h != nil && h.pools[0].pool != c.Pool:
		r.Code, r.Pools = session.StalePremise, poolsOf(h)
	case h != nil && (h.until != 0 || h.pools[0].token != c.Token || !h.isOf(c)):
		r.Code = session.Fenced
	case h != nil:
		x.used = s.Now
		if p == nil || !p.release(s.Now, c.Token) { // deleted by force
			x.finish(h, session.LeaseLost, c.Token)
			if r.Code = session.LeaseExpired; p != nil && p.last > c.Token {
				r.Code = session.Fenced // and made again
			}
			return
		}
		x.finish(h, session.Released, c.Token)
		r.Code = session.Released
	case f != nil && f.code == session.Released && f.value == c.Token:
		r.Code, r.Repeat = session.AlreadyReleased, true
	case f != nil && f.code == session.LeaseLost && f.value == c.Token && (p == nil || p.last <= c.Token):
		r.Code, r.Repeat = session.LeaseExpired, true
	case f != nil:
		r.Code, r.Repeat = session.Fenced, true
	case !stale(c.Slot, s.forgotten(c.Client), r):
		r.Code = session.NotFound
	}
}

func (s *space) cancelSlot(c *session.Cancel, r *session.Result) {
	x, h, f := s.slot(c.Client, c.Call)
	switch {
	case h != nil && !h.isOf(c):
		r.Code = session.Fenced
	case h != nil && h.until == 0:
		r.Code = session.NotWaiting
	case h != nil && !names(c.Pools, h):
		r.Code, r.Pools = session.StalePremise, poolsOf(h)
	case h != nil && c.Heard > 0 && s.heard(h, 'c', c.Client) > c.Heard:
		r.Code = session.Queued
	case h != nil:
		x.used = s.Now
		s.letGo(h, 'c', c.Client)
		x.finish(h, session.WaitCancelled, 0)
		r.Code = session.WaitCancelled
	case f != nil:
		r.Code, r.Repeat = f.code, true
	case !stale(c.Call, s.forgotten(c.Client), r):
		r.Code = session.NotFound
	}
}

// renew keeps a slot, all slots of a call, or the place of a waiter. What is
// gone stays gone.
func (s *space) renew(c *session.Renew, r *session.Result) {
	r.Code = session.LeaseExpired
	var open []*held
	var used *time.Duration
	kind, maker := byte('c'), c.Client
	if c.Session != "" {
		kind, maker = 's', c.Session
		if x := s.look(c.Session); x != nil {
			open, used = x.open, &x.used
		}
	} else if x := s.client(c.Client); x != nil {
		open, used = x.open, &x.used
	}
	h := find(open, c.ID)
	if h == nil {
		return
	}
	has := func(at hold) bool { return at.token == c.Token }
	switch {
	case !names(c.Pools, h):
		r.Code, r.Pools = session.StalePremise, poolsOf(h)
		return
	case h.parked(): // nobody's renewals keep it
		r.Code, r.Grants = session.Renewed, []session.Grant{{TTL: h.deadline - s.Now}}
		return
	case h.until != 0 && c.Token != 0, h.until == 0 && !slices.ContainsFunc(h.pools, has), !h.isOf(c):
		r.Code = session.Fenced
		return
	}
	deadline := s.Now + c.TTL
	if h.until != 0 {
		deadline = s.waitDeadline(h.until)
	}
	var leases []*lease
	var waits *pool
	for _, at := range h.pools {
		p := s.pools[at.pool]
		if p == nil {
			return
		}
		if at.token == 0 {
			waits = p
			break
		}
		l := p.lease(at.token)
		if l == nil {
			return
		}
		if l.holdUntil > 0 {
			deadline = min(deadline, l.holdUntil)
		}
		leases = append(leases, l)
	}
	*used, h.deadline = s.Now, deadline
	for _, l := range leases {
		l.expires = deadline
	}
	if waits == nil || waits.hear(s.Now, holder(kind, maker, h.id)) {
		r.Code, r.Grants = session.Renewed, []session.Grant{{TTL: max(0, deadline-s.Now)}}
	}
}

// forceRelease frees the slot of a holder that does not give it back.
func (s *space) forceRelease(c *session.ForceRelease, r *session.Result) bool {
	var open []*held
	x, y := (*sess)(nil), (*client)(nil)
	if c.Session != "" {
		if x = s.look(c.Session); x != nil {
			open = x.open
		}
	} else if y = s.client(c.Holder); y != nil {
		open = y.open
	}
	h := find(open, c.ID)
	switch {
	case h == nil || h.parked():
		r.Code = session.NotFound
	case !names(c.Pools, h):
		r.Code, r.Pools = session.StalePremise, poolsOf(h)
	case h.asked != nil:
		x.used = s.Now
		s.letGo(h, 's', c.Session)
		x.park(h)
	case x != nil:
		x.used = s.Now
		s.letGo(h, 's', c.Session)
		if h.until == 0 {
			s.lapsed = append(s.lapsed, session.Lapse{NS: s.name, Session: x.id, Call: h.id, Tool: h.tool})
		}
		x.lapse(h)
	default:
		y.used = s.Now
		s.letGo(h, 'c', c.Holder)
		y.lose(h)
	}
	return r.Code == session.Done
}
