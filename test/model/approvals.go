package model

import (
	"slices"
	"strings"
	"time"

	"example.com/govnode/session"
	"example.com/govnode/session/approval"
)

// Approvals: calls that wait until somebody has decided, who decides, and what
// stands.

// appr is an approval. An open call that is asked about points to its own; there
// is no open one that no call points to, but for those that clients ask for.
type appr struct {
	id, session, call string // call is empty if a client asked
	agent, tool       string
	policy, request   session.Digest
	rule              uint16
	preview, reason   string
	required, denials uint32
	asked, timeout    time.Duration
	allow             bool // by time
	approved          bool
	deadline          time.Duration // to decide, or to come back
	votes             []approval.Vote
	end               approval.State // Pending as long as it is open
	ended             time.Duration
	kind              session.CallKind
	server            string
	by                session.Principal // who asked
}

// principal is who asks for a command; zero if nobody says.
func principal(c session.Command) (p session.Principal) {
	if a := c.Authority(); a != nil {
		p = a.Principal
	}
	return p
}

// stands is a standing approval.
type stands struct {
	of          session.StandingOf
	shown       string
	uses        uint32 // that are left; 0: no limit
	made, until time.Duration
	by          session.Principal // who made it
}

func (a *appr) open() bool { return a.end == approval.Pending }

func (a *appr) finish(as approval.State, at time.Duration) {
	if a.open() {
		a.end, a.ended = as, at
	}
}

func (a *appr) approve(at time.Duration) {
	a.approved = true
	if a.call == "" {
		a.finish(approval.Approved, at)
	} else {
		a.deadline = at + a.timeout
	}
}

// pass is what becomes of it at its deadline.
func (a *appr) pass() {
	if at := a.deadline; a.allow && !a.approved {
		a.approve(at)
	} else {
		a.finish(approval.Expired, at)
	}
}

func (a *appr) votesFor(approve bool) (n uint32) {
	for _, v := range a.votes {
		if v.Approve == approve {
			n++
		}
	}
	return n
}

func (a *appr) state() approval.State {
	if a.open() && a.approved {
		return approval.Approved
	}
	return a.end
}

func (s *space) shownApproval(a *appr) *session.ApprovalCount {
	n := &session.ApprovalCount{ID: a.id, State: a.state(), Required: a.required, Denials: a.denials, For: a.votesFor(true), Against: a.votesFor(false)}
	if a.open() {
		n.Left = a.deadline - s.Now
	}
	if st := a.state(); st == approval.Denied || (st == approval.Approved || st == approval.Used) && n.For >= a.required { // somebody's vote was the last that was needed
		last := a.votes[len(a.votes)-1]
		n.By, n.Reason = last.Approver, last.Reason
	}
	return n
}

// recallApproval shows the approval of a call that was refused: as it is, if the
// command may look at it and it is kept still.
func (s *space) recallApproval(c *session.Begin, f *finished, r *session.Result) {
	id, why := session.ApprovalID(c.NS, c.Session, c.Call), session.Refusal(f.value)
	if a := s.approvals[id]; a != nil && !a.open() && (c.Asking != nil || c.Asked) {
		r.Approval = s.shownApproval(a)
		r.Approval.Why = why
		return
	}
	r.Approval = &session.ApprovalCount{ID: id, State: approval.Expired}
	if f.code == session.ApprovalDenied {
		if r.Approval.State, r.Approval.Why = approval.Denied, why; why == session.RefusedCancelled || why == session.RefusedOtherThing {
			r.Approval.State = approval.Cancelled
		}
	}
}

// settleApprovals settles those that clients asked for, and drops what is over.
// What a call asked for is settled with the call.
func (s *space) settleApprovals() {
	for id, a := range s.approvals {
		if a.open() && a.call == "" && a.deadline <= s.Now {
			a.pass()
		}
		if !a.open() && a.ended+keptFor <= s.Now {
			delete(s.approvals, id)
		}
	}
	for id, a := range s.standings {
		if a.until <= s.Now {
			delete(s.standings, id)
		}
	}
}

// parked is of a call that waits for its approval, and in no queue.
func (h *held) parked() bool { return h.asked != nil && h.until == 0 }

// waits is of a call that was not admitted yet.
func (h *held) waits() bool { return h.asked != nil || h.until != 0 }

