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

// An auditor takes every decision down: in the journal, from which it can be
// explained and followed, and as one line in the audit log (policy engine spec
// 17.1, adapter contract 19.1): who asked for what, what was answered and why. A
// refusal is always written, an admission where the policy asks for it
// (log_all_calls). Arguments are not written: context_sha256 proves which they
// were.
type auditor struct {
	log     *slog.Logger
	now     func() time.Time
	metrics *metrics
	journal *journal
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
func attrsOf(rec engine.AuditRecord) []slog.Attr {
	var attrs []slog.Attr
	for name, v := range rec.Value().All() {
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

// call takes down what became of a BeginCall.
func (a *auditor) call(b *begin, out *v1.BeginCallResponse) {
	r := b.record(out.DecisionId)
	d, said, res := &r.decision, out.Decision, &b.answer.Result
	d.Allowed, d.Action, d.Policy, d.MatchedRule = said.Allowed, said.Action, said.Policy, said.MatchedRule
	d.Reason, d.Category, d.Backend, d.PublicMessage = said.Reason, said.Category, said.Backend, said.PublicMessage
	d.PolicyChain, d.Error = said.PolicyChain, said.Error
	counters := res.Counters
	r.outcome, r.index, r.counters = out.Outcome, b.answer.Index, &counters
	r.repeat = res.Repeat && !b.queued
	a.keep(r,
		slog.String("namespace", b.ns), slog.String("decision_id", out.DecisionId), slog.String("outcome", outcomeLabel(out.Outcome)),
		slog.Bool("repeat", r.repeat), slog.Uint64("index", b.answer.Index))
}

// failedCall takes down a decision that was reached and, as far as this node
// knows, not spent.
func (a *auditor) failedCall(b *begin, err error) {
	r := b.record(decisionID(b.ns, b.cmd.Session, b.cmd.Call))
	r.failure = connect.CodeOf(err).String()
	r.failureReason, _ = reasonOf(err)
	a.keep(r,
		slog.String("namespace", b.ns), slog.String("decision_id", r.id), slog.String("outcome", ""),
		slog.String("failure", r.failure), slog.String("failure_reason", r.failureReason))
}

// evaluated takes down a decision that spends nothing.
func (a *auditor) evaluated(ns, id string, policy *engine.Policy, in engine.Input, d engine.Decision, size int) {
	r := newRecord(ns, id, policy, in, d, size)
	r.dryRun = true
	a.keep(r, slog.String("namespace", ns), slog.String("decision_id", id), slog.Bool("dry_run", true))
}

// keep puts a record into the journal and, where it has to be, into the log.
func (a *auditor) keep(r *record, attrs ...slog.Attr) {
	r.at = a.now()
	line := (r.failure != "" || r.policy.MustAudit(r.decision)) && a.enabled()
	if large := r.size > maxLazyRecord; line || large {
		rec := r.audit()
		if line {
			a.write(append(attrsOf(rec), attrs...)...)
		}
		if large {
			r.render(rec)
		}
	}
	a.metrics.decision(&r.decision)
	a.journal.add(r)
}

// unreadable writes that no decision could be reached, because there was no
// policy to judge by. Nothing is admitted then.
func (a *auditor) unreadable(ns, sess, call string, policy session.Digest, err error) {
	if !a.enabled() {
		return
	}
	reason, _ := reasonOf(err)
	a.write(a.stamp(), slog.String("event_type", string(engine.PolicyViolation)), slog.Bool("allowed", false), slog.String("action", string(engine.Deny)),
		slog.String("reason", engine.Redact(err.Error())), slog.String("category", engine.CategoryPolicyError), slog.String("tool_name", ""),
		slog.String("namespace", ns), slog.String("session_id", sess), slog.String("call_id", call), slog.String("policy_digest", policy.String()),
		slog.Bool("error", true), slog.String("failure", connect.CodeOf(err).String()), slog.String("failure_reason", reason))
}

// end writes what the end of a call gave rise to: a drift beyond its
// threshold, a checkpoint (policy engine spec 17.2).
func (a *auditor) end(e *end, out *v1.EndCallResponse) {
	if e.answer.Result.Code != session.Ended || out.CheckpointId == "" && (e.drift == nil || !e.drift.Exceeded) {
		return // most ends give rise to nothing
	}
	in := engine.Input{SessionID: e.req.SessionId, CallID: e.req.CallId, AgentID: e.agent, Tool: e.tool, Now: a.now()}
	events := engine.AfterEvents(in, out.CheckpointId, e.drift)
	if len(events) == 0 {
		return
	}
	a.journal.add(&record{ns: e.cmd.NS, at: in.Now, after: events, size: bareRecord})
	if !a.enabled() {
		return
	}
	for _, ev := range events {
		attrs := []slog.Attr{
			a.stamp(), slog.String("event_type", string(ev.Type)), slog.Bool("allowed", true), slog.String("reason", ev.Reason),
			slog.String("tool_name", ev.Tool), slog.String("agent_id", ev.AgentID),
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

// hashPut writes that the content hash of a tool was registered, or taken back.
func (a *auditor) hashPut(c *session.PutHash) {
	a.write(a.stamp(), slog.String("event_type", "content_hash_put"), slog.Bool("allowed", true), slog.String("reason", ""), slog.String("tool_name", engine.Redact(c.Tool)),
		slog.String("namespace", c.NS), slog.String("content_hash", c.Hash), slog.String("client", c.By.Client), slog.String("request_id", c.By.Request))
}

// forced writes that somebody took a slot from its holder.
func (a *auditor) forced(c *session.ForceRelease, o v1.Outcome) {
	a.write(a.stamp(), slog.String("event_type", "slot_force_released"), slog.Bool("allowed", true), slog.String("reason", ""), slog.String("tool_name", ""),
		slog.String("namespace", c.NS), slog.String("session_id", c.Session), slog.String("slot_id", c.ID), slog.String("holder_client", c.Holder),
		slog.String("pools", strings.Join(c.Pools, " ")), slog.String("outcome", outcomeLabel(o)),
		slog.String("client", c.By.Client), slog.String("request_id", c.By.Request))
}
