package server

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

// errorDomain stands in every google.rpc.ErrorInfo of this service.
const errorDomain = "govnode"

// ReasonHeader stands in the answer to a request of its own that has an error, and
// holds its reason.
const ReasonHeader = "Govnode-Reason"

// shedRetry is when a caller that was refused for want of room may ask again.
const shedRetry = time.Second

// Reasons of errors, as clients read them in google.rpc.ErrorInfo. They are
// part of the contract.
const (
	reasonInvalidField     = "INVALID_FIELD"
	reasonInvalidPolicy    = "INVALID_POLICY"
	reasonNotApplied       = "NOT_APPLIED"     // sending it again is safe, with the same id
	reasonOutcomeUnknown   = "OUTCOME_UNKNOWN" // likewise
	reasonNotFound         = "NOT_FOUND"
	reasonIDReused         = "ID_REUSED"
	reasonStaleID          = "STALE_ID"
	reasonSessionClosed    = "SESSION_CLOSED"
	reasonStillWaiting     = "STILL_WAITING"
	reasonNotWaiting       = "NOT_WAITING"
	reasonTooManyOpen      = "TOO_MANY_OPEN"
	reasonTooManyTools     = "TOO_MANY_TOOLS"
	reasonTooManyNames     = "TOO_MANY_NAMES"
	reasonPoolInUse        = "POOL_IN_USE"
	reasonPolicyPinned     = "POLICY_PINNED"
	reasonNotANumber       = "NOT_A_NUMBER"
	reasonOverflow         = "OVERFLOW"
	reasonNoMembers        = "NO_MEMBERS"
	reasonSnapshot         = "BAD_SNAPSHOT"
	reasonPolicyUnreadable = "POLICY_UNREADABLE"
	reasonTooManyFollowers = "TOO_MANY_FOLLOWERS"
	reasonTooSlow          = "FOLLOWER_TOO_SLOW"
	reasonOverloaded       = "OVERLOADED"
	reasonTooLarge         = "TOO_LARGE"
	reasonInternal         = "INTERNAL"
)

// A fault is why a request has no answer. What it means stands in its fields; its
// words are for people, and nobody decides by them.
type fault struct {
	code      connect.Code
	reason    string
	field     string // which field is wrong, or names what is not there; "" for none
	text      string
	cause     string            // what stood in the way of a change; goes behind the text
	retry     time.Duration     // when to send the request again; 0 where that is not known
	newerThan uint64            // of STALE_ID
	more      map[string]string // what else clients may read
}

func newError(code connect.Code, reason, text string) *fault {
	return &fault{code: code, reason: reason, text: text}
}

// with adds a name and a value that clients may read.
func (f *fault) with(name, value string) *fault {
	if f.more == nil {
		f.more = map[string]string{}
	}
	f.more[name] = value
	return f
}

// later says when to send the request again.
func (f *fault) later(after time.Duration) *fault {
	f.retry = after
	return f
}

// message is what a person reads.
func (f *fault) message() string {
	if f.field != "" {
		return f.field + ": " + f.text + f.cause
	}
	return f.text + f.cause
}

// Error implements error.
func (f *fault) Error() string { return f.code.String() + ": " + f.message() }

// As lets connect find its own error in a fault.
func (f *fault) As(target any) bool {
	ce, ok := target.(**connect.Error)
	if ok {
		*ce = f.connect()
	}
	return ok
}

