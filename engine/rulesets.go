package engine

import (
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/edictum/workflow"
	"example.com/govnode/engine/governance"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/redact"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// Rulesets of Edictum in a tree. All of them are one: they are put together in the
// order of their paths, and one that another extends is only its parent.

// isRuleset reports whether a file is one of Edictum.
func isRuleset(n *source.Node) bool {
	api, _ := n.Get("apiVersion")
	return api != nil && strings.HasPrefix(api.Text, "edictum/")
}

func (c *compiler) loadRuleset(f source.File) {
	d, err := edictum.ParseWithin(f.Path, f.Content, &c.searches)
	if err != nil {
		var p *edictum.Problem
		errors.As(err, &p)
		c.problems = append(c.problems, source.Problem{Path: f.Path, Line: p.Line, Field: p.Field, Message: p.Message})
		return
	}
	for _, w := range d.Warnings {
		c.warnf(f.Path, 0, "", "%s", w)
	}
	c.rulesets = append(c.rulesets, d)
}

func (c *compiler) loadWorkflow(f source.File) {
	d, err := workflow.Parse(f.Content)
	if err != nil {
		var p *edictum.Problem
		errors.As(err, &p)
		c.problems = append(c.problems, source.Problem{Path: f.Path, Line: p.Line, Field: p.Field, Message: p.Message})
		return
	}
	if c.policy.workflow != nil {
		c.addf(f.Path, 0, "metadata.name", "there is a workflow in this tree already, %s; a session goes through one", c.policy.workflow.Name)
		return
	}
	c.policy.workflow = d
}

// Workflow is the workflow of a tree; nil without one. Where a session stands in it is
// known to whoever keeps that, so no decision of a Policy looks at it.
func (p *Policy) Workflow() *workflow.Definition { return p.workflow }

// StageApproval is how people are asked about a stage of the workflow.
func (p *Policy) StageApproval() governance.Approval {
	if p.governance.Approval != nil {
		return *p.governance.Approval
	}
	return governance.DefaultApproval()
}

// maxRules bounds the rules of all rulesets of a tree, those of a parent counted with each
// of its children. Without parents the largest tree has no room for as many.
const maxRules = 50_000

// linkRulesets makes one ruleset of all.
func (c *compiler) linkRulesets() {
	if len(c.rulesets) == 0 {
		if c.policy.workflow != nil && !c.policy.governance.Governed() && len(c.documents) == 0 {
			c.policy.governance = governanceOf(edictum.DefaultLimits())
		}
		return
	}
	byName, parents := map[string]*edictum.Document{}, map[string]bool{}
	for _, d := range c.rulesets {
		byName[d.Name] = d
		if d.Extends != "" {
			parents[d.Extends] = true
		}
	}
	var whole []*edictum.Document
	rules := 0
	for _, d := range c.rulesets {
		if parents[d.Name] && byName[d.Name] != d {
			c.addf(d.Source(), 0, "metadata.name", "%s is named %s too, and one of the two is extended; give each ruleset a name of its own", byName[d.Name].Source(), d.Name)
			return
		}
		// Of parents too, since those in a circle are nobody's.
		extended, err := edictum.Extend(d, func(name string) *edictum.Document { return byName[name] })
		if err != nil {
			c.refuseRuleset(d, err)
			return
		}
		if rules += len(extended.Rules); rules > maxRules {
			c.addf(d.Source(), 0, "extends", "the rulesets up to here have more than %d rules, those of a parent counted with each of its children; let fewer extend it", maxRules)
			return
		}
		if !parents[d.Name] {
			whole = append(whole, extended)
		}
	}
	doc, _, err := edictum.Compose(whole...)
	if err != nil {
		c.refuseRuleset(c.rulesets[0], err)
		return
	}
	rs, err := edictum.Compile(doc)
	if err != nil {
		c.refuseRuleset(c.rulesets[0], err)
		return
	}
	c.policy.ruleset, c.policy.rulesetDoc = rs, doc
	c.checkRulesetTimeouts(doc)
	if !c.policy.governance.Governed() {
		c.policy.governance = governanceOf(rs.Limits())
	}
}

func (c *compiler) refuseRuleset(d *edictum.Document, err error) {
	field := ""
	if p := (*edictum.Problem)(nil); errors.As(err, &p) {
		field = p.Field
	}
	c.addf(d.Source(), 0, field, "%v", err)
}

// checkRulesetTimeouts refuses, in strict mode, a yes that nobody gave.
func (c *compiler) checkRulesetTimeouts(doc *edictum.Document) {
	for _, r := range doc.Rules {
		switch {
		case r.Action != edictum.Ask || !r.AllowOnTimeout:
		case c.strict:
			c.addf(r.Source, 0, r.ID, "rule '%s': timeout_action must be block in strict mode", r.ID)
		default:
			c.warnf(r.Source, 0, r.ID, "rule '%s': a call that nobody has decided on after %d s is allowed; remove timeout_action: allow to block it", r.ID, r.Timeout)
		}
	}
}

// governanceOf is what holds beside a ruleset alone: its own limits, and none that its
// author did not write.
func governanceOf(l edictum.Limits) *governance.Policy {
	g := governance.Default()
	g.MaxTokens, g.TimeoutSeconds = governance.MaxTokenLimit, governance.MaxTimeoutSeconds
	g.MaxConcurrent, g.BackpressureThreshold = governance.MaxConcurrentCalls, governance.MaxConcurrentCalls
	g.ConfidenceThreshold, g.DriftThreshold = 0, 0
	g.MaxToolCalls, g.MaxAttempts, g.MaxCallsPerTool = l.ToolCalls.N, l.Attempts.N, perTool(l)
	g.Scan = governance.Scan{}
	return g
}

func perTool(l edictum.Limits) map[string]int64 {
	all := map[string]int64{}
	for tool, limit := range l.PerTool {
		all[tool] = limit.N
	}
	return all
}

// joinRulesetLimits lowers the limits of a GovernancePolicy to those of the ruleset
// beside it.
func (c *compiler) joinRulesetLimits(perToolOf map[string]int64) map[string]int64 {
	if c.policy.ruleset == nil {
		return perToolOf
	}
	l, p := c.policy.ruleset.Limits(), &c.policy.limits
	p.MaxToolCalls, p.MaxAttempts = min(p.MaxToolCalls, l.ToolCalls.N), min(p.MaxAttempts, l.Attempts.N)
	all := maps.Clone(perToolOf)
	if all == nil {
		all = map[string]int64{}
	}
	limits := perTool(l)
	for _, tool := range slices.Sorted(maps.Keys(limits)) {
		n := limits[tool]
		if problem := governance.ToolNameProblem(tool); problem != "" {
			c.addf(c.policy.rulesetDoc.Source(), 0, "limits.max_calls_per_tool", "%s", problem)
		}
		if has, ok := all[tool]; !ok || n < has {
			all[tool] = n
		}
	}
	return all
}

// sensitiveReads is the built-in rule of a GovernancePolicy; nil where it is off.
func sensitiveReads(g *governance.SensitiveReads) *edictum.Sensitive {
	if g == nil {
		return nil
	}
	s := edictum.DefaultSensitive()
	if g.Paths != nil {
		s.Paths = g.Paths
	}
	if g.Commands != nil {
		s.Commands = g.Commands
	}
	return &s
}

// judgeRuleset asks the ruleset, and the rule that is built in, about a call that is
// allowed or asked about so far. A block takes the place of the decision, an ask where
// nobody asks yet.
func (p *Policy) judgeRuleset(e matching.Evaluation, d *Decision) {
	c := rulesetCall(e)
	if p.sensitive != nil {
		if reason, denied := p.sensitive.Denies(&c); denied {
			if e.In.Explain {
				e.Explain("governance policy %s: %s", value.Quote(p.governance.Name), reason)
			}
			*d = Decision{
				Action: string(document.Deny), Policy: p.governance.Name, MatchedRule: "deny_sensitive_reads", Reason: reason,
				PublicMessage: publicNotPermitted, Category: CategoryRule, PolicyChain: d.PolicyChain, Source: "builtin",
			}
			return
		}
	}
	if p.ruleset == nil {
		return
	}
	v := p.ruleset.Before(&c)
	d.Records, d.RulesEvaluated, d.SideEffect = append(v.Records, v.Candidates...), v.Evaluated, v.SideEffect.String()
	if f := e.In.Facts; f != nil && v.Action != edictum.Block {
		would := p.ruleset.Would(e.Tool, f.Attempts, f.CallCount, f.Read(call.ToolCalls, e.Tool))
		d.Records = append(d.Records, would...)
	}
	if e.In.Explain {
		for _, r := range d.Records {
			e.Explain("ruleset %s: %s", value.Quote(p.rulesetDoc.Name), explained(r))
		}
	}
	switch {
	case v.Action == edictum.Allow:
		return
	case v.Action == edictum.Ask && d.Ask != nil:
		d.askedToo(v.AllowOnTimeout)
		return
	}
	*d = Decision{
		Action: string(document.Deny), Policy: p.rulesetDoc.Name, MatchedRule: v.Rule, Reason: v.Reason,
		PublicMessage: publicNotPermitted, Category: CategoryRule, PolicyChain: d.PolicyChain,
		Records: d.Records, RulesEvaluated: d.RulesEvaluated, SideEffect: d.SideEffect, Source: v.Source,
	}
	if v.PolicyError {
		d.Category, d.PublicMessage = CategoryPolicyError, publicMessages[CategoryPolicyError]
		d.Error, d.errorRule = fmt.Sprintf("rule %s could not be judged, and applies", v.Rule), v.Rule
	}
	if v.Action != edictum.Ask {
		return
	}
	ask := governance.DefaultApproval()
	if p.governance.Approval != nil {
		ask = *p.governance.Approval
	}
	ask.Timeout = min(max(time.Duration(v.Timeout)*time.Second, governance.MinApprovalTimeout), governance.MaxApprovalTimeout)
	ask.AllowOnTimeout = v.AllowOnTimeout
	d.Action, d.Ask, d.Category, d.PublicMessage = string(document.Ask), &ask, CategoryApproval, publicMessages[CategoryApproval]
}

// Reviews tells whether a rule of an Edictum ruleset looks at what a call returns. Only
// calls of tools are looked at.
func (p *Policy) Reviews(in *call.Input) bool {
	if p.ruleset == nil {
		return false
	}
	e := matching.Begun(in)
	return e.OfTool() && p.ruleset.Reviews(e.Tool)
}

// WantsOutput tells whether a rule looks at what a call returns, or a gate of a workflow.
func (p *Policy) WantsOutput(in *call.Input) bool {
	if p.ruleset == nil && p.workflow == nil {
		return false
	}
	e := matching.Begun(in)
	return p.Reviews(in) || p.workflow != nil && e.OfTool() && p.workflow.Looks(e.Tool)
}

// ReviewsAny tells whether there is a tool of which Reviews is true.
func (p *Policy) ReviewsAny() bool { return p.ruleset != nil && p.ruleset.ReviewsAny() }

// Review judges what a call has returned by the post rules of the ruleset. The call has
// run: nothing here refuses it. What cannot be judged, also by a defect of the program,
// is not shown.
func (p *Policy) Review(in call.Input, out Output) (res Review) {
	defer func() {
		if r := recover(); r != nil {
			p.log.Error(textError, "panic", redact.Text(fmt.Sprint(r)), "policy_digest", p.digest.String(),
				"tool", redact.Text(in.Tool), "stack", string(debug.Stack()))
			res = edictum.Unjudged("it could not be judged")
		}
	}()
	if p.ruleset == nil {
		return Review{Output: out.Value, Passed: true}
	}
	c := rulesetCall(matching.Begun(&in))
	return p.ruleset.After(&c, out)
}

// A RulesetLimit is how a ruleset says that a limit of its own is reached.
type RulesetLimit struct{ Rule, Source, Reason string }

// AttemptsReached is what the ruleset says of its limit of attempts, where that is the
// one that is enforced.
func (p *Policy) AttemptsReached(enforced int64) (RulesetLimit, bool) {
	if p.ruleset == nil || p.ruleset.Limits().Attempts.N != enforced {
		return RulesetLimit{}, false
	}
	return RulesetLimit{Rule: "max_attempts", Source: "attempt_limit", Reason: edictum.AttemptText(enforced)}, true
}

// CallsReached is AttemptsReached for the limit of calls.
func (p *Policy) CallsReached(enforced int64) (RulesetLimit, bool) {
	if p.ruleset == nil {
		return RulesetLimit{}, false
	}
	switch l := p.ruleset.Limits().ToolCalls; {
	case l.N != enforced:
		return RulesetLimit{}, false
	case l.Rule != "":
		return RulesetLimit{Rule: l.Rule, Source: "yaml_session", Reason: l.Message}, true
	}
	return RulesetLimit{Rule: "max_tool_calls", Source: "operation_limit", Reason: edictum.CallText(enforced)}, true
}

// ToolReached is AttemptsReached for the limit of one tool.
func (p *Policy) ToolReached(tool string, enforced int64) (RulesetLimit, bool) {
	if p.ruleset == nil || enforced == 0 || p.ruleset.Limits().PerTool[tool].N != enforced {
		return RulesetLimit{}, false
	}
	return RulesetLimit{Rule: "max_calls_per_tool:" + tool, Source: "operation_limit", Reason: edictum.ToolText(tool, enforced, enforced)}, true
}

// mostTold bounds the records of rules that passed in what is kept of a decision.
const mostTold = 100

// records are what became of all rules that were looked at for a decision, where they are
// not too many; else of those that did not pass.
func (p *Policy) records(e matching.Evaluation, seen []edictum.Record, evaluated int) []edictum.Record {
	if p.ruleset == nil || len(seen) >= evaluated || evaluated > mostTold {
		return seen
	}
	c := rulesetCall(e)
	c.Explain = true
	v := p.ruleset.Before(&c)
	all := append(v.Records, v.Candidates...)
	for _, r := range seen { // of limits, which are not looked at there
		if r.Type == edictum.SessionRecord {
			all = append(all, r)
		}
	}
	return all
}

func explained(r edictum.Record) string {
	switch {
	case r.Passed:
		return r.Rule + " passed"
	case r.Observed:
		return r.Rule + " would have decided: " + r.Message
	}
	return r.Rule + ": " + r.Message
}

// rulesetCall is a call as rulesets see it. Whose it is, and where, is what its context
// says: environment, principal, metadata and env.
func rulesetCall(e matching.Evaluation) edictum.Call {
	ctx := e.In.Context
	c := edictum.Call{Tool: e.Tool, Args: e.Arguments(), CallID: e.In.CallID, Environment: ctx.TextAt("environment"), Explain: e.In.Explain}
	if c.Args.Kind() != value.Map {
		c.Args = emptyArguments
	}
	c.Metadata, _ = ctx.Get("metadata")
	c.Principal, _ = ctx.Get("principal")
	env, _ := ctx.Get("env")
	if pinned := e.In.Env; pinned != nil || env.Kind() == value.Map {
		c.Env = func(name string) (value.Value, bool) {
			if pinned != nil {
				if text, ok := pinned(name); ok {
					return edictum.Coerce(text), true
				}
			}
			v, ok := env.Get(name)
			if text, isText := v.AsString(); ok && isText {
				return edictum.Coerce(text), true
			}
			return v, ok && v.Kind() != value.Null
		}
	}
	return c
}
