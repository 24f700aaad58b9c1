package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/record"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// EndCall and CancelCall: how a call ends, or gives up its wait.

// EndCall reports that a call has finished, and frees its slots.
func (s callService) EndCall(ctx context.Context, req *v1.EndCallRequest) (*v1.EndCallResponse, error) {
	return unary(ctx, s.Server, &end{}, req)
}

// An end is one EndCall on its way.
type end struct {
	request[v1.EndCallRequest, v1.EndCallResponse]
	cmd     *session.End
	secret  string // of its session
	session *session.Session
	policy  *engine.Policy      // nil where it cannot be had
	input   *engine.Input       // of its begin; nil if that was not sent
	review  *engine.Review      // nil where no rule looks at the output
	drift   *engine.DriftResult // nil where there is nothing to compare
	tellBy  time.Time           // until when its workflow can be told
	untold  error               // why its workflow could not be told
}

var statuses = map[v1.Status]session.Status{
	v1.Status_STATUS_SUCCEEDED: session.Succeeded,
	v1.Status_STATUS_FAILED:    session.Failed,
	v1.Status_STATUS_CANCELLED: session.Cancelled,
}

func (e *end) check(ctx context.Context, f *input.Fields) error {
	req := e.req
	secretOf(f, &req.SessionToken, &e.secret)
	if req.Begin != nil {
		req.Begin.SessionToken = "" // it is looked at where the call begins
	}
	f.ID("sessionId", req.SessionId)
	f.ID("callId", req.CallId)
	input.Enum(f, "status", req.Status, v1.Status_name)
	status := statuses[req.Status]
	outputOf(f, req.Output)
	switch {
	case req.Status != v1.Status_STATUS_UNSPECIFIED || f.Err != nil:
	case req.Output == nil:
		f.Refuse("status", "is required; say STATUS_SUCCEEDED, STATUS_FAILED or STATUS_CANCELLED, or send the output, which tells")
	default:
		status = session.Failed
		if out := (engine.Output{Value: valueOf(req.Output)}); out.Succeeded() {
			status = session.Succeeded
		}
	}
	spent := budgetAmounts(f, "spent", req.Spent)
	tokens := int64(-1) // what was reserved was used
	if req.Tokens != nil {
		tokens = f.Number("tokens", *req.Tokens, input.Caps.Tokens)
	}
	e.cmd = &session.End{NS: e.ns, Session: req.SessionId, Call: req.CallId, Status: status, Tokens: tokens}
	e.one[0] = e.cmd
	if e.begun(f); f.Err != nil {
		return f.Err
	}
	if len(spent) > 0 { // to sort the names of none costs as much as of a few
		for _, name := range slices.Sorted(maps.Keys(spent)) {
			e.cmd.Spent = append(e.cmd.Spent, session.Bill{Budget: name, Amount: spent[name]})
		}
	}
	return e.find(ctx, f, storage.Nearby)
}

// find finds the session, and the call in it. What was found of another one goes.
func (e *end) find(ctx context.Context, f *input.Fields, read storage.Read) error {
	req := e.req
	found, err := e.s.sessionWith(ctx, e.ns, f, req.SessionId, e.secret, read)
	if err != nil {
		return err
	}
	x := found.Record.(*session.Session)
	h := x.Find(req.CallId)
	e.cmd.Pools, e.cmd.Opened = callPools(x, h), x.Opened
	e.cmd.Rates, e.cmd.Budgets, e.cmd.Output, e.drift = nil, nil, session.Output{}, nil
	if h != nil {
		e.cmd.Rates, e.cmd.Budgets = h.RateNames(), h.BudgetNames()
		if !e.cmd.Ends(h.Content) {
			return fault.Invalid("begin", otherBegin)
		}
	}
	e.session = x
	// Without its policy a call ends all the same: then nothing it returned is shown, and
	// it is no evidence.
	e.policy, err = e.s.policies.Compiled(ctx, e.ns, x.Pin.Digest)
	if errors.Is(err, order.ErrTakesLong) || err != nil && fault.Of(err).Code == connect.CodeUnavailable {
		return err
	}
	if read == storage.Nearby && e.policy != nil && (e.policy.Workflow() != nil || e.unknown(h)) {
		// To tell a workflow takes long, and so does to find what this node has not seen.
		if order.Quick(ctx) {
			return order.ErrTakesLong
		}
		return e.find(ctx, f, storage.Latest)
	}
	if req.Output == nil {
		return nil
	}
	e.look(x)
	if x.Pin.Limits.Drift == 0 {
		return nil
	}
	var base session.Digest
	if x.More != nil {
		base = x.More.Baseline
	}
	return e.compare(ctx, base, read)
}

// unknown reports whether rules may look at the output of a call of which this node cannot
// tell the tool, since it has not seen it or has seen its end.
func (e *end) unknown(h *session.Held) bool {
	return h == nil && e.req.Begin == nil && e.req.Output != nil && e.policy.ReviewsAny()
}

