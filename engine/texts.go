package engine

import (
	"fmt"
	"strconv"
	"time"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/composition"
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

// RuleTextFor returns the rule and the reason that number n stands for, given to
// the call that the decision was about. Free texts, of backends and guardrails,
// have no number and cannot be made again.
func (p *Policy) RuleTextFor(n uint16, in call.Input) (matchedRule, reason string) {
	if p.missing {
		return "", textMissing
	}
	e := matching.Begun(&in)
	g := p.governance
	if i := int(n) - int(ruleFirstOfTheTree); i >= 0 {
		if i < len(p.docs.Rules) {
			return p.docs.Rules[i].Name, p.docs.Rules[i].Reason
		}
		return "", ""
	}
	if i := int(n) - int(rulePatternInput); i >= 0 && i < len(g.BlockedPatterns) {
		return "", textPatternInput(g.BlockedPatterns[i].Text)
	}
	if i := int(n) - int(rulePatternTool); i >= 0 && i < len(g.BlockedPatterns) {
		return "", textPatternTool(g.BlockedPatterns[i].Text, e.Tool)
	}
	switch n {
	case ruleDefault:
		return "", textDefault
	case ruleError:
		return "", textError
	case ruleApprovalTool:
		return "", textApproval(e.Tool)
	case ruleApprovalAny:
		return "", textApproval("")
	case ruleAllowedTools:
		return "", textNotAllowed(e.Tool, g.AllowedTools)
	case ruleMaxToolCalls:
		return "", textMaxToolCalls(p.limits.MaxToolCalls)
	case ruleConfidence:
		observed, _, _ := confidenceOf(e)
		set, err := p.docs.SelectFor(e)
		if err != nil {
			return "", ""
		}
		return "", textConfidence(observed, set.Confidence)
	case rulePathEscape:
		return "", composition.ErrPathEscape.Error()
	case ruleNoPolicy:
		return "", textNoPolicy
	case ruleTimeout:
		var elapsed time.Duration
		if in.Facts != nil {
			elapsed = in.Facts.Elapsed
		}
		return "", textTimeout(p.limits.Timeout, elapsed)
	case ruleHashUnknown:
		return "", textHashUnknown(e.Tool)
	case ruleHashMissing:
		return "", textHashMissing(e.Tool)
	case ruleHashMismatch:
		if v := p.hashes.check(&in, e.Tool); v.rule == ruleHashMismatch {
			return "", v.reason
		}
		return "", "Tool '" + e.Tool + "' content hash mismatch (possible tampering or wrapper)" // another is registered by now
	}
	return "", ""
}
