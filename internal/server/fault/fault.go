package fault

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// An Error is why a request has no answer. What it means stands in its fields; its
// words are for people, and nobody decides by them.
type Error struct {
	Code      connect.Code
	Reason    string
	field     string // which field is wrong, or names what is not there; "" for none
	text      string
	Cause     string            // what stood in the way of a change; goes behind the text
	retry     time.Duration     // when to send the request again; 0 where that is not known
	newerThan uint64            // of STALE_ID
	more      map[string]string // what else clients may read
}

// errorDomain stands in every google.rpc.ErrorInfo of this service.
const errorDomain = "govnode"

// ReasonHeader stands in the answer to a request of its own that has an error, and
// holds its reason.
const ReasonHeader = "Govnode-Reason"

// ShedRetry is when a caller that was refused for want of room may ask again.
const ShedRetry = time.Second

// Reasons of errors, as clients read them in google.rpc.ErrorInfo. They are
// part of the contract.
const (
	ReasonInvalidField      = "INVALID_FIELD"
	ReasonInvalidPolicy     = "INVALID_POLICY"
	ReasonNotApplied        = "NOT_APPLIED"     // sending it again is safe, with the same id
	ReasonOutcomeUnknown    = "OUTCOME_UNKNOWN" // likewise
	ReasonNotFound          = "NOT_FOUND"
	ReasonIDReused          = "ID_REUSED"
	ReasonStaleID           = "STALE_ID"
	ReasonSessionClosed     = "SESSION_CLOSED"
	ReasonStillWaiting      = "STILL_WAITING"
	ReasonNotWaiting        = "NOT_WAITING"
	ReasonTooManyOpen       = "TOO_MANY_OPEN"
	ReasonTooManyTools      = "TOO_MANY_TOOLS"
	ReasonTooManyNames      = "TOO_MANY_NAMES"
	ReasonPoolInUse         = "POOL_IN_USE"
	ReasonPolicyPinned      = "POLICY_PINNED"
	ReasonBudgetHasChildren = "BUDGET_HAS_CHILDREN"
	ReasonKilled            = "KILLED"
	ReasonKillUnderWay      = "KILL_UNDER_WAY"
	ReasonTooManySignals    = "TOO_MANY_SIGNALS"
	ReasonNotANumber        = "NOT_A_NUMBER"
	ReasonOverflow          = "OVERFLOW"
	ReasonVersionConflict   = "VERSION_CONFLICT"
	ReasonAlreadyVoted      = "ALREADY_VOTED"
	ReasonAlreadyDecided    = "ALREADY_DECIDED"
	ReasonSelfApproval      = "SELF_APPROVAL"
	ReasonListFull          = "LIST_FULL"
	ReasonNoMembers         = "NO_MEMBERS"
	ReasonSnapshot          = "BAD_SNAPSHOT"
	ReasonPolicyUnreadable  = "POLICY_UNREADABLE"
	ReasonTooManyFollowers  = "TOO_MANY_FOLLOWERS"
	ReasonTooSlow           = "FOLLOWER_TOO_SLOW"
	ReasonOverloaded        = "OVERLOADED"
	ReasonTooLarge          = "TOO_LARGE"
	ReasonUnauthenticated   = "UNAUTHENTICATED"
	ReasonForbidden         = "PERMISSION_DENIED"
	ReasonQuotaExceeded     = "QUOTA_EXCEEDED"
	ReasonTooManyTokens     = "TOO_MANY_TOKENS"
	ReasonTokenTaken        = "TOKEN_TAKEN"
	ReasonInternal          = "INTERNAL"
)

// New makes an Error without a field.
func New(code connect.Code, reason, text string) *Error {
	return &Error{Code: code, Reason: reason, text: text}
}

// With adds a name and a value that clients may read.
func (f *Error) With(name, value string) *Error {
	if f.more == nil {
		f.more = map[string]string{}
	}
	f.more[name] = value
	return f
}

// Later says when to send the request again.
func (f *Error) Later(after time.Duration) *Error {
	f.retry = after
	return f
}

// message is what a person reads.
func (f *Error) message() string {
	if f.field != "" {
		return f.field + ": " + f.text + f.Cause
	}
	return f.text + f.Cause
}

