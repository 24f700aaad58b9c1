package alone

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Rules that are drawn anew each time, and the reference that says what they come to.

// A rule is one of a policy that was drawn.
type rule struct {
	name, field, operator, action string
	value                         any
	priority                      int
	override                      bool
}

// matches is what the reference says of a condition; a field that is missing has none.
func (r *rule) matches(fields map[string]any) bool {
	got, there := fields[r.field]
	if !there {
		return false
	}
	number, isNumber := got.(int)
	text, _ := got.(string)
	switch r.operator {
	case "eq":
		return got == r.value
	case "ne":
		return got != r.value
	case "gt":
		return isNumber && number > r.value.(int)
	case "gte":
		return isNumber && number >= r.value.(int)
	case "lt":
		return isNumber && number < r.value.(int)
	case "lte":
		return isNumber && number <= r.value.(int)
	case "in":
		return slices.Contains(r.value.([]any), got)
	case "not_in":
		return !slices.Contains(r.value.([]any), got)
	case "contains":
		return strings.Contains(text, r.value.(string))
	}
	return regexp.MustCompile(r.value.(string)).MatchString(text)
}

// says is what the reference says of a call: of rules in the order of their priority the
// first that matches decides, and one that denies wins over one that asks, wherever it
// stands.
func says(rules []*rule, otherwise string, fields map[string]any) (outcome v1.Outcome, by string) {
	for i, r := range rules {
		if !r.matches(fields) {
			continue
		}
		switch r.action {
		case "allow", "audit":
			return v1.Outcome_OUTCOME_ADMITTED, r.name
		case "deny", "block":
			return v1.Outcome_OUTCOME_DENIED_BY_POLICY, r.name
		}
		for _, other := range rules[i+1:] {
			if (other.action == "deny" || other.action == "block") && other.matches(fields) {
				return v1.Outcome_OUTCOME_DENIED_BY_POLICY, other.name
			}
		}
		return v1.Outcome_OUTCOME_APPROVAL_REQUIRED, r.name
	}
	if otherwise == "deny" {
		return v1.Outcome_OUTCOME_DENIED_BY_POLICY, ""
	}
	return v1.Outcome_OUTCOME_ADMITTED, ""
}

// drawn makes calls under rules that are drawn, and holds each to what the reference says
// of them.
func drawn(s *script) {
	pick := func(of ...string) string { return of[s.rng.IntN(len(of))] }
	var rules []*rule
	for i := range 2 + s.rng.IntN(6) {
		r := &rule{name: fmt.Sprint("r", i), action: pick("allow", "deny", "audit", "ask", "block"), priority: s.rng.IntN(4)}
		switch r.field = pick("arguments.n", "arguments.n", "arguments.s", "tool_name", "role"); r.field {
		case "arguments.n":
			r.operator, r.value = pick("eq", "ne", "gt", "gte", "lt", "lte"), s.rng.IntN(4)
		default:
			switch r.operator = pick("eq", "ne", "in", "not_in", "contains", "matches"); r.operator {
			case "eq", "ne":
				r.value = pick("ab", "bc", "cd")
			case "in", "not_in":
				r.value = []any{pick("ab", "bc"), pick("bc", "cd")}
			case "contains":
				r.value = pick("a", "b", "c")
			case "matches":
				r.value = pick("^a", "b$", "c")
			}
		}
		rules = append(rules, r)
	}
	otherwise := pick("allow", "allow", "deny")
	text := &strings.Builder{}
	fmt.Fprintf(text, "name: rules\ndefaults: {action: %s}\nrules:\n", otherwise)
	for _, r := range rules {
		value, _ := json.Marshal(r.value)
		fmt.Fprintf(text, "  - {name: %s, condition: {field: %s, operator: %s, value: %s}, action: %s, priority: %d}\n", r.name, r.field, r.operator, value, r.action, r.priority)
	}
	if !s.policyWith(text.String()) || !s.session(nil) {
		return
	}
	slices.SortStableFunc(rules, func(a, b *rule) int { return cmp.Compare(b.priority, a.priority) })
	for range 8 {
		fields, arguments, about := map[string]any{}, map[string]any{}, map[string]any{}
		if s.rng.IntN(5) > 0 {
			arguments["n"] = s.rng.IntN(4)
			fields["arguments.n"] = arguments["n"]
		}
		if s.rng.IntN(5) > 0 {
			arguments["s"] = pick("ab", "bc", "cd")
			fields["arguments.s"] = arguments["s"]
		}
		if s.rng.IntN(3) > 0 {
			about["role"] = pick("ab", "bc", "cd")
			fields["role"] = about["role"]
		}
		req := s.call(pick("ab", "bc", "cd"))
		fields["tool_name"] = req.Tool
		a, _ := json.Marshal(arguments)
		c, _ := json.Marshal(about)
		req.ArgumentsJson, req.ContextJson = string(a), string(c)
		want, by := says(rules, otherwise, fields)
		res := s.begin(req)
		if s.over {
			return
		}
		s.wrong(res.Outcome != want || res.Decision.GetMatchedRule() != by, "of %v it says %v, want %v by %q; the policy is\n%s", fields, res, want, by, text)
		ask := &v1.EvaluateRequest{SessionId: s.own, Tool: req.Tool, AgentId: s.own, ArgumentsJson: req.ArgumentsJson, ContextJson: req.ContextJson}
		said, ok := done(s, "evaluate", func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) { return n.policies.Evaluate(ctx, ask) })
		if ok {
			s.wrong(said.Decision.GetAllowed() != (want == v1.Outcome_OUTCOME_ADMITTED) || said.Decision.GetMatchedRule() != by, "of %v Evaluate says %v, want %v by %q; the policy is\n%s", fields, said, want, by, text)
		}
	}
}
