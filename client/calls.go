package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// How a call ended.
const (
	Succeeded = govnodev1.Status_STATUS_SUCCEEDED
	Failed    = govnodev1.Status_STATUS_FAILED
	Cancelled = govnodev1.Status_STATUS_CANCELLED
)

// lingering is for how long EndCall is tried although its caller's context is
// done: a call that is not ended holds its slots until its TTL has passed.
const lingering = 2 * time.Second

// A Call says which call is about to be made (adapter contract 3.6). Only Tool
// must be set.
type Call struct {
	ID   string // under which it can be begun again after an Unknown; drawn if empty
	Kind govnodev1.Kind
	Tool string
	// Arguments and Context are what the policy looks at. ArgumentsJSON and
	// ContextJSON carry them as exact text, where numbers or the order of keys
	// matter.
	Arguments, Context         map[string]any
	ArgumentsJSON, ContextJSON string
	Metadata                   map[string]string
	Pools                      []Want        // beside the one of the policy
	TTL                        time.Duration // of the lease, 1 s to 1 h; 30 s if 0
	MaxHold                    time.Duration // renewals included; no limit if 0
	Wait                       time.Duration // for a slot; 10 s if 0; NoWait for none
	Priority                   int32
	Tokens                     int64 // reserved against max_tokens
	Order                      govnodev1.Order
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
	begun   *govnodev1.BeginCallResponse

	ending sync.Mutex
	ended  *govnodev1.EndCallResponse
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
	leave, err := s.c.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	orElse(&call.Wait, defaultWait)
	orElse(&call.TTL, defaultTTL)
	a, err := newAdmission(s.c, "BeginCall", &req.CallId, call.Wait)
	if err != nil {
		return nil, err
	}
	var res *govnodev1.BeginCallResponse
	err = a.ask(ctx, s.c, func(ctx context.Context, n *node, wait *durationpb.Duration) (granted, error) {
		var err error
		req.Wait = wait
		res, err = n.calls.BeginCall(ctx, req)
		return granted{res.GetOutcome(), shortest(res.GetGrants())}, err
	})
	if err != nil {
		if a.drawn && a.mayHold(err) {
			s.c.cleanUp(func(ctx context.Context) { s.abandon(ctx, req.GetCallId()) })
		}
		return nil, err
	}
	if res.GetOutcome() != govnodev1.Outcome_OUTCOME_ADMITTED {
		return nil, &Refused{
			Outcome: res.GetOutcome(), Reason: res.GetReason(), DecisionID: res.GetDecisionId(),
			MatchedRule: res.GetDecision().GetMatchedRule(), RetryAfter: res.GetRetryAfter().AsDuration(),
			Decision: res.GetDecision(), Counters: res.GetCounters(),
		}
	}
	ref := &govnodev1.SlotRef{SessionId: s.id, SlotId: req.GetCallId()}
	if len(res.GetGrants()) > 0 {
		ref.Token = res.GetGrants()[0].GetToken() // any of them stands for the call
	}
	open := &OpenCall{session: s, begun: res}
	open.Lease, err = s.c.leases.hold(ctx, a, ref, call.TTL, call.CancelOnLost)
	if err != nil {
		s.c.cleanUp(func(ctx context.Context) { _ = s.c.releaseAll(ctx, []*Lease{{ref: ref}}) }) // or it lapses with its TTL
		return nil, err
	}
	return open, nil
}

func (s *OpenSession) beginRequest(call Call) (*govnodev1.BeginCallRequest, error) {
	if err := checkID("Call.ID", call.ID); err != nil {
		return nil, err
	}
	if !utf8.ValidString(call.Tool) || !utf8.ValidString(call.ArgumentsJSON) || !utf8.ValidString(call.ContextJSON) {
		return nil, errors.New("client: Call: Tool, ArgumentsJSON and ContextJSON must be valid UTF-8")
	}
	arguments, err := object("Call.Arguments", call.Arguments)
	if err != nil {
		return nil, err
	}
	facts, err := object("Call.Context", call.Context)
	if err != nil {
		return nil, err
	}
	req := &govnodev1.BeginCallRequest{
		SessionId: s.id, CallId: call.ID, Kind: call.Kind, Tool: call.Tool,
		Arguments: arguments, Context: facts, ArgumentsJson: call.ArgumentsJSON, ContextJson: call.ContextJSON,
		Metadata: call.Metadata, Ttl: optional(call.TTL), MaxHold: optional(call.MaxHold),
		Priority: call.Priority, Tokens: call.Tokens, Order: call.Order,
	}
	for _, w := range call.Pools {
		req.Pools = append(req.Pools, &govnodev1.Want{Pool: w.Pool, Weight: w.Weight})
	}
	return req, nil
}

