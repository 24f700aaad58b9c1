package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/composition"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/external"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/redact"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/seeded"
)

// Evaluate judges one call and measures how long that took. It never fails:
// what cannot be judged, also by a defect of the program, is denied and logged
// (policy engine spec 16).
func (p *Policy) Evaluate(ctx context.Context, in call.Input) (d Decision) {
	start := matching.Now()
	p.Decide(ctx, &in, &d)
	d.EvaluationTime = matching.Now() - start
	return d
}

// Decide is Evaluate for those who keep the time themselves: reading the clock
// twice can take longer than judging a call does. It writes over all of d and
// leaves d.EvaluationTime zero. It keeps neither in nor d, and writes nothing
// into in.
func (p *Policy) Decide(ctx context.Context, in *call.Input, d *Decision) {
	defer func() {
		if r := recover(); r != nil {
			chain := d.PolicyChain
			*d = p.panicDecision(in, r, debug.Stack())
			d.PolicyChain = chain
		}
	}()
	switch {
	case p.missing:
		*d = Decision{Action: string(document.Deny), Rule: ruleMissing, Reason: textMissing, PublicMessage: publicNotPermitted}
	case !p.decideDirectly(in, d):
		p.decideFully(ctx, in, d)
	}
}

// decideFully is the long way of Decide, for every policy and every call.
func (p *Policy) decideFully(ctx context.Context, in *call.Input, d *Decision) {
	*d = Decision{}
	e := matching.Evaluation{In: in, State: &matching.State{Ceiling: p.ceiling}}
	e.Begin()
	defer func() { d.PolicyChain = e.Chain }() // also where it panics (policy engine spec 17.1)
	p.judge(ctx, e, d)
	if (d.Allowed || d.Ask != nil) && p.guardrails != nil {
		p.guard(ctx, e, d)
	}
	d.Premises = e.Premises
	for _, line := range e.Trace {
		d.Trace = append(d.Trace, redact.Text(line))
	}
}

// judge asks everything that can deny and changes nothing: documents and
// backends, the GovernancePolicy, content hashes. An allow keeps the rule,
// backend or default that gave it, an ask the rule that asks. Decisions are
// written where the caller has them, because copying one costs as much as finding
// it.
func (p *Policy) judge(ctx context.Context, e matching.Evaluation, d *Decision) {
	p.judgeDocuments(ctx, e, d)
	if !d.Allowed && d.Ask == nil {
		return
	}
	if deny := p.checkGovernance(ctx, e); deny != nil {
		*d = *deny
		return
	}
	if (p.hashes != nil || e.In.ContentHash != nil) && e.OfTool() {
		if deny := p.checkContentHash(e); deny != nil {
			*d = *deny
			return
		}
	}
	if (p.ruleset != nil || p.sensitive != nil) && e.OfTool() {
		if p.judgeRuleset(e, d); !d.Allowed && d.Ask == nil {
			return
		}
	}
	// Last, since nobody is asked about what anything here denies.
	switch {
	case !p.governance.RequireHumanApproval:
	case d.Ask == nil:
		*d = *p.askCheck(e)
	default:
		d.askedToo(p.asking.AllowOnTimeout)
	}
}

// askedToo is for a call that something else asks about as well, once. A yes that
// nobody gave is one only where all that ask take it for one.
func (d *Decision) askedToo(allowOnTimeout bool) {
	if d.Ask.AllowOnTimeout && !allowOnTimeout {
		ask := *d.Ask
		ask.AllowOnTimeout, d.Ask = false, &ask
	}
}

// judgeDocuments is policy engine spec 7: rules, then backends, then the
// default.
func (p *Policy) judgeDocuments(ctx context.Context, e matching.Evaluation, d *Decision) {
	set, err := p.docs.SelectFor(e)
	if err != nil {
		*d = p.outOfScope(e, err)
		return
	}
	e.Confidence, e.Chain = set.Confidence, set.Chain
	rule, asks, err := p.docs.Decide(set, e)
	switch {
	case err != nil:
		name := ""
		if rule != nil {
			name = rule.Name
		}
		*d = p.errorDecision(e, name, err)
		return
	case rule != nil:
		p.decideByRule(set, rule.Rule, d)
	case len(p.backends) > 0 && p.decideByBackends(ctx, e, d):
	default:
		p.decideByDefault(set, e, d)
	}
	if d.Allowed && asks != nil {
		*d = Decision{}
		p.decideByRule(set, asks.Rule, d)
	}
}

