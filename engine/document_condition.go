package engine

import (
	"fmt"

	"example.com/govnode/engine/value"
)

// How the condition of a rule is read.

func (r *documentReader) condition(n *node, field string, into *Condition) {
	if n.kind != nodeMap {
		r.wrongType(n, field, "a mapping with field, operator and value")
		return
	}
	r.unknownFields(n, field, conditionFields)
	for _, name := range conditionFields[:2] {
		r.required(n, field, name)
	}
	r.str(n, field, "field", &into.Field)
	if f, ok := present(n, "field"); ok && f.kind == nodeString && f.text == "" {
		r.add(f.line, field+".field", "field must be a non-empty string, got ''")
	}
	op, ok := present(n, "operator")
	if !ok {
		return
	}
	into.Operator = Operator(op.text)
	if op.kind != nodeString || !into.Operator.valid() {
		r.add(op.line, field+".operator", "operator must be one of eq, ne, gt, lt, gte, lte, in, not_in, contains, matches, got %s", op.repr())
		return
	}
	target, ok := n.get("value") // null is a value here
	if !ok {
		r.add(n.line, field+".value", "value is missing; a condition has exactly field, operator and value")
		return
	}
	r.target(target, field+".value", into)
}

// target reads the value of a condition and refuses what can never work with
// the operator.
func (r *documentReader) target(n *node, field string, into *Condition) {
	if bad := findAmbiguous(n); bad != nil {
		r.add(bad.line, field, "%s means different things to YAML 1.1 and 1.2; put it in quotes, or write true, false or a plain decimal number", bad.text)
		return
	}
	v, err := n.value()
	if err != nil {
		r.add(n.line, field, "%v", err)
		return
	}
	into.Value = v
	if msg := targetProblem(into.Operator, v); msg != "" {
		r.add(n.line, field, "%s", msg)
		return
	}
	if into.Operator != OpMatches {
		return
	}
	search, err := r.searches.compile(v.Str())
	if err != nil {
		r.add(n.line, field, "invalid regex %s: %v", value.Quote(clip(v.Str(), 200)), err)
		return
	}
	into.search = search
}

func findAmbiguous(n *node) *node {
	if n.ambiguous() {
		return n
	}
	for i := range n.items {
		if bad := findAmbiguous(&n.items[i]); bad != nil {
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
			return fmt.Sprintf("%s needs a number, a string or a list of those, got %s", op, clip(v.Repr(), 100))
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
