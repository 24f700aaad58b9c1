package session

import (
	"time"

	"example.com/govnode/internal/seeded"
	"example.com/govnode/session/approval"
)

// What a call does that waits for an approval: see Approvals.

// Asked returns the clock of the approval that a call waits for; nil if it waits
// for none.
func (h *Held) Asked() *approval.Clock {
	if h.Gates == nil {
		return nil
	}
	return h.Gates.Asked
}

// Parked reports whether a call waits for an approval, and for nothing else yet.
func (h *Held) Parked() bool { return h.Until == 0 && h.Asked() != nil }

// ask puts the clock of an approval into what has it; nil takes it out.
func (h *Held) ask(clock *approval.Clock) {
	h.changeGates(func(g *HeldGates) { g.Asked = clock })
}

// agreed keeps what people have agreed to, for whoever comes with something else
// of the same fingerprint.
func (h *Held) agreed(c *Begin) {
	if c.Asking == nil {
		return
	}
	h.changeGates(func(g *HeldGates) { g.Request = c.Asking.Request })
}

// isAgreed reports whether what a call that runs asks for is what people, or what
// stands, have agreed to.
func (h *Held) isAgreed(c *Begin) bool {
	return c.Asking == nil || h.Gates == nil || h.Gates.Request == (Digest{}) || h.Gates.Request == c.Asking.Request
}

// park takes a call out of all queues, and lets it wait for its approval alone.
// What it had in pools is given back by the caller.
func (x *Session) park(h *Held) {
	x.Reserved -= h.Tokens
	x.unreserve(h)
	h.Until, h.Pools, h.Tokens, h.Deadline = 0, nil, 0, h.Asked().Deadline
}

// goesOn settles a call that is asked about, and reports whether it is open still:
// one that stood in a queue waits on, and one that time has approved may come back.
func (x *Session) goesOn(i int) bool {
	h := &x.Open[i]
	if h.Asked() == nil {
		return false
	}
	clock := *h.Asked()
	if h.Until == 0 && !clock.Pass(h.Deadline) {
		return false
	}
	x.editOpen()
	h = &x.Open[i]
	x.Used = max(x.Used, h.Deadline)
	if h.Until != 0 {
		x.park(h)
		return true
	}
	h.ask(&clock)
	h.Deadline = clock.Deadline
	return true
}

// pending counts the calls that somebody has to decide about.
func (x *Session) pending() (n uint32) {
	for i := range x.Open {
		if clock := x.Open[i].Asked(); clock != nil && !clock.Approved {
			n++
		}
	}
	return n
}

// namesApproval reports whether the command may look at the approval of its call.
func (c *Begin) namesApproval() bool { return c.Asking != nil || c.Asked }

// asks reports whether it is the agent of the session for whom a call asks, if it
// does: what stands for another one is not for it.
func (x *Session) asks(c *Begin, r *Result) bool {
	if c.Asking == nil || c.Asking.Agent == x.Agent.Value() {
		return true
	}
	r.Code = StalePremise // another session stands under this id by now
	return false
}

// asksNoMore ends the approval of a call in a queue whose verdict does not ask any
// more. If it allows, the call waits like any other from here on; if it denies, the
// call has ended, and so it reports.
func (s *State) asksNoMore(c *Begin, x *Session, h *Held, r *Result) bool {
	switch {
	case c.Asking != nil || h.Asked() == nil:
		return false
	case c.Verdict.Allow:
		s.finishApproval(approvalOf(c.NS, c.Session, c.Call), approval.Cancelled)
		h.ask(nil)
		return false
	}
	r.Rule = c.Verdict.Rule
	h.Rule = r.Rule
	r.Code = s.giveUp(c.NS, x, h, Denied, 0)
	return true
}

// tellParked says of a claim that found no room, and parked its call again, that
// the approval stands.
func (s *State) tellParked(c *Begin, x *Session, r *Result) {
	if h := x.Find(c.Call); h == nil || !h.Parked() || !r.Code.wantOfRoom() {
		return
	}
	k := approvalOf(c.NS, c.Session, c.Call)
	if a := s.approval(k); a != nil {
		r.Approval = a.Count(k.name, s.now)
	}
}

// approved reports whether a call needs no approval, or has one: its own, or one
// that stands.
func (s *State) approved(c *Begin, x *Session, was *Held) bool {
	if c.Asking == nil || was.hasApproval() {
		return true
	}
	_, there := s.standingFor(c, x)
	return there != nil
}

