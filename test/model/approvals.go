package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"example.com/govnode/session"
	"example.com/govnode/session/approval"
)

// Approvals: who is asked, and what comes of it. There is one of each here, which
// the call that waits for it points to; in the state it is told twice.

// An ask is an approval.
type ask struct {
	id                string
	agent, sess, call string // call is empty of one that a client asked for
	tool, preview     string
	why               string
	policy, request   session.Digest
	rule              uint16
	required, denials uint32
	votes             []approval.Vote
	allow             bool // at the deadline, as long as nobody said no
	yes               bool
	timeout, deadline time.Duration
	asked, ended      time.Duration
	end               approval.State // Pending while it goes on
}

// A standing is a standing approval.
type standing struct {
	of          session.StandingOf
	shown       string
	uses        uint32
	until, made time.Duration
}

func (a *ask) state() approval.State {
	if a.end == approval.Pending && a.yes {
		return approval.Approved
	}
	return a.end
}

func (a *ask) finish(as approval.State, at time.Duration) { a.end, a.ended = as, at }

// atDeadline is what becomes of one whose deadline has come.
func (a *ask) atDeadline() {
	switch {
	case a.yes || !a.allow:
		a.finish(approval.Expired, a.deadline)
	case a.call == "":
		a.yes = true
		a.finish(approval.Approved, a.deadline)
	default:
		a.yes, a.deadline = true, a.deadline+a.timeout
	}
}

func (a *ask) count(now time.Duration) *session.ApprovalCount {
	n := &session.ApprovalCount{ID: a.id, State: a.state(), Required: a.required, Denials: a.denials}
	for _, v := range a.votes {
		if v.Approve {
			n.For++
		} else {
			n.Against++
		}
	}
	if a.end == approval.Pending {
		n.Left = max(0, a.deadline-now)
	}
	if a.yes && n.For >= a.required || a.end == approval.Denied {
		last := a.votes[len(a.votes)-1]
		n.By, n.Reason = last.Approver, last.Reason
	}
	return n
}

func (a *ask) record() *session.Approval {
	return &session.Approval{
		Approval: approval.Approval{
			Clock: approval.Clock{Approved: a.yes, AllowOnTimeout: a.allow, Timeout: a.timeout, Deadline: a.deadline}, ForCall: a.call != "",
			Required: a.required, Denials: a.denials, Votes: a.votes, End: a.end, Ended: a.ended,
		},
		Session: a.sess, Call: a.call, Agent: a.agent, Tool: a.tool, Policy: a.policy, Rule: a.rule, Request: a.request,
		Preview: a.preview, Reason: a.why, Asked: a.asked,
	}
}

// waits reports whether a call or a slot has not been admitted.
func (h *held) waits() bool { return h.until != 0 || h.asked != nil }

// parked reports whether people are asked about a call, or it is approved, and it
// stands in no queue.
func (h *held) parked() bool { return h.until == 0 && h.asked != nil }

// park takes a call that is approved out of its queue. What it has in pools is
// given back by the caller.
func (x *sess) park(h *held) {
	x.reserved -= h.tokens
	x.count(h, -1)
	h.until, h.pools, h.tokens, h.deadline = 0, nil, 0, h.asked.deadline
}

// settleAsked does what is due with a call that is asked about, and reports whether
// it is open still.
func (x *sess) settleAsked(h *held) bool {
	if h.until != 0 {
		x.park(h)
		return true
	}
	h.asked.atDeadline()
	if h.deadline = h.asked.deadline; h.asked.end == approval.Pending {
		return true
	}
	x.giveBack(h, session.ApprovalExpired, 0)
	return false
}

// settleAsks settles what no call waits for, and drops what has ended an hour ago.
func (s *space) settleAsks() {
	for id, a := range s.asks {
		if a.call == "" && a.end == approval.Pending && a.deadline <= s.Now {
			a.atDeadline()
		}
		if a.end != approval.Pending && a.ended+keptFor <= s.Now {
			delete(s.asks, id)
		}
	}
	for id, a := range s.standings {
		if a.until <= s.Now {
			delete(s.standings, id)
		}
	}
}

