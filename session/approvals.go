package session

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"example.com/govnode/internal/seeded"
	"example.com/govnode/session/approval"
)

// Approvals: how a call is asked about, what is decided, and how the call goes on.
//
// An asked call is an open one without slots, and nothing is reserved for it. Its
// approval is a record of its own, whose name follows from the call; the clock of
// the approval stands in the open call too, so that each settles alone. It goes
// through three steps: it is parked until somebody decides; once it is approved it
// comes back and may stand in a queue, still asked; and with its admission the
// approval is used. Want of room parks it again.

// Asking is what a call has to be approved as, where its verdict asks.
type Asking struct {
	Agent             string // premise: whose session it is
	Required, Denials uint32 // votes that decide
	Timeout           time.Duration
	AllowOnTimeout    bool
	MaxPending        uint32 // of the session
	Request           Digest // of the whole request, and of the arguments as they were modified
	Arguments         Digest // of the arguments alone, as standing approvals name them
	Rule              uint16 // that asks
	Server            string // label of the server that has the tool
	Preview           string // of the arguments, redacted
	Reason            string
}

// Approval is the record of an approval.
type Approval struct {
	entry uint64
	approval.Approval
	Session, Call string // that asks; Call is empty of one that a client asked for
	Agent         string
	Tool          string
	Policy        Digest // that asked
	Rule          uint16
	Request       Digest
	Preview       string
	Reason        string
	Asked         time.Duration
	Kind          CallKind
	Server        string    // label of the server that has the tool
	By            Principal // who asked; zero where nobody is asked who they are
}

// Refusal says why a call was answered ApprovalDenied.
type Refusal uint8

const (
	RefusedByVote     Refusal = iota
	RefusedCancelled          // the approval was cancelled, or was lost
	RefusedTooMany            // too many calls of the session are asked about
	RefusedOtherThing         // it came back with other arguments than were asked about
)

// ApprovalCount is an approval as an answer to a call shows it.
type ApprovalCount struct {
	ID                              string
	State                           approval.State
	Why                             Refusal       // with ApprovalDenied
	Left                            time.Duration // until somebody has to decide, or the call has to come back
	Required, Denials, For, Against uint32
	By, Reason                      string // the vote that decided; By is empty where time did
}

type (
	// Ask asks for an approval without a call.
	Ask struct {
		Authorized
		NS                string
		By                Maker
		ID                string
		Agent             string
		Session           string // that it is shown with
		Tool              string
		Request           Digest
		Preview, Reason   string
		Required, Denials uint32
		Timeout           time.Duration
		AllowOnTimeout    bool
	}

	// Decide is the vote of an approver, whose name is in lower case. Session and
	// Call are a premise: of which call the approval is.
	Decide struct {
		Authorized
		NS            string
		By            Maker
		ID            string
		Session, Call string
		Request       Digest // what the approver has seen; zero if he does not say
		Approver      string
		Approve       bool
		Reason        string
	}

	// CancelApproval ends an approval that nobody wants to know any more, and the
	// call that waits for it. Session, Call and Pools are premises.
	CancelApproval struct {
		Authorized
		NS            string
		By            Maker
		ID            string
		Session, Call string
		Pools         []string
	}
)

// ApprovalID names the approval that a call asks for: it is of no other namespace.
func ApprovalID(ns, session, call string) string { return hashed("call", ns, session, call) }

// RequestedApprovalID names the approval that a client asks for.
func RequestedApprovalID(ns, client, request string) string {
	return hashed("request", ns, client, request)
}

// hashed is a name that follows from others. None of them has a zero byte in it.
func hashed(of ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(of, "\x00")))
	return hex.EncodeToString(sum[:16])
}

func approvalOf(ns, session, call string) ref {
	return ref{KindApproval, ns, ApprovalID(ns, session, call)}
}

func (c *Ask) Touches() []Key { return append(c.By.touches(c.NS), ApprovalKey(c.NS, c.ID)) }

