package model

import (
	"maps"
	"slices"
	"strings"
	"time"

	"example.com/govnode/session"
)

// Commands of approvals, and calls that ask for them.

var approvers = []string{"amy", "bob", "carl", "dora"}

// asks lets a call ask, now and then.
func (g *Generator) asks(c *session.Begin, x *sess) {
	often := 4
	if g.one || g.crowd {
		often = 100
	}
	if !g.once(often) {
		return
	}
	c.Verdict.Allow = false
	c.Asking = &session.Asking{
		Agent: g.agent(), Required: pick[uint32](g, 1, 1, 1, 2, 3), Denials: pick[uint32](g, 1, 1, 2), Timeout: pick(g, time.Second, 5*time.Second, 30*time.Second, time.Hour),
		AllowOnTimeout: g.once(3), MaxPending: pick[uint32](g, 1, 3, 16, session.MaxPending), Request: session.Digest{byte(g.n), byte(g.n >> 8)},
		Arguments: g.digest(), Server: pick(g, "", "", "mcp"), Preview: pick(g, "", "{}"), Reason: "look", Rule: uint16(g.r.IntN(3)),
	}
	if x != nil && !g.once(20) {
		c.Asking.Agent = x.agent
	}
}

// changed is a call that was asked about and comes back, perhaps as something
// else: with a verdict that allows or denies by now, or with other arguments, or
// with another wait.
func (g *Generator) changed(b *session.Begin) session.Command {
	c := *b
	switch g.r.IntN(8) {
	case 0:
		c.Asking, c.Asked, c.Verdict.Allow = nil, !g.once(4), !g.once(3)
	case 1:
		if b.Asking != nil {
			asking := *b.Asking
			if asking.Request[2]++; g.once(4) {
				asking.Request, asking.Agent = b.Asking.Request, g.agent()
			}
			c.Asking = &asking
		}
	default:
		c.Wait, _ = g.wait()
	}
	return &c
}

// approval returns one: of those that are open, mostly.
func (g *Generator) approval(ns string) *appr {
	s := g.m.space(ns)
	var open, all []*appr
	for _, id := range slices.Sorted(maps.Keys(s.approvals)) {
		a := s.approvals[id]
		if all = append(all, a); a.open() {
			open = append(open, a)
		}
	}
	switch {
	case len(open) > 0 && !g.once(8):
		return pick(g, open...)
	case len(all) > 0:
		return pick(g, all...)
	}
	return &appr{id: session.ApprovalID(ns, g.session(ns), g.recent(&g.calls, "c", 10)), agent: g.agent()}
}

// decide is a vote, mostly for it.
func (g *Generator) decide() session.Command {
	ns := g.ns()
	a := g.approval(ns)
	c := &session.Decide{NS: ns, By: g.maker(), ID: a.id, Session: a.session, Call: a.call, Approver: pick(g, approvers...), Approve: !g.once(4), Reason: pick(g, "", "seen")}
	if g.once(10) {
		c.Approver = strings.ToLower(a.agent)
	}
	if g.once(2) {
		if c.Request = a.request; g.once(10) {
			c.Request[3]++
		}
	}
	if a.call == "" {
		c.Session = ""
	}
	if g.once(20) {
		c.Session, c.Call = g.session(ns), g.recent(&g.calls, "c", 10)
	}
	return c
}

func (g *Generator) cancelApproval() session.Command {
	ns := g.ns()
	a := g.approval(ns)
	c := &session.CancelApproval{NS: ns, By: g.maker(), ID: a.id, Session: a.session, Call: a.call}
	if x := g.m.space(ns).sessions[a.session]; x != nil {
		if h := find(x.open, a.call); h != nil {
			c.Pools = g.premise(h)
		}
	}
	if a.call == "" {
		c.Session = ""
	}
	return c
}

func (g *Generator) ask() session.Command {
	by := g.maker()
	if by.Request == "" {
		by.Request = g.id("r")
	}
	ns := g.ns()
	return &session.Ask{
		NS: ns, By: by, ID: session.RequestedApprovalID(ns, by.Client, by.Request), Agent: g.agent(), Session: pick(g, "", "s0"), Tool: g.tool(), Request: g.digest(),
		Preview: pick(g, "", "{}"), Reason: "look", Required: pick[uint32](g, 1, 1, 2), Denials: 1, Timeout: pick(g, time.Second, 30*time.Second), AllowOnTimeout: g.once(3),
	}
}

// stand is what a standing approval is for.
func (g *Generator) stand(ns string) session.StandingOf {
	of := session.StandingOf{Scope: pick(g, session.OfSession, session.OfAgent, session.OfPolicy), Server: pick(g, "", "", "mcp"), Tool: g.tool()}
	switch of.Scope {
	case session.OfSession:
		of.Name = g.session(ns)
	case session.OfAgent:
		of.Name = g.agent()
	default:
		of.Name = g.policy()
	}
	if g.once(2) {
		of.Exact, of.Arguments = true, g.digest()
	}
	return of
}

func (g *Generator) putStanding() session.Command {
	ns := g.ns()
	c := &session.PutStanding{NS: ns, By: g.maker(), Of: g.stand(ns), Uses: pick[uint32](g, 0, 1, 1, 2, 3), TTL: pick(g, time.Second, 30*time.Second, time.Hour)}
	if c.Of.Exact {
		c.Shown = "{}"
	}
	return c
}

// deleteStanding takes back one that stands, mostly.
func (g *Generator) deleteStanding() session.Command {
	ns := g.ns()
	of := g.stand(ns)
	c := &session.DeleteStanding{NS: ns, By: g.maker(), ID: of.ID()}
	if all := slices.Sorted(maps.Keys(g.m.space(ns).standings)); len(all) > 0 && !g.once(6) {
		c.ID = pick(g, all...)
	}
	return c
}
