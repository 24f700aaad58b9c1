package engine

import (
	"errors"
	"fmt"
	"time"

	"example.com/govnode/engine/value"
)

// An evaluation is the working state of one judgement. It lives on the stack
// of Evaluate and is never shared.
type evaluation struct {
	in   Input
	tool string      // effective name; empty if nobody said one
	args value.Value // effective arguments; null if nobody gave any

	// given says that the request itself carried arguments, so that the
	// context cannot put others in their place.
	given bool

	seen  [maxSlots]*value.Value // fields of the context; nil: missing
	known uint8                  // slots looked up
	named value.Value            // the field of the request itself that was looked up last

	premises []Premise
	trace    []string

	confidence float64 // what the call needs, by the documents that apply

	start   time.Duration // by now()
	ceiling time.Duration // how long texts may be searched; 0 sets no bound
}

// errSearchTime is why an evaluation was given up.
var errSearchTime = errors.New("the evaluation took too long")

// longText is the length from which searching a text is worth a look at the
// clock first.
const longText = 4 << 10

// mayTake reports whether there is time left to search a text.
func (e *evaluation) mayTake(text string) bool {
	return len(text) < longText || e.ceiling == 0 || now()-e.start < e.ceiling
}

// begin fills in what follows from the input.
func (e *evaluation) begin() {
	in := &e.in
	e.tool = in.Tool
	if e.tool == "" {
		if v, ok := in.Context.Get("tool_name"); ok {
			e.tool, _ = v.AsString()
		}
	}
	e.setArguments(in.Arguments)
	if e.args.Len() == 0 {
		e.given = false
		for _, name := range [...]string{"arguments", "tool_args"} {
			if v := orMissing(in.Context.Find(name)); v != nil {
				e.args = *v
				break
			}
		}
	}
}

// setArguments puts args in the place of what was judged before, and forgets
// what was looked up in them.
func (e *evaluation) setArguments(args value.Value) {
	e.args, e.given = args, true
	e.known = 0
}

// lookup finds the value of a field, nil if it is missing, be it null or absent.
// What it points to stands until the next lookup.
func (e *evaluation) lookup(f *fieldPath) *value.Value {
	if f.root != contextField {
		if v, decided := e.findWellKnown(f); decided {
			return v
		}
	}
	if f.slot < 0 {
		return e.find(f)
	}
	if bit := uint8(1) << f.slot; e.known&bit == 0 {
		e.known |= bit
		e.seen[f.slot] = e.find(f)
	}
	return e.seen[f.slot]
}

// find looks into the context. A literal key wins over a path; where it is null
// it ends the search.
func (e *evaluation) find(f *fieldPath) *value.Value {
	if v := e.in.Context.Find(f.name); v != nil {
		return orMissing(v)
	}
	if f.segments == nil {
		return nil
	}
	// The first step is taken here, so that nothing that is kept in e can point
	// into e itself, which would move it to the heap.
	return walk(e.in.Context.Find(f.segments[0]), f.segments[1:])
}

// orMissing is v, or nil where it is null or absent.
func orMissing(v *value.Value) *value.Value {
	if v == nil || v.Kind() == value.Null {
		return nil
	}
	return v
}

// findWellKnown answers for fields that the request itself carries.
func (e *evaluation) findWellKnown(f *fieldPath) (v *value.Value, decided bool) {
	switch {
	case f.root == argumentsField:
		switch {
		case !e.given:
			return nil, false
		case f.segments == nil:
			return orMissing(&e.args), true
		}
		return walk(&e.args, f.segments[1:]), true
	case f.root == maskedField:
		return nil, e.in.Facts != nil
	case f.segments != nil:
		return nil, false
	}
	text := e.textOf(f.root)
	if text == "" {
		// A session has the agent that it was opened for, or none; a context
		// cannot name another.
		return nil, f.root == agentIDField && e.in.SessionID != ""
	}
	e.named = value.OfString(text)
	return &e.named, true
}

// textOf is what the request itself says in a field; empty where it leaves that
// to the context.
func (e *evaluation) textOf(f wellKnown) string {
	switch f {
	case toolNameField:
		return e.in.Tool
	case agentIDField:
		return e.in.AgentID
	case sessionIDField:
		return e.in.SessionID
	case callIDField:
		return e.in.CallID
	case actionTypeField:
		// Without a session the caller may describe a call of another kind.
		if _, said := e.in.Context.Get("action_type"); !said || e.in.SessionID != "" {
			return e.in.Kind.String()
		}
	}
	return ""
}

// walk follows segments through mappings and lists, from v or from nothing. An
// index is 0 or a number without a leading zero.
func walk(v *value.Value, segments []string) *value.Value {
	for _, s := range segments {
		if v == nil {
			return nil
		}
		switch v.Kind() {
		case value.Map:
			v = v.Find(s)
		case value.List:
			i, ok := listIndex(s)
			if !ok {
				return nil
			}
			v = v.Item(i)
		default:
			return nil
		}
	}
	return orMissing(v)
}

func listIndex(s string) (int, bool) {
	if s == "" || len(s) > 9 || (len(s) > 1 && s[0] == '0') {
		return 0, false
	}
	n := 0
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}

// addPremise narrows what is already known of the same fact.
func (e *evaluation) addPremise(p Premise) {
	p.Lo = max(p.Lo, 0) // no fact is ever negative
	for i := range e.premises {
		have := &e.premises[i]
		if have.Fact == p.Fact && have.Name == p.Name {
			have.Lo, have.Hi = max(have.Lo, p.Lo), min(have.Hi, p.Hi)
			return
		}
	}
	e.premises = append(e.premises, p)
}

func (e *evaluation) explain(format string, args ...any) {
	e.trace = append(e.trace, fmt.Sprintf(format, args...))
}
