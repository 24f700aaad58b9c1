package session

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"example.com/govnode/session/approval"
)

// Approvals in messages: what commands may say of them, and their encoding.

func (v *validator) terms(field string, required, denials uint32, timeout time.Duration) {
	between(v, field+"Required", required, 1, approval.MaxVotes)
	between(v, field+"Denials", denials, 1, approval.MaxVotes)
	between(v, field+"Timeout", timeout, MinApproval, MaxApproval)
}

func (v *validator) asking(c *Begin) {
	q := c.Asking
	if q == nil {
		return
	}
	if c.Verdict.Allow {
		v.fail("Verdict.Allow", "stands beside Asking; a verdict that asks does not allow")
	}
	v.id("Asking.Agent", q.Agent)
	v.terms("Asking.", q.Required, q.Denials, q.Timeout)
	between(v, "Asking.MaxPending", q.MaxPending, 1, MaxPending)
	between(v, "Asking.Rule", q.Rule, 0, MaxRule)
	v.text("Asking.Server", q.Server, 0, MaxTool)
	v.free("Asking.Preview", q.Preview, MaxSealedPreview)
	v.free("Asking.Reason", q.Reason, MaxMessage)
}

func (v *validator) ask(c *Ask) {
	v.of = "Ask"
	v.request(c.NS, c.By)
	v.id("ID", c.ID)
	v.id("Agent", c.Agent)
	v.optional("Session", c.Session)
	v.text("Tool", c.Tool, 1, MaxTool)
	v.free("Preview", c.Preview, MaxSealedPreview)
	v.free("Reason", c.Reason, MaxMessage)
	v.terms("", c.Required, c.Denials, c.Timeout)
}

// ofCall checks the premise of which call an approval is: both names, or none.
func (v *validator) ofCall(session, call string) {
	if call == "" && session != "" {
		v.fail("Session", "stands without Call; give both, or none for an approval without a call")
		return
	}
	if call != "" {
		v.id("Session", session)
		v.id("Call", call)
	}
}

func (v *validator) decide(c *Decide) {
	v.of = "Decide"
	v.request(c.NS, c.By)
	v.id("ID", c.ID)
	v.ofCall(c.Session, c.Call)
	v.id("Approver", c.Approver)
	if c.Approver != lower(c.Approver) {
		v.fail("Approver", "has upper case letters; give it in lower case")
	}
	v.free("Reason", c.Reason, MaxMessage)
}

func (v *validator) cancelApproval(c *CancelApproval) {
	v.of = "CancelApproval"
	v.request(c.NS, c.By)
	v.id("ID", c.ID)
	v.ofCall(c.Session, c.Call)
	v.pools(c.Pools, MaxPools+1+MaxRates)
}

func (v *validator) putStanding(c *PutStanding) {
	v.of = "PutStanding"
	v.request(c.NS, c.By)
	between(v, "Of.Scope", c.Of.Scope, OfAgent, OfSession)
	v.id("Of.Name", c.Of.Name)
	v.text("Of.Server", c.Of.Server, 0, MaxTool)
	v.text("Of.Tool", c.Of.Tool, 1, MaxTool)
	if !c.Of.Exact && c.Of.Arguments != (Digest{}) {
		v.fail("Of.Arguments", "stands beside arguments of any kind; set Exact")
	}
	v.free("Shown", c.Shown, MaxSealedPreview)
	between(v, "Uses", c.Uses, 0, MaxUses)
	between(v, "TTL", c.TTL, MinApproval, MaxStanding)
}

func (q *Asking) fields(f *codec) {
	f.Text(1, &q.Agent)
	f.Uint32(2, &q.Required)
	f.Uint32(3, &q.Denials)
	f.Duration(4, &q.Timeout)
	f.Bool(5, &q.AllowOnTimeout)
	f.Uint32(6, &q.MaxPending)
	f.digest(7, &q.Request)
	f.digest(8, &q.Arguments)
	f.Text(9, &q.Server)
	f.Kept(10, &q.Preview)
	f.Kept(11, &q.Reason)
	f.Uint16(12, &q.Rule)
}

func (f *codec) asking(c *Begin) {
	if f.Field() == 17 && c.Asking == nil {
		c.Asking = new(Asking)
	}
	for m := f.Message(17, c.Asking != nil); f.Visit(&m); {
		c.Asking.fields(f)
	}
	f.Bool(18, &c.Asked)
}

