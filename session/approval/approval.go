package approval

import (
	"slices"
	"time"
)

// MaxVotes bounds how many are asked to agree, and how many to refuse.
const MaxVotes = 8

// State says how an approval stands.
type State uint8

const (
	Pending State = iota
	Approved
	Used      // by the call that asked for it
	Denied    // by those who were asked
	Expired   // nobody decided in time, or the call did not come back in time
	Cancelled // nobody wants to know any more
)

// A Clock is what of an approval moves by time alone. It stands in the approval
// and in the open call that waits for it, and moves alike in both.
type Clock struct {
	Approved bool
	// AllowOnTimeout lets it be approved at its deadline. A vote to deny ends that.
	AllowOnTimeout bool
	Timeout        time.Duration
	// Deadline is until when somebody has to decide; once it is approved, until
	// when the call has to come back for it.
	Deadline time.Duration
}

// Pass moves the clock, and reports whether it still runs at that time.
func (c *Clock) Pass(now time.Duration) (runs bool) {
	if now < c.Deadline {
		return true
	}
	if c.Approved || !c.AllowOnTimeout {
		return false
	}
	c.approve(c.Deadline)
	return now < c.Deadline
}

func (c *Clock) approve(at time.Duration) { c.Approved, c.Deadline = true, at+c.Timeout }

// A Vote is what one of those who were asked says. They are told apart by their
// names in lower case.
type Vote struct {
	Approver string
	Approve  bool
	Reason   string
	At       time.Duration
}

// Approval is how many have to agree, who did, and what came of it. Once it has
// ended it does not change any more.
type Approval struct {
	Clock
	// ForCall tells that a call comes back for it. Without one an approval has
	// ended when it is approved.
	ForCall           bool
	Required, Denials uint32 // votes that decide
	Votes             []Vote // in the order in which they were given; replaced, never written into
	End               State  // what it ended as; Pending while it has not
	Ended             time.Duration
}

// State returns how it stands.
func (a *Approval) State() State {
	if a.End == Pending && a.Approved {
		return Approved
	}
	return a.End
}

// Open reports whether it may still change.
func (a *Approval) Open() bool { return a.End == Pending }

// Settle moves it to a time.
func (a *Approval) Settle(now time.Duration) {
	switch before := a.Deadline; {
	case !a.Open() || now < before:
	case a.ForCall:
		if !a.Pass(now) {
			a.Finish(Expired, a.Deadline)
		}
	case a.AllowOnTimeout:
		a.Approved = true
		a.Finish(Approved, before)
	default:
		a.Finish(Expired, before)
	}
}

// Finish ends it.
func (a *Approval) Finish(as State, at time.Duration) { a.End, a.Ended = as, at }

// ByTimeout reports whether it was approved without the votes for it.
func (a *Approval) ByTimeout() bool { return a.Approved && a.Count(true) < a.Required }

// Count returns how many voted for it, or against it.
func (a *Approval) Count(approve bool) (n uint32) {
	for i := range a.Votes {
		if a.Votes[i].Approve == approve {
			n++
		}
	}
	return n
}

// Of returns the vote of an approver, or nil.
func (a *Approval) Of(approver string) *Vote {
	i := slices.IndexFunc(a.Votes, func(v Vote) bool { return v.Approver == approver })
	if i < 0 {
		return nil
	}
	return &a.Votes[i]
}

// Decisive returns the vote that decided how it stands; nil if none did.
func (a *Approval) Decisive() *Vote {
	switch s := a.State(); {
	case s == Denied:
	case s != Approved && s != Used, a.ByTimeout():
		return nil
	}
	return &a.Votes[len(a.Votes)-1]
}

// Cast counts a vote of somebody who has not voted yet, on what is pending. What
// is reached first decides.
func (a *Approval) Cast(v Vote) {
	a.Votes = append(slices.Clip(a.Votes), v)
	if !v.Approve {
		a.AllowOnTimeout = false
	}
	switch {
	case a.Count(false) >= a.Denials:
		a.Finish(Denied, v.At)
	case a.Count(true) < a.Required:
	case a.ForCall:
		a.approve(v.At)
	default:
		a.Approved = true
		a.Finish(Approved, v.At)
	}
}
