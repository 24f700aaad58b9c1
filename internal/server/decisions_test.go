package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Every refusal says why, and a repeat of its id reads the same.
func TestRefusalsInWords(t *testing.T) {
	tool := func(name string) func(*v1.BeginCallRequest) { return func(r *v1.BeginCallRequest) { r.Tool = name } }
	kind := func(k v1.Kind) func(*v1.BeginCallRequest) {
		return func(r *v1.BeginCallRequest) { r.Kind, r.Tool = k, "" }
	}
	sampling := func(r *v1.BeginCallRequest) { r.Kind, r.Tool = v1.Kind_KIND_SAMPLING, "files" }
	for _, c := range []struct {
		name     string
		policy   []string
		before   func(n *node)
		call     func(*v1.BeginCallRequest)
		outcome  v1.Outcome
		reason   string
		category string
		rule     string
	}{
		{"a tool that is not allowed", policy("allowed_tools: [read]"), nil, tool("exec"),
			v1.Outcome_OUTCOME_DENIED_BY_POLICY, "Tool 'exec' not in allowed list: ['read']", "not_allowed_tool", ""},
		{"a blocked pattern", policy("blocked_patterns: ['rm -rf']"), nil,
			func(r *v1.BeginCallRequest) { r.ArgumentsJson = `{"command":"rm -rf /"}` },
			v1.Outcome_OUTCOME_DENIED_BY_POLICY, "Blocked pattern 'rm -rf' detected in tool 't' arguments", "blocked_pattern_tool", ""},
		{"human approval", policy("require_human_approval: true"), nil, tool("t"),
			v1.Outcome_OUTCOME_DENIED_BY_POLICY, "Tool 't' requires human approval per governance policy", "human_approval_required", ""},
		{"low confidence", policy(), nil, func(r *v1.BeginCallRequest) { r.ContextJson = `{"confidence":0.1}` },
			v1.Outcome_OUTCOME_DENIED_BY_POLICY, "Confidence 0.10 below threshold 0.80", "confidence_threshold", ""},
		{"a confidence that is none", policy(), nil, func(r *v1.BeginCallRequest) { r.ContextJson = `{"confidence":"high"}` },
			v1.Outcome_OUTCOME_DENIED_BY_POLICY, "Policy evaluation error — access denied (fail closed)", "policy_error", ""},
		{"too many attempts", policy("max_attempts: 2"), func(n *node) { n.begin("s", "one"); n.begin("s", "two") }, tool("t"),
			v1.Outcome_OUTCOME_ATTEMPT_LIMIT, "Attempt limit reached (2). Agent may be stuck in a retry loop. Stop and reassess.", "max_attempts", ""},
		{"too many calls", []string{"name: p", "max_tool_calls: 1"}, func(n *node) { n.begin("s", "one"); n.end("s", "one") }, tool("t"),
			v1.Outcome_OUTCOME_CALL_LIMIT, "Max tool calls exceeded (1)", "max_tool_calls", ""},
		{"too many calls of a tool", policy("max_calls_per_tool: {t: 1}"), func(n *node) { n.begin("s", "one") }, tool("t"),
			v1.Outcome_OUTCOME_TOOL_LIMIT, "Per-tool limit: t called 1 times (limit: 1).", "max_calls_per_tool", ""},
		{"too many model calls", policy("max_model_calls: 1"), func(n *node) { n.begin("s", "one", kind(v1.Kind_KIND_MODEL)) }, kind(v1.Kind_KIND_MODEL),
			v1.Outcome_OUTCOME_KIND_LIMIT, "Max model calls exceeded (1)", "max_model_calls", ""},
		{"too many calls of agents", policy("max_agent_calls: 0"), nil, kind(v1.Kind_KIND_AGENT),
			v1.Outcome_OUTCOME_KIND_LIMIT, "Max agent calls exceeded (0)", "max_agent_calls", ""},
		{"too many handoffs", policy("max_handoffs: 1"), func(n *node) { n.begin("s", "one", kind(v1.Kind_KIND_HANDOFF)) }, kind(v1.Kind_KIND_HANDOFF),
			v1.Outcome_OUTCOME_KIND_LIMIT, "Max handoffs exceeded (1)", "max_handoffs", ""},
		{"too much sampling", policy("max_sampling_requests: 1", "allowed_tools: [t]"), func(n *node) { n.begin("s", "one", sampling) }, sampling,
			v1.Outcome_OUTCOME_KIND_LIMIT, `Max sampling requests of server "files" exceeded (1)`, "max_sampling_requests", ""},
		{"too many failures", policy("max_consecutive_failures: 1", "breaker_reset: 90s"), func(n *node) {
			n.begin("s", "one")
			_, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: "one", Status: v1.Status_STATUS_FAILED})
			require.NoError(n.t, err)
		}, tool("t"),
			v1.Outcome_OUTCOME_BREAKER_OPEN, "1 calls in a row failed; none is admitted until one that is tried after 1m30s succeeds", "max_consecutive_failures", ""},
		{"too many tokens", policy("max_tokens: 10"), nil, func(r *v1.BeginCallRequest) { r.Tokens = 11 },
			v1.Outcome_OUTCOME_TOKEN_LIMIT, "Max tokens exceeded (10)", "max_tokens", ""},
		{"a closed session", policy(), func(n *node) {
			_, err := n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "s"})
			require.NoError(n.t, err)
		}, tool("t"), v1.Outcome_OUTCOME_SESSION_CLOSED, "Session is closed; create a new one", "session", ""},
		{"a rule", ruled, nil, tool("exec"),
			v1.Outcome_OUTCOME_DENIED_BY_POLICY, "no shells here", "policy_rule", "no-exec"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := start(t)
			n.putPolicy(c.policy...)
			n.session("s")
			if c.before != nil {
				c.before(n)
			}
			first := n.begin("s", "c", c.call)
			require.Equal(t, c.outcome, first.Outcome, "%v", first)
			require.Equal(t, c.reason, first.Reason)
			require.Equal(t, c.reason, first.Decision.Reason)
			require.Equal(t, c.category, first.Decision.Category)
			require.Equal(t, c.rule, first.Decision.MatchedRule)
			require.False(t, first.Decision.Allowed)
			require.NotEmpty(t, first.Decision.PublicMessage)
			require.Len(t, first.DecisionId, 32)
			require.Equal(t, c.outcome == v1.Outcome_OUTCOME_BREAKER_OPEN, first.RetryAfter.AsDuration() > time.Minute)
			before := n.getSession("s")

			again := n.begin("s", "c", c.call)
			require.Equal(t, first.Outcome, again.Outcome)
			require.Equal(t, first.Reason, again.Reason)
			require.Equal(t, first.DecisionId, again.DecisionId)
			require.Equal(t, first.Decision.MatchedRule, again.Decision.MatchedRule)
			require.Equal(t, before.Attempts, n.getSession("s").Attempts, "a repeat counts nothing")
		})
	}
}

