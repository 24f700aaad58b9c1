package document

import (
	"errors"
	"fmt"

	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// How the condition of a rule is read.

func (r *reader) condition(n *source.Node, field string, into *Condition) {
	if n.Kind != source.Map {
		r.wrongType(n, field, "a mapping with field, operator and value")
		return
	}
	r.unknownFields(n, field, conditionFields)
	for _, name := range conditionFields[:2] {
		r.required(n, field, name)
	}
	r.named(n, field, "field", &into.Field)
	op, ok := source.Present(n, "operator")
	if !ok {
		return
	}
	into.Operator = Operator(op.Text)
	if op.Kind != source.String || !into.Operator.valid() {
		r.Add(op.Line, field+".operator", "operator must be one of eq, ne, gt, lt, gte, lte, in, not_in, contains, matches, got %s", op.Repr())
		return
	}
	target, ok := n.Get("value") // null is a value here
	if !ok {
		r.Add(n.Line, field+".value", "value is missing; a condition has exactly field, operator and value")
		return
	}
	r.target(target, field+".value", into)
}

// target reads the value of a condition.
func (r *reader) target(n *source.Node, field string, into *Condition) {
	if bad := findAmbiguous(n); bad != nil {
		r.Add(bad.Line, field, "%s means different things to YAML 1.1 and 1.2; put it in quotes, or write true, false or a plain decimal number", bad.Text)
		return
	}
	v, err := n.Value()
	if err == nil {
		*into, err = NewCondition(into.Field, into.Operator, v, r.searches)
	}
	if err != nil {
		r.Add(n.Line, field, "%v", err)
	}
}

// NewCondition refuses a value that can never work with the operator, and
// compiles the expression of matches.
func NewCondition(field string, op Operator, v value.Value, compiled *pattern.Searches) (Condition, error) {
	c := Condition{Field: field, Operator: op, Value: v}
	if msg := targetProblem(op, v); msg != "" {
		return c, errors.New(msg)
	}
	if op != OpMatches {
		return c, nil
	}
	var err error
	if c.Search, err = compiled.Compile(v.Str()); err != nil {
		return c, fmt.Errorf("invalid regex %s: %w", value.Quote(source.Clip(v.Str(), 200)), err)
	}
	return c, nil
}

func findAmbiguous(n *source.Node) *source.Node {
	if n.Ambiguous() {
		return n
	}
	for i := range n.Items {
		if bad := findAmbiguous(&n.Items[i]); bad != nil {
			return bad
		}
	}
	return nil
}

// targetProblem says why no value of a field can ever be compared with v.
func targetProblem(op Operator, v value.Value) string {
	switch op {
	case OpIn, OpNotIn:
		switch v.Kind() {
		case value.Number, value.Bool, value.Null:
			return fmt.Sprintf("%s needs a list, a string or a mapping to look in, got %s", op, v.Repr())
		}
	case OpGt, OpLt, OpGte, OpLte:
		if unordered(v) {
			return fmt.Sprintf("%s needs a number, a string or a list of those, got %s", op, source.Clip(v.Repr(), 100))
		}
	case OpContains:
		if v.Kind() == value.Null {
			return "contains needs something to look for, got None"
		}
	}
	return ""
}

func unordered(v value.Value) bool {
	switch v.Kind() {
	case value.Null, value.Map:
		return true
	case value.List:
		for item := range v.Items() {
			if unordered(item) {
				return true
			}
		}
	}
	return false
}
