package alone

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What a session asks of its calls, and what is told of them.

// secret has a session whose calls bring a secret, and brings none, and another one.
func secret(s *script) {
	if !s.policy("max_tool_calls: 100\n") {
		return
	}
	mine := s.own + "-secret"
	sum := sha256.Sum256([]byte(mine))
	create := &v1.CreateSessionRequest{
		SessionId: s.own, AgentId: s.own, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}, SessionTokenSha256: sum[:],
	}
	open := func(req *v1.CreateSessionRequest) (*v1.CreateSessionResponse, string) {
		res, reason, _ := told(s, "create a session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
			return n.sessions.CreateSession(ctx, req)
		})
		return res, reason
	}
	if _, reason := open(create); !s.over {
		same(s, "the reason", reason, "")
	}
	// try begins and ends a call with what is shown, and holds both to the reason with which they are refused.
	req := s.call("one")
	try := func(shown, want string) {
		req.SessionToken = shown
		_, reason, ok := told(s, "begin with "+shown, func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) { return n.calls.BeginCall(ctx, req) })
		if ok {
			same(s, "the reason", reason, want)
		}
		end := &v1.EndCallRequest{SessionId: s.own, CallId: req.CallId, Status: v1.Status_STATUS_SUCCEEDED, SessionToken: shown}
		_, reason, ok = told(s, "end with "+shown, func(ctx context.Context, n *node) (*v1.EndCallResponse, error) { return n.calls.EndCall(ctx, end) })
		if ok {
			same(s, "the reason", reason, want)
		}
	}
	const absent = "NOT_FOUND" // as for who may not see it
	try("", absent)
	try(mine+"-not", absent)
	want := &account{tools: map[string]int32{}}
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
	try(mine, "")
	want.Attempts, want.Calls, want.Executions, want.tools["one"] = 1, 1, 1, 1
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
	if _, ok := done(s, "close the session", func(ctx context.Context, n *node) (*v1.CloseSessionResponse, error) {
		return n.sessions.CloseSession(ctx, &v1.CloseSessionRequest{SessionId: s.own})
	}); !ok {
		return
	}
	// The same again is the session that is closed, and another one of its id is none.
	if res, reason := open(create); !s.over {
		s.wrong(reason != "" || res.Session.State != v1.SessionState_SESSION_STATE_CLOSED, "it is opened again: %v (%s)", res, reason)
	}
	create.SessionTokenSha256 = nil
	if _, reason := open(create); !s.over {
		same(s, "the reason", reason, "ID_REUSED")
	}
	s.see(want, v1.SessionState_SESSION_STATE_CLOSED)
}

// reviews ends calls with what they have returned, of which a rule hides a part and some
// say that they failed.
func reviews(s *script) {
	const rules = `apiVersion: edictum/v1
kind: Ruleset
metadata: {name: looks}
defaults: {mode: enforce}
tools: {look: {side_effect: read}}
rules:
  - id: keys
    type: post
    tool: look
    when: {output.text: {matches: "sk-[a-z0-9]+"}}
    then: {action: redact, message: "a key"}
`
	if !s.policyWith(rules) || !s.session(nil) {
		return
	}
	want := &account{tools: map[string]int32{}}
	for _, x := range []struct {
		tool, output, shown string
		failed              bool
	}{
		{"look", "the key is sk-a1b2", "the key is [REDACTED]", false},
		{"look", "nothing of note", "", false},
		{"other", "the key is sk-a1b2", "", false},
		{"look", "error: sk-a1b2 is no key", "error: [REDACTED] is no key", true},
	} {
		req := s.call(x.tool)
		req.ArgumentsJson = `{"name": "db"}`
		res := s.begin(req)
		s.outcome(res, v1.Outcome_OUTCOME_ADMITTED)
		if s.over {
			return
		}
		same(s, "whether it is reviewed", res.Reviews, x.tool == "look")
		ended := s.end(&v1.EndCallRequest{
			CallId: req.CallId, Output: structpb.NewStringValue(x.output), Begin: req,
		})
		if s.over {
			return
		}
		want.Attempts, want.Calls, want.Executions, want.ConsecutiveFailures = want.Attempts+1, want.Calls+1, want.Executions+1, 0
		if want.tools[x.tool]++; x.failed {
			want.Failures, want.ConsecutiveFailures = 1, 1
		}
		r := ended.Review
		s.wrong(r.GetChanged() != (x.shown != "") || r.GetOutput().GetStringValue() != x.shown || (r != nil) != (x.tool == "look") || r.GetSuppressed(), "the review is %v", r)
		s.wrong(x.shown != "" && (r.GetPassed() || len(r.GetFindings()) != 1 || r.GetFindings()[0].Rule != "keys"), "the review is %v", r)
	}
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
}

// explained asks why a call was denied, of whoever still knows.
func explained(s *script) {
	if !s.policy("max_tool_calls: 100\nallowed_tools: [one]\n") || !s.session(nil) {
		return
	}
	for _, tool := range []string{"one", "two"} {
		req := s.call(tool)
		req.ArgumentsJson = `{"password": "hidden", "n": 1}`
		begun := s.begin(req)
		if s.over {
			return
		}
		admitted, once := tool == "one", s.tries == 1
		same(s, "whether it is admitted", begun.Outcome == v1.Outcome_OUTCOME_ADMITTED, admitted)
		res, reason, ok := told(s, "explain", func(ctx context.Context, n *node) (*v1.ExplainResponse, error) {
			return n.explains.Explain(ctx, &v1.ExplainRequest{DecisionId: begun.DecisionId, SessionId: s.own})
		})
		if !ok || reason == "NOT_FOUND" { // its node has started again, or is not reached
			continue
		}
		r := res.GetRecord()
		if !once && r.GetFailure() != "" { // what is known there is of an attempt whose answer was lost
			continue
		}
		s.wrong(reason != "" || r.DecisionId != begun.DecisionId || r.SessionId != s.own || r.AgentId != s.own || r.CallId != req.CallId || r.Tool != tool ||
			r.Outcome != begun.Outcome || r.Decision.GetAllowed() != admitted || r.DryRun, "the record is %v (%s)", r, reason)
		_, reason, ok = told(s, "explain to another", func(ctx context.Context, n *node) (*v1.ExplainResponse, error) {
			return n.explains.Explain(ctx, &v1.ExplainRequest{DecisionId: begun.DecisionId, SessionId: s.own + "-other"})
		})
		s.wrong(ok && reason != "NOT_FOUND", "it is told to another session: %s", reason)
	}
}

