package alone

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Calls about which guardrails are asked: what the guardrails see, and what comes of what they say.

// guarded asks one guardrail about calls, which answers in all ways there are.
func guarded(s *script) {
	if s.Guards == nil {
		return
	}
	url := s.guard("pii", always(reply("allow", "")))
	if !s.policy("max_tool_calls: 100\nmax_concurrent: 64\nallowed_tools: [one, Two]\nguardrails:\n  - {name: pii, url: '"+url+"', timeout_ms: 300}\n") || !s.session(nil) {
		return
	}
	const first, other = `{"n":1,"password":"hunter2"}`, `{"list":[1,"x",null],"n":2.5}`
	const admitted, denied = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_DENIED_BY_POLICY
	// What it is asked, and about which calls.
	for _, x := range []struct {
		kind              v1.Kind
		tool, args, about string
		outcome           v1.Outcome
		asked             bool
	}{
		{kind: v1.Kind_KIND_TOOL, tool: "one", args: first, outcome: admitted, asked: true},
		{tool: "Two", outcome: admitted, asked: true},
		{tool: "other", args: first, outcome: denied}, // by everything else
		{kind: v1.Kind_KIND_MODEL, args: first, outcome: admitted},
		{kind: v1.Kind_KIND_AGENT, outcome: admitted},
		{kind: v1.Kind_KIND_HANDOFF, outcome: admitted},
		{kind: v1.Kind_KIND_SAMPLING, tool: "server", outcome: admitted},
		{kind: v1.Kind_KIND_MODEL, tool: "one", args: first, outcome: admitted, asked: true},
		{kind: v1.Kind_KIND_HANDOFF, tool: "one", args: other, outcome: admitted, asked: true},
		{kind: v1.Kind_KIND_MODEL, about: `{"tool_name": "one"}`, args: first, outcome: admitted, asked: true},
	} {
		req := s.call(x.tool)
		req.Kind, req.ArgumentsJson, req.ContextJson = x.kind, x.args, x.about
		res := s.begin(req)
		if s.outcome(res, x.outcome); s.over {
			return
		}
		s.runs(res.ModifiedArguments, "")
		asked := s.heard("pii", req.CallId)
		s.wrong((len(asked) > 0) != x.asked, "of %v the guardrail was asked %v", req, asked)
		want := map[string]any{"tool_name": x.tool, "args": map[string]any{}, "agent_name": s.own, "call_id": req.CallId}
		if x.tool == "" {
			want["tool_name"] = "one"
		}
		if x.args != "" {
			var args any
			_ = json.Unmarshal([]byte(x.args), &args)
			want["args"] = args
		}
		for _, r := range asked {
			a, _ := json.Marshal(r.body)
			b, _ := json.Marshal(want)
			s.wrong(r.method != http.MethodPost || r.kind != "application/json" || !bytes.Equal(a, b), "the guardrail was sent %v, want the body %s", r, b)
		}
	}
	// What it answers.
	large := func(n int) string { return `{"t":"` + strings.Repeat("x", n-len(`{"t":""}`)) + `"}` }
	const most = 64 << 10
	type answer struct {
		said   said
		runs   string // what the call runs with, "" for as it came
		reason string // of a denial
		failed bool   // it could not judge
	}
	all := []answer{
		{said: said{body: `{"decision": "allow", "modified_args": {"n": 3}, "error": null, "more": 1}`}},
		{said: reply("modify", other), runs: other},
		{said: reply("modify", "{}"), runs: "{}"},
		{said: reply("modify", first)},
		{said: reply("modify", "")},
		{said: reply("modify", "null")},
		{said: said{body: `{"decision": "modify", "modified_args": {"n": 3}, "reason": "why", "metadata": {"model": "v2"}}`}, runs: `{"n":3}`},
		{said: reply("modify", large(most)), runs: large(most)},
		{said: said{body: `{"decision": "deny", "reason": "no ` + s.own + `"}`}, reason: "Tool call denied: no " + s.own},
		{said: reply("deny", other), reason: "Tool call denied: policy violation"},
		{said: said{body: `{"decision": "deny", "reason": "of jane@example.org"}`}, reason: "Tool call denied: of [REDACTED:email]"},
		{said: said{body: `{"decision": "deny", "reason": "` + strings.Repeat("y", 200) + `"}`}, reason: "Tool call denied: " + strings.Repeat("y", 200)},
		{said: said{body: `{"decision": "deny", "reason": "` + strings.Repeat("y", 201) + `"}`}, reason: "Tool call denied: " + strings.Repeat("y", 200) + "…"},
		{said: said{body: `{"decision": "allow"}`, late: 200 * time.Millisecond}},
		{said: said{body: `{"decision": "allow"}`, late: 400 * time.Millisecond}, failed: true},
		{said: reply("modify", large(most+1)), failed: true},
		{said: said{body: `{"decision": "allow", "reason": "` + strings.Repeat("z", 3*most) + `"}`}, failed: true},
		{said: reply("modify", "[1]"), failed: true},
		{said: reply("modify", `"text"`), failed: true},
		{said: reply("maybe", ""), failed: true},
		{said: reply("Allow", ""), failed: true},
		{said: said{body: `{"decision": "allow", "error": "down"}`}, failed: true},
		{said: said{body: `{"decision": "allow", "error": ""}`}, failed: true},
		{said: said{body: `{"reason": "none"}`}, failed: true},
		{said: said{body: `["allow"]`}, failed: true},
		{said: said{body: "allow"}, failed: true},
		{said: said{}, failed: true},
		{said: said{status: 500, body: `{"decision": "allow"}`}, failed: true},
		{said: said{status: 201, body: `{"decision": "allow"}`}, failed: true},
		{said: said{status: 403, body: `{"decision": "allow"}`}, failed: true},
		{said: said{status: 307, to: s.guard("beyond", always(reply("allow", ""))), body: `{"decision": "allow"}`}, failed: true},
	}
	s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, x := range all[:16] {
		s.guard("pii", always(x.said))
		req, res, would := s.judged("one", first)
		if s.over {
			return
		}
		what := clipped(x.said)
		s.runs(res.ModifiedArguments, x.runs)
		s.runs(would.ModifiedArguments, x.runs)
		again := []string{first}
		if x.runs != "" { // it is asked about what it made
			again = append(again, x.runs)
		}
		s.about("pii", req.CallId, again...)
		d := res.Decision
		switch {
		case x.failed:
			s.wrong(res.Outcome != denied || d.GetAllowed() || d.Action != "deny" || d.Policy != "guardrail:pii" || d.Category != "policy_error" || d.Error == "" || d.MatchedRule != "" ||
				d.PublicMessage != "Policy evaluation error." || !strings.HasPrefix(res.Reason, fails+"pii: "), "to %s it is %v", what, res)
			s.wrong(strings.Contains(res.String(), url), "the address of the guardrail is told: %v", res)
		case x.reason != "":
			s.wrong(res.Outcome != denied || d.GetAllowed() || d.Action != "deny" || d.Policy != "guardrail:pii" || d.Category != "guardrail" || d.Error != "" || d.MatchedRule != "" ||
				d.PublicMessage != shades || res.Reason != x.reason || d.Reason != x.reason || would.Decision.Reason != x.reason, "to %s it is %v, and evaluated %v", what, res, would)
		default:
			s.wrong(res.Outcome != admitted || !d.GetAllowed() || d.Action != "allow" || d.Policy != s.own || d.Category != "" || d.Error != "", "to %s it is %v", what, res)
		}
	}
	s.about("beyond", s.own) // it is asked about no call at all
	s.Guards.mu.Lock()
	s.wrong(len(s.Guards.at["/"+s.own+"/beyond"].asked) > 0, "a redirect was followed")
	s.Guards.mu.Unlock()
	// An integer that no float holds.
	s.guard("pii", always(reply("modify", `{"n":9007199254740993}`)))
	req := s.call("one")
	_, reason, ok := told(s, "begin with a large integer", func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) { return n.calls.BeginCall(ctx, req) })
	if ok {
		same(s, "the reason", reason, "INVALID_FIELD")
	}
	// Without a session the agent is who is said to ask.
	s.guard("pii", always(reply("modify", `{"n":"9007199254740993"}`)))
	ask := &v1.EvaluateRequest{Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}, Tool: "one", AgentId: s.own + "-agent", ArgumentsJson: first}
	if would, ok := done(s, "evaluate by the policy", func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) { return n.policies.Evaluate(ctx, ask) }); ok {
		s.runs(would.ModifiedArguments, `{"n":"9007199254740993"}`)
		asked := s.heard("pii", "")
		s.wrong(asked[len(asked)-1].body["agent_name"] != s.own+"-agent", "the guardrail was asked %v", asked[len(asked)-1])
	}
}

