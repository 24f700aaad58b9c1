package session

import (
	"slices"
	"time"
	"unique"

	"example.com/govnode/internal/seeded"
	"example.com/govnode/limiter"
	"example.com/govnode/session/ids"
)

// Slots of clients: how they are acquired, renewed, released and taken away.
// The slots of calls are renewed and taken away here as well.

// acquire asks for a slot of a pool that was put; sent again while it waits,
// it is the claim.
func (s *State) acquire(c *Acquire, r *Result) {
	k, pk := ref{KindClient, c.NS, c.Client}, ref{KindPool, c.NS, c.Pool}
	x := s.client(k)
	if x != nil {
		if h := x.Find(c.Slot); h != nil {
			s.acquireAgain(c, k, x, h, r)
			return
		}
		if m := x.IDs.Find(c.Slot); m != nil {
			s.recallSlot(m, c.Content, r)
			return
		}
	}
	if stale(c.Slot, s.newerThan(k, x), r) {
		return
	}
	if x != nil && len(x.Open) >= MaxOpen {
		r.Code = TooManyOpen
		return
	}
	p := s.pool(pk)
	if p == nil || !p.Put {
		r.Code = NotFound
		return
	}
	if c.Weight > p.Slots {
		r.Code, r.Limit = Invalid, int64(p.Slots)
		return
	}

	x = s.ownClient(k, x)
	x.Used, x.Born = s.now, min(x.Born, s.namespace(c.NS).ForgotClients)
	q := limiter.Request{
		Holder: holder(KindClient, c.Client, c.Slot), Label: unique.Make(c.Label), Weight: c.Weight, Queue: p.MaxQueue,
		Priority: c.Priority, Expires: s.now + c.TTL,
	}
	if c.MaxHold > 0 {
		q.HoldUntil = s.now + c.MaxHold
		q.Expires = min(q.Expires, q.HoldUntil)
	}
	if c.Wait > 0 {
		q.Until = s.now + c.Wait
	}
	p = s.ownPool(pk, p)
	how, token, position := p.Acquire(s.now, q)
	h := Held{
		Holder: q.Holder, Content: c.Content, Started: s.now, Deadline: q.Expires,
		Pools: []Hold{{s.name(c.Pool), token, c.Weight}},
	}
	switch how {
	case limiter.Granted:
		r.Code = Admitted
	case limiter.Queued:
		r.Code, r.Queue = Queued, Place{c.Pool, int32(position)}
		h.Until, h.Deadline = q.Until, s.waitDeadline(q.Until)
	default:
		code := ConcurrencyLimit
		if how == limiter.QueueFull {
			code = QueueFull
		}
		r.Code = s.noRoom(wanted{key: pk, pool: p, Request: q, threshold: p.Threshold}, r, code)
		x.IDs.Add(remembered(c.Slot, c.Content, code, 0, 0))
		return
	}
	if by := c.principal(); by != (Principal{}) {
		h.changeGates(func(g *HeldGates) { g.Owner = by })
	}
	x.Open = append(x.Open, h)
	s.slotAnswer(&h, p, r)
}

func (s *State) slotAnswer(h *Held, p *Pool, r *Result) {
	r.Pressure = Pressure{p.InUse(), p.Slots, p.Threshold}
	if !h.Waiting() {
		s.grants(h, r)
	}
}

func (s *State) recallSlot(m *ids.Remembered, content Fingerprint, r *Result) {
	if m.Content != content {
		r.Code = IDReused
		return
	}
	r.Repeat, r.Code = true, Code(m.Code())
	if r.Code == Released {
		r.Code = AlreadyEnded
	}
}

func (s *State) acquireAgain(c *Acquire, k ref, x *Client, h *Held, r *Result) {
	if h.Content != c.Content || h.Pools[0].Pool.Value() != c.Pool || !h.ownedBy(c.principal()) {
		r.Code = IDReused
		return
	}
	r.Repeat = true
	pk := ref{KindPool, c.NS, c.Pool}
	p := s.pool(pk)
	if p == nil { // it was deleted by force
		r.Code = LeaseLost
		if h.Waiting() {
			x = s.ownClient(k, x)
			x.Used = s.now
			x.finish(x.Find(c.Slot), WaitTimeout, 0)
			r.Code = WaitTimeout
		}
		return
	}
	if !h.Waiting() {
		if _, there := p.Lease(h.Pools[0].Token); !there {
			r.Code = LeaseLost // the pool was deleted by force, and made again
			return
		}
		r.Code = Admitted
		s.slotAnswer(h, p, r)
		return
	}
	x, p = s.ownClient(k, x), s.ownPool(pk, p)
	x.Used = s.now
	h = x.Find(c.Slot)
	how, token, position := p.Claim(s.now, h.Holder)
	switch how {
	case limiter.Granted:
		var holdUntil time.Duration
		h.Until, h.Started, h.Deadline = 0, s.now, s.now+c.TTL
		if c.MaxHold > 0 {
			holdUntil = s.now + c.MaxHold
			h.Deadline = min(h.Deadline, holdUntil)
		}
		h.Pools = []Hold{{h.Pools[0].Pool, token, h.Pools[0].Weight}}
		p.Extend(s.now, token, h.Deadline, holdUntil)
		r.Code = Admitted
	case limiter.Queued:
		h.Deadline = s.waitDeadline(h.Until)
		p.Hear(s.now, h.Holder)
		r.Code, r.Queue = Queued, Place{c.Pool, int32(position)}
	default:
		code := WaitTimeout
		if c.Weight > p.Slots {
			code, r.Limit = ConcurrencyLimit, int64(p.Slots)
		}
		x.finish(h, code, 0)
		r.Code = code
		return
	}
	s.slotAnswer(h, p, r)
}

