package alone

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What is said of a decision, by all who tell of it, and by which tree it is made.

// decided is a decision without what is another each time, and without the rules that passed,
// of which Evaluate and Explain tell alone.
func decided(d *v1.Decision) *v1.Decision {
	if d = proto.CloneOf(d); d == nil {
		return nil
	}
	d.EvaluationTime = nil
	var rules []*v1.RuleRecord
	for _, r := range d.Rules {
		if !r.Passed {
			rules = append(rules, r)
		}
	}
	d.Rules = rules
	return d
}

// judged makes calls under rules and a ruleset beside limits: what Evaluate says before, the
// answer and what Explain says behind are one decision, which is the right one in every field.
func judged(s *script) {
	put := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{
		{Path: "limits.yaml", Content: "name: " + s.own + "\nmax_concurrent: 64\nmax_tool_calls: 100\nallowed_tools: [Bash, Read, mail]\napproval: {timeout: 7m}\n"},
		{Path: "rules.yaml", Content: `name: rules
rules:
  - {name: mails, condition: {field: tool_name, operator: eq, value: mail}, action: audit, priority: 5}
  - {name: no-one, condition: {field: arguments.to, operator: eq, value: nobody}, action: block, priority: 10}
`},
		{Path: "shells.yaml", Content: `apiVersion: edictum/v1
kind: Ruleset
metadata: {name: shells}
defaults: {mode: enforce}
tools: {Bash: {side_effect: irreversible}, Read: {side_effect: read}}
rules:
  - {id: no-rm, type: pre, tool: Bash, when: {args.command: {contains: "rm -rf"}}, then: {action: block, message: "no {args.command}", tags: [destructive]}}
  - {id: watch, type: pre, mode: observe, tool: Bash, when: {args.command: {contains: "ls"}}, then: {action: block, message: seen}}
  - {id: sudo, type: pre, tool: Bash, when: {args.command: {contains: "sudo"}}, then: {action: ask, message: "may {args.command}?"}}
  - {id: few, type: session, limits: {max_tool_calls: 20, max_calls_per_tool: {Bash: 2}}, then: {action: block, message: enough}}
`},
	}}
	tree, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, put)
	})
	if !ok || !s.session(nil) {
		return
	}
	const admitted, denied, asked, limit = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_DENIED_BY_POLICY, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, v1.Outcome_OUTCOME_TOOL_LIMIT
	watch := &v1.RuleRecord{Rule: "watch", Type: "precondition", Message: "seen", Observed: true}
	const none = "No rules matched; default action applied"
	for i, x := range []struct {
		tool, argument string
		want           v1.Outcome
		decision       *v1.Decision
	}{
		{"mail", "nobody", denied, &v1.Decision{Action: "block", Policy: "rules", MatchedRule: "no-one", Category: "policy_rule"}},
		{"mail", "anna", admitted, &v1.Decision{Allowed: true, Action: "audit", Policy: "rules", MatchedRule: "mails", SideEffect: "irreversible"}},
		{"shell", "ls", denied, &v1.Decision{Action: "deny", Policy: s.own, Category: "not_allowed_tool"}},
		{"Bash", "rm -rf /", denied, &v1.Decision{
			Action: "deny", Policy: "shells", MatchedRule: "no-rm", Category: "policy_rule", Reason: "no rm -rf /", SideEffect: "irreversible", Source: "yaml_precondition", RulesEvaluated: 1,
			Rules: []*v1.RuleRecord{{Rule: "no-rm", Type: "precondition", Message: "no rm -rf /", Tags: []string{"destructive"}}},
		}},
		{"Bash", "ls", admitted, &v1.Decision{Allowed: true, Action: "allow", Policy: "rules", Reason: none, SideEffect: "read", RulesEvaluated: 3, Rules: []*v1.RuleRecord{watch}}},
		{"Bash", "sudo ls", asked, &v1.Decision{
			Action: "ask", Policy: "shells", MatchedRule: "sudo", Category: "human_approval_required", Reason: "may sudo ls?", SideEffect: "irreversible", Source: "yaml_precondition", RulesEvaluated: 3,
			Rules: []*v1.RuleRecord{watch, {Rule: "sudo", Type: "precondition", Message: "may sudo ls?"}},
		}},
		{"Read", "x", admitted, &v1.Decision{Allowed: true, Action: "allow", Policy: "rules", Reason: none, SideEffect: "read"}},
		{"Bash", "pwd", admitted, &v1.Decision{Allowed: true, Action: "allow", Policy: "rules", Reason: none, SideEffect: "read", RulesEvaluated: 3}},
		{"Bash", "pwd", limit, &v1.Decision{
			Action: "deny", Policy: "rules", MatchedRule: "max_calls_per_tool:Bash", Category: "max_calls_per_tool", Reason: "Per-tool limit: Bash called 2 times (limit: 2).", SideEffect: "read",
			Source: "operation_limit", RulesEvaluated: 3,
		}},
		{"Bash", "rm -rf .", denied, &v1.Decision{
			Action: "deny", Policy: "shells", MatchedRule: "no-rm", Category: "policy_rule", Reason: "no rm -rf .", SideEffect: "irreversible", Source: "yaml_precondition", RulesEvaluated: 1,
			Rules: []*v1.RuleRecord{{Rule: "no-rm", Type: "precondition", Message: "no rm -rf .", Tags: []string{"destructive"}}},
		}},
	} {
		req := s.call(x.tool)
		req.ArgumentsJson, req.ContextJson = fmt.Sprintf(`{"command": %q, "to": %q}`, x.argument, x.argument), `{"password": "hunter2"}`
		ask := &v1.EvaluateRequest{SessionId: s.own, Tool: x.tool, ArgumentsJson: req.ArgumentsJson, ContextJson: req.ContextJson}
		if s.rng.IntN(2) == 0 {
			ask.AgentId = s.own
		}
		before, ok := done(s, "evaluate "+x.tool, func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) {
			return n.policies.Evaluate(ctx, ask)
		})
		if !ok {
			return
		}
		res := s.begin(req)
		if s.outcome(res, x.want); s.over {
			return
		}
		once := s.tries == 1
		d := decided(res.Decision)
		want := x.decision
		if want.PolicyDigest = tree.Digest; want.Reason == "" {
			want.Reason = d.GetReason()
		}
		s.wrong((d.GetPublicMessage() == "") != want.Allowed || strings.Contains(d.GetPublicMessage(), x.argument) || d.GetReason() == "", "what may be shown is %q, of %q", d.GetPublicMessage(), d.GetReason())
		want.PublicMessage = d.GetPublicMessage()
		s.alike("the decision", d, want)
		s.wrong(res.Reason != "" && res.Reason != d.GetReason() || (res.Reason == "") != want.Allowed, "the reason is %q, of %v", res.Reason, d)
		s.alike("what Evaluate says", decided(before.Decision), want)
		s.wrong((len(before.Decision.GetRules()) > len(d.GetRules())) != (want.RulesEvaluated > int32(len(want.Rules))), "of those that passed Evaluate tells %v", before.Decision.GetRules())
		s.wrong(int32(res.Counters.GetAttempts()) != int32(i+1), "the counters are %v of attempt %d", res.Counters, i+1)
		for _, id := range []string{res.DecisionId, before.DecisionId} {
			dry := id == before.DecisionId
			after, reason, ok := told(s, "explain", func(ctx context.Context, n *node) (*v1.ExplainResponse, error) {
				return n.explains.Explain(ctx, &v1.ExplainRequest{DecisionId: id})
			})
			if s.over || !ok {
				return
			}
			if reason == "NOT_FOUND" { // its node has started again, or is not reached
				continue
			}
			r := after.GetRecord()
			if !dry && !once && r.GetFailure() != "" { // what is known there is of an attempt whose answer was lost
				continue
			}
			s.wrong(reason != "", "it is refused: %s", reason)
			s.alike("what Explain says", decided(r.Decision), want)
			event, outcome := "policy_check", x.want
			if x.want == denied || x.want == limit {
				event = "tool_call_blocked"
			}
			if dry {
				outcome = 0
			}
			s.wrong(r.DecisionId != id || r.DryRun != dry || r.Outcome != outcome || !dry && r.EventType != event || r.Kind != v1.Kind_KIND_TOOL || r.Tool != x.tool || r.AgentId != s.own ||
				r.SessionId != s.own || !dry && r.CallId != req.CallId || r.Node == "" || r.Failure != "" || r.FailureReason != "", "the record is %v", r)
			at, err := time.Parse(time.RFC3339Nano, r.Timestamp)
			s.wrong(err != nil || at.Location() != time.UTC || !strings.HasPrefix(r.ContextSha256, "sha256:") && !strings.HasPrefix(r.ContextSha256, "hmac-sha256:") && r.ContextSha256 != "", "the record is %v", r)
			if !dry && once && !r.Repeat {
				// A node that has lost the answer has it ordered once more, and is answered by the repeat.
				// Redis keeps no log, and has no index.
				s.wrong(!proto.Equal(r.Counters, res.Counters) || (r.Index == 0) != (res.Index == 0) || r.Index > res.Index, "the record is %v, of %v", r, res)
			}
			context := map[string]any{}
			err = json.Unmarshal([]byte(r.ContextSnapshotJson), &context)
			s.wrong(err != nil || context["password"] == nil || strings.Contains(r.ContextSnapshotJson, "hunter2") || context["tool_name"] != x.tool, "the context is %s", r.ContextSnapshotJson)
			attempts, fact := context["attempts"].(float64) // as the node knew of them, where no rule asks: with this one where it was lost before
			s.wrong(err == nil && !r.Repeat && (!fact || once && attempts > float64(i)), "the context is %s of attempt %d", r.ContextSnapshotJson, i+1)
		}
	}
}

