package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/engine"
	"example.com/govnode/internal/seeded"
	"example.com/govnode/internal/server/approvals"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/policies"
	"example.com/govnode/internal/server/record"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// BeginCall: what a call is checked for, and what it is judged on. What comes of that
// is in calls_answer.go.

// callService answers govnode.v1.CallService. What it does not define answers
// UNIMPLEMENTED.
type callService struct {
	govnodev1connect.UnimplementedCallServiceHandler
	*Server
}

// BeginCall decides one call.
func (s callService) BeginCall(ctx context.Context, req *v1.BeginCallRequest) (*v1.BeginCallResponse, error) {
	return unary(ctx, s.Server, &begin{}, req)
}

// A begin is one BeginCall on its way.
type begin struct {
	request[v1.BeginCallRequest, v1.BeginCallResponse]
	cmd      *session.Begin
	secret   string             // of its session
	rates    []session.RateWant // that the request names
	session  *session.Session
	policy   *engine.Policy
	facts    *engine.Facts
	kept     *record.Record         // that will be taken down; nil once it is
	input    *engine.Input          // of it
	decision *engine.Decision       // likewise
	hashes   policies.Hashes        // that are registered
	costs    map[string]int64       // what it charges the budgets that it names, itself or by its policy
	until    time.Time              // end of its wait; zero if it does not wait
	inUse    bool                   // whether facts.ActiveSlots is known
	queued   bool                   // it had to wait at this node
	heldUp   bool                   // something has kept it out
	asked    bool                   // it was told that people are asked
	asksBy   uint16                 // the rule of the decision, where that is known as one with modified arguments
	approval *session.ApprovalCount // by which it was admitted before
	parked   *session.ApprovalCount // of the stage of its workflow, which people have not approved yet
	modified *structpb.Struct       // what to call the tool with instead; nil if nothing was changed
}

var callKinds = map[v1.Kind]struct {
	state  session.CallKind
	engine engine.Kind
}{
	v1.Kind_KIND_UNSPECIFIED: {session.Tool, engine.KindTool},
	v1.Kind_KIND_TOOL:        {session.Tool, engine.KindTool},
	v1.Kind_KIND_MODEL:       {session.Model, engine.KindModel},
	v1.Kind_KIND_AGENT:       {session.Agent, engine.KindAgent},
	v1.Kind_KIND_HANDOFF:     {session.Handoff, engine.KindHandoff},
	v1.Kind_KIND_SAMPLING:    {session.Sampling, engine.KindSampling},
}

var orders = map[v1.Order]engine.Order{
	v1.Order_ORDER_UNSPECIFIED: engine.OrderUnion,
	v1.Order_ORDER_INTERCEPTOR: engine.OrderInterceptor,
	v1.Order_ORDER_PRE_EXECUTE: engine.OrderPreExecute,
}

// check finds the session and its policy.
func (b *begin) check(ctx context.Context, f *input.Fields) error {
	req := b.req
	secretOf(f, &req.SessionToken, &b.secret)
	f.ID("sessionId", req.SessionId)
	f.NewID("callId", req.CallId, b.s.cfg.Now)
	kind, in := inputOf(f, req)
	b.cmd = &session.Begin{
		NS: b.ns, Session: req.SessionId, Call: req.CallId, CallKind: kind, Tool: req.Tool,
		Pools:    wantsOf(f, req.Pools),
		TTL:      f.Duration("ttl", req.Ttl, input.Caps.TTL),
		MaxHold:  f.Duration("maxHold", req.MaxHold, input.Caps.MaxHold),
		Wait:     f.Duration("wait", req.Wait, input.Caps.Wait),
		Priority: int32(f.Number("priority", int64(req.Priority), input.Caps.Priority)),
		Tokens:   f.Number("tokens", req.Tokens, input.Caps.Tokens),
	}
	f.Text("serverLabel", req.ServerLabel, input.Caps.Label)
	b.rates = ratesOf(f, req.Rates, b.cmd.Tokens)
	b.costs = budgetAmounts(f, "budgets", req.Budgets)
	if f.Err != nil {
		return f.Err
	}
	if b.one[0] = b.cmd; b.cmd.Wait > 0 {
		b.until = time.Now().Add(b.cmd.Wait)
	}
	b.cmd.Content = input.Short(beginContent(req))
	b.kept = &record.Record{Input: in}
	b.input, b.decision = &b.kept.Input, &b.kept.Decision
	b.hashes = b.s.policies.Hashes(b.ns)
	b.input.ContentHash = b.hashes.Of
	if err := b.load(ctx, storage.Nearby, f); err != nil {
		return err
	}
	return b.beside(ctx, storage.Nearby)
}

