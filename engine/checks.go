package engine

import (
	"context"
	"errors"
	"fmt"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/redact"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// A check is one constraint of the GovernancePolicy.
type check uint8

const (
	approvalCheck check = iota
	allowedToolsCheck
	patternsCheck
	callCountCheck
	timeoutCheck
	confidenceCheck
)

// The orders of checks. Both hold the same checks: see Order.
var (
	interceptorOrder = [...]check{approvalCheck, allowedToolsCheck, patternsCheck, callCountCheck, timeoutCheck, confidenceCheck}
	preExecuteOrder  = [...]check{callCountCheck, timeoutCheck, patternsCheck, approvalCheck, confidenceCheck, allowedToolsCheck}
)

// checkGovernance runs the checks; the first denial ends it.
func (p *Policy) checkGovernance(ctx context.Context, e matching.Evaluation) *Decision {
	if p.unchecked && !e.In.CheckLimits {
		return p.checkConfidence(e)
	}
	order := &interceptorOrder
	if e.In.Order == call.OrderPreExecute {
		order = &preExecuteOrder
	}
	for _, c := range order {
		if d := p.check(ctx, e, c); d != nil {
			return d
		}
	}
	return nil
}

// check returns a denial, or nil where the call passes. It is a switch and no table
// of functions, so that the state of an evaluation stays on the stack.
func (p *Policy) check(ctx context.Context, e matching.Evaluation, c check) *Decision {
	switch c {
	case approvalCheck:
		return p.checkApproval(e)
	case allowedToolsCheck:
		return p.checkAllowedTools(e)
	case patternsCheck:
		return p.checkPatterns(ctx, e)
	case callCountCheck:
		return p.checkCallCount(e)
	case timeoutCheck:
		return p.checkTimeout(e)
	}
	return p.checkConfidence(e)
}

func (p *Policy) denyCheck(e matching.Evaluation, category string, rule uint16, reason string) *Decision {
	if e.In.Explain {
		e.Explain("governance policy %s: %s", value.Quote(p.governance.Name), reason)
	}
	return &Decision{
		Action:        string(document.Deny),
		Policy:        p.governance.Name,
		Rule:          rule,
		Reason:        reason,
		PublicMessage: publicMessages[category],
		Category:      category,
	}
}

// checkApproval denies what needs approval where the policy has no way to ask
// for it.
func (p *Policy) checkApproval(e matching.Evaluation) *Decision {
	if !p.governance.RequireHumanApproval || p.governance.Approval != nil {
		return nil
	}
	return p.needsApproval(e)
}

// askCheck is the same with a way to ask.
func (p *Policy) askCheck(e matching.Evaluation) *Decision {
	d := p.needsApproval(e)
	d.Action, d.Ask = string(document.Ask), p.asking
	return d
}

func (p *Policy) needsApproval(e matching.Evaluation) *Decision {
	if e.In.Order == call.OrderPreExecute || !e.OfTool() {
		return p.denyCheck(e, CategoryApproval, ruleApprovalAny, textApproval(""))
	}
	return p.denyCheck(e, CategoryApproval, ruleApprovalTool, textApproval(e.Tool))
}

func (p *Policy) checkAllowedTools(e matching.Evaluation) *Decision {
	if !e.OfTool() || p.governance.Permits(e.Tool) {
		return nil
	}
	return p.denyCheck(e, CategoryNotAllowedTool, ruleAllowedTools, textNotAllowed(e.Tool, p.governance.AllowedTools))
}

func (p *Policy) checkPatterns(ctx context.Context, e matching.Evaluation) *Decision {
	if len(p.governance.BlockedPatterns) == 0 {
		return nil
	}
	args := e.Arguments()
	if args.Kind() == value.Null {
		args = emptyArguments
	}
	if e.Ceiling != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, e.Ceiling-e.Searched())
		defer cancel()
	}
	forms := pattern.FormsOf(args)
	if !e.OfTool() {
		forms = pattern.FormsOfTexts(args)
	}
	hit, found, err := p.governance.Patterns.FirstHit(ctx, forms)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return new(p.errorDecision(e, "", matching.ErrSearchTime))
	case err != nil:
		return new(p.errorDecision(e, "", err))
	case !found:
		return nil
	}
	text := p.governance.BlockedPatterns[hit.Index].Text
	category, rule, reason := CategoryPatternTool, rulePatternTool, textPatternTool(text, e.Tool)
	if e.In.Order == call.OrderPreExecute {
		category, rule, reason = CategoryPatternInput, rulePatternInput, textPatternInput(text)
	}
	d := p.denyCheck(e, category, rule+uint16(hit.Index), reason)
	if hit.Limited {
		// What could not be searched to the end is taken as found, and said so.
		d.Rule, d.Error = ruleNone, "the pattern ran into the limits of the backtracking engine"
		d.Reason += " (taken as found: the search ran into its limits)"
	}
	return d
}

