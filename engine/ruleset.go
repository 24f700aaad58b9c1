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
	trace      []string // how a chain came to be
}

// newRuleset sorts and indexes the rules of docs. The order given is the order
// of equal priorities.
func newRuleset(rules []*compiledRule, strict bool, leaf *Document) *ruleset {
	s := &ruleset{rules: slices.Clone(rules)}
	// In strict mode the denies of parents come first, whatever the priority
	// of a child's allow (policy engine spec 18.1: a deny from any source).
	inherited := func(r *compiledRule) bool {
		return strict && leaf != nil && r.doc != leaf && r.Action.Denies()
	}
	slices.SortStableFunc(s.rules, func(a, b *compiledRule) int {
		if c := trueFirst(inherited(a), inherited(b)); c != 0 {
			return c
		}
		return cmp.Compare(b.Priority, a.Priority)
	})
	s.index = newRuleIndex(s.rules)
	return s
}

// first returns the first rule that matches (policy engine spec 7.1), or nil.
// With an error it returns the rule that could not be judged.
func (s *ruleset) first(e *evaluation) (*compiledRule, error) {
	var lists [maxLists][]int32
	n, ok := s.index.candidates(e, &lists)
	if !ok {
		for _, r := range s.rules {
			if hit, err := r.matches(e); hit || err != nil {
				return r, err
			}
		}
		return nil, nil
	}
	for {
		// The lists are ascending; the smallest head is next in rank.
		best := -1
		for i := range n {
			if len(lists[i]) > 0 && (best < 0 || lists[i][0] < lists[best][0]) {
				best = i
			}
		}
		if best < 0 {
			return nil, nil
		}
		r := s.rules[lists[best][0]]
		if best > 0 {
			return r, nil // the index names rules that match
		}
		lists[0] = lists[0][1:]
		if hit, err := r.matches(e); hit || err != nil {
			return r, err
		}
	}
}
