package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/client/internal/arguments"
	"example.com/govnode/client/internal/ids"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Calls of a session: how one is begun, ended, or done with as a whole.

// lingering is for how long EndCall is tried although its caller's context is
// done: a call that is not ended holds its slots until its TTL has passed.
const lingering = 2 * time.Second

// A Call says which call is about to be made (adapter contract 3.6). Only Tool
// must be set.
type Call struct {
	ID   string // under which it can be begun again after an Unknown; drawn if empty
	Kind Kind
	Tool string
	// Arguments and Context are what the policy looks at: JSON values, in the
	// types that structpb.NewValue takes. Integers keep all of their digits;
	// floats that are whole numbers become integers. ArgumentsJSON and
	// ContextJSON carry them as exact text, where the order of keys or the
	// writing of numbers matters.
	Arguments, Context         map[string]any
	ArgumentsJSON, ContextJSON string
	Metadata                   map[string]string
	MetadataJSON               string        // in its place, a JSON object
	Pools                      []Want        // beside the one of the policy
	Rates                      []RateWant    // beside those of the policy
	Costs                      []Cost        // what it is assumed to cost; see Spent
	ServerLabel                string        // of the server that has the tool, of hosted and MCP tools
	TTL                        time.Duration // of the lease, 1 s to 1 h; 30 s if 0
	MaxHold                    time.Duration // renewals included; no limit if 0
	Wait                       time.Duration // for a slot, or the end of a STOP; 10 s if 0; NoWait for none
	Priority                   int32
	Tokens                     int64 // that it may use; at most max_tokens
	Order                      Order
	CancelOnLost               bool // see OpenCall.Context
}

// A Want is a slot that a call asks for.
type Want struct {
	Pool   string
	Weight int32 // 1 if 0
}

// An OpenCall is a call that was admitted. It must be ended, once. It is safe
// for concurrent use.
type OpenCall struct {
	*Lease
	session *OpenSession
	req     *govnodev1.BeginCallRequest
	begun   lazy[govnodev1.BeginCallResponse, *govnodev1.BeginCallResponse]

	ending turn
	done   atomic.Bool // ended and result have the answer
	ended  lazy[govnodev1.EndCallResponse, *govnodev1.EndCallResponse]
	result error
}

// Begin asks whether a call may be made, and waits for its slots, 10 s if Wait
// is not set. The slots are renewed until the call is ended, lost, or the
// client is closed. A call that may not be made is a *Refused.
func (s *OpenSession) Begin(ctx context.Context, call Call) (*OpenCall, error) {
	req, err := s.beginRequest(call)
	if err != nil {
		return nil, err
	}
	if err := s.c.enter(); err != nil {
		return nil, err
	}
	defer s.c.leave()
	orElse(&call.Wait, defaultWait)
	orElse(&call.TTL, defaultTTL)
	a := admission{operation: operation{name: "BeginCall", wait: within(call.Wait)}}
	if err := s.c.identify(&a.operation, &req.CallId); err != nil {
		return nil, err
	}
	var res reply
	err = a.ask(ctx, s.c, func(e *errand, wait *durationpb.Duration) (granted, error) {
		var err error
		req.Wait = wait
		res, err = e.begin(req)
		return granted{res.Outcome, res.TTL}, err
	})
	if err != nil {
		if a.drawn != nil && a.mayHold(err) {
			until := a.until.Add(attemptLeast) // the node counts from when it has the request
			s.c.cleanUp(max(time.Until(until), 0)+farewell, func(ctx context.Context) error { return s.abandon(ctx, req.GetCallId(), until) })
		}
		return nil, err
	}
	held := heldRef{session: s.id, secret: s.secret, id: req.GetCallId(), token: res.Token}
	both := &struct { // allocated at once
		call  OpenCall
		lease Lease
	}{}
	open := &both.call
	open.session, open.req, open.Lease = s, req, &both.lease
	open.begun.body = res.body
	if !a.admitted {
		return nil, refused(res.Outcome, open.begun.get())
	}
	open.describe(ctx, held, call.TTL, call.CancelOnLost)
	if err := s.c.leases.hold(open.Lease, &a); err != nil {
		s.c.cleanUp(farewell, func(ctx context.Context) error { return s.c.releaseOne(ctx, held) })
		return nil, err
	}
	return open, nil
}

