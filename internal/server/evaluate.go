package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/policies"
	"example.com/govnode/internal/server/record"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Evaluate and Scan: what policies say of a call or of a text, of which nothing is
// counted.

// policyService answers govnode.v1.PolicyService.
type policyService struct {
	*Server
	*policies.Service
}

// Evaluate decides without changing or counting anything.
func (s policyService) Evaluate(ctx context.Context, req *v1.EvaluateRequest) (*v1.EvaluateResponse, error) {
	f := &input.Fields{}
	input.Enum(f, "order", req.Order, v1.Order_name)
	f.OptionalID("sessionId", req.SessionId)
	f.OptionalID("agentId", req.AgentId)
	if req.Tool != "" {
		f.Tool("tool", req.Tool)
	}
	in := engine.Input{
		Tool: req.Tool, AgentID: req.AgentId, Order: orders[req.Order], Explain: true, CheckLimits: true, Now: s.cfg.Now(),
		Arguments: f.Mapping("arguments", req.Arguments, req.ArgumentsJson),
		Context:   engine.WithMetadata(f.Mapping("context", req.Context, req.ContextJson), f.Metadata(req.Metadata, req.MetadataJson)),
	}
	outputOf(f, req.Output)
	var name string
	var digest session.Digest
	switch {
	case req.SessionId != "" && req.Policy != nil:
		f.Refuse("sessionId", "is given beside policy; name one of them")
	case req.SessionId == "":
		name, digest = policyRef(f, "policy", req.Policy)
	}
	if f.Err != nil {
		return nil, f.Err
	}
	if who := access.From(ctx); req.AgentId != "" && !who.Sees(req.AgentId) {
		return nil, access.Denied("agentId: %q is not in the scope of this token; it asks what holds for %s", req.AgentId, strings.Join(who.Agents, ", "))
	}

	ns := input.Namespace(ctx)
	var x *session.Session
	var err error
	if req.SessionId != "" {
		if x, err = s.inSession(ctx, ns, req, &in); err != nil {
			return nil, err
		}
		digest = x.Pin.Digest
	}
	policy, digest, err := s.policies.Asked(ctx, ns, name, digest)
	if err != nil {
		if fault.Of(err).Reason == fault.ReasonPolicyUnreadable {
			s.audit.unreadable(order.TraceOf(ctx), ns, req.SessionId, "", digest, err)
		}
		return nil, err
	}
	if err := spelled(policy, req.Tool); err != nil {
		return nil, err
	}
	hashes, read := s.policies.Hashes(ns), storage.Latest
	if x == nil && name == "" {
		read = storage.Nearby // a tree by its digest is judged without a leader, too
	}
	hashes.See(ctx, read)
	in.ContentHash = hashes.Of
	d := policy.Evaluate(ctx, in)
	if hashes.Err != nil {
		return nil, hashes.Err
	}
	if x != nil {
		limitSession(&d, policy, x, in.Facts.Elapsed, req.Tool)
		if err := s.peekFlow(ctx, &d, policy, x, &in, ns); err != nil {
			return nil, err
		}
	}
	s.metrics.evaluation.Observe(d.EvaluationTime.Seconds())
	id := s.cfg.NewID()
	s.audit.evaluated(order.TraceOf(ctx), ns, id, policy, in, d, proto.Size(req))
	out := &v1.EvaluateResponse{Decision: record.DecisionOf(d, digest), Trace: d.Trace, DecisionId: id}
	if req.Output != nil {
		out.Review = words.ReviewOf(policy.Review(in, engine.Output{Value: valueOf(req.Output)}))
	}
	if d.ModifiedArguments != nil {
		if out.ModifiedArguments, err = d.ModifiedArguments.Struct(); err != nil {
			return nil, errModified(err)
		}
	}
	return out, nil
}

// inSession takes over what the service knows of a session. One that is over
// admits nothing whatever its policy says.
func (s *Server) inSession(ctx context.Context, ns string, req *v1.EvaluateRequest, in *engine.Input) (*session.Session, error) {
	found, err := s.findSession(ctx, ns, nil, req.SessionId, storage.Latest)
	if err != nil {
		return nil, err
	}
	x := found.Record.(*session.Session)
	if x.Phase != session.PhaseOpen {
		return nil, fault.OfResult(&session.Result{Code: session.SessionClosed}, fmt.Sprintf("sessionId %q", req.SessionId))
	}
	if agent := x.Agent.Value(); req.AgentId != "" && req.AgentId != agent {
		return nil, fault.Invalid("agentId", "is %q, and the session is that of %q; leave it out, or give the same", req.AgentId, agent)
	}
	in.SessionID, in.AgentID, in.Facts, in.Env = req.SessionId, x.Agent.Value(), factsOf(x, found.Now), envOf(x)
	pool, err := s.store.Get(ctx, session.PoolKey(ns, session.PolicyPool(x.Policy.Value())), storage.Latest)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	if p, ok := pool.Record.(*session.Pool); ok && p != nil {
		in.Facts.ActiveSlots = int64(p.InUse())
	}
	return x, nil
}

