package engine

import (
	"cmp"
	"slices"
)

// A ruleList is a list of rules in the order of evaluation. It is immutable and
// shared by evaluations.
type ruleList struct {
	rules []*compiledRule // by priority, highest first; equal keep their order
	index ruleIndex
}

// newRuleList sorts and indexes rules. The order given is the order of equal
// priorities.
func newRuleList(rules []*compiledRule) *ruleList {
	l := &ruleList{rules: slices.Clone(rules)}
	slices.SortStableFunc(l.rules, func(a, b *compiledRule) int { return cmp.Compare(b.Priority, a.Priority) })
	l.index = newRuleIndex(l.rules)
	return l
}

// first returns the first rule that matches (policy engine spec 7.1), or nil.
// With an error it returns the rule that could not be judged.
func (l *ruleList) first(e evaluation) (*compiledRule, error) {
	best, err, ok := l.index.first(e, l.rules)
	if !ok {
		best, err = int32(len(l.rules)), nil
		for i, r := range l.rules {
			var hit bool
			if hit, err = r.matches(e); hit || err != nil {
				best = int32(i)
				break
			}
		}
	}
	if int(best) == len(l.rules) {
		return nil, nil
	}
	return l.rules[best], err
}
