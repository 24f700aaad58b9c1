package model

import (
	"cmp"
	"slices"
	"time"

	"example.com/govnode/session"
	"example.com/govnode/session/approval"
)

// How calls are admitted.

// begin decides a call, in this order: known id, session open, signals, premises,
// attempts, verdict, timeout, calls, calls of the kind, breaker, calls of the
// tool, tokens, budgets, approval, slots.
func (s *space) begin(c *session.Begin, r *session.Result) {
	x := s.look(c.Session)
	if x == nil {
		r.Code = session.NotFound
		return
	}
	r.Counters = x.Counters
	if h := find(x.open, c.Call); h != nil {
		s.beginAgain(c, x, h, r)
		return
	}
	if f := x.ids.find(c.Call); f != nil {
		s.recall(c, x, f, r)
		return
	}
	switch {
	case stale(c.Call, x.ids.forgot, r):
		return
	case x.phase != session.PhaseOpen:
		r.Code, r.Signal = session.SessionClosed, x.killedBy()
		return
	case s.stopped(x, r):
		return
	case !s.premises(c, x, false, r):
		return
	case x.Attempts >= x.limits.MaxAttempts:
		r.Code, r.Limit = session.AttemptLimit, int64(x.limits.MaxAttempts)
		return
	}
	x.Attempts++
	x.used = s.Now
	r.Rule = c.Verdict.Rule
	var value uint64
	r.Code, value = s.admit(c, x, nil, r)
	if r.Code != session.Admitted && r.Code != session.Queued && r.Code != session.ApprovalRequired {
		x.ids.add(finished{c.Call, c.Content, r.Code, c.Verdict.Rule, value})
	}
	r.Counters = x.Counters
}

// premises reports whether what the node took for granted holds. If not, nothing
// is counted. A call that comes again is open already.
func (s *space) premises(c *session.Begin, x *sess, again bool, r *session.Result) bool {
	own := "policy/" + x.policy
	if c.Digest != x.digest {
		r.Code, r.Digest = session.StalePremise, x.digest
		return false
	}
	if c.Pools[0].Pool != own {
		r.Code, r.Pools = session.StalePremise, []string{own}
		return false
	}
	for _, w := range c.Pools[1:] {
		p := s.pools[w.Pool]
		if p == nil {
			r.Code, r.Pools = session.NotFound, []string{w.Pool}
			return false
		}
		if w.Weight > p.slots {
			r.Code, r.Limit, r.Pools = session.Invalid, int64(p.slots), []string{w.Pool}
			return false
		}
	}
	if !x.asker(c, r) {
		return false
	}
	if c.Hashes != s.hashed {
		r.Code = session.StalePremise
		return false
	}
	var facts []int64
	holds := true
	for _, p := range c.Seen {
		v := s.fact(p, x)
		facts = append(facts, v)
		holds = holds && p.Lo <= v && v <= p.Hi
	}
	switch {
	case !holds:
		r.Code, r.Facts = session.StalePremise, facts
	case !s.budgetsStand(c, r):
	case !again && len(x.open) >= maxOpen:
		r.Code = session.TooManyOpen
	case x.named(c) && len(x.tools) >= maxTools && !slices.ContainsFunc(x.tools, func(t tool) bool { return t.name == c.Tool }):
		r.Code = session.TooManyTools
	default:
		return s.ratesThere(c, r)
	}
	return false
}

// asker reports whether it is the agent of the session for whom a call asks.
func (x *sess) asker(c *session.Begin, r *session.Result) bool {
	if c.Asking == nil || c.Asking.Agent == x.agent {
		return true
	}
	r.Code = session.StalePremise
	return false
}

func (s *space) fact(p session.Premise, x *sess) int64 {
	switch p.Fact {
	case session.FactCalls:
		return int64(x.Calls)
	case session.FactAttempts:
		return int64(x.Attempts)
	case session.FactTokens:
		return x.Tokens + x.reserved
	case session.FactToolCalls:
		return int64(x.toolCalls(p.Name))
	case session.FactElapsed:
		return int64(s.Now - x.opened)
	case session.FactActiveSlots:
		if own := s.pools["policy/"+x.policy]; own != nil {
			return int64(own.inUse())
		}
	}
	return 0
}