func (c *Decide) Touches() []Key { return c.By.touchesApproval(c.NS, c.ID, c.Session, c.Call) }

func (c *CancelApproval) Touches() []Key {
	return poolKeys(c.NS, c.Pools, c.By.touchesApproval(c.NS, c.ID, c.Session, c.Call)...)
}

func (m Maker) touchesApproval(ns, id, session, call string) []Key {
	keys := append(m.touches(ns), ApprovalKey(ns, id))
	if call != "" {
		keys = append(keys, SessionKey(ns, session))
	}
	return keys
}

func (*Ask) Kind() uint16            { return 23 }
func (*Decide) Kind() uint16         { return 24 }
func (*CancelApproval) Kind() uint16 { return 25 }

func (c *Ask) from() (ns string, by Maker)            { return c.NS, c.By }
func (c *Decide) from() (ns string, by Maker)         { return c.NS, c.By }
func (c *CancelApproval) from() (ns string, by Maker) { return c.NS, c.By }

// Due is when it is decided by nobody, or when it is dropped.
func (a *Approval) Due() (time.Duration, bool) {
	if a.Open() {
		return a.Deadline, true
	}
	return a.Ended + KeptFor, true
}

// At returns the approval as it stands; nil an hour after it has ended.
func (a *Approval) At(now time.Duration) Record {
	if at, _ := a.Due(); at > now {
		return a
	}
	b := *a
	if b.Settle(now); b.over(now) {
		return nil
	}
	return &b
}

func (a *Approval) over(now time.Duration) bool { return !a.Open() && now >= a.Ended+KeptFor }

// Count returns the approval as an answer shows it, at the time at which it stands.
func (a *Approval) Count(id string, now time.Duration) *ApprovalCount {
	n := &ApprovalCount{
		ID: id, State: a.State(), Required: a.Required, Denials: a.Denials, For: a.Approval.Count(true), Against: a.Approval.Count(false),
	}
	if a.Open() {
		n.Left = max(0, a.Deadline-now)
	}
	if v := a.Decisive(); v != nil {
		n.By, n.Reason = v.Approver, v.Reason
	}
	return n
}

// approval returns the approval as it stands, or nil.
func (s *State) approval(k ref) *Approval {
	a, _ := s.lookup(k).(*Approval)
	if a == nil {
		return nil
	}
	if at, _ := a.Due(); at > s.now {
		return a
	}
	a = s.ownApproval(k, a)
	if a.Settle(s.now); a.over(s.now) {
		return nil // stays stored until a Tick drops it
	}
	return a
}

func (s *State) ownApproval(k ref, a *Approval) *Approval {
	if a.entry == s.entry {
		return a
	}
	b := *a
	b.entry = s.entry
	s.write(k, &b)
	return &b
}

// finishApproval ends the approval of a call that does not wait for it any more.
func (s *State) finishApproval(k ref, as approval.State) *Approval {
	a := s.approval(k)
	if a == nil || !a.Open() {
		return a
	}
	a = s.ownApproval(k, a)
	a.Finish(as, s.now)
	return a
}

func (s *State) carryOutAsk(c *Ask, r *Result) {
	k := ref{KindApproval, c.NS, c.ID}
	if a := s.approval(k); a != nil { // the client was dropped since it asked
		if a.Request != c.Request {
			r.Code = IDReused
		}
		return
	}
	s.write(k, &Approval{
		entry: s.entry, Session: c.Session, Agent: c.Agent, Tool: c.Tool, Request: c.Request,
		Preview: c.Preview, Reason: c.Reason, Asked: s.now, By: c.principal(),
		Approval: approval.Approval{
			Clock:    approval.Clock{AllowOnTimeout: c.AllowOnTimeout, Timeout: c.Timeout, Deadline: s.now + c.Timeout},
			Required: c.Required, Denials: c.Denials,
		},
	})
	r.Value = 1
}