// limitSession adds to a decision the limits of a session that package engine
// does not know: that of attempts, which stands before every verdict, and the
// breaker and that of one tool, which stand behind all that the engine judges. A limit
// of a ruleset has words of its own.
func limitSession(d *engine.Decision, policy *engine.Policy, x *session.Session, elapsed time.Duration, tool string) {
	limits := &x.Pin.Limits
	limited := slices.ContainsFunc(limits.PerTool, func(t session.ToolLimit) bool {
		return t.Tool == tool && x.ToolCalls(tool) >= t.Max
	})
	tried, open := x.Breaker()
	passes := d.Allowed || d.Ask != nil // nobody is asked about what a limit would refuse
	var res session.Result
	switch {
	case x.Attempts >= limits.MaxAttempts:
		res.Code = session.AttemptLimit
	case passes && open && x.Opened+elapsed < tried:
		res.Code = session.BreakerOpen
	case passes && limited:
		res.Code = session.ToolLimitReached
	case d.Category == engine.CategoryMaxToolCalls:
		res.Code = session.CallLimit
	default:
		return
	}
	own, ok := limitText(policy, res.Code, limits, tool)
	if res.Code == session.CallLimit && !ok {
		return // the engine has said it
	}
	r := words.RefusalOf(&res, limits, &session.Begin{Tool: tool})
	if ok {
		r.Reason = own.Reason
	}
	*d = engine.Decision{
		Action: string(engine.Deny), Policy: d.Policy, PolicyChain: d.PolicyChain, EvaluationTime: d.EvaluationTime,
		Category: r.Category, PublicMessage: r.Public, Reason: r.Reason, Trace: append(d.Trace, engine.Redact(r.Reason)),
		MatchedRule: own.Rule, Source: own.Source, Records: d.Records, RulesEvaluated: d.RulesEvaluated, SideEffect: d.SideEffect,
	}
}

var scanKinds = map[v1.ScanKind]engine.ScanKind{
	v1.ScanKind_SCAN_KIND_INPUT: engine.ScanInput, v1.ScanKind_SCAN_KIND_OUTPUT: engine.ScanOutput,
	v1.ScanKind_SCAN_KIND_MEMORY: engine.ScanMemory, v1.ScanKind_SCAN_KIND_MESSAGE: engine.ScanMessage,
}

// Scan judges a text by a policy without changing or counting anything.
func (s policyService) Scan(ctx context.Context, req *v1.ScanRequest) (*v1.ScanResponse, error) {
	f := &input.Fields{}
	input.Enum(f, "kind", req.Kind, v1.ScanKind_name)
	if req.Kind == v1.ScanKind_SCAN_KIND_UNSPECIFIED {
		f.Refuse("kind", "is required; say what the text is, such as SCAN_KIND_INPUT")
	}
	f.OptionalID("sessionId", req.SessionId)
	if req.Tool != "" {
		f.Tool("tool", req.Tool)
	}
	if n := int64(len(req.Text)); n > input.Caps.Scan.Max {
		f.Refuse("text", "has %d bytes, the most is %d; scan it in pieces that overlap", n, input.Caps.Scan.Max)
	}
	var name string
	var digest session.Digest
	switch {
	case req.SessionId != "" && req.Policy != nil:
		f.Refuse("sessionId", "is given beside policy; name one of them")
	case req.SessionId == "":
		name, digest = policyRef(f, "policy", req.Policy)
	}
	if f.Err != nil {
		return nil, f.Err
	}

	ns, kind := input.Namespace(ctx), scanKinds[req.Kind]
	// What follows on a scan is no call of a tool: its kind says so.
	in := engine.Input{Kind: engine.KindModel, SessionID: req.SessionId, Now: s.cfg.Now(), Context: value.OfMap(
		value.Pair{Key: "scan", Value: value.OfString(kind.String())}, value.Pair{Key: "scanned_tool", Value: value.OfString(req.Tool)},
	)}
	if req.SessionId != "" { // its last texts are scanned when it is over; but another may have its id by now
		found, err := s.findSession(ctx, ns, nil, req.SessionId, storage.Latest)
		if err != nil {
			return nil, err
		}
		x := found.Record.(*session.Session)
		digest, in.AgentID = x.Pin.Digest, x.Agent.Value()
	}
	policy, digest, err := s.policies.Asked(ctx, ns, name, digest)
	if err != nil {
		if fault.Of(err).Reason == fault.ReasonPolicyUnreadable {
			s.audit.unreadable(order.TraceOf(ctx), ns, req.SessionId, "", digest, err)
		}
		return nil, err
	}
	r := policy.Scan(ctx, kind, req.Text)
	d := &r.Decision
	s.metrics.evaluation.Observe(d.EvaluationTime.Seconds())
	s.metrics.scans.WithLabelValues(kind.String(), d.Action).Inc()
	out := &v1.ScanResponse{
		Allowed: d.Allowed, Action: d.Action, Redacted: r.Redacted, Reason: d.Reason,
		Category: d.Category, PublicMessage: d.PublicMessage, PolicyDigest: digest.String(),
	}
	for _, x := range r.Findings {
		out.Findings = append(out.Findings, &v1.ScanFinding{Type: x.Type, Rule: x.Rule, Count: int32(x.Count)})
	}
	if !d.Allowed {
		out.DecisionId = s.cfg.NewID()
		s.audit.scanned(order.TraceOf(ctx), ns, out.DecisionId, policy, in, *d, kind, req.Tool)
	}
	return out, nil
}
