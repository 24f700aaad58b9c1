package engine

import (
	"cmp"
	"slices"
)

// A ruleset is a list of rules in the order of evaluation, with what follows
// when none of them matches. It is immutable and shared by evaluations.
type ruleset struct {
	docs      []*Document // flat: in load order; scoped: root first
	chain     []string    // names of docs; scoped only
	scoped    bool
	rules     []*compiledRule // by priority, highest first; equal keep their order
	def       Action
	defPolicy string // whose default it is
	// confidence is what a call must at least have, by the same defaults.
	confidence float64
	index      ruleIndex
	denials    []*ruleset // what denies whatever rules say; strict mode only
	trace      []string   // how a chain came to be
}

// newRuleset sorts and indexes rules. The order given is the order of equal
// priorities.
func newRuleset(rules []*compiledRule) *ruleset {
	s := &ruleset{rules: slices.Clone(rules)}
	slices.SortStableFunc(s.rules, func(a, b *compiledRule) int { return cmp.Compare(b.Priority, a.Priority) })
	s.index = newRuleIndex(s.rules)
	return s
}

// first returns the first rule that matches (policy engine spec 7.1), or nil.
// With an error it returns the rule that could not be judged.
func (s *ruleset) first(e evaluation) (*compiledRule, error) {
	best, err, ok := s.index.first(e, s.rules)
	if !ok {
		best, err = int32(len(s.rules)), nil
		for i, r := range s.rules {
			var hit bool
			if hit, err = r.matches(e); hit || err != nil {
				best = int32(i)
				break
			}
		}
	}
	if int(best) == len(s.rules) {
		return nil, nil
	}
	return s.rules[best], err
}