// outOfScope is the decision where no documents can be selected.
func (p *Policy) outOfScope(e matching.Evaluation, err error) Decision {
	if !errors.Is(err, composition.ErrPathEscape) {
		return p.errorDecision(e, "", err)
	}
	if e.In.Explain {
		e.Explain("path: %v", err)
	}
	return Decision{
		Action:        string(document.Deny),
		Policy:        folderScoped,
		Rule:          rulePathEscape,
		Reason:        err.Error(),
		PublicMessage: publicMessages[CategoryPathEscape],
		Category:      CategoryPathEscape,
	}
}

// folderScoped is the policy name of decisions by a chain (policy engine spec
// 17.1).
const folderScoped = "folder-scoped"

func (p *Policy) decideByRule(set *composition.Ruleset, r *document.Rule, d *Decision) {
	d.Allowed = r.Action.Allows()
	d.Action = string(r.Action)
	d.Policy = r.Doc.Name
	d.MatchedRule = r.Name
	d.Rule = ruleFirstOfTheTree + r.Number
	d.Reason = r.Reason
	if set.Scoped {
		d.Policy = folderScoped
	}
	switch {
	case d.Allowed:
	case r.Action == document.Ask:
		d.Ask, d.Category, d.PublicMessage = p.asking, CategoryApproval, publicMessages[CategoryApproval]
	default:
		d.Category, d.PublicMessage = CategoryRule, publicNotPermitted
	}
}

// decideByDefault is policy engine spec 7.3.
func (p *Policy) decideByDefault(set *composition.Ruleset, e matching.Evaluation, d *Decision) {
	if p.docs.Strict && len(set.Docs) == 0 && !p.governance.Governed() && len(p.backends) == 0 && p.ruleset == nil && p.workflow == nil {
		d.Action, d.Policy, d.Rule, d.Reason = string(document.Deny), p.governance.Name, ruleNoPolicy, textNoPolicy
		d.Category, d.PublicMessage = CategoryNoPolicy, publicMessages[CategoryNoPolicy]
		return
	}
	byDefault(set, d)
	if e.In.Explain {
		e.Explain("default action of %s: %s", value.Quote(set.DefPolicy), set.Def)
	}
}

// byDefault writes the default action of a ruleset.
func byDefault(set *composition.Ruleset, d *Decision) {
	d.Allowed = set.Def.Allows()
	d.Action = string(set.Def)
	d.Policy = set.DefPolicy
	d.Rule = ruleDefault
	d.Reason = textDefault
	if set.Scoped {
		d.Policy = folderScoped
	}
	if !d.Allowed {
		d.Category, d.PublicMessage = CategoryDefault, publicNotPermitted
	}
}

// errorDecision is the fail-closed decision of policy engine spec 16.2. The
// error names types and places, never values of the call.
func (p *Policy) errorDecision(e matching.Evaluation, rule string, err error) Decision {
	p.logFailure(e, rule, textError, err)
	if e.In.Explain {
		e.Explain("error: %v", err)
	}
	category := CategoryPolicyError
	if errors.Is(err, external.ErrBackendTime) || errors.Is(err, matching.ErrSearchTime) {
		category = CategoryBudgetExhausted
	}
	return Decision{
		Allowed:       seeded.On(seeded.ErrorAllows),
		Action:        string(document.Deny),
		Policy:        p.Name(),
		Rule:          ruleError,
		Reason:        textError,
		PublicMessage: publicMessages[category],
		Category:      category,
		Error:         redact.Text(err.Error()),
		errorRule:     rule,
	}
}

// logFailure is policy engine spec 16.3, without the snapshot: what callers send stands in
// the audit, redacted, and in no log.
func (p *Policy) logFailure(e matching.Evaluation, rule, msg string, err error) {
	p.log.Error(msg,
		"error", redact.Text(err.Error()), "rule", rule, "policy_digest", p.digest.String(),
		"tool", redact.Text(e.Tool), "stack", string(debug.Stack()))
}

func (p *Policy) panicDecision(in *call.Input, cause any, stack []byte) Decision {
	p.log.Error(textError,
		"panic", redact.Text(fmt.Sprint(cause)), "policy_digest", p.digest.String(),
		"tool", redact.Text(in.Tool), "stack", string(stack))
	return Decision{
		Action:        string(document.Deny),
		Policy:        p.Name(),
		Rule:          ruleError,
		Reason:        textError,
		PublicMessage: publicMessages[CategoryPolicyError],
		Category:      CategoryPolicyError,
		Error:         "the evaluation panicked; the log of the node has the details",
	}
}
