package server_test

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
)

// Edictum rulesets on a node: what their rules say of a call, and of what it returns.

const rulesetOfP = `apiVersion: edictum/v1
kind: Ruleset
metadata: {name: p}
defaults: {mode: enforce}
tools: {look: {side_effect: read}}
rules:
  - {id: no-rm, type: pre, tool: Bash, when: {args.command: {contains: "rm -rf"}}, then: {action: block, message: "no {args.command}", tags: [shell]}}
  - {id: tried, type: pre, tool: look, mode: observe, when: {args.far: {equals: true}}, then: {action: block, message: "far"}}
  - {id: paid, type: pre, tool: look, when: {metadata.cost.cents: {gt: 9}}, then: {action: block, message: "dear"}}
  - {id: secrets, type: post, tool: look, when: {output.text: {matches: "sk-[a-z]+"}}, then: {action: redact, message: "a key"}}
  - {id: others, type: post, tool: look, when: {all: [{args.who: {equals: other}}, {output.text: {contains: salary}}]}, then: {action: block, message: "the salary of {args.who}"}}
  - {id: few, type: session, limits: {max_tool_calls: 4, max_attempts: 6, max_calls_per_tool: {once: 1}}, then: {action: block, message: "that is enough"}}
  - {id: fewer, type: session, mode: observe, limits: {max_tool_calls: 2}, then: {action: block, message: "two would do"}}
`

// tooled makes a request of a tool and its arguments.
func tooled(tool, arguments string) func(*v1.BeginCallRequest) {
	return func(r *v1.BeginCallRequest) { r.Tool, r.ArgumentsJson = tool, arguments }
}

func rulesetNode(t *testing.T) *node {
	n := start(t)
	n.putPolicy(rulesetOfP)
	n.session("s")
	return n
}

// endOf ends a call with its output, and with the request that began it.
func (n *node) endOf(begin *v1.BeginCallRequest, output any) *v1.EndCallResponse {
	n.t.Helper()
	out, err := structpb.NewValue(output)
	require.NoError(n.t, err)
	res, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: begin.SessionId, CallId: begin.CallId, Output: out, Begin: begin})
	require.NoError(n.t, err)
	return res
}

// What a call returns is judged by the post rules of the ruleset, with what the call
// was; the same answer comes to whoever asks again.
func TestAnOutputIsReviewed(t *testing.T) {
	n := rulesetNode(t)
	begin := beginRequest("s", "c", tooled("look", `{"who": "other"}`))
	answer, err := n.calls.BeginCall(n.ctx(), proto.CloneOf(begin))
	require.NoError(t, err)
	require.True(t, answer.Reviews)
	require.Equal(t, "read", answer.Decision.SideEffect)
	begin.SessionId, begin.CallId = "", "" // they are those of the end
	end := func() *v1.EndCallResponse {
		res, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{
			SessionId: "s", CallId: "c", Output: structpb.NewStringValue("the key sk-abc"), Begin: proto.CloneOf(begin),
		})
		require.NoError(t, err)
		return res
	}
	first := end()
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, first.Outcome)
	require.Equal(t, "the key [REDACTED]", first.Review.Output.GetStringValue())
	require.True(t, first.Review.Changed)
	require.False(t, first.Review.Suppressed || first.Review.Passed || first.Review.PolicyError)
	require.Equal(t, []string{"⚠️ Content redacted by secrets."}, first.Review.Warnings)
	require.Equal(t, "secret_detected", first.Review.Findings[0].Type)
	require.Equal(t, "secrets", first.Review.Rules[0].Rule)
	again := end()
	require.Equal(t, v1.Outcome_OUTCOME_ALREADY_ENDED, again.Outcome)
	require.True(t, proto.Equal(first.Review, again.Review))

	var told []map[string]any
	for _, l := range n.audit.all(t) {
		if l["event_type"] == "output_reviewed" {
			told = append(told, l)
		}
	}
	require.Len(t, told, 1, "a repeat is no second review")
	require.Equal(t, []any{"secrets", "secret_detected", "c"}, []any{told[0]["rule"], told[0]["category"], told[0]["call_id"]})
	require.Equal(t, "a key", told[0]["rules"].([]any)[0].(map[string]any)["message"])

	// What the arguments have to say in it.
	mine, other := beginRequest("s", "mine", tooled("look", `{"who": "me"}`)), beginRequest("s", "other", tooled("look", `{"who": "other"}`))
	for _, b := range []*v1.BeginCallRequest{mine, other} {
		n.begin(b.SessionId, b.CallId, tooled(b.Tool, b.ArgumentsJson))
	}
	require.False(t, n.endOf(mine, "salary: 5").Review.Changed)
	review := n.endOf(other, "salary: 5").Review
	require.True(t, review.Suppressed)
	require.Equal(t, "[OUTPUT SUPPRESSED] the salary of other", review.Output.GetStringValue())
	require.Equal(t, "policy_violation", review.Findings[0].Type)
}

