package alone

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What rules of a ruleset look at, how that is drawn, and what the reference says of it.

// A clause is one node of a when.
type clause struct {
	all, any           []*clause
	not                *clause
	selector, operator string
	operand            any
}

// written is a clause as files have it.
func (c *clause) written() any {
	list := func(of []*clause) (all []any) {
		for _, part := range of {
			all = append(all, part.written())
		}
		return all
	}
	switch {
	case c.not != nil:
		return map[string]any{"not": c.not.written()}
	case c.all != nil:
		return map[string]any{"all": list(c.all)}
	case c.any != nil:
		return map[string]any{"any": list(c.any)}
	}
	return map[string]any{c.selector: map[string]any{c.operator: c.operand}}
}

// A truth is what a clause comes to. What cannot be judged is neither, and its rule applies.
type truth int

const (
	isNot truth = iota
	is
	unsure
)

func truthOf(b bool) truth {
	if b {
		return is
	}
	return isNot
}

// judge is what the reference says of a clause, given what each selector selects. The first
// part that settles an all or an any ends it.
func (c *clause) judge(call map[string]any) truth {
	settled := func(parts []*clause, goesOn truth) truth {
		for _, part := range parts {
			if t := part.judge(call); t != goesOn {
				return t
			}
		}
		return goesOn
	}
	switch {
	case c.not != nil:
		return []truth{isNot: is, is: isNot, unsure: unsure}[c.not.judge(call)]
	case c.all != nil:
		return settled(c.all, is)
	case c.any != nil:
		return settled(c.any, isNot)
	}
	got, there := call[c.selector]
	if c.operator == "exists" {
		return truthOf(there == c.operand.(bool))
	}
	if !there {
		return isNot
	}
	switch c.operator {
	case "equals":
		return truthOf(got == c.operand)
	case "not_equals":
		return truthOf(got != c.operand)
	case "in":
		return truthOf(slices.Contains(c.operand.([]any), got))
	case "not_in":
		return truthOf(!slices.Contains(c.operand.([]any), got))
	}
	if than, numbers := c.operand.(int); numbers {
		n, ok := got.(int)
		if !ok {
			return unsure
		}
		return truthOf(map[string]bool{"gt": n > than, "gte": n >= than, "lt": n < than, "lte": n <= than}[c.operator])
	}
	text, ok := got.(string)
	if !ok {
		return unsure
	}
	one, many := c.operand.(string)
	if !many {
		return truthOf(slices.ContainsFunc(c.operand.([]any), func(x any) bool { return fits(c.operator, text, x.(string)) }))
	}
	return truthOf(fits(c.operator, text, one))
}

// fits is what an operator on texts says of two of them.
func fits(operator, text, operand string) bool {
	switch operator {
	case "contains", "contains_any":
		return strings.Contains(text, operand)
	case "starts_with":
		return strings.HasPrefix(text, operand)
	case "ends_with":
		return strings.HasSuffix(text, operand)
	}
	return regexp.MustCompile(operand).MatchString(text)
}

var (
	someTexts = []string{"ab", "abc", "bc", "cd"}
	someTools = []string{"*", "*", "ab", "a*", "?c", "[bc]*"}
)

// selectors are what rules look at; one of which the other type is drawn as well has both.
var selectors = []struct {
	name           string
	texts, numbers bool
}{
	{"args.n", false, true}, {"args.n", false, true}, {"args.s", true, false}, {"args.s", true, false}, {"args.deep.s", true, false},
	{"args.b", false, false}, {"tool.name", true, false}, {"environment", true, false}, {"principal.role", true, false},
	{"principal.claims.team", true, false}, {"metadata.m", true, true}, {"env.E", true, true}, {"env.F", true, true},
}

func (s *script) number() int  { return s.rng.IntN(4) }
func (s *script) text() string { return pick(s, someTexts...) }

// clause draws one that goes no deeper than depth.
func (s *script) clause(depth int) *clause {
	parts := func() (all []*clause) {
		for range 1 + s.rng.IntN(3) {
			all = append(all, s.clause(depth-1))
		}
		return all
	}
	if depth > 0 {
		switch s.rng.IntN(6) {
		case 0:
			return &clause{all: parts()}
		case 1:
			return &clause{any: parts()}
		case 2:
			return &clause{not: s.clause(depth - 1)}
		}
	}
	of := selectors[s.rng.IntN(len(selectors))]
	operators := []string{"exists", "equals", "not_equals"}
	if of.texts || of.numbers {
		operators = append(operators, "in", "not_in")
	}
	if of.numbers {
		operators = append(operators, onNumbers...)
	}
	if of.texts {
		operators = append(operators, onTexts...)
	}
	return s.leaf(of.name, pick(s, operators...), of.texts, of.numbers)
}

var (
	onNumbers = []string{"gt", "gte", "lt", "lte"}
	onTexts   = []string{"contains", "contains_any", "starts_with", "ends_with", "matches", "matches_any"}
)

