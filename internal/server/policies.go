package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

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

// Policies on a node: how they are put, compiled, kept and judged by. How they
// are read and deleted stands in policies_list.go. And the scans of texts by them.

const (
	// maxCompiled bounds the compiled policies that a node keeps. One is made
	// again in milliseconds from the tree in the state.
	maxCompiled = 256
	// loadTimeout bounds the read of a tree, which many requests may wait for
	// and none of them may call off.
	loadTimeout = 10 * time.Second
)

// policies are the compiled policies of a node, by digest: as their trees want
// to be judged, and in strict mode for the namespaces that ask for it.
type policies struct {
	store     storage.Store
	cache     *engine.Cache
	strict    *engine.Cache
	isStrict  map[string]bool // by namespace
	allStrict bool
	metrics   *metrics
	options   []engine.Option
}

func newPolicies(store storage.Store, m *metrics, strict []string, opts []engine.Option) *policies {
	p := &policies{store: store, metrics: m, options: opts, isStrict: map[string]bool{}, allStrict: slices.Contains(strict, "*")}
	for _, ns := range strict {
		p.isStrict[ns] = true
	}
	p.cache = engine.NewCache(maxCompiled, opts...)
	p.strict = engine.NewCache(maxCompiled, append(slices.Clip(opts), engine.WithStrict())...)
	return p
}

// cacheOf returns the compiled policies as a namespace wants them judged.
func (p *policies) cacheOf(ns string) *engine.Cache {
	if p.allStrict || p.isStrict[ns] {
		return p.strict
	}
	return p.cache
}

// compile makes a policy as a namespace wants it judged.
func (p *policies) compile(ns string, tree *engine.Tree) (*engine.Policy, error) {
	opts := p.options
	if p.allStrict || p.isStrict[ns] {
		opts = append(slices.Clip(opts), engine.WithStrict())
	}
	return engine.Compile(tree, opts...)
}

// compiled returns the policy of a tree that some session pins. One that is
// not there, or cannot be compiled, is an error: without the rules there is no
// verdict.
func (p *policies) compiled(ctx context.Context, ns string, d session.Digest) (*engine.Policy, error) {
	policy, err := p.cacheOf(ns).Policy(engine.Digest(d), func() (*engine.Tree, error) {
		p.metrics.compiled.Inc()
		load, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
		defer cancel()
		return p.tree(load, ns, d)
	})
	switch {
	case err == nil:
		return policy, nil
	case errors.As(err, new(*fault.Error)):
		return nil, err
	}
	return nil, fault.New(connect.CodeFailedPrecondition, fault.ReasonPolicyUnreadable, fmt.Sprintf("the policy %s cannot be compiled on this node, so nothing is admitted under it: %v", d, err))
}

// tree reads a tree; one that is not there nearby is looked for once more.
func (p *policies) tree(ctx context.Context, ns string, d session.Digest) (*engine.Tree, error) {
	for _, read := range []storage.Read{storage.Nearby, storage.Latest} {
		found, err := p.store.Get(ctx, session.PolicyKey(ns, d), read)
		if err != nil {
			return nil, fault.OfRead(err)
		}
		if r, ok := found.Record.(*session.Policy); ok && r != nil {
			return engine.DecodeTree(r.Tree)
		}
	}
	return nil, fault.NotFound("policy.digest", "there is no policy with the digest %s; store it with PutPolicy", d)
}

// policyService answers govnode.v1.PolicyService.
type policyService struct{ *Server }

// PutPolicy validates and compiles a tree, stores it, and lets its name point
// to it.
func (s policyService) PutPolicy(ctx context.Context, req *v1.PutPolicyRequest) (*v1.PutPolicyResponse, error) {
	f := &input.Fields{}
	f.OptionalID("name", req.Name)
	by := f.Maker(req, s.cfg.Now)
	if f.Err != nil {
		return nil, f.Err
	}
	tree, policy, err := s.compile(input.Namespace(ctx), req)
	if err != nil {
		return nil, err
	}
	limits, err := sessionLimits(policy)
	if err != nil {
		return nil, err
	}
	name := req.Name
	if name == "" {
		if name = policy.Name(); name == "" {
			return nil, fault.Invalid("name", "is required, since the tree does not name its policy")
		}
		f.ID("name", name)
		if f.Err != nil {
			return nil, f.Err
		}
	}
	cmd := &session.PutPolicy{
		NS: input.Namespace(ctx), By: by, Name: name,
		Digest: session.Digest(tree.Digest()), Tree: tree.Encode(), Limits: limits,
	}
	a, err := s.store.Change(ctx, cmd, order.RequestFailure(by))
	if err != nil {
		return nil, err
	}
	out := &v1.PutPolicyResponse{Name: name, Version: int32(a.Result.Value), Digest: cmd.Digest.String(), Index: a.Index}
	for _, w := range policy.Warnings() {
		out.Warnings = append(out.Warnings, w.String())
	}
	s.audit.policyPut(order.TraceOf(ctx), cmd, out.Version)
	return out, nil
}

