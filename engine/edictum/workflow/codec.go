package workflow

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"example.com/govnode/engine/value"
)

// A State as one text: the one that the SDKs of Edictum keep, with two fields more,
// govnode_open and govnode_asked, which they do not mind.

// Key is the key of the value that is the State of a session in a workflow.
func Key(session, workflow string) string { return "s:" + session + ":workflow:" + workflow + ":state" }

// SessionOf is the session whose State has a key; empty where it is the key of no State.
func SessionOf(key string) string {
	rest, is := strings.CutSuffix(key, ":state")
	const between = ":workflow:"
	i := strings.LastIndex(rest, between) // no name of a workflow has a colon
	if !is || i < 0 || !nameForm.MatchString(rest[i+len(between):]) || !strings.HasPrefix(rest[:i], "s:") {
		return ""
	}
	return rest[len("s:"):i]
}

// Kept is for how long a State is kept behind its last change.
const Kept = 30 * 24 * time.Hour

// Encode writes a State as JSON. Equal States are equal texts.
func (s *State) Encode() string {
	pairs := []value.Pair{
		{Key: "session_id", Value: value.OfString(s.Session)},
		{Key: "active_stage", Value: value.OfString(s.Active)},
		{Key: "completed_stages", Value: texts(s.Completed)},
		{Key: "approvals", Value: mapped(s.Approvals, value.OfString)},
		{Key: "evidence", Value: value.OfMap(
			value.Pair{Key: "reads", Value: texts(s.Reads)},
			value.Pair{Key: "stage_calls", Value: mapped(s.Calls, texts)},
			value.Pair{Key: "mcp_results", Value: mapped(s.Results, func(r []value.Value) value.Value { return value.OfList(r...) })},
		)},
		{Key: "blocked_reason", Value: value.Value{}},
		{Key: "pending_approval", Value: s.Pending.encode()},
		{Key: "last_blocked_action", Value: s.LastBad.encode(true)},
		{Key: "last_recorded_evidence", Value: s.LastGood.encode(false)},
	}
	if s.Blocked != nil {
		pairs[5].Value = value.OfString(*s.Blocked)
	}
	if len(s.Open) > 0 {
		pairs = append(pairs, value.Pair{Key: "govnode_open", Value: mapped(s.Open, Running.encode)})
	}
	if len(s.Asked) > 0 {
		pairs = append(pairs, value.Pair{Key: "govnode_asked", Value: mapped(s.Asked, value.OfString)})
	}
	return value.OfMap(pairs...).JSON()
}

func texts(list []string) value.Value { return value.ListOf(list, value.OfString) }

func mapped[V any](m map[string]V, of func(V) value.Value) value.Value {
	var pairs []value.Pair
	for _, k := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, value.Pair{Key: k, Value: of(m[k])})
	}
	return value.OfMap(pairs...)
}

func (p Pending) encode() value.Value {
	if !p.Required {
		return value.OfMap(value.Pair{Key: "required", Value: value.OfBool(false)})
	}
	return value.OfMap(
		value.Pair{Key: "required", Value: value.OfBool(true)},
		value.Pair{Key: "stage_id", Value: value.OfString(p.Stage)},
		value.Pair{Key: "message", Value: value.OfString(p.Message)},
	)
}

func (n *Note) encode(message bool) value.Value {
	if n == nil {
		return value.Value{}
	}
	pairs := []value.Pair{{Key: "tool", Value: value.OfString(n.Tool)}, {Key: "summary", Value: value.OfString(n.Summary)}}
	if message {
		pairs = append(pairs, value.Pair{Key: "message", Value: value.OfString(n.Message)})
	}
	return value.OfMap(append(pairs, value.Pair{Key: "timestamp", Value: value.OfString(n.Time)})...)
}

func (r Running) encode() value.Value {
	pairs := []value.Pair{{Key: "stage", Value: value.OfString(r.Stage)}, {Key: "tool", Value: value.OfString(r.Tool)}}
	if r.Command != "" {
		pairs = append(pairs, value.Pair{Key: "command", Value: value.OfString(r.Command)})
	}
	if r.File != "" {
		pairs = append(pairs, value.Pair{Key: "file", Value: value.OfString(r.File)})
	}
	return value.OfMap(pairs...)
}

// OpenIn is how many calls run by what a State is written as; 0 where it is none.
func OpenIn(text string) int {
	v, err := value.Parse([]byte(text))
	if err != nil {
		return 0
	}
	return len(mapIn(v, "govnode_open", runningOf))
}

// Decode reads a State of this workflow. One that is damaged is an error: to begin anew
// would be to forget what was done.
func (d *Definition) Decode(session, text string) (*State, error) {
	v, err := value.Parse([]byte(text))
	if err != nil || v.Kind() != value.Map {
		return nil, errors.Join(fmt.Errorf("the state of the workflow %s is no JSON object", d.Name), err)
	}
	ev, _ := v.Get("evidence")
	s := &State{
		Session: session, Active: v.TextAt("active_stage"), Completed: textsIn(v, "completed_stages"), Approvals: mapIn(v, "approvals", textOf),
		Reads: textsIn(ev, "reads"), Calls: mapIn(ev, "stage_calls", textList), Results: mapIn(ev, "mcp_results", mappings),
		LastBad: noteIn(v, "last_blocked_action"), LastGood: noteIn(v, "last_recorded_evidence"),
		Open: mapIn(v, "govnode_open", runningOf), Asked: mapIn(v, "govnode_asked", textOf),
	}
	if why, ok := v.Get("blocked_reason"); ok && why.Kind() == value.String {
		s.Blocked = new(textOf(why))
	}
	if p, ok := v.Get("pending_approval"); ok {
		required, _ := p.Get("required")
		if yes, _ := required.AsBool(); yes {
			s.Pending = Pending{Required: true, Stage: p.TextAt("stage_id"), Message: p.TextAt("message")}
		}
	}
	if s.Active != "" && !d.Has(s.Active) {
		return nil, fmt.Errorf("the workflow %s has no stage %q, where its state stands", d.Name, s.Active)
	}
	return s, nil
}

func textOf(v value.Value) string {
	s, _ := v.AsString()
	return s
}

func textList(v value.Value) (list []string) {
	if v.Kind() != value.List {
		return nil
	}
	for item := range v.Items() {
		list = append(list, textOf(item))
	}
	return list
}

func textsIn(v value.Value, name string) []string {
	inner, _ := v.Get(name)
	return textList(inner)
}

func mapIn[V any](v value.Value, name string, of func(value.Value) V) map[string]V {
	inner, ok := v.Get(name)
	if !ok || inner.Kind() != value.Map || inner.Len() == 0 {
		return nil
	}
	m := map[string]V{}
	for k, item := range inner.All() {
		m[k] = of(item)
	}
	return m
}

func mappings(v value.Value) (list []value.Value) {
	if v.Kind() != value.List {
		return nil
	}
	for item := range v.Items() {
		if item.Kind() == value.Map {
			list = append(list, evidence(item))
		}
	}
	return list
}

func noteIn(v value.Value, name string) *Note {
	inner, ok := v.Get(name)
	if !ok || inner.Kind() != value.Map {
		return nil
	}
	return &Note{Tool: inner.TextAt("tool"), Summary: inner.TextAt("summary"), Message: inner.TextAt("message"), Time: inner.TextAt("timestamp")}
}

func runningOf(v value.Value) Running {
	return Running{Stage: v.TextAt("stage"), Tool: v.TextAt("tool"), Command: v.TextAt("command"), File: v.TextAt("file")}
}
