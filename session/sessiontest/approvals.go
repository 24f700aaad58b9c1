package sessiontest

import (
	"time"

	"example.com/govnode/session"
)

// Approvals of a history: calls that ask, people who decide, and what stands.

var approvers = []string{"amy", "bob", "agent"}

// deliberate is of histories in which most calls ask, and people look after
// them; in others few do.
func (h *History) deliberate() bool { return h.Seed%2 == 1 }

// asks lets a call ask, now and then.
func (h *History) asks(c *session.Begin) {
	if often := h.r.IntN(6); often > 3 || often > 0 && !h.deliberate() {
		return
	}
	if h.r.IntN(3) > 0 {
		c.CallKind = session.Tool // for which approvals may stand
	}
	c.Verdict.Allow = false
	c.Asking = &session.Asking{
		Agent: "agent", Required: uint32(1 + h.r.IntN(3)/2), Denials: uint32(1 + h.r.IntN(2)), Timeout: time.Duration(5+h.r.IntN(60)) * time.Second,
		AllowOnTimeout: h.r.IntN(3) == 0, MaxPending: uint32(1 + h.r.IntN(4)), Request: session.Digest{0: byte(h.n)},
		Arguments: session.Digest{0: byte(h.r.IntN(3))}, Preview: "{}", Reason: "look",
	}
}

// again is a call that comes back: another verdict, or other arguments, than before.
func (h *History) again() (session.Command, bool) {
	b, ok := recent(h, h.asked)
	if !ok {
		return nil, false
	}
	c := *b
	switch h.r.IntN(4) {
	case 0:
		c.Asking, c.Asked = nil, true
		c.Verdict.Allow = h.r.IntN(3) > 0
	case 1:
		asking := *b.Asking
		asking.Request[1]++
		c.Asking = &asking
	}
	return &c, true
}

// approval decides about a call, mostly for it, or changes what stands.
func (h *History) approval() session.Command {
	of := session.StandingOf{Scope: session.Scope(2 + h.r.IntN(3)), Name: "agent", Tool: []string{"rm", "ls", "cat"}[h.r.IntN(3)]}
	switch of.Scope {
	case session.OfPolicy:
		of.Name = policy(1 + h.r.IntN(2))
	case session.OfSession:
		of.Name = h.session()
	}
	if h.r.IntN(3) == 0 {
		of.Exact, of.Arguments = true, session.Digest{0: byte(h.r.IntN(3))}
	}
	switch h.r.IntN(30) {
	case 0:
		return &session.DeleteStanding{NS: NS, By: h.maker(), ID: of.ID()}
	case 1, 2, 3:
		return &session.PutStanding{NS: NS, By: h.maker(), Of: of, Uses: uint32(h.r.IntN(3)), TTL: time.Duration(1+h.r.IntN(60)) * time.Second}
	case 4:
		by := h.maker()
		c := &session.Ask{NS: NS, By: by, ID: session.RequestedApprovalID(NS, by.Client, by.Request), Agent: "agent", Tool: "ls",
			Required: 1, Denials: 1, Timeout: time.Duration(1+h.r.IntN(30)) * time.Second, AllowOnTimeout: h.r.IntN(2) == 0}
		h.requested = append(h.requested, c)
		return c
	case 5:
		if a, ok := recent(h, h.requested); ok {
			return h.decides(a.ID, "", "")
		}
	}
	b, ok := recent(h, h.asked[max(0, len(h.asked)-6):])
	if !ok {
		return h.begin()
	}
	id := session.ApprovalID(NS, b.Session, b.Call)
	if h.r.IntN(6) == 0 {
		return &session.CancelApproval{NS: NS, By: h.maker(), ID: id, Session: b.Session, Call: b.Call, Pools: pools(b)}
	}
	return h.decides(id, b.Session, b.Call)
}

func (h *History) decides(id, of, call string) session.Command {
	return &session.Decide{NS: NS, By: h.maker(), ID: id, Session: of, Call: call,
		Approver: approvers[h.r.IntN(len(approvers))], Approve: h.r.IntN(3) > 0, Reason: "seen"}
}

// askedCalls are those of a session that may wait for approvals.
func (h *History) askedCalls(id string) (calls []string) {
	seen := map[string]bool{}
	for _, b := range h.asked {
		if b.Session == id && !seen[b.Call] {
			seen[b.Call] = true
			calls = append(calls, b.Call)
		}
	}
	return calls
}
