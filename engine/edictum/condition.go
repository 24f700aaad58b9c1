package edictum

import (
	"fmt"
	"strings"

	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// Conditions, compiled.

// A verdict of a condition. What cannot be judged is failed, and a rule applies then.
type truth uint8

const (
	no truth = iota
	yes
	failed
)

// A test is one node of a compiled condition.
type test struct {
	all, any []*test
	not      *test

	selector selector
	number   int // of the selector; -1 without one
	op       op
	operator string // its name
	operand  value.Value
	wanted   bool     // the operand, if it is a bool
	text     string   // the operand, if it is a text
	texts    []string // of contains_any
	searches []*pattern.Searcher
}

func compile(c *Condition, numbers map[string]int, searches *pattern.Searches) (*test, error) {
	if c == nil {
		return nil, nil
	}
	t := &test{number: -1}
	switch {
	case c.Not != nil:
		not, err := compile(c.Not, numbers, searches)
		t.not = not
		return t, err
	case c.Selector == "":
		for _, list := range []struct {
			from []*Condition
			to   *[]*test
		}{{c.All, &t.all}, {c.Any, &t.any}} {
			for _, part := range list.from {
				compiled, err := compile(part, numbers, searches)
				if err != nil {
					return nil, err
				}
				*list.to = append(*list.to, compiled)
			}
		}
		return t, nil
	}
	t.selector, t.operator, t.operand = selectorOf(c.Selector), c.Operator, c.Operand
	t.text, _ = c.Operand.AsString()
	t.wanted, _ = c.Operand.AsBool()
	t.op = operators[c.Operator].op
	if n, known := numbers[c.Selector]; known {
		t.number = n
	} else if len(numbers) < remembered {
		t.number = len(numbers)
		numbers[c.Selector] = t.number
	}
	for _, expr := range c.expressions() {
		search, err := searches.Compile(expr)
		if err != nil {
			return nil, err
		}
		t.searches = append(t.searches, search)
	}
	if c.Operator == "contains_any" {
		for v := range c.Operand.Items() {
			s, _ := v.AsString()
			t.texts = append(t.texts, s)
		}
	}
	return t, nil
}

// judge evaluates a test. Why says what could not be judged.
func (t *test) judge(s *scene) (result truth, why string) {
	switch {
	case t.not != nil:
		result, why = t.not.judge(s)
		switch result {
		case yes:
			return no, ""
		case no:
			return yes, ""
		}
		return failed, why
	case t.all != nil:
		for _, part := range t.all {
			if result, why = part.judge(s); result != yes {
				return result, why
			}
		}
		return yes, ""
	case t.any != nil:
		for _, part := range t.any {
			if result, why = part.judge(s); result != no {
				return result, why
			}
		}
		return no, ""
	}
	return t.leaf(s)
}

func (t *test) leaf(s *scene) (truth, string) {
	v, there := s.look(t)
	if t.op == opExists {
		return truthOf(there == t.wanted), ""
	}
	if !there {
		return no, ""
	}
	switch t.op {
	case opEquals:
		return truthOf(value.Equal(v, t.operand)), ""
	case opNotEquals:
		return truthOf(!value.Equal(v, t.operand)), ""
	case opIn:
		return truthOf(member(v, t.operand)), ""
	case opNotIn:
		return truthOf(!member(v, t.operand)), ""
	case opGt, opGte, opLt, opLte:
		return t.compare(v)
	}
	text, ok := v.AsString()
	if !ok {
		return failed, fmt.Sprintf("%s needs a text, got %s", t.operator, v.Kind())
	}
	return truthOf(t.matches(text)), ""
}

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

func member(v, list value.Value) bool {
	for item := range list.Items() {
		if value.Equal(v, item) {
			return true
		}
	}
	return false
}

func (t *test) compare(v value.Value) (truth, string) {
	if v.Kind() != value.Number && v.Kind() != value.Bool {
		return failed, fmt.Sprintf("%s needs a number, got %s", t.operator, v.Kind())
	}
	c, err := value.Compare(v, t.operand)
	if err != nil {
		return failed, fmt.Sprintf("%s: %v", t.operator, err)
	}
	switch t.op {
	case opGt:
		return truthOf(c > 0), ""
	case opGte:
		return truthOf(c >= 0), ""
	case opLt:
		return truthOf(c < 0), ""
	}
	return truthOf(c <= 0), ""
}

func (t *test) matches(text string) bool {
	switch t.op {
	case opContains:
		return strings.Contains(text, t.text)
	case opStarts:
		return strings.HasPrefix(text, t.text)
	case opEnds:
		return strings.HasSuffix(text, t.text)
	case opContainsAny:
		for _, s := range t.texts {
			if strings.Contains(text, s) {
				return true
			}
		}
		return false
	}
	for _, s := range t.searches {
		if s.Match(text) {
			return true
		}
	}
	return false
}

// A redaction is where in an output something is taken out, and by which expressions.
// Without a path it is the whole as a text.
type redaction struct {
	path     []string
	searches []*pattern.Searcher
}

// redactions are those of a redact rule.
func (t *test) redactions() (all []redaction) {
	if t == nil {
		return nil
	}
	for _, part := range append(append([]*test{t.not}, t.all...), t.any...) {
		all = append(all, part.redactions()...)
	}
	if t.selector.from == ofOutput && len(t.searches) > 0 {
		all = append(all, redaction{t.selector.path, t.searches})
	}
	return all
}