// wantsOf checks the pools that a call names and puts them in the order in which
// they are taken, behind the place of the policy's own.
func wantsOf(f *input.Fields, pools []*v1.Want) []session.Want {
	f.Count("pools", len(pools), input.Caps.Pools)
	wants := make([]session.Want, 1, len(pools)+1)
	for i, p := range pools {
		in := f.At("pools", i)
		in.Pool("pool", p.GetPool())
		w := session.Want{Pool: p.GetPool(), Weight: int32(in.Number("weight", int64(p.GetWeight()), input.Caps.Weight))}
		if slices.ContainsFunc(wants[1:], func(o session.Want) bool { return o.Pool == w.Pool }) {
			in.Refuse("pool", "names %q twice; give its weight once", w.Pool)
		}
		f.Take(in)
		wants = append(wants, w)
	}
	slices.SortFunc(wants[1:], func(a, b session.Want) int { return strings.Compare(a.Pool, b.Pool) })
	return wants
}

// load finds the session, the tree that it pins, and what the service knows of
// it. What is judged here never changes while the session has its id, so that an old
// record is good enough; that it has it still is a premise.
func (b *begin) load(ctx context.Context, read storage.Read, f *input.Fields) error {
	found, err := b.s.sessionWith(ctx, b.ns, f, b.req.SessionId, b.secret, read)
	if err != nil {
		return err
	}
	b.session = found.Record.(*session.Session)
	digest := b.session.Pin.Digest
	if seeded.On(seeded.NotPinned) {
		if digest, err = b.s.policies.DigestOf(ctx, b.ns, "policy", b.session.Policy.Value()); err != nil {
			return err
		}
	}
	b.policy, err = b.s.policies.Compiled(ctx, b.ns, digest)
	if errors.Is(err, order.ErrTakesLong) {
		return err
	}
	if err != nil && b.session.Phase != session.PhaseOpen && fault.Of(err).Code != connect.CodeUnavailable {
		b.policy, err = engine.Missing(engine.Digest(digest)), nil // it was deleted since, and nothing is judged any more
	}
	if err != nil {
		b.s.audit.unreadable(&b.trace, b.ns, b.req.SessionId, b.req.CallId, b.session.Pin.Digest, err)
		return err
	}
	if b.policy.Workflow() != nil && read == storage.Nearby {
		// Where the session stands in its workflow is kept beside it, and is written
		// before the call is ordered.
		if order.Quick(ctx) {
			return order.ErrTakesLong
		}
		return b.load(ctx, storage.Latest, f)
	}
	if b.cmd.CallKind == session.Tool {
		if err := spelled(b.policy, b.cmd.Tool); err != nil {
			return err
		}
	}
	b.cmd.Digest, b.cmd.Opened = b.session.Pin.Digest, b.session.Opened
	b.cmd.Pools[0] = session.Want{Pool: session.PolicyPool(b.session.Policy.Value()), Weight: 1}
	b.input.AgentID, b.input.Env = b.session.Agent.Value(), envOf(b.session)
	if b.cmd.Rates, err = b.allRates(f); err != nil {
		return err
	}
	b.facts, b.inUse = factsOf(b.session, found.Now), false
	return nil
}

// beside finds what else the call is judged by: the registered content hashes, and the
// budgets that it charges.
func (b *begin) beside(ctx context.Context, read storage.Read) error {
	b.hashes.See(ctx, read)
	if b.cmd.Hashes = b.hashes.Epoch; b.hashes.Err != nil {
		return b.hashes.Err
	}
	return b.charge(ctx, read)
}

// spelled refuses a tool that the policy knows in other letters: its rules and limits for
// that tool would not see it.
func spelled(p *engine.Policy, tool string) error {
	if known := p.Spelling(tool); known != "" {
		return fault.Invalid("tool", "is %q, which differs from %q in the policy of the session in the case of letters alone; write it as the policy does, or name both there", tool, known)
	}
	return nil
}

func factsOf(x *session.Session, now time.Duration) *engine.Facts {
	return &engine.Facts{
		CallCount: int64(x.Calls), Attempts: int64(x.Attempts), TokensUsed: x.Tokens + x.Reserved, Elapsed: now - x.Opened,
		ToolCalls: func(tool string) int64 { return int64(x.ToolCalls(tool)) },
	}
}

