package session

import (
	"cmp"
	"slices"
	"time"

	"example.com/govnode/internal/seeded"
	"example.com/govnode/limiter"
	"example.com/govnode/session/approval"
	"example.com/govnode/session/ids"
)

// How a call begins. How it ends stands in open.go.

const (
	ticketTTL = limiter.TicketTTL
	claimTTL  = limiter.ClaimTTL
)

// begin decides a call. Everything it checks, it checks in this one step:
// known id, session open, signals, attempts, verdict, timeout, calls, kind,
// breaker, tool, tokens, budgets, approval, slots, rates.
func (s *State) begin(c *Begin, r *Result) {
	k := ref{KindSession, c.NS, c.Session}
	x := s.counted(k, r)
	if x == nil {
		return
	}
	if h := x.Find(c.Call); h != nil {
		s.beginAgain(c, k, x, h, r)
		return
	}
	if m := x.IDs.Find(c.Call); m != nil {
		s.recall(m, c, x, r)
		return
	}
	if stale(c.Call, x.IDs.NewerThan(), r) {
		return
	}
	if x.Phase != PhaseOpen {
		r.Code, r.Signal = SessionClosed, x.killed(c.Session)
		return
	}
	if s.stopped(c.NS, c.Session, x, r) {
		return
	}
	var room [MaxPools + 1]wanted
	wants, hold := s.premises(c, x, false, room[:len(c.Pools)], r)
	if !hold {
		return
	}
	if x.Attempts >= x.Pin.Limits.MaxAttempts {
		r.Code, r.Limit = AttemptLimit, int64(x.Pin.Limits.MaxAttempts)
		return // repeats by itself, so it is neither counted nor remembered
	}

	x = s.ownSession(k, x)
	x.Attempts++
	x.Used = s.now
	r.Rule = c.Verdict.Rule
	r.Code = s.admit(c, x, wants, nil, r)
	if r.Code != Admitted && r.Code != Queued && r.Code != ApprovalRequired {
		x.refuse(c, wants, s.now, r)
	}
	r.Counters = x.Counters()
}

// refuse remembers a refusal, with what its answer says.
func (x *Session) refuse(c *Begin, wants []wanted, now time.Duration, r *Result) {
	value := uint64(r.Elapsed)
	switch r.Code {
	case BreakerOpen:
		value = uint64(now + r.RetryAfter)
	case BudgetExceeded:
		value = rememberBudget(c, r)
	case ApprovalDenied:
		value = uint64(r.Approval.Why)
	}
	for i := range wants {
		if len(r.Pools) > 0 && c.poolAt(i) == r.Pools[0] {
			value = uint64(i) // which pool had no room
			if r.Code == RateLimited {
				value = rememberRate(i-len(c.Pools), now+r.RetryAfter)
			}
		}
	}
	x.IDs.Add(remembered(c.Call, c.Content, r.Code, c.Verdict.Rule, value))
}