// clipped is an answer in short.
func clipped(x said) string {
	x.body = x.body[:min(len(x.body), 120)]
	return fmt.Sprintf("%+v", x)
}

// chained asks guardrails one behind the other.
func chained(s *script) {
	if s.Guards == nil {
		return
	}
	trail := func(name string) func(string) said {
		return func(about string) said {
			var args map[string]string
			_ = json.Unmarshal([]byte(about), &args)
			args["t"] += name
			made, _ := json.Marshal(args)
			return reply("modify", string(made))
		}
	}
	names := []string{"c", "a", "b"}
	text := "max_tool_calls: 100\nblocked_patterns: [evil]\nguardrails:\n"
	for _, name := range names {
		text += "  - {name: " + name + ", url: '" + s.guard(name, trail(name)) + "'}\n"
	}
	if !s.policy(text) || !s.session(nil) {
		return
	}
	const admitted, denied = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_DENIED_BY_POLICY
	try := func(want v1.Outcome, policy, runs string, asked map[string][]string) *v1.BeginCallRequest {
		req, res, would := s.judged("one", `{"t":""}`)
		if s.outcome(res, want); s.over {
			return nil
		}
		s.wrong(res.Decision.GetPolicy() != policy, "it is decided by %v, want %s", res.Decision, policy)
		s.runs(res.ModifiedArguments, runs)
		s.runs(would.ModifiedArguments, runs)
		for _, name := range names {
			s.about(name, req.CallId, asked[name]...)
		}
		return req
	}
	try(admitted, s.own, `{"t":"cab"}`, map[string][]string{"c": {`{"t":""}`, `{"t":"cab"}`}, "a": {`{"t":"c"}`, `{"t":"cab"}`}, "b": {`{"t":"ca"}`, `{"t":"cab"}`}})
	// A deny ends the chain, the first time and about what all have made.
	s.guard("a", always(reply("deny", "")))
	try(denied, "guardrail:a", "", map[string][]string{"c": {`{"t":""}`}, "a": {`{"t":"c"}`}})
	s.guard("a", func(about string) said {
		if strings.Contains(about, "b") {
			return reply("deny", "")
		}
		return trail("a")(about)
	})
	try(denied, "guardrail:a", "", map[string][]string{"c": {`{"t":""}`, `{"t":"cab"}`}, "a": {`{"t":"c"}`, `{"t":"cab"}`}, "b": {`{"t":"ca"}`}})
	s.guard("a", func(about string) said {
		if strings.Contains(about, "b") {
			return said{status: 500}
		}
		return trail("a")(about)
	})
	try(denied, "guardrail:a", "", map[string][]string{"c": {`{"t":""}`, `{"t":"cab"}`}, "a": {`{"t":"c"}`, `{"t":"cab"}`}, "b": {`{"t":"ca"}`}})
	// Each has a second for its answer, if the policy says nothing else.
	s.guard("c", always(reply("allow", "")))
	s.guard("a", always(reply("allow", "")))
	s.guard("b", always(said{body: `{"decision": "allow"}`, late: 900 * time.Millisecond}))
	try(admitted, s.own, "", map[string][]string{"c": {`{"t":""}`}, "a": {`{"t":""}`}, "b": {`{"t":""}`}})
	s.guard("b", always(said{body: `{"decision": "allow"}`, late: 1100 * time.Millisecond}))
	try(denied, "guardrail:b", "", map[string][]string{"c": {`{"t":""}`}, "a": {`{"t":""}`}, "b": {`{"t":""}`}})
	s.guard("c", trail("c"))
	// What one has changed and the next has changed back is as it came.
	s.guard("a", always(reply("modify", `{"t":""}`)))
	s.guard("b", always(reply("allow", "")))
	try(admitted, s.own, "", map[string][]string{"c": {`{"t":""}`}, "a": {`{"t":"c"}`}, "b": {`{"t":""}`}})
	// What they have made is judged by all else before they are asked again.
	s.guard("a", always(reply("modify", `{"t":"evil"}`)))
	try(denied, s.own, "", map[string][]string{"c": {`{"t":""}`}, "a": {`{"t":"c"}`}, "b": {`{"t":"evil"}`}})
}

