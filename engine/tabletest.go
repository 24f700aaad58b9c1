package engine

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"example.com/govnode/engine/authoring"
	"example.com/govnode/engine/source"
)

// A TestReport is the outcome of the tables of tests beside a policy.
type TestReport struct {
	Cases    []TestCase
	Coverage []RuleCoverage // every rule of the tree, in the order of its files
	Failed   int
}

// A TestCase is one case of a table and what became of it.
type TestCase struct {
	Path     string
	Line     int
	Name     string
	Failures []string // what differed; empty if it passed
	Decision Decision
	Duration time.Duration
}

// RuleCoverage tells how many cases a rule decided.
type RuleCoverage struct {
	Path string
	Line int
	Rule string
	Hits int
}

// RunTests evaluates tables of tests against a policy: the cases whose names
// only matches, all if it is nil. A table is a mapping
// with a list of cases:
//
//	cases:
//	  - name: deletes are denied
//	    tool: delete_resource        # all of input is optional
//	    arguments: {id: 7}
//	    context: {path: src}
//	    metadata: {env: prod}        # what an adapter sends beside the call
//	    stubs: {scanner: deny}       # before those of the table
//	    facts: {call_count: 3, elapsed_seconds: 12.5, tool_calls: {search: 2}}
//	    kind: tool                   # model, agent, handoff
//	    order: pre_execute           # interceptor
//	    agent_id: a-1
//	    session_id: s-1
//	    expect:                      # at least one of these
//	      allowed: false
//	      action: deny
//	      rule: no-delete            # "" for none
//	      reason: ...
//	      category: policy_rule
//	stubs:                           # what guardrails answer in every case
//	  scanner: allow                 # or deny, or in full:
//	  masker: {decision: modify, reason: ..., modified_args: {id: 0}}
//
// No guardrail is really asked. A case that reaches one without a stub fails.
//
// The error is a [*LoadError] for a table that cannot be read; a case that
// fails is no error and stands in the report.
func RunTests(ctx context.Context, p *Policy, tables []source.File, only *regexp.Regexp) (TestReport, error) {
	var report TestReport
	var probs []source.Problem
	var names []string // of the guardrails
	if p.guardrails != nil {
		for _, provider := range p.guardrails.Providers {
			names = append(names, provider.Name())
		}
	}
	hits := make([]int, len(p.docs.Rules))
	for _, table := range tables {
		cases, bad := authoring.ReadTable(table, names)
		if probs = append(probs, bad...); len(probs) > 0 {
			continue
		}
		for _, c := range cases {
			if only != nil && !only.MatchString(c.Name) {
				continue
			}
			answers := authoring.Stubs{Said: c.Stubs}
			stubbed := *p
			stubbed.guardrails = answers.Chain(names)
			start := time.Now()
			d := stubbed.Evaluate(ctx, c.Input)
			tested := TestCase{
				Path: table.Path, Line: c.Line, Name: c.Name, Decision: d, Duration: time.Since(start),
				Failures: append(differences(c.Expect, d), answers.Missing...),
			}
			if len(tested.Failures) > 0 {
				report.Failed++
			}
			if i := int(d.Rule) - int(ruleFirstOfTheTree); i >= 0 && i < len(p.docs.Rules) {
				hits[i]++
			}
			report.Cases = append(report.Cases, tested)
		}
	}
	if len(probs) > 0 {
		return TestReport{}, &source.LoadError{Problems: probs}
	}
	for i, r := range p.docs.Rules {
		report.Coverage = append(report.Coverage, RuleCoverage{Path: r.Doc.Path, Line: r.Line, Rule: r.Name, Hits: hits[i]})
	}
	return report, nil
}

// differences compares what a case states.
func differences(x authoring.Expectation, d Decision) []string {
	var out []string
	if x.Allowed != nil && *x.Allowed != d.Allowed {
		out = append(out, fmt.Sprintf("allowed: expected %t, got %t (%s)", *x.Allowed, d.Allowed, d.Reason))
	}
	for _, f := range []struct {
		name string
		want *string
		got  string
	}{
		{"action", x.Action, d.Action}, {"rule", x.Rule, d.MatchedRule},
		{"reason", x.Reason, d.Reason}, {"category", x.Category, d.Category},
	} {
		if f.want != nil && *f.want != f.got {
			out = append(out, fmt.Sprintf("%s: expected %q, got %q", f.name, *f.want, f.got))
		}
	}
	return out
}
