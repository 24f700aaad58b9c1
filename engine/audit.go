package engine

import (
	"crypto/sha256"
	"time"

	"example.com/govnode/engine/value"
)

// An AuditRecord is what is kept of one decision (policy engine spec 17.1,
// adapter contract 19.1). It holds no text that was not redacted.
type AuditRecord struct {
	Timestamp       time.Time // UTC
	EventType       EventType
	Policy          string
	PolicyDigest    Digest
	Rule            string // empty where no rule decided
	Action          string
	Allowed         bool
	Category        string
	Reason          string // also of an allow
	ToolName        string
	AgentID         string
	SessionID       string
	CallID          string
	Arguments       value.Value // redacted
	ContextSnapshot value.Value // redacted
	// ContextDigest is the SHA-256 of the unredacted context and arguments, so
	// that a copy elsewhere can be proven to be the same.
	ContextDigest Digest
	PolicyChain   []string // folder-scoped decisions
	Backend       string
	Evaluation    time.Duration // of the backend where one decided, else of all
	Error         bool
	ErrorDetail   string // with the rule that could not be judged
}

// Audit makes the record of a decision. Every decision has one, also those of
// error paths.
func (p *Policy) Audit(in Input, d Decision) AuditRecord {
	e := evaluation{in: in}
	e.begin()
	r := AuditRecord{
		Timestamp:       moment(in.Now),
		EventType:       PolicyCheck,
		Policy:          d.Policy,
		PolicyDigest:    p.digest,
		Rule:            d.MatchedRule,
		Action:          d.Action,
		Allowed:         d.Allowed,
		Category:        d.Category,
		Reason:          Redact(d.Reason),
		ToolName:        Redact(e.tool),
		AgentID:         Redact(p.agentName(&e)),
		SessionID:       in.SessionID,
		CallID:          in.CallID,
		Arguments:       RedactValue(e.args),
		ContextSnapshot: RedactValue(p.snapshot(&e)),
		PolicyChain:     d.PolicyChain,
		Backend:         d.Backend,
		Evaluation:      d.EvaluationTime,
		Error:           d.Error != "",
		ErrorDetail:     d.Error,
	}
	canonical := e.args.AppendJSON(in.Context.AppendJSON(nil))
	r.ContextDigest = sha256.Sum256(canonical)
	if d.Backend != "" {
		r.Evaluation = d.BackendTime
	}
	if !d.Allowed {
		r.EventType = PolicyViolation
		if in.Kind == KindTool {
			r.EventType = ToolCallBlocked
		}
	}
	if d.errorRule != "" {
		r.ErrorDetail = "rule '" + d.errorRule + "': " + d.Error
	}
	return r
}

// MustAudit reports whether a decision has to be kept: every denial and error,
// and with log_all_calls every allow too. Turning the log off never hides a
// refusal.
func (p *Policy) MustAudit(d Decision) bool {
	return !d.Allowed || d.Error != "" || d.Action == string(Audit) || p.limits.LogAllCalls
}

// snapshot is the context as it was judged, with the facts of the service in
// the place of what the caller claimed.
func (p *Policy) snapshot(e *evaluation) value.Value {
	ctx := e.in.Context
	if ctx.Kind() != value.Map {
		ctx = emptyArguments
	}
	if e.tool != "" {
		ctx = ctx.With("tool_name", value.OfString(e.tool))
	}
	f := e.in.Facts
	if f == nil {
		return ctx
	}
	for _, kind := range [...]FactKind{CallCount, Attempts, TokensUsed, ActiveSlots} {
		ctx = ctx.With(kind.String(), value.OfInt(f.read(kind, "")))
	}
	ctx = ctx.With(ToolCalls.String(), value.OfMap(value.Pair{Key: e.tool, Value: value.OfInt(f.read(ToolCalls, e.tool))}))
	return ctx.With(Elapsed.String(), value.OfFloat(f.Elapsed.Seconds()))
}

// Value is the record as a mapping with the field names of the specifications.
func (r AuditRecord) Value() value.Value {
	rule := value.Value{}
	if r.Rule != "" {
		rule = value.OfString(r.Rule)
	}
	pairs := []value.Pair{
		{Key: "timestamp", Value: value.OfString(r.Timestamp.Format("2006-01-02T15:04:05.000000Z07:00"))},
		{Key: "event_type", Value: value.OfString(string(r.EventType))},
		{Key: "policy", Value: value.OfString(r.Policy)},
		{Key: "policy_digest", Value: value.OfString(r.PolicyDigest.String())},
		{Key: "rule", Value: rule},
		{Key: "action", Value: value.OfString(r.Action)},
		{Key: "allowed", Value: value.OfBool(r.Allowed)},
		{Key: "category", Value: value.OfString(r.Category)},
		{Key: "reason", Value: value.OfString(r.Reason)},
		{Key: "tool_name", Value: value.OfString(r.ToolName)},
		{Key: "agent_id", Value: value.OfString(r.AgentID)},
		{Key: "session_id", Value: value.OfString(r.SessionID)},
		{Key: "call_id", Value: value.OfString(r.CallID)},
		{Key: "arguments", Value: r.Arguments},
		{Key: "context_snapshot", Value: r.ContextSnapshot},
		{Key: "context_sha256", Value: value.OfString(r.ContextDigest.String())},
		{Key: "error", Value: value.OfBool(r.Error)},
	}
	if r.PolicyChain != nil {
		pairs = append(pairs, value.Pair{Key: "policy_chain", Value: listOf(r.PolicyChain, value.OfString)})
	}
	if r.Backend != "" {
		pairs = append(pairs, value.Pair{Key: "backend", Value: value.OfString(r.Backend)})
	}
	pairs = append(pairs, value.Pair{Key: "evaluation_ms", Value: value.OfFloat(float64(r.Evaluation) / float64(time.Millisecond))})
	if r.Error {
		pairs = append(pairs, value.Pair{Key: "error_detail", Value: value.OfString(r.ErrorDetail)})
	}
	return value.OfMap(pairs...)
}