// Where a call says that it was another one, nothing happens; where it does not say
// which it was, nothing of its output is shown.
func TestAnOutputIsNotReviewedForAnotherCall(t *testing.T) {
	n := rulesetNode(t)
	n.begin("s", "c", tooled("look", `{"who": "other"}`))
	output := structpb.NewStringValue("salary: 5")
	for field, begin := range map[string]*v1.BeginCallRequest{
		"begin: is not the request": beginRequest("", "", tooled("look", `{"who": "me"}`)),
		"begin.callId: ":            beginRequest("s", "d", tooled("look", `{"who": "other"}`)),
		"begin.sessionId: ":         beginRequest("t", "", tooled("look", `{"who": "other"}`)),
		"begin.argumentsJson: ":     beginRequest("", "", tooled("look", `{`)),
		"begin.tool: ":              beginRequest("", "", tooled("", ``)),
	} {
		_, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: "c", Output: output, Begin: begin})
		requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", field)
	}
	require.Len(t, n.getSession("s").OpenCalls, 1)

	res, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: "c", Output: output})
	require.NoError(t, err)
	require.True(t, res.Review.Suppressed && res.Review.PolicyError)
	require.Contains(t, res.Review.Output.GetStringValue(), "send begin with EndCall")
	// Of an end that this node cannot tell the tool of, too.
	res, err = n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: "c", Output: output})
	require.NoError(t, err)
	require.True(t, res.Review.Suppressed)

	// A tool at whose outputs nobody looks has none, and a wait is no part of a call.
	require.False(t, n.begin("s", "free", tooled("Bash", `{"command": "ls"}`), waiting(1)).Reviews)
	begin := beginRequest("", "", tooled("Bash", `{"command": "ls"}`))
	res, err = n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: "free", Output: output, Begin: begin})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, res.Outcome)
	require.Nil(t, res.Review)
}

// An output at which no rule looks is shown also by a node that has not seen the call, and
// to whoever asks again, as long as no call of the session was of a tool at whose outputs
// rules look: that one it may have been.
func TestAnOutputOfACallThatIsNotSeen(t *testing.T) {
	up := rulesetNode(t)
	late := &behind{Store: up.store}
	n := startOn(t, late)
	late.freeze(t)
	end := func(call string) *v1.EndCallResponse {
		res, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: call, Output: structpb.NewStringValue("fine")})
		require.NoError(t, err)
		return res
	}
	up.begin("s", "free", tooled("Bash", `{"command": "ls"}`))
	first := end("free")
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, first.Outcome)
	require.Nil(t, first.Review)
	require.Equal(t, v1.Outcome_OUTCOME_ALREADY_ENDED, end("free").Outcome)
	require.Nil(t, end("free").Review)

	up.begin("s", "seen", tooled("look", `{}`))
	require.True(t, end("seen").Review.GetSuppressed())
	require.True(t, end("seen").Review.GetSuppressed())
	require.True(t, end("free").Review.GetSuppressed())
	_, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: "none", Output: structpb.NewStringValue("fine")})
	requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", "callId")
}

// Without a status the output says how a call ended.
func TestAnOutputTellsTheStatus(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	failures := int32(0)
	for i, c := range []struct {
		output any
		failed bool
	}{
		{"fine", false}, {nil, false}, {"Error: no", true}, {"FATAL: no", true}, {"errors: none", false},
		{map[string]any{"is_error": true}, true}, {map[string]any{"is_error": false}, false}, {map[string]any{"is_error": 1.0}, false},
	} {
		begin := beginRequest("s", string(rune('a'+i)))
		n.begin("s", begin.CallId)
		res := n.endOf(begin, c.output)
		if c.failed {
			failures++
		}
		require.Equal(t, failures, res.Counters.Failures, "%v", c.output)
	}
}