// hasApproval is of a call that was asked about; h may be nil.
func (h *Held) hasApproval() bool { return h != nil && h.Asked() != nil && h.Asked().Approved }

// ask parks a call until somebody has decided. Nobody is asked about too many at
// once.
func (s *State) ask(c *Begin, x *Session, r *Result) Code {
	q := c.Asking
	if x.pending() >= q.MaxPending {
		r.Limit = int64(q.MaxPending)
		r.Approval = &ApprovalCount{ID: ApprovalID(c.NS, c.Session, c.Call), State: approval.Denied, Why: RefusedTooMany}
		return ApprovalDenied
	}
	k := approvalOf(c.NS, c.Session, c.Call)
	before := s.approval(k)
	if before != nil && before.Request != q.Request { // somebody may have that one before him
		r.Approval = before.Count(k.name, s.now)
		r.Approval.Why = RefusedOtherThing
		return ApprovalDenied
	}
	a := &Approval{
		entry: s.entry, Session: c.Session, Call: c.Call, Agent: x.Agent.Value(), Tool: c.Tool,
		Policy: c.Digest, Rule: q.Rule, Request: q.Request, Preview: q.Preview, Reason: q.Reason, Asked: s.now,
		Approval: approval.Approval{
			Clock:   approval.Clock{AllowOnTimeout: q.AllowOnTimeout, Timeout: q.Timeout, Deadline: s.now + q.Timeout},
			ForCall: true, Required: q.Required, Denials: q.Denials,
		},
		Kind: c.CallKind, Server: q.Server, By: c.principal(),
	}
	if before != nil && !before.Approved && before.End == approval.Cancelled {
		a.Votes, a.By = before.Votes, before.By                             // it was called off for what stood, which has gone
		a.AllowOnTimeout = a.AllowOnTimeout && a.Approval.Count(false) == 0 // a vote to deny has ended that
	}
	s.write(k, a)
	clock := a.Clock
	x.add(Held{
		Holder: holder(KindSession, c.Session, c.Call), Content: c.Content, Started: s.now, Deadline: clock.Deadline,
		Tool: s.name(c.Tool), Rule: c.Verdict.Rule, Kind: c.CallKind, Gates: &HeldGates{Asked: &clock},
	})
	r.Approval = a.Count(k.name, s.now)
	return ApprovalRequired
}

// askStands reports whether the approval that a call waits for is there, and was
// asked for this very request: an agent can find another one of the same
// fingerprint. If not, the call is answered.
func (s *State) askStands(c *Begin, k ref, x *Session, h *Held, r *Result) bool {
	ak := approvalOf(c.NS, c.Session, c.Call)
	if !c.namesApproval() {
		r.Code, r.Approval = StalePremise, &ApprovalCount{ID: ak.name}
		return false
	}
	a, why := s.approval(ak), RefusedOtherThing
	switch {
	case a == nil || !a.Open():
		why = RefusedCancelled // it was lost
	case c.Asking == nil || a.Request == c.Asking.Request || seeded.On(seeded.OtherThing):
		return true
	}
	x = s.ownSession(k, x)
	over := *h
	s.letGo(c.NS, &over)
	s.finishApproval(ak, approval.Cancelled)
	x.refuseAsked(c.Call, why, s.now)
	r.Code, r.Repeat, r.Rule = ApprovalDenied, true, over.Rule
	s.recallApproval(c, uint64(why), r)
	return false
}

// askedAgain answers a call that was asked about and comes back: as long as
// nobody has decided it is answered so; then it is judged again, by everything but
// its attempt and the session's timeout, for it had begun in time.
func (s *State) askedAgain(c *Begin, k ref, x *Session, h *Held, r *Result) {
	if !s.askStands(c, k, x, h, r) || s.stopped(c.NS, c.Session, x, r) {
		return
	}
	ak := approvalOf(c.NS, c.Session, c.Call)
	a := s.approval(ak)
	if !s.approved(c, x, h) {
		r.Code, r.Repeat, r.Rule, r.Approval = ApprovalRequired, true, h.Rule, a.Count(ak.name, s.now)
		return
	}
	var room [MaxPools + 1]wanted
	wants, hold := s.premises(c, x, true, room[:len(c.Pools)], r)
	if !hold {
		return
	}
	x = s.ownSession(k, x)
	x.Used = s.now
	was := *h
	r.Repeat, r.Rule = true, c.Verdict.Rule
	switch r.Code = s.admit(c, x, wants, &was, r); {
	case r.Code == Admitted, r.Code == Queued:
		if x.Find(c.Call).Asked() == nil {
			s.finishApproval(ak, approval.Cancelled) // unless it was used: nobody has to decide
		}
	case c.Asking != nil && r.Code.wantOfRoom():
		r.Approval = a.Count(ak.name, s.now)
	default:
		s.finishApproval(ak, approval.Cancelled)
		x.remove(c.Call)
		x.refuse(c, wants, s.now, r)
	}
}

