package server

import (
	"cmp"
	"strings"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// said is the decision in words. What is repeated must read as it did the
// first time, so everything is made from what is remembered: the outcome, the
// number of the rule, the pinned policy, and the call.
func (b *begin) said(res *session.Result, a *beginAnswer) *v1.Decision {
	d, was := &a.decision, b.recalled(res)
	d.Allowed, d.Action, d.Policy, d.PolicyDigest = true, cmp.Or(was.Action, "allow"), was.Policy, b.policy.DigestText()
	d.EvaluationTime = words.SetDuration(&a.evaluation, b.decision.EvaluationTime)
	d.MatchedRule, d.Reason, d.Category, d.Backend = was.MatchedRule, was.Reason, was.Category, was.Backend
	d.PolicyChain, d.PublicMessage, d.Error = was.PolicyChain, was.PublicMessage, was.Error
	d.Rules, d.RulesEvaluated = words.RuleRecords(was.Records), int32(was.RulesEvaluated)
	d.SideEffect, d.Source = was.SideEffect, was.Source
	switch res.Code {
	case session.Admitted, session.Queued:
		if was.Ask != nil { // and somebody has said yes
			d.Action, d.Category, d.PublicMessage, d.Reason = "allow", "", "", "Approved: "+d.Reason
		}
		return d
	case session.ApprovalRequired:
		r := words.RefusalOf(res, &b.session.Pin.Limits, b.cmd)
		d.Allowed, d.Action, d.Category, d.PublicMessage = false, "ask", r.Category, r.Public
		d.Reason = cmp.Or(d.Reason, r.Reason)
		return d
	case session.Denied:
		d.Allowed, d.Reason = false, cmp.Or(d.Reason, "Policy denied by evaluator")
		return d
	}
	// A rule let it pass and a number did not: no rule decided.
	r := words.RefusalOf(res, &b.session.Pin.Limits, b.cmd)
	d.Allowed, d.Action, d.MatchedRule, d.Backend, d.Source = false, "deny", "", "", ""
	d.Category, d.PublicMessage, d.Reason, d.Error = r.Category, r.Public, r.Reason, ""
	if own, ok := limitText(b.policy, res.Code, &b.session.Pin.Limits, b.cmd.Tool); ok {
		d.MatchedRule, d.Source, d.Reason = own.Rule, own.Source, own.Reason
	}
	return d
}

// recalled is the decision that a call was given: the one of now, unless that is another
// than the remembered one. Then that one is made again from what is remembered.
func (b *begin) recalled(res *session.Result) *engine.Decision {
	now, denied := b.decision, res.Code == session.Denied
	if sameRule(now.Rule, res.Rule) && (now.Allowed || now.Ask != nil) != denied {
		return now
	}
	was := &engine.Decision{}
	switch res.Code {
	case session.AttemptLimit, session.SessionClosed, session.Stopped: // before any rule
	default:
		*was = b.policy.Recall(res.Rule, *b.input)
	}
	if denied {
		was.Action, was.PublicMessage = cmp.Or(was.Action, "deny"), cmp.Or(was.PublicMessage, publicNotPermitted)
		freeDenials[res.Rule].tell(was, b.policy)
	}
	was.Policy = cmp.Or(was.Policy, b.policy.Name())
	return was
}

// A freeDenial is how a denial reads whose reason was the words of a policy
// backend or of a guardrail, when they are asked again and say something else.
// What they said is not remembered; who it was and whether they could judge is.
type freeDenial struct {
	by       string // of Decision.Policy; all of them if it ends with a colon
	backend  string
	failed   bool // could not judge, which denies (policy engine spec 16.2)
	category string
	public   string
	reason   string
}

const (
	publicNotPermitted = "Action not permitted by governance policy."
	publicFailed       = "Policy evaluation error."
	notRemembered      = "; its words of that time are not remembered"
	byWorkflows        = "workflow:"
)

// freeDenials are the numbers under which such denials are remembered, beside
// those that package engine gives to its own texts. They are part of what is
// stored: never renumber them.
var freeDenials = map[uint16]*freeDenial{
	1000: {"external:cedar", "cedar", false, engine.CategoryBackend, publicNotPermitted, "Denied by the policy backend cedar" + notRemembered},
	1001: {"external:opa", "opa", false, engine.CategoryBackend, publicNotPermitted, "Denied by the policy backend opa" + notRemembered},
	1002: {"guardrail:", "", false, engine.CategoryGuardrail, "Content blocked by governance policy.", "Denied by a guardrail" + notRemembered},
	1003: {"", "cedar", true, engine.CategoryPolicyError, publicFailed, "Policy evaluation error (fail-closed): the policy backend cedar could not judge"},
	1004: {"", "opa", true, engine.CategoryPolicyError, publicFailed, "Policy evaluation error (fail-closed): the policy backend opa could not judge"},
	1007: {byWorkflows, "", false, engine.CategoryRule, publicNotPermitted, "Denied by the workflow of the session" + notRemembered},
	1005: {"guardrail:", "", true, engine.CategoryPolicyError, publicFailed, "Policy evaluation error (fail-closed): a guardrail could not judge"},
}

// ruleWorkflow is the number under which a call is remembered that a workflow denied.
const ruleWorkflow = 1007

// ruleModified is the number under which a call is remembered that was allowed
// with arguments that a guardrail had changed. The arguments are not remembered:
// on a repeat the guardrails are asked for them again, and all checks judge what
// they say.
const ruleModified = 1006

// freeRule returns the number of a denial in somebody else's words, or 0.
func freeRule(d *engine.Decision) uint16 {
	for n, f := range freeDenials {
		by := d.Policy == f.by || strings.HasSuffix(f.by, ":") && strings.HasPrefix(d.Policy, f.by) || f.by == ""
		if by && d.Backend == f.backend && (d.Error != "") == f.failed {
			return n
		}
	}
	return 0
}

// isFree reports whether the number of a decision does not tell its reason.
func isFree(rule uint16) bool { return rule == 0 || rule == ruleModified || freeDenials[rule] != nil }

// sameRule reports whether a decision was made by what a remembered one was
// made by. Before free denials had numbers they were remembered under none.
func sameRule(rule, remembered uint16) bool {
	return rule == remembered || remembered == 0 && isFree(rule) && rule != ruleModified
}

// tell says in a decision what is known of it. It does nothing for nil.
func (f *freeDenial) tell(d *engine.Decision, p *engine.Policy) {
	if f == nil {
		return
	}
	d.Backend, d.Category, d.PublicMessage, d.Reason = f.backend, f.category, f.public, f.reason
	if d.Policy = strings.TrimSuffix(f.by, ":"); f.by == byWorkflows && p.Workflow() != nil {
		d.Policy, d.Source = byWorkflows+p.Workflow().Name, "workflow"
	}
}
