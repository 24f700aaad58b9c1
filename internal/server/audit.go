package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"example.com/govnode/engine"
	"example.com/govnode/internal/audit"
	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/record"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// An auditor takes every decision down: in the journal, from which it can be
// explained and followed, and as one line in the audit log (policy engine spec
// 17.1, adapter contract 19.1): who asked for what, what was answered and why. A
// refusal is always written, an admission where the policy asks for it
// (log_all_calls). Arguments are not written: context_sha256 proves which they
// were, to whoever has the key where there is one.
type auditor struct {
	log     *auditLog
	reports *reports
	now     func() time.Time
	metrics *metrics
	journal *record.Journal
	store   order.Reader
	names   principals
	settled *storage.Settled // nil where the store does not say what became of what was lost
	key     *digestKey       // of digests of arguments; nil where they have none
	away    away             // of who was not let in

	awayNodes away // of those who want to make a node join
}

// add adds a line of an operation, which is written before the operation is
// answered.
func (a *auditor) add(t *order.Trace, build func(line) line) {
	if a.log.to != nil {
		if who := t.Who; who != "" {
			bare := build
			build = func(l line) line { return bare(l).text("principal", who) }
		}
		t.Wrote(a.log.add(build))
		a.metrics.auditLines.Inc()
	}
}

// written returns when the lines of an operation have been written. Where that
// is required and does not come about, the operation is answered with the error.
func (a *auditor) written(t *order.Trace) error { return t.Said(a.log.flush(t.Line)) }

func (l line) stamp(at time.Time) line { return l.text("timestamp", input.Stamp(at)) }

// happened begins the line of something that is no decision: it was allowed,
// or nobody was asked.
func (a *auditor) happened(l line, event, reason, tool, ns string) line {
	return a.told(l, event, true, reason, tool, ns)
}

func (a *auditor) told(l line, event string, allowed bool, reason, tool, ns string) line {
	return l.stamp(a.now()).text("event_type", event).bool("allowed", allowed).text("reason", reason).text("tool_name", tool).text("namespace", ns)
}

// call takes down what became of a BeginCall.
func (a *auditor) call(b *begin, out *v1.BeginCallResponse) {
	r := b.record(out.DecisionId)
	d, said, res := &r.Decision, out.Decision, &b.answer.Result
	d.Allowed, d.Action, d.Policy, d.MatchedRule = said.Allowed, said.Action, said.Policy, said.MatchedRule
	d.Reason, d.Category, d.Backend, d.PublicMessage = said.Reason, said.Category, said.Backend, said.PublicMessage
	d.PolicyChain, d.Error, d.Source = said.PolicyChain, said.Error, said.Source
	counters := res.Counters
	r.Outcome, r.Index, r.Counters = out.Outcome, b.answer.Index, &counters
	r.Repeat = res.Repeat && !b.queued && !(res.Code == session.Admitted && (res.Approval != nil || b.cmd.Asked))
	r.Over = r.Repeat && !b.answer.First() && (res.Code == session.AlreadyEnded || res.Code == session.LeaseLost)
	a.keep(&b.trace, r, func(l line) line {
		l = l.text("namespace", b.ns).text("decision_id", out.DecisionId).text("outcome", outcomeLabel(out.Outcome)).
			bool("repeat", r.Repeat).number("index", b.answer.Index)
		if p := out.Approval; p != nil {
			l = l.text("approval_id", p.Id).text("approver", p.DecidedBy)
		}
		return l
	})
}

// failedCall takes down a decision that was reached and, as far as this node
// knows, not spent.
func (a *auditor) failedCall(b *begin, err error) {
	if b.kept == nil {
		return // it is taken down already, and something behind that went wrong
	}
	r := b.record(words.DecisionID(b.s.store, b.ns, b.cmd.Session, b.cmd.Call))
	f := fault.Of(err)
	r.Failure, r.FailureReason = f.Code.String(), f.Reason
	a.keep(&b.trace, r, func(l line) line {
		return l.text("namespace", b.ns).text("decision_id", r.ID).text("outcome", "").
			text("failure", r.Failure).text("failure_reason", r.FailureReason)
	})
}

// evaluated takes down a decision that spends nothing.
func (a *auditor) evaluated(t *order.Trace, ns, id string, policy *engine.Policy, in engine.Input, d engine.Decision, size int) {
	r := record.New(ns, id, policy, in, d, size)
	r.DryRun = true
	a.keep(t, r, func(l line) line { return l.text("namespace", ns).text("decision_id", id).bool("dry_run", true) })
}