// leaf draws what an operator compares with.
func (s *script) leaf(selector, operator string, texts, numbers bool) *clause {
	c := &clause{selector: selector, operator: operator}
	one := func() any {
		switch {
		case selector == "environment" && s.rng.IntN(2) == 0:
			return "production" // where nobody says another
		case !texts && !numbers:
			return s.rng.IntN(2) == 0
		case numbers && (!texts || s.rng.IntN(2) == 0):
			return s.number()
		}
		return s.text()
	}
	switch operator {
	case "exists":
		c.operand = s.rng.IntN(2) == 0
	case "equals", "not_equals":
		c.operand = one()
	case "in", "not_in":
		c.operand = []any{one(), one()}
	case "gt", "gte", "lt", "lte":
		c.operand = s.number()
	case "contains", "starts_with", "ends_with":
		c.operand = pick(s, "a", "b", "c", "bc")
	case "contains_any":
		c.operand = []any{pick(s, "a", "d"), pick(s, "bc", "cd")}
	case "matches":
		c.operand = pick(s, "^a", "c$", "b", "^[a-b]+$")
	case "matches_any":
		c.operand = []any{pick(s, "^a", "d$"), pick(s, "^b", "bc$")}
	}
	return c
}

// each draws a rule for each operator, all of which only observe.
func (s *script) each() (rules []*edict) {
	add := func(selector string, texts bool, operators ...string) {
		for _, operator := range operators {
			rules = append(rules, &edict{
				id: "o-" + operator, tool: "*", action: "block", message: operator, mode: "observe", when: s.leaf(selector, operator, texts, !texts),
			})
		}
	}
	add("args.n", false, "exists", "equals", "in")
	add("args.n", false, onNumbers...)
	add("args.s", true, "not_equals", "not_in")
	add("args.s", true, onTexts...)
	return rules
}

// ruleset draws one with rules of these ids. Most only observe, so that an answer tells of
// many of them.
func (s *script) ruleset(name string, ids ...string) *ruleset {
	r := &ruleset{name: name, mode: pick(s, "enforce", "observe", "observe")}
	for _, id := range ids {
		r.rules = append(r.rules, &edict{
			id: id, tool: pick(s, someTools...), action: pick(s, "block", "ask"), message: pick(s, "no", id+" {args.s} of {principal.role}", "in {environment}: {nowhere} {env.E}"),
			mode: pick(s, "", "", "observe", "enforce"), disabled: s.rng.IntN(6) == 0, when: s.clause(2),
		})
	}
	return r
}

// selected draws a call, and says what selectors select of it.
func (s *script) selected(pinned map[string]string) (*v1.BeginCallRequest, map[string]any) {
	req := s.call(s.text())
	call := map[string]any{"tool.name": req.Tool, "environment": "production"}
	seldom := func() bool { return s.rng.IntN(5) == 0 }
	// set puts something where a selector finds it, or null, or nothing at all.
	set := func(in map[string]any, key, selector string, v any) {
		switch s.rng.IntN(6) {
		case 0:
			in[key] = nil // which is as if it were not there
		case 1, 2:
		default:
			in[key], call[selector] = v, v
		}
	}
	other := func(texts bool) any {
		if texts != seldom() {
			return s.text()
		}
		return s.number()
	}
	arguments, deep := map[string]any{}, map[string]any{}
	set(arguments, "n", "args.n", other(false))
	set(arguments, "s", "args.s", other(true))
	set(arguments, "b", "args.b", s.rng.IntN(2) == 0)
	if set(deep, "s", "args.deep.s", other(true)); !seldom() {
		arguments["deep"] = deep
	} else {
		arguments["deep"] = "s" // there is nothing in a text
		delete(call, "args.deep.s")
	}
	about, principal, claims, env, metadata := map[string]any{}, map[string]any{}, map[string]any{}, map[string]any{}, map[string]any{}
	set(principal, "role", "principal.role", other(true))
	set(claims, "team", "principal.claims.team", other(true))
	principal["claims"], about["principal"], about["env"] = claims, principal, env
	if s.rng.IntN(2) == 0 {
		about["environment"] = s.text()
		call["environment"] = about["environment"]
	}
	set(env, "F", "env.F", other(true))
	env["E"] = s.text() // it is pinned, whatever the call says
	call["env.E"] = pinned["env.E"]
	if n, err := strconv.Atoi(pinned["env.E"]); err == nil {
		call["env.E"] = n
	}
	set(metadata, "m", "metadata.m", other(true))
	about["metadata"] = map[string]any{"m": s.text()} // nor is this what brings it
	encoded := func(of map[string]any) string {
		text, _ := json.Marshal(of)
		return string(text)
	}
	req.ArgumentsJson, req.ContextJson = encoded(arguments), encoded(about)
	if text, ok := metadata["m"].(string); ok && s.rng.IntN(2) == 0 {
		req.Metadata = map[string]string{"m": text}
	} else {
		req.MetadataJson = encoded(metadata)
	}
	return req, call
}