// ruled is a tree of one document with rules.
var ruled = []string{
	"name: p", `version: "1"`, "rules:",
	"  - name: no-exec", "    condition: {field: tool_name, operator: eq, value: exec}", "    action: deny", "    priority: 10", "    message: no shells here",
	"  - name: few", "    condition: {field: call_count, operator: gte, value: 2}", "    action: deny", "    priority: 5", "    message: two are enough",
	"  - name: quiet", "    condition: {field: active_slots, operator: gte, value: 3}", "    action: deny", "    priority: 4", "    message: three run already",
}

// A rule on a counter is held to the value that the state machine has: of
// calls that begin at once no more pass than it allows.
func TestARuleOnACounterIsNeverPassed(t *testing.T) {
	n := start(t)
	n.putPolicy(ruled...)
	n.session("s")
	allowed, denied := 0, 0
	for i, res := range n.parallel(30) {
		switch res.Outcome {
		case v1.Outcome_OUTCOME_ADMITTED:
			allowed++
		case v1.Outcome_OUTCOME_DENIED_BY_POLICY:
			denied++
			require.Equal(t, "two are enough", res.Reason)
			require.Equal(t, "few", res.Decision.MatchedRule)
		default:
			t.Fatalf("call %d: %v", i, res)
		}
	}
	require.Equal(t, 2, allowed)
	require.Equal(t, 28, denied)
	require.EqualValues(t, 30, n.getSession("s").Attempts, "each was counted once, however often it was judged")
}

// A rule may look at how many calls of all sessions run under the policy.
func TestARuleOnTheSlotsInUse(t *testing.T) {
	n := start(t)
	n.putPolicy(ruled...)
	for i := range 3 {
		id := fmt.Sprintf("s%d", i)
		n.session(id)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin(id, "c").Outcome)
	}
	n.session("s")
	res := n.begin("s", "c")
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, res.Outcome)
	require.Equal(t, "three run already", res.Reason)
}

func TestEvaluateCountsNothing(t *testing.T) {
	n := start(t)
	n.putPolicy(ruled...)
	n.session("s")
	before := n.everything()
	res, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{Policy: byName("p"), Tool: "exec"})
	require.NoError(t, err)
	require.False(t, res.Decision.Allowed)
	require.Equal(t, "deny", res.Decision.Action)
	require.Equal(t, "no-exec", res.Decision.MatchedRule)
	require.NotEmpty(t, res.Trace)
	res, err = n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "read"})
	require.NoError(t, err)
	require.True(t, res.Decision.Allowed)
	require.Equal(t, before, n.everything())

	// What the service knows overrides what the caller says of the same name.
	n.begin("s", "a")
	n.begin("s", "b")
	fields, err := structpb.NewStruct(map[string]any{"call_count": 0})
	require.NoError(t, err)
	res, err = n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "read", Context: fields})
	require.NoError(t, err)
	require.Equal(t, "few", res.Decision.MatchedRule)
}

