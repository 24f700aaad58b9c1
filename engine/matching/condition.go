package matching

import (
	"errors"
	"fmt"
	"strings"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// A Rule is a rule ready to be tested.
type Rule struct {
	*document.Rule
	field  *fieldPath
	fact   *factTest // the field is a fact
	strict bool      // a deny whose field is missing cannot be judged
}

// A fieldPath is the field of a condition, split once. Slots let all rules
// over one field share a single lookup per evaluation.
type fieldPath struct {
	name     string
	segments []string // of a dotted name; nil for a plain one
	root     wellKnown
	slot     int // in State.seen; -1 without
}

// wellKnown marks fields that the service knows better than the context.
type wellKnown uint8

const (
	contextField wellKnown = iota
	toolNameField
	agentIDField
	sessionIDField
	callIDField
	actionTypeField
	argumentsField
	maskedField // a fact's own name as a whole, which a context must not fake
)

func wellKnownField(name string) wellKnown {
	switch name {
	case "tool_name":
		return toolNameField
	case "agent_id":
		return agentIDField
	case "session_id":
		return sessionIDField
	case "call_id":
		return callIDField
	case "action_type":
		return actionTypeField
	case "arguments", "tool_args":
		return argumentsField
	case "tool_calls":
		return maskedField
	}
	return contextField
}

// maxSlots bounds the lookups that one evaluation remembers.
const maxSlots = 8

// Fields hands out slots, one per distinct field of a tree.
type Fields map[string]*fieldPath

func (t Fields) path(name string) *fieldPath {
	if f, ok := t[name]; ok {
		return f
	}
	f := &fieldPath{name: name, slot: -1}
	if len(t) < maxSlots {
		f.slot = len(t)
	}
	root := name
	if strings.Contains(name, ".") {
		f.segments = strings.Split(name, ".")
		root = f.segments[0]
	}
	f.root = wellKnownField(root)
	t[name] = f
	return f
}

// Compile makes a rule ready to be tested, with slots from fields.
func Compile(r *document.Rule, fields Fields, strict bool) *Rule {
	return &Rule{
		Rule:   r,
		field:  fields.path(r.Condition.Field),
		fact:   newFactTest(&r.Condition),
		strict: strict && r.Action.Restricts(),
	}
}

// errMissing is why strict mode cannot judge a rule that denies or asks.
var errMissing = errors.New("the field is missing, and in strict mode a rule that denies or asks needs it")

// Matches tests the rule. An error means that it cannot be judged, which
// denies the whole call (policy engine spec 16.1).
func (r *Rule) Matches(e Evaluation) (bool, error) {
	if r.fact != nil && e.In.Facts != nil {
		return r.matchesFact(e)
	}
	v := e.lookup(r.field)
	if v == nil {
		if r.strict {
			return false, errMissing
		}
		return false, nil // policy engine spec 5.2
	}
	if r.Condition.Operator == document.OpMatches {
		return e.finds(r.Condition.Search, v.Str())
	}
	return Holds(&r.Condition, *v)
}

// finds searches a text for the expression of a matches condition. One search
// is linear in the text; a thousand of them over a long one may still be more
// than a caller can wait for.
func (e Evaluation) finds(s *pattern.Searcher, text string) (bool, error) {
	if !e.mayTake(text) {
		return false, ErrSearchTime
	}
	return s.Match(text), nil
}

func (r *Rule) matchesFact(e Evaluation) (bool, error) {
	t := r.fact
	switch {
	case t.typeError:
		return false, typeError(r.Condition.Operator, value.OfInt(0), r.Condition.Value)
	case t.asText:
		x, premise := e.In.Facts.Exact(t.kind, t.tool)
		e.AddPremise(premise)
		return r.Condition.Search.Match(value.OfInt(x).Str()), nil
	}
	truth, lo, hi := t.match(e.In.Facts.Read(t.kind, t.tool))
	e.AddPremise(call.Premise{Fact: t.kind, Name: t.tool, Lo: lo, Hi: hi})
	return truth, nil
}

// Holds tests a value that is present against the condition, with Python's
// meaning of the operators. An error is a pair of types that cannot be
// compared.
func Holds(c *document.Condition, v value.Value) (bool, error) {
	switch c.Operator {
	case document.OpEq:
		return value.Equal(v, c.Value), nil
	case document.OpNe:
		return !value.Equal(v, c.Value), nil
	case document.OpIn:
		return member(document.OpIn, v, c.Value)
	case document.OpNotIn:
		in, err := member(document.OpNotIn, v, c.Value)
		return !in && err == nil, err
	case document.OpContains:
		return member(document.OpContains, c.Value, v)
	case document.OpMatches:
		return c.Search.Match(v.Str()), nil
	}
	order, err := value.Compare(v, c.Value)
	if err != nil {
		return false, typeError(c.Operator, v, c.Value)
	}
	switch c.Operator {
	case document.OpGt:
		return order > 0, nil
	case document.OpGte:
		return order >= 0, nil
	case document.OpLt:
		return order < 0, nil
	case document.OpLte:
		return order <= 0, nil
	}
	return false, fmt.Errorf("the operator %q is unknown", c.Operator)
}

// member is Python's "item in container".
func member(op document.Operator, item, container value.Value) (bool, error) {
	switch container.Kind() {
	case value.String:
		text, _ := container.AsString()
		part, ok := item.AsString()
		if !ok {
			return false, typeError(op, item, container)
		}
		return strings.Contains(text, part), nil
	case value.List:
		for i := range container.Len() {
			if value.Equal(item, container.Index(i)) {
				return true, nil
			}
		}
		return false, nil
	case value.Map:
		switch item.Kind() {
		case value.List, value.Map:
			return false, typeError(op, item, container)
		case value.String:
			name, _ := item.AsString()
			_, ok := container.Get(name)
			return ok, nil
		}
		return false, nil
	}
	return false, typeError(op, item, container)
}

// typeError names the types and never the values, which may be secret.
func typeError(op document.Operator, a, b value.Value) error {
	return fmt.Errorf("%s cannot work on %s and %s", op, source.TypeName(a), source.TypeName(b))
}