// admit also returns what is to be remembered beside a refusal: how old the
// session was, or which pool had no room. was is how the call is open, if it was
// asked about.
func (s *space) admit(c *session.Begin, x *sess, was *held, r *session.Result) (session.Code, uint64) {
	l := x.limits
	elapsed := s.Now - x.opened
	if !c.Verdict.Allow && c.Asking == nil {
		return session.Denied, 0
	}
	if elapsed > l.Timeout && was == nil {
		r.Elapsed, r.Limit = elapsed, int64(l.Timeout)
		return session.TimedOut, uint64(elapsed)
	}
	if (c.CallKind == session.Tool || c.CallKind == session.Model) && x.Calls >= l.MaxToolCalls {
		r.Limit = int64(l.MaxToolCalls)
		return session.CallLimit, 0
	}
	if code := x.kindLimit(c, r); code != session.Done {
		return code, 0
	}
	if code := x.breaker(s.Now, c.Call, r); code != session.Done {
		return code, uint64(s.Now + r.RetryAfter)
	}
	for _, t := range l.PerTool {
		if c.CallKind == session.Tool && t.Tool == c.Tool && x.toolCalls(c.Tool) >= t.Max {
			r.Limit = int64(t.Max)
			return session.ToolLimitReached, 0
		}
	}
	if c.Tokens > l.MaxTokens {
		r.Limit = l.MaxTokens
		return session.TokenLimit, 0
	}
	if code, value := s.budgetsAllow(c, r); code != session.Done {
		return code, value
	}
	if !s.mayRun(c, was) {
		return s.ask(c, x, r)
	}
	return s.slots(c, x, was, r)
}

// slots takes all slots that a call asks for; or those before the first pool
// without room, and a place in the queue of that; or nothing.
func (s *space) slots(c *session.Begin, x *sess, was *held, r *session.Result) (session.Code, uint64) {
	h := &held{
		id: c.Call, tool: c.Tool, content: c.Content, kind: c.CallKind, rule: c.Verdict.Rule, tokens: c.Tokens,
		started: s.Now, deadline: s.Now + c.TTL,
	}
	var until, holdUntil time.Duration
	if c.Wait > 0 {
		until = s.Now + c.Wait
	}
	wants := wantsOf(c, x.limits.MaxConcurrent)
	ask := func(i int) request {
		w := &wants[i]
		q := request{ticket: ticket{
			holder: holder('s', x.id, c.Call), weight: w.weight, priority: c.Priority, slots: w.slots, until: until,
		}, room: queueLen}
		if p := s.pools[w.pool]; w.slots == 0 {
			q.room = p.maxQueue
		}
		return q
	}
	full := len(wants)
	for i, w := range wants {
		p := s.pools[w.pool]
		how := refused
		if p != nil {
			p.under(s.Now, w.per)
			how = p.try(s.Now, ask(i))
		} else if w.weight <= w.slots { // nobody used it yet
			how = granted
		}
		threshold := int32(0)
		switch {
		case i == 0:
			threshold = x.limits.Backpressure
		case p != nil:
			threshold = p.threshold
		}
		switch how {
		case refused:
			if i >= len(c.Pools) {
				return s.noRate(p, w.pool, ask(i).ticket, i-len(c.Pools), r)
			}
			return s.noRoom(p, w.pool, ask(i).slots, threshold, session.ConcurrencyLimit, r), uint64(i)
		case queueFull:
			return s.noRoom(p, w.pool, ask(i).slots, threshold, session.QueueFull, r), uint64(i)
		case queued:
			full = i
		}
		if full == i {
			break
		}
	}
	if full < len(wants) {
		h.until, h.deadline = until, s.waitDeadline(until)
	} else if c.MaxHold > 0 {
		holdUntil = s.Now + c.MaxHold
		h.deadline = min(h.deadline, holdUntil)
	}
	for i, w := range wants {
		at := hold{pool: w.pool, weight: w.weight}
		if i <= full {
			q := ask(i)
			q.expires, q.holdUntil = h.deadline, holdUntil
			p := s.makePool(w.pool)
			p.under(s.Now, w.per)
			_, token, position := p.acquire(s.Now, q)
			at.token = token
			if i == full {
				r.Queue = session.Place{Pool: w.pool, Position: int32(position)}
			}
		}
		h.pools = append(h.pools, at)
	}
	if was != nil {
		x.open = without(x.open, was)
		if c.Asking != nil && was.asked.approved {
			h.asked = was.asked
		}
	}
	if h.until == 0 {
		s.use(c, h, r)
		s.spend(c, h)
		s.charge(c, h, r)
	} else if h.asked != nil { // it is kept until what is handed at the end of the wait is claimed
		h.asked.deadline = max(h.asked.deadline, h.until+claimTTL)
	}
	x.open = append(x.open, h)
	x.reserved += h.tokens
	x.count(h, 1)
	s.pressure(c, x, r)
	if h.until != 0 {
		return session.Queued, 0
	}
	s.grants(h, r)
	return session.Admitted, 0
}

// waitDeadline is how long something is kept that waits and is heard of now: its
// ticket may become a claim at the last instant.
func (s *space) waitDeadline(until time.Duration) time.Duration {
	return min(until, s.Now+ticketTTL) + claimTTL
}

