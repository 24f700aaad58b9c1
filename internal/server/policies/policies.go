package policies

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// How policies are put. How they are read, listed and deleted stands in list.go.

// A Service answers what govnode.v1.PolicyService has of that.
type Service struct {
	*Cache
	Store *order.Store
	Now   func() time.Time
	// WasPut and HashPut take down what was put, Refused that a tree was not.
	WasPut  func(t *order.Trace, c *session.PutPolicy, version int32)
	Refused func(t *order.Trace, ns, name string, by session.Maker, err error)
	HashPut func(t *order.Trace, c *session.PutHash)
}

// PutPolicy validates and compiles a tree, stores it, and lets its name point
// to it.
func (s *Service) PutPolicy(ctx context.Context, req *v1.PutPolicyRequest) (*v1.PutPolicyResponse, error) {
	f := &input.Fields{}
	f.OptionalID("name", req.Name)
	by := f.Maker(req, s.Now)
	if f.Err != nil {
		return nil, f.Err
	}
	tree, policy, err := s.treeOf(input.Namespace(ctx), req)
	var limits session.Limits
	if err == nil {
		limits, err = sessionLimits(policy)
	}
	if err != nil {
		s.Refused(order.TraceOf(ctx), input.Namespace(ctx), req.Name, by, err)
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
	if err := inScope(ctx, name); err != nil {
		return nil, err
	}
	cmd := &session.PutPolicy{
		NS: input.Namespace(ctx), By: by, Name: name,
		Digest: session.Digest(tree.Digest()), Tree: tree.Encode(), Limits: limits,
	}
	a, err := s.Store.Change(ctx, cmd, order.RequestFailure(by))
	if err != nil {
		return nil, err
	}
	out := &v1.PutPolicyResponse{Name: name, Version: int32(a.Result.Value), Digest: cmd.Digest.String(), Index: a.Index}
	for _, w := range policy.Warnings() {
		out.Warnings = append(out.Warnings, w.String())
	}
	if a.First() {
		s.WasPut(order.TraceOf(ctx), cmd, out.Version)
	}
	return out, nil
}

func (s *Service) treeOf(ns string, req *v1.PutPolicyRequest) (*engine.Tree, *engine.Policy, error) {
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
	policy, err := s.compile(ns, tree)
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

// stateKinds are the kinds of package engine in the words of the state.
var stateKinds = map[engine.Kind]session.CallKind{
	engine.KindTool: session.Tool, engine.KindModel: session.Model, engine.KindAgent: session.Agent,
	engine.KindHandoff: session.Handoff, engine.KindSampling: session.Sampling,
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

// inScope refuses a change of a policy that is not in the scope of its author's token.
func inScope(ctx context.Context, name string) error {
	p := access.From(ctx)
	switch {
	case !p.MayPin(name):
		return access.Denied("name: the policy %q is not in the scope of this token, which is %s", name, strings.Join(p.Policies, ", "))
	case !p.InEnvironment(access.Rulesets, name):
		return access.Denied("name: this token is bound to the environment %q, and the ruleset %q is of another", p.Environment, name)
	case name == "" && p != nil && p.Environment != "": // a tree may have names in any
		return access.Denied("digest: this token is bound to the environment %q; give the name of the policy", p.Environment)
	}
	return nil
}

// ofAll refuses a change of what the calls of all policies are held to, by an author who is
// bound to some of them.
func ofAll(ctx context.Context) error {
	if p := access.From(ctx); p != nil && (len(p.Policies) > 0 || p.Environment != "") {
		return access.Denied("tool: its registered hash holds for the calls of all policies of the namespace, and this token is bound to some; " +
			"name the hash in the policy, or use a token of a policy author that is bound to none")
	}
	return nil
}
