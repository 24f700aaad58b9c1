package authoring

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"example.com/govnode/engine/external"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// Stubs answer in the place of the guardrails in a case of a table: a test must
// reach no other host, and prove the same wherever it runs.
type Stubs struct {
	Said    map[string]external.GuardrailResult
	Missing []string // failures of the case: guardrails that nobody answers for
}

// stub is one of them. An evaluation asks guardrails one after the other.
type stub struct {
	name string
	of   *Stubs
}

// Chain is the guardrails of these names with a stub for each; nil without one.
func (s *Stubs) Chain(names []string) *external.GuardrailChain {
	if len(names) == 0 {
		return nil
	}
	c := &external.GuardrailChain{}
	for _, name := range names {
		c.Providers = append(c.Providers, stub{name, s})
	}
	return c
}

// Name is the guardrail that it stands for.
func (s stub) Name() string { return s.name }

// Evaluate says what the case has it say.
func (s stub) Evaluate(context.Context, external.GuardrailCall) (external.GuardrailResult, error) {
	res, ok := s.of.Said[s.name]
	if !ok {
		failure := fmt.Sprintf("the guardrail %s is asked, and tests ask none: say under stubs what it answers", value.Quote(s.name))
		if !slices.Contains(s.of.Missing, failure) {
			s.of.Missing = append(s.of.Missing, failure)
		}
		return res, errors.New("the test has no stub for it")
	}
	return res, nil
}

// stubs reads the stubs of a table or of a case, which go before others.
func (r *tableReader) stubs(n *source.Node, field string, others map[string]external.GuardrailResult) map[string]external.GuardrailResult {
	f, ok := source.Present(n, "stubs")
	if !ok {
		return others
	}
	if f.Kind != source.Map {
		r.Add(f.Line, field, "stubs must be a mapping of guardrails to their answers, got %s", f.TypeName())
		return others
	}
	said := map[string]external.GuardrailResult{}
	for name, res := range others {
		said[name] = res
	}
	for i, k := range f.Keys {
		at := source.Join(field, k.Text)
		if !slices.Contains(r.guardrails, k.Text) {
			r.Add(k.Line, at, "the policy has no guardrail of this name")
			continue
		}
		said[k.Text] = r.stub(&f.Items[i], at)
	}
	return said
}

func (r *tableReader) stub(n *source.Node, field string) (res external.GuardrailResult) {
	switch n.Kind {
	case source.String:
		res.Decision = external.GuardrailDecision(n.Text)
	case source.Map:
		r.known(n, field, "decision", "reason", "modified_args")
		if s := r.text(n, field, "decision"); s != nil {
			res.Decision = external.GuardrailDecision(*s)
		}
		if s := r.text(n, field, "reason"); s != nil {
			res.Reason = *s
		}
		if _, ok := source.Present(n, "modified_args"); ok {
			args := r.mapping(n, field, "modified_args")
			res.ModifiedArgs = &args
		}
	}
	if !slices.Contains([]external.GuardrailDecision{external.GuardrailAllow, external.GuardrailDeny, external.GuardrailModify}, res.Decision) {
		r.Add(n.Line, field, "a guardrail answers allow, deny or modify, or a mapping with that as its decision, got %s", n.Repr())
	}
	return res
}