// An answer holds what became of the rules, and limits read as their author wrote them.
func TestWhatRulesSay(t *testing.T) {
	n := rulesetNode(t)
	denied := n.begin("s", "a", tooled("Bash", `{"command": "rm -rf /"}`)).Decision
	require.Equal(t, []string{"no-rm", "yaml_precondition", "irreversible", "no rm -rf /"}, []string{denied.MatchedRule, denied.Source, denied.SideEffect, denied.Reason})
	require.Equal(t, "precondition", denied.Rules[0].Type)
	require.Equal(t, []string{"shell"}, denied.Rules[0].Tags)

	seen := n.begin("s", "b", tooled("look", `{"far": true}`))
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, seen.Outcome)
	require.Len(t, seen.Decision.Rules, 1)
	require.True(t, seen.Decision.Rules[0].Observed && !seen.Decision.Rules[0].Passed)
	lines := n.audit.all(t)
	last := lines[len(lines)-1]
	require.Equal(t, "tried", last["rules"].([]any)[0].(map[string]any)["rule"], "what a rule would have refused is kept")
	require.Len(t, last["policy_version"], 64)
	record := n.explain(seen.DecisionId)
	var passed, not []string
	for _, r := range record.Decision.Rules {
		if r.Passed {
			passed = append(passed, r.Rule)
		} else {
			not = append(not, r.Rule+": "+r.Message)
		}
	}
	require.Equal(t, []string{"paid"}, passed, "what is kept has the rules that passed, too")
	require.Equal(t, []string{"tried: far"}, not)
	require.EqualValues(t, 2, record.Decision.RulesEvaluated)
	require.EqualValues(t, 2, seen.Decision.RulesEvaluated)

	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c", tooled("once", `{}`)).Outcome)
	once := n.begin("s", "d", tooled("once", `{}`))
	require.Equal(t, v1.Outcome_OUTCOME_TOOL_LIMIT, once.Outcome)
	require.Equal(t, []string{"max_calls_per_tool:once", "operation_limit", "Per-tool limit: once called 1 times (limit: 1)."},
		[]string{once.Decision.MatchedRule, once.Decision.Source, once.Reason})
	third := n.begin("s", "e", tooled("look", `{}`))
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, third.Outcome)
	require.Equal(t, "two would do", third.Decision.Rules[0].Message, "a limit that observes says what it would refuse")
	require.Equal(t, "session_contract", third.Decision.Rules[0].Type)
	n.begin("s", "f", tooled("look", `{}`))
	tried := n.begin("s", "g", tooled("look", `{}`))
	require.Equal(t, v1.Outcome_OUTCOME_ATTEMPT_LIMIT, tried.Outcome)
	require.Equal(t, []string{"max_attempts", "attempt_limit", "Attempt limit reached (6). Agent may be stuck in a retry loop. Stop and reassess."},
		[]string{tried.Decision.MatchedRule, tried.Decision.Source, tried.Reason})

	n.session("u")
	for _, id := range []string{"a", "b", "c", "d"} {
		n.begin("u", id, tooled("look", `{}`))
	}
	full := n.begin("u", "e", tooled("look", `{}`))
	require.Equal(t, v1.Outcome_OUTCOME_CALL_LIMIT, full.Outcome)
	require.Equal(t, []string{"few", "yaml_session", "that is enough"}, []string{full.Decision.MatchedRule, full.Decision.Source, full.Reason})
	judged, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "u", Tool: "look"})
	require.NoError(t, err)
	require.Equal(t, []string{"few", "yaml_session", "that is enough"}, []string{judged.Decision.MatchedRule, judged.Decision.Source, judged.Decision.Reason})
}

// What whoever created a session pinned for it holds over what its calls say.
func TestEnvIsPinnedBySessions(t *testing.T) {
	n := start(t)
	n.putPolicy("apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: p}\ndefaults: {mode: enforce}\nrules:\n" +
		"  - {id: dry, type: pre, tool: '*', when: {env.DRY: {equals: true}}, then: {action: block, message: 'a dry run'}}\n" +
		"  - {id: far, type: post, tool: '*', when: {env.REGION: {equals: far}}, then: {action: block, message: 'far'}}")
	_, err := n.sessions.CreateSession(n.ctx(), &v1.CreateSessionRequest{
		SessionId: "s", AgentId: "a", Policy: byName("p"), Attributes: map[string]string{"env.DRY": "true", "env.REGION": "far"},
	})
	require.NoError(t, err)
	n.session("free")
	says := func(text string) func(*v1.BeginCallRequest) {
		return func(r *v1.BeginCallRequest) { r.ContextJson = text }
	}
	require.Equal(t, "dry", n.begin("s", "a", says(`{"env": {"DRY": "false"}}`)).Decision.MatchedRule)
	require.Equal(t, "dry", n.begin("free", "a", says(`{"env": {"DRY": "true"}}`)).Decision.MatchedRule)
	judged, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t", Output: structpb.NewStringValue("x")})
	require.NoError(t, err)
	require.Equal(t, "dry", judged.Decision.MatchedRule)
	require.True(t, judged.Review.Suppressed)
	begin := beginRequest("free", "b", says(`{"env": {"REGION": "far"}}`))
	n.begin("free", "b", says(`{"env": {"REGION": "far"}}`))
	require.True(t, n.endOf(begin, "x").Review.Suppressed)
}

