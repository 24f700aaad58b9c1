package edictum

import (
	"fmt"
	"strings"
)

// What is checked of a document whose schema holds.

func (r *reader) ids() error {
	seen := map[string]bool{}
	for _, rule := range r.doc.Rules {
		if seen[rule.ID] {
			return &Problem{Rule: rule.ID, Field: "id", Message: fmt.Sprintf("Duplicate rule id: '%s'", rule.ID)}
		}
		seen[rule.ID] = true
	}
	return nil
}

// leaves visits the leaves of a condition until one of them is refused.
func (c *Condition) leaves(visit func(*Condition) error) error {
	if c == nil {
		return nil
	}
	if c.Selector != "" {
		return visit(c)
	}
	for _, part := range append(append([]*Condition{c.Not}, c.All...), c.Any...) {
		if err := part.leaves(visit); err != nil {
			return err
		}
	}
	return nil
}

// eachLeaf visits the leaves of all rules.
func (r *reader) eachLeaf(visit func(*Rule, *Condition) error) error {
	for i := range r.doc.Rules {
		rule := &r.doc.Rules[i]
		if err := rule.When.leaves(func(c *Condition) error { return visit(rule, c) }); err != nil {
			return err
		}
	}
	return nil
}

// expressions are those of a matches or matches_any.
func (c *Condition) expressions() (all []string) {
	switch c.Operator {
	case "matches":
		s, _ := c.Operand.AsString()
		return []string{s}
	case "matches_any":
		for v := range c.Operand.Items() {
			s, _ := v.AsString()
			all = append(all, s)
		}
	}
	return all
}

func (r *reader) patterns() error {
	return r.eachLeaf(func(rule *Rule, c *Condition) error {
		for _, expr := range c.expressions() {
			if _, err := r.searches.Compile(expr); err != nil {
				return &Problem{Rule: rule.ID, Field: c.Selector + "." + c.Operator, Message: fmt.Sprintf("Invalid regex pattern '%s': %v", expr, err)}
			}
		}
		return nil
	})
}

func (r *reader) selectors() error {
	return r.eachLeaf(func(rule *Rule, c *Condition) error {
		s := selectorOf(c.Selector)
		switch {
		case s.from == ofOutput && rule.Type == Pre:
			return &Problem{Rule: rule.ID, Field: c.Selector, Message: fmt.Sprintf("Rule '%s': %s selector is not available in type: pre rules", rule.ID, shownSelector(c.Selector))}
		case s.from == unknown:
			r.doc.Warnings = append(r.doc.Warnings, fmt.Sprintf("Rule '%s': selector '%s' is not known, so it is always missing", rule.ID, c.Selector))
		}
		return nil
	})
}

func shownSelector(selector string) string {
	if strings.HasPrefix(selector, "result.") {
		return "result."
	}
	return selector
}

func (r *reader) sandboxes() error {
	for _, rule := range r.doc.Rules {
		if rule.Type != Sandbox {
			continue
		}
		b := rule.Box
		for _, c := range []struct {
			has       bool
			name, too string
		}{
			{len(b.NotWithin) > 0 && len(b.Within) == 0, "not_within", "within"},
			{len(b.NotDomains) > 0 && len(b.Commands) == 0 && len(b.Domains) == 0, "not_allows", "allows"},
			{len(b.NotDomains) > 0 && len(b.Domains) == 0, "not_allows.domains", "allows.domains"},
		} {
			if c.has {
				return &Problem{Rule: rule.ID, Field: c.name, Message: fmt.Sprintf("Rule '%s': %s requires %s to also be set", rule.ID, c.name, c.too)}
			}
		}
	}
	return nil
}

func (r *reader) operators() error {
	return r.eachLeaf(func(rule *Rule, c *Condition) error {
		if _, known := operators[c.Operator]; !known {
			return &Problem{Rule: rule.ID, Field: c.Selector, Message: fmt.Sprintf("Rule '%s': unknown operator '%s'", rule.ID, c.Operator)}
		}
		return nil
	})
}

// A form is what an operator compares with.
type form uint8

const (
	anything form = iota
	aBool
	aText
	aNumber
	aList
	someTexts
)

// An op is an operator.
type op uint8

const (
	opExists op = iota
	opEquals
	opNotEquals
	opIn
	opNotIn
	opContains
	opContainsAny
	opStarts
	opEnds
	opMatches
	opGt
	opGte
	opLt
	opLte
)

// operators are those that there are, and what they compare with.
var operators = map[string]struct {
	form form
	op   op
}{
	"exists": {aBool, opExists}, "equals": {anything, opEquals}, "not_equals": {anything, opNotEquals}, "in": {aList, opIn}, "not_in": {aList, opNotIn},
	"contains": {aText, opContains}, "contains_any": {someTexts, opContainsAny}, "starts_with": {aText, opStarts}, "ends_with": {aText, opEnds},
	"matches": {aText, opMatches}, "matches_any": {someTexts, opMatches},
	"gt": {aNumber, opGt}, "gte": {aNumber, opGte}, "lt": {aNumber, opLt}, "lte": {aNumber, opLte},
}

// Arguments are the first names of the arguments that rules read; "*" where sandboxes
// look at all.
func (d *Document) Arguments() map[string]bool {
	names := map[string]bool{}
	for i := range d.Rules {
		if d.Rules[i].Type == Sandbox {
			names["*"] = true
		}
		_ = d.Rules[i].When.leaves(func(c *Condition) error {
			if s := selectorOf(c.Selector); s.from == ofArgs {
				names[s.path[0]] = true
			}
			return nil
		})
	}
	return names
}
