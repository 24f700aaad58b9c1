package server

import (
	"context"
	"strings"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/approvals"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/quota"
	"example.com/govnode/internal/server/record"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// Approvals: how a node tells of them.

// newApprovals makes the service of approvals.
func (s *Server) newApprovals() *approvals.Service {
	return &approvals.Service{
		Store: s.store, Now: s.cfg.Now, NewID: s.cfg.NewID, Waits: s.waits, Seal: s.seals.seal, Open: s.seals.show,
		Enter: func(ctx context.Context, ns string) (func(), error) { return s.quotas.Enter(ctx, ns, quota.Waiters) },
		Rule: func(ctx context.Context, ns string, policy session.Digest, rule uint16) string {
			p, err := s.policies.Cache.Compiled(ctx, ns, policy)
			if err != nil {
				return "" // it may be deleted by now
			}
			return p.RuleName(rule)
		},
		Asked: func(ctx context.Context, ns, id string, a *session.Approval, client string, repeat bool) {
			s.audit.approval(order.TraceOf(ctx), ns, id, a, record.ApprovalRequested, client, repeat)
		},
		Voted: func(ctx context.Context, ns, id string, v *session.Decide) {
			s.audit.voted(order.TraceOf(ctx), ns, id, v)
		},
		Changed: s.audit.limited,
		Decided: func(ctx context.Context, ns, id string, a *session.Approval, client string, repeat bool) {
			s.audit.approval(order.TraceOf(ctx), ns, id, a, record.ApprovalDecided, client, repeat)
		},
	}
}

// tellAsked tells once that people are asked about a call. Of those who are asked about a
// stage of its workflow it was told when they were.
func (b *begin) tellAsked() {
	res := &b.answer.Result
	if b.asked || b.parked != nil || res.Code != session.ApprovalRequired || !b.answer.First() {
		return
	}
	b.asked = true
	b.s.audit.asked(b, res)
}

func (a *auditor) asked(b *begin, res *session.Result) {
	a.approval(&b.trace, b.ns, res.Approval.ID, &session.Approval{
		Session: b.cmd.Session, Call: b.cmd.Call, Agent: b.input.AgentID, Tool: b.cmd.Tool, Reason: b.cmd.Asking.Reason,
	}, record.ApprovalRequested, "", res.Repeat)
}

// approval takes down that people are asked, or what came of it: as an event, in
// the metrics and in the audit log. Another node may have told of what is a repeat.
func (a *auditor) approval(t *order.Trace, ns, id string, x *session.Approval, typ engine.EventType, client string, repeat bool) {
	state, by := "requested", ""
	ev := engine.Event{
		Approval: id, Type: typ, Time: a.now(), AgentID: engine.Redact(x.Agent), SessionID: x.Session, CallID: x.Call, Tool: engine.Redact(x.Tool), Reason: x.Reason,
	}
	if typ == record.ApprovalDecided {
		if state = approvalLabel(words.ApprovalStates[x.State()]); state == "used" {
			state = "approved" // as it was decided: its call was quicker than the answer
		}
		if v := x.Decisive(); v != nil {
			by, ev.Reason = v.Approver, v.Reason
		}
	}
	ev.Category, ev.Approver = state, by
	a.metrics.approvals.WithLabelValues(state).Inc()
	a.journal.Add(record.Told(ns, x.Agent, repeat, ev))
	a.add(t, func(l line) line {
		return a.told(l, string(typ), state == "approved", ev.Reason, ev.Tool, ns).text("approval_id", id).text("state", state).text("approver", by).
			text("agent_id", ev.AgentID).text("session_id", x.Session).text("call_id", x.Call).text("client", client)
	})
}

// voted writes a vote that did not decide; the one that did is in the line of what
// came of it.
func (a *auditor) voted(t *order.Trace, ns, id string, v *session.Decide) {
	vote := "deny"
	if v.Approve {
		vote = "approve"
	}
	a.add(t, func(l line) line {
		return a.told(l, "approval_voted", false, v.Reason, "", ns).text("approval_id", id).text("approver", v.Approver).text("vote", vote).
			text("session_id", v.Session).text("call_id", v.Call).text("client", v.By.Client)
	})
}

// approvalLabel is a state as metrics and audit lines have it.
func approvalLabel(s v1.ApprovalState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "APPROVAL_STATE_"))
}