// unguarded names guardrails that may not be, and one that nobody reaches.
func unguarded(s *script) {
	many := func(n int) (text string) {
		for i := range n {
			text += fmt.Sprintf("  - {name: g%d, url: 'https://guard.invalid/%d'}\n", i, i)
		}
		return text
	}
	one := func(url, more string) string { return "  - {name: a, url: '" + url + "'" + more + "}\n" }
	refused := []string{
		many(9), one("http://guard.invalid/", ""), one("http://10.0.0.1/", ""), one("https://user:word@guard.invalid/", ""), one("ftp://127.0.0.1/", ""), one("/check", ""),
		one("https://guard.invalid/", ", timeout_ms: 0"), one("https://guard.invalid/", ", timeout_ms: 10001"), one("https://a.invalid/", "") + one("https://b.invalid/", ""),
		"  - {name: a}\n", "  - {url: 'https://guard.invalid/'}\n",
	}
	taken := []string{
		many(8), one("https://guard.invalid/", ", timeout_ms: 1"), one("https://guard.invalid/", ", timeout_ms: 10000"), one("http://localhost:1/", ""), one("http://[::1]:1/", ""),
	}
	put := func(guardrails, want string) {
		req := &v1.PutPolicyRequest{Yaml: "name: " + s.own + "\nguardrails:\n" + guardrails, RequestId: s.id(), Client: s.own}
		_, reason, ok := told(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
			return n.policies.PutPolicy(ctx, req)
		})
		s.wrong(ok && reason != want, "with %s it is refused by %q, want %q", guardrails, reason, want)
	}
	put(refused[s.rng.IntN(len(refused))], "INVALID_POLICY")
	put(refused[s.rng.IntN(len(refused))], "INVALID_POLICY")
	put(taken[s.rng.IntN(len(taken))], "")
	// Nothing listens there.
	if !s.policy("max_tool_calls: 100\nguardrails:\n"+one("http://127.0.0.1:1/", ", timeout_ms: 500")) || !s.session(nil) {
		return
	}
	_, res, _ := s.judged("one", `{}`)
	if s.over {
		return
	}
	s.wrong(res.Outcome != v1.Outcome_OUTCOME_DENIED_BY_POLICY || res.Decision.Policy != "guardrail:a" || res.Decision.Category != "policy_error" || !strings.HasPrefix(res.Reason, fails+"a: "),
		"nobody judged it, and it is %v", res)
	model := s.call("")
	model.Kind = v1.Kind_KIND_MODEL
	s.outcome(s.begin(model), v1.Outcome_OUTCOME_ADMITTED)
	want := &account{tools: map[string]int32{}, open: []string{model.CallId}}
	want.Attempts, want.Calls = 2, 1
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
}