// scanned takes down that a text was denied. The text is in no record: the input
// names what it was and the tool that it was of.
func (a *auditor) scanned(t *order.Trace, ns, id string, policy *engine.Policy, in engine.Input, d engine.Decision, kind engine.ScanKind, tool string) {
	r := record.New(ns, id, policy, in, d, len(tool))
	r.DryRun = true
	a.keep(t, r, func(l line) line {
		return l.text("namespace", ns).text("decision_id", id).bool("dry_run", true).
			text("scan", kind.String()).text("scanned_tool", engine.Redact(tool))
	})
}

// keep puts a record into the journal and, where it has to be, into the log.
func (a *auditor) keep(t *order.Trace, r *record.Record, more func(line) line) {
	r.At, r.Hash = a.now(), a.key.of(r.NS)
	written := (r.Failure != "" || r.Policy.MustAudit(&r.Decision)) && a.log.to != nil
	if large := r.Size > record.MaxLazyRecord; written || large {
		rec := r.Audit()
		if written {
			a.add(t, func(l line) line { return more(rec.AppendJSON(l)) })
		}
		if large {
			r.Render(rec)
		}
	}
	a.metrics.decision(&r.Decision)
	a.journal.Add(r)
}

// unreadable writes that no decision could be reached, because there was no
// policy to judge by. Nothing is admitted then.
func (a *auditor) unreadable(t *order.Trace, ns, sess, call string, policy session.Digest, err error) {
	f := fault.Of(err)
	a.add(t, func(l line) line {
		return l.stamp(a.now()).text("event_type", string(engine.PolicyViolation)).bool("allowed", false).text("action", string(engine.Deny)).
			text("reason", engine.Redact(err.Error())).text("category", engine.CategoryPolicyError).text("tool_name", "").
			text("namespace", ns).text("session_id", sess).text("call_id", call).text("policy_digest", policy.String()).
			bool("error", true).text("failure", f.Code.String()).text("failure_reason", f.Reason)
	})
}

// end writes what the end of a call gave rise to: a drift beyond its
// threshold, a checkpoint (policy engine spec 17.2), what rules have found in the
// output.
func (a *auditor) end(e *end, out *v1.EndCallResponse) {
	res := &e.answer.Result
	if !e.answer.First() || res.Code == session.LeaseLost {
		return // it was told of, or the call was over without an output
	}
	review := e.review
	if out.CheckpointId == "" && (e.drift == nil || !e.drift.Exceeded) && (review == nil || !review.Told()) {
		return // most ends give rise to nothing
	}
	in := e.subject()
	in.Now = a.now()
	events := engine.AfterEvents(in, out.CheckpointId, e.drift, review)
	if len(events) == 0 {
		return
	}
	a.journal.Add(record.Told(e.cmd.NS, in.AgentID, res.Repeat, events...))
	for _, ev := range events {
		a.add(&e.trace, func(l line) line {
			l = a.happened(l, string(ev.Type), ev.Reason, ev.Tool, e.cmd.NS).
				text("agent_id", ev.AgentID).text("session_id", ev.SessionID).text("call_id", ev.CallID)
			if ev.Checkpoint != "" {
				l = l.text("checkpoint", ev.Checkpoint)
			}
			if ev.Type == engine.OutputReviewed {
				l = l.text("rule", ev.Rule).text("category", ev.Category).bool("suppressed", review.Suppressed).bool("policy_error", review.PolicyError)
				l = engine.AppendRecords(append(l, `,"rules":`...), engine.RedactRecords(review.Records))
			}
			return l
		})
	}
}

// lapse writes a call that ran out: nobody reported its end, and it counts as
// executed.
func (a *auditor) lapse(c session.Lapse) {
	a.add(&order.Trace{}, func(l line) line {
		return a.happened(l, "call_lapsed", "the lease ran out; settled as unknown, counted as executed", engine.Redact(c.Tool), c.NS).
			text("session_id", c.Session).text("call_id", c.Call).
			text("decision_id", words.DecisionID(a.store, c.NS, c.Session, c.Call)).text("outcome", outcomeLabel(v1.Outcome_OUTCOME_LEASE_LOST))
	})
	a.log.push() // nobody's answer waits for it
}