// slots takes all the slots that a call asks for, of pools and of rates, or a
// place in the queue of the first pool that has none, or nothing. If it was asked
// about, was is the open call.
func (s *State) slots(c *Begin, x *Session, wants []wanted, was *Held, r *Result) Code {
	var until time.Duration
	if c.Wait > 0 {
		until = s.now + c.Wait
	}
	full, how := len(wants), limiter.Granted
	for i := range wants {
		w := &wants[i]
		w.Until, w.Priority = until, c.Priority
		if w.per > 0 && w.pool != nil && !w.pool.Suits(s.now, w.per) {
			w.pool = s.ownRate(w.key, w.pool, w.per)
		}
		if w.pool == nil {
			if w.Weight <= w.Slots {
				continue
			}
			how = limiter.Refused
		} else {
			how = w.pool.Try(s.now, w.Request)
		}
		if how != limiter.Granted {
			full = i
			break
		}
	}
	switch how {
	case limiter.Refused:
		if full >= len(c.Pools) {
			return s.noRate(wants[full], r)
		}
		return s.noRoom(wants[full], r, ConcurrencyLimit)
	case limiter.QueueFull:
		return s.noRoom(wants[full], r, QueueFull)
	}

	h := Held{
		Holder: holder(KindSession, c.Session, c.Call), Content: c.Content, Started: s.now,
		Deadline: s.now + c.TTL, Tokens: c.Tokens, Tool: s.name(c.Tool), Rule: c.Verdict.Rule, Kind: c.CallKind,
		Pools: make([]Hold, len(wants)),
	}
	var holdUntil time.Duration
	if full < len(wants) {
		h.Until, h.Deadline = until, s.waitDeadline(until)
	} else if c.MaxHold > 0 {
		holdUntil = s.now + c.MaxHold
		h.Deadline = min(h.Deadline, holdUntil)
	}
	for i := range wants {
		w := &wants[i]
		h.Pools[i] = Hold{Pool: s.name(c.poolAt(i)), Weight: w.Weight}
		if i > full {
			continue
		}
		w.Holder, w.Expires, w.HoldUntil = h.Holder, h.Deadline, holdUntil
		w.pool = s.ownRate(w.key, w.pool, w.per)
		_, token, position := w.pool.Acquire(s.now, w.Request)
		h.Pools[i].Token = token
		if i == full {
			r.Queue = Place{c.poolAt(i), int32(position)}
		}
	}
	if was != nil {
		x.remove(c.Call)
	}
	x.reserve(&h)
	if was.hasApproval() && c.Asking != nil {
		h.ask(was.Asked())
	}
	switch {
	case h.Until == 0:
		s.admitted(c, x, &h, r)
	case h.Asked() != nil:
		s.queueAsked(c, &h)
	}
	x.add(h)
	s.pressure(&wants[0], x, r)
	if h.Waiting() {
		return Queued
	}
	return Admitted
}

// admitted is what happens when a call is admitted, at once or by its claim.
func (s *State) admitted(c *Begin, x *Session, h *Held, r *Result) {
	s.useApproval(c, x, h, r)
	s.spend(c, h)
	s.charge(c, h, r)
	s.grants(h, r)
}

// noRoom refuses for want of a slot, and says when trying may be worth it.
func (s *State) noRoom(w wanted, r *Result, code Code) Code {
	limit := w.limit()
	r.RetryAfter = time.Second
	if w.pool != nil {
		// The exact next event: Due may name an earlier instant on one replica
		// and not on another.
		r.RetryAfter = min(max(w.pool.Next()-s.now, 50*time.Millisecond), time.Second)
		r.Pressure = Pressure{InUse: w.pool.InUse(), Limit: limit, Threshold: cmp.Or(w.threshold, limit)}
	}
	r.Limit = int64(limit)
	r.Pools = []string{w.key.name}
	return code
}

// reserve counts a call that is admitted or waits.
func (x *Session) reserve(h *Held) {
	x.Reserved += h.Tokens
	if h.Kind == Tool || h.Kind == Model {
		x.Calls++
	}
	if h.Kind == Tool {
		if i := x.tool(h.Tool); i >= 0 {
			x.editTools()[i].Calls++
		} else {
			x.Tools = append(x.editTools(), ToolCount{Tool: h.Tool, Calls: 1})
		}
	}
	x.countKind(h, 1)
}

func (s *State) grants(h *Held, r *Result) {
	r.Grants = s.newGrants(len(h.Pools))
	for i, p := range h.Pools {
		r.Grants[i] = Grant{p.Pool.Value(), p.Token, s.left(h.Deadline)}
	}
}

// newGrants cuts grants from a block that the answers of an entry share.
func (s *State) newGrants(n int) []Grant {
	if len(s.spare) < n {
		s.spare = make([]Grant, 64)
	}
	g := s.spare[:n:n]
	s.spare = s.spare[n:]
	return g
}

func (s *State) pressure(w *wanted, x *Session, r *Result) {
	if w.pool != nil {
		r.Pressure = Pressure{w.pool.InUse(), x.Pin.Limits.MaxConcurrent, x.Pin.Limits.Backpressure}
	}
}