// rejudged has a guardrail make arguments of which everything else thinks otherwise than of
// those that came.
func rejudged(s *script) {
	if s.Guards == nil {
		return
	}
	made := map[string]string{
		`{"n":1}`: `{"n":9}`, `{"n":2}`: `{"q":"drop TABLE x"}`, `{"n":3}`: `{"command":"cat /home/x/.ssh/id"}`, `{"n":4}`: `{"n":7}`, `{"n":5}`: `{"command":"rm -rf /"}`,
		`{"n":6}`: `{"n":60}`, `{"n":7}`: `{"n":70}`, `{"n":8}`: `{"n":80}`, `{"n":80}`: `{"n":81}`, `{"n":11}`: `{"n":90}`, `{"n":12}`: `{"n":91}`,
	}
	url := s.guard("maker", from(made))
	req := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{
		{Path: "limits.yaml", Content: "name: " + s.own + `
max_concurrent: 64
max_tool_calls: 100
deny_sensitive_reads: true
blocked_patterns: ["DROP TABLE", {pattern: '^.*9\d.*$', type: regex}]
approval: {required: 1, denials: 1, timeout: 10m, max_pending: 16}
guardrails:
  - {name: maker, url: '` + url + "'}\n"},
		{Path: "rules.yaml", Content: `name: rules
rules:
  - {name: large, condition: {field: arguments.n, operator: eq, value: 9}, action: deny, priority: 9, message: too large}
  - {name: asks, condition: {field: arguments.n, operator: eq, value: 7}, action: ask, priority: 8}
  - {name: watched, condition: {field: arguments.n, operator: eq, value: 60}, action: audit, priority: 7}
  - {name: first, condition: {field: arguments.n, operator: eq, value: 6}, action: audit, priority: 7}
`},
		{Path: "ruleset.yaml", Content: `apiVersion: edictum/v1
kind: Ruleset
metadata: {name: shells}
defaults: {mode: enforce}
rules:
  - {id: no-rm, type: pre, tool: "*", when: {args.command: {contains: "rm -rf"}}, then: {action: block, message: "no rm"}}
`},
	}}
	if _, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, req)
	}); !ok || !s.session(nil) {
		return
	}
	const admitted, denied, asked = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_DENIED_BY_POLICY, v1.Outcome_OUTCOME_APPROVAL_REQUIRED
	tries := []struct {
		args                   string
		want                   v1.Outcome
		rule, category, action string
		runs                   string
		hears                  []string // the guardrail
	}{
		{`{"n":1}`, denied, "large", "policy_rule", "deny", "", []string{`{"n":1}`}},
		{`{"n":2}`, denied, "", "blocked_pattern_tool", "deny", "", []string{`{"n":2}`}},
		{`{"n":11}`, denied, "", "blocked_pattern_tool", "deny", "", []string{`{"n":11}`}},
		{`{"n":12}`, denied, "", "blocked_pattern_tool", "deny", "", []string{`{"n":12}`}},
		{`{"n":3}`, denied, "deny_sensitive_reads", "policy_rule", "deny", "", []string{`{"n":3}`}},
		{`{"n":4}`, asked, "asks", "human_approval_required", "ask", "", []string{`{"n":4}`, `{"n":7}`}},
		{`{"n":5}`, denied, "no-rm", "policy_rule", "deny", "", []string{`{"n":5}`}},
		{`{"n":6}`, admitted, "watched", "", "audit", `{"n":60}`, []string{`{"n":6}`, `{"n":60}`}},
		{`{"n":7}`, admitted, "", "", "allow", `{"n":70}`, []string{`{"n":7}`, `{"n":70}`}}, // it would have been asked about
		{`{"n":8}`, admitted, "", "", "allow", `{"n":80}`, []string{`{"n":8}`, `{"n":80}`}}, // it is changed once
		{`{"n":9}`, denied, "large", "policy_rule", "deny", "", nil},
		{`{"n":10}`, admitted, "", "", "allow", "", []string{`{"n":10}`}},
	}
	s.rng.Shuffle(len(tries), func(i, j int) { tries[i], tries[j] = tries[j], tries[i] })
	want := &account{tools: map[string]int32{}}
	for _, x := range tries {
		req, res, would := s.judged("Bash", x.args)
		if s.over {
			return
		}
		d := res.Decision
		s.wrong(res.Outcome != x.want || d.GetMatchedRule() != x.rule || d.GetCategory() != x.category || d.GetAction() != x.action, "of %s was made %s, and it is %v", x.args, made[x.args], res)
		s.runs(res.ModifiedArguments, x.runs)
		if x.want != asked { // what Evaluate would ask about is shown
			s.runs(would.ModifiedArguments, x.runs)
		}
		s.about("maker", req.CallId, x.hears...)
		if want.Attempts++; x.want == admitted {
			want.Calls++
			want.tools["Bash"]++
			want.open = append(want.open, req.CallId)
		}
		if x.want == asked {
			want.open = append(want.open, req.CallId)
			res, ok := done(s, "get the approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceGetResponse, error) {
				return n.approvals.Get(ctx, &v1.ApprovalServiceGetRequest{Id: res.Approval.GetId()})
			})
			s.wrong(ok && res.Approval.Arguments != `{"n":7}`, "people see %v", res.GetApproval())
		}
	}
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
}