// versions puts a policy, another text, and the first one again: each change is a version,
// and the same text twice is none. A session keeps its own when the name is gone.
func versions(s *script) {
	texts := []string{"max_tool_calls: 100\nallowed_tools: [one]\n", "max_tool_calls: 100\nallowed_tools: [two]\n", "max_tool_calls: 100\nallowed_tools: [three]\n"}
	version := int32(0)
	digests := make([]string, 3)
	get := func(ref *v1.GetPolicyRequest) (*v1.Policy, string) {
		res, reason, _ := told(s, "get the policy", func(ctx context.Context, n *node) (*v1.GetPolicyResponse, error) {
			return n.policies.GetPolicy(ctx, ref)
		})
		return res.GetPolicy(), reason
	}
	named := &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: s.own}}
	pins := make([]int32, 3)
	put := func(i int, next bool) {
		text := "name: " + s.own + "\n" + texts[i]
		req := &v1.PutPolicyRequest{Yaml: text, RequestId: s.id(), Client: s.own}
		if s.rng.IntN(2) == 0 { // the same tree
			req.Yaml, req.Files = "", []*v1.TextFile{{Path: "policy.yaml", Content: text}}
		}
		res, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
			return n.policies.PutPolicy(ctx, req)
		})
		if !ok {
			return
		}
		if digests[i] == "" {
			digests[i] = res.Digest
		}
		if next {
			version++
		}
		s.wrong(res.Name != s.own || res.Version != version || res.Digest != digests[i] || len(res.Warnings) > 0, "it is %v, want version %d of %s", res, version, digests[i])
		got, reason := get(named)
		if s.wrong(reason != "", "it is refused: %s", reason); s.over {
			return
		}
		s.alike("the policy", got, &v1.Policy{Name: s.own, Version: version, Digest: digests[i], Pinned: pins[i], Files: []*v1.TextFile{{Path: "policy.yaml", Content: text}}})
	}
	open := func(ref *v1.PolicyRef) (*v1.Session, string) {
		req := &v1.CreateSessionRequest{SessionId: s.own + "-" + s.id(), AgentId: s.own, Policy: ref}
		res, reason, _ := told(s, "create a session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
			return n.sessions.CreateSession(ctx, req)
		})
		return res.GetSession(), reason
	}
	byName := &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}
	// judge has a session take what its tree allows, and nothing else.
	judge := func(x *v1.Session, i int) {
		if s.over {
			return
		}
		for n, tool := range []string{"one", "two"} {
			req := s.call(tool)
			req.SessionId = x.SessionId
			res := s.begin(req)
			want := v1.Outcome_OUTCOME_DENIED_BY_POLICY
			if n == i {
				want = v1.Outcome_OUTCOME_ADMITTED
			}
			s.outcome(res, want)
			s.wrong(!s.over && res.Decision.GetPolicyDigest() != digests[i], "it is judged by %v, want %s", res.GetDecision(), digests[i])
		}
	}
	made := func(i int, ref *v1.PolicyRef) *v1.Session {
		x, reason := open(ref)
		if s.wrong(reason != "", "it is refused: %s", reason); s.over {
			return nil
		}
		pins[i]++
		name, at := s.own, version
		if ref.GetDigest() != "" {
			name, at = "", 0
		}
		s.wrong(x.PolicyName != name || x.PolicyVersion != at || x.PolicyDigest != digests[i], "the session is %v, want version %d of %q with %s", x, at, name, digests[i])
		return x
	}
	put(0, true)
	put(0, false)
	if s.over {
		return
	}
	a := made(0, byName)
	put(1, true)
	if s.over {
		return
	}
	b := made(1, byName)
	put(0, true) // back to the older one
	c := made(0, byName)
	judge(a, 0)
	judge(b, 1)
	judge(c, 0)
	if s.over {
		return
	}
	d := made(1, &v1.PolicyRef{Ref: &v1.PolicyRef_Digest{Digest: digests[1]}})
	remove := func(req *v1.DeletePolicyRequest, want string) {
		req.RequestId, req.Client = s.id(), s.own
		_, reason, ok := told(s, "delete the policy", func(ctx context.Context, n *node) (*v1.DeletePolicyResponse, error) {
			return n.policies.DeletePolicy(ctx, req)
		})
		if ok {
			same(s, "the reason", reason, want)
		}
	}
	byItsName := &v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Name{Name: s.own}}
	remove(byItsName, "POLICY_PINNED")
	put(2, true)
	remove(byItsName, "")
	if _, reason := get(named); !s.over {
		same(s, "the reason", reason, "NOT_FOUND")
	}
	if _, reason := open(byName); !s.over {
		same(s, "the reason", reason, "NOT_FOUND")
	}
	for i, x := range []*v1.Session{a, b, c, d} {
		judge(x, []int{0, 1, 0, 1}[i])
		if i == 2 {
			remove(&v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Digest{Digest: digests[0]}}, "POLICY_PINNED")
		}
	}
	for i, digest := range digests[:2] {
		got, reason := get(&v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Digest{Digest: digest}})
		if s.wrong(reason != "", "it is refused: %s", reason); !s.over {
			s.wrong(got.Digest != digest || got.Name != "" || got.Pinned != pins[i] || len(got.Files) != 1 || !strings.HasSuffix(got.Files[0].Content, texts[i]), "the policy is %v, want %d pins of %s", got, pins[i], digest)
		}
		x, times := found(s, "list policies", func(ctx context.Context, n *node, token string) ([]*v1.Policy, string, error) {
			res, err := n.policies.ListPolicies(ctx, &v1.ListPoliciesRequest{PageSize: s.perPage(), PageToken: token})
			return res.GetPolicies(), res.GetNextPageToken(), err
		}, func(p *v1.Policy) bool { return p.Digest == digest || p.Name == s.own })
		s.wrong(!s.over && (times != 1 || x.Name != "" || x.Pinned != pins[i] || len(x.Files) > 0), "it is listed %d times: %v", times, x)
	}
	// Numbers of versions go on.
	put(1, true)
	if s.over {
		return
	}
	judge(made(1, byName), 1)
	for _, x := range []*v1.Session{a, c} {
		done(s, "close the session", func(ctx context.Context, n *node) (*v1.CloseSessionResponse, error) {
			return n.sessions.CloseSession(ctx, &v1.CloseSessionRequest{SessionId: x.SessionId})
		})
	}
	remove(&v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Digest{Digest: digests[0]}}, "") // nobody pins it any more
	if _, reason := get(&v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Digest{Digest: digests[0]}}); !s.over {
		same(s, "the reason", reason, "NOT_FOUND")
	}
}

