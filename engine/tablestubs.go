package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"example.com/govnode/engine/value"
)

// stubs answer in the place of the guardrails in a case of a table: a test must
// reach no other host, and prove the same wherever it runs.
type stubs struct {
	said    map[string]GuardrailResult
	missing []string // failures of the case: guardrails that nobody answers for
}

// stub is one of them. An evaluation asks guardrails one after the other.
type stub struct {
	name string
	of   *stubs
}

// chain is the guardrails of these names with a stub for each; nil without one.
func (s *stubs) chain(names []string) *GuardrailChain {
	if len(names) == 0 {
		return nil
	}
	c := &GuardrailChain{}
	for _, name := range names {
		c.Providers = append(c.Providers, stub{name, s})
	}
	return c
}

func (s stub) Name() string { return s.name }

func (s stub) Evaluate(context.Context, GuardrailCall) (GuardrailResult, error) {
	res, ok := s.of.said[s.name]
	if !ok {
		failure := fmt.Sprintf("the guardrail %s is asked, and tests ask none: say under stubs what it answers", value.Quote(s.name))
		if !slices.Contains(s.of.missing, failure) {
			s.of.missing = append(s.of.missing, failure)
		}
		return res, errors.New("the test has no stub for it")
	}
	return res, nil
}

// stubs reads the stubs of a table or of a case, which go before others.
func (r *tableReader) stubs(n *node, field string, others map[string]GuardrailResult) map[string]GuardrailResult {
	f, ok := present(n, "stubs")
	if !ok {
		return others
	}
	if f.kind != nodeMap {
		r.add(f.line, field, "stubs must be a mapping of guardrails to their answers, got %s", f.typeName())
		return others
	}
	said := map[string]GuardrailResult{}
	for name, res := range others {
		said[name] = res
	}
	for i, k := range f.keys {
		at := join(field, k.text)
		if !slices.Contains(r.guardrails, k.text) {
			r.add(k.line, at, "the policy has no guardrail of this name")
			continue
		}
		said[k.text] = r.stub(&f.items[i], at)
	}
	return said
}

func (r *tableReader) stub(n *node, field string) (res GuardrailResult) {
	switch n.kind {
	case nodeString:
		res.Decision = GuardrailDecision(n.text)
	case nodeMap:
		r.known(n, field, "decision", "reason", "modified_args")
		if s := r.text(n, field, "decision"); s != nil {
			res.Decision = GuardrailDecision(*s)
		}
		if s := r.text(n, field, "reason"); s != nil {
			res.Reason = *s
		}
		if _, ok := present(n, "modified_args"); ok {
			args := r.mapping(n, field, "modified_args")
			res.ModifiedArgs = &args
		}
	}
	if !slices.Contains([]GuardrailDecision{GuardrailAllow, GuardrailDeny, GuardrailModify}, res.Decision) {
		r.add(n.line, field, "a guardrail answers allow, deny or modify, or a mapping with that as its decision, got %s", n.repr())
	}
	return res
}