func (s policyService) compile(ns string, req *v1.PutPolicyRequest) (*engine.Tree, *engine.Policy, error) {
	var tree *engine.Tree
	var err error
	switch {
	case req.Yaml != "" && len(req.Files) > 0:
		return nil, nil, fault.Invalid("yaml", "is given beside files; send one of them")
	case req.Yaml != "":
		tree, err = engine.SingleFile(req.Yaml)
	case len(req.Files) > 0:
		files := make([]engine.File, len(req.Files))
		for i, file := range req.Files {
			files[i] = engine.File{Path: file.GetPath(), Content: []byte(file.GetContent())}
		}
		tree, err = engine.NewTree(files)
	default:
		return nil, nil, fault.Invalid("files", "is empty; send files, or one document as yaml")
	}
	if err != nil {
		return nil, nil, policyError(err)
	}
	if n := int64(len(tree.Encode())); n > input.Caps.Tree.Max {
		return nil, nil, fault.Invalid("files", "have %d bytes together, the most is %d", n, input.Caps.Tree.Max)
	}
	policy, err := s.policies.compile(ns, tree)
	if err != nil {
		return nil, nil, policyError(err)
	}
	return tree, policy, nil
}

// policyError says everything that is wrong with a tree, each with its path,
// line and field.
func policyError(err error) error {
	var load *engine.LoadError
	if !errors.As(err, &load) {
		return fault.New(connect.CodeInvalidArgument, fault.ReasonInvalidPolicy, "files: "+err.Error())
	}
	f := fault.New(connect.CodeInvalidArgument, fault.ReasonInvalidPolicy, load.Error()).With("problems", strconv.Itoa(len(load.Problems)))
	for i, p := range load.Problems {
		if i == 100 { // what a person reads, and what a header may carry
			break
		}
		f.With(fmt.Sprintf("problem%03d", i), input.Clip(p.String(), 500))
	}
	return f
}

// sessionLimits takes over the numbers that sessions are held to. What the
// state cannot hold is refused rather than cut.
func sessionLimits(p *engine.Policy) (session.Limits, error) {
	l := p.Limits()
	if int64(l.MaxConcurrent) > input.Caps.Slots.Max {
		return session.Limits{}, fault.New(connect.CodeInvalidArgument, fault.ReasonInvalidPolicy,
			fmt.Sprintf("max_concurrent: is %d; it must be from %d to %d", l.MaxConcurrent, input.Caps.Slots.Min, input.Caps.Slots.Max))
	}
	limits := session.Limits{
		MaxTokens: l.MaxTokens, MaxToolCalls: count32(l.MaxToolCalls), MaxAttempts: count32(l.MaxAttempts),
		Timeout: l.Timeout, MaxConcurrent: int32(l.MaxConcurrent), Backpressure: int32(min(l.BackpressureThreshold, session.MaxSlots+1)),
		Checkpoint: count32(int64(l.CheckpointFrequency)), Drift: l.DriftThreshold,
	}
	for _, t := range l.MaxCallsPerTool {
		limits.PerTool = append(limits.PerTool, session.ToolLimit{Tool: t.Tool, Max: count32(t.Max)})
	}
	for _, k := range l.MaxOfKind {
		limits.Kinds = append(limits.Kinds, session.KindLimit{Kind: stateKinds[k.Kind], Max: count32(k.Max)})
	}
	if limits.MaxFailures = count32(l.MaxFailures); limits.MaxFailures > 0 {
		limits.BreakerReset = l.BreakerReset
	}
	return limits, nil
}

// count32 is exact for every count that a session can reach.
func count32(n int64) uint32 { return uint32(min(max(n, 0), math.MaxInt32)) }