// scanned has texts judged, by the name of a policy, by its digest and by a session of it.
func scanned(s *script) {
	put := &v1.PutPolicyRequest{Yaml: "name: " + s.own + "\nblocked_patterns: [\"drop table\", \"truncate\"]\nscan: {credentials: deny, personal_data: redact}\n", RequestId: s.id(), Client: s.own}
	tree, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, put)
	})
	if !ok || !s.session(nil) {
		return
	}
	if s.rng.IntN(2) == 0 { // also after its end
		done(s, "close the session", func(ctx context.Context, n *node) (*v1.CloseSessionResponse, error) {
			return n.sessions.CloseSession(ctx, &v1.CloseSessionRequest{SessionId: s.own})
		})
	}
	kinds := []string{"", "input", "output", "memory", "message"}
	for _, x := range []struct {
		text, action, redacted, category string
		findings                         []*v1.ScanFinding
	}{
		{"nothing of note", "allow", "", "", nil},
		{"DROP table x; drop TABLE y; truncate z", "deny", "", "blocked_pattern_", []*v1.ScanFinding{{Type: "blocked_pattern", Rule: "blocked_patterns[0]", Count: 1}, {Type: "blocked_pattern", Rule: "blocked_patterns[1]", Count: 1}}},
		{"mail a@example.org and b@example.org", "redact", "mail [REDACTED:email] and [REDACTED:email]", "", []*v1.ScanFinding{{Type: "personal_data", Rule: "email", Count: 2}}},
		{"use password=hunter2 and a@example.org", "deny", "", "scan", []*v1.ScanFinding{{Type: "credentials", Rule: "credential", Count: 1}, {Type: "personal_data", Rule: "email", Count: 1}}},
	} {
		kind := 1 + s.rng.IntN(4)
		req := &v1.ScanRequest{Kind: v1.ScanKind(kind), Text: x.text, Tool: "tool"}
		switch s.rng.IntN(3) {
		case 0:
			req.SessionId = s.own
		case 1:
			req.Policy = &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}
		default:
			req.Policy = &v1.PolicyRef{Ref: &v1.PolicyRef_Digest{Digest: tree.Digest}}
		}
		res, ok := done(s, "scan", func(ctx context.Context, n *node) (*v1.ScanResponse, error) { return n.policies.Scan(ctx, req) })
		if !ok {
			return
		}
		if x.category == "blocked_pattern_" {
			x.category += kinds[kind]
		}
		denied := x.action == "deny"
		s.wrong((res.DecisionId != "") != denied || (res.PublicMessage != "") != denied || res.Reason == "" || denied && !strings.HasPrefix(res.Reason, "the "+kinds[kind]+" holds "), "the scan says %v", res)
		for _, word := range []string{"hunter2", "a@example.org", "table"} {
			s.wrong(strings.Contains(res.Reason+res.PublicMessage, word), "it quotes the text: %v", res)
		}
		s.alike("the scan", res, &v1.ScanResponse{
			Allowed: !denied, Action: x.action, Findings: x.findings, Redacted: x.redacted, Category: x.category, PolicyDigest: tree.Digest,
			Reason: res.Reason, PublicMessage: res.PublicMessage, DecisionId: res.DecisionId,
		})
		if !denied || s.over {
			continue
		}
		why, reason, ok := told(s, "explain", func(ctx context.Context, n *node) (*v1.ExplainResponse, error) {
			return n.explains.Explain(ctx, &v1.ExplainRequest{DecisionId: res.DecisionId})
		})
		if ok && reason == "" {
			r := why.Record
			s.wrong(r.DecisionId != res.DecisionId || r.Decision.GetCategory() != x.category || r.Decision.GetReason() != res.Reason || r.Decision.GetPolicyDigest() != tree.Digest || !r.DryRun || !strings.Contains(r.ContextSnapshotJson, `"scanned_tool":"tool"`) || strings.Contains(r.String(), "hunter2"), "the record is %v", r)
		}
	}
}