// subject is whose call it is, and of what tool; none if this node has not seen it.
func (e *end) subject() engine.Input {
	in := engine.Input{SessionID: e.req.SessionId, CallID: e.req.CallId, AgentID: e.session.Agent.Value()}
	if h := e.session.Find(e.req.CallId); h != nil {
		in.Tool = h.Tool.Value()
	}
	return in
}

// callPools returns the pools in which a call has slots. One that this node has not
// seen yet, nil, has most likely taken one in the pool of its policy alone; where that
// is wrong, the answer says what is right.
func callPools(x *session.Session, h *session.Held) []string {
	if h != nil {
		return h.PoolNames()
	}
	return []string{session.PolicyPool(x.Policy.Value())}
}

// compare scores the output against the first one of the session (adapter
// contract 3.12). Where one of the two is too long to be kept, they are the
// same or they are not.
func (e *end) compare(ctx context.Context, base session.Digest, read storage.Read) error {
	text := engine.OutputText(valueOf(e.req.Output))
	current := session.Digest(sha256.Sum256([]byte(text)))
	fits := int64(len(text)) <= input.Caps.Output.Max
	e.cmd.Output, e.drift = session.Output{Hash: current, Against: base}, nil
	if base == (session.Digest{}) {
		if fits {
			// A call ends without a key, too: then later outputs are the same or they are not.
			e.cmd.Output.Text, _ = e.s.seals.seal(ctx, e.cmd.NS, e.cmd.Session, text)
		}
		return nil
	}
	found, err := e.s.store.Get(ctx, session.BaselineKey(e.cmd.NS, e.cmd.Session), read)
	if err != nil {
		return fault.OfRead(err)
	}
	threshold := float64(e.session.Pin.Limits.Drift) / 1e6
	drift := engine.DriftResult{Score: 1, Exceeded: threshold < 1, Threshold: threshold}
	first := ""
	if b, ok := found.Record.(*session.Baseline); ok && b.Hash == base {
		first, _ = e.s.seals.open(ctx, e.cmd.NS, b.Text)
	}
	if first != "" && fits {
		drift = engine.Drift(first, text, threshold)
	} else if base == current {
		drift.Score, drift.Exceeded = 0, false
	}
	drift.BaselineHash, drift.CurrentHash = hex.EncodeToString(base[:]), hex.EncodeToString(current[:])
	e.drift = &drift
	e.cmd.Output.Score = min(int64(drift.Score*1e6+0.5), 1e6)
	return nil
}

// outputOf checks what a call has returned.
func outputOf(f *input.Fields, v *structpb.Value) {
	if v == nil {
		return
	}
	if bad := input.StructProblem(v, 0); bad != "" {
		f.Refuse("output", "%s", bad)
	}
}

// valueOf reads one value of a Struct.
func valueOf(v *structpb.Value) value.Value {
	inner, _ := value.FromStruct(&structpb.Struct{Fields: map[string]*structpb.Value{"": v}}).Get("")
	return inner
}

// tells reports whether its session has a workflow that is told of ends.
func (e *end) tells() bool {
	return e.policy != nil && e.policy.Workflow() != nil && e.session.Phase == session.PhaseOpen
}

// tellsFor is for how long it is tried to tell workflows of ends that were ordered together.
const tellsFor = 5 * time.Second

// tell takes down, once the call is over, how far that brings its session in its workflow:
// what the log did not end so is no evidence. Told again it changes nothing, since the call
// is not open there any more; so a repeat tells what could not be told before.
func (e *end) tell(ctx context.Context) error {
	if code := e.answer.Result.Code; !e.tells() || code != session.Ended && code != session.AlreadyEnded {
		return nil
	}
	result := value.Value{}
	if e.req.Output != nil {
		result = valueOf(e.req.Output)
	}
	at := e.s.place(e.ns, e.session, e.req.SessionId, e.req.CallId, e.policy)
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), e.tellBy) // who leaves now may never ask again
	defer cancel()
	return e.s.flows.Ended(e.trace.Within(ctx), at, e.cmd.Status == session.Succeeded, result)
}

func (e *end) take(ctx context.Context, answers []storage.Answer) (again bool, err error) {
	switch again, res := e.stale(answers), &e.answer.Result; {
	case !again:
		e.untold = e.tell(ctx)
		return false, nil
	case e.another():
		return true, e.find(ctx, nil, storage.Latest)
	case len(res.Pools) > 0:
		e.cmd.Pools, e.cmd.Rates, e.cmd.Budgets = res.Pools, res.Rates, res.Names
		return true, nil
	default:
		return true, e.compare(ctx, res.Digest, storage.Latest)
	}
}

