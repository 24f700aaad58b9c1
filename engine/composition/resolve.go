package composition

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"example.com/govnode/engine/document"
	"example.com/govnode/engine/value"
)

// A Resolver weighs candidates under one strategy.
type Resolver struct {
	Strategy document.Strategy // empty means PriorityFirstMatch
	// TieBreakDeny lets the denying candidate win where the strategy finds two
	// candidates exactly equal; without it the one given first wins.
	TieBreakDeny bool
}

// A Candidate is the decision of one policy, before it is weighed against
// those of others.
type Candidate struct {
	Action   document.Action
	Priority int64
	Level    document.Level // empty means global
	Rule     string
}

func (c Candidate) level() document.Level { return cmp.Or(c.Level, document.LevelGlobal) }

func asks(c Candidate) bool { return c.Action == document.Ask }

// A Resolution is the outcome of Resolve (policy engine spec 13.4).
type Resolution struct {
	Winner     Candidate
	Index      int // of the winner among the candidates
	Strategy   document.Strategy
	Candidates int
	Conflict   bool // both classes of action occurred
	Trace      []string
}

// ErrNoCandidates is returned by Resolve for an empty list, which is an error
// of the program that calls it and not a decision (policy engine spec 13.5).
//
//lint:ignore ST1005 the text is fixed by the reference implementation
var ErrNoCandidates = errors.New("Cannot resolve conflict with zero candidates")

// Resolve picks the winner among candidates and explains how.
func (r Resolver) Resolve(candidates []Candidate) (Resolution, error) {
	s := cmp.Or(r.Strategy, document.PriorityFirstMatch)
	res := Resolution{Strategy: s, Candidates: len(candidates)}
	if len(candidates) == 0 {
		return res, ErrNoCandidates
	}
	for i, c := range candidates {
		if !c.Action.Valid() || !c.level().Valid() {
			return res, fmt.Errorf("candidate %d (%s) has the action %q and the level %q; use allow, deny, audit, block or ask, and global, tenant, organization or agent", i, c.Rule, c.Action, c.Level)
		}
		res.Conflict = res.Conflict || c.Action.Allows() != candidates[0].Action.Allows()
	}
	if len(candidates) == 1 {
		res.Winner = candidates[0]
		res.Trace = []string{fmt.Sprintf("Single candidate: %s → %s", candidates[0].Rule, candidates[0].Action)}
		return res, nil
	}
	switch s {
	case document.DenyOverrides:
		class, in := "deny", document.Action.Denies
		if slices.ContainsFunc(candidates, asks) && !slices.ContainsFunc(candidates, func(c Candidate) bool { return in(c.Action) }) {
			class, in = "ask", document.Action.Restricts
		}
		res.Index, res.Trace = r.overrides(candidates, s, class, "allow", in)
	case document.AllowOverrides:
		res.Index, res.Trace = r.overrides(candidates, s, "allow", "deny", document.Action.Allows)
	case document.PriorityFirstMatch:
		res.Index, res.Trace = r.firstMatch(candidates)
	case document.MostSpecificWins:
		res.Index, res.Trace = r.mostSpecific(candidates)
	default:
		return res, fmt.Errorf("unknown strategy %q; use DENY_OVERRIDES, ALLOW_OVERRIDES, PRIORITY_FIRST_MATCH or MOST_SPECIFIC_WINS", s)
	}
	res.Winner = candidates[res.Index]
	return res, nil
}

// overrides lets any candidate of one class win over all of the other.
func (r Resolver) overrides(candidates []Candidate, s document.Strategy, class, other string, in func(document.Action) bool) (int, []string) {
	order := r.rank(candidates, false)
	count, winner := 0, -1
	for _, i := range order {
		if in(candidates[i].Action) {
			if count++; winner < 0 {
				winner = i
			}
		}
	}
	if winner < 0 {
		w := candidates[order[0]]
		return order[0], []string{
			fmt.Sprintf("%s: no %s rules, selecting highest-priority %s", s, class, other),
			fmt.Sprintf("Winner: %s (priority=%d)", w.Rule, w.Priority),
		}
	}
	w := candidates[winner]
	return winner, []string{
		fmt.Sprintf("%s: %d %s rule(s) found", s, count, class),
		fmt.Sprintf("Winner: %s (priority=%d, scope=%s)", w.Rule, w.Priority, w.level()),
	}
}

func (r Resolver) firstMatch(candidates []Candidate) (int, []string) {
	order := r.rank(candidates, false)
	w := candidates[order[0]]
	return order[0], []string{
		fmt.Sprintf("%s: %d candidates", document.PriorityFirstMatch, len(candidates)),
		fmt.Sprintf("Winner: %s (priority=%d, action=%s)", w.Rule, w.Priority, w.Action),
	}
}

func (r Resolver) mostSpecific(candidates []Candidate) (int, []string) {
	order := r.rank(candidates, true)
	ranking := "["
	for n, i := range order {
		if n > 0 {
			ranking += ", "
		}
		c := candidates[i]
		ranking += fmt.Sprintf("(%s, '%s', %d)", value.Quote(c.Rule), c.level(), c.level().Specificity())
	}
	w := candidates[order[0]]
	return order[0], []string{
		fmt.Sprintf("%s: %d candidates", document.MostSpecificWins, len(candidates)),
		"Specificity ranking: " + ranking + "]",
		fmt.Sprintf("Winner: %s (scope=%s, priority=%d, action=%s)", w.Rule, w.level(), w.Priority, w.Action),
	}
}

// rank orders candidates, best first; equal ones keep the order given.
func (r Resolver) rank(candidates []Candidate, bySpecificity bool) []int {
	order := make([]int, len(candidates))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := candidates[i], candidates[j]
		if bySpecificity {
			if c := cmp.Compare(b.level().Specificity(), a.level().Specificity()); c != 0 {
				return c
			}
		}
		if c := cmp.Compare(b.Priority, a.Priority); c != 0 || !r.TieBreakDeny {
			return c
		}
		return value.TrueFirst(a.Action.Restricts(), b.Action.Restricts())
	})
	return order
}
