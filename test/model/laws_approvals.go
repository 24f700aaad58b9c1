package model

import (
	"strings"
	"time"

	"example.com/govnode/session"
)

// The laws of approvals, from what was asked and answered alone: an approval is
// used once, nothing that asked is admitted without one that stands then, a
// denial ends the call, and every call that is asked about lapses.

// A consent is what is known of the approval of a call.
type consent struct {
	agent             string
	request           session.Digest
	required, denials uint32
	timeout, deadline time.Duration
	allow             bool // by time
	approved, denied  bool
	votes             map[string]bool // by approver
}

// leave is a standing approval.
type leave struct {
	uses        uint32
	made, until time.Duration
}

// at brings a consent to a time.
func (a *consent) at(now time.Duration) *consent {
	if now >= a.deadline && a.allow && !a.approved && !a.denied {
		a.approved, a.deadline = true, a.deadline+a.timeout
	}
	return a
}

// stands reports whether a call may be admitted by it now.
func (a *consent) stands(now time.Duration) bool {
	return a != nil && a.at(now).approved && now < a.deadline
}

func (l *laws) consent(k session.Key, call string) *consent { return l.consents[k][call] }

func (l *laws) noConsent(k session.Key, call string) { delete(l.consents[k], call) }

// asked holds what a Begin was answered; fresh tells that it was admitted just
// now.
func (l *laws) asked(k session.Key, c *session.Begin, r *session.Result, fresh bool) {
	own := l.consent(k, c.Call)
	switch {
	case r.Code == session.ApprovalRequired && (own == nil || !r.Repeat):
		if l.consents[k] == nil {
			l.consents[k] = map[string]*consent{}
		}
		q := c.Asking
		l.consents[k][c.Call] = &consent{
			agent: strings.ToLower(q.Agent), request: q.Request, required: q.Required, denials: q.Denials, timeout: q.Timeout, deadline: l.now + q.Timeout,
			allow: q.AllowOnTimeout, votes: map[string]bool{},
		}
	case own != nil && own.denied && (fresh || r.Code == session.Queued || r.Code == session.ApprovalRequired):
		l.breaks("%s of %s is %v, and was denied", c.Call, k, r.Code)
	case fresh:
		if c.Asking != nil && own.stands(l.now) && own.request != c.Asking.Request {
			l.breaks("%s of %s was admitted, and something else was approved: %+v", c.Call, k, own)
		} else if c.Asking != nil && !own.stands(l.now) && !l.leaves(c) {
			l.breaks("%s of %s was admitted, and nothing that approves it stands: %+v", c.Call, k, own)
		}
		l.noConsent(k, c.Call)
	case r.Code == session.Queued && c.Asking != nil && own.stands(l.now):
		own.deadline = max(own.deadline, l.now+c.Wait+claimTTL)
	case r.Code == session.Queued, r.Code == session.ApprovalDenied, r.Code == session.ApprovalExpired:
		l.noConsent(k, c.Call) // by what stands, or it needs none; or it is over
	}
}

// leaves spends what stands for a call, the narrowest first.
func (l *laws) leaves(c *session.Begin) bool {
	if c.CallKind != session.Tool {
		return false
	}
	for _, of := range []session.StandingOf{
		{Scope: session.OfSession, Name: c.Session, Exact: true}, {Scope: session.OfSession, Name: c.Session},
		{Scope: session.OfAgent, Name: c.Asking.Agent, Exact: true}, {Scope: session.OfAgent, Name: c.Asking.Agent},
		{Scope: session.OfPolicy, Name: c.Pools[0].Pool[len("policy/"):], Exact: true}, {Scope: session.OfPolicy, Name: c.Pools[0].Pool[len("policy/"):]},
	} {
		if of.Server, of.Tool = c.Asking.Server, c.Tool; of.Exact {
			of.Arguments = c.Asking.Arguments
		}
		k := session.StandingKey(c.NS, of.ID())
		at := l.standing[k]
		if at == nil || at.until <= l.now || of.Scope == session.OfSession && at.made < l.opened[session.SessionKey(c.NS, c.Session)] {
			continue
		}
		if at.uses == 1 {
			delete(l.standing, k)
		} else if at.uses > 1 {
			at.uses--
		}
		return true
	}
	return false
}

// voted counts a vote that was taken.
func (l *laws) voted(c *session.Decide, r *session.Result) {
	a := l.consent(session.SessionKey(c.NS, c.Session), c.Call)
	if a == nil || c.Call == "" || r.Code != session.Done || r.Repeat || a.at(l.now).approved || c.Approver == a.agent {
		return
	}
	a.votes[c.Approver] = c.Approve
	n := uint32(0)
	for _, approve := range a.votes { // order-free: counted
		if approve == c.Approve {
			n++
		}
	}
	switch a.allow = a.allow && c.Approve; {
	case c.Approve && n >= a.required:
		a.approved, a.deadline = true, l.now+a.timeout
	case !c.Approve && n >= a.denials:
		a.denied = true
	}
}

// lapse holds that no call of a session waits for an approval that is over.
func (l *laws) lapse(s *session.State, k session.Key) {
	x, _ := s.Get(k).(*session.Session)
	if x == nil {
		return
	}
	for _, call := range x.AskedCalls() {
		if a := l.consent(k, call); a == nil || a.denied || a.at(l.now).deadline <= l.now {
			l.breaks("%s of %s waits for an approval that is over: %+v", call, k, a)
		}
	}
}
