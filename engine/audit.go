package engine

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"sync"
	"time"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/redact"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// An AuditRecord is what is kept of one decision (policy engine spec 17.1,
// adapter contract 19.1). It holds no text that was not redacted.
type AuditRecord struct {
	Timestamp       time.Time // UTC
	EventType       EventType
	Policy          string
	PolicyDigest    source.Digest
	Rule            string // empty where no rule decided
	Action          string
	Allowed         bool
	Category        string
	Reason          string // also of an allow
	ToolName        string
	AgentID         string
	SessionID       string
	CallID          string
	ContextSnapshot value.Value // redacted
	// ContextDigest is a hash of the unredacted context and arguments, so that a copy
	// elsewhere can be proven to be the same; empty where its key is not known.
	ContextDigest string
	PolicyChain   []string // folder-scoped decisions
	Backend       string
	// GuardrailMetadata is what guardrails said beside their decisions, by their
	// names; nil if nothing.
	GuardrailMetadata *value.Value
	Evaluation        time.Duration // of the backend where one decided, else of all
	Error             bool
	ErrorDetail       string // with the rule that could not be judged

	// Of an Edictum ruleset: what became of its rules, redacted, and how many were looked
	// at (of more than a hundred only those that did not pass are told), what the call
	// may change, the stage that decided, and the SHA-256 of the files.
	Records        []RuleRecord
	RulesEvaluated int
	SideEffect     string
	Source         string
	PolicyVersion  string
}

// Audit makes the record of a decision. Every decision has one, also those of
// error paths.
func (p *Policy) Audit(in call.Input, d Decision, hash ContextHash) AuditRecord {
	e := matching.Begun(&in)
	r := AuditRecord{
		Timestamp:         moment(in.Now),
		EventType:         PolicyCheck,
		Policy:            d.Policy,
		PolicyDigest:      p.digest,
		Rule:              d.MatchedRule,
		Action:            d.Action,
		Allowed:           d.Allowed,
		Category:          d.Category,
		Reason:            redact.Text(d.Reason),
		ToolName:          redact.Text(e.Tool),
		AgentID:           redact.Text(p.agentName(e)),
		SessionID:         in.SessionID,
		CallID:            in.CallID,
		ContextSnapshot:   p.snapshot(e),
		PolicyChain:       d.PolicyChain,
		Backend:           d.Backend,
		Evaluation:        d.EvaluationTime,
		Error:             d.Error != "",
		GuardrailMetadata: d.GuardrailMetadata,
		ErrorDetail:       d.Error,
		Records:           RedactRecords(p.records(e, d.Records, d.RulesEvaluated)),
		RulesEvaluated:    d.RulesEvaluated,
		SideEffect:        d.SideEffect,
		Source:            d.Source,
	}
	if p.rulesetDoc != nil {
		r.PolicyVersion = p.rulesetDoc.Version()
	}
	canonical := canonicals.Get().(*[]byte)
	*canonical = e.Arguments().AppendJSON(in.Context.AppendJSON((*canonical)[:0]))
	r.ContextDigest = hash.of(*canonical)
	if cap(*canonical) <= 64<<10 {
		canonicals.Put(canonical)
	}
	if d.Backend != "" {
		r.Evaluation = d.BackendTime
	}
	if !d.Allowed && d.Action != string(document.Ask) {
		r.EventType = PolicyViolation
		if e.OfTool() {
			r.EventType = ToolCallBlocked
		}
	}
	if d.errorRule != "" {
		r.ErrorDetail = "rule '" + d.errorRule + "': " + d.Error
	}
	return r
}

// A ContextHash is how the context and the arguments of a call are hashed. The zero
// value is SHA-256.
type ContextHash struct {
	Keyed bool   // HMAC-SHA256, so that a short text cannot be guessed
	Key   []byte // nil where it is not known: there is no hash then
}

func (h ContextHash) of(text []byte) string {
	switch {
	case !h.Keyed:
		return source.Digest(sha256.Sum256(text)).String()
	case h.Key == nil:
		return ""
	}
	mac := hmac.New(sha256.New, h.Key)
	_, _ = mac.Write(text)
	return "hmac-sha256:" + hex.EncodeToString(mac.Sum(nil))
}

// RedactRecords are records as they may be kept.
func RedactRecords(all []RuleRecord) []RuleRecord {
	if len(all) == 0 {
		return nil
	}
	out := slices.Clone(all)
	for i := range out {
		out[i].Message = redact.Text(out[i].Message)
	}
	return out
}

// canonicals are buffers for what is hashed.
var canonicals = sync.Pool{New: func() any { return new([]byte) }}

// MustAudit reports whether a decision has to be kept: every denial, ask and
// error, what a rule that observes would have refused, and with log_all_calls every
// allow too. Turning the log off never hides a refusal.
func (p *Policy) MustAudit(d *Decision) bool {
	return !d.Allowed || d.Error != "" || d.Action == string(document.Audit) || p.limits.LogAllCalls ||
		slices.ContainsFunc(d.Records, func(r RuleRecord) bool { return !r.Passed })
}