// connect is the one place where a fault becomes what callers get. Its reason stands
// in a header as well, for those who would have to look for it in the details.
func (f *fault) connect() *connect.Error {
	err := connect.NewError(f.code, errors.New(f.message()))
	err.Meta().Set(ReasonHeader, f.reason)
	info := &errdetails.ErrorInfo{Reason: f.reason, Domain: errorDomain, Metadata: maps.Clone(f.more)}
	add := func(name, value string) {
		if info.Metadata == nil {
			info.Metadata = map[string]string{}
		}
		info.Metadata[name] = value
	}
	details := []proto.Message{info}
	if f.field != "" {
		add("field", f.field)
		if f.reason == reasonInvalidField {
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

// faultOf is any error as a fault. One of connect's own came from another node, or
// says that a message could not be read; what says nothing of an outcome leaves it
// unknown.
func faultOf(err error) *fault {
	var f *fault
	var ce *connect.Error
	switch {
	case errors.As(err, &f):
		return f
	case !errors.As(err, &ce):
		return changeError(err).(*fault)
	}
	info := infoOf(ce)
	if info == nil {
		return errUnread(ce)
	}
	return &fault{code: ce.Code(), reason: info.GetReason(), text: ce.Message(), more: info.GetMetadata()}
}

// infoOf is the google.rpc.ErrorInfo of an error of another node; nil if it has none.
func infoOf(err error) *errdetails.ErrorInfo {
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

// operationError says in a batch or a stream what an error says to a single request.
func operationError(err error) *v1.OperationError {
	f := faultOf(err)
	return &v1.OperationError{Code: f.code.String(), Message: f.message(), Reason: f.reason, NewerThan: int64(f.newerThan)}
}

// A failing is how a code of the state machine that is no answer reads as an
// error.
type failing struct {
	code   connect.Code
	reason string
	text   string
}

// failings is the one table from codes to errors. Codes that are outcomes are
// in texts.go.
var failings = map[session.Code]failing{
	session.NotFound:      {connect.CodeNotFound, reasonNotFound, "there is nothing of that name"},
	session.IDReused:      {connect.CodeInvalidArgument, reasonIDReused, "the id was used before with other content; take a new id for a new request"},
	session.StaleID:       {connect.CodeFailedPrecondition, reasonStaleID, "the id is older than what is still remembered, so it cannot be told whether it was executed; it was not executed now. Make ids newer than newerThan"},
	session.StalePremise:  {connect.CodeUnavailable, reasonNotApplied, "what this request depends on kept changing; nothing was done, send it again with the same id"},
	session.Invalid:       {connect.CodeInvalidArgument, reasonInvalidField, "the request contradicts itself"},
	session.SessionClosed: {connect.CodeFailedPrecondition, reasonSessionClosed, "the session is closed; create a new one"},
	session.TooManyOpen:   {connect.CodeResourceExhausted, reasonTooManyOpen, "too many are open here, the most is " + strconv.Itoa(session.MaxOpen) + "; end some first"},
	session.TooManyTools:  {connect.CodeResourceExhausted, reasonTooManyTools, "the session has called as many different tools as it may, which is " + strconv.Itoa(session.MaxTools) + "; use another session"},
	session.TooManyNames:  {connect.CodeResourceExhausted, reasonTooManyNames, "policies of this content have as many names as they may, which is " + strconv.Itoa(session.MaxNames) + "; delete one of them with DeletePolicy, or change the content"},
	session.PoolInUse:     {connect.CodeFailedPrecondition, reasonPoolInUse, "the pool has holders or waiters; wait for them, or set force"},
	session.PolicyPinned:  {connect.CodeFailedPrecondition, reasonPolicyPinned, "live sessions pin the policy; close them first"},
	session.NotWaiting:    {connect.CodeFailedPrecondition, reasonNotWaiting, "there is no wait to give up"},
	session.StillWaiting:  {connect.CodeFailedPrecondition, reasonStillWaiting, "the call has not been admitted yet; give up its wait with CancelCall"},
	session.NotANumber:    {connect.CodeFailedPrecondition, reasonNotANumber, "the key holds a text; Set it to a number first"},
	session.Overflow:      {connect.CodeInvalidArgument, reasonOverflow, "the sum does not fit; it may be at most 9223372036854.775807 either way"},
}

// failure returns the error of a result that is no answer. Subject says what
// the caller named, such as `sessionId "a"`.
func failure(res *session.Result, subject string) error {
	f, ok := failings[res.Code]
	if !ok {
		return newError(connect.CodeInternal, reasonInternal, fmt.Sprintf("%s: the state machine answered %d, which this request cannot have", subject, res.Code))
	}
	return &fault{code: f.code, reason: f.reason, text: subject + ": " + f.text, newerThan: res.NewerThan}
}

// invalid refuses a field of a request. The text says what to do.
func invalid(field, format string, args ...any) *fault {
	return &fault{code: connect.CodeInvalidArgument, reason: reasonInvalidField, field: field, text: fmt.Sprintf(format, args...)}
}

func notFound(field, format string, args ...any) *fault {
	return &fault{code: connect.CodeNotFound, reason: reasonNotFound, field: field, text: fmt.Sprintf(format, args...)}
}

// notApplied and unknown say what became of a change, and why it has no answer.
func notApplied(cause string) *fault {
	return &fault{code: connect.CodeUnavailable, reason: reasonNotApplied, cause: cause,
		text: "nothing was applied; send it again with the same id, here or at another node: "}
}

func unknown(cause string) *fault {
	return &fault{code: connect.CodeUnavailable, reason: reasonOutcomeUnknown, cause: cause,
		text: "it is not known whether this was applied; send it again with the same id: "}
}

// answerError is the error of a command that has no result; nil if it has one.
func answerError(a *storage.Answer) error { return changeError(a.Failure()) }

// changeError translates the error of a change. What does not say what became
// of it leaves that unknown.
func changeError(err error) error {
	if err == nil {
		return nil
	}
	applied := storage.OutcomeOf(err)
	var said *fault
	var bad interface{ Field() (name, text string) }
	switch {
	case applied == storage.NotApplied && errors.As(err, &said): // by what stands in front of the store
		return said
	case applied == storage.NotApplied && errors.Is(err, storage.ErrInvalid) && errors.As(err, &bad):
		name, text := bad.Field()
		return invalid(name, "%s", text)
	case applied == storage.NotApplied && errors.Is(err, storage.ErrInvalid):
		return newError(connect.CodeInvalidArgument, reasonInvalidField, reasonText(err))
	case applied == storage.NotApplied && overloadedElsewhere(err):
		return errLeaderOverloaded()
	case applied == storage.NotApplied:
		return notApplied(reasonText(err))
	}
	return unknown(reasonText(err))
}

// reasonText is what stands behind an outcome.
func reasonText(err error) string {
	if f, ok := err.(*storage.Failure); ok && f.Err != nil {
		err = f.Err
	}
	if bad, ok := err.(*storage.InvalidError); ok {
		err = bad.Why
	}
	return err.Error()
}

// readError translates the error of a read on which a request rests. Where the
// request has proposed something before, its trace makes another of it.
func readError(err error) error {
	if e, ok := err.(*storage.ReadError); ok {
		err = e.Err
	}
	if f := (*fault)(nil); errors.As(err, &f) {
		return f
	}
	return notApplied(err.Error())
}

// gaveUp is the error of a request whose context is done while it waits for
// something that goes on without it.
func gaveUp(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return newError(connect.CodeDeadlineExceeded, reasonOutcomeUnknown, "the deadline passed first; send it again with the same id")
	}
	return newError(connect.CodeCanceled, reasonOutcomeUnknown, "the request was given up; send it again with the same id")
}

// overloadedElsewhere reports whether the node that leads did not admit what
// this one passed on to it.
func overloadedElsewhere(err error) bool {
	var o interface{ Overloaded() bool }
	return errors.As(err, &o) && o.Overloaded()
}

// errLeaderOverloaded is the refusal of memoryGuard.admit as another node than
// the leader says it: going to a third one would not help.
func errLeaderOverloaded() error {
	return newError(connect.CodeResourceExhausted, reasonOverloaded,
		"the node that leads is near its memory limit and takes nothing new; nothing was applied, send it again with the same id in "+shedRetry.String()).later(shedRetry)
}

func errRounds() error {
	f := failings[session.StalePremise]
	return newError(f.code, f.reason, f.text)
}
