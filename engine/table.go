package engine

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"example.com/govnode/engine/value"
)

// A tableCase is one case of a table of tests.
type tableCase struct {
	line   int
	name   string
	input  Input
	stubs  map[string]GuardrailResult
	expect expectation
}

// expectation holds what a case states; nil is not compared.
type expectation struct {
	allowed                        *bool
	action, rule, reason, category *string
}

type tableReader struct {
	*problems
	guardrails []string // that may have stubs
}

// readTable reads a table for a policy that has the named guardrails.
func readTable(f File, guardrails []string) ([]tableCase, []Problem) {
	r := &tableReader{problems: &problems{path: f.Path}, guardrails: guardrails}
	return r.table(f), r.list
}

func (r *tableReader) table(f File) []tableCase {
	n, probs := parseText(f.Path, f.Content)
	if probs != nil {
		r.list = probs
		return nil
	}
	list, ok := n.get("cases")
	if !ok || list.kind != nodeList {
		r.add(n.line, "cases", "a table of tests is a mapping with a list of cases")
		return nil
	}
	r.known(n, "", "cases", "stubs")
	all := r.stubs(n, "stubs", nil)
	var cases []tableCase
	for i := range list.items {
		if c, ok := r.testCase(&list.items[i], fmt.Sprintf("cases[%d]", i)); ok {
			c.stubs = r.stubs(&list.items[i], fmt.Sprintf("cases[%d].stubs", i), all)
			cases = append(cases, c)
		}
	}
	return cases
}

func (r *tableReader) testCase(n *node, field string) (tableCase, bool) {
	c := tableCase{line: n.line, name: field}
	if n.kind != nodeMap {
		r.add(n.line, field, "a case must be a mapping, got %s", n.typeName())
		return c, false
	}
	before := len(r.list)
	r.known(n, field, "name", "tool", "kind", "agent_id", "session_id", "call_id", "arguments", "context", "metadata", "stubs", "facts", "order", "expect")
	for name, into := range map[string]*string{
		"name": &c.name, "tool": &c.input.Tool, "agent_id": &c.input.AgentID,
		"session_id": &c.input.SessionID, "call_id": &c.input.CallID,
	} {
		if s := r.text(n, field, name); s != nil {
			*into = *s
		}
	}
	c.input.Kind = word(r, n, field, "kind", map[string]Kind{"tool": KindTool, "model": KindModel, "agent": KindAgent, "handoff": KindHandoff})
	c.input.Order = word(r, n, field, "order", map[string]Order{"union": OrderUnion, "interceptor": OrderInterceptor, "pre_execute": OrderPreExecute})
	c.input.Arguments = r.mapping(n, field, "arguments")
	c.input.Context = WithMetadata(r.mapping(n, field, "context"), r.mapping(n, field, "metadata"))
	if f, ok := present(n, "facts"); ok {
		c.input.Facts = r.facts(f, field+".facts")
		c.input.CheckLimits = true
	}
	c.expect = r.expectation(n, field)
	return c, len(r.list) == before
}

func (r *tableReader) expectation(n *node, field string) expectation {
	field += ".expect"
	f, ok := present(n, "expect")
	if !ok || f.kind != nodeMap || len(f.keys) == 0 {
		r.add(n.line, field, "expect must say at least one of allowed, action, rule, reason, category")
		return expectation{}
	}
	r.known(f, field, "allowed", "action", "rule", "reason", "category")
	x := expectation{
		action: r.text(f, field, "action"), rule: r.text(f, field, "rule"),
		reason: r.text(f, field, "reason"), category: r.text(f, field, "category"),
	}
	if a, ok := present(f, "allowed"); ok {
		if a.kind != nodeBool {
			r.add(a.line, field+".allowed", "allowed must be true or false, got %s", a.repr())
		}
		x.allowed = new(strings.EqualFold(a.text, "true"))
	}
	if x.action != nil && !Action(*x.action).valid() {
		r.add(f.line, field+".action", "action must be allow, deny, audit or block, got %s", value.Quote(*x.action))
	}
	return x
}

// maxSeconds keeps seconds within a time.Duration.
const maxSeconds = math.MaxInt64 / int64(time.Second)

func (r *tableReader) facts(n *node, field string) *Facts {
	facts := &Facts{}
	if n.kind != nodeMap {
		r.add(n.line, field, "facts must be a mapping, got %s", n.typeName())
		return facts
	}
	r.known(n, field, "call_count", "attempts", "tokens_used", "active_slots", "elapsed_seconds", "tool_calls")
	for name, into := range map[string]*int64{
		"call_count": &facts.CallCount, "attempts": &facts.Attempts,
		"tokens_used": &facts.TokensUsed, "active_slots": &facts.ActiveSlots,
	} {
		if f, ok := present(n, name); ok {
			*into = r.count(f, join(field, name), 0, math.MaxInt64)
		}
	}
	if f, ok := present(n, "elapsed_seconds"); ok {
		s, isNumber := f.number()
		if !isNumber || !(s >= 0 && s < float64(maxSeconds)) {
			r.add(f.line, field+".elapsed_seconds", "elapsed_seconds must be a number of seconds, got %s", f.repr())
		} else {
			facts.Elapsed = time.Duration(s * float64(time.Second))
		}
	}
	calls := map[string]int64{}
	if f, ok := present(n, "tool_calls"); ok {
		for i, k := range f.keys {
			calls[k.text] = r.count(&f.items[i], join(field+".tool_calls", k.text), 0, math.MaxInt64)
		}
	}
	facts.ToolCalls = func(tool string) int64 { return calls[tool] }
	return facts
}

func (r *tableReader) text(n *node, field, name string) *string {
	f, ok := present(n, name)
	if !ok {
		return nil
	}
	if f.kind != nodeString {
		r.add(f.line, join(field, name), "%s must be a string, got %s: %s", name, f.typeName(), f.repr())
		return nil
	}
	return &f.text
}

func (r *tableReader) mapping(n *node, field, name string) value.Value {
	f, ok := present(n, name)
	if !ok {
		return value.Value{}
	}
	v, err := f.value()
	if f.kind != nodeMap || err != nil {
		r.add(f.line, join(field, name), "%s must be a mapping, got %s", name, f.typeName())
		return value.Value{}
	}
	return v
}

func (r *tableReader) known(n *node, field string, names ...string) {
	for _, k := range n.keys {
		if !slices.Contains(names, k.text) {
			r.add(k.line, join(field, k.text), "unknown field; known are %s", strings.Join(names, ", "))
		}
	}
}

func word[T any](r *tableReader, n *node, field, name string, words map[string]T) T {
	var zero T
	s := r.text(n, field, name)
	if s == nil {
		return zero
	}
	v, ok := words[*s]
	if !ok {
		r.add(n.line, join(field, name), "%s must be one of %s, got %s", name, strings.Join(slices.Sorted(maps.Keys(words)), ", "), value.Quote(*s))
	}
	return v
}