// snapshot is the context as it was judged, redacted, with the facts of the
// service in the place of what the caller claimed. Those are no secrets, and a
// time in seconds may look like one.
func (p *Policy) snapshot(e matching.Evaluation) value.Value {
	var own [7]value.Pair
	n := 0
	add := func(name string, v value.Value) {
		own[n] = value.Pair{Key: name, Value: v}
		n++
	}
	if e.Tool != "" {
		add("tool_name", value.OfString(redact.Text(e.Tool)))
	}
	if f := e.In.Facts; f != nil {
		for _, kind := range [...]call.FactKind{call.CallCount, call.Attempts, call.TokensUsed, call.ActiveSlots} {
			add(kind.String(), value.OfInt(f.Read(kind, "")))
		}
		add(call.ToolCalls.String(), value.OfMap(value.Pair{Key: redact.Text(e.Tool), Value: value.OfInt(f.Read(call.ToolCalls, e.Tool))}))
		add(call.Elapsed.String(), value.OfFloat(f.Elapsed.Seconds()))
	}
	ctx := e.In.Context
	if ctx.Len() == 0 {
		return value.OfMap(own[:n]...)
	}
	pairs := make([]value.Pair, 0, ctx.Len()+n)
	for k, v := range redact.Value(ctx).All() {
		if !slices.ContainsFunc(own[:n], func(o value.Pair) bool { return o.Key == k }) {
			pairs = append(pairs, value.Pair{Key: k, Value: v})
		}
	}
	return value.OfMap(append(pairs, own[:n]...)...)
}

// AppendJSON appends the members of a JSON object with the field names of the
// specifications, without its braces. Arguments are not among them:
// context_sha256 proves which they were.
func (r *AuditRecord) AppendJSON(dst []byte) []byte {
	dst = appendStamp(append(dst, `"timestamp":"`...), r.Timestamp)
	dst = appendMember(append(dst, '"'), `,"event_type":`, string(r.EventType))
	dst = appendMember(dst, `,"policy":`, r.Policy)
	dst = append(dst, `,"policy_digest":"`+source.DigestPrefix...)
	dst = hex.AppendEncode(dst, r.PolicyDigest[:])
	if r.Rule != "" {
		dst = appendMember(append(dst, '"'), `,"rule":`, r.Rule)
	} else {
		dst = append(dst, `","rule":null`...)
	}
	dst = appendMember(dst, `,"action":`, r.Action)
	dst = strconv.AppendBool(append(dst, `,"allowed":`...), r.Allowed)
	dst = appendMember(dst, `,"category":`, r.Category)
	dst = appendMember(dst, `,"reason":`, r.Reason)
	dst = appendMember(dst, `,"tool_name":`, r.ToolName)
	dst = appendMember(dst, `,"agent_id":`, r.AgentID)
	dst = appendMember(dst, `,"session_id":`, r.SessionID)
	dst = appendMember(dst, `,"call_id":`, r.CallID)
	dst = r.ContextSnapshot.AppendJSON(append(dst, `,"context_snapshot":`...))
	dst = append(append(dst, `,"context_sha256":"`...), r.ContextDigest...)
	dst = strconv.AppendBool(append(dst, `","error":`...), r.Error)
	if r.PolicyChain != nil {
		dst = value.ListOf(r.PolicyChain, value.OfString).AppendJSON(append(dst, `,"policy_chain":`...))
	}
	if r.Backend != "" {
		dst = appendMember(dst, `,"backend":`, r.Backend)
	}
	if r.GuardrailMetadata != nil {
		dst = r.GuardrailMetadata.AppendJSON(append(dst, `,"guardrail_metadata":`...))
	}
	dst = value.OfFloat(float64(r.Evaluation) / float64(time.Millisecond)).AppendJSON(append(dst, `,"evaluation_ms":`...))
	if r.Error {
		dst = appendMember(dst, `,"error_detail":`, r.ErrorDetail)
	}
	if r.PolicyVersion != "" {
		dst = appendMember(dst, `,"policy_version":`, r.PolicyVersion)
		dst = appendMember(dst, `,"side_effect":`, r.SideEffect)
		dst = AppendRecords(append(dst, `,"rules":`...), r.Records)
		dst = strconv.AppendInt(append(dst, `,"rules_evaluated":`...), int64(r.RulesEvaluated), 10)
	}
	if r.Source != "" {
		dst = appendMember(dst, `,"decision_source":`, r.Source)
	}
	return dst
}

// appendStamp appends a time as records have it: RFC 3339 in UTC with microseconds.
// That is a fourth of what a layout with microseconds costs.
func appendStamp(dst []byte, t time.Time) []byte {
	dst = t.UTC().AppendFormat(dst, time.RFC3339)
	micros := len(dst) - len("Z")
	dst = strconv.AppendInt(dst[:micros], int64(1e6+t.Nanosecond()/1e3), 10)
	dst[micros] = '.' // where the million stands
	return append(dst, 'Z')
}

// AppendRecords appends a JSON list of what became of rules.
func AppendRecords(dst []byte, records []RuleRecord) []byte {
	dst = append(dst, '[')
	for i, r := range records {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendMember(dst, `{"rule":`, r.Rule)
		dst = appendMember(dst, `,"type":`, r.Type)
		dst = strconv.AppendBool(append(dst, `,"passed":`...), r.Passed)
		dst = appendMember(dst, `,"message":`, r.Message)
		dst = strconv.AppendBool(append(dst, `,"observed":`...), r.Observed)
		dst = strconv.AppendBool(append(dst, `,"candidate":`...), r.Candidate)
		dst = strconv.AppendBool(append(dst, `,"policy_error":`...), r.PolicyError)
		dst = value.ListOf(r.Tags, value.OfString).AppendJSON(append(dst, `,"tags":`...))
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

func appendMember(dst []byte, name, text string) []byte {
	return value.OfString(text).AppendJSON(append(dst, name...))
}
