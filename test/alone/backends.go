package alone

import (
	"context"
	"strings"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Policies in Cedar and Rego.

// cedarOf is for one agent, and for all that it does but one thing.
func cedarOf(agent string) string {
	return `@id("mine") permit(principal == Agent::"` + agent + `", action, resource) unless { context.tool_name == "write_file" };
@id("ships") forbid(principal, action == Action::"DeployApp", resource) when { context.env == "production" };
@id("few") forbid(principal, action == Action::"Count", resource) when { context.call_count >= 3 };
`
}

const regoOfSome = `package agentos

allow if input.tool_name == "read_file"

allow if to_number(input.arguments.n) < 5

allow := false if input.env == "off"
`

// backends makes calls that no rule matches, so that a policy in another language decides: the
// first backend that can judge a call does, and where none can it is denied.
func backends(s *script) {
	const none, opa, cedar = "", "opa", "cedar"
	const admitted, denied = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_DENIED_BY_POLICY
	type try struct {
		tool, args, about string
		by                string // the backend that decides
		failed            bool   // none could judge
		allowed           bool
		why               string
	}
	var tries []try
	var files []*v1.TextFile
	file := func(path, text string) { files = append(files, &v1.TextFile{Path: path, Content: text}) }
	settings := ""
	switch s.rng.IntN(3) {
	case 0:
		file("p.cedar", cedarOf(s.own))
		tries = []try{
			{tool: "read_file", by: cedar, allowed: true, why: "permitted by Cedar policy mine"},
			{tool: "deploy_app", about: `{"env": "test"}`, by: cedar, allowed: true, why: "permitted by Cedar policy mine"},
			{tool: "deploy_app", about: `{"env": "production"}`, by: cedar, why: "forbidden by Cedar policy ships"},
			{tool: "deploy_app", by: cedar, failed: true, why: "cedar: p.cedar:2: policy ships: "}, {tool: "write_file", by: cedar, why: "no Cedar policy permits it"},
			{tool: "read_file", about: `{"agent_id": "nobody", "tool_name": "write_file"}`, by: cedar, allowed: true, why: "permitted by Cedar policy mine"},
		}
		for range 3 { // it is the service that counts
			tries = append(tries, try{tool: "count", about: `{"call_count": 0}`, by: cedar, why: "forbidden by Cedar policy few"})
		}
	case 1:
		file("p.rego", regoOfSome)
		tries = []try{
			{tool: "read_file", by: opa, allowed: true, why: "data.agentos.allow is true"}, {tool: "write_file", args: `{"n": "4"}`, by: opa, allowed: true, why: "data.agentos.allow is true"},
			{tool: "write_file", args: `{"n": "5"}`, by: opa, why: "data.agentos.allow is undefined"}, {tool: "write_file", by: opa, why: "data.agentos.allow is undefined"},
			{tool: "write_file", about: `{"env": "off"}`, by: opa, why: "data.agentos.allow is false"},
			{tool: "read_file", about: `{"env": "off"}`, by: opa, failed: true, why: "opa: "}, {tool: "write_file", args: `{"n": "five"}`, by: opa, failed: true, why: "opa: "},
			{tool: "write_file", args: `{"n": "6"}`, about: `{"tool_name": "read_file", "tool_args": {"n": "4"}, "arguments": {"n": "4"}}`, by: opa, why: "data.agentos.allow is undefined"},
		}
	case 2: // what the first cannot judge the second does
		file("p.cedar", cedarOf(s.own))
		file("p.rego", regoOfSome)
		tries = []try{
			{tool: "read_file", by: cedar, allowed: true, why: "permitted by Cedar policy mine"}, {tool: "write_file", args: `{"n": "4"}`, by: cedar, why: "no Cedar policy permits it"},
			{tool: "deploy_app", about: `{"env": "production"}`, by: cedar, why: "forbidden by Cedar policy ships"},
			{tool: "deploy_app", args: `{"n": "4"}`, by: opa, allowed: true, why: "data.agentos.allow is true"},
			{tool: "deploy_app", args: `{"n": "five"}`, by: opa, failed: true, why: "cedar: p.cedar:2: policy ships: "}, {tool: "deploy_app", by: opa, why: "data.agentos.allow is undefined"},
		}
		if s.rng.IntN(2) == 0 {
			settings = "on_backend_error: default\n" // to what the rules say
			tries[4] = try{tool: "deploy_app", args: `{"n": "five"}`, allowed: true, why: "No rules matched; default action applied"}
		}
	}
	tries = append(tries, try{tool: "shell", about: `{"env": "test"}`, why: "no shells"}) // by a rule
	file("rules.yaml", "name: rules\n"+settings+"rules: [{name: no-shell, condition: {field: tool_name, operator: eq, value: shell}, action: deny, message: no shells}]\n")
	file("limits.yaml", "name: "+s.own+"\nmax_concurrent: 64\nmax_tool_calls: 100\n")
	if _, ok := s.put(files...); !ok || !s.session(nil) {
		return
	}
	// A backend may take too long: then who asks again is told in other words, or otherwise.
	s.single = true
	calls, judged := 0, 0
	s.rng.Shuffle(len(tries), func(i, j int) { tries[i], tries[j] = tries[j], tries[i] })
	for _, x := range append(tries, tries...) {
		if x.tool == "count" && calls < 3 {
			x.allowed, x.why = true, "permitted by Cedar policy mine"
		}
		ask := &v1.EvaluateRequest{SessionId: s.own, Tool: x.tool, ArgumentsJson: x.args, ContextJson: x.about}
		before, ok := done(s, "evaluate "+x.tool, func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) { return n.policies.Evaluate(ctx, ask) })
		req := s.call(x.tool)
		req.ArgumentsJson, req.ContextJson = x.args, x.about
		res, also := done(s, "begin "+x.tool, func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) { return n.calls.BeginCall(ctx, req) })
		if !ok || !also {
			return
		}
		if res.Outcome == admitted {
			calls++
		}
		for i, d := range []*v1.Decision{before.Decision, res.Decision} {
			sentOnce := i == 0 || s.tries == 1
			if c := d.GetCategory(); c == "EVAL_BUDGET" || settings != "" && d.GetBackend() != x.by || !sentOnce && c == "policy_error" {
				s.wrong(x.tool == "shell" || settings == "" && d.Allowed, "of %v it is %v", x, d)
				continue
			}
			judged++
			want := limited{category: "policy_backend", why: x.why}
			policy, says := "external:"+x.by, "Action not permitted by governance policy."
			switch {
			case x.tool == "shell":
				want.rule, want.category, policy = "no-shell", "policy_rule", "rules"
			case x.by == none:
				policy = "rules"
			case x.failed:
				want.category, says, policy = "policy_error", "Policy evaluation error.", s.own
			}
			if x.allowed {
				want.category, says = "", ""
			}
			action := map[bool]string{true: "allow", false: "deny"}[x.allowed]
			s.wrong(d.GetAllowed() != x.allowed || d.GetMatchedRule() != want.rule || d.GetCategory() != want.category || d.GetAction() != action || d.GetPublicMessage() != says, "of %v it is %v", x, d)
			if !sentOnce { // the words of a backend are not remembered
				continue
			}
			s.wrong(d.GetBackend() != x.by || d.GetPolicy() != policy || (d.GetError() != "") != x.failed, "of %v it is %v", x, d)
			if x.failed {
				s.wrong(!strings.HasPrefix(d.GetReason(), "Policy evaluation error (fail-closed): "+x.why) || !strings.HasPrefix(d.GetError(), x.why), "of %v it is %v", x, d)
			} else {
				s.wrong(d.GetReason() != x.why, "of %v it is %v", x, d)
			}
		}
		s.wrong((res.Outcome == admitted) != res.Decision.GetAllowed() || res.Outcome != admitted && res.Outcome != denied, "it is %v", res)
		if s.over {
			return
		}
	}
	s.over = judged == 0 // nothing was judged in time
}
