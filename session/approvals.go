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
		a.Votes = before.Votes // it was called off for what stood, which has gone
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
	r.Approval = &ApprovalCount{ID: ak.name, State: approval.Cancelled, Why: why}
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