// ownedBy reports whether a slot is a principal's: whoever took it, and anybody's
// where nobody was asked when it was taken. That of a call is nobody's own.
func (h *Held) ownedBy(by Principal) bool {
	return h.Gates == nil || h.Gates.Owner == (Principal{}) || h.Gates.Owner == by
}

// HasToken reports whether a token is of one of its slots.
func (h *Held) HasToken(token uint64) bool {
	return slices.ContainsFunc(h.Pools, func(p Hold) bool { return p.Token == token })
}

// finish removes what is open and remembers how it ended.
func (x *Client) finish(h *Held, code Code, value uint64) {
	x.IDs.Add(remembered(h.ID(), h.Content, code, 0, value))
	for i := range x.Open {
		if &x.Open[i] == h {
			x.Open = slices.Delete(x.Open, i, i+1)
			break
		}
	}
	if len(x.Open) == 0 {
		x.Open = nil
	}
}

// release gives a slot back.
func (s *State) release(c *Release, r *Result) {
	k, pk := ref{KindClient, c.NS, c.Client}, ref{KindPool, c.NS, c.Pool}
	x := s.client(k)
	if x == nil {
		s.noSlot(k, x, c.Slot, r)
		return
	}
	h := x.Find(c.Slot)
	if h == nil {
		m := x.IDs.Find(c.Slot)
		if m == nil {
			s.noSlot(k, x, c.Slot, r)
			return
		}
		r.Repeat = true
		switch {
		case Code(m.Code()) == Released && m.Value == c.Token:
			r.Code = AlreadyReleased
		case Code(m.Code()) == LeaseLost && m.Value == c.Token && !s.grantedSince(pk, c.Token):
			r.Code = LeaseExpired
		default:
			r.Code = Fenced
		}
		return
	}
	if h.Pools[0].Pool.Value() != c.Pool {
		r.Code, r.Pools = StalePremise, h.PoolNames()
		return
	}
	if seeded.On(seeded.AnyToken) {
		c = &Release{NS: c.NS, Client: c.Client, Slot: c.Slot, Pool: c.Pool, Token: h.Pools[0].Token}
	}
	if h.Waiting() || h.Pools[0].Token != c.Token || !h.ownedBy(c.principal()) {
		r.Code = Fenced
		return
	}
	x = s.ownClient(k, x)
	x.Used = s.now
	if p := s.pool(pk); p == nil || !s.ownPool(pk, p).Release(s.now, c.Token) {
		x.finish(x.Find(c.Slot), LeaseLost, c.Token)
		if r.Code = LeaseExpired; s.grantedSince(pk, c.Token) {
			r.Code = Fenced // the pool was deleted by force and made again, and its slots are others'
		}
		return
	}
	x.finish(x.Find(c.Slot), Released, c.Token)
	r.Code = Released
}

// noSlot answers for a slot of which nothing is known: there was none, or it was
// forgotten.
func (s *State) noSlot(k ref, x *Client, slot string, r *Result) {
	if !stale(slot, s.newerThan(k, x), r) {
		r.Code = NotFound
	}
}

// grantedSince reports whether the pool has given out a later token: somebody
// else may work with the slot by now.
func (s *State) grantedSince(pool ref, token uint64) bool {
	p := s.pool(pool)
	return p != nil && p.Last > token
}

