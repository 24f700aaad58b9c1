package server

import (
	"context"
	"math"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server/flows"
	"example.com/govnode/session"
)

// The workflow of a session's policy: stage 6 of Edictum's pipeline, behind the rules and
// before what is counted.

// never is a premise that does not hold: a command with it is answered if its id is known
// or its session is closed or stopped, and changes nothing else.
var never = []session.Premise{{Fact: session.FactCalls, Lo: math.MaxInt64, Hi: math.MaxInt64}}

// follow asks the workflow about a call that the policy lets pass. What it refuses is
// denied, and counted as an attempt. A call that has come to the end of a stage which
// people have to approve counts nothing until they have.
func (b *begin) follow(ctx context.Context) error {
	d := b.decision
	if b.policy.Workflow() == nil || b.input.Tool == "" || b.session.Phase != session.PhaseOpen || !d.Allowed && d.Ask == nil {
		return nil
	}
	if m := b.session.IDs.Find(b.cmd.Call); m != nil && b.session.Find(b.cmd.Call) == nil {
		b.cmd.Seen = never // it is answered as it was, and does not run
		if m.Rule() != ruleWorkflow {
			return nil
		}
		err := b.s.peekFlow(ctx, d, b.policy, b.session, b.input, b.ns)
		if !d.Allowed {
			d.Rule = freeRule(d)
		}
		return err
	}
	at := b.s.place(b.ns, b.session, b.cmd.Session, b.cmd.Call, b.policy)
	v, err := b.s.flows.Judge(b.trace.Within(ctx), at, argumentsOf(d, b.input), b.input.Tool)
	if err != nil || v.Action == engine.RuleAllows {
		return err
	}
	byWorkflow(d, b.policy, v.WorkflowVerdict)
	b.cmd.Asking = nil
	if b.parked = v.Asked; b.parked == nil {
		d.Rule = freeRule(d)
	} else {
		b.cmd.Seen = never
	}
	b.cmd.Verdict = session.Verdict{Allow: false, Rule: d.Rule}
	return nil
}

// argumentsOf are the arguments with which a call runs: those that guardrails made of it.
func argumentsOf(d *engine.Decision, in *engine.Input) value.Value {
	if d.ModifiedArguments != nil {
		return *d.ModifiedArguments
	}
	return in.Arguments
}

// ran reports whether a call was admitted and is over.
func ran(x *session.Session, call string) bool {
	if x.Find(call) != nil {
		return false
	}
	m := x.IDs.Find(call)
	return m != nil && (session.Code(m.Code()) == session.Ended || session.Code(m.Code()) == session.LeaseLost)
}

// byWorkflow writes what a workflow decided in the place of a decision.
func byWorkflow(d *engine.Decision, p *engine.Policy, v engine.WorkflowVerdict) {
	*d = engine.Decision{
		Action: string(engine.Deny), Policy: byWorkflows + p.Workflow().Name, MatchedRule: v.Stage, Reason: v.Reason,
		Category: engine.CategoryRule, PublicMessage: publicNotPermitted, Source: "workflow", PolicyChain: d.PolicyChain,
		Records: d.Records, RulesEvaluated: d.RulesEvaluated, SideEffect: d.SideEffect, EvaluationTime: d.EvaluationTime, Trace: d.Trace,
	}
	if v.Action == engine.RuleAsks {
		ask := p.StageApproval()
		d.Action, d.Ask, d.Category, d.PublicMessage = "ask", &ask, engine.CategoryApproval, "Human approval required."
	}
}

// peekFlow is follow for who only wants to know.
func (s *Server) peekFlow(ctx context.Context, d *engine.Decision, p *engine.Policy, x *session.Session, in *engine.Input, ns string) error {
	if p.Workflow() == nil || in.Tool == "" || !d.Allowed && d.Ask == nil {
		return nil
	}
	v, err := s.flows.Peek(ctx, s.place(ns, x, in.SessionID, "", p), argumentsOf(d, in), in.Tool)
	if err == nil && v.Action != engine.RuleAllows {
		byWorkflow(d, p, v)
		d.Trace = append(d.Trace, engine.Redact("workflow "+p.Workflow().Name+", stage "+v.Stage+": "+v.Reason))
	}
	return err
}

func (s *Server) place(ns string, x *session.Session, sess, call string, p *engine.Policy) *flows.Place {
	return &flows.Place{NS: ns, Session: sess, Call: call, Policy: p, Seen: x}
}