func refused(outcome Outcome, res *govnodev1.BeginCallResponse) *Refused {
	return &Refused{
		Outcome: outcome, Reason: res.GetReason(), DecisionID: res.GetDecisionId(),
		MatchedRule: res.GetDecision().GetMatchedRule(), RetryAfter: res.GetRetryAfter().AsDuration(),
		Decision: res.GetDecision(), Counters: res.GetCounters(), Signal: res.GetSignal(), Approval: res.GetApproval(),
	}
}

func (s *OpenSession) beginRequest(call Call) (*govnodev1.BeginCallRequest, error) {
	if err := ids.Check("Call.ID", call.ID); err != nil {
		return nil, err
	}
	if !utf8.ValidString(call.Tool) || !utf8.ValidString(call.ArgumentsJSON) || !utf8.ValidString(call.ContextJSON) || !utf8.ValidString(call.ServerLabel) || !utf8.ValidString(call.MetadataJSON) {
		return nil, errors.New("client: Call: Tool, ServerLabel, ArgumentsJSON, ContextJSON and MetadataJSON must be valid UTF-8")
	}
	all := &struct { // allocated at once, where there are few pools
		req   govnodev1.BeginCallRequest
		wants [1]govnodev1.Want
		pools [1]*govnodev1.Want
	}{}
	req := &all.req
	req.SessionId, req.CallId, req.Kind, req.Tool, req.Metadata = s.id, call.ID, call.Kind, call.Tool, call.Metadata
	req.MetadataJson, req.SessionToken = call.MetadataJSON, s.secret
	req.Ttl, req.MaxHold = optional(call.TTL), optional(call.MaxHold)
	req.Priority, req.Tokens, req.Order, req.ServerLabel = call.Priority, call.Tokens, call.Order, call.ServerLabel
	var err error
	if req.ArgumentsJson, req.Arguments, err = arguments.Encode("Call.Arguments", call.Arguments, call.ArgumentsJSON); err != nil {
		return nil, err
	}
	if req.ContextJson, req.Context, err = arguments.Encode("Call.Context", call.Context, call.ContextJSON); err != nil {
		return nil, err
	}
	orElse(&req.ArgumentsJson, call.ArgumentsJSON)
	orElse(&req.ContextJson, call.ContextJSON)
	req.Pools = all.pools[:0]
	for i, w := range call.Pools {
		var want *govnodev1.Want
		if i < len(all.wants) {
			want = &all.wants[i]
		} else {
			want = &govnodev1.Want{}
		}
		want.Pool, want.Weight = w.Pool, w.Weight
		req.Pools = append(req.Pools, want)
	}
	for _, w := range call.Rates {
		want := &govnodev1.RateWant{Rate: w.Rate, Cost: w.Cost}
		if w.Tokens {
			want.By = govnodev1.Cost_COST_TOKENS
		}
		req.Rates = append(req.Rates, want)
	}
	for _, cost := range call.Costs {
		req.Budgets = append(req.Budgets, cost.message())
	}
	return req, nil
}

// ID returns the id of the call.
func (o *OpenCall) ID() string { return o.ref.id }

// Begun returns the service's answer as it came, a message of govnode/v1: the decision, the grants with their
// tokens, the counters, the pressure, and the arguments that a policy has
// changed.
func (o *OpenCall) Begun() *govnodev1.BeginCallResponse { return o.begun.get() }

// Pressure tells how full the pool of the policy was when the call was
// admitted.
func (o *OpenCall) Pressure() Pressure { return pressureOf(o.Begun().GetPressure()) }

// An EndOption says more about a call that has ended.
type EndOption func(*ending) error

// An ending is what EndOptions fill in.
type ending struct{ *govnodev1.EndCallRequest }

// UsedTokens is what the call really used, 0 too; it replaces what was reserved, which
// stands without it.
func UsedTokens(n int64) EndOption {
	return func(r *ending) error {
		r.Tokens = &n
		return nil
	}
}

// Output is what the call gave, as a JSON value, for drift (adapter contract 3.12) and
// for the rules of an Edictum ruleset that look at outputs; see [OpenCall.Shown].
func Output(v any) EndOption {
	return func(r *ending) (err error) {
		if r.Output, err = structpb.NewValue(v); err != nil {
			return fmt.Errorf("client: Output: %w", err)
		}
		return nil
	}
}