// renew keeps what is held, or the place of what waits.
func (s *State) renew(c *Renew, r *Result) {
	r.Code = LeaseExpired
	open, own := s.heldBy(c)
	h := findHeld(open, c.ID)
	if h == nil {
		return
	}
	if !h.within(c.Pools, r) {
		return
	}
	if h.Parked() { // nobody's renewals keep it: its approval has a deadline
		r.Code, r.Grants = Renewed, []Grant{{TTL: s.left(h.Deadline)}}
		return
	}
	if !h.Waiting() && !h.HasToken(c.Token) ||
		h.Waiting() && c.Token != 0 || !h.ownedBy(c.principal()) {
		r.Code = Fenced
		return
	}
	deadline, there := s.now+c.TTL, true
	if h.Waiting() {
		deadline = s.waitDeadline(h.Until)
	}
	// First look, then write: a slot that is gone renews nothing.
	for _, hold := range h.Pools {
		p := s.pool(ref{KindPool, c.NS, hold.Pool.Value()})
		if p == nil {
			return
		}
		if hold.Token == 0 {
			break // this is where it waits
		}
		l, ok := p.Lease(hold.Token)
		if !ok && !seeded.On(seeded.Resurrect) {
			return
		}
		if l.HoldUntil > 0 {
			deadline = min(deadline, l.HoldUntil)
		}
	}
	h = findHeld(own(), c.ID)
	h.Deadline = deadline
	for _, hold := range h.Pools {
		k := ref{KindPool, c.NS, hold.Pool.Value()}
		p := s.ownPool(k, s.pool(k))
		if hold.Token == 0 {
			// A waiter whose turn has come, or who has lost his place, finds
			// out by asking again.
			there = p.Hear(s.now, h.Holder)
			break
		}
		p.Renew(s.now, hold.Token, deadline)
	}
	if there {
		r.Code = Renewed
		r.Grants = []Grant{{TTL: s.left(deadline)}}
	}
}

// heldBy returns what the maker named by the command has open, and a function
// that makes it the entry's own.
func (s *State) heldBy(c *Renew) (open []Held, own func() []Held) {
	if c.Session != "" {
		k := ref{KindSession, c.NS, c.Session}
		x := s.session(k)
		if x == nil {
			return nil, nil
		}
		return x.Open, func() []Held {
			x = s.ownSession(k, x)
			x.Used = s.now
			x.edit(c.ID)
			return x.Open
		}
	}
	k := ref{KindClient, c.NS, c.Client}
	var x *Client
	if seeded.On(seeded.Resurrect) {
		x, _ = s.lookup(k).(*Client) // as it was
	} else {
		x = s.client(k)
	}
	if x == nil {
		return nil, nil
	}
	return x.Open, func() []Held {
		x = s.ownClient(k, x)
		x.Used = s.now
		return x.Open
	}
}

// cancelSlot gives up a client's wait for a slot.
func (s *State) cancelSlot(c *Cancel, r *Result) {
	k := ref{KindClient, c.NS, c.Client}
	x := s.client(k)
	if x == nil {
		s.noSlot(k, x, c.Call, r)
		return
	}
	h := x.Find(c.Call)
	if h == nil {
		if m := x.IDs.Find(c.Call); m != nil {
			r.Code, r.Repeat = Code(m.Code()), true
			return
		}
		s.noSlot(k, x, c.Call, r)
		return
	}
	if !h.ownedBy(c.principal()) {
		r.Code = Fenced
		return
	}
	if !h.Waiting() {
		r.Code = NotWaiting
		return
	}
	if !h.within(c.Pools, r) || s.wanted(c, h, r) {
		return
	}
	x = s.ownClient(k, x)
	x.Used = s.now
	h = x.Find(c.Call)
	over := *h
	s.letGo(c.NS, &over)
	x.finish(h, WaitCancelled, 0)
	r.Code = WaitCancelled
}

// forceRelease frees the slot of a holder that does not give it back.
func (s *State) forceRelease(c *ForceRelease, r *Result) {
	if c.Session != "" {
		s.forceCall(c, r)
	} else {
		s.forceSlot(c, r)
	}
}

func (s *State) forceCall(c *ForceRelease, r *Result) {
	k := ref{KindSession, c.NS, c.Session}
	x := s.session(k)
	if x == nil || x.Find(c.ID) == nil || x.Find(c.ID).Parked() {
		r.Code = NotFound
		return
	}
	h := x.Find(c.ID)
	if !h.within(c.Pools, r) {
		return
	}
	x = s.ownSession(k, x)
	x.Used = s.now // until now somebody had something open here
	over := *x.Find(c.ID)
	s.letGo(c.NS, &over)
	if over.Asked() != nil {
		x.park(x.edit(c.ID)) // its approval stands
		return
	}
	x.remove(c.ID)
	if !over.Waiting() {
		s.noteLapse(k, &over)
	}
	x.lapse(&over)
}

func (s *State) forceSlot(c *ForceRelease, r *Result) {
	k := ref{KindClient, c.NS, c.Holder}
	x := s.client(k)
	if x == nil || x.Find(c.ID) == nil {
		r.Code = NotFound
		return
	}
	h := x.Find(c.ID)
	if !h.within(c.Pools, r) {
		return
	}
	x = s.ownClient(k, x)
	x.Used = s.now
	h = x.Find(c.ID)
	over := *h
	s.letGo(c.NS, &over)
	code, token := LeaseLost, over.Pools[0].Token
	if over.Waiting() {
		code = WaitTimeout
	}
	x.finish(h, code, token)
}