// traced calls tools whose hashes stand in the tree, are registered, or neither: the tree
// comes first, and a tree that says nothing of hashes checks those that are registered alone.
func traced(s *script) {
	const admitted, denied = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_DENIED_BY_POLICY
	inTree, registered, other := s.own+"-in", s.own+"-at", s.own+"-no"
	one, two, letters := strings.Repeat("1", 64), strings.Repeat("2", 64), strings.Repeat("aB", 32)
	put := func(tool, hash string) {
		req := &v1.PutHashRequest{Tool: tool, Hash: hash, RequestId: s.id(), Client: s.own}
		res, ok := done(s, "put a hash", func(ctx context.Context, n *node) (*v1.PutHashResponse, error) { return n.policies.PutHash(ctx, req) })
		if ok {
			s.alike("the hash", res.Hash, &v1.ToolHash{Tool: tool, Hash: strings.ToLower(strings.TrimPrefix(hash, "sha256:"))})
		}
	}
	put(inTree, two)
	put(registered, "sha256:"+letters)
	try := func(tool, hash string, want v1.Outcome) {
		req := s.call(tool)
		if hash != "" {
			req.Metadata = map[string]string{"content_hash": hash}
		}
		res := s.begin(req)
		s.outcome(res, want)
		s.wrong(!s.over && want == denied && (res.Decision.GetCategory() != "content_hash" || res.Decision.GetAction() != "deny"), "the decision is %v", res.GetDecision())
	}
	mode := []string{"strict", "warn", ""}[s.rng.IntN(3)]
	text := "max_tool_calls: 100\nmax_concurrent: 64\n"
	if mode != "" {
		text += "content_hash_mode: " + mode + "\ncontent_hashes: {" + inTree + ": \"sha256:" + one + "\"}\n"
	}
	if !s.policy(text) || !s.session(nil) {
		return
	}
	if mode != "" {
		try(inTree, one, admitted)
		try(inTree, two, denied)
	} else {
		try(inTree, two, admitted)
		try(inTree, one, denied)
	}
	try(inTree, "", denied)
	try(registered, strings.ToLower(letters), admitted)
	try(registered, one, denied)
	try(registered, "", denied)
	if mode == "strict" {
		try(other, one, denied)
		try(other, "", denied)
	} else {
		try(other, one, admitted)
		try(other, "", admitted)
	}
	for _, tool := range []string{inTree, registered} {
		remove := &v1.DeleteHashRequest{Tool: tool, RequestId: s.id(), Client: s.own}
		done(s, "delete the hash", func(ctx context.Context, n *node) (*v1.DeleteHashResponse, error) {
			return n.policies.DeleteHash(ctx, remove)
		})
	}
	if mode == "strict" {
		try(registered, strings.ToLower(letters), denied)
	} else {
		try(registered, one, admitted)
	}
}
