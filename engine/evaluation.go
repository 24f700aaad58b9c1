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

	seen    [maxSlots]value.Value
	known   uint8 // slots looked up
	present uint8 // slots that held a value

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
			if v, ok := in.Context.Get(name); ok && v.Kind() != value.Null {
				e.args = v
				break
			}
		}
	}
}

// setArguments puts args in the place of what was judged before, and forgets
// what was looked up in them.
func (e *evaluation) setArguments(args value.Value) {
	e.args, e.given = args, true
	e.known, e.present = 0, 0
}

// lookup finds the value of a field; null and absent are both missing.
func (e *evaluation) lookup(f *fieldPath) (value.Value, bool) {
	if f.slot < 0 {
		return e.find(f)
	}
	bit := uint8(1) << f.slot
	if e.known&bit == 0 {
		e.known |= bit
		if v, ok := e.find(f); ok {
			e.seen[f.slot] = v
			e.present |= bit
		}
	}
	return e.seen[f.slot], e.present&bit != 0
}

func (e *evaluation) find(f *fieldPath) (value.Value, bool) {
	if v, ok, decided := e.findWellKnown(f); decided {
		return v, ok && v.Kind() != value.Null
	}
	// A literal key wins over a path; where it is null it ends the search.
	if v, ok := e.in.Context.Get(f.name); ok {
		return v, v.Kind() != value.Null
	}
	if f.segments == nil {
		return value.Value{}, false
	}
	return walk(e.in.Context, f.segments)
}

// findWellKnown answers for fields that the request itself carries.
func (e *evaluation) findWellKnown(f *fieldPath) (v value.Value, ok, decided bool) {
	switch f.root {
	case contextField:
		return v, false, false
	case argumentsField:
		if !e.given {
			return v, false, false
		}
		if f.segments == nil {
			return e.args, true, true
		}
		v, ok = walk(e.args, f.segments[1:])
		return v, ok, true
	case maskedField:
		return v, false, e.in.Facts != nil
	}
	if f.segments != nil {
		return v, false, false
	}
	text := ""
	switch f.root {
	case toolNameField:
		text = e.in.Tool
	case agentIDField:
		text = e.in.AgentID
	case sessionIDField:
		text = e.in.SessionID
	case callIDField:
		text = e.in.CallID
	case actionTypeField:
		// Without a session the caller may describe a call of another kind.
		if _, said := e.in.Context.Get("action_type"); !said || e.in.SessionID != "" {
			text = e.in.Kind.String()
		}
	}
	if text == "" {
		// A session has the agent that it was opened for, or none; a context
		// cannot name another.
		return v, false, f.root == agentIDField && e.in.SessionID != ""
	}
	return value.OfString(text), true, true
}

// walk follows segments through mappings and lists. An index is 0 or a number
// without a leading zero.
func walk(v value.Value, segments []string) (value.Value, bool) {
	for _, s := range segments {
		switch v.Kind() {
		case value.Map:
			next, ok := v.Get(s)
			if !ok {
				return value.Value{}, false
			}
			v = next
		case value.List:
			i, ok := listIndex(s)
			if !ok || i >= v.Len() {
				return value.Value{}, false
			}
			v = v.Index(i)
		default:
			return value.Value{}, false
		}
	}
	return v, v.Kind() != value.Null
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
