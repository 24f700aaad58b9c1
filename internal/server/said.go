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
	d := &a.decision
	d.Allowed, d.Action, d.Policy, d.PolicyDigest = true, "allow", b.policy.Name(), b.policy.DigestText()
	d.EvaluationTime = words.SetDuration(&a.evaluation, b.decision.EvaluationTime)
	same := sameRule(b.decision.Rule, res.Rule) && (b.decision.Allowed || b.decision.Ask != nil) == (res.Code != session.Denied)
	if same {
		d.Action, d.Policy, d.Category, d.Backend = b.decision.Action, b.decision.Policy, b.decision.Category, b.decision.Backend
		d.PolicyChain, d.PublicMessage, d.Error = b.decision.PolicyChain, b.decision.PublicMessage, b.decision.Error
		d.Rules, d.RulesEvaluated = words.RuleRecords(b.decision.Records), int32(b.decision.RulesEvaluated)
		d.SideEffect, d.Source = b.decision.SideEffect, b.decision.Source
	}
	d.MatchedRule, d.Reason = b.policy.RuleTextFor(res.Rule, b.input)
	if same && isFree(res.Rule) { // the text of a backend or a guardrail, redacted by the engine
		d.MatchedRule, d.Reason = b.decision.MatchedRule, b.decision.Reason
	}
	switch res.Code {
	case session.Admitted, session.Queued:
		if same && b.decision.Ask != nil { // and somebody has said yes
			d.Action, d.Category, d.PublicMessage, d.Reason = "allow", "", "", "Approved: "+d.Reason
		}
		return d
	case session.ApprovalRequired:
		r := words.RefusalOf(res, &b.session.Pin.Limits, b.cmd)
		d.Allowed, d.Action, d.Category, d.PublicMessage = false, "ask", r.Category, r.Public
		d.Reason = cmp.Or(d.Reason, r.Reason)
		return d
	case session.Denied:
		d.Allowed = false
		if !same {
			d.Action, d.PublicMessage = "deny", publicNotPermitted
			freeDenials[res.Rule].tell(d)
		}
		if d.Reason == "" {
			d.Reason = "Policy denied by evaluator"
		}
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
	1007: {"workflow:", "", false, engine.CategoryRule, publicNotPermitted, "Denied by the workflow of the session" + notRemembered},
	1005: {"guardrail:", "", true, engine.CategoryPolicyError, publicFailed, "Policy evaluation error (fail-closed): a guardrail could not judge"},
}

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
func (f *freeDenial) tell(d *v1.Decision) {
	if f == nil {
		return
	}
	d.Backend, d.Category, d.PublicMessage, d.Reason = f.backend, f.category, f.public, f.reason
	if f.by != "" {
		d.Policy = strings.TrimSuffix(f.by, ":")
	}
}
