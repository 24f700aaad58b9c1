package matching

import (
	"cmp"
	"slices"
)

// A List is a list of rules in the order of evaluation. It is immutable and
// shared by evaluations.
type List struct {
	Rules []*Rule // by priority, highest first; equal keep their order
	index index
}

// NewList sorts and indexes rules. The order given is the order of equal
// priorities.
func NewList(rules []*Rule) *List {
	l := &List{Rules: slices.Clone(rules)}
	slices.SortStableFunc(l.Rules, func(a, b *Rule) int { return cmp.Compare(b.Priority, a.Priority) })
	l.index = newIndex(l.Rules)
	return l
}

// First returns the first rule that matches (policy engine spec 7.1), or nil.
// With an error it returns the rule that could not be judged.
func (l *List) First(e Evaluation) (*Rule, error) {
	best, err, ok := l.index.first(e, l.Rules)
	if !ok {
		best, err = int32(len(l.Rules)), nil
		for i, r := range l.Rules {
			var hit bool
			if hit, err = r.Matches(e); hit || err != nil {
				best = int32(i)
				break
			}
		}
	}
	if int(best) == len(l.Rules) {
		return nil, nil
	}
	return l.Rules[best], err
}