// park takes a call back to where it waits for its approval alone.
func (x *sess) park(h *held) {
	x.reserved -= h.tokens
	x.count(h, -1)
	h.until, h.pools, h.tokens, h.deadline = 0, nil, 0, h.asked.deadline
}

// pass is what becomes of a call that is asked about, at its deadline; gone tells
// that it is over.
func (x *sess) pass(h *held) (gone bool) {
	if h.until != 0 { // its wait for room is over, not its approval
		x.park(h)
		return false
	}
	h.asked.pass()
	h.deadline = h.asked.deadline
	return !h.asked.open()
}

// standing returns the narrowest that stands for a call that asks, and was made by
// somebody else than who asks.
func (s *space) standing(c *session.Begin) *stands {
	if c.Asking == nil || c.CallKind != session.Tool {
		return nil
	}
	who := []session.StandingOf{
		{Scope: session.OfSession, Name: c.Session}, {Scope: session.OfAgent, Name: c.Asking.Agent},
		{Scope: session.OfPolicy, Name: strings.TrimPrefix(c.Pools[0].Pool, "policy/")},
	}
	for _, of := range who {
		for _, exact := range []bool{true, false} {
			of.Server, of.Tool, of.Exact, of.Arguments = c.Asking.Server, c.Tool, exact, session.Digest{}
			if exact {
				of.Arguments = c.Asking.Arguments
			}
			for _, a := range s.standings {
				own := a.by != session.Principal{} && a.by == principal(c)
				if a.of == of && !own && (of.Scope != session.OfSession || a.made >= s.sessions[c.Session].opened) {
					return a
				}
			}
		}
	}
	return nil
}

// mayRun reports whether a call needs nobody's approval any more. was is how it
// is open, if it was asked about.
func (s *space) mayRun(c *session.Begin, was *held) bool {
	return c.Asking == nil || was != nil && was.asked != nil && was.asked.approved || s.standing(c) != nil
}

// ask lets a call wait until somebody has decided. It also returns what is
// remembered of a refusal.
func (s *space) ask(c *session.Begin, x *sess, r *session.Result) (session.Code, uint64) {
	q, id := c.Asking, session.ApprovalID(c.NS, c.Session, c.Call)
	pending := uint32(0)
	for _, h := range x.open {
		if h.asked != nil && !h.asked.approved {
			pending++
		}
	}
	if pending >= q.MaxPending {
		r.Limit, r.Approval = int64(q.MaxPending), &session.ApprovalCount{ID: id, State: approval.Denied, Why: session.RefusedTooMany}
		return session.ApprovalDenied, uint64(session.RefusedTooMany)
	}
	before := s.approvals[id]
	if before != nil && before.request != q.Request {
		r.Approval = s.shownApproval(before)
		r.Approval.Why = session.RefusedOtherThing
		return session.ApprovalDenied, uint64(session.RefusedOtherThing)
	}
	a := &appr{
		by: principal(c), kind: c.CallKind, server: q.Server,
		id: id, session: c.Session, call: c.Call, agent: x.agent, tool: c.Tool, policy: c.Digest, request: q.Request, rule: q.Rule,
		preview: q.Preview, reason: q.Reason, required: q.Required, denials: q.Denials, asked: s.Now, timeout: q.Timeout,
		allow: q.AllowOnTimeout, deadline: s.Now + q.Timeout,
	}
	if before != nil && before.end == approval.Cancelled && !before.approved {
		a.votes, a.by = before.votes, before.by
		a.allow = a.allow && a.votesFor(false) == 0
	}
	s.approvals[id] = a
	x.open = append(x.open, &held{
		id: c.Call, tool: c.Tool, content: c.Content, kind: c.CallKind, rule: c.Verdict.Rule, started: s.Now, deadline: a.deadline, asked: a,
	})
	r.Approval = s.shownApproval(a)
	return session.ApprovalRequired, 0
}