func object(field string, m map[string]any) (*structpb.Struct, error) {
	if m == nil {
		return nil, nil
	}
	s, err := structpb.NewStruct(m)
	if err != nil {
		return nil, fmt.Errorf("client: %s: %w", field, err)
	}
	return s, nil
}

func shortest(grants []*govnodev1.Grant) time.Duration {
	if len(grants) == 0 {
		return 0
	}
	d := grants[0].GetTtl().AsDuration()
	for _, g := range grants[1:] {
		d = min(d, g.GetTtl().AsDuration())
	}
	return d
}

// ID returns the id of the call.
func (o *OpenCall) ID() string { return o.ref.GetSlotId() }

// Begun returns the service's answer: the decision, the grants with their
// tokens, the counters, the pressure, and the arguments that a policy has
// changed.
func (o *OpenCall) Begun() *govnodev1.BeginCallResponse { return o.begun }

// Pressure tells how full the pool of the policy was when the call was
// admitted.
func (o *OpenCall) Pressure() Pressure { return pressureOf(o.begun.GetPressure()) }

// An EndOption says more about a call that has ended.
type EndOption func(*govnodev1.EndCallRequest) error

// UsedTokens is what the call really used; it replaces what was reserved.
func UsedTokens(n int64) EndOption {
	return func(r *govnodev1.EndCallRequest) error {
		r.Tokens = n
		return nil
	}
}

// Output is what the call gave, as a JSON value, for drift
// (adapter contract 3.12).
func Output(v any) EndOption {
	return func(r *govnodev1.EndCallRequest) (err error) {
		if r.Output, err = structpb.NewValue(v); err != nil {
			return fmt.Errorf("client: Output: %w", err)
		}
		return nil
	}
}

// End reports how the call ended, and frees its slots. Only the first End
// counts: another one gives the same result. It is sent even if ctx is done,
// for 2 seconds more. It returns ErrLeaseLost if the lease ran out before: the
// service has then settled the call as executed with an unknown result.
func (o *OpenCall) End(ctx context.Context, status govnodev1.Status, options ...EndOption) error {
	o.ending.Lock()
	defer o.ending.Unlock()
	if o.ended != nil {
		return o.result
	}
	req := &govnodev1.EndCallRequest{SessionId: o.session.id, CallId: o.ID(), Status: status}
	for _, option := range options {
		if err := option(req); err != nil {
			return err
		}
	}
	c := o.session.c
	leave, err := c.leases.giveBackOne(o.Lease)
	if leave == nil {
		return err
	}
	defer leave()
	ctx, cancel := linger(farewellContext(ctx), lingering)
	defer cancel()
	res, err := send(ctx, c, operation{name: "EndCall", id: o.ID()}, func(ctx context.Context, n *node) (*govnodev1.EndCallResponse, error) {
		return n.calls.EndCall(ctx, req)
	})
	if err != nil {
		return err
	}
	o.ended = res
	switch outcome := res.GetOutcome(); outcome {
	case govnodev1.Outcome_OUTCOME_ENDED, govnodev1.Outcome_OUTCOME_ALREADY_ENDED:
	default:
		o.result = &Refused{Outcome: outcome, Reason: res.GetReason(), Counters: res.GetCounters()}
	}
	return o.result
}

// Ended returns the service's answer to End: the counters, drift, the
// checkpoint if there is one. It is nil before.
func (o *OpenCall) Ended() *govnodev1.EndCallResponse {
	o.ending.Lock()
	defer o.ending.Unlock()
	return o.ended
}

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
// wait for the answer any more.
func (s *OpenSession) abandon(ctx context.Context, id string) {
	res, err := send(ctx, s.c, operation{name: "CancelCall", id: id}, func(ctx context.Context, n *node) (*govnodev1.CancelCallResponse, error) {
		return n.calls.CancelCall(ctx, &govnodev1.CancelCallRequest{SessionId: s.id, CallId: id})
	})
	var objection *Error
	if errors.As(err, &objection) && objection.Code == connect.CodeNotFound {
		return // it never arrived
	}
	if res.GetOutcome() == govnodev1.Outcome_OUTCOME_CANCELLED {
		return // it waited
	}
	ref := &govnodev1.SlotRef{SessionId: s.id, SlotId: id}
	_ = s.c.releaseAll(ctx, []*Lease{{ref: ref}}) // or it lapses with its TTL
}