// emptyArguments is what a call without arguments is matched as.
var emptyArguments = value.OfMap()

// checkCallCount judges the count where nobody else will: on Facts when asked
// to, and a limit of 0 wherever there is no session to count in.
func (p *Policy) checkCallCount(e matching.Evaluation) *Decision {
	if !e.OfTool() && e.In.Kind != call.KindModel {
		return nil
	}
	var count int64
	switch f := e.In.Facts; {
	case f == nil:
	case e.In.CheckLimits:
		count = f.CallCount
	default:
		return nil
	}
	if count < p.limits.MaxToolCalls {
		return nil
	}
	return p.denyCheck(e, CategoryMaxToolCalls, ruleMaxToolCalls, textMaxToolCalls(p.limits.MaxToolCalls))
}

func (p *Policy) checkTimeout(e matching.Evaluation) *Decision {
	f := e.In.Facts
	if f == nil || !e.In.CheckLimits || f.Elapsed <= p.limits.Timeout {
		return nil
	}
	return p.denyCheck(e, CategoryTimeout, ruleTimeout, textTimeout(p.limits.Timeout, f.Elapsed))
}

func (p *Policy) checkConfidence(e matching.Evaluation) *Decision {
	observed, given, err := confidenceOf(e)
	switch {
	case err != nil:
		return new(p.errorDecision(e, "", err))
	case !given || observed >= e.Confidence:
		return nil
	}
	return p.denyCheck(e, CategoryConfidence, ruleConfidence, textConfidence(observed, e.Confidence))
}

var errConfidence = errors.New("context.confidence must be a number")

// confidenceOf reads context.confidence. A bool is no number: it would pass
// for full confidence.
func confidenceOf(e matching.Evaluation) (observed float64, given bool, err error) {
	v := e.In.Context.Find("confidence")
	if v == nil || v.Is(value.Null) {
		return 0, false, nil
	}
	if v.Kind() != value.Number {
		return 0, true, fmt.Errorf("%w, got %s", errConfidence, source.TypeName(*v))
	}
	f, ok := v.AsFloat()
	if !ok {
		return 0, true, errConfidence
	}
	return f, true, nil
}

// checkContentHash verifies the identity of the tool (adapter contract 5.5).
// A service that registers hashes by itself, beside a tree without any,
// verifies those it has.
func (p *Policy) checkContentHash(e matching.Evaluation) *Decision {
	if p.hashes == nil {
		if _, known := e.In.ContentHash(e.Tool); !known {
			return nil
		}
	}
	verdict := p.hashes.check(e.In, e.Tool)
	switch {
	case verdict.unknown:
		p.log.Warn("no content hash is registered for a tool, allowed in mode warn", "tool", redact.Text(e.Tool))
		return nil
	case verdict.allowed:
		return nil
	}
	return p.denyCheck(e, CategoryContentHash, verdict.rule, verdict.reason)
}