// End reports how the call ended, and frees its slots. Only the first End
// counts: another one gives the same result, but that what Close has ended as
// cancelled ended in any other way is an error. It is sent even if ctx is done,
// for 2 seconds more. It returns ErrLeaseLost if the lease ran out before: the
// service has then settled the call as executed with an unknown result.
func (o *OpenCall) End(ctx context.Context, status Status, options ...EndOption) error {
	if err := o.ending.take(ctx, lingering); err != nil {
		return &Unknown{Operation: "EndCall", ID: o.ID(), Err: err}
	}
	defer o.ending.leave()
	if o.done.Load() {
		return o.result
	}
	req := &govnodev1.EndCallRequest{SessionId: o.session.id, CallId: o.ID(), Status: status, SessionToken: o.session.secret}
	for _, option := range options {
		if err := option(&ending{req}); err != nil {
			return err
		}
	}
	if req.Output != nil && o.begun.get().GetReviews() {
		req.Begin = o.req
	}
	c := o.session.c
	if goOn, err := c.leases.giveBackOne(ctx, o.Lease, lingering); !goOn {
		if err == nil && status != Cancelled {
			err = fmt.Errorf("client: call %s was ended as cancelled: %w", o.ID(), ErrClosed)
		}
		return err
	}
	defer c.leases.gaveBack(o.Lease)
	op := operation{name: "EndCall", id: o.ID(), farewell: true, linger: lingering}
	res, err := send(ctx, c, op, func(e *errand) (reply, error) { return e.endCall(req) })
	if err != nil {
		return err
	}
	o.ended.body = res.body
	if !wasEnded(res.Outcome) {
		ended := o.ended.get()
		o.result = &Refused{Outcome: res.Outcome, Reason: ended.GetReason(), Counters: ended.GetCounters()}
	}
	o.done.Store(true)
	return o.result
}

// Ended returns the service's answer to End as it came, a message of govnode/v1: the counters, drift, the
// checkpoint if there is one. It is nil before.
func (o *OpenCall) Ended() *govnodev1.EndCallResponse {
	if !o.done.Load() {
		return nil
	}
	return o.ended.get()
}

// Shown returns what of an output is to be shown to the agent once End was given it, and
// the warnings that belong to it: the output itself, unless rules of an Edictum ruleset
// have changed or suppressed it. Where such rules look at the tool and there is no
// answer that tells, nothing of it is shown.
func (o *OpenCall) Shown(output any) (shown any, warnings []string) {
	review := o.Ended().GetReview()
	switch {
	case review == nil && o.begun.get().GetReviews():
		return notJudged, []string{notJudged}
	case review.GetChanged():
		return review.GetOutput().AsInterface(), review.GetWarnings()
	}
	return output, review.GetWarnings()
}

const notJudged = "[OUTPUT SUPPRESSED] rules look at what this tool returns, and none has judged this"

// Do begins a call, does it, and ends it: as succeeded, or as failed if do
// returns an error or panics. do gets OpenCall.Context.
func (s *OpenSession) Do(ctx context.Context, call Call, do func(context.Context, *OpenCall) error) (err error) {
	open, err := s.Begin(ctx, call)
	if err != nil {
		return err
	}
	status := Failed
	defer func() { err = errors.Join(err, open.End(ctx, status)) }()
	if err = do(open.Context(), open); err == nil {
		status = Succeeded
	}
	return err
}

// abandon gives back what a call may have been granted whose caller does not
// wait for the answer any more. Until the last request for it is over, that the
// service knows no such call proves nothing: it may be on its way, or a guardrail or
// a STOP may hold it. So it is asked again, ever more rarely.
func (s *OpenSession) abandon(ctx context.Context, id string, until time.Time) error {
	for pause := pauseMost; ; pause *= 2 {
		last := !time.Now().Before(until)
		res, err := send(ctx, s.c, operation{name: "CancelCall", id: id, farewell: true}, func(e *errand) (*govnodev1.CancelCallResponse, error) {
			return e.cancelCall(&govnodev1.CancelCallRequest{SessionId: s.id, CallId: id, SessionToken: s.secret})
		})
		var objection *Error
		objects := errors.As(err, &objection)
		notFound := objects && objection.Code == connect.CodeNotFound
		switch {
		case res.GetOutcome() == WaitCancelled:
			return nil // it waited
		case notFound && last:
			return nil // it never arrived
		case err == nil, objects && !notFound, last:
			return s.c.releaseOne(ctx, heldRef{session: s.id, secret: s.secret, id: id})
		case !sleep(ctx, min(pause, time.Until(until))):
			return &Unknown{Operation: "BeginCall", ID: id, Err: context.Cause(ctx)}
		}
	}
}
