package matching

import (
	"cmp"
	"slices"

	"example.com/govnode/engine/document"
)

// A List is a list of rules in the order of evaluation. It is immutable and
// shared by evaluations.
type List struct {
	Rules []*Rule // by priority, highest first; equal keep their order
	index index
	// denials are the rules that deny, of a list in which one asks; else nil.
	denials *List
}

// NewList sorts and indexes rules. The order given is the order of equal
// priorities.
func NewList(rules []*Rule) *List {
	l := &List{Rules: slices.Clone(rules)}
	slices.SortStableFunc(l.Rules, func(a, b *Rule) int { return cmp.Compare(b.Priority, a.Priority) })
	l.index = newIndex(l.Rules)
	if slices.ContainsFunc(l.Rules, func(r *Rule) bool { return r.Action == document.Ask }) {
		l.denials = NewList(slices.DeleteFunc(slices.Clone(l.Rules), func(r *Rule) bool { return !r.Action.Denies() }))
	}
	return l
}

// Decide returns the rule that decides: the first that matches, and where that
// one asks and any other denies, the first that denies. Without a match it
// returns nil, with an error the rule that could not be judged.
func (l *List) Decide(e Evaluation) (*Rule, error) {
	rule, err := l.First(e)
	if err != nil || rule == nil {
		return rule, err
	}
	return l.OrDenial(e, rule)
}

// OrDenial returns in the place of a rule of the list that asks the first one
// that denies, wherever it stands. Nobody shall be asked to allow what a rule
// forbids.
func (l *List) OrDenial(e Evaluation, rule *Rule) (*Rule, error) {
	if rule.Action != document.Ask {
		return rule, nil
	}
	denial, err := l.denials.First(e)
	if denial == nil {
		return rule, nil
	}
	if e.In.Explain && err == nil {
		e.Explain("rule '%s' of %s asks, and a deny wins over it", rule.Name, rule.Doc.Path)
	}
	return denial, err
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
