package alone

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What a policy says of calls.

// ruled makes calls under a policy with rules for all, rules of a folder, and checks of
// limits, and holds each answer to what decides it.
func ruled(s *script) {
	req := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{
		{Path: "limits.yaml", Content: "name: " + s.own + `
max_concurrent: 64
max_tool_calls: 100
max_tokens: 5000
allowed_tools: [search, read, mail, refund]
blocked_patterns: ["DROP TABLE", {pattern: '\b\d{16}\b', type: regex}, {pattern: 'secret*.pem', type: glob}]
`},
		{Path: "governance.yaml", Content: `name: all
rules:
  - {name: watched, condition: {field: tool_name, operator: eq, value: mail}, action: audit, priority: 10}
  - {name: large, condition: {field: arguments.amount, operator: gt, value: 500}, action: deny, priority: 100, message: too much}
  - {name: spent, condition: {field: tokens_used, operator: gte, value: 4000}, action: deny, priority: 90}
  - {name: odd, condition: {field: arguments.q, operator: matches, value: "^[0-9]+$"}, action: deny, priority: 20}
  - {name: low, condition: {field: metadata.level, operator: lt, value: 3}, action: deny, priority: 15}
`},
		{Path: "refunds/governance.yaml", Content: `name: refunds
rules:
  - {name: managers, condition: {field: role, operator: in, value: [manager, owner]}, action: allow, priority: 50}
defaults: {action: deny}
`},
	}}
	if _, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, req)
	}); !ok || !s.session(nil) {
		return
	}
	const admitted, denied = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_DENIED_BY_POLICY
	type try struct {
		tool, arguments, context string
		want                     v1.Outcome
		rule, category           string
		early, metadata          string // the category in the other order of the checks, where it is another; and what the program says of itself
	}
	const notAllowed, pattern, input, confidence = "not_allowed_tool", "blocked_pattern_tool", "blocked_pattern_input", "confidence_threshold"
	tries := []try{
		{"search", `{"q": "shoes"}`, `{}`, admitted, "", "", "", ""},
		{"search", `{"q": "17"}`, `{}`, denied, "odd", "policy_rule", "", ""},
		{"refund", `{"amount": 500}`, `{}`, admitted, "", "", "", ""},
		{"refund", `{"amount": 500.5}`, `{}`, denied, "large", "policy_rule", "", ""},
		{"mail", `{"to": "anna"}`, `{}`, admitted, "watched", "", "", ""},
		{"mail", `{"to": "anna", "amount": 501}`, `{}`, denied, "large", "policy_rule", "", ""},
		{"search", `{"q": "drop table x"}`, `{}`, denied, "", pattern, input, ""},
		{"search", `{"deep": {"in": ["4111111111111111"]}}`, `{}`, denied, "", pattern, input, ""},
		{"read", `{"file": "Secret1.pem"}`, `{}`, denied, "", pattern, input, ""},
		{"read", `{"file": "my secret1.pem"}`, `{}`, admitted, "", "", "", ""}, // a text is matched as a whole
		{"read", `{"file": "secret1.pem.txt"}`, `{}`, admitted, "", "", "", ""},
		{"shell", `{}`, `{}`, denied, "", notAllowed, "", ""},
		{"shell", `{"q": "drop table x"}`, `{}`, denied, "", notAllowed, input, ""},
		{"shell", `{}`, `{"confidence": 0.1}`, denied, "", notAllowed, confidence, ""},
		{"search", `{"q": "drop table x"}`, `{"confidence": 0.1}`, denied, "", pattern, input, ""},
		{"search", `{}`, `{"confidence": 0.5}`, denied, "", confidence, "", ""},
		{"search", `{}`, `{"confidence": 0.79}`, denied, "", confidence, "", ""},
		{"search", `{}`, `{"confidence": 0.8}`, admitted, "", "", "", ""},
		{"search", `{}`, `{"confidence": 0.9}`, admitted, "", "", "", ""},
		{"search", `{}`, `{"confidence": null}`, admitted, "", "", "", ""},
		{"search", `{}`, `{"confidence": true}`, denied, "", "policy_error", "", ""},
		{"read", `{}`, `{"path": "refunds/7.txt", "role": "clerk"}`, denied, "", "default_action", "", ""},
		{"read", `{}`, `{"path": "refunds/7.txt"}`, denied, "", "default_action", "", ""},
		{"read", `{}`, `{"path": "refunds/7.txt", "role": "owner"}`, admitted, "managers", "", "", ""},
		{"read", `{}`, `{"path": "other/7.txt", "role": "clerk"}`, admitted, "", "", "", ""},
		{"refund", `{"amount": 501}`, `{"path": "refunds/7.txt", "role": "owner"}`, denied, "large", "policy_rule", "", ""},
		{"read", `{}`, `{"path": "../refunds/7.txt", "role": "owner"}`, denied, "", "PATH_ESCAPE", "", ""},
		{"read", `{}`, `{"tokens_used": 9999}`, admitted, "", "", "", ""}, // it is the service that knows
		{"read", `{}`, `{}`, denied, "low", "policy_rule", "", `{"level": 2}`},
		{"read", `{}`, `{}`, admitted, "", "", "", `{"level": 3}`},
		{"read", `{}`, `{"metadata": {"level": 2}, "metadata.level": 2}`, admitted, "", "", "", ""}, // the agent is not the program
	}
	s.rng.Shuffle(len(tries), func(i, j int) { tries[i], tries[j] = tries[j], tries[i] })
	begin := func(x try, tokens int64) string {
		req := s.call(x.tool)
		req.ArgumentsJson, req.ContextJson, req.MetadataJson, req.Tokens = x.arguments, x.context, x.metadata, tokens
		if s.rng.IntN(2) == 0 {
			if req.Order = v1.Order_ORDER_PRE_EXECUTE; x.early != "" {
				x.category = x.early
			}
		}
		res := s.begin(req)
		s.outcome(res, x.want)
		if s.over {
			return ""
		}
		d := res.Decision
		s.wrong(d.GetAllowed() != (x.want == admitted) || d.GetMatchedRule() != x.rule || x.want == denied && d.GetCategory() != x.category, "the decision on %v in %v is %v", x, req.Order, d)
		s.wrong(x.rule == "large" && res.Reason != "too much", "the reason is %q", res.Reason)
		return req.CallId
	}
	for _, x := range tries[:8] {
		begin(x, 0)
	}
	plain, over := try{"search", `{}`, `{}`, admitted, "", "", "", ""}, try{"search", `{}`, `{}`, denied, "spent", "policy_rule", "", ""}
	id := begin(plain, 4000)
	begin(over, 0)
	s.end(&v1.EndCallRequest{CallId: id, Status: v1.Status_STATUS_SUCCEEDED, Tokens: proto.Int64(3999)})
	begin(plain, 1)
	begin(over, 0)
}