func TestPoliciesInTheStore(t *testing.T) {
	n := start(t)
	one := n.putPolicy(policy("# first")...)
	again := n.putPolicy(policy("# first")...)
	require.Equal(t, one.Digest, again.Digest)
	require.Equal(t, one.Version, again.Version, "the same content changes nothing")
	n.session("s")
	const more = 20 // which are counted in several places
	for i := range more {
		n.session(fmt.Sprint("more", i))
	}
	two := n.putPolicy(policy("# second")...)
	require.EqualValues(t, 2, two.Version)

	got, err := n.policies.GetPolicy(n.ctx(), &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: "p"}})
	require.NoError(t, err)
	require.Equal(t, two.Digest, got.Policy.Digest)
	require.Contains(t, got.Policy.Files[0].Content, "# second")
	got, err = n.policies.GetPolicy(n.ctx(), &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Digest{Digest: one.Digest}})
	require.NoError(t, err)
	require.EqualValues(t, 1+more, got.Policy.Pinned)

	list, err := n.policies.ListPolicies(n.ctx(), &v1.ListPoliciesRequest{})
	require.NoError(t, err)
	require.Len(t, list.Policies, 2)
	for _, p := range list.Policies {
		if p.Digest == one.Digest {
			require.Empty(t, p.Name, "no name points there any more")
			require.EqualValues(t, 1+more, p.Pinned)
		} else {
			require.Equal(t, "p", p.Name)
		}
	}

	del := &v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Digest{Digest: one.Digest}, RequestId: "d1"}
	_, err = n.policies.DeletePolicy(n.ctx(), del)
	requireRefused(t, err, connect.CodeFailedPrecondition, "POLICY_PINNED", "close them first")
	for i := range more {
		_, err = n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: fmt.Sprint("more", i)})
		require.NoError(t, err)
	}
	_, err = n.policies.DeletePolicy(n.ctx(), del)
	requireRefused(t, err, connect.CodeFailedPrecondition, "POLICY_PINNED", "close them first")
	_, err = n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	_, err = n.policies.DeletePolicy(n.ctx(), del)
	require.NoError(t, err)
	name := &v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Name{Name: "p"}, RequestId: "d2"}
	_, err = n.policies.DeletePolicy(n.ctx(), name)
	require.NoError(t, err)
	_, err = n.policies.DeletePolicy(n.ctx(), name)
	require.NoError(t, err, "a repeat answers as it did the first time")
	require.EqualValues(t, 3, n.putPolicy(policy("# third")...).Version, "versions of a name never repeat")
}

func TestDriftAndCheckpoints(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("checkpoint_frequency: 2", "drift_threshold: 0.15")...)
	n.session("s")
	end := func(call, output string) *v1.EndCallResponse {
		t.Helper()
		n.begin("s", call)
		res, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: call, Status: v1.Status_STATUS_SUCCEEDED, Output: structpb.NewStringValue(output)})
		require.NoError(t, err)
		return res
	}
	require.Nil(t, end("a", "the quick brown fox").Drift, "the first output is what others are compared to")
	same := end("b", "the quick brown fox")
	require.Zero(t, same.Drift.Score)
	require.False(t, same.Drift.Exceeded)
	require.Equal(t, "checkpoint-2", same.CheckpointId)
	other := end("c", "a different answer altogether, and longer")
	require.True(t, other.Drift.Exceeded)
	require.InDelta(t, 0.15, other.Drift.Threshold, 1e-9)
	require.Contains(t, other.Reason, "exceeds threshold 0.15")
	require.Empty(t, other.CheckpointId)
	end("d", "x")
	require.Equal(t, []string{"checkpoint-2", "checkpoint-4"}, n.getSession("s").Checkpoints)
	require.Contains(t, fmt.Sprint(n.audit.all(t)), "drift_detected")
	require.Contains(t, fmt.Sprint(n.audit.all(t)), "checkpoint_created")
}

// Of an output too long to be kept it can be said whether it is the same.
func TestDriftOfLongOutputs(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	end := func(call, output string) *v1.EndCallResponse {
		t.Helper()
		n.begin("s", call)
		res, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: call, Status: v1.Status_STATUS_SUCCEEDED, Output: structpb.NewStringValue(output)})
		require.NoError(t, err)
		return res
	}
	long := strings.Repeat("long ", 20_000)
	end("a", long)
	require.Zero(t, end("b", long).Drift.Score)
	require.InDelta(t, 1, end("c", long+"!").Drift.Score, 0)
}

