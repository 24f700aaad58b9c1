package client

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
)

// The errors that callers see, and what the error of one attempt tells of what
// became of it.

var (
	// ErrClosed is returned for whatever is asked of a Client after Close.
	ErrClosed = errors.New("client: closed")
	// ErrLeaseLost says that a slot, or the slots of a call, are held no
	// longer: the lease ran out, was ended by force, or belongs to another.
	ErrLeaseLost = errors.New("client: the lease was lost")
)

// A Refused is the service's answer that a call or a slot is not granted
// (policy engine spec 5.1). It is final for the id it was given for, so that trying
// again is a new attempt; Stopped and NeedsApproval alone are not: nothing ran, and
// the same id may be sent again.
type Refused struct {
	Outcome     Outcome
	Reason      string // in words an agent can act on
	MatchedRule string // of the pinned policy; empty if no rule decided
	DecisionID  string // names the decision in the audit trail; empty for slots
	RetryAfter  time.Duration
	Decision    *Decision // nil for slots
	Counters    *Counters // of the session; nil for slots
	Approval    *Approval // with NeedsApproval, NotApproved and NotDecided
	Signal      *Signal   // with Stopped, and with SessionClosed of a session that was killed
}

func (e *Refused) Error() string {
	name := strings.ToLower(strings.TrimPrefix(e.Outcome.String(), "OUTCOME_"))
	if e.Reason == "" {
		return "client: refused: " + name
	}
	return "client: refused: " + name + ": " + e.Reason
}

// Is reports that a refusal for want of a live lease is ErrLeaseLost.
func (e *Refused) Is(target error) bool {
	if target != ErrLeaseLost {
		return false
	}
	switch e.Outcome {
	case LeaseLost, LeaseExpired, Fenced:
		return true
	}
	return false
}

// An Unknown says that a request was sent and no answer came in time: it may
// have taken effect or not. Sending it again with the same id gives the one
// answer there is. If the id was drawn by the client and not chosen by its
// user, what it may have been granted is given back behind the scenes.
type Unknown struct {
	Operation string // for instance BeginCall
	ID        string // of the request
	Err       error  // why there is no answer
}

func (e *Unknown) Error() string {
	return fmt.Sprintf("client: %s %s: outcome unknown: %v", e.Operation, e.ID, e.Err)
}

func (e *Unknown) Unwrap() error { return e.Err }

// An Unavailable says that no node answered in time, and that nothing was
// changed.
type Unavailable struct {
	Operation string
	Err       error
}

func (e *Unavailable) Error() string {
	return fmt.Sprintf("client: %s: not done: %v", e.Operation, e.Err)
}

func (e *Unavailable) Unwrap() error { return e.Err }

// An Error is the service's objection to a request. Nothing was changed, by that
// or by an earlier attempt: where one of them may have done something the error
// is an Unknown, whatever the service says to the next.
type Error struct {
	Operation string
	Code      connect.Code
	Reason    Reason // may be empty
	Err       error  // the *connect.Error
}

func (e *Error) Error() string { return fmt.Sprintf("client: %s: %v", e.Operation, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

// fate is what an error says about the request that it answers.
type fate int

const (
	final      fate = iota // the service objects; sending it again makes no difference
	notApplied             // no effect, and worth sending again
	unknown                // maybe an effect
	stale                  // the id is too old to tell whether it is known
)

// A verdict is what an error says about the request that it answers.
type verdict struct {
	fate
	reason    Reason
	newerThan uint64        // Unix ms; with stale
	after     time.Duration // not to be sent again before this has passed; 0 where the node does not say
}

// overloadPause is how long a node is left alone that has no room for new work
// and does not say for how long.
const overloadPause = time.Second

// judge tells what an RPC error means for its request. An error that did not
// come from a node says that the request was lost on the way, there or back.
func judge(err error) verdict {
	if errors.Is(err, errNotSent) {
		return verdict{fate: notApplied}
	}
	var ce *connect.Error
	if !errors.As(err, &ce) || errors.As(err, new(*breach)) && !neverSent(err) {
		return verdict{fate: unknown} // what ends a stream says nothing about a request on it
	}
	if !connect.IsWireError(err) {
		switch ce.Code() {
		case connect.CodeUnimplemented, connect.CodeUnauthenticated, connect.CodePermissionDenied:
			return verdict{fate: final} // an HTTP status: there is no govnode at that address
		}
		if neverSent(err) {
			return verdict{fate: notApplied}
		}
		return verdict{fate: unknown}
	}
	v := errorInfo(ce)
	switch {
	case v.reason == ReasonStaleID:
		v.fate = stale
	case v.reason == ReasonOverloaded:
		// Other than the caps of the service it passes by itself.
		v.fate = notApplied
		orElse(&v.after, overloadPause)
	case v.reason == ReasonQuotaExceeded && v.after > 0:
		v.fate = notApplied // of what comes again, as so much a second
	case ce.Code() == connect.CodeUnavailable && v.reason == ReasonNotApplied:
		v.fate = notApplied
	case v.reason == ReasonOutcomeUnknown, ce.Code() == connect.CodeUnavailable, ce.Code() == connect.CodeDeadlineExceeded, ce.Code() == connect.CodeCanceled:
		v.fate = unknown
	}
	return v
}

// errorInfo reads what a node says beside the code. The fate is left final.
func errorInfo(ce *connect.Error) (v verdict) {
	for _, d := range ce.Details() {
		m, err := d.Value()
		if err != nil {
			continue // of a type this build does not know
		}
		switch m := m.(type) {
		case *errdetails.ErrorInfo:
			v.reason = Reason(m.GetReason())
			v.newerThan, _ = strconv.ParseUint(m.GetMetadata()["newerThan"], 10, 64) // absent: 0
		case *errdetails.RetryInfo:
			v.after = max(m.GetRetryDelay().AsDuration(), 0)
		}
	}
	return v
}
