package client

import govnodev1 "example.com/govnode/proto/govnode/v1"

// The values of the API, by the names of this package. The types are those of
// govnode/v1, so that there is one list of values and nothing to convert.

// A Kind says what a call is of. A policy may look at it, and only calls of tools
// and models count in limits of calls.
type Kind = govnodev1.Kind

// Kinds of calls.
const (
	KindTool     = govnodev1.Kind_KIND_TOOL // if none is given
	KindModel    = govnodev1.Kind_KIND_MODEL
	KindAgent    = govnodev1.Kind_KIND_AGENT
	KindHandoff  = govnodev1.Kind_KIND_HANDOFF
	KindSampling = govnodev1.Kind_KIND_SAMPLING // of a server, whose label is the tool
)

// A Status says how a call ended.
type Status = govnodev1.Status

// How a call ended.
const (
	Succeeded = govnodev1.Status_STATUS_SUCCEEDED
	Failed    = govnodev1.Status_STATUS_FAILED
	Cancelled = govnodev1.Status_STATUS_CANCELLED
)

// An Order selects the order in which a call is checked: it decides which
// refusal a call gets that fails several checks, never whether it is refused.
type Order = govnodev1.Order

// Orders of checks.
const (
	OrderUnion       = govnodev1.Order_ORDER_UNSPECIFIED // all checks, in the interceptor's order; if none is given
	OrderInterceptor = govnodev1.Order_ORDER_INTERCEPTOR // adapter contract 5.4
	OrderPreExecute  = govnodev1.Order_ORDER_PRE_EXECUTE // adapter contract 3.6
)

// An Outcome says what a call, or a request for a slot, came to. Begin, Acquire,
// End and Release return what is not a success as a *Refused.
type Outcome = govnodev1.Outcome

// Outcomes of calls and of requests for slots.
const (
	Admitted         = govnodev1.Outcome_OUTCOME_ADMITTED
	DeniedByPolicy   = govnodev1.Outcome_OUTCOME_DENIED_BY_POLICY
	AttemptLimit     = govnodev1.Outcome_OUTCOME_ATTEMPT_LIMIT     // calls of the session, refused ones included
	CallLimit        = govnodev1.Outcome_OUTCOME_CALL_LIMIT        // calls of the session
	ToolLimit        = govnodev1.Outcome_OUTCOME_TOOL_LIMIT        // calls of one tool
	TokenLimit       = govnodev1.Outcome_OUTCOME_TOKEN_LIMIT       // of the session
	SessionTimeout   = govnodev1.Outcome_OUTCOME_SESSION_TIMEOUT   // the session is older than its policy allows
	ConcurrencyLimit = govnodev1.Outcome_OUTCOME_CONCURRENCY_LIMIT // no slot is free, and there was no wait
	QueueFull        = govnodev1.Outcome_OUTCOME_QUEUE_FULL        // too many wait for a slot
	WaitTimeout      = govnodev1.Outcome_OUTCOME_WAIT_TIMEOUT      // no slot came free in time
	RateLimited      = govnodev1.Outcome_OUTCOME_RATE_LIMITED      // of a rate, and there was no wait
	Stopped          = govnodev1.Outcome_OUTCOME_STOPPED           // a STOP keeps it out; the same id may come again
	// People are asked; the same id may come again. See Call.Wait.
	NeedsApproval = govnodev1.Outcome_OUTCOME_APPROVAL_REQUIRED
	NotApproved   = govnodev1.Outcome_OUTCOME_APPROVAL_DENIED
	// Nobody decided in time, or the call did not come back in time.
	NotDecided     = govnodev1.Outcome_OUTCOME_APPROVAL_EXPIRED
	SessionClosed  = govnodev1.Outcome_OUTCOME_SESSION_CLOSED
	LeaseLost      = govnodev1.Outcome_OUTCOME_LEASE_LOST    // the call or slot lapsed
	LeaseExpired   = govnodev1.Outcome_OUTCOME_LEASE_EXPIRED // so did its lease, when it was renewed or released
	Fenced         = govnodev1.Outcome_OUTCOME_FENCED        // another holds it now
	AlreadyEnded   = govnodev1.Outcome_OUTCOME_ALREADY_ENDED
	WaitCancelled  = govnodev1.Outcome_OUTCOME_CANCELLED // the wait was given up by its caller
	NotFound       = govnodev1.Outcome_OUTCOME_NOT_FOUND
	KindLimit      = govnodev1.Outcome_OUTCOME_KIND_LIMIT   // calls of one kind
	BreakerOpen    = govnodev1.Outcome_OUTCOME_BREAKER_OPEN // too many calls in a row failed
	BudgetExceeded = govnodev1.Outcome_OUTCOME_BUDGET_EXCEEDED
)