// Only the last checkpoints are kept.
func TestCheckpoints(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("checkpoint_frequency: 1")...)
	n.session("s")
	for i := range 40 {
		n.begin("s", fmt.Sprintf("c%d", i))
		n.end("s", fmt.Sprintf("c%d", i))
	}
	kept := n.getSession("s").Checkpoints
	require.Len(t, kept, 32)
	require.Equal(t, "checkpoint-9", kept[0])
	require.Equal(t, "checkpoint-40", kept[31])
}

// Tokens that were reserved are replaced by those that were used.
// max_tokens is the most that one call may ask for (policy engine spec 3.2). What
// calls ask for and use is counted, and a rule may bound the sum.
func TestTokens(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("max_tokens: 100")...)
	n.session("s")
	with := func(tokens int64) func(*v1.BeginCallRequest) {
		return func(r *v1.BeginCallRequest) { r.Tokens = tokens }
	}
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "a", with(80)).Outcome)
	refused := n.begin("s", "b", with(101))
	require.Equal(t, v1.Outcome_OUTCOME_TOKEN_LIMIT, refused.Outcome)
	require.Equal(t, "Max tokens exceeded (100)", refused.Reason)
	res, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: "a", Status: v1.Status_STATUS_SUCCEEDED, Tokens: proto.Int64(1000)})
	require.NoError(t, err)
	require.EqualValues(t, 1000, res.Counters.TokensUsed)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c", with(100)).Outcome, "what was used before does not count")
}

// A budget of a session is a rule on what it has used; what open calls asked for
// counts, so that no two calls pass on the same rest.
func TestTokenBudgetByRule(t *testing.T) {
	n := start(t)
	n.putPolicy("name: p", "rules: [{name: budget, condition: {field: tokens_used, operator: gt, value: 150}, action: deny}]")
	n.session("s")
	with := func(r *v1.BeginCallRequest) { r.Tokens = 80 }
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "a", with).Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "b", with).Outcome)
	refused := n.begin("s", "c", with)
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, refused.Outcome)
	require.Equal(t, "budget", refused.Decision.MatchedRule)
}

// One line for each decision, with the fields of the specifications, and none
// of the arguments.
func TestAudit(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("log_all_calls: false", "allowed_tools: [t]")...)
	n.session("s")
	n.begin("s", "fine")
	res := n.begin("s", "bad", func(r *v1.BeginCallRequest) { r.Tool = "exec"; r.ArgumentsJson = `{"password":"hunter2"}` })
	var decisions []map[string]any
	for _, l := range n.audit.all(t) {
		if l["decision_id"] != nil {
			decisions = append(decisions, l)
		}
	}
	require.Len(t, decisions, 1, "log_all_calls is off, and a denial is written all the same")
	d := decisions[0]
	require.Equal(t, "tool_call_blocked", d["event_type"])
	require.Equal(t, "denied_by_policy", d["outcome"])
	require.Equal(t, false, d["allowed"])
	require.Equal(t, "deny", d["action"])
	require.Equal(t, "exec", d["tool_name"])
	require.Equal(t, "a", d["agent_id"])
	require.Equal(t, "s", d["session_id"])
	require.Equal(t, "bad", d["call_id"])
	require.Equal(t, res.DecisionId, d["decision_id"])
	require.Equal(t, res.Reason, d["reason"])
	require.Equal(t, res.Decision.PolicyDigest, d["policy_digest"])
	require.Contains(t, d, "rule")
	require.Contains(t, d, "context_snapshot")
	require.Contains(t, d, "context_sha256")
	require.NotContains(t, d, "arguments")
	_, err := time.Parse("2006-01-02T15:04:05.000000Z", d["timestamp"].(string))
	require.NoError(t, err)
	require.NotContains(t, fmt.Sprint(n.audit.all(t)), "hunter2")

	n.putPolicy("name: loud", "log_all_calls: true", "max_concurrent: 1", "backpressure_threshold: 1")
	_, err = n.sessions.CreateSession(n.ctx(), &v1.CreateSessionRequest{SessionId: "l", AgentId: "a", Policy: byName("loud")})
	require.NoError(t, err)
	n.begin("l", "one")
	n.begin("l", "two")
	all := n.audit.all(t)
	require.Equal(t, "admitted", all[len(all)-2]["outcome"])
	require.Equal(t, "concurrency_limit", all[len(all)-1]["outcome"])
	require.Equal(t, false, all[len(all)-1]["allowed"])
	require.Equal(t, "Max concurrency reached (1)", all[len(all)-1]["reason"])
}