// standingFor finds the narrowest standing approval for a call.
func (s *space) standingFor(c *session.Begin) (id string) {
	policy := strings.TrimPrefix(c.Pools[0].Pool, "policy/")
	for _, of := range []session.StandingOf{
		{Scope: session.OfSession, Name: c.Session}, {Scope: session.OfAgent, Name: c.Asking.Agent}, {Scope: session.OfPolicy, Name: policy},
	} {
		of.Tool, of.Server = c.Tool, c.Asking.Server
		wide := of
		of.Exact, of.Arguments = true, c.Asking.Arguments
		for _, o := range []session.StandingOf{of, wide} {
			if id := o.ID(); s.standings[id] != nil {
				return id
			}
		}
	}
	return ""
}

// mayPass reports whether nobody has to be asked about a call any more.
func (s *space) mayPass(c *session.Begin, was *held) bool {
	return c.Asking == nil || was != nil && was.asked != nil && was.asked.yes || s.standingFor(c) != ""
}

// askFor parks a call until people have decided.
func (s *space) askFor(c *session.Begin, x *sess, r *session.Result) (session.Code, uint64) {
	q, pending := c.Asking, uint32(0)
	for _, h := range x.open {
		if h.asked != nil && !h.asked.yes {
			pending++
		}
	}
	id := session.ApprovalID(c.Session, c.Call)
	if pending >= q.MaxPending {
		r.Limit, r.Approval = int64(q.MaxPending), &session.ApprovalCount{ID: id, State: approval.Denied, Why: session.RefusedTooMany}
		return session.ApprovalDenied, uint64(session.RefusedTooMany)
	}
	a := &ask{
		id: id, agent: x.agent, sess: x.id, call: c.Call, tool: c.Tool, preview: q.Preview, why: q.Reason, policy: c.Digest, request: q.Request,
		rule: q.Rule, required: q.Required, denials: q.Denials, allow: q.AllowOnTimeout, timeout: q.Timeout, deadline: s.Now + q.Timeout, asked: s.Now,
	}
	s.asks[id] = a
	x.open = append(x.open, &held{
		id: c.Call, tool: c.Tool, content: c.Content, kind: c.CallKind, rule: c.Verdict.Rule, started: s.Now, deadline: a.deadline, asked: a,
	})
	r.Approval = a.count(s.Now)
	return session.ApprovalRequired, 0
}

// asks of the same reports whether a call that comes back names its approval, and
// asks for what was asked for; if not it is answered.
func (s *space) comesForTheSame(c *session.Begin, x *sess, h *held, r *session.Result) bool {
	if c.Asking == nil && !c.Asked {
		r.Code, r.Approval = session.StalePremise, &session.ApprovalCount{ID: h.asked.id}
		return false
	}
	if c.Asking == nil || c.Asking.Request == h.asked.request {
		return true
	}
	s.letGo(h, 's', x.id)
	x.used = s.Now
	x.refuse(h, session.RefusedOtherThing)
	h.asked.finish(approval.Cancelled, s.Now)
	r.Code, r.Repeat, r.Rule = session.ApprovalDenied, true, h.rule
	r.Approval = &session.ApprovalCount{ID: h.asked.id, State: approval.Cancelled, Why: session.RefusedOtherThing}
	return false
}

// refuse ends a call that was asked about.
func (x *sess) refuse(h *held, why session.Refusal) {
	x.giveBack(h, session.ApprovalDenied, uint64(why))
}

// comesBack is a call that was asked about, and is sent again.
func (s *space) comesBack(c *session.Begin, x *sess, h *held, r *session.Result) {
	if !s.comesForTheSame(c, x, h, r) || s.stopped(x, r) {
		return
	}
	a := h.asked
	if !s.mayPass(c, h) {
		r.Code, r.Repeat, r.Rule, r.Approval = session.ApprovalRequired, true, h.rule, a.count(s.Now)
		return
	}
	if !s.premises(c, x, h, r) {
		return
	}
	x.used = s.Now
	r.Repeat, r.Rule = true, c.Verdict.Rule
	code, value := s.admit(c, x, h, r)
	switch r.Code = code; {
	case code == session.Admitted, code == session.Queued:
		if next := find(x.open, c.Call); next.asked == nil && a.end == approval.Pending {
			a.finish(approval.Cancelled, s.Now) // what stands has answered, or nothing asks any more
		}
	case c.Asking != nil && forRoom(code):
		r.Approval = a.count(s.Now)
	default:
		a.finish(approval.Cancelled, s.Now)
		x.open = without(x.open, h)
		x.ids.add(finished{c.Call, c.Content, code, c.Verdict.Rule, value})
	}
}