// judge evaluates the policy on what is known, and puts the verdict and what it
// rests on into the command.
func (b *begin) judge(ctx context.Context) error {
	if !b.policy.Local() && order.Quick(ctx) {
		return order.ErrTakesLong
	}
	b.input.Facts, b.input.Now = b.facts, b.s.cfg.Now()
	took, err := b.decide(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(b.decision.Premises, func(p engine.Premise) bool { return p.Fact == engine.ActiveSlots }) && !b.inUse {
		// Few policies look at the pool, so it is read for those alone.
		found, err := b.s.store.Get(ctx, session.PoolKey(b.ns, b.cmd.Pools[0].Pool), storage.Nearby)
		if err != nil {
			return fault.OfRead(err)
		}
		if p, ok := found.Record.(*session.Pool); ok && p.InUse() > 0 {
			b.facts.ActiveSlots = int64(p.InUse())
			again, err := b.decide(ctx)
			if err != nil {
				return err
			}
			took += again
		}
	}
	b.s.metrics.evaluation.Observe(took.Seconds())
	b.parked = nil
	b.cmd.Verdict = session.Verdict{Allow: b.decision.Allowed, Rule: b.decision.Rule}
	b.cmd.Seen = premises(b.decision.Premises)
	if b.policy.Missing() { // nor does what its session remembers name any of what it was held to
		b.cmd.Seen, b.cmd.Rates, b.cmd.Budgets = never, nil, nil
	}
	if b.cmd.Asking, err = b.asking(ctx); err != nil { // before anything is spent on it
		return err
	}
	b.modified = nil
	if m := b.decision.ModifiedArguments; m != nil {
		if b.modified, err = m.Struct(); err != nil { // likewise
			return errModified(err)
		}
	}
	return b.follow(ctx)
}

// judgeAgain is for a call that was kept out: what its verdict rests on may have
// changed since, a list, a hash or the hour of the day.
func (b *begin) judgeAgain(ctx context.Context) error {
	next := *b.cmd // the other may still be on its way
	next.Asked = false
	b.cmd = &next
	b.one[0] = b.cmd
	if err := b.load(ctx, storage.Nearby, nil); err != nil {
		return err
	}
	if err := b.beside(ctx, storage.Nearby); err != nil {
		return err
	}
	return b.judge(ctx)
}

// asking is what the call has to be approved as, where its verdict asks. What is
// approved is the whole request and what a guardrail has made of its arguments.
func (b *begin) asking(ctx context.Context) (*session.Asking, error) {
	ask := b.decision.Ask
	if ask == nil {
		return nil, nil
	}
	arguments, what, sent := b.input.Arguments, beginContent(b.req), b.req.Arguments
	if m := b.decision.ModifiedArguments; m != nil {
		arguments, sent = *m, nil
		what = sha256.Sum256(append(what[:], approvals.Canonical(arguments)...))
	}
	if problem := approvals.Problem(arguments, sent != nil); problem != "" {
		return nil, fault.Invalid("arguments", "%s", problem)
	}
	shown, _ := approvals.Preview(arguments)
	preview, err := b.s.seals.seal(ctx, b.ns, b.cmd.Session+"/"+b.cmd.Call, shown)
	if err != nil {
		return nil, err
	}
	return &session.Asking{
		Agent: b.session.Agent.Value(), Required: ask.Required, Denials: ask.Denials, Timeout: ask.Timeout,
		AllowOnTimeout: ask.AllowOnTimeout, MaxPending: ask.MaxPending, Request: what,
		Arguments: approvals.Digest(arguments), Server: b.req.ServerLabel, Preview: preview,
		Rule:   cmp.Or(b.asksBy, b.decision.Rule),
		Reason: input.Clip(engine.Redact(b.decision.Reason), session.MaxMessage),
	}, nil
}

// decide evaluates the policy once.
func (b *begin) decide(ctx context.Context) (took time.Duration, err error) {
	start := time.Now()
	b.asksBy = 0
	b.policy.Decide(ctx, b.input, b.decision)
	b.decision.EvaluationTime = time.Since(start)
	switch d := b.decision; {
	case (d.Allowed || d.Ask != nil) && d.ModifiedArguments != nil:
		b.asksBy, d.Rule = d.Rule, ruleModified
	case !d.Allowed && d.Rule == 0:
		d.Rule = freeRule(d)
	}
	return b.decision.EvaluationTime, b.hashes.Err
}

var factKinds = map[engine.FactKind]session.Fact{
	engine.CallCount:   session.FactCalls,
	engine.Attempts:    session.FactAttempts,
	engine.TokensUsed:  session.FactTokens,
	engine.ToolCalls:   session.FactToolCalls,
	engine.ActiveSlots: session.FactActiveSlots,
	engine.Elapsed:     session.FactElapsed,
}

func premises(ps []engine.Premise) []session.Premise {
	if len(ps) == 0 {
		return nil
	}
	seen := make([]session.Premise, len(ps))
	for i, p := range ps {
		seen[i] = session.Premise{Fact: factKinds[p.Fact], Name: p.Name, Lo: p.Lo, Hi: p.Hi}
	}
	return seen
}
