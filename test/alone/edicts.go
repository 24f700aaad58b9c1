package alone

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What rulesets of Edictum limit, ask about and fence in, each rule for itself.

// edicts is a ruleset by its rules, and more at its top.
func edicts(name, more, rules string) *v1.TextFile {
	return &v1.TextFile{Path: name + ".yaml", Content: "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: " + name + "}\ndefaults: {mode: enforce}\n" + more + "rules:\n" + rules}
}

// composed asks people about calls and counts them by a ruleset, which stands alone or beside
// limits and rules: the lower of two limits holds, and a call that nobody has decided on goes
// on where all that ask about it say so.
func composed(s *script) {
	const rules = `  - {id: pays, type: pre, tool: pay, when: {args.n: {gte: 5}}, then: {action: ask, message: "pay {args.n}?", timeout: 900, timeout_action: allow}}
  - {id: sends, type: pre, tool: send, when: {args.n: {gte: 5}}, then: {action: ask, message: "send it?"}}
  - {id: few, type: session, limits: {max_tool_calls: 12, max_attempts: 20, max_calls_per_tool: {two: 2}}, then: {action: block, message: "that is enough"}}
  - {id: fewer, type: session, limits: {max_tool_calls: 14, max_calls_per_tool: {two: 1}}, then: {action: block, message: "that is too much"}}
  - {id: none, type: session, enabled: false, limits: {max_tool_calls: 1}, then: {action: block, message: "none at all"}}
  - {id: would, type: session, mode: observe, limits: {max_tool_calls: 2}, then: {action: block, message: "two would do"}}
`
	const deny, allow = v1.OnTimeout_ON_TIMEOUT_DENY, v1.OnTimeout_ON_TIMEOUT_ALLOW
	files, calls, limit := []*v1.TextFile{edicts("asks", "", rules)}, 12, limited{"few", "yaml_session", "max_tool_calls", "that is enough"}
	type asked struct {
		rule, policy string // that asks
		why          string
		required     int32
		timeout      time.Duration
		then         v1.OnTimeout
	}
	own := func(required int32) map[string]asked {
		return map[string]asked{"pay": {"pays", "asks", "pay 5?", required, 15 * time.Minute, allow}, "send": {"sends", "asks", "send it?", required, 5 * time.Minute, deny}}
	}
	asks, free := own(1), []string{"one", "pay", "send"}
	switch s.rng.IntN(3) {
	case 0: // what its author did not write has no limit
	case 1:
		files = append(files, &v1.TextFile{Path: "limits.yaml", Content: "name: " + s.own + "\nmax_concurrent: 64\nmax_tokens: 100000\nmax_tool_calls: 100\nmax_attempts: 100\nmax_calls_per_tool: {two: 3}\n"})
	case 2:
		calls, limit = 7, limited{"", "", "max_tool_calls", "Max tool calls exceeded (7)"}
		then := []v1.OnTimeout{deny, allow}[s.rng.IntN(2)]
		word := strings.ToLower(strings.TrimPrefix(then.String(), "ON_TIMEOUT_"))
		asks, free = own(2), []string{"one", "send"}
		asks["pay"] = asked{"both", "rules", "of both", 2, 10 * time.Minute, then}
		asks["wire"] = asked{"both", "rules", "of both", 2, 10 * time.Minute, deny} // the ruleset says so
		asks["mail"] = asked{"both", "rules", "of both", 2, 10 * time.Minute, then}
		files = append(files, edicts("wires", "", "  - {id: wires, type: pre, tool: wire, when: {args.n: {exists: true}}, then: {action: ask, message: wire it, timeout_action: block}}\n"),
			&v1.TextFile{Path: "limits.yaml", Content: "name: " + s.own + "\nmax_concurrent: 64\nmax_tokens: 100000\nmax_tool_calls: 7\nmax_attempts: 100\nmax_calls_per_tool: {two: 3}\napproval: {required: 2, denials: 2, timeout: 10m, on_timeout: " + word + "}\n"},
			&v1.TextFile{Path: "rules.yaml", Content: "name: rules\nrules: [{name: both, condition: {field: tool_name, operator: in, value: [pay, wire, mail]}, action: ask, message: of both}]\n"})
	}
	res, ok := s.put(files...)
	if !ok || !s.session(nil) {
		return
	}
	s.wrong(!strings.Contains(fmt.Sprint(res.Warnings), "timeout_action"), "of a yes that nobody gave it warns by %q", res.Warnings)
	// What only observes is told of by what a node has seen, which is more when it is asked again.
	s.single = true
	attempts := 0
	for tool, want := range asks {
		req := s.call(tool)
		req.ArgumentsJson = `{"n": 5}`
		begun := s.begin(req)
		if s.outcome(begun, v1.Outcome_OUTCOME_APPROVAL_REQUIRED); s.over {
			return
		}
		attempts++
		d := begun.Decision
		s.wrong(d.GetMatchedRule() != want.rule || d.Reason != want.why || d.Category != "human_approval_required" || len(files) < 3 && d.Policy != want.policy, "the decision on %s is %v", tool, d)
		x := s.approval(begun.Approval.GetId(), v1.ApprovalState_APPROVAL_STATE_PENDING)
		if s.over {
			return
		}
		s.wrong(x.Timeout.AsDuration() != want.timeout || x.OnTimeout != want.then || x.Required != want.required || x.Denials != want.required || x.Reason != want.why || x.Tool != tool, "the approval of %s is %v", tool, x)
	}
	begun := 0
	try := func(tool string, outcome v1.Outcome, want limited) {
		if s.over {
			return
		}
		ask := &v1.EvaluateRequest{SessionId: s.own, Tool: tool, ArgumentsJson: `{"n": 4}`}
		before, ok := done(s, "evaluate "+tool, func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) { return n.policies.Evaluate(ctx, ask) })
		req := s.call(tool)
		req.ArgumentsJson, req.Tokens = ask.ArgumentsJson, 1000
		res := s.begin(req)
		if s.outcome(res, outcome); !ok || s.over {
			return
		}
		if outcome == v1.Outcome_OUTCOME_ATTEMPT_LIMIT {
			attempts--
		}
		attempts++
		s.wrong(int(res.Counters.GetAttempts()) != attempts, "the counters are %v, want %d attempts", res.Counters, attempts)
		for what, d := range map[string]*v1.Decision{"the decision": res.Decision, "what Evaluate says": before.Decision} {
			admitted := outcome == v1.Outcome_OUTCOME_ADMITTED
			got := limited{d.GetMatchedRule(), d.GetSource(), d.GetCategory(), d.GetReason()}
			if admitted {
				got.why = ""
			}
			s.wrong(d.GetAllowed() != admitted || got != want, "%s on %s behind %d calls is %v, want %v", what, tool, begun, d, want)
		}
		if outcome != v1.Outcome_OUTCOME_ADMITTED {
			return
		}
		would := 0
		for _, r := range before.Decision.GetRules() {
			if r.Type == "session_contract" {
				would++
				s.wrong(r.Rule != "would" || r.Message != "two would do" || !r.Observed || r.Passed || r.Candidate, "what observes says %v", r)
			}
		}
		s.wrong((would == 1) != (begun >= 2) || would > 1, "behind %d calls the limit that observes says %v", begun, before.Decision.GetRules())
		begun++
	}
	const admitted = v1.Outcome_OUTCOME_ADMITTED
	try("two", admitted, limited{})
	try("two", v1.Outcome_OUTCOME_TOOL_LIMIT, limited{"max_calls_per_tool:two", "operation_limit", "max_calls_per_tool", "Per-tool limit: two called 1 times (limit: 1)."})
	for begun < calls && !s.over {
		try(pick(s, free...), admitted, limited{})
	}
	try("one", v1.Outcome_OUTCOME_CALL_LIMIT, limit)
	for attempts < 20 && !s.over {
		try(pick(s, free...), v1.Outcome_OUTCOME_CALL_LIMIT, limit)
	}
	try("one", v1.Outcome_OUTCOME_ATTEMPT_LIMIT, limited{"max_attempts", "attempt_limit", "max_attempts", "Attempt limit reached (20). Agent may be stuck in a retry loop. Stop and reassess."})
}