// Error implements error.
func (f *Error) Error() string { return f.Code.String() + ": " + f.message() }

// As lets connect find its own error in an Error.
func (f *Error) As(target any) bool {
	ce, ok := target.(**connect.Error)
	if ok {
		*ce = f.Connect()
	}
	return ok
}

// Connect is the one place where an Error becomes what callers get. Its reason stands
// in a header as well, for those who would have to look for it in the details.
func (f *Error) Connect() *connect.Error {
	err := connect.NewError(f.Code, errors.New(f.message()))
	err.Meta().Set(ReasonHeader, f.Reason)
	info := &errdetails.ErrorInfo{Reason: f.Reason, Domain: errorDomain, Metadata: maps.Clone(f.more)}
	add := func(name, value string) {
		if info.Metadata == nil {
			info.Metadata = map[string]string{}
		}
		info.Metadata[name] = value
	}
	details := []proto.Message{info}
	if f.field != "" {
		add("field", f.field)
		if f.Reason == ReasonInvalidField {
			details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: f.field, Description: f.text}}})
		}
	}
	if f.newerThan > 0 {
		add("newerThan", strconv.FormatUint(f.newerThan, 10))
	}
	if f.retry > 0 {
		add("retryAfter", f.retry.String())
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(f.retry)})
	}
	for _, m := range details {
		// It fails for messages that cannot be encoded, which these can.
		if d, e := connect.NewErrorDetail(m); e == nil {
			err.AddDetail(d)
		}
	}
	return err
}

// Of is any error as an Error. One of connect's own came from another node, or
// says that a message could not be read; what says nothing of an outcome leaves it
// unknown.
func Of(err error) *Error {
	var f *Error
	var ce *connect.Error
	switch {
	case errors.As(err, &f):
		return f
	case !errors.As(err, &ce):
		return OfChange(err).(*Error)
	}
	info := InfoOf(ce)
	if info == nil {
		return Unreadable(ce)
	}
	return &Error{Code: ce.Code(), Reason: info.GetReason(), text: ce.Message(), more: info.GetMetadata()}
}

// InfoOf is the google.rpc.ErrorInfo of an error of another node; nil if it has none.
func InfoOf(err error) *errdetails.ErrorInfo {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return nil
	}
	for _, d := range ce.Details() {
		if m, e := d.Value(); e == nil {
			if info, ok := m.(*errdetails.ErrorInfo); ok {
				return info
			}
		}
	}
	return nil
}

// OperationError says in a batch or a stream what an error says to a single request.
func OperationError(err error) *v1.OperationError {
	f := Of(err)
	o := &v1.OperationError{Code: f.Code.String(), Message: f.message(), Reason: f.Reason, NewerThan: int64(f.newerThan)}
	if f.retry > 0 {
		o.RetryAfter = durationpb.New(f.retry)
	}
	return o
}

// A failing is how a code of the state machine that is no answer reads as an
// error.
type failing struct {
	code   connect.Code
	reason string
	text   string
}

