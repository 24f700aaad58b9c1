package authoring

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/external"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/nearest"
)

// Tables of tests, as they are read from a file.

// A tableCase is one case of a table of tests.
type tableCase struct {
	Line   int
	Name   string
	Input  call.Input
	Stubs  map[string]external.GuardrailResult
	Expect Expectation
}

// Expectation holds what a case states; nil is not compared.
type Expectation struct {
	Allowed                        *bool
	Action, Rule, Reason, Category *string
}

type tableReader struct {
	*source.Problems
	guardrails []string // that may have stubs
}

// ReadTable reads a table for a policy that has the named guardrails.
func ReadTable(f source.File, guardrails []string) ([]tableCase, []source.Problem) {
	r := &tableReader{Problems: &source.Problems{Path: f.Path}, guardrails: guardrails}
	return r.table(f), r.List
}

func (r *tableReader) table(f source.File) []tableCase {
	n, probs := source.Parse(f.Path, f.Content)
	if probs != nil {
		r.List = probs
		return nil
	}
	list, ok := n.Get("cases")
	if !ok || list.Kind != source.List {
		r.Add(n.Line, "cases", "a table of tests is a mapping with a list of cases")
		return nil
	}
	r.known(n, "", "cases", "stubs")
	all := r.stubs(n, "stubs", nil)
	var cases []tableCase
	for i := range list.Items {
		if c, ok := r.testCase(&list.Items[i], fmt.Sprintf("cases[%d]", i)); ok {
			c.Stubs = r.stubs(&list.Items[i], fmt.Sprintf("cases[%d].stubs", i), all)
			cases = append(cases, c)
		}
	}
	return cases
}

func (r *tableReader) testCase(n *source.Node, field string) (tableCase, bool) {
	c := tableCase{Line: n.Line, Name: field}
	if n.Kind != source.Map {
		r.Add(n.Line, field, "a case must be a mapping, got %s", n.TypeName())
		return c, false
	}
	before := len(r.List)
	r.known(n, field, "name", "tool", "kind", "agent_id", "session_id", "call_id", "arguments", "context", "metadata", "stubs", "facts", "order", "expect")
	for name, into := range map[string]*string{
		"name": &c.Name, "tool": &c.Input.Tool, "agent_id": &c.Input.AgentID,
		"session_id": &c.Input.SessionID, "call_id": &c.Input.CallID,
	} {
		if s := r.text(n, field, name); s != nil {
			*into = *s
		}
	}
	c.Input.Kind = word(r, n, field, "kind", map[string]call.Kind{"tool": call.KindTool, "model": call.KindModel, "agent": call.KindAgent, "handoff": call.KindHandoff, "sampling": call.KindSampling})
	c.Input.Order = word(r, n, field, "order", map[string]call.Order{"union": call.OrderUnion, "interceptor": call.OrderInterceptor, "pre_execute": call.OrderPreExecute})
	c.Input.Arguments = r.mapping(n, field, "arguments")
	c.Input.Context = call.WithMetadata(r.mapping(n, field, "context"), r.mapping(n, field, "metadata"))
	if f, ok := source.Present(n, "facts"); ok {
		c.Input.Facts = r.facts(f, field+".facts")
		c.Input.CheckLimits = true
	}
	c.Expect = r.expectation(n, field)
	return c, len(r.List) == before
}

func (r *tableReader) expectation(n *source.Node, field string) Expectation {
	field += ".expect"
	f, ok := source.Present(n, "expect")
	if !ok || f.Kind != source.Map || len(f.Keys) == 0 {
		r.Add(n.Line, field, "expect must say at least one of allowed, action, rule, reason, category")
		return Expectation{}
	}
	r.known(f, field, "allowed", "action", "rule", "reason", "category")
	x := Expectation{
		Action: r.text(f, field, "action"), Rule: r.text(f, field, "rule"),
		Reason: r.text(f, field, "reason"), Category: r.text(f, field, "category"),
	}
	if a, ok := source.Present(f, "allowed"); ok {
		if a.Kind != source.Bool {
			r.Add(a.Line, field+".allowed", "allowed must be true or false, got %s", a.Repr())
		}
		x.Allowed = new(strings.EqualFold(a.Text, "true"))
	}
	if x.Action != nil && !document.Action(*x.Action).Valid() {
		r.Add(f.Line, field+".action", "action must be allow, deny, audit, block or ask, got %s", value.Quote(*x.Action))
	}
	return x
}

// maxSeconds keeps seconds within a time.Duration.
const maxSeconds = math.MaxInt64 / int64(time.Second)

func (r *tableReader) facts(n *source.Node, field string) *call.Facts {
	facts := &call.Facts{}
	if n.Kind != source.Map {
		r.Add(n.Line, field, "facts must be a mapping, got %s", n.TypeName())
		return facts
	}
	r.known(n, field, "call_count", "attempts", "tokens_used", "active_slots", "elapsed_seconds", "tool_calls")
	for name, into := range map[string]*int64{
		"call_count": &facts.CallCount, "attempts": &facts.Attempts,
		"tokens_used": &facts.TokensUsed, "active_slots": &facts.ActiveSlots,
	} {
		if f, ok := source.Present(n, name); ok {
			*into = r.Count(f, source.Join(field, name), 0, math.MaxInt64)
		}
	}
	if f, ok := source.Present(n, "elapsed_seconds"); ok {
		s, isNumber := f.Number()
		if !isNumber || !(s >= 0 && s < float64(maxSeconds)) {
			r.Add(f.Line, field+".elapsed_seconds", "elapsed_seconds must be a number of seconds, got %s", f.Repr())
		} else {
			facts.Elapsed = time.Duration(s * float64(time.Second))
		}
	}
	calls := map[string]int64{}
	if f, ok := source.Present(n, "tool_calls"); ok {
		for i, k := range f.Keys {
			calls[k.Text] = r.Count(&f.Items[i], source.Join(field+".tool_calls", k.Text), 0, math.MaxInt64)
		}
	}
	facts.ToolCalls = func(tool string) int64 { return calls[tool] }
	return facts
}

func (r *tableReader) text(n *source.Node, field, name string) *string {
	f, ok := source.Present(n, name)
	if !ok {
		return nil
	}
	if f.Kind != source.String {
		r.Add(f.Line, source.Join(field, name), "%s must be a string, got %s: %s", name, f.TypeName(), f.Repr())
		return nil
	}
	return &f.Text
}

func (r *tableReader) mapping(n *source.Node, field, name string) value.Value {
	f, ok := source.Present(n, name)
	if !ok {
		return value.Value{}
	}
	v, err := f.Value()
	if f.Kind != source.Map || err != nil {
		r.Add(f.Line, source.Join(field, name), "%s must be a mapping, got %s", name, f.TypeName())
		return value.Value{}
	}
	return v
}

func (r *tableReader) known(n *source.Node, field string, names ...string) {
	for _, k := range n.Keys {
		if !slices.Contains(names, k.Text) {
			r.Add(k.Line, source.Join(field, k.Text), "unknown field%s; known are %s", nearest.Hint(k.Text, "", names), strings.Join(names, ", "))
		}
	}
}

func word[T any](r *tableReader, n *source.Node, field, name string, words map[string]T) T {
	var zero T
	s := r.text(n, field, name)
	if s == nil {
		return zero
	}
	v, ok := words[*s]
	if !ok {
		r.Add(n.Line, source.Join(field, name), "%s must be one of %s, got %s", name, strings.Join(slices.Sorted(maps.Keys(words)), ", "), value.Quote(*s))
	}
	return v
}