// made has people, a workflow and those who ask again see what a guardrail made.
func made(s *script) {
	if s.Guards == nil {
		return
	}
	const flow = `apiVersion: edictum/v1
kind: Workflow
metadata: {name: stages}
stages:
  - {id: test, tools: [Bash], checks: [{command_matches: "^(test|ask)", message: tests alone}], exit: [{condition: command_matches("^test b"), message: test b first}]}
  - {id: ship, tools: [Bash], checks: [{command_matches: "^(push|ask)", message: push alone}]}
`
	command := func(text string) string { return `{"command":"` + text + `"}` }
	makes := func(to ...string) {
		all := map[string]string{}
		for i := 0; i < len(to); i += 2 {
			all[command(to[i])] = command(to[i+1])
		}
		s.guard("maker", from(all))
	}
	put := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{
		{Path: "limits.yaml", Content: "name: " + s.own + "\nmax_concurrent: 64\nmax_tool_calls: 100\nguardrails: [{name: maker, url: '" + s.guard("maker", always(reply("allow", ""))) + "'}]\n"},
		{Path: "flow.yaml", Content: flow},
		{Path: "rules.yaml", Content: "name: rules\nrules: [{name: asks, condition: {field: arguments.command, operator: contains, value: ask}, action: ask}]\n"},
	}}
	makes("test a", "push", "push it", "test b")
	if _, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, put)
	}); !ok || !s.session(nil) {
		return
	}
	const admitted, denied = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_DENIED_BY_POLICY
	try := func(text string, want v1.Outcome, runs string) (*v1.BeginCallRequest, *v1.BeginCallResponse) {
		req, res, _ := s.judged("Bash", command(text))
		if s.outcome(res, want); s.over {
			return nil, nil
		}
		s.runs(res.ModifiedArguments, runs)
		return req, res
	}
	end := func(req *v1.BeginCallRequest) {
		if !s.over {
			s.end(&v1.EndCallRequest{CallId: req.CallId, Status: v1.Status_STATUS_SUCCEEDED})
		}
	}
	// What runs is what the stage has to allow, and what is evidence.
	try("test a", denied, "")
	req, _ := try("push it", admitted, command("test b"))
	end(req)
	req, _ = try("push", admitted, "")
	end(req)
	// People agree to what was made, and to nothing else.
	makes("push", "ask one", "push it", "ask one")
	same := s.rng.IntN(2) == 0
	req = s.call("Bash")
	req.ArgumentsJson = command("push")
	res := s.begin(req)
	if s.outcome(res, v1.Outcome_OUTCOME_APPROVAL_REQUIRED); s.over {
		return
	}
	if x, ok := done(s, "get the approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceGetResponse, error) {
		return n.approvals.Get(ctx, &v1.ApprovalServiceGetRequest{Id: res.Approval.GetId()})
	}); ok {
		s.wrong(x.Approval.Arguments != command("ask one"), "people are asked about %v", x.Approval)
	}
	if !same {
		makes("push", "ask two")
	}
	s.vote(s.rng.IntN(2), res.Approval.GetId(), v1.Vote_VOTE_APPROVE)
	if s.over {
		return
	}
	res = s.begin(req)
	if !same {
		s.outcome(res, v1.Outcome_OUTCOME_APPROVAL_DENIED)
		s.reads("the answer", res.GetDecision(), approvalFirst, noApproval, "The call came back with other arguments than were asked about")
	} else if s.outcome(res, admitted); !s.over {
		s.runs(res.ModifiedArguments, command("ask one"))
	}
	// What stands is for what is made, too.
	makes("push", "ask one", "push it", "ask two")
	standing := &v1.PutStandingRequest{
		Scope: v1.StandingScope_STANDING_SCOPE_SESSION, Name: s.own, Tool: "Bash", ArgumentsJson: command("ask one"), Expiry: long, RequestId: s.id(), Client: s.own,
	}
	to := s.rng.IntN(2)
	done(s, "put a standing approval", func(ctx context.Context, _ *node) (*v1.PutStandingResponse, error) {
		return s.person(to).PutStanding(ctx, standing)
	})
	for text, want := range map[string]v1.Outcome{"push": admitted, "push it": v1.Outcome_OUTCOME_APPROVAL_REQUIRED, "ask one": admitted} {
		req := s.call("Bash")
		req.ArgumentsJson = command(text)
		s.outcome(s.begin(req), want)
	}
	s.repeated(makes, command)
}

