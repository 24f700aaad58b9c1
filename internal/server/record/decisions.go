package record

import (
	"context"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/members"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// Records of decisions: how one is made, shown, and found on this node or
// another.

const (
	// BareRecord is about what a record holds without what the caller sent.
	BareRecord = 1 << 10
	// expansion is how many bytes of memory one byte of JSON takes at most: a
	// digit and a comma become a value.
	expansion = 24
	// ruleRecord is what one of a rule takes, most of all its message.
	ruleRecord = 1 << 10
	// MaxLazyRecord is from which size on a record is redacted and rendered at
	// once, so that it holds what it will be shown as and no more.
	MaxLazyRecord = BareRecord + expansion<<12
)

// New makes the record of a decision. Size is about how many bytes of
// JSON the caller sent.
func New(ns, id string, policy *engine.Policy, in engine.Input, d engine.Decision, size int) *Record {
	r := &Record{Input: in, Decision: d}
	r.Complete(ns, id, policy, size)
	return r
}

// Complete makes a record of one that has its input and its decision already, so that
// neither is copied: they are large. It keeps of them what is to be shown.
func (r *Record) Complete(ns, id string, policy *engine.Policy, size int) {
	r.ID, r.NS, r.Policy, r.Size = id, ns, policy, BareRecord+expansion*size+ruleRecord*len(r.Decision.Records)
	r.Decision.Premises, r.Decision.Trace, r.Decision.ModifiedArguments = nil, nil, nil
	if f := r.Input.Facts; f != nil {
		if f.ToolCalls != nil {
			r.toolCalls = f.ToolCalls(r.Input.Tool)
		}
		// The function holds the whole session.
		facts := *f
		facts.ToolCalls = nil
		r.facts = &facts
	}
	r.Input.Facts, r.Input.ContentHash, r.Input.Env = nil, nil, nil
}

// Audit is the record in the terms of the specifications, redacted.
func (r *Record) Audit() engine.AuditRecord {
	in := r.Input
	if r.facts != nil {
		facts, calls := *r.facts, r.toolCalls
		facts.ToolCalls = func(string) int64 { return calls }
		in.Facts = &facts
	}
	in.Now = r.At
	return r.Policy.Audit(in, r.Decision, r.Hash)
}

// Render keeps what would be shown in the place of what it is made from.
func (r *Record) Render(rec engine.AuditRecord) {
	r.rendered = r.message(rec)
	r.Policy, r.facts = nil, nil
	r.Input.Arguments, r.Input.Context = value.Value{}, value.Value{}
	r.Size = BareRecord + 2*proto.Size(r.rendered)
}

// message is a record as Explain shows it.
func (r *Record) message(rec engine.AuditRecord) *v1.DecisionRecord {
	d := DecisionOf(r.Decision, session.Digest(rec.PolicyDigest))
	d.Reason, d.Error, d.EvaluationTime = rec.Reason, engine.Redact(rec.ErrorDetail), durationpb.New(rec.Evaluation)
	d.Rules = words.RuleRecords(rec.Records)
	out := &v1.DecisionRecord{
		DecisionId: r.ID, Timestamp: input.Stamp(rec.Timestamp), EventType: string(rec.EventType), Decision: d,
		Kind: kindOfInput[r.Input.Kind], Tool: rec.ToolName, AgentId: rec.AgentID, SessionId: rec.SessionID, CallId: rec.CallID,
		ContextSnapshotJson: rec.ContextSnapshot.JSON(), ContextSha256: rec.ContextDigest,
		Outcome: r.Outcome, Index: r.Index, DryRun: r.DryRun, Repeat: r.Repeat, Failure: r.Failure, FailureReason: r.FailureReason,
	}
	if r.Counters != nil {
		out.Counters = words.CountersOf(*r.Counters)
	}
	return out
}

var kindOfInput = map[engine.Kind]v1.Kind{
	engine.KindTool: v1.Kind_KIND_TOOL, engine.KindModel: v1.Kind_KIND_MODEL,
	engine.KindAgent: v1.Kind_KIND_AGENT, engine.KindHandoff: v1.Kind_KIND_HANDOFF, engine.KindSampling: v1.Kind_KIND_SAMPLING,
}

// Explain returns the record of a decision, from this node or from another: of one that
// was applied before of one that was not, since a call that a node could not put in order
// may have come to another, and of the decision before that of a repeat.
func (s *Teller) Explain(ctx context.Context, req *v1.ExplainRequest) (*v1.ExplainResponse, error) {
	f := &input.Fields{}
	f.ID("decisionId", req.DecisionId)
	f.OptionalID("sessionId", req.SessionId)
	if f.Err != nil {
		return nil, f.Err
	}
	if r := s.Journal.find(input.Namespace(ctx), req.DecisionId); r != nil && access.From(ctx).Sees(r.agentID()) {
		out := r.rendered
		if out == nil {
			out = r.message(r.Audit())
		} else {
			out = proto.CloneOf(out)
		}
		if err := madeFor(req, out); err != nil {
			return nil, err
		}
		out.Node, out.Age = s.Node, durationpb.New(max(s.Now().Sub(r.At), 0))
		own := &v1.ExplainResponse{Record: out}
		if out.Failure == "" && !r.Over || req.Local {
			return own, nil
		}
		if other, err := s.explainElsewhere(ctx, req); err == nil && other.Record.GetFailure() == "" {
			return other, nil
		}
		return own, nil
	}
	if req.Local {
		return nil, s.notKept(req.DecisionId, nil, nil)
	}
	return s.explainElsewhere(ctx, req)
}

// madeFor refuses a decision that was made for another session than is named.
func madeFor(req *v1.ExplainRequest, d *v1.DecisionRecord) error {
	if req.SessionId == "" || d.GetSessionId() == req.SessionId {
		return nil
	}
	return fault.NotFound("sessionId", "the decision %q was not made for the session %q; leave the session out, or name the one of the call", req.DecisionId, req.SessionId)
}

// explainElsewhere asks the other nodes, all at once.
func (s *Teller) explainElsewhere(ctx context.Context, req *v1.ExplainRequest) (*v1.ExplainResponse, error) {
	peers, err := s.peers(ctx)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	type answer struct {
		peer members.Peer
		res  *v1.ExplainResponse
		err  error
	}
	answers := make(chan answer, len(peers))
	for _, p := range peers {
		if p.APIAddress == "" {
			answers <- answer{p, nil, errNowhere}
			continue
		}
		go func() {
			// The session is compared here, behind the scope.
			ask := &v1.ExplainRequest{DecisionId: req.DecisionId, Local: true}
			res, err := s.peerDecisions(ctx, p).Explain(bound(ctx), ask)
			answers <- answer{p, res, err}
		}()
	}
	var asked, silent []string
	var failed *v1.ExplainResponse
	for range peers {
		switch a := <-answers; {
		case a.err == nil:
			if err := madeFor(req, a.res.GetRecord()); err != nil {
				return nil, err
			}
			if failed = a.res; failed.Record.GetFailure() == "" {
				return a.res, nil
			}
		case connect.CodeOf(a.err) == connect.CodeNotFound:
			asked = append(asked, a.peer.Node)
		default:
			silent = append(silent, a.peer.Node)
		}
	}
	if failed != nil {
		return failed, nil
	}
	return nil, s.notKept(req.DecisionId, asked, silent)
}

// bound has another node hold its answer to the agents that the caller sees: in what it
// shows of them they may be redacted, and this node cannot tell them from others.
func bound(ctx context.Context) context.Context {
	ctx, call := connect.NewClientContext(ctx)
	access.From(ctx).Bind(call.RequestHeader())
	return ctx
}

// notKept says who was asked for a decision, and who could not be.
func (s *Teller) notKept(id string, asked, silent []string) error {
	text := "no record of the decision \"" + id + "\" is kept by " + strings.Join(append([]string{s.Node}, asked...), ", ")
	if len(silent) > 0 {
		text += "; not reached: " + strings.Join(silent, ", ")
	}
	text += ". Nodes keep their latest decisions, until they end; look into the audit logs for older ones"
	f := fault.NotFound("decisionId", "%s", text)
	if len(silent) > 0 {
		f = f.With("unreachable", strings.Join(silent, ","))
	}
	return f
}

// DecisionOf is a decision of the engine as callers read it.
func DecisionOf(d engine.Decision, digest session.Digest) *v1.Decision {
	return &v1.Decision{
		Allowed: d.Allowed, Action: d.Action, Policy: d.Policy, MatchedRule: d.MatchedRule, Reason: d.Reason,
		Category: d.Category, PolicyDigest: digest.String(), PolicyChain: d.PolicyChain, Backend: d.Backend,
		EvaluationTime: durationpb.New(d.EvaluationTime), Error: d.Error, PublicMessage: d.PublicMessage,
		Rules: words.RuleRecords(d.Records), RulesEvaluated: int32(d.RulesEvaluated), SideEffect: d.SideEffect, Source: d.Source,
	}
}

// DriftOf is a drift as callers read it.
func DriftOf(d *engine.DriftResult) *v1.Drift {
	return &v1.Drift{
		Score: d.Score, Exceeded: d.Exceeded, Threshold: d.Threshold,
		BaselineHash: d.BaselineHash, CurrentHash: d.CurrentHash,
	}
}