// wantOfRoom reports whether a refusal says that there was no room: the same call
// may find some later.
func (c Code) wantOfRoom() bool {
	return c == ConcurrencyLimit || c == QueueFull || c == WaitTimeout || c == RateLimited
}

// refuseAsked ends a call that was asked about and has nothing in any pool.
func (x *Session) refuseAsked(call string, why Refusal, now time.Duration) {
	h := *x.Find(call)
	x.Used = now
	x.remove(call)
	x.endAsked(&h, why)
}

func (x *Session) endAsked(h *Held, why Refusal) {
	x.Reserved -= h.Tokens
	x.unreserve(h)
	x.IDs.Add(remembered(h.ID(), h.Content, ApprovalDenied, h.Rule, uint64(why)))
}

// queueAsked lets an approved call keep its approval while it stands in a queue:
// until the end of its wait, and until what it is handed then is claimed.
func (s *State) queueAsked(c *Begin, h *Held) {
	clock := *h.Asked()
	clock.Deadline = max(clock.Deadline, h.Until+claimTTL)
	h.ask(&clock)
	k := approvalOf(c.NS, c.Session, c.Call)
	if a := s.approval(k); a != nil && a.Deadline != clock.Deadline {
		s.ownApproval(k, a).Deadline = clock.Deadline
	}
}

// askInstead parks a call that stood in a queue by a standing approval which is
// not there any more.
func (s *State) askInstead(c *Begin, x *Session, h *Held, r *Result) Code {
	over := *h
	s.letGo(c.NS, &over)
	s.forget(c.NS, x, &over)
	code := s.ask(c, x, r)
	r.Repeat = false // people are asked now
	if code != ApprovalRequired {
		r.Code = code
		x.refuse(c, nil, s.now, r)
	}
	return code
}

// recallApproval shows what a call was refused for.
func (s *State) recallApproval(c *Begin, value uint64, r *Result) {
	k := approvalOf(c.NS, c.Session, c.Call)
	if c.namesApproval() {
		if a := s.approval(k); a != nil && !a.Open() {
			r.Approval = a.Count(k.name, s.now)
			r.Approval.Why = Refusal(value)
			return
		}
	}
	n := &ApprovalCount{ID: k.name, State: approval.Expired}
	if r.Code == ApprovalDenied {
		if n.State, n.Why = approval.Cancelled, Refusal(value); n.Why == RefusedByVote || n.Why == RefusedTooMany {
			n.State = approval.Denied
		}
	}
	r.Approval = n
}

// useApproval uses what a call was approved by, once it is admitted.
func (s *State) useApproval(c *Begin, x *Session, h *Held, r *Result) {
	switch {
	case h.Asked() != nil:
		k := approvalOf(c.NS, c.Session, c.Call)
		if a := s.finishApproval(k, approval.Used); a != nil {
			r.Approval = a.Count(k.name, s.now)
		}
		h.ask(nil)
		h.agreed(c)
	case c.Asking != nil:
		s.useStanding(c, x)
		h.agreed(c)
	}
}

// AskedCalls lists the calls of a session that wait for approvals, in the order
// in which they come.
func (x *Session) AskedCalls() (calls []string) {
	for i := range x.Open {
		if x.Open[i].Asked() != nil {
			calls = append(calls, x.Open[i].ID())
		}
	}
	return calls
}

// asksNamed reports whether a premise names every call that waits for an approval.
func (x *Session) asksNamed(calls []string) bool {
	for _, call := range x.AskedCalls() {
		if !contains(calls, call) {
			return false
		}
	}
	return true
}