// forRoom reports whether a refusal is for want of room.
func forRoom(code session.Code) bool {
	return slices.Contains([]session.Code{session.ConcurrencyLimit, session.QueueFull, session.WaitTimeout, session.RateLimited}, code)
}

// passed spends what has let a call pass.
func (s *space) passed(c *session.Begin, h *held, r *session.Result) {
	if h.asked != nil {
		h.asked.finish(approval.Used, s.Now)
		r.Approval = h.asked.count(s.Now)
		h.asked = nil
		return
	}
	if c.Asking == nil {
		return
	}
	id := s.standingFor(c)
	if a := s.standings[id]; a.uses > 1 {
		a.uses--
	} else if a.uses == 1 {
		delete(s.standings, id)
	}
}

// calledOff ends the approval of a call that ends otherwise.
func (s *space) calledOff(h *held) {
	if h.asked != nil {
		h.asked.finish(approval.Cancelled, s.Now)
	}
}

func (s *space) recallAsk(c *session.Begin, f *finished, r *session.Result) {
	id := session.ApprovalID(c.Session, c.Call)
	if a := s.asks[id]; a != nil && a.end != approval.Pending && (c.Asking != nil || c.Asked) {
		r.Approval = a.count(s.Now)
		r.Approval.Why = session.Refusal(f.value)
		return
	}
	r.Approval = &session.ApprovalCount{ID: id, State: approval.Expired}
	if f.code == session.ApprovalDenied {
		r.Approval.Why = session.Refusal(f.value)
		r.Approval.State = approval.Cancelled
		if r.Approval.Why == session.RefusedByVote || r.Approval.Why == session.RefusedTooMany {
			r.Approval.State = approval.Denied
		}
	}
}

func (s *space) askedFor(by session.Maker, id string, r *session.Result, do func() bool) {
	s.request(by, r, do)
	if r.Code == session.Done {
		r.After = &session.After{Now: s.Now}
		if a := s.asks[id]; a != nil {
			r.After.Approval = a.record()
		}
	}
}

func (s *space) ask(c *session.Ask, r *session.Result) {
	s.askedFor(c.By, c.ID, r, func() bool {
		if s.asks[c.ID] == nil {
			s.asks[c.ID] = &ask{
				id: c.ID, agent: c.Agent, sess: c.Session, tool: c.Tool, preview: c.Preview, why: c.Reason, request: c.Request,
				required: c.Required, denials: c.Denials, allow: c.AllowOnTimeout, timeout: c.Timeout, deadline: s.Now + c.Timeout, asked: s.Now,
			}
			r.Value = 1
		}
		return true
	})
}

// found returns an approval if it is that of the call that a premise names.
func (s *space) found(id, sess, call string, r *session.Result) *ask {
	a := s.asks[id]
	if a == nil {
		r.Code = session.NotFound
	} else if a.call != call || call != "" && a.sess != sess {
		r.Code, r.Names, a = session.StalePremise, []string{a.sess, a.call}, nil
	}
	return a
}

