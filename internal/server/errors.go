package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// errorDomain stands in every google.rpc.ErrorInfo of this service.
const errorDomain = "govnode"

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
	session.Overflow:      {connect.CodeInvalidArgument, reasonOverflow, "amount: the sum does not fit; it may be at most 9223372036854.775807 either way"},
}

// failure returns the error of a result that is no answer. Subject says what
// the caller named, such as `sessionId "a"`.
func failure(res *session.Result, subject string) error {
	f, ok := failings[res.Code]
	if !ok {
		return newError(connect.CodeInternal, reasonInternal, fmt.Sprintf("%s: the state machine answered %d, which this request cannot have", subject, res.Code))
	}
	text := f.text
	if subject != "" && !strings.HasPrefix(text, subject) {
		text = subject + ": " + text
	}
	if res.Code == session.StaleID {
		return newError(f.code, f.reason, text, "newerThan", strconv.FormatUint(res.NewerThan, 10))
	}
	return newError(f.code, f.reason, text)
}

// How the errors begin that say what became of a change.
const (
	textNotApplied = "nothing was applied; send it again with the same id, here or at another node: "
	textUnknown    = "it is not known whether this was applied; send it again with the same id: "
)

// newError makes an error with its google.rpc.ErrorInfo; meta are names and
// values.
func newError(code connect.Code, reason, text string, meta ...string) *connect.Error {
	err := connect.NewError(code, errors.New(text))
	info := &errdetails.ErrorInfo{Reason: reason, Domain: errorDomain}
	if len(meta) > 0 {
		info.Metadata = make(map[string]string, len(meta)/2)
		for i := 0; i+1 < len(meta); i += 2 {
			info.Metadata[meta[i]] = meta[i+1]
		}
	}
	attach(err, info)
	return err
}

func attach(err *connect.Error, detail proto.Message) {
	// It fails for messages that cannot be encoded, which these can.
	if d, e := connect.NewErrorDetail(detail); e == nil {
		err.AddDetail(d)
	}
}

// invalid refuses a field of a request. The text says what to do.
func invalid(field, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	err := newError(connect.CodeInvalidArgument, reasonInvalidField, field+": "+text, "field", field)
	attach(err, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: text}}})
	return err
}

func notFound(field, format string, args ...any) error {
	return newError(connect.CodeNotFound, reasonNotFound, field+": "+fmt.Sprintf(format, args...), "field", field)
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
	var none *leaderless
	var bad interface{ Field() (name, text string) }
	switch {
	case applied == storage.NotApplied && errors.As(err, &none):
		return none.said
	case applied == storage.NotApplied && errors.Is(err, storage.ErrInvalid) && errors.As(err, &bad):
		name, text := bad.Field()
		return invalid(name, "%s", text)
	case applied == storage.NotApplied && errors.Is(err, storage.ErrInvalid):
		return newError(connect.CodeInvalidArgument, reasonInvalidField, reasonText(err))
	case applied == storage.NotApplied && overloadedElsewhere(err):
		return errLeaderOverloaded()
	case applied == storage.NotApplied:
		return newError(connect.CodeUnavailable, reasonNotApplied, textNotApplied+reasonText(err))
	}
	return newError(connect.CodeUnavailable, reasonOutcomeUnknown, textUnknown+reasonText(err))
}

// reasonText is what stands behind an outcome.
func reasonText(err error) string {
	if f, ok := err.(*storage.Failure); ok && f.Err != nil {
		err = f.Err
	}
	return strings.TrimPrefix(err.Error(), storage.ErrInvalid.Error()+": ")
}

// readError translates the error of a read on which a request rests. Where the
// request has proposed something before, its trace makes another of it.
func readError(err error) error {
	if e, ok := err.(*storage.ReadError); ok {
		err = e.Err
	}
	if none := (*leaderless)(nil); errors.As(err, &none) {
		return none.said
	}
	return newError(connect.CodeUnavailable, reasonNotApplied, textNotApplied+err.Error())
}

// gaveUp is the error of a request whose context is done while it waits for
// something that goes on without it.
func gaveUp(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return newError(connect.CodeDeadlineExceeded, reasonOutcomeUnknown, "the deadline passed first; send it again with the same id")
	}
	return newError(connect.CodeCanceled, reasonOutcomeUnknown, "the request was given up; send it again with the same id")
}

// reasonOf returns the reason that an error carries, and newerThan with it.
func reasonOf(err error) (reason string, newerThan int64) {
	if !errors.As(err, new(*connect.Error)) {
		return reasonInternal, 0
	}
	info := infoOf(err)
	newerThan, _ = strconv.ParseInt(info.GetMetadata()["newerThan"], 10, 64)
	return info.GetReason(), newerThan
}

// infoOf is the google.rpc.ErrorInfo of an error; nil if it has none.
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

// operationError says in a batch what an error says to a single request.
func operationError(err error) *v1.OperationError {
	reason, newerThan := reasonOf(err)
	text := err.Error()
	var ce *connect.Error
	if errors.As(err, &ce) {
		text = ce.Message()
	}
	return &v1.OperationError{Code: connect.CodeOf(err).String(), Message: text, Reason: reason, NewerThan: newerThan}
}