// askedFor reports whether a call that comes back is what was asked about. If it
// is another request, it is refused.
func (s *space) askedFor(c *session.Begin, x *sess, h *held, r *session.Result) bool {
	id := h.asked.id
	switch {
	case c.Asking == nil && !c.Asked:
		r.Code, r.Approval = session.StalePremise, &session.ApprovalCount{ID: id}
		return false
	case c.Asking == nil || c.Asking.Request == h.asked.request:
		return true
	}
	s.letGo(h, 's', x.id)
	x.used = s.Now
	r.Code, r.Repeat, r.Rule = session.ApprovalDenied, true, h.rule
	h.asked.finish(approval.Cancelled, s.Now)
	r.Approval = s.shownApproval(h.asked)
	r.Approval.Why = session.RefusedOtherThing
	x.giveBack(h, session.ApprovalDenied, uint64(session.RefusedOtherThing))
	return false
}

// askedAgain answers a call that waits for its approval. With one, or if it needs
// none any more, it is judged again, by all but attempts and the timeout.
func (s *space) askedAgain(c *session.Begin, x *sess, h *held, r *session.Result) {
	a := h.asked
	if !s.askedFor(c, x, h, r) || s.stopped(x, r) {
		return
	}
	if !s.mayRun(c, h) {
		r.Code, r.Repeat, r.Rule, r.Approval = session.ApprovalRequired, true, h.rule, s.shownApproval(a)
		return
	}
	if !s.premises(c, x, true, r) {
		return
	}
	x.used = s.Now
	r.Repeat, r.Rule = true, c.Verdict.Rule
	var value uint64
	r.Code, value = s.admit(c, x, h, r)
	switch {
	case r.Code == session.Admitted, r.Code == session.Queued:
		if find(x.open, c.Call).asked == nil {
			a.finish(approval.Cancelled, s.Now) // if it was not used
		}
	case c.Asking != nil && wantOfRoom(r.Code):
		r.Approval = s.shownApproval(a)
	default:
		a.finish(approval.Cancelled, s.Now)
		x.open = without(x.open, h)
		x.ids.add(finished{c.Call, c.Content, r.Code, c.Verdict.Rule, value})
	}
}

// wantOfRoom is of refusals that say nothing against a call.
func wantOfRoom(code session.Code) bool {
	return slices.Contains([]session.Code{session.ConcurrencyLimit, session.QueueFull, session.WaitTimeout, session.RateLimited}, code)
}

// use uses what a call is admitted by: its own approval, or one that stands.
func (s *space) use(c *session.Begin, h *held, r *session.Result) {
	if a := h.asked; a != nil {
		a.finish(approval.Used, s.Now)
		h.asked, r.Approval = nil, s.shownApproval(a)
		if c.Asking != nil {
			h.agreed = c.Asking.Request
		}
		return
	}
	if c.Asking != nil {
		h.agreed = c.Asking.Request
	}
	switch a := s.standing(c); {
	case a == nil || a.uses == 0:
	case a.uses == 1:
		delete(s.standings, a.of.ID())
	default:
		a.uses--
	}
}

func (s *space) askFor(c *session.Ask, r *session.Result) bool {
	if s.approvals[c.ID] == nil {
		s.approvals[c.ID] = &appr{
			by: principal(c), id: c.ID, session: c.Session, agent: c.Agent, tool: c.Tool, request: c.Request, preview: c.Preview, reason: c.Reason,
			required: c.Required, denials: c.Denials, asked: s.Now, timeout: c.Timeout, allow: c.AllowOnTimeout, deadline: s.Now + c.Timeout,
		}
		r.Value = 1
	} else if s.approvals[c.ID].request != c.Request {
		r.Code = session.IDReused
		return false
	}
	return true
}

// approvalOf returns the approval if it is of the call that a premise names.
func (s *space) approvalOf(id, of, call string, r *session.Result) *appr {
	a := s.approvals[id]
	switch {
	case a == nil:
		r.Code = session.NotFound
		return nil
	case a.call != call || call != "" && a.session != of:
		r.Code, r.Names = session.StalePremise, []string{a.session, a.call}
		return nil
	}
	return a
}

// caller returns the call that waits for an open approval, and its session.
func (s *space) caller(a *appr) (*sess, *held) {
	if x := s.sessions[a.session]; x != nil && a.call != "" && a.open() {
		s.look(a.session)
		return x, find(x.open, a.call)
	}
	return nil, nil
}

