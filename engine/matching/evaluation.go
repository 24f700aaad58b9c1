package matching

import (
	"errors"
	"fmt"
	"time"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/value"
)

// An Evaluation is one judgement under way: of which call, and how far it is.
// It is handed on by value. So what a decision takes from its state does not
// make the compiler take the call for kept, which would put every call on the
// heap.
type Evaluation struct {
	In *call.Input // read only
	*State
}

// A State is what is worked out in the course of an evaluation. It lives on the
// stack of Decide and is never shared.
type State struct {
	Tool string // effective name; empty if nobody said one

	// args are the effective arguments, null if nobody gave any; see arguments.
	args    value.Value
	settled bool // args is filled in
	// given says that the request itself carried arguments, so that the
	// context cannot put others in their place.
	given bool

	seen  [maxSlots]*value.Value // fields of the context; nil: missing
	known uint8                  // slots looked up
	named value.Value            // the field of the request itself that was looked up last

	Premises []call.Premise
	Trace    []string
	Chain    []string // names of the documents, once a path has selected them; empty if it is refused

	Confidence float64 // what the call needs, by the documents that apply

	start   time.Duration // by now(), when the first long text was searched; 0 before
	Ceiling time.Duration // how long texts may be searched from then on; 0 sets no bound
}

// ErrSearchTime is why an evaluation was given up.
var ErrSearchTime = errors.New("the evaluation took too long")

// longText is the length from which searching a text is worth a look at the
// clock first.
const longText = 4 << 10

// mayTake reports whether there is time left to search a text.
func (e Evaluation) mayTake(text string) bool {
	return len(text) < longText || e.Ceiling == 0 || e.Searched() < e.Ceiling
}

// Searched is the time since a long text was searched first.
func (e Evaluation) Searched() time.Duration {
	t := Now()
	if e.start == 0 {
		e.start = t
	}
	return t - e.start
}

// Now is a monotonic clock. Reading it costs half of what time.Now does.
func Now() time.Duration { return time.Since(epoch) }

var epoch = time.Now()

// Begun is an evaluation that has begun, for those who decide nothing.
func Begun(in *call.Input) Evaluation {
	e := Evaluation{In: in, State: &State{}}
	e.Begin()
	return e
}

// Begin fills in the effective name of the tool.
func (e Evaluation) Begin() {
	if e.Tool = e.In.Tool; e.Tool == "" {
		if v := e.In.Context.Find("tool_name"); v != nil {
			e.Tool, _ = v.AsString()
		}
	}
}

// OfTool reports whether the call is judged as one of a tool. The kind is the
// caller's word, so a call that names a tool is one whatever it calls itself.
func (e Evaluation) OfTool() bool { return e.In.Kind == call.KindTool || e.Tool != "" }

// Arguments returns the effective arguments. Most rules look at none, so they
// are looked for when somebody asks.
func (e Evaluation) Arguments() value.Value {
	if e.settled {
		return e.args
	}
	e.args, e.given, e.settled = e.In.Arguments, true, true
	if e.args.Len() == 0 {
		e.given = false
		for _, name := range [...]string{"arguments", "tool_args"} {
			if v := orMissing(e.In.Context.Find(name)); v != nil {
				e.args = *v
				break
			}
		}
	}
	return e.args
}

// SetArguments puts args in the place of what was judged before, and forgets
// what was looked up in them.
func (e Evaluation) SetArguments(args value.Value) {
	e.args, e.given, e.settled = args, true, true
	e.known = 0
}

// lookup finds the value of a field, nil if it is missing, be it null or absent.
// What it points to stands until the next lookup.
func (e Evaluation) lookup(f *fieldPath) *value.Value {
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

// ownText returns a field that is a text which the request itself carries, as
// findWellKnown would.
func (e Evaluation) ownText(f *fieldPath) (text string, known bool) {
	if f.root == contextField || f.segments != nil {
		return "", false
	}
	text = e.textOf(f.root)
	return value.Text(text), text != ""
}

// find looks into the context. A literal key wins over a path; where it is null
// it ends the search.
func (e Evaluation) find(f *fieldPath) *value.Value {
	if v := e.In.Context.Find(f.name); v != nil {
		return orMissing(v)
	}
	if f.segments == nil {
		return nil
	}
	// The first step is taken here, so that nothing that is kept in e can point
	// into e itself, which would move it to the heap.
	return walk(e.In.Context.Find(f.segments[0]), f.segments[1:])
}

// orMissing is v, or nil where it is null or absent.
func orMissing(v *value.Value) *value.Value {
	if v == nil || v.Kind() == value.Null {
		return nil
	}
	return v
}

// findWellKnown answers for fields that the request itself carries.
func (e Evaluation) findWellKnown(f *fieldPath) (v *value.Value, decided bool) {
	switch {
	case f.root == argumentsField:
		e.Arguments()
		switch {
		case !e.given:
			return nil, false
		case f.segments == nil:
			return orMissing(&e.args), true
		}
		return walk(&e.args, f.segments[1:]), true
	case f.root == maskedField:
		return nil, e.In.Facts != nil
	case f.segments != nil:
		return nil, false
	}
	text := e.textOf(f.root)
	if text == "" {
		// A session has the agent that it was opened for, or none; a context
		// cannot name another.
		return nil, f.root == agentIDField && e.In.SessionID != ""
	}
	e.named = value.OfString(text)
	return &e.named, true
}

// textOf is what the request itself says in a field; empty where it leaves that
// to the context.
func (e Evaluation) textOf(f wellKnown) string {
	switch f {
	case toolNameField:
		return e.In.Tool
	case agentIDField:
		return e.In.AgentID
	case sessionIDField:
		return e.In.SessionID
	case callIDField:
		return e.In.CallID
	case actionTypeField:
		// Without a session the caller may describe a call of another kind.
		if _, said := e.In.Context.Get("action_type"); !said || e.In.SessionID != "" {
			return e.In.Kind.String()
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

// AddPremise narrows what is already known of the same fact.
func (e Evaluation) AddPremise(p call.Premise) {
	p.Lo = max(p.Lo, 0) // no fact is ever negative
	for i := range e.Premises {
		have := &e.Premises[i]
		if have.Fact == p.Fact && have.Name == p.Name {
			have.Lo, have.Hi = max(have.Lo, p.Lo), min(have.Hi, p.Hi)
			return
		}
	}
	e.Premises = append(e.Premises, p)
}

// Explain adds a line to the trace. Callers ask In.Explain first.
func (e Evaluation) Explain(format string, args ...any) {
	e.Trace = append(e.Trace, fmt.Sprintf(format, args...))
}
