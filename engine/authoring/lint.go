package authoring

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"example.com/govnode/engine/composition"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// Lint reports what is valid and probably not meant: rules that can never
// decide, denies that an agent evades by leaving a field out, patterns that
// need care, limits that contradict each other, and what has no effect where it
// stands. The warnings of Compile are
// among them. Problems come ordered by path and line, each once.
func Lint(docs *composition.Documents, warnings []source.Problem) []source.Problem {
	l := &linter{docs: docs, list: warnings}
	l.unreachable()
	l.unasked()
	l.evadable()
	l.patterns()
	l.limits()
	l.placement()
	l.hiddenDenies()
	slices.SortStableFunc(l.list, func(a, b source.Problem) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Line, b.Line))
	})
	return slices.Compact(l.list)
}

type linter struct {
	docs *composition.Documents
	list []source.Problem
}

func (l *linter) addf(path string, line int, field, format string, args ...any) {
	l.list = append(l.list, source.Problem{Path: path, Line: line, Field: field, Message: fmt.Sprintf(format, args...)})
}

// maxCompared bounds the pairs of rules that are compared, so that a tree of
// many folders costs no more than one large document.
const maxCompared = 4_000_000

// unreachable looks for rules behind one that matches whenever they do, in the
// flat list and in the full chain of every folder.
func (l *linter) unreachable() {
	p := l.docs
	if p.Resolver != nil {
		return // every document names its own candidate
	}
	type seen struct{ rule, by *document.Rule }
	reported := map[seen]bool{}
	compared := 0
	for _, set := range l.sets() {
		for i, r := range set.Rules {
			if compared += i; compared > maxCompared {
				return
			}
			before := set.Rules[:i]
			if stands := set.Standing(); r.Action.Allows() {
				before = slices.Concat(stands, before)
			} else if slices.Contains(stands, r) {
				continue
			}
			for _, earlier := range before {
				// A document with a scope of its own does not stand before
				// the rule on every path.
				if earlier.Doc != r.Doc && earlier.Doc.Scope != nil || !implies(&r.Condition, &earlier.Condition) {
					continue
				}
				// In strict mode no rule of another document hides a deny.
				if p.Strict && earlier.Doc != r.Doc && r.Action.Restricts() && earlier.Action.Allows() {
					continue
				}
				if earlier.Action == document.Ask && r.Action.Denies() {
					continue // which wins over it
				}
				if pair := (seen{r.Rule, earlier.Rule}); !reported[pair] {
					reported[pair] = true
					l.addf(r.Doc.Path, r.Line, r.Name, "the rule is never reached%s: rule '%s' (%s:%d) matches whenever it does and is evaluated first",
						where(set), earlier.Name, earlier.Doc.Path, earlier.Line)
				}
				break
			}
		}
	}
}

// sets are the flat list and the full chain of every folder.
func (l *linter) sets() []*composition.Ruleset {
	sets := []*composition.Ruleset{l.docs.FlatSet}
	for _, dir := range slices.Sorted(maps.Keys(l.docs.Folders)) {
		sets = append(sets, l.docs.BuildChain(l.docs.Folders[dir], func(int) bool { return true }))
	}
	return sets
}

// unasked looks for rules that ask and never get an answer, since every call
// that they ask about is denied: by a rule of a lower priority, or by a
// GovernancePolicy that needs approval and does not say how to ask for it.
func (l *linter) unasked() {
	g := l.docs.Governance
	compared := 0
	for _, set := range l.sets() {
		for i, r := range set.Rules {
			if r.Action != document.Ask {
				continue
			}
			if g.RequireHumanApproval && g.Approval == nil {
				l.addf(r.Doc.Path, r.Line, r.Name, "the rule never asks: require_human_approval of %s denies every call; add an approval block to it", g.Path)
			}
			for _, later := range set.Rules[i+1:] {
				if compared++; compared > maxCompared {
					return
				}
				if later.Action.Denies() && (later.Doc == r.Doc || later.Doc.Scope == nil) && implies(&r.Condition, &later.Condition) {
					l.addf(r.Doc.Path, r.Line, r.Name, "the rule never asks%s: rule '%s' (%s:%d) denies whenever it matches, and a deny wins over an ask whatever its priority; to deny what no rule matches, use defaults",
						where(set), later.Name, later.Doc.Path, later.Line)
					break
				}
			}
		}
	}
}

func where(set *composition.Ruleset) string {
	if !set.Scoped {
		return ""
	}
	return " below the folder of " + set.Docs[len(set.Docs)-1].Path
}