// decide counts a vote. Each approver has one, the agent that asks and who is known as
// it have none, and
// what is reached first decides.
func (s *space) decide(c *session.Decide, r *session.Result) bool {
	a := s.approvalOf(c.ID, c.Session, c.Call, r)
	if a == nil {
		return false
	}
	for _, v := range a.votes {
		if v.Approver == c.Approver {
			if v.Approve != c.Approve {
				r.Code = session.AlreadyVoted
			}
			return v.Approve == c.Approve
		}
	}
	switch {
	case c.Request != (session.Digest{}) && c.Request != a.request:
		r.Code = session.Invalid
		return false
	case c.Approver == strings.ToLower(a.agent), a.by != session.Principal{} && a.by == principal(c):
		r.Code = session.SelfApproval
		return false
	case a.state() != approval.Pending:
		r.Code = session.AlreadyDecided
		return false
	}
	x, h := s.caller(a)
	if x != nil {
		x.used = s.Now
	}
	a.votes = append(a.votes, approval.Vote{Approver: c.Approver, Approve: c.Approve, Reason: c.Reason, At: s.Now})
	a.allow = a.allow && c.Approve
	switch {
	case a.votesFor(false) >= a.denials:
		a.finish(approval.Denied, s.Now)
		if r.Value = 1; h != nil {
			x.giveBack(h, session.ApprovalDenied, uint64(session.RefusedByVote))
		}
	case a.votesFor(true) >= a.required:
		a.approve(s.Now)
		if r.Value = 1; h != nil {
			h.deadline = a.deadline
		}
	}
	return true
}

func (s *space) cancelApproval(c *session.CancelApproval, r *session.Result) bool {
	a := s.approvalOf(c.ID, c.Session, c.Call, r)
	switch {
	case a == nil:
		return false
	case a.end == approval.Cancelled:
		return true
	case !a.open():
		r.Code = session.AlreadyDecided
		return false
	}
	if x, h := s.caller(a); h != nil {
		if !names(c.Pools, h) {
			r.Code, r.Pools = session.StalePremise, poolsOf(h)
			return false
		}
		s.letGo(h, 's', x.id)
		x.used = s.Now
		x.giveBack(h, session.ApprovalDenied, uint64(session.RefusedCancelled))
	}
	a.finish(approval.Cancelled, s.Now)
	r.Value = 1
	return true
}

func (s *space) putStanding(c *session.PutStanding) bool {
	s.standings[c.Of.ID()] = &stands{c.Of, c.Shown, c.Uses, s.Now, s.Now + c.TTL, principal(c)}
	return true
}

func (s *space) deleteStanding(c *session.DeleteStanding, r *session.Result) bool {
	if s.standings[c.ID] == nil {
		r.Code = session.NotFound
		return false
	}
	delete(s.standings, c.ID)
	return true
}

// showApproval shows how an approval stands once it was changed.
func (s *space) showApproval(id string, r *session.Result) {
	if r.Code != session.Done {
		return
	}
	r.After = &session.After{Now: s.Now}
	if a := s.approvals[id]; a != nil {
		r.After.Approval = a.record()
	}
}

// showStanding shows what stands, unless it was used up or taken back since.
func (s *space) showStanding(id string, r *session.Result) {
	if r.Code != session.Done {
		return
	}
	r.After = &session.After{Now: s.Now}
	if a := s.standings[id]; a != nil {
		r.After.Standing = a.record()
	}
}

// askedCalls are the calls of a session that wait for approvals.
func (x *sess) askedCalls() (calls []string) {
	for _, h := range x.open {
		if h.asked != nil {
			calls = append(calls, h.id)
		}
	}
	return calls
}

func (a *appr) clock() approval.Clock {
	return approval.Clock{Approved: a.approved, AllowOnTimeout: a.allow, Timeout: a.timeout, Deadline: a.deadline}
}

func (a *appr) record() *session.Approval {
	return &session.Approval{
		Approval: approval.Approval{
			Clock: a.clock(), ForCall: a.call != "", Required: a.required, Denials: a.denials, Votes: slices.Clone(a.votes), End: a.end, Ended: a.ended,
		},
		Session: a.session, Call: a.call, Agent: a.agent, Tool: a.tool, Policy: a.policy, Rule: a.rule, Request: a.request,
		Preview: a.preview, Reason: a.reason, Asked: a.asked, Kind: a.kind, Server: a.server, By: a.by,
	}
}

func (a *stands) record() *session.Standing {
	return &session.Standing{Of: a.of, Shown: a.shown, Uses: a.uses, Until: a.until, Made: a.made, By: a.by}
}