func (s *space) decide(c *session.Decide, r *session.Result) {
	s.askedFor(c.By, c.ID, r, func() bool {
		a := s.found(c.ID, c.Session, c.Call, r)
		if a == nil {
			return false
		}
		for _, v := range a.votes {
			if v.Approver == c.Approver && v.Approve == c.Approve {
				return true // said before
			}
			if v.Approver == c.Approver {
				r.Code = session.AlreadyVoted
				return false
			}
		}
		if strings.EqualFold(a.agent, c.Approver) {
			r.Code = session.SelfApproval
			return false
		}
		if a.state() != approval.Pending {
			r.Code = session.AlreadyDecided
			return false
		}
		a.votes = append(slices.Clone(a.votes), approval.Vote{Approver: c.Approver, Approve: c.Approve, Reason: c.Reason, At: s.Now})
		n := a.count(s.Now)
		if !c.Approve {
			a.allow = false
		}
		switch {
		case n.Against >= a.denials:
			a.finish(approval.Denied, s.Now)
		case n.For >= a.required && a.call == "":
			a.yes = true
			a.finish(approval.Approved, s.Now)
		case n.For >= a.required:
			a.yes, a.deadline = true, s.Now+a.timeout
		}
		if a.state() != approval.Pending {
			r.Value = 1
		}
		if x, h := s.callOf(a); h != nil {
			x.used = s.Now
			if a.end == approval.Denied {
				x.refuse(h, session.RefusedByVote)
			} else {
				h.deadline = a.deadline
			}
		}
		return true
	})
}

// callOf finds the call that waits for an approval.
func (s *space) callOf(a *ask) (*sess, *held) {
	if a.call == "" {
		return nil, nil
	}
	x := s.look(a.sess)
	if x == nil {
		return nil, nil
	}
	if h := find(x.open, a.call); h != nil && h.asked == a {
		return x, h
	}
	return x, nil
}

func (s *space) cancelAsk(c *session.CancelApproval, r *session.Result) {
	s.askedFor(c.By, c.ID, r, func() bool {
		a := s.found(c.ID, c.Session, c.Call, r)
		switch {
		case a == nil:
			return false
		case a.end == approval.Cancelled:
			return true
		case a.end != approval.Pending:
			r.Code = session.AlreadyDecided
			return false
		}
		x, h := s.callOf(a)
		if h != nil && !names(c.Pools, h) {
			r.Code, r.Pools = session.StalePremise, poolsOf(h)
			return false
		}
		if h != nil {
			s.letGo(h, 's', x.id)
			x.used = s.Now
			x.refuse(h, session.RefusedCancelled)
		}
		a.finish(approval.Cancelled, s.Now)
		r.Value = 1
		return true
	})
}