// decide counts a vote. Value tells whether it decided.
func (s *State) decide(c *Decide, r *Result) {
	k := ref{KindApproval, c.NS, c.ID}
	a := s.approvalOf(k, c.Session, c.Call, r)
	if a == nil {
		return
	}
	voted := a.Of(c.Approver)
	switch {
	case voted != nil && voted.Approve == c.Approve:
		return
	case voted != nil:
		r.Code = AlreadyVoted
		return
	case c.Request != (Digest{}) && c.Request != a.Request:
		r.Code = Invalid
		return
	case (c.Approver == lower(a.Agent) || a.By != Principal{} && a.By == c.principal()) && !seeded.On(seeded.OwnVote):
		r.Code = SelfApproval
		return
	case a.State() != approval.Pending:
		r.Code = AlreadyDecided
		return
	}
	a = s.ownApproval(k, a)
	a.Cast(approval.Vote{Approver: c.Approver, Approve: c.Approve, Reason: c.Reason, At: s.now})
	if a.State() != approval.Pending {
		r.Value = 1
	}
	s.tellCall(c.NS, a, RefusedByVote)
}

// approvalOf returns an approval if it is there and of the call that the premise
// names.
func (s *State) approvalOf(k ref, session, call string, r *Result) *Approval {
	a := s.approval(k)
	switch {
	case a == nil:
		r.Code = NotFound
		return nil
	case a.Call != call || call != "" && a.Session != session:
		r.Code, r.Names = StalePremise, []string{a.Session, a.Call}
		return nil
	}
	return a
}

// tellCall brings what has become of an approval to the call that waits for it.
// What that has in pools is given back by the caller.
func (s *State) tellCall(ns string, a *Approval, why Refusal) {
	if a.Call == "" {
		return
	}
	k := ref{KindSession, ns, a.Session}
	x := s.session(k)
	if x == nil {
		return
	}
	if h := x.Find(a.Call); h == nil || h.Asked() == nil {
		return
	}
	x = s.ownSession(k, x)
	if !a.Open() {
		x.refuseAsked(a.Call, why, s.now)
		return
	}
	h, clock := x.edit(a.Call), a.Clock
	x.Used = s.now
	h.ask(&clock)
	if h.Parked() {
		h.Deadline = clock.Deadline
	}
}

// cancelApproval ends an approval, and the call that waits for it. Value tells
// whether it was open.
func (s *State) cancelApproval(c *CancelApproval, r *Result) {
	k := ref{KindApproval, c.NS, c.ID}
	a := s.approvalOf(k, c.Session, c.Call, r)
	if a == nil || a.End == approval.Cancelled {
		return
	}
	if !a.Open() {
		r.Code = AlreadyDecided
		return
	}
	if h := s.callOf(c.NS, a); h != nil {
		if !h.within(c.Pools, r) {
			return
		}
		over := *h
		s.letGo(c.NS, &over)
	}
	a = s.finishApproval(k, approval.Cancelled)
	s.tellCall(c.NS, a, RefusedCancelled)
	r.Value = 1
}

// callOf returns the open call that waits for an approval, or nil.
func (s *State) callOf(ns string, a *Approval) *Held {
	if a.Call == "" {
		return nil
	}
	x := s.session(ref{KindSession, ns, a.Session})
	if x == nil {
		return nil
	}
	h := x.Find(a.Call)
	if h == nil || h.Asked() == nil {
		return nil
	}
	return h
}

// lower is of ids, which are of ASCII.
func lower(id string) string { return strings.ToLower(id) }

func approvalKeys(ns, session string, calls []string, keys []Key) []Key {
	for _, call := range calls {
		keys = append(keys, ApprovalKey(ns, ApprovalID(ns, session, call)))
	}
	return keys
}

func (s *State) afterApproval(k ref) *After {
	after := &After{Now: s.now}
	if a := s.approval(k); a != nil {
		b := *a
		b.entry = 0
		after.Approval = &b
	}
	return after
}
