package server

import (
	"context"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Scans of texts, which this node judges alone.

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
			s.audit.unreadable(traceOf(ctx), ns, req.SessionId, "", digest, err)
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
		s.audit.scanned(traceOf(ctx), ns, out.DecisionId, policy, in, *d, kind, req.Tool)
	}
	return out, nil
}