// repeated asks again for calls when the guardrail has changed its mind.
func (s *script) repeated(makes func(...string), command func(string) string) {
	answer := func(what said) { s.guard("maker", always(what)) }
	begin := func(want v1.Outcome) (*v1.BeginCallRequest, *v1.BeginCallResponse) {
		req := s.call("Bash")
		req.ArgumentsJson = command("push")
		res := s.begin(req)
		s.outcome(res, want)
		return req, res
	}
	const admitted, denied = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_DENIED_BY_POLICY
	allow, deny, modify := reply("allow", ""), said{body: `{"decision": "deny", "reason": "no"}`}, reply("modify", command("push on"))
	down := said{status: 500}
	one := func(of ...said) said { return of[s.rng.IntN(len(of))] }
	// Denied, it stays so, by whom.
	first := one(deny, down)
	answer(first)
	req, res := begin(denied)
	if s.over {
		return
	}
	answer(first)
	again := s.begin(req)
	s.wrong(!s.over && again.Reason != res.Reason, "the reason is %q, and was %q", again.GetReason(), res.Reason)
	answer(one(allow, modify))
	again = s.begin(req)
	s.outcome(again, denied)
	s.wrong(!s.over && (!strings.Contains(again.Reason, "guardrail") || !strings.HasPrefix(again.Decision.Policy, "guardrail") || again.Decision.Category != res.Decision.Category ||
		again.ModifiedArguments != nil || again.DecisionId != res.DecisionId), "it is %v, and was %v", again, res)
	// Admitted as it came, it runs as it came.
	answer(allow)
	req, res = begin(admitted)
	answer(one(deny, down, modify))
	again = s.begin(req)
	if s.outcome(again, admitted); s.over {
		return
	}
	s.runs(again.ModifiedArguments, "")
	s.wrong(again.DecisionId != res.DecisionId || again.Grants[0].Token != res.Grants[0].Token, "it is %v, and was %v", again, res)
	// Admitted with others, it never runs as it came.
	answer(modify)
	req, res = begin(admitted)
	if s.over {
		return
	}
	s.runs(res.ModifiedArguments, command("push on"))
	answer(one(allow, deny, down))
	unknown := false
	for range 3 {
		at := s.nodes[s.rng.IntN(len(s.nodes))]
		ctx, cancel := context.WithTimeout(s.ctx, 3*time.Second)
		got, err := at.calls.BeginCall(ctx, req)
		cancel()
		s.wrong(err == nil, "it was admitted with other arguments, and is %v", got)
		s.wrong(err != nil && refused(err) != "", "it was admitted with other arguments, and is refused: %v", err)
		unknown = unknown || err != nil
	}
	answer(modify)
	again = s.begin(req)
	if s.outcome(again, admitted); s.over || !unknown {
		return
	}
	s.runs(again.ModifiedArguments, command("push on"))
	s.wrong(!slices.EqualFunc(again.Grants, res.Grants, func(a, b *v1.Grant) bool { return a.Pool == b.Pool && a.Token == b.Token }) || again.DecisionId != res.DecisionId,
		"it is %v, and was %v", again, res)
}