// limited is how a refusal by a limit reads.
type limited struct{ rule, source, category, why string }

// sandboxed makes calls that name paths, commands and hosts, within what rules allow and
// beyond it.
func sandboxed(s *script) {
	const rules = `  - {id: apps, type: sandbox, mode: observe, tool: Read, within: [/srv/app], message: "not of the app: {args.path}"}
  - {id: files, type: sandbox, tools: [Read, "Write*"], within: [/srv], not_within: [/srv/secret], message: "not {args.path}"}
  - {id: shells, type: sandbox, tool: Bash, within: [/srv], allows: {commands: [ls, cat]}, message: "not {args.command}"}
  - {id: hosts, type: sandbox, tool: fetch, allows: {domains: ["*.x.io", api.example.org]}, not_allows: {domains: [bad.x.io]}, outside: ask, message: "may {args.url}?", timeout: 900}
`
	if _, ok := s.put(edicts("fences", "tools: {Read: {side_effect: read}, fetch: {side_effect: pure}}\n", rules)); !ok || !s.session(nil) {
		return
	}
	tools := map[string]struct{ argument, rule, says, effect string }{
		"Read": {"path", "files", "not %v", "read"}, "WriteFile": {"path", "files", "not %v", "irreversible"}, "other": {"path", "", "", "irreversible"},
		"Bash": {"command", "shells", "not %v", ""}, "fetch": {"url", "hosts", "may %v?", "pure"},
	}
	const in, out, inApp, read, changes = isNot, is, "app", "read", "irreversible"
	tries := []struct {
		tool    string
		names   any
		cwd     string
		outside truth
		what    string // of Read whether it is within what is observed, of Bash its side effect
	}{
		{"Read", "/srv/app", "", in, inApp}, {"Read", "/srv/app/a/../b", "", in, inApp}, {"Read", 5, "", in, inApp}, {"Read", "a.txt", "/srv/app", in, inApp},
		{"Read", "/srv/a", "", in, ""}, {"Read", "/srv/application", "", in, ""}, {"Read", "/srv/secrets", "", in, ""}, {"Read", "../x", "/srv/app", in, ""},
		{"Read", "/srv/secret/x", "", out, ""}, {"Read", "/srv/app/../secret", "", out, ""}, {"Read", "/etc/passwd", "", out, ""}, {"Read", "/srv/app/../../etc", "", out, ""},
		{"Read", "/srv/%2e%2e/etc", "", out, ""}, {"Read", "/srvx", "", out, ""}, {"Read", "a.txt", "", out, ""}, {"Read", "../../etc", "/srv/app", out, ""},
		{"Read", []string{"/srv/app/a", "/etc/x"}, "", out, ""},
		{"WriteFile", "/srv/a", "", in, ""}, {"WriteFile", "/srv/secret", "", out, ""}, {"other", "/etc/passwd", "", in, ""},
		{"Bash", "ls -la", "", in, read}, {"Bash", "cat /srv/a", "", in, read}, {"Bash", "cat a > /srv/b", "", in, changes}, {"Bash", "cat ../x", "/srv/app", in, read},
		{"Bash", "rm x", "", out, changes}, {"Bash", "cat /etc/passwd", "", out, read}, {"Bash", "ls; rm x", "", out, changes}, {"Bash", "ls $(id)", "", out, changes},
		{"Bash", "cat --file=/etc/x", "", out, read}, {"Bash", "cat ../x", "/srv", out, read}, {"Bash", 5, "", unsure, changes},
		{"fetch", "https://a.x.io/p", "", in, ""}, {"fetch", "https://API.Example.org:8443", "", in, ""}, {"fetch", "just words", "", in, ""}, {"fetch", "https://bad.x.io", "", out, ""},
		{"fetch", "https://x.io.evil.org", "", out, ""}, {"fetch", "see http://evil.org/ there", "", out, ""}, {"fetch", "https://evil.org/?to=https://a.x.io", "", out, ""},
	}
	s.rng.Shuffle(len(tries), func(i, j int) { tries[i], tries[j] = tries[j], tries[i] })
	seen := false
	for _, x := range tries[:18] {
		tool, names := tools[x.tool], x.names
		arguments, _ := json.Marshal(map[string]any{tool.argument: names})
		if many, ok := names.([]string); ok {
			names = "['" + strings.Join(many, "', '") + "']"
		}
		req := s.call(x.tool)
		if req.ArgumentsJson = string(arguments); x.cwd != "" {
			req.Metadata = map[string]string{"cwd": x.cwd}
		}
		outcome, d := v1.Outcome_OUTCOME_ADMITTED, &v1.Decision{Allowed: true, Action: "allow", Reason: "No rules matched; default action applied", SideEffect: tool.effect}
		if tool.rule != "" {
			d.RulesEvaluated = 1
		}
		switch x.tool {
		case "Bash":
			d.SideEffect = x.what
		case "Read":
			if d.RulesEvaluated = 2; x.what != inApp {
				d.Rules = append(d.Rules, &v1.RuleRecord{Rule: "apps", Type: "sandbox", Message: fmt.Sprint("not of the app: ", names), Observed: true})
			}
		}
		if x.outside != in {
			outcome, d.Action, d.Category = v1.Outcome_OUTCOME_DENIED_BY_POLICY, "deny", "policy_rule"
			d.Allowed, d.Policy, d.MatchedRule, d.Reason, d.Source = false, "fences", tool.rule, fmt.Sprintf(tool.says, names), "yaml_sandbox"
			d.Rules = append(d.Rules, &v1.RuleRecord{Rule: tool.rule, Type: "sandbox", Message: d.Reason, PolicyError: x.outside == unsure})
			switch {
			case x.outside == unsure:
				d.Category, d.Error = "policy_error", "rule shells could not be judged, and applies"
			case x.tool == "fetch":
				outcome, d.Action, d.Category = v1.Outcome_OUTCOME_APPROVAL_REQUIRED, "ask", "human_approval_required"
			}
		}
		res := s.decides(req, outcome, d)
		if s.over {
			return
		}
		if d.Action == "ask" && !seen {
			seen = true
			a := s.approval(res.Approval.GetId(), v1.ApprovalState_APPROVAL_STATE_PENDING)
			s.wrong(!s.over && (a.Timeout.AsDuration() != 15*time.Minute || a.OnTimeout != v1.OnTimeout_ON_TIMEOUT_DENY || a.Reason != d.Reason), "the approval is %v", a)
		}
	}
}