func (s *space) putStanding(c *session.PutStanding) bool {
	s.standings[c.Of.ID()] = &standing{c.Of, c.Shown, c.Uses, s.Now + c.TTL, s.Now}
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

// askedCalls are the calls of a session that wait for approvals.
func (x *sess) askedCalls() (calls []string) {
	for _, h := range x.open {
		if h.asked != nil {
			calls = append(calls, h.id)
		}
	}
	return calls
}

// asksNamed reports whether a premise names all calls that wait for approvals.
func (x *sess) asksNamed(calls []string) bool {
	for _, call := range x.askedCalls() {
		if !slices.Contains(calls, call) {
			return false
		}
	}
	return true
}

// What a Generator makes of it.

// asking lets a call ask, now and then.
func (g *Generator) asking(c *session.Begin, x *sess) {
	if !g.once(5) || g.crowd {
		return
	}
	c.Verdict.Allow = false
	c.Asking = &session.Asking{
		Agent: "nobody", Required: uint32(pick(g, 1, 1, 2)), Denials: uint32(pick(g, 1, 1, 2)), Timeout: pick(g, time.Second, 5*time.Second, 30*time.Second, time.Hour),
		AllowOnTimeout: g.once(3), MaxPending: uint32(pick(g, 1, 2, 5, 64)), Request: session.Digest{byte(g.n)}, Arguments: session.Digest{byte(g.r.IntN(2))},
		Server: pick(g, "", "", "mcp"), Preview: "{}", Reason: pick(g, "", "look"), Rule: uint16(g.r.IntN(3)),
	}
	if x != nil && !g.once(30) {
		c.Asking.Agent = x.agent
	}
}

// comes makes another request of one that is sent again: it asks for something
// else, or does not ask any more.
func (g *Generator) comes(c *session.Begin) session.Command {
	d := *c
	switch g.r.IntN(8) {
	case 0:
		if c.Asking != nil {
			q := *c.Asking
			q.Request[1]++
			d.Asking = &q
		}
	case 1:
		d.Asking, d.Verdict.Allow = nil, true
		d.Asked = g.once(2)
	case 2:
		d.Asking, d.Verdict.Allow = nil, g.once(3)
		d.Asked = !g.once(4)
	case 3:
		d.Wait = time.Minute
	}
	return &d
}

func (s *space) pending() (all []*ask) {
	for _, id := range slices.Sorted(maps.Keys(s.asks)) {
		if s.asks[id].state() == approval.Pending {
			all = append(all, s.asks[id])
		}
	}
	return all
}

// some approval: one that is pending, mostly.
func (g *Generator) approval(ns string) *ask {
	s := g.m.space(ns)
	if all := s.pending(); len(all) > 0 && !g.once(6) {
		return pick(g, all...)
	}
	if all := slices.Sorted(maps.Keys(s.asks)); len(all) > 0 && !g.once(6) {
		return s.asks[pick(g, all...)]
	}
	return &ask{id: "none", sess: g.session(ns), call: g.recent(&g.calls, "c", 10)}
}

func (g *Generator) decide() session.Command {
	ns := g.ns()
	a := g.approval(ns)
	c := &session.Decide{NS: ns, By: g.maker(), ID: a.id, Approver: pick(g, "amy", "bob", "carl", a.agent), Approve: g.r.IntN(4) > 0, Reason: pick(g, "", "seen")}
	if c.Approver == "" {
		c.Approver = "amy"
	}
	if a.call != "" {
		c.Session, c.Call = a.sess, a.call
	}
	if g.once(20) {
		c.Session, c.Call = "s0", "other"
	}
	return c
}

func (g *Generator) cancelApproval() session.Command {
	ns := g.ns()
	a := g.approval(ns)
	c := &session.CancelApproval{NS: ns, By: g.maker(), ID: a.id}
	if a.call != "" {
		c.Session, c.Call = a.sess, a.call
		if x := g.m.space(ns).sessions[a.sess]; x != nil && !g.once(6) { // a look would report what lapsed
			if h := find(x.open, a.call); h != nil {
				c.Pools = poolsOf(h)
			}
		}
	}
	return c
}

func (g *Generator) ask() session.Command {
	by := g.maker()
	c := &session.Ask{
		NS: g.ns(), By: by, ID: session.RequestedApprovalID(by.Client, by.Request), Agent: g.agent(), Tool: g.tool(), Session: pick(g, "", "s0"),
		Required: uint32(pick(g, 1, 2)), Denials: 1, Timeout: pick(g, time.Second, 20*time.Second, time.Hour), AllowOnTimeout: g.once(2), Reason: "look",
	}
	if g.once(10) {
		c.ID = fmt.Sprintf("a%d", g.r.IntN(3))
	}
	return c
}

func (g *Generator) standingOf(ns string) session.StandingOf {
	of := session.StandingOf{Scope: session.OfAgent, Name: g.agent(), Tool: g.tool(), Server: pick(g, "", "", "mcp")}
	switch g.r.IntN(3) {
	case 0:
		of.Scope, of.Name = session.OfSession, g.session(ns)
	case 1:
		of.Scope, of.Name = session.OfPolicy, g.policy()
	}
	if g.once(2) {
		of.Exact, of.Arguments = true, session.Digest{byte(g.r.IntN(2))}
	}
	return of
}

func (g *Generator) putStanding() session.Command {
	ns := g.ns()
	return &session.PutStanding{NS: ns, By: g.maker(), Of: g.standingOf(ns), Uses: uint32(g.r.IntN(3)), TTL: pick(g, time.Second, 20*time.Second, time.Hour)}
}

func (g *Generator) deleteStanding() session.Command {
	ns := g.ns()
	of := g.standingOf(ns)
	c := &session.DeleteStanding{NS: ns, By: g.maker(), ID: of.ID()}
	if all := slices.Sorted(maps.Keys(g.m.space(ns).standings)); len(all) > 0 && !g.once(3) {
		c.ID = pick(g, all...)
	}
	return c
}