// policyPut writes that a name points to a tree.
func (a *auditor) policyPut(t *order.Trace, c *session.PutPolicy, version int32) {
	a.add(t, func(l line) line {
		return a.happened(l, "policy_put", "", "", c.NS).text("policy", c.Name).number("version", uint64(version)).
			text("policy_digest", c.Digest.String()).text("client", c.By.Client).text("request_id", c.By.Request)
	})
}

// policyRefused writes that a tree was not put, and why. What was in force stays.
func (a *auditor) policyRefused(t *order.Trace, ns, name string, by session.Maker, err error) {
	a.add(t, func(l line) line {
		return a.told(l, "policy_refused", false, engine.Redact(input.Clip(err.Error(), 1000)), "", ns).text("policy", name).
			bool("policy_error", true).text("client", by.Client).text("request_id", by.Request)
	})
}

// hashPut writes that the content hash of a tool was registered, or taken back.
func (a *auditor) hashPut(t *order.Trace, c *session.PutHash) {
	a.add(t, func(l line) line {
		return a.happened(l, "content_hash_put", "", engine.Redact(c.Tool), c.NS).
			text("content_hash", c.Hash).text("client", c.By.Client).text("request_id", c.By.Request)
	})
}

// forced writes that somebody took a slot from its holder.
func (a *auditor) forced(t *order.Trace, c *session.ForceRelease, o v1.Outcome) {
	a.add(t, func(l line) line {
		return a.happened(l, "slot_force_released", "", "", c.NS).
			text("session_id", c.Session).text("slot_id", c.ID).text("holder_client", c.Holder).
			text("pools", strings.Join(c.Pools, " ")).text("outcome", outcomeLabel(o)).
			text("client", c.By.Client).text("request_id", c.By.Request)
	})
}

// limited writes what somebody has done to a pool, a rate or a budget.
func (a *auditor) limited(ctx context.Context, c record.Change) {
	a.add(order.TraceOf(ctx), func(l line) line {
		return a.happened(l, c.Event, c.Says, "", c.NS).text("name", c.Name).text("client", c.By.Client).text("request_id", c.By.Request)
	})
}

// signalled writes a signal, and tells followers of it.
func (a *auditor) signalled(t *order.Trace, c *session.Signal, ev engine.Event, repeat bool) {
	agent := ev.AgentID
	ev.Type, ev.AgentID = record.Signal, engine.Redact(agent)
	a.journal.Add(record.Told(c.NS, agent, repeat, ev))
	a.add(t, func(l line) line {
		return a.happened(l, string(record.Signal), ev.Reason, "", c.NS).text("signal", ev.Category).text("target", words.TargetText(c.Target)).
			text("client", c.By.Client).text("request_id", c.By.Request)
	})
}

// repaired writes that ids of a namespace are taken again.
func (a *auditor) repaired(t *order.Trace, c *session.Repair) {
	a.add(t, func(l line) line {
		return a.happened(l, "ids_repaired", "", "", c.NS).number("newer_than", c.NewerThan).
			text("holder_client", c.Client).text("client", c.By.Client).text("request_id", c.By.Request)
	})
}

// member writes that somebody changed the members, or may have.
func (a *auditor) member(ctx context.Context, event, node, address string, outcome storage.Outcome) {
	a.add(order.TraceOf(ctx), func(l line) line {
		l = a.happened(l, event, "", "", session.ClusterNamespace).text("name", node).text("address", address)
		if outcome == storage.Unknown {
			l = l.text("outcome", "unknown")
		}
		return l
	})
}

// restored writes that the state was replaced by that of a snapshot, or may have been, and
// at which generation it stands then; 0 where nobody knows that.
func (a *auditor) restored(ctx context.Context, outcome storage.Outcome, generation uint32) {
	a.add(order.TraceOf(ctx), func(l line) line {
		l = a.happened(l, audit.RestoredEvent, "", "", session.ClusterNamespace)
		if outcome == storage.Unknown {
			l = l.text("outcome", "unknown")
		}
		if generation > 0 {
			l = l.number("generation", uint64(generation))
		}
		return l
	})
}

// turned writes that a node was not let into the cluster, and why. The text names no
// secret.
func (a *auditor) turned(ctx context.Context, why string) {
	a.add(order.TraceOf(ctx), func(l line) line {
		return a.told(l, "node_refused", false, engine.Redact(input.Clip(why, 1000)), "", session.ClusterNamespace)
	})
}

