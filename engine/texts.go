package engine

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/composition"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/value"
)

// The words of decisions, made from numbers.

// Numbers of the texts of a decision. A number and the call that it was given
// for make the same words again on every node, so that a remembered decision
// needs no text. They are part of what is stored: never renumber them.
const (
	ruleNone         uint16 = 0 // free text: backends and guardrails
	ruleDefault      uint16 = 1
	ruleError        uint16 = 2
	ruleApprovalTool uint16 = 3
	ruleApprovalAny  uint16 = 4
	ruleAllowedTools uint16 = 5
	ruleMaxToolCalls uint16 = 6
	ruleConfidence   uint16 = 7
	rulePathEscape   uint16 = 8
	ruleNoPolicy     uint16 = 9
	ruleTimeout      uint16 = 10
	ruleHashUnknown  uint16 = 11
	ruleHashMissing  uint16 = 12
	ruleHashMismatch uint16 = 13
	ruleMissing      uint16 = 14 // never remembered
	// 1000 to 1023 are left to who remembers decisions in the words of others.
	rulePatternTool    uint16 = 1024 // and the index of the pattern
	rulePatternInput   uint16 = 3072
	ruleFirstOfTheTree uint16 = 8192 // and the place of the rule, files by path
)

// Fixed texts. They follow the reference implementation to the letter.
const (
	textDefault  = "No rules matched; default action applied"
	textError    = "Policy evaluation error — access denied (fail closed)"
	textNoPolicy = "No policy applies to this path; strict mode denies what no policy covers"
	textNoReason = "Policy denied by evaluator"
	textMissing  = "The policy is not kept any more"
)

func textApproval(tool string) string {
	if tool == "" {
		return "Execution requires human approval per governance policy"
	}
	return "Tool '" + tool + "' requires human approval per governance policy"
}

func textNotAllowed(tool string, allowed []string) string {
	return "Tool '" + tool + "' not in allowed list: " + value.ListOf(allowed, value.OfString).Repr()
}

func textPatternTool(pattern, tool string) string {
	if tool == "" {
		return "Blocked pattern '" + pattern + "' detected in tool arguments"
	}
	return "Blocked pattern '" + pattern + "' detected in tool '" + tool + "' arguments"
}

func textHashUnknown(tool string) string {
	return "Tool '" + tool + "' has no registered content hash (possible alias or wrapper)"
}

func textHashMissing(tool string) string {
	return "Tool '" + tool + "' call is missing content_hash metadata — cannot verify integrity"
}

func textPatternInput(pattern string) string { return "Blocked pattern detected: " + pattern }

func textMaxToolCalls(limit int64) string {
	return "Max tool calls exceeded (" + strconv.FormatInt(limit, 10) + ")"
}

// textTimeout names the limit and the time (adapter contract 20.3).
func textTimeout(limit, elapsed time.Duration) string {
	return fmt.Sprintf("Timeout exceeded (%ds): elapsed %.1fs", int64(limit/time.Second), elapsed.Seconds())
}

func textConfidence(observed, threshold float64) string {
	return fmt.Sprintf("Confidence %.2f below threshold %.2f", observed, threshold)
}

// RuleName returns the name of the rule that number n stands for; empty where it is none
// of the tree.
func (p *Policy) RuleName(n uint16) string {
	if i := int(n) - int(ruleFirstOfTheTree); i >= 0 && i < len(p.docs.Rules) {
		return p.docs.Rules[i].Name
	}
	return ""
}

// Recall returns the decision that number n stands for, given to the call that it was
// about: what else was known then, of facts and of the hour, has no part in it. Number 0
// is what a ruleset says. Of what backends and guardrails have said it knows nothing, nor
// of why something could not be judged, and a number that is none is nobody's decision.
func (p *Policy) Recall(n uint16, in call.Input) (d Decision) {
	if p.missing {
		p.Decide(context.Background(), &in, &d)
		return d
	}
	in.Explain = false
	e := matching.Begun(&in)
	set, err := p.docs.SelectFor(e)
	if err == nil {
		e.Confidence, e.Chain = set.Confidence, set.Chain
		p.recall(n, set, e, &d)
	} else if n == rulePathEscape {
		d = p.outOfScope(e, err)
	}
	if n == ruleError {
		d = Decision{
			Action: string(document.Deny), Policy: p.Name(), Rule: n, Reason: textError,
			PublicMessage: publicMessages[CategoryPolicyError], Category: CategoryPolicyError,
		}
	}
	passed := (d.Allowed || d.Ask != nil) && n != ruleApprovalTool && n != ruleApprovalAny // who asks last has asked the ruleset before
	if (passed || n == ruleNone) && e.OfTool() {
		p.judgeRuleset(e, &d)
	}
	if d.Ask != nil && p.governance.RequireHumanApproval {
		d.askedToo(p.asking.AllowOnTimeout)
	}
	d.PolicyChain = e.Chain
	return d
}

// recall is Recall for documents and checks.
func (p *Policy) recall(n uint16, set *composition.Ruleset, e matching.Evaluation, d *Decision) {
	g := p.governance
	deny := func(category, reason string) { *d = *p.denyCheck(e, category, n, reason) }
	if i := int(n) - int(ruleFirstOfTheTree); i >= 0 {
		if i < len(p.docs.Rules) {
			p.decideByRule(set, p.docs.Rules[i], d)
		}
		return
	}
	if i := int(n) - int(rulePatternInput); i >= 0 && i < len(g.BlockedPatterns) {
		deny(CategoryPatternInput, textPatternInput(g.BlockedPatterns[i].Text))
		return
	}
	if i := int(n) - int(rulePatternTool); i >= 0 && i < len(g.BlockedPatterns) {
		deny(CategoryPatternTool, textPatternTool(g.BlockedPatterns[i].Text, e.Tool))
		return
	}
	switch n {
	case ruleDefault, ruleNoPolicy:
		p.decideByDefault(set, e, d)
	case ruleApprovalTool, ruleApprovalAny:
		if *d = *p.needsApproval(e); g.Approval != nil {
			*d = *p.askCheck(e)
		}
	case ruleAllowedTools:
		deny(CategoryNotAllowedTool, textNotAllowed(e.Tool, g.AllowedTools))
	case ruleMaxToolCalls:
		deny(CategoryMaxToolCalls, textMaxToolCalls(p.limits.MaxToolCalls))
	case ruleConfidence:
		observed, _, _ := confidenceOf(e)
		deny(CategoryConfidence, textConfidence(observed, e.Confidence))
	case ruleTimeout:
		var elapsed time.Duration
		if f := e.In.Facts; f != nil {
			elapsed = f.Elapsed
		}
		deny(CategoryTimeout, textTimeout(p.limits.Timeout, elapsed))
	case ruleHashUnknown:
		deny(CategoryContentHash, textHashUnknown(e.Tool))
	case ruleHashMissing:
		deny(CategoryContentHash, textHashMissing(e.Tool))
	case ruleHashMismatch:
		reason := "Tool '" + e.Tool + "' content hash mismatch (possible tampering or wrapper)" // another is registered by now
		if v := p.hashes.check(e.In, e.Tool); v.rule == ruleHashMismatch {
			reason = v.reason
		}
		deny(CategoryContentHash, reason)
	}
}