// Metadata may be more than texts.
func TestMetadataAsJSON(t *testing.T) {
	n := rulesetNode(t)
	with := func(text string) func(*v1.BeginCallRequest) {
		return func(r *v1.BeginCallRequest) { r.Tool, r.MetadataJson = "look", text }
	}
	require.Equal(t, "paid", n.begin("s", "a", with(`{"cost": {"cents": 10}}`)).Decision.MatchedRule)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "b", with(`{"cost": {"cents": 9}}`)).Outcome)
	for text, says := range map[string]string{`[`: "metadataJson: ", `[]`: "must be an object"} {
		_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "c", with(text)))
		requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", says)
	}
	_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "c", with(`{}`), func(r *v1.BeginCallRequest) { r.Metadata = map[string]string{"a": "b"} }))
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "metadataJson: is given beside metadata")
	judged, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{
		Policy: byName("p"), Tool: "look", MetadataJson: `{"cost": {"cents": 10}}`, Output: structpb.NewStringValue("sk-abc"),
	})
	require.NoError(t, err)
	require.Equal(t, "paid", judged.Decision.MatchedRule)
	require.Equal(t, "[REDACTED]", judged.Review.Output.GetStringValue())
	require.Len(t, judged.Review.Rules, 2, "with those that passed")
}

// deny_sensitive_reads needs no ruleset.
func TestSensitiveReadsAreDenied(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("deny_sensitive_reads: true")...)
	n.session("s")
	denied := n.begin("s", "a", tooled("Read", `{"path": "/home/x/.ssh/id_rsa"}`))
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, denied.Outcome)
	require.Equal(t, []string{"deny_sensitive_reads", "builtin"}, []string{denied.Decision.MatchedRule, denied.Decision.Source})
	require.Equal(t, "Access to sensitive path denied: /home/x/.ssh/id_rsa. This file may contain secrets or credentials.", denied.Reason)
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, n.begin("s", "b", tooled("Bash", `{"command": "env | sort"}`)).Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c", tooled("Bash", `{"command": "ls"}`)).Outcome)
}

// A ruleset that is refused leaves what was in force, and a line in the audit.
func TestARefusedRulesetIsInTheAudit(t *testing.T) {
	n := rulesetNode(t)
	_, err := n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Name: "p", Yaml: rulesetOfP + "  - {id: no-rm}\n"})
	require.Error(t, err)
	lines := n.audit.all(t)
	last := lines[len(lines)-1]
	require.Equal(t, []any{"policy_refused", false, true, "p"}, []any{last["event_type"], last["allowed"], last["policy_error"], last["policy"]})
	require.Contains(t, last["reason"], "rules[7]")
	n.session("t")
	require.Equal(t, "no-rm", n.begin("t", "a", tooled("Bash", `{"command": "rm -rf /"}`)).Decision.MatchedRule)
}

// A call ends also at a node that cannot have its policy; nothing that it returned is
// shown then.
func TestAnEndWithoutItsPolicy(t *testing.T) {
	up := start(t)
	up.putPolicy("name: odd", "max_tokens: 5", "max_tokenz: 6")
	_, err := up.sessions.CreateSession(up.ctx(), &v1.CreateSessionRequest{SessionId: "s", AgentId: "a", Policy: byName("odd")})
	require.NoError(t, err)
	strict := startOn(t, up.store, func(c *server.Config) { c.StrictNamespaces = []string{"default"} })
	for call, output := range map[string]*structpb.Value{"a": nil, "b": structpb.NewStringValue("text")} {
		up.begin("s", call)
		res, err := strict.calls.EndCall(strict.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: call, Status: v1.Status_STATUS_SUCCEEDED, Output: output})
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_ENDED, res.Outcome)
		require.Equal(t, output != nil, res.Review.GetSuppressed() && res.Review.GetPolicyError())
	}
}