// failings is the one table from codes to errors. Codes that are outcomes are
// in package words.
var failings = map[session.Code]failing{
	session.NotFound:          {connect.CodeNotFound, ReasonNotFound, "there is nothing of that name"},
	session.IDReused:          {connect.CodeInvalidArgument, ReasonIDReused, "the id was used before with other content; take a new id for a new request"},
	session.StaleID:           {connect.CodeFailedPrecondition, ReasonStaleID, "the id is older than what is still remembered, so it cannot be told whether it was executed; it was not executed now. Make ids newer than newerThan"},
	session.StalePremise:      {connect.CodeUnavailable, ReasonNotApplied, "what this request depends on kept changing; nothing was done, send it again with the same id"},
	session.Invalid:           {connect.CodeInvalidArgument, ReasonInvalidField, "the request contradicts itself"},
	session.SessionClosed:     {connect.CodeFailedPrecondition, ReasonSessionClosed, "the session is closed; create a new one"},
	session.TooManyOpen:       {connect.CodeResourceExhausted, ReasonTooManyOpen, "too many are open here, the most is " + strconv.Itoa(session.MaxOpen) + "; end some first"},
	session.TooManyTools:      {connect.CodeResourceExhausted, ReasonTooManyTools, "the session has called as many different tools as it may, which is " + strconv.Itoa(session.MaxTools) + "; use another session"},
	session.TooManyNames:      {connect.CodeResourceExhausted, ReasonTooManyNames, "policies of this content have as many names as they may, which is " + strconv.Itoa(session.MaxNames) + "; delete one of them with DeletePolicy, or change the content"},
	session.PoolInUse:         {connect.CodeFailedPrecondition, ReasonPoolInUse, "the pool has holders or waiters; wait for them, or set force"},
	session.BudgetHasChildren: {connect.CodeFailedPrecondition, ReasonBudgetHasChildren, "the budget is the parent of others; delete those first"},
	session.PolicyPinned:      {connect.CodeFailedPrecondition, ReasonPolicyPinned, "live sessions pin the policy; close them first"},
	session.NotWaiting:        {connect.CodeFailedPrecondition, ReasonNotWaiting, "there is no wait to give up"},
	session.StillWaiting:      {connect.CodeFailedPrecondition, ReasonStillWaiting, "the call has not been admitted yet; give up its wait with CancelCall"},
	session.Killed:            {connect.CodeFailedPrecondition, ReasonKilled, "no session is created; let it go on with the signal CONTINUE"},
	session.KillUnderWay:      {connect.CodeFailedPrecondition, ReasonKillUnderWay, "a KILL stands there that has not closed all its sessions yet; send CONTINUE again when ListSignals shows it as swept. What was closed stays closed"},
	session.TooManySignals:    {connect.CodeResourceExhausted, ReasonTooManySignals, "as many signals stand in the namespace as there may be, which is " + strconv.Itoa(session.MaxSignals) + "; lift some with CONTINUE, or signal everything, for which there is always room"},
	session.StaleSession:      {connect.CodeUnavailable, ReasonNotApplied, "the session kept being opened anew; nothing was done, send it again with the same id"},
	session.StaleAccess:       {connect.CodeUnavailable, ReasonNotApplied, "who may do what kept changing; nothing was done, send it again with the same id"},
	session.TokenTaken:        {connect.CodePermissionDenied, ReasonTokenTaken, "the token lets one node join, and that is another one; ask an operator for a token for this node"},
	session.TooManyTokens:     {connect.CodeResourceExhausted, ReasonTooManyTokens, "the namespace has as many tokens, or denied subjects, as it may, which is " + strconv.Itoa(session.MaxTokens) + ", or its tokens name more agents and policies than it has room for; revoke some first"},
	session.AlreadyVoted:      {connect.CodeFailedPrecondition, ReasonAlreadyVoted, "the approver has voted the other way; one vote each counts"},
	session.AlreadyDecided:    {connect.CodeFailedPrecondition, ReasonAlreadyDecided, "the approval is not pending any more; look at it with Get"},
	session.SelfApproval:      {connect.CodeFailedPrecondition, ReasonSelfApproval, "the agent that asks cannot decide, nor who is known by what it asked with; let somebody else do it"},
	session.NotANumber:        {connect.CodeFailedPrecondition, ReasonNotANumber, "the key holds a text; Set it to a number first"},
	session.Overflow:          {connect.CodeInvalidArgument, ReasonOverflow, "the sum does not fit; it may be at most 9223372036854.775807 either way"},
}

// OfResult returns the error of a result that is no answer. Subject says what
// the caller named, such as `sessionId "a"`.
func OfResult(res *session.Result, subject string) error {
	f, ok := failings[res.Code]
	if !ok {
		return New(connect.CodeInternal, ReasonInternal, fmt.Sprintf("%s: the state machine answered %d, which this request cannot have", subject, res.Code))
	}
	return &Error{Code: f.code, Reason: f.reason, text: subject + ": " + f.text, newerThan: res.NewerThan}
}

// Conflict says that something is not as the request names it, and how it is:
// what is its version or its length.
func Conflict(subject, what, today string) *Error {
	return New(connect.CodeFailedPrecondition, ReasonVersionConflict,
		fmt.Sprintf("%s: its %s is %s, and not the one that the request names; read it again, and decide anew", subject, what, today)).With(what, today)
}