// implies reports whether b holds wherever a does. It may miss cases and never
// invents one.
func implies(a, b *document.Condition) bool {
	if a.Field != b.Field {
		return false
	}
	if a.Operator == b.Operator && value.Equal(a.Value, b.Value) {
		return true
	}
	if b.Operator == document.OpMatches && matchesAll(b.Value) {
		return true
	}
	switch a.Operator {
	case document.OpEq:
		return a.Value.Kind() != value.Null && holdsFor(b, a.Value)
	case document.OpIn:
		if a.Value.Kind() != value.List || a.Value.Len() == 0 {
			return false
		}
		for item := range a.Value.Items() {
			if !holdsFor(b, item) {
				return false
			}
		}
		return true
	case document.OpGt, document.OpGte, document.OpLt, document.OpLte:
		return impliesOrder(a, b)
	}
	return false
}

func holdsFor(c *document.Condition, v value.Value) bool {
	if v.Kind() == value.Null {
		return false
	}
	ok, err := matching.Holds(c, v)
	return ok && err == nil
}

// impliesOrder compares bounds of numbers in the same direction.
func impliesOrder(a, b *document.Condition) bool {
	if a.Value.Kind() != value.Number || b.Value.Kind() != value.Number {
		return false
	}
	order, err := value.Compare(a.Value, b.Value)
	if err != nil {
		return false
	}
	up := func(o document.Operator) bool { return o == document.OpGt || o == document.OpGte }
	down := func(o document.Operator) bool { return o == document.OpLt || o == document.OpLte }
	switch {
	case up(a.Operator) && up(b.Operator):
		return order > 0 || order == 0 && (a.Operator == document.OpGt || b.Operator == document.OpGte)
	case down(a.Operator) && down(b.Operator):
		return order < 0 || order == 0 && (a.Operator == document.OpLt || b.Operator == document.OpLte)
	}
	return false
}

// matchesAll recognises the usual expressions that match every text.
func matchesAll(v value.Value) bool {
	s, _ := v.AsString()
	return v.Kind() == value.String && slices.Contains([]string{"", ".*", "^.*", "^", "(?s).*", `[\s\S]*`}, s)
}

func (l *linter) evadable() {
	if l.docs.Strict {
		return // strict mode denies where the field is missing
	}
	for _, r := range l.docs.Rules {
		op := r.Condition.Operator
		if r.Action.Restricts() && (op == document.OpNe || op == document.OpNotIn) {
			l.addf(r.Doc.Path, r.Line, r.Name, "omitting the field %s evades this rule: a missing field makes %s false; add mode: strict, or deny by default and allow what is wanted", r.Condition.Field, op)
		}
	}
}

// governancef reports on a field of the GovernancePolicy.
func (l *linter) governancef(field, format string, args ...any) {
	l.addf(l.docs.Governance.Path, l.docs.Governance.Line(field), field, format, args...)
}

func (l *linter) patterns() {
	for i, bp := range l.docs.Governance.BlockedPatterns {
		field := fmt.Sprintf("blocked_patterns[%d]", i)
		backtracking, unanchored := pattern.Describe(bp)
		if backtracking {
			l.governancef(field, "the pattern needs the backtracking engine, whose time is bounded by a limit and not by the length of the text; a limit that is hit denies")
		}
		if unanchored {
			l.governancef(field, "a glob is anchored at its end alone: %s also matches text that only ends so; begin it with * to say so, or use a regex with ^", value.Quote(bp.Text))
		}
	}
}

func (l *linter) limits() {
	g := l.docs.Governance
	if !g.Governed() {
		return
	}
	if g.MaxAttempts < g.MaxToolCalls {
		l.governancef("max_attempts", "max_attempts (%d) < max_tool_calls (%d): the calls can never be used up", g.MaxAttempts, g.MaxToolCalls)
	}
	if most, ok := g.MaxOfKind["max_model_calls"]; ok && most > g.MaxToolCalls {
		l.governancef("max_model_calls", "max_model_calls (%d) > max_tool_calls (%d): it is never reached", most, g.MaxToolCalls)
	}
	for _, tool := range slices.Sorted(maps.Keys(g.MaxCallsPerTool)) {
		field := source.Join("max_calls_per_tool", tool)
		if most := g.MaxCallsPerTool[tool]; most > g.MaxToolCalls {
			l.governancef(field, "%s (%d) > max_tool_calls (%d): it is never reached", field, most, g.MaxToolCalls)
		}
		if !g.Permits(tool) {
			l.governancef(field, "%s limits a tool that allowed_tools does not permit", field)
		}
	}
}