// Evaluate decides without changing or counting anything.
func (s policyService) Evaluate(ctx context.Context, req *v1.EvaluateRequest) (*v1.EvaluateResponse, error) {
	f := &input.Fields{}
	input.Enum(f, "order", req.Order, v1.Order_name)
	f.OptionalID("sessionId", req.SessionId)
	f.OptionalID("agentId", req.AgentId)
	if req.Tool != "" {
		f.Text("tool", req.Tool, input.Caps.Tool)
	}
	in := engine.Input{
		Tool: req.Tool, AgentID: req.AgentId, Order: orders[req.Order], Explain: true, CheckLimits: true, Now: s.cfg.Now(),
		Arguments: f.Mapping("arguments", req.Arguments, req.ArgumentsJson),
		Context:   withMetadata(f.Mapping("context", req.Context, req.ContextJson), f.Metadata(req.Metadata)),
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

	ns := input.Namespace(ctx)
	var x *session.Session
	var err error
	switch {
	case req.SessionId != "":
		if x, err = s.inSession(ctx, ns, req, &in); err == nil {
			digest = x.Pin.Digest
		}
	case name != "":
		digest, err = s.digestOf(ctx, ns, "policy.name", name)
	}
	if err != nil {
		return nil, err
	}
	policy, err := s.policies.evaluated(ctx, ns, digest)
	if err != nil {
		if fault.Of(err).Reason == fault.ReasonPolicyUnreadable {
			s.audit.unreadable(order.TraceOf(ctx), ns, req.SessionId, "", digest, err)
		}
		return nil, err
	}
	var unread error
	in.ContentHash = s.contentHash(ctx, ns, &unread)
	d := policy.Evaluate(ctx, in)
	if unread != nil {
		return nil, unread
	}
	if x != nil {
		limitSession(&d, x, in.Facts.Elapsed, req.Tool)
	}
	s.metrics.evaluation.Observe(d.EvaluationTime.Seconds())
	id := s.cfg.NewID()
	s.audit.evaluated(order.TraceOf(ctx), ns, id, policy, in, d, proto.Size(req))
	out := &v1.EvaluateResponse{Decision: record.DecisionOf(d, digest), Trace: d.Trace, DecisionId: id}
	if d.ModifiedArguments != nil {
		if out.ModifiedArguments, err = d.ModifiedArguments.Struct(); err != nil {
			return nil, errModified(err)
		}
	}
	return out, nil
}

// evaluated returns the policy of a tree of this namespace. The cache knows no
// namespaces, so the tree is looked for first: a digest is no key to another's
// policy.
func (p *policies) evaluated(ctx context.Context, ns string, d session.Digest) (*engine.Policy, error) {
	if _, err := p.tree(ctx, ns, d); err != nil {
		return nil, err
	}
	return p.compiled(ctx, ns, d)
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
	in.SessionID, in.AgentID, in.Facts = req.SessionId, x.Agent.Value(), factsOf(x, found.Now)
	pool, err := s.store.Get(ctx, session.PoolKey(ns, session.PolicyPool(x.Policy.Value())), storage.Nearby)
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
// breaker and that of one tool, which stand behind all that the engine judges.
func limitSession(d *engine.Decision, x *session.Session, elapsed time.Duration, tool string) {
	limits := &x.Pin.Limits
	limited := slices.ContainsFunc(limits.PerTool, func(t session.ToolLimit) bool {
		return t.Tool == tool && x.ToolCalls(tool) >= t.Max
	})
	tried, open := x.Breaker()
	var res session.Result
	switch {
	case x.Attempts >= limits.MaxAttempts:
		res.Code = session.AttemptLimit
	case d.Allowed && open && x.Opened+elapsed < tried:
		res.Code = session.BreakerOpen
	case d.Allowed && limited:
		res.Code = session.ToolLimitReached
	default:
		return
	}
	r := words.RefusalOf(&res, limits, &session.Begin{Tool: tool})
	*d = engine.Decision{
		Action: string(engine.Deny), Policy: d.Policy, PolicyChain: d.PolicyChain, EvaluationTime: d.EvaluationTime,
		Category: r.Category, PublicMessage: r.Public, Reason: r.Reason, Trace: append(d.Trace, engine.Redact(r.Reason)),
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
		f.Text("tool", req.Tool, input.Caps.Tool)
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
	var err error
	switch {
	case req.SessionId != "": // what it pins never changes, and its last texts are scanned when it is over
		var found storage.Found
		if found, err = s.findSession(ctx, ns, nil, req.SessionId, storage.Nearby); err == nil {
			x := found.Record.(*session.Session)
			digest, in.AgentID = x.Pin.Digest, x.Agent.Value()
		}
	case name != "":
		digest, err = s.digestOf(ctx, ns, "policy.name", name)
	}
	if err != nil {
		return nil, err
	}
	policy, err := s.policies.evaluated(ctx, ns, digest)
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