// turnedAway writes of who was not let in. Anybody may ask, so that a second has a few
// lines at most, and those about nodes apart; the metric has counted all.
func (a *auditor) turnedAway(to string, p *access.Principal, err error) {
	nodes := to == govnodev1connect.ClusterServiceAddNodeProcedure
	told := &a.away
	if nodes {
		told = &a.awayNodes
	}
	if !told.mayTell(a.now()) {
		return
	}
	ctx, trace := order.Traced(access.With(context.Background(), p))
	if nodes {
		a.turned(ctx, err.Error())
	} else {
		ns := session.ClusterNamespace
		if p != nil {
			ns = p.Namespace
		}
		a.add(trace, func(l line) line {
			return a.told(l, "access_refused", false, engine.Redact(input.Clip(err.Error(), 1000)), "", ns).text("method", input.Clip(to, 200))
		})
	}
	a.log.push() // no answer waits for it
}

// linesAway is how many lines a second those have who are not let in.
const linesAway = 10

// An away counts the lines of the second that it is.
type away struct {
	mu    sync.Mutex
	since time.Time
	told  int
}

func (w *away) mayTell(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if since := now.Sub(w.since); since < 0 || since >= time.Second {
		w.since, w.told = now, 0
	}
	w.told++
	return w.told <= linesAway
}

// ReopenAudit opens the audit log anew, for one that was renamed to be
// archived. No line is split between the two. It does nothing and returns false
// where Config.Audit is no Reopener.
func (s *Server) ReopenAudit() (reopened bool, err error) {
	if reopened, err = s.reopenAudit(); reopened && s.anchors != nil {
		s.anchors.write() // so that the chain is known to who finds only the new file
	}
	return reopened, err
}

func (s *Server) reopenAudit() (reopened bool, err error) {
	l := s.audit.log
	r, ok := l.to.(Reopener)
	if !ok {
		return false, nil
	}
	select {
	case l.file <- struct{}{}:
		defer func() { <-l.file }()
	case <-time.After(l.patience):
		return false, fmt.Errorf("server: audit: %w", errAuditHangs)
	}
	if err := r.Reopen(); err != nil {
		return false, fmt.Errorf("server: audit: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.torn = false // Reopen has seen to it
	return true, nil
}

// lapsed writes down calls that the store found to have run out.
func (s *Server) lapsed(calls []session.Lapse) {
	for _, l := range calls {
		s.audit.lapse(l)
		s.metrics.lapsed.Inc()
	}
}

// auditLost counts lines that are lost, and has it said.
func (s *Server) auditLost(lines int, why error) {
	s.metrics.auditLost.Inc()
	s.audit.reports.lost(lines, why)
}

// auditState notes how it stands with the audit log where that has changed, and has it
// said.
func (s *Server) auditState(trouble error) {
	failing := 0.
	if trouble != nil {
		failing = 1
	}
	s.metrics.auditFailing.Set(failing)
	s.audit.reports.state(trouble)
}

// auditReport says how it stands with the audit log.
func (s *Server) auditReport(r report) {
	const broken = "the audit log cannot be written; make room, or give another file with --audit"
	if r.why != nil {
		s.log.Error(broken, "lines_lost", r.lines, "error", r.why)
	}
	switch {
	case !r.turned:
	case r.trouble == nil:
		s.log.Info("the audit log is written again")
	case s.cfg.AuditRequired:
		s.log.Error(broken, "error", r.trouble, "then", "decisions are refused until it can be written, since it is required")
	case r.trouble == errAuditHangs: // else its loss was said
		s.log.Error(broken, "error", r.trouble, "then", "answers do not wait for it, and lines are lost if it goes on")
	}
}

// record is the one of the call, which has no other.
func (b *begin) record(id string) *record.Record {
	size := len(b.req.ArgumentsJson) + len(b.req.ContextJson) + len(b.req.MetadataJson)
	if b.req.Arguments != nil {
		size += proto.Size(b.req.Arguments)
	}
	if b.req.Context != nil {
		size += proto.Size(b.req.Context)
	}
	for name, text := range b.req.Metadata {
		size += len(name) + len(text)
	}
	r := b.kept
	b.kept = nil
	r.Complete(b.ns, id, b.policy, size)
	r.Opened = b.session.Opened
	return r
}