// outputs tells what calls have returned, which is compared with the first of them, and
// counts them into checkpoints.
func outputs(s *script) {
	if !s.policy("max_tool_calls: 100\ncheckpoint_frequency: 2\ndrift_threshold: 0.5\n") || !s.session(nil) {
		return
	}
	var made []string
	for i, output := range []string{"as it was", "as it was", "zzz", "as it is"} {
		req := s.call("one")
		s.outcome(s.begin(req), v1.Outcome_OUTCOME_ADMITTED)
		res := s.end(&v1.EndCallRequest{CallId: req.CallId, Status: v1.Status_STATUS_SUCCEEDED, Output: structpb.NewStringValue(output)})
		if s.over {
			return
		}
		made = append(made, res.CheckpointId)
		again := res.Outcome == v1.Outcome_OUTCOME_ALREADY_ENDED
		s.wrong(!again && (res.CheckpointId != "") != (i%2 == 1), "the checkpoint of end %d is %q", i, res.CheckpointId)
		d := res.Drift
		s.wrong(!again && i > 0 && (d.GetBaselineHash() != hashOf("as it was") || d.GetCurrentHash() != hashOf(output)), "the drift of end %d is %v", i, d)
		s.wrong(!again && i > 0 && (d.GetThreshold() != 0.5 || d.GetExceeded() != (i == 2) || (d.GetScore() == 0) != (i == 1) || (d.GetScore() == 1) != (i == 2)), "the drift of end %d is %v", i, d)
	}
	res, ok := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
		return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: s.own})
	})
	if ok {
		c := res.Session.Checkpoints
		s.wrong(len(c) != 2 || c[0] == c[1] || made[1] != "" && made[1] != c[0] || made[3] != "" && made[3] != c[1], "the checkpoints are %v, and were told as %q", c, made)
	}
}

// hashOf is the SHA-256 of a text, as it is written.
func hashOf(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// marked makes more checkpoints than a session keeps, which are the latest then.
func marked(s *script) {
	const made, kept = 40, 32
	every := 1 + s.rng.IntN(2)
	if !s.policy(fmt.Sprintf("max_tool_calls: 100\nmax_concurrent: 100\ncheckpoint_frequency: %d\n", every)) || !s.session(nil) {
		return
	}
	var begins, ends []*v1.Operation
	for range made * every {
		req := s.call("one")
		begins = append(begins, &v1.Operation{Op: &v1.Operation_Begin{Begin: req}})
		ends = append(ends, &v1.Operation{Op: &v1.Operation_End{End: &v1.EndCallRequest{SessionId: s.own, CallId: req.CallId, Status: v1.Status_STATUS_SUCCEEDED}}})
	}
	for _, r := range s.batch("begin all", begins...) {
		s.outcome(r.GetBegin(), v1.Outcome_OUTCOME_ADMITTED)
	}
	var all []string
	for i := range made {
		all = append(all, fmt.Sprint("checkpoint-", (i+1)*every))
	}
	for _, r := range s.batch("end all", ends...) {
		id := r.GetEnd().GetCheckpointId()
		s.wrong(id != "" && !slices.Contains(all, id), "it has made %s, of %v", id, all)
	}
	res, ok := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
		return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: s.own})
	})
	s.wrong(ok && !slices.Equal(res.Session.Checkpoints, all[made-kept:]), "the checkpoints are %v, want %v", res.GetSession().GetCheckpoints(), all[made-kept:])
}

// hashed calls a tool by its hash, which is put, replaced and taken back.
func hashed(s *script) {
	if !s.policy("max_tool_calls: 100\ncontent_hash_mode: strict\n") || !s.session(nil) {
		return
	}
	put := func(hash string) {
		req := &v1.PutHashRequest{Tool: s.own, Hash: hash, RequestId: s.id(), Client: s.own}
		done(s, "put a hash", func(ctx context.Context, n *node) (*v1.PutHashResponse, error) { return n.policies.PutHash(ctx, req) })
	}
	try := func(hash string, want v1.Outcome) {
		req := s.call(s.own)
		req.Metadata = map[string]string{"content_hash": hash}
		s.outcome(s.begin(req), want)
	}
	const admitted, denied = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_DENIED_BY_POLICY
	one, two := strings.Repeat("1", 64), strings.Repeat("2", 64)
	try(one, denied)
	put(one)
	try(one, admitted)
	try(two, denied)
	put(two)
	try(one, denied)
	try(two, admitted)
	remove := &v1.DeleteHashRequest{Tool: s.own, RequestId: s.id(), Client: s.own}
	done(s, "delete the hash", func(ctx context.Context, n *node) (*v1.DeleteHashResponse, error) {
		return n.policies.DeleteHash(ctx, remove)
	})
	try(two, denied)
}