// noRoom says when trying again may be worth it: with the next event of the
// pool, in 50 ms to 1 s. The pressure is that of every other answer.
func (s *space) noRoom(p *pool, name string, limit, threshold int32, code session.Code, r *session.Result) session.Code {
	r.RetryAfter = time.Second
	if p != nil {
		if limit == 0 {
			limit = p.slots
		}
		r.RetryAfter = min(max(p.next()-s.Now, 50*time.Millisecond), time.Second)
		r.Pressure = session.Pressure{InUse: p.inUse(), Limit: limit, Threshold: cmp.Or(threshold, limit)}
	}
	r.Limit, r.Pools = int64(limit), []string{name}
	return code
}

func (s *space) grants(h *held, r *session.Result) {
	for _, at := range h.pools {
		r.Grants = append(r.Grants, session.Grant{Pool: at.pool, Token: at.token, TTL: max(0, h.deadline-s.Now)})
	}
}

func (s *space) pressure(c *session.Begin, x *sess, r *session.Result) {
	if p := s.pools[c.Pools[0].Pool]; p != nil {
		r.Pressure = session.Pressure{InUse: p.inUse(), Limit: x.limits.MaxConcurrent, Threshold: x.limits.Backpressure}
	}
}

// recall answers an id that was finished.
func (s *space) recall(c *session.Begin, x *sess, f *finished, r *session.Result) {
	if f.content != c.Content {
		r.Code = session.IDReused
		return
	}
	r.Repeat, r.Code, r.Rule = true, f.code, f.rule
	switch f.code {
	case session.Ended:
		r.Code = session.AlreadyEnded
	case session.SessionClosed:
		r.Signal = x.killedBy()
	case session.TimedOut:
		r.Elapsed, r.Limit = time.Duration(f.value), int64(x.limits.Timeout)
	case session.ConcurrencyLimit, session.QueueFull:
		if wants := wantsOf(c, 0); f.value < uint64(len(wants)) {
			r.Pools = []string{wants[f.value].pool}
		}
	case session.RateLimited:
		r.RetryAfter = max(0, time.Duration(f.value>>4)*time.Microsecond-s.Now)
		name := ""
		if i := f.value & 15; i < uint64(len(c.Rates)) {
			name = c.Rates[i].Pool
		}
		r.Pools = []string{name}
	case session.CallLimit:
		r.Limit = int64(x.limits.MaxToolCalls)
	case session.TokenLimit:
		r.Limit = x.limits.MaxTokens
	case session.KindLimitReached:
		most, _ := limitOf(x.limits, c.CallKind)
		r.Limit = int64(most)
	case session.BreakerOpen:
		r.Limit, r.RetryAfter = int64(x.limits.MaxFailures), max(0, time.Duration(f.value)-s.Now)
	case session.ApprovalDenied, session.ApprovalExpired:
		s.recallApproval(c, f, r)
	case session.BudgetExceeded:
		if i := int(f.value >> 60); i < len(c.Budgets) {
			r.Budgets = []session.BudgetCount{{Budget: c.Budgets[i].Budget, Parent: c.Budgets[i].Parent, Amount: int64(f.value << 4 >> 4)}}
		}
	}
}

// beginAgain answers a call that is open; if it waits, this is its claim.
func (s *space) beginAgain(c *session.Begin, x *sess, h *held, r *session.Result) {
	if h.content != c.Content {
		r.Code = session.IDReused
		return
	}
	if h.parked() {
		s.askedAgain(c, x, h, r)
		r.Counters = x.Counters
		return
	}
	wants, same := wantsOf(c, x.limits.MaxConcurrent), len(c.Pools) <= len(h.pools)
	for i, at := range h.pools {
		same = same && i < len(wants) && wants[i].pool == at.pool
	}
	if !same {
		r.Code, r.Pools = session.StalePremise, poolsOf(h)
		return
	}
	r.Repeat, r.Rule = true, h.rule
	if h.until != 0 && (!x.asker(c, r) || h.asked != nil && !s.askedFor(c, x, h, r) || !s.budgetsStand(c, r)) {
	} else if h.until != 0 {
		x.used = s.Now
		switch {
		case s.halted(x, h, r):
		case h.asked != nil && c.Asking == nil && !c.Verdict.Allow: // it is not allowed any more
			h.asked.finish(approval.Cancelled, s.Now)
			s.letGo(h, 's', x.id)
			h.rule = c.Verdict.Rule
			x.giveBack(h, session.Denied, 0)
			r.Code, r.Rule = session.Denied, h.rule
		default:
			if h.asked != nil && c.Asking == nil { // it waits like any other then
				h.asked.finish(approval.Cancelled, s.Now)
				h.asked = nil
			}
			r.Code = s.claim(c, x, h, r)
			if h.parked() && wantOfRoom(r.Code) {
				r.Approval = s.shownApproval(h.asked)
			}
		}
	} else if c.Asking != nil && h.agreed != (session.Digest{}) && h.agreed != c.Asking.Request {
		r.Code, r.Repeat = session.IDReused, false
	} else {
		r.Code = session.Admitted
		for _, at := range h.pools {
			if p := s.pools[at.pool]; p == nil || p.lease(at.token) == nil {
				r.Code = session.LeaseLost // deleted by force
			}
		}
		if r.Code == session.Admitted {
			s.grants(h, r)
		}
	}
	r.Counters = x.Counters
	s.pressure(c, x, r)
}