func (c *Ask) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.ID)
	f.Kept(4, &c.Agent)
	f.Kept(5, &c.Session)
	f.Kept(6, &c.Tool)
	f.digest(7, &c.Request)
	f.Kept(8, &c.Preview)
	f.Kept(9, &c.Reason)
	f.Uint32(10, &c.Required)
	f.Uint32(11, &c.Denials)
	f.Duration(12, &c.Timeout)
	f.Bool(13, &c.AllowOnTimeout)
}

func (c *Decide) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.ID)
	f.Text(4, &c.Session)
	f.Text(5, &c.Call)
	f.Kept(6, &c.Approver)
	f.Bool(7, &c.Approve)
	f.Kept(8, &c.Reason)
	f.digest(9, &c.Request)
}

func (c *CancelApproval) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.ID)
	f.Text(4, &c.Session)
	f.Text(5, &c.Call)
	f.Texts(6, &c.Pools)
}

func (c *PutStanding) fields(f *codec) {
	f.request(&c.NS, &c.By)
	c.Of.field(f, 3)
	f.Kept(4, &c.Shown)
	f.Uint32(5, &c.Uses)
	f.Duration(6, &c.TTL)
}

func (c *DeleteStanding) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.ID)
}

func (o *StandingOf) field(f *codec, num protowire.Number) {
	for m := f.Optional(num, *o != StandingOf{}); f.Visit(&m); {
		f.Uint8(1, (*uint8)(&o.Scope), uint8(OfSession))
		f.Kept(2, &o.Name)
		f.Kept(3, &o.Server)
		f.Kept(4, &o.Tool)
		f.Bool(5, &o.Exact)
		f.digest(6, &o.Arguments)
	}
}

func (a *Approval) fields(f *codec) {
	f.Duration(1, &a.Deadline)
	f.Bool(2, &a.ForCall)
	f.Uint32(3, &a.Required)
	f.Uint32(4, &a.Denials)
	for i, n := elements(f, 5, &a.Votes, 2*approval.MaxVotes); i < n; i++ {
		for m := f.Message(5, true); f.Visit(&m); {
			f.Kept(1, &a.Votes[i].Approver)
			f.Bool(2, &a.Votes[i].Approve)
			f.Kept(3, &a.Votes[i].Reason)
			f.Duration(4, &a.Votes[i].At)
		}
	}
	f.Uint8(6, (*uint8)(&a.End), uint8(approval.Cancelled))
	f.Duration(7, &a.Ended)
	f.Kept(8, &a.Session)
	f.Kept(9, &a.Call)
	f.Kept(10, &a.Agent)
	f.Kept(11, &a.Tool)
	f.digest(12, &a.Policy)
	f.Uint16(13, &a.Rule)
	f.digest(14, &a.Request)
	f.Kept(15, &a.Preview)
	f.Kept(16, &a.Reason)
	f.Duration(17, &a.Asked)
	f.Bool(18, &a.Approved)
	f.Bool(19, &a.AllowOnTimeout)
	f.Duration(20, &a.Timeout)
	f.Uint8(21, (*uint8)(&a.Kind), uint8(Sampling))
	f.Kept(22, &a.Server)
	f.Fingerprint(23, (*[8]byte)(&a.By))
}

func clockFields(f *codec, c *approval.Clock) {
	f.Bool(1, &c.Approved)
	f.Bool(2, &c.AllowOnTimeout)
	f.Duration(3, &c.Timeout)
	f.Duration(4, &c.Deadline)
}

func (a *Standing) fields(f *codec) {
	a.Of.field(f, 1)
	f.Kept(2, &a.Shown)
	f.Uint32(3, &a.Uses)
	f.Duration(4, &a.Until)
	f.Duration(5, &a.Made)
	f.Fingerprint(6, (*[8]byte)(&a.By))
}

func (n *ApprovalCount) fields(f *codec) {
	f.Text(1, &n.ID)
	f.Uint8(2, (*uint8)(&n.State), uint8(approval.Cancelled))
	f.Uint8(3, (*uint8)(&n.Why), uint8(RefusedOtherThing))
	f.Duration(4, &n.Left)
	f.Uint32(5, &n.Required)
	f.Uint32(6, &n.Denials)
	f.Uint32(7, &n.For)
	f.Uint32(8, &n.Against)
	f.Text(9, &n.By)
	f.Text(10, &n.Reason)
}