func (e *end) respond() error {
	res := &e.answer.Result
	switch {
	case res.Code == session.NotFound:
		return fault.NotFound("callId", "session %q has no call %q that was admitted; begin it with BeginCall", e.req.SessionId, e.req.CallId)
	case res.Code == session.Invalid && len(res.Names) > 0:
		return fault.Invalid("spent", "names %q, which this call is not charged to; name what BeginCall or the policy names", res.Names[0])
	case res.Code == session.Invalid:
		return fault.Invalid("begin", otherBegin)
	case res.Code.Failure() || res.Code == session.SessionClosed:
		return fault.OfResult(res, fmt.Sprintf("callId %q of sessionId %q", e.req.CallId, e.req.SessionId))
	}
	a := &struct { // allocated together
		out      v1.EndCallResponse
		counters v1.Counters
	}{}
	out := &a.out
	out.Outcome, out.Counters, out.Index = words.Outcomes[res.Code], &a.counters, e.answer.Index
	words.SetCounters(&a.counters, res.Counters)
	switch res.Code {
	case session.Ended:
		if d := e.drift; d != nil {
			out.Drift = record.DriftOf(d)
			if d.Exceeded {
				out.Reason = d.Reason()
			}
		}
		if res.Checkpoint > 0 {
			out.CheckpointId = checkpointID(res.Checkpoint)
		}
	case session.AlreadyEnded:
		out.Reason = "This call was reported before; nothing moved"
	case session.LeaseLost:
		if out.Reason = "The lease of this call ran out before; it was settled as unknown and counts as executed"; res.Signal != nil {
			out.Reason = words.KilledText(res.Signal) + "; the call was settled as unknown and counts as executed"
			out.Signal = words.SignalOf(res.Signal, 0)
		}
	}
	if e.review != nil {
		out.Review = words.ReviewOf(*e.review)
	}
	e.s.audit.end(e, out)
	e.s.audit.budgets(e.ns, engine.Input{AgentID: e.session.Agent.Value(), SessionID: e.cmd.Session, CallID: e.cmd.Call}, res)
	if e.untold != nil { // the call is over all the same, and a repeat tells it
		if f := fault.Of(e.untold); f.Reason != fault.ReasonOutcomeUnknown {
			return fault.Unknown(cmp.Or(f.Cause, f.Error()))
		}
		return e.untold
	}
	e.s.metrics.outcome(out.Outcome)
	e.out = out
	return nil
}

func (e *end) size() int {
	if e.req.Output == nil && e.req.Begin == nil {
		return bareSize
	}
	return bareSize + proto.Size(e.req)
}

// checkpointID names the checkpoint of an execution (adapter contract 3.7).
func checkpointID(n uint32) string { return fmt.Sprintf("checkpoint-%d", n) }

// CancelCall gives up a call that waits.
func (s callService) CancelCall(ctx context.Context, req *v1.CancelCallRequest) (*v1.CancelCallResponse, error) {
	return unary(ctx, s.Server, &cancel{}, req)
}

// A cancel is one CancelCall on its way.
type cancel struct {
	request[v1.CancelCallRequest, v1.CancelCallResponse]
	cmd    *session.Cancel
	secret string // of its session
}

func (c *cancel) check(ctx context.Context, f *input.Fields) error {
	secretOf(f, &c.req.SessionToken, &c.secret)
	f.ID("sessionId", c.req.SessionId)
	f.ID("callId", c.req.CallId)
	if f.Err != nil {
		return f.Err
	}
	return c.find(ctx, f, storage.Nearby)
}

// find finds the session, and the call in it.
func (c *cancel) find(ctx context.Context, f *input.Fields, read storage.Read) error {
	found, err := c.s.sessionWith(ctx, c.ns, f, c.req.SessionId, c.secret, read)
	if err != nil {
		return err
	}
	x := found.Record.(*session.Session)
	h := x.Find(c.req.CallId)
	c.cmd = &session.Cancel{
		NS: c.ns, Session: c.req.SessionId, Call: c.req.CallId, Pools: callPools(x, h), Opened: x.Opened,
		Asked: h != nil && h.Asked() != nil,
	}
	c.one[0] = c.cmd
	return nil
}

func (c *cancel) take(ctx context.Context, answers []storage.Answer) (again bool, err error) {
	again = c.stale(answers)
	if c.another() {
		return true, c.find(ctx, nil, storage.Latest)
	}
	if again {
		next := *c.cmd // the other may still be on its way
		next.Pools, next.Asked = c.answer.Result.Pools, next.Asked || c.answer.Result.Approval != nil
		c.cmd = &next
		c.one[0] = c.cmd
	}
	return again, nil
}

func (c *cancel) respond() error {
	res := &c.answer.Result
	c.out = &v1.CancelCallResponse{Outcome: words.Outcomes[res.Code], Counters: words.CountersOf(res.Counters), Index: c.answer.Index}
	switch {
	case res.Code == session.NotWaiting: // it runs: there is a slot to give back with EndCall
		c.out.Outcome = v1.Outcome_OUTCOME_ADMITTED
	case res.Code == session.NotFound:
		return fault.NotFound("callId", "session %q has no call %q; begin it with BeginCall", c.req.SessionId, c.req.CallId)
	case res.Code.Failure():
		return fault.OfResult(res, fmt.Sprintf("callId %q of sessionId %q", c.req.CallId, c.req.SessionId))
	}
	return nil
}