// A SessionState says whether calls can be begun in a session.
type SessionState = govnodev1.SessionState

// States of sessions.
const (
	SessionOpen    = govnodev1.SessionState_SESSION_STATE_OPEN
	SessionEnded   = govnodev1.SessionState_SESSION_STATE_CLOSED
	SessionExpired = govnodev1.SessionState_SESSION_STATE_EXPIRED // after its idle TTL
)

// A Reason says in one word what the service objects to in a request; docs/api.md
// lists all of them.
type Reason string

// Reasons of errors.
const (
	ReasonInvalidField      Reason = "INVALID_FIELD"  // the message names it
	ReasonInvalidPolicy     Reason = "INVALID_POLICY" // the message says where
	ReasonNotFound          Reason = "NOT_FOUND"
	ReasonIDReused          Reason = "ID_REUSED" // the id stands for another request
	ReasonStaleID           Reason = "STALE_ID"  // the id is older than what is remembered; nothing was done
	ReasonSessionClosed     Reason = "SESSION_CLOSED"
	ReasonKilled            Reason = "KILLED"         // a KILL stands against the session that was to be created
	ReasonKillUnderWay      Reason = "KILL_UNDER_WAY" // it cannot be lifted yet
	ReasonStillWaiting      Reason = "STILL_WAITING"
	ReasonNotWaiting        Reason = "NOT_WAITING"
	ReasonTooManyOpen       Reason = "TOO_MANY_OPEN"
	ReasonPoolInUse         Reason = "POOL_IN_USE"
	ReasonPolicyPinned      Reason = "POLICY_PINNED"
	ReasonBudgetHasChildren Reason = "BUDGET_HAS_CHILDREN"
	ReasonTooLarge          Reason = "TOO_LARGE"

	ReasonAlreadyVoted   Reason = "ALREADY_VOTED" // the other way
	ReasonAlreadyDecided Reason = "ALREADY_DECIDED"
	ReasonSelfApproval   Reason = "SELF_APPROVAL" // the agent that asks cannot decide

	ReasonVersionConflict Reason = "VERSION_CONFLICT" // see Conflict
	ReasonListFull        Reason = "LIST_FULL"
	ReasonNotANumber      Reason = "NOT_A_NUMBER" // what is to be added to

	// The client sends again what is answered so, while there is time.
	ReasonOverloaded     Reason = "OVERLOADED"
	ReasonQuotaExceeded  Reason = "QUOTA_EXCEEDED" // likewise where a node says when: the namespace has too much
	ReasonNotApplied     Reason = "NOT_APPLIED"
	ReasonOutcomeUnknown Reason = "OUTCOME_UNKNOWN"
)

// Messages of the API that answers and refusals hold; their getters say what is
// in them.
type (
	Decision = govnodev1.Decision     // what the policy said of a call
	Counters = govnodev1.Counters     // of a session
	Signal   = govnodev1.Signal       // a STOP or a KILL that stands
	Approval = govnodev1.CallApproval // of a call
)
