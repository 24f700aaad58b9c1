package server

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/engine"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// An auditor writes one line for each decision (policy engine spec 17.1,
// adapter contract 19.1): who asked for what, what was answered and why. A
// refusal is always written, an admission where the policy asks for it
// (log_all_calls). Arguments are not written: context_sha256 proves which they
// were.
type auditor struct {
	log     *slog.Logger
	now     func() time.Time
	metrics *metrics
}

// auditMessage marks the lines in a log that has others.
const auditMessage = "audit"

func (a *auditor) write(attrs ...slog.Attr) {
	a.metrics.auditLines.Inc()
	a.log.LogAttrs(context.Background(), slog.LevelInfo, auditMessage, attrs...)
}

// enabled spares the work for a line that nobody takes.
func (a *auditor) enabled() bool { return a.log.Enabled(context.Background(), slog.LevelInfo) }

func (a *auditor) stamp() slog.Attr {
	return slog.String("timestamp", a.now().UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
}

// attrsOf are the fields of a decision, in the names of the specifications.
func attrsOf(policy *engine.Policy, in engine.Input, d engine.Decision) []slog.Attr {
	var attrs []slog.Attr
	for name, v := range policy.Audit(in, d).Value().All() {
		if name == "arguments" {
			continue
		}
		if s, ok := v.AsString(); ok {
			attrs = append(attrs, slog.String(name, s))
		} else {
			attrs = append(attrs, slog.Any(name, json.RawMessage(v.JSON())))
		}
	}
	return attrs
}

// call writes what became of a BeginCall.
func (a *auditor) call(b *begin, out *v1.BeginCallResponse) {
	d := b.decision
	said := out.Decision
	d.Allowed, d.Action, d.MatchedRule = said.Allowed, said.Action, said.MatchedRule
	d.Reason, d.Category, d.Backend = said.Reason, said.Category, said.Backend
	if !b.policy.MustAudit(d) || !a.enabled() {
		return
	}
	a.write(append(attrsOf(b.policy, b.input, d),
		slog.String("namespace", b.ns), slog.String("decision_id", out.DecisionId), slog.String("outcome", outcomeLabel(out.Outcome)),
		slog.Bool("repeat", b.answer.Result.Repeat), slog.Uint64("index", b.answer.Index))...)
}

// failedCall writes a decision that was reached and, as far as this node knows,
// not spent.
func (a *auditor) failedCall(b *begin, err error) {
	if !a.enabled() {
		return
	}
	reason, _ := reasonOf(err)
	a.write(append(attrsOf(b.policy, b.input, b.decision),
		slog.String("namespace", b.ns), slog.String("decision_id", decisionID(b.ns, b.cmd.Session, b.cmd.Call)), slog.String("outcome", ""),
		slog.String("failure", connect.CodeOf(err).String()), slog.String("failure_reason", reason))...)
}

// evaluated writes a decision that spends nothing.
func (a *auditor) evaluated(ns string, policy *engine.Policy, in engine.Input, d engine.Decision) {
	if !policy.MustAudit(d) || !a.enabled() {
		return
	}
	a.write(append(attrsOf(policy, in, d), slog.String("namespace", ns), slog.Bool("dry_run", true))...)
}

// end writes what the end of a call gave rise to: a drift beyond its
// threshold, a checkpoint (policy engine spec 17.2).
func (a *auditor) end(e *end, out *v1.EndCallResponse) {
	if e.answer.Result.Code != session.Ended || !a.enabled() {
		return
	}
	in := engine.Input{SessionID: e.req.SessionId, CallID: e.req.CallId, Now: a.now()}
	for _, ev := range engine.AfterEvents(in, out.CheckpointId, e.drift) {
		attrs := []slog.Attr{
			a.stamp(), slog.String("event_type", string(ev.Type)), slog.Bool("allowed", true), slog.String("reason", ev.Reason), slog.String("tool_name", ""),
			slog.String("namespace", e.cmd.NS), slog.String("session_id", ev.SessionID), slog.String("call_id", ev.CallID),
		}
		if ev.Checkpoint != "" {
			attrs = append(attrs, slog.String("checkpoint", ev.Checkpoint))
		}
		a.write(attrs...)
	}
}

// lapse writes a call that ran out: nobody reported its end, and it counts as
// executed.
func (a *auditor) lapse(ns string, l session.Lapse) {
	if !a.enabled() {
		return
	}
	a.write(a.stamp(), slog.String("event_type", "call_lapsed"), slog.Bool("allowed", true),
		slog.String("reason", "the lease ran out; settled as unknown, counted as executed"), slog.String("tool_name", engine.Redact(l.Tool)),
		slog.String("namespace", ns), slog.String("session_id", l.Session), slog.String("call_id", l.Call),
		slog.String("decision_id", decisionID(ns, l.Session, l.Call)), slog.String("outcome", outcomeLabel(v1.Outcome_OUTCOME_LEASE_LOST)))
}

// policyPut writes that a name points to a tree.
func (a *auditor) policyPut(c *session.PutPolicy, version int32) {
	a.write(a.stamp(), slog.String("event_type", "policy_put"), slog.Bool("allowed", true), slog.String("reason", ""), slog.String("tool_name", ""),
		slog.String("namespace", c.NS), slog.String("policy", c.Name), slog.Int64("version", int64(version)),
		slog.String("policy_digest", c.Digest.String()), slog.String("client", c.By.Client), slog.String("request_id", c.By.Request))
}

// forced writes that somebody took a slot from its holder.
func (a *auditor) forced(c *session.ForceRelease, o v1.Outcome) {
	a.write(a.stamp(), slog.String("event_type", "slot_force_released"), slog.Bool("allowed", true), slog.String("reason", ""), slog.String("tool_name", ""),
		slog.String("namespace", c.NS), slog.String("session_id", c.Session), slog.String("slot_id", c.ID), slog.String("holder_client", c.Holder),
		slog.String("pools", strings.Join(c.Pools, " ")), slog.String("outcome", outcomeLabel(o)),
		slog.String("client", c.By.Client), slog.String("request_id", c.By.Request))
}