// aged waits until a session is older than its policy lets it be, or than a rule does.
func aged(s *script) {
	byRule := s.rng.IntN(2) == 0
	text := "name: rules\nrules: [{name: old, condition: {field: elapsed_seconds, operator: gte, value: 2}, action: deny, message: it is old}]\n"
	if byRule && !s.policyWith(text) || !byRule && !s.policy("max_tool_calls: 100\ntimeout_seconds: 2\n") {
		return
	}
	asked := time.Now()
	if !s.session(nil) {
		return
	}
	// old holds a decision to what is said of a session that is too old.
	old := func(d *v1.Decision) {
		category, public, reason := "timeout", "Execution timeout exceeded.", "Timeout exceeded (2s): elapsed "
		if byRule {
			category, public, reason = "policy_rule", "Action not permitted by governance policy.", "it is old"
		}
		s.wrong(d.GetAllowed() || d.GetCategory() != category || d.GetPublicMessage() != public || !strings.HasPrefix(d.GetReason(), reason), "the decision is {%v}", d)
	}
	for range 3 * asks {
		res := s.begin(s.call("one"))
		if s.over {
			return
		}
		if age := time.Since(asked); res.Outcome != v1.Outcome_OUTCOME_ADMITTED {
			// The clock of a node may be the quicker one.
			s.wrong(age < 1500*time.Millisecond || (res.Outcome == v1.Outcome_OUTCOME_DENIED_BY_POLICY) != byRule, "after %v it is %v", age, res)
			old(res.Decision)
			s.pause(300 * time.Millisecond) // a node over a Redis may be behind in time
			s.wrong(s.begin(s.call("one")).GetOutcome() != res.Outcome, "it has become young again")
			if would, ok := done(s, "evaluate", func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) {
				return n.policies.Evaluate(ctx, &v1.EvaluateRequest{SessionId: s.own, Tool: "one"})
			}); ok {
				old(would.Decision)
			}
			return
		}
		select {
		case <-s.ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
	s.over = true // time stands still
}