// recall answers an id that was finished.
func (s *State) recall(m *ids.Remembered, c *Begin, x *Session, r *Result) {
	if m.Content != c.Content {
		r.Code = IDReused
		return
	}
	r.Repeat, r.Code, r.Rule = true, Code(m.Code()), m.Rule()
	switch r.Code {
	case Ended:
		r.Code = AlreadyEnded
	case SessionClosed:
		r.Signal = x.killed(c.Session)
	case TimedOut:
		r.Elapsed, r.Limit = time.Duration(m.Value), int64(x.Pin.Limits.Timeout)
	case ConcurrencyLimit, QueueFull:
		if name := c.poolAt(int(m.Value)); name != "" {
			r.Pools = []string{name}
		}
	case RateLimited:
		r.Pools = []string{c.poolAt(len(c.Pools) + s.recallRate(m.Value, r))}
	case CallLimit:
		r.Limit = int64(x.Pin.Limits.MaxToolCalls)
	case TokenLimit:
		r.Limit = x.Pin.Limits.MaxTokens
	case KindLimitReached:
		most, _ := x.Pin.Limits.kind(c.CallKind)
		r.Limit = int64(most)
	case BreakerOpen:
		r.Limit, r.RetryAfter = int64(x.Pin.Limits.MaxFailures), s.left(time.Duration(m.Value))
	case BudgetExceeded:
		recallBudget(c, m.Value, r)
	case ApprovalDenied, ApprovalExpired:
		s.recallApproval(c, m.Value, r)
	}
}

// beginAgain answers a call that is open: the first answer if it was admitted;
// if it waits, this is its claim.
func (s *State) beginAgain(c *Begin, k ref, x *Session, h *Held, r *Result) {
	if h.Content != c.Content {
		r.Code = IDReused
		return
	}
	if h.Parked() {
		s.askedAgain(c, k, x, h, r)
		r.Counters = s.session(k).Counters()
		return
	}
	// Its slots are in the pools of the first asking, no more and no less, and so is its wait.
	same := len(c.Pools) <= len(h.Pools)
	for i := range h.Pools {
		same = same && c.poolAt(i) == h.Pools[i].Pool.Value()
	}
	if !same {
		r.Code, r.Pools = StalePremise, h.PoolNames()
		return
	}
	r.Repeat, r.Rule = true, h.Rule
	if !h.Waiting() && !h.isAgreed(c) {
		r.Code, r.Repeat = IDReused, false
	} else if !h.Waiting() && !s.leased(c.NS, h) {
		r.Code = LeaseLost
	} else if !h.Waiting() {
		r.Code = Admitted
		s.grants(h, r)
	} else if !x.asks(c, r) {
	} else if h.Asked() != nil && !s.askStands(c, k, x, h, r) {
		x = s.session(k)
	} else if s.budgetsStand(c, r) {
		x = s.ownSession(k, x)
		x.Used = s.now
		if h = x.edit(c.Call); !s.halted(c, x, h, r) && !s.asksNoMore(c, x, h, r) {
			r.Code = s.claim(c, x, h, r)
			s.tellParked(c, x, r)
		}
	}
	r.Counters = x.Counters()
	s.pressure(&wanted{pool: s.pool(ref{KindPool, c.NS, c.Pools[0].Pool})}, x, r)
}

// leased reports whether every slot of a call is there: a pool may have been
// deleted by force, and made again.
func (s *State) leased(ns string, h *Held) bool {
	for _, hold := range h.Pools {
		p := s.pool(ref{KindPool, ns, hold.Pool.Value()})
		if p == nil {
			return false
		}
		if _, there := p.Lease(hold.Token); !there {
			return false
		}
	}
	return true
}