// Invalid refuses a field of a request. The text says what to do.
func Invalid(field, format string, args ...any) *Error {
	return &Error{Code: connect.CodeInvalidArgument, Reason: ReasonInvalidField, field: field, text: fmt.Sprintf(format, args...)}
}

// NotFound says that what a field names is not there.
func NotFound(field, format string, args ...any) *Error {
	return &Error{Code: connect.CodeNotFound, Reason: ReasonNotFound, field: field, text: fmt.Sprintf(format, args...)}
}

// NotApplied says that nothing became of a change, and why it has no answer.
func NotApplied(cause string) *Error {
	return &Error{Code: connect.CodeUnavailable, Reason: ReasonNotApplied, Cause: cause,
		text: "nothing was applied; send it again with the same id, here or at another node: "}
}

// Unknown says that nobody knows what became of a change.
func Unknown(cause string) *Error {
	return &Error{Code: connect.CodeUnavailable, Reason: ReasonOutcomeUnknown, Cause: cause,
		text: "it is not known whether this was applied; send it again with the same id: "}
}

// OfAnswer is the error of a command that has no result; nil if it has one.
func OfAnswer(a *storage.Answer) error { return OfChange(a.Failure()) }

// OfChange translates the error of a change. What does not say what became
// of it leaves that unknown.
func OfChange(err error) error {
	if err == nil {
		return nil
	}
	applied := storage.OutcomeOf(err)
	var said *Error
	var bad interface{ Field() (name, text string) }
	switch {
	case applied == storage.NotApplied && errors.As(err, &said): // by what stands in front of the store
		return said
	case applied == storage.NotApplied && errors.Is(err, storage.ErrInvalid) && errors.As(err, &bad):
		name, text := bad.Field()
		return Invalid(name, "%s", text)
	case applied == storage.NotApplied && errors.Is(err, storage.ErrInvalid):
		return New(connect.CodeInvalidArgument, ReasonInvalidField, ReasonText(err))
	case applied == storage.NotApplied && OverloadedElsewhere(err):
		return errLeaderOverloaded()
	case applied == storage.NotApplied:
		return NotApplied(ReasonText(err))
	}
	return Unknown(ReasonText(err))
}

// ReasonText is what stands behind an outcome.
func ReasonText(err error) string {
	if f, ok := err.(*storage.Failure); ok && f.Err != nil {
		err = f.Err
	}
	if bad, ok := err.(*storage.InvalidError); ok {
		err = bad.Why
	}
	return err.Error()
}

// OfRead translates the error of a read on which a request rests. Where the
// request has proposed something before, its trace makes another of it.
func OfRead(err error) error {
	if e, ok := err.(*storage.ReadError); ok {
		err = e.Err
	}
	if f := (*Error)(nil); errors.As(err, &f) {
		return f
	}
	return NotApplied(err.Error())
}

// GaveUp is the error of a request whose context is done while it waits for
// something that goes on without it.
func GaveUp(ctx context.Context) error {
	if said := (*Error)(nil); errors.As(context.Cause(ctx), &said) {
		return said
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return New(connect.CodeDeadlineExceeded, ReasonOutcomeUnknown, "the deadline passed first; send it again with the same id")
	}
	return New(connect.CodeCanceled, ReasonOutcomeUnknown, "the request was given up; send it again with the same id")
}

// OverloadedElsewhere reports whether the node that leads did not admit what
// this one passed on to it.
func OverloadedElsewhere(err error) bool {
	var o interface{ Overloaded() bool }
	return errors.As(err, &o) && o.Overloaded()
}

// errLeaderOverloaded is the refusal of gate.Memory as another node than
// the leader says it: going to a third one would not help.
func errLeaderOverloaded() error {
	return New(connect.CodeResourceExhausted, ReasonOverloaded,
		"the node that leads is near its memory limit and takes nothing new; nothing was applied, send it again with the same id in "+ShedRetry.String()).Later(ShedRetry)
}

// Stale says that the premises of a request kept changing.
func Stale() error {
	f := failings[session.StalePremise]
	return New(f.code, f.reason, f.text)
}

// Unauthenticated reports whether an error says that its caller is not known, or is no
// more.
func Unauthenticated(err error) bool {
	var f *Error
	return errors.As(err, &f) && f.Reason == ReasonUnauthenticated
}