// claim takes the slot that was handed to a waiting call, and goes on to the
// pools behind it.
func (s *space) claim(c *session.Begin, x *sess, h *held, r *session.Result) session.Code {
	giveUp := func(code session.Code, value uint64) session.Code {
		s.letGo(h, 's', x.id)
		switch {
		case h.asked != nil && wantOfRoom(code):
			x.park(h)
			return code
		case h.asked != nil:
			h.asked.finish(approval.Cancelled, s.Now)
		}
		x.giveBack(h, code, value)
		return code
	}
	if elapsed := s.Now - x.opened; elapsed > x.limits.Timeout && h.asked == nil {
		r.Elapsed, r.Limit = elapsed, int64(x.limits.Timeout)
		return giveUp(session.TimedOut, uint64(elapsed))
	}
	h.deadline = s.waitDeadline(h.until)
	wants := wantsOf(c, x.limits.MaxConcurrent)
	waitsAt := slices.IndexFunc(h.pools, func(at hold) bool { return at.token == 0 })
	for i := range h.pools {
		at := &h.pools[i]
		p := s.pools[at.pool]
		if p == nil && i > waitsAt && wants[i].per > 0 {
			p = s.makePool(at.pool) // a policy's, which nobody uses
		}
		if p == nil {
			return giveUp(session.WaitTimeout, uint64(i))
		}
		p.under(s.Now, wants[i].per)
		if i < waitsAt {
			l := p.lease(at.token)
			if l == nil {
				return giveUp(session.WaitTimeout, uint64(i))
			}
			l.expires = h.deadline
			continue
		}
		who := holder('s', x.id, h.id)
		q := request{
			ticket: ticket{holder: who, weight: at.weight, priority: c.Priority, until: h.until}, room: p.maxQueue, expires: h.deadline,
		}
		if wants[i].per > 0 {
			q.slots, q.room = wants[i].slots, queueLen
		}
		ask := func() (answer, uint64, int) { return p.acquire(s.Now, q) }
		if i == waitsAt {
			ask = func() (answer, uint64, int) { return p.claim(s.Now, who) }
		}
		switch how, token, position := ask(); how {
		case granted:
			at.token = token
			p.lease(token).expires = h.deadline
		case queued:
			p.hear(s.Now, who)
			r.Queue = session.Place{Pool: at.pool, Position: int32(position)}
			return session.Queued
		case queueFull:
			return giveUp(session.QueueFull, uint64(i))
		default:
			if p.put && at.weight > p.slots {
				r.Limit = int64(p.slots)
				if i >= len(c.Pools) {
					r.Pools = []string{at.pool}
					return giveUp(session.RateLimited, remembered(i-len(c.Pools), s.Now))
				}
				return giveUp(session.ConcurrencyLimit, uint64(i))
			}
			return giveUp(session.WaitTimeout, uint64(i))
		}
	}
	if code := x.breaker(s.Now, c.Call, r); code != session.Done {
		return giveUp(code, uint64(s.Now+r.RetryAfter))
	}
	if code, value := s.budgetsAllow(c, r); code != session.Done {
		return giveUp(code, value)
	}
	if !s.mayRun(c, h) { // what stood when it was queued does not any more
		s.letGo(h, 's', x.id)
		x.takeOut(h)
		code, value := s.ask(c, x, r)
		if r.Repeat = false; code != session.ApprovalRequired {
			x.ids.add(finished{c.Call, c.Content, code, c.Verdict.Rule, value})
		}
		return code
	}
	s.use(c, h, r)
	s.charge(c, h, r)
	h.until, h.started, h.deadline = 0, s.Now, s.Now+c.TTL
	var holdUntil time.Duration
	if c.MaxHold > 0 {
		holdUntil = s.Now + c.MaxHold
		h.deadline = min(h.deadline, holdUntil)
	}
	s.spend(c, h)
	for _, at := range h.pools {
		l := s.pools[at.pool].lease(at.token)
		l.expires, l.holdUntil = h.deadline, holdUntil
	}
	s.grants(h, r)
	return session.Admitted
}