// claim takes the slot that was handed to a waiting call, and goes on to the
// pools behind it. A waiting call stands in one queue at a time. Only the slot
// that it claims is held to the limit of its pool: the slots that it has in the
// pools before are held like any others, and a limit that is lowered revokes
// nothing that is held. A call whose session has timed out will not be admitted
// any more.
func (s *State) claim(c *Begin, x *Session, h *Held, r *Result) Code {
	if elapsed, limit := s.now-x.Opened, x.Pin.Limits.Timeout; elapsed > limit && h.Asked() == nil {
		r.Elapsed, r.Limit = elapsed, int64(limit)
		return s.giveUp(c.NS, x, h, TimedOut, uint64(elapsed))
	}
	h.Pools = slices.Clone(h.Pools)
	h.Deadline = s.waitDeadline(h.Until)
	waitsAt := slices.IndexFunc(h.Pools, func(p Hold) bool { return p.Token == 0 })
	for i := range h.Pools {
		hold := &h.Pools[i]
		k := ref{KindPool, c.NS, hold.Pool.Value()}
		p := s.pool(k)
		rate := i - len(c.Pools)
		if p == nil && (rate < 0 || c.Rates[rate].Per == 0 || i == waitsAt) {
			return s.giveUp(c.NS, x, h, WaitTimeout, uint64(i))
		}
		var per time.Duration
		if rate >= 0 {
			per = c.Rates[rate].Per
		}
		p = s.ownRate(k, p, per)
		if hold.Token != 0 {
			if !p.Extend(s.now, hold.Token, h.Deadline, 0) {
				return s.giveUp(c.NS, x, h, WaitTimeout, uint64(i))
			}
			continue
		}
		q := limiter.Request{
			Holder: h.Holder, Weight: hold.Weight, Slots: x.Pin.Limits.MaxConcurrent, Queue: DefaultQueue,
			Expires: h.Deadline, Until: h.Until, Priority: c.Priority,
		}
		switch {
		case per > 0:
			q.Slots = c.Rates[rate].Limit
		case i > 0:
			q.Slots, q.Queue = 0, p.MaxQueue
		}
		ask := func() (limiter.Admission, uint64, int) { return p.Claim(s.now, h.Holder) }
		if i > waitsAt {
			ask = func() (limiter.Admission, uint64, int) { return p.Acquire(s.now, q) }
		}
		how, token, position := ask()
		switch how {
		case limiter.Granted:
			hold.Token = token
			p.Extend(s.now, token, h.Deadline, 0)
		case limiter.Queued:
			p.Hear(s.now, h.Holder)
			r.Queue = Place{hold.Pool.Value(), int32(position)}
			return Queued
		case limiter.QueueFull:
			return s.giveUp(c.NS, x, h, QueueFull, uint64(i))
		default:
			code := WaitTimeout
			if p.Put && hold.Weight > p.Slots {
				code, r.Limit = ConcurrencyLimit, int64(p.Slots)
			}
			if code == ConcurrencyLimit && rate >= 0 {
				r.Pools = []string{hold.Pool.Value()}
				return s.giveUp(c.NS, x, h, RateLimited, rememberRate(rate, s.now))
			}
			return s.giveUp(c.NS, x, h, code, uint64(i))
		}
	}

	if code := s.breakerAllows(c, x, r); code != Done {
		return s.giveUp(c.NS, x, h, code, uint64(s.now+r.RetryAfter))
	}
	if code := s.budgetsAllow(c, r); code != Done && !seeded.On(seeded.ClaimUnpaid) {
		return s.giveUp(c.NS, x, h, code, rememberBudget(c, r))
	}
	if !s.approved(c, x, h) {
		return s.askInstead(c, x, h, r)
	}
	var holdUntil time.Duration
	h.Until, h.Started, h.Deadline = 0, s.now, s.now+c.TTL
	if c.MaxHold > 0 {
		holdUntil = s.now + c.MaxHold
		h.Deadline = min(h.Deadline, holdUntil)
	}
	s.admitted(c, x, h, r)
	for _, hold := range h.Pools {
		k := ref{KindPool, c.NS, hold.Pool.Value()}
		s.ownPool(k, s.pool(k)).Extend(s.now, hold.Token, h.Deadline, holdUntil)
	}
	return Admitted
}

// giveUp ends a wait: what was held and reserved goes back. The value is
// remembered with the code: the number of a pool, or what has elapsed. A call that
// is approved waits on for room, as long as its approval stands.
func (s *State) giveUp(ns string, x *Session, h *Held, code Code, value uint64) Code {
	over := *h
	s.letGo(ns, &over)
	if over.Asked() != nil && code.wantOfRoom() {
		x.park(h)
		return code
	}
	s.forget(ns, x, &over)
	x.IDs.Add(remembered(over.ID(), over.Content, code, over.Rule, value))
	return code
}

// forget takes away a call that was not admitted, with what was reserved for it
// and the approval that it waits for.
func (s *State) forget(ns string, x *Session, over *Held) {
	x.remove(over.ID())
	x.Reserved -= over.Tokens
	x.unreserve(over)
	if over.Asked() != nil {
		_, id, call := SplitHolder(over.Holder)
		s.finishApproval(approvalOf(ns, id, call), approval.Cancelled)
	}
}
