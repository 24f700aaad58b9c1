package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server"
	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

func (n *node) explain(id string) *v1.DecisionRecord {
	n.t.Helper()
	res, err := n.explains.Explain(n.ctx(), &v1.ExplainRequest{DecisionId: id})
	require.NoError(n.t, err)
	return res.Record
}

// 17.1: the record of a decision says who asked, what was said, by which rule of
// which policy, and on what context; it is there for every decision.
func TestExplain(t *testing.T) {
	n := start(t)
	put := n.putPolicy(ruled...)
	n.session("s")
	res := n.begin("s", "c", func(r *v1.BeginCallRequest) {
		r.Tool, r.ContextJson, r.ArgumentsJson = "exec", `{"team":"red","call_count":77}`, `{"n":10000000000000000000001}`
	})
	rec := n.explain(res.DecisionId)
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, rec.Outcome)
	require.Equal(t, []string{"n1", "tool_call_blocked", "exec", "a", "s", "c"}, []string{rec.Node, rec.EventType, rec.Tool, rec.AgentId, rec.SessionId, rec.CallId})
	d := rec.Decision
	require.Equal(t, []string{"deny", "p", "no-exec", "no shells here", "policy_rule", put.Digest}, []string{d.Action, d.Policy, d.MatchedRule, d.Reason, d.Category, d.PolicyDigest})
	require.Equal(t, res.Decision.PublicMessage, d.PublicMessage)
	require.NotContains(t, d.PublicMessage, "shells")
	require.EqualValues(t, 1, rec.Counters.Attempts)
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`, rec.Timestamp)
	require.Regexp(t, `^hmac-sha256:[0-9a-f]{64}$`, rec.ContextSha256)
	var snapshot map[string]any
	require.NoError(t, json.Unmarshal([]byte(rec.ContextSnapshotJson), &snapshot))
	require.Equal(t, "red", snapshot["team"])
	require.EqualValues(t, 0, snapshot["call_count"], "what the service counts stands in the place of a claim")
	require.False(t, rec.DryRun)

	n.begin("s", "one")
	require.Contains(t, n.explain(n.begin("s", "two").DecisionId).ContextSnapshotJson, `"tool_calls":{"t":1}`)

	// A repeat is the same decision. Evaluate has a record of its own.
	n.begin("s", "c", func(r *v1.BeginCallRequest) {
		r.Tool, r.ContextJson, r.ArgumentsJson = "exec", `{"team":"red","call_count":77}`, `{"n":10000000000000000000001}`
	})
	require.Equal(t, rec.Timestamp, n.explain(res.DecisionId).Timestamp)
	eval, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{Policy: byName("p"), Tool: "exec", AgentId: "b"})
	require.NoError(t, err)
	dry := n.explain(eval.DecisionId)
	require.True(t, dry.DryRun)
	require.Equal(t, "b", dry.AgentId)
	require.Equal(t, "no-exec", dry.Decision.MatchedRule)
	require.Zero(t, dry.Outcome)

	// A number refuses where a rule let it pass: the record says what was said.
	n.putPolicy(policy("max_calls_per_tool: {t: 0}")...)
	n.session("n")
	limited := n.begin("n", "c")
	require.Equal(t, v1.Outcome_OUTCOME_TOOL_LIMIT, limited.Outcome)
	rec = n.explain(limited.DecisionId)
	require.Equal(t, limited.Reason, rec.Decision.Reason)
	require.Equal(t, "max_calls_per_tool", rec.Decision.Category)
	require.False(t, rec.Decision.Allowed)

	_, err = n.explains.Explain(n.ctx(), &v1.ExplainRequest{DecisionId: res.DecisionId, SessionId: "n"})
	requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", "was not made for the session")
	_, err = n.explains.Explain(n.ctx(), &v1.ExplainRequest{DecisionId: "nope"})
	requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", `no record of the decision "nope" is kept by n1`)
	_, err = n.explains.Explain(n.ctx(), &v1.ExplainRequest{})
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "decisionId: is required")
}

// down is a store that orders nothing that begins a call.
type down struct{ storage.Store }

func (s down) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	if _, begin := cmds[0].(*session.Begin); !begin {
		return s.Store.Apply(ctx, cmds...)
	}
	answers := make([]storage.Answer, len(cmds))
	for i := range answers {
		answers[i] = storage.Refused(errors.New("no majority"))
	}
	return answers
}

// 16, 17.1: error paths have their record as well: a decision that could not be
// ordered, and one that could not be reached for want of a policy.
func TestExplainErrors(t *testing.T) {
	up := start(t)
	up.putPolicy(policy()...)
	up.session("s")
	n := startOn(t, down{up.store})
	_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "c"))
	requireRefused(t, err, connect.CodeUnavailable, "NOT_APPLIED", "nothing was applied")
	lines := n.audit.all(t)
	last := lines[len(lines)-1]
	require.Equal(t, "NOT_APPLIED", last["failure_reason"])
	rec := n.explain(last["decision_id"].(string))
	require.Equal(t, "unavailable", rec.Failure)
	require.Equal(t, "NOT_APPLIED", rec.FailureReason)
	require.Zero(t, rec.Outcome)

	strict := startOn(t, up.store, func(c *server.Config) { c.StrictNamespaces = []string{"default"} })
	odd := up.putPolicy("name: odd", "max_tokens: 5", "max_tokenz: 6")
	require.NotEmpty(t, odd.Warnings)
	_, err = up.sessions.CreateSession(up.ctx(), &v1.CreateSessionRequest{SessionId: "odd", AgentId: "a", Policy: byName("odd")})
	require.NoError(t, err)
	_, err = strict.calls.BeginCall(strict.ctx(), beginRequest("odd", "c"))
	requireRefused(t, err, connect.CodeFailedPrecondition, "POLICY_UNREADABLE", "nothing is admitted under it")
	lines = strict.audit.all(t)
	last = lines[len(lines)-1]
	require.Equal(t, true, last["error"])
	require.Equal(t, false, last["allowed"])
	require.Equal(t, "deny", last["action"])
	require.Equal(t, "odd", last["session_id"])
	require.Equal(t, odd.Digest, last["policy_digest"])
	_, err = strict.policies.Evaluate(strict.ctx(), &v1.EvaluateRequest{SessionId: "odd", Tool: "t"})
	requireRefused(t, err, connect.CodeFailedPrecondition, "POLICY_UNREADABLE", "nothing is admitted under it")
	require.Len(t, strict.audit.all(t), len(lines)+1)
}

// In a strict namespace every tree is judged strictly, whatever it says; in the
// others it is as the tree says.
func TestStrictNamespaces(t *testing.T) {
	rules := "name: p\nrules:\n  - name: r\n    condition: {field: tool_name, operator: eq, value: exec}\n    action: deny\n    priority: 1\n"
	n := start(t, func(c *server.Config) { c.StrictNamespaces = []string{"firm"} })
	evaluate := func(ns, files, context string) *v1.Decision {
		t.Helper()
		status, answer := n.post("PolicyService/PutPolicy", files, input.NamespaceHeader, ns)
		require.Equal(t, http.StatusOK, status, "%v", answer)
		status, answer = n.post("PolicyService/Evaluate", `{"policy":{"name":"p"},"tool":"read","context":`+context+`}`, input.NamespaceHeader, ns)
		require.Equal(t, http.StatusOK, status, "%v", answer)
		raw, err := json.Marshal(answer["decision"])
		require.NoError(t, err)
		d := &v1.Decision{}
		require.NoError(t, protojson.Unmarshal(raw, d))
		return d
	}
	folder := func(content string) string {
		raw, err := json.Marshal(map[string]any{"name": "p", "files": []map[string]string{{"path": "sub/governance.yaml", "content": content}}})
		require.NoError(t, err)
		return string(raw)
	}
	require.True(t, evaluate("default", folder(rules), `{"path":"elsewhere"}`).Allowed, "7.3: what no policy covers is allowed")
	d := evaluate("firm", folder(rules), `{"path":"elsewhere"}`)
	require.False(t, d.Allowed)
	require.Equal(t, "NO_POLICY", d.Category)

	bad := `{"yaml":"name: x\nmax_tokenz: 6\nmax_tokens: 5\n"}`
	status, _ := n.post("PolicyService/PutPolicy", bad)
	require.Equal(t, http.StatusOK, status)
	status, answer := n.post("PolicyService/PutPolicy", bad, input.NamespaceHeader, "firm")
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, answer["message"], "policy.yaml:2")

	_, err := server.New(server.Config{Store: n.store, StrictNamespaces: []string{"ok", "not/ok"}})
	require.ErrorContains(t, err, `Config.StrictNamespaces[1]: "not/ok" byte 3 is not allowed`)
}

// A tree with one bad file is refused whole, with its file, line and field, and
// nothing of it is stored.
func TestATreeWithOneBadFile(t *testing.T) {
	n := start(t)
	before := n.everything()
	_, err := n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Name: "p", RequestId: "r", Files: []*v1.TextFile{
		{Path: "a.yaml", Content: "name: a\nrules: []\n"},
		{Path: "sub/governance.yaml", Content: "name: b\nrules:\n  - name: r\n    condition: {field: x, operator: like, value: 1}\n    action: deny\n"},
	}})
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_POLICY", "sub/governance.yaml:4")
	require.Contains(t, err.Error(), "operator")
	require.Contains(t, info(t, err).Metadata["problem000"], "sub/governance.yaml:4")
	require.Equal(t, before, n.everything())
}

// Hashes are registered by API, in place of earlier ones, and hold at once.
func TestContentHashesByAPI(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("content_hash_mode: strict")...)
	n.session("s")
	good, other := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	with := func(hash string) func(*v1.BeginCallRequest) {
		return func(r *v1.BeginCallRequest) { r.Metadata = map[string]string{"content_hash": hash} }
	}
	require.Contains(t, n.begin("s", "c1", with(good)).Reason, "has no registered content hash")
	put, err := n.policies.PutHash(n.ctx(), &v1.PutHashRequest{Tool: "t", Hash: "sha256:" + strings.ToUpper(good), RequestId: "r1"})
	require.NoError(t, err)
	require.Equal(t, good, put.Hash.Hash)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c2", with(good)).Outcome)
	require.Contains(t, n.begin("s", "c3", with(other)).Reason, "content hash mismatch: expected abababababab… got cdcdcdcdcdcd…")
	eval, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t"})
	require.NoError(t, err)
	require.Contains(t, eval.Decision.Reason, "missing content_hash metadata")
	require.Equal(t, "content_hash", eval.Decision.Category)

	_, err = n.policies.PutHash(n.ctx(), &v1.PutHashRequest{Tool: "t", Hash: other, RequestId: "r2"})
	require.NoError(t, err)
	_, err = n.policies.PutHash(n.ctx(), &v1.PutHashRequest{Tool: "t", Hash: "sha256:" + strings.ToUpper(good), RequestId: "r1"})
	require.NoError(t, err, "a repeat")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c4", with(other)).Outcome, "which had no second effect")
	_, err = n.policies.PutHash(n.ctx(), &v1.PutHashRequest{Tool: "t", Hash: other, RequestId: "r1"})
	requireRefused(t, err, connect.CodeInvalidArgument, "ID_REUSED", `requestId "r1"`)
	for _, bad := range []string{"", "sha256:", good[:63], good + "a", strings.Repeat("g", 64)} {
		_, err = n.policies.PutHash(n.ctx(), &v1.PutHashRequest{Tool: "t", Hash: bad})
		requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "hash: must be the SHA-256")
	}

	for i := range 3 {
		_, err = n.policies.PutHash(n.ctx(), &v1.PutHashRequest{Tool: fmt.Sprintf("a/tool %d", i), Hash: good})
		require.NoError(t, err)
	}
	var tools []string
	for req := (&v1.ListHashesRequest{PageSize: 2}); ; {
		list, err := n.policies.ListHashes(n.ctx(), req)
		require.NoError(t, err)
		for _, h := range list.Hashes {
			tools = append(tools, h.Tool)
		}
		if req.PageToken = list.NextPageToken; req.PageToken == "" {
			break
		}
	}
	require.Equal(t, []string{"a/tool 0", "a/tool 1", "a/tool 2", "t"}, tools)
	_, err = n.policies.DeleteHash(n.ctx(), &v1.DeleteHashRequest{Tool: "t", RequestId: "d"})
	require.NoError(t, err)
	require.Contains(t, n.begin("s", "c5", with(other)).Reason, "has no registered content hash")
	require.Contains(t, fmt.Sprint(n.audit.all(t)), "content_hash_put")
}

// 15.1, and what stands beside it: whatever a rule counts, calls that begin at
// once never pass it together where one of them uses it up.
func TestARuleIsUsedUpOnce(t *testing.T) {
	n := start(t)
	for _, c := range []struct {
		field string
		limit int
		ends  bool // calls end at once: tokens are used when a call ends, reserved before
	}{{"call_count", 5, false}, {"tool_calls.t", 5, false}, {"tokens_used", 50, true}, {"active_slots", 5, false}, {"attempts", 5, false}} {
		t.Run(c.field, func(t *testing.T) {
			rules := fmt.Sprintf("name: %s\nrules:\n  - name: used-up\n    condition: {field: %s, operator: gte, value: %d}\n    action: deny\n    priority: 1\n", c.field, c.field, c.limit)
			_, err := n.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Files: []*v1.TextFile{
				{Path: "rules.yaml", Content: rules},
				{Path: "limits/numbers.yaml", Content: "name: " + c.field + "\nmax_tool_calls: 1000\nmax_concurrent: 100\n"},
			}})
			require.NoError(t, err)
			_, err = n.sessions.CreateSession(t.Context(), &v1.CreateSessionRequest{SessionId: c.field, AgentId: "a", Policy: byName(c.field)})
			require.NoError(t, err)
			var wait sync.WaitGroup
			answers := make([]*v1.BeginCallResponse, 64)
			for i := range answers {
				wait.Go(func() { answers[i] = n.insist(c.field, fmt.Sprintf("c%d", i), c.ends) })
			}
			wait.Wait()
			admitted := 0
			for i, res := range answers {
				require.NotNil(t, res, "call %d", i)
				if res.Outcome == v1.Outcome_OUTCOME_ADMITTED {
					admitted++
					require.Less(t, res.Counters.TokensUsed, int64(50), "what it was judged on held when it was admitted")
				} else {
					require.Equal(t, "used-up", res.Decision.MatchedRule, "%v", res)
				}
			}
			if !c.ends {
				require.Equal(t, 5, admitted)
			}
			require.Equal(t, "used-up", n.insist(c.field, "late", false).Decision.MatchedRule)
		})
	}
}

// insist begins a call of ten tokens, again where there is no answer, and ends
// it if that is wanted.
func (n *node) insist(sess, call string, end bool) *v1.BeginCallResponse {
	for {
		res, err := n.calls.BeginCall(n.ctx(), beginRequest(sess, call, func(r *v1.BeginCallRequest) { r.Tokens = 10 }))
		if connect.CodeOf(err) == connect.CodeUnavailable && err != nil {
			continue
		}
		if err == nil && end && res.Outcome == v1.Outcome_OUTCOME_ADMITTED {
			_, err = n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: sess, CallId: call, Status: v1.Status_STATUS_SUCCEEDED})
		}
		if err != nil {
			return nil
		}
		return res
	}
}

// 21.2 of the adapter contract: what looks like a secret, or stands under a name
// that says so, comes out nowhere but where it was sent from.
func TestNothingTells(t *testing.T) {
	canaries := []string{
		"AKIAIOSFODNN7CANARY0", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJjYW5hcnkifQ.c2ln", "Bearer canary-0123456789abcdef",
		"canary@example.com", "123-45-6789", "4111111111111111", "hunter2canary",
	}
	inside := map[string]any{"note": strings.Join(canaries[:6], " and "), "password": canaries[6], "list": []any{map[string]any{"api_key": canaries[6]}}}
	log := &lines{}
	quoting := func(call engine.GuardrailCall) (engine.GuardrailResult, error) {
		if call.ToolName == "fails" {
			return engine.GuardrailResult{}, fmt.Errorf("cannot read %s", call.Args.JSON())
		}
		if call.ToolName == "panics" {
			panic(call.Args.JSON())
		}
		return engine.GuardrailResult{Decision: engine.GuardrailDeny, Reason: "because of " + call.Args.JSON()}, nil
	}
	n := start(t, func(c *server.Config) {
		c.Logger = slog.New(slog.NewJSONHandler(log, nil))
		c.Engine = []engine.Option{engine.WithGuardrails(guard(func(call engine.GuardrailCall) (engine.GuardrailResult, error) {
			if call.ToolName == "t" {
				return engine.GuardrailResult{Decision: engine.GuardrailAllow}, nil
			}
			return quoting(call)
		}))}
	})
	n.putPolicy(policy("drift_threshold: 0.1", "checkpoint_frequency: 1", "blocked_patterns: ['forbidden']")...)
	n.session("s")
	args, err := structpb.NewStruct(inside)
	require.NoError(t, err)
	output, err := structpb.NewValue(inside)
	require.NoError(t, err)
	var said strings.Builder
	keep := func(m proto.Message, err error) {
		if err != nil {
			fmt.Fprintf(&said, "%v %v\n", err, info(t, err))
			return
		}
		raw, err := protojson.Marshal(m)
		require.NoError(t, err)
		said.Write(raw)
		said.WriteByte('\n')
	}
	f, _ := n.follow(&v1.FollowRequest{})
	for i, tool := range []string{"t", "fails", "panics", "denies", "t"} {
		call := fmt.Sprintf("c%d", i)
		req := beginRequest("s", call, func(r *v1.BeginCallRequest) {
			r.Tool, r.Arguments, r.Context = tool, args, args
			r.Metadata = map[string]string{"note": canaries[0], "secret": canaries[6]}
			if i == 4 {
				r.Context = &structpb.Struct{Fields: map[string]*structpb.Value{
					"confidence": structpb.NewStringValue(canaries[1]), "text": structpb.NewStringValue(strings.Repeat("forbidden "+canaries[0]+" ", 1000))}}
			}
		})
		res, err := n.calls.BeginCall(n.ctx(), req)
		keep(res, err)
		keep(n.explain(res.DecisionId), nil)
		keep(n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{Policy: byName("p"), Tool: tool, Arguments: args, Context: req.Context, Metadata: req.Metadata}))
		if res.Outcome == v1.Outcome_OUTCOME_ADMITTED {
			keep(n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: call, Status: v1.Status_STATUS_SUCCEEDED, Output: output}))
		}
	}
	n.begin("s", "last")
	keep(n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: "last", Status: v1.Status_STATUS_SUCCEEDED, Output: structpb.NewStringValue(canaries[6] + canaries[0])}))
	for seen := ""; seen != "drift_detected"; {
		ev := f.event()
		keep(ev, nil)
		seen = ev.Type
	}
	for _, body := range []string{
		`{"sessionId":"s","callId":"x","tool":"t","arguments":"` + canaries[0] + `"}`,
		`{"sessionId":"s","callId":"x","tool":"t","arguments":{"a":` + canaries[2] + `}}`,
		`{"sessionId":"s","callId":"x","tool":"t","argumentsJson":"{\"a\":` + canaries[1] + `}"}`,
		`{"sessionId":"s","callId":"x","tool":"t","tokens":"` + canaries[0] + `"}`,
	} {
		status, answer := n.post("CallService/BeginCall", body)
		require.Equal(t, http.StatusBadRequest, status)
		fmt.Fprintln(&said, answer)
	}
	require.Less(t, n.metric("gov_journal_bytes"), 600e3, "what is large is kept as it is shown")
	_, metrics := n.get("/metrics")
	for where, text := range map[string]string{"answers": said.String(), "audit": n.audit.text(), "log": log.text(), "metrics": metrics} {
		require.NotEmpty(t, text, where)
		for _, c := range canaries {
			require.NotContains(t, text, c, where)
		}
	}
	require.Contains(t, said.String(), "[REDACTED", "there was something to hide")
	require.Contains(t, n.audit.text(), "[REDACTED")
	require.Contains(t, log.text(), "panicked")
}
