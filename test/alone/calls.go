package alone

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Sessions, and what is counted of their calls.

// policy puts a policy under the script's own name.
func (s *script) policy(text string) bool {
	req := &v1.PutPolicyRequest{Yaml: "name: " + s.own + "\n" + text, RequestId: s.id(), Client: s.own}
	_, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, req)
	})
	return ok
}

// policyWith puts a policy of two files: limits that nothing here reaches, and another.
func (s *script) policyWith(text string) bool {
	req := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{limitsFile(s.own, ""), {Path: "more.yaml", Content: text}}}
	_, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, req)
	})
	return ok
}

// limitsFile has limits that nothing here reaches, and others.
func limitsFile(name, more string) *v1.TextFile {
	return &v1.TextFile{Path: "limits.yaml", Content: "name: " + name + "\nmax_concurrent: 64\nmax_tool_calls: 100\n" + more}
}

// under puts a policy of files and opens a session of it, both under a name of their own.
func (s *script) under(name string, files ...*v1.TextFile) bool {
	put := &v1.PutPolicyRequest{Name: name, RequestId: s.id(), Client: s.own, Files: files}
	if _, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, put)
	}); !ok {
		return false
	}
	create := &v1.CreateSessionRequest{SessionId: name, AgentId: s.own, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: name}}}
	_, ok := done(s, "create a session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
		return n.sessions.CreateSession(ctx, create)
	})
	return ok
}

// session opens a session under the script's own name, agent and policy.
func (s *script) session(attributes map[string]string) bool {
	req := &v1.CreateSessionRequest{
		SessionId: s.own, AgentId: s.own, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}, IdleTtl: durationpb.New(3 * time.Hour), Attributes: attributes,
	}
	res, ok := done(s, "create a session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
		return n.sessions.CreateSession(ctx, req)
	})
	if !ok {
		return false
	}
	x := res.Session
	s.wrong(x.SessionId != s.own || x.AgentId != s.own || x.PolicyName != s.own || x.State != v1.SessionState_SESSION_STATE_OPEN ||
		x.IdleTtl.AsDuration() != 3*time.Hour || !maps.Equal(x.Attributes, attributes), "the session is %v", x)
	s.behind = func() { // whatever has become of it and of its policy
		res, reason, ok := told(s, "create the session again", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
			return n.sessions.CreateSession(ctx, req)
		})
		if y := res.GetSession(); ok && reason == "" {
			s.wrong(y.SessionId != s.own || y.AgentId != s.own || y.PolicyName != s.own || y.PolicyVersion != x.PolicyVersion || y.PolicyDigest != x.PolicyDigest ||
				y.IdleTtl.AsDuration() != 3*time.Hour || !maps.Equal(y.Attributes, attributes), "the session is %v, and was %v", y, x)
		}
	}
	return !s.over
}

// call is a call of the session, which does not wait.
func (s *script) call(tool string) *v1.BeginCallRequest {
	return &v1.BeginCallRequest{SessionId: s.own, CallId: s.id(), Tool: tool, Ttl: long}
}

// begin begins a call, by itself or in a batch.
func (s *script) begin(req *v1.BeginCallRequest) *v1.BeginCallResponse {
	if s.rng.IntN(3) == 0 {
		res := s.batch("begin "+req.Tool, &v1.Operation{Op: &v1.Operation_Begin{Begin: req}})
		if s.over {
			return nil
		}
		s.wrong(res[0].GetBegin() == nil, "it is no begin: %v", res[0])
		return res[0].GetBegin()
	}
	res, _ := done(s, "begin "+req.Tool, func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) { return n.calls.BeginCall(ctx, req) })
	return res
}

// batch sends operations together, and again while one of them has no answer.
func (s *script) batch(step string, ops ...*v1.Operation) (results []*v1.OperationResult) {
	for i, o := range ops {
		o.Tag = uint64(10 + i)
	}
	tries := 0
	for range asks {
		res, ok := done(s, step+" in a batch", func(ctx context.Context, n *node) (*v1.BatchCallsResponse, error) {
			return n.calls.BatchCalls(ctx, &v1.BatchCallsRequest{Operations: ops})
		})
		if tries += s.tries; !ok {
			return nil
		}
		s.tries = tries // of all
		s.wrong(len(res.Results) != len(ops), "%d operations have %d results: %v", len(ops), len(res.Results), res)
		without := false
		for i, r := range res.Results {
			s.wrong(i < len(ops) && r.Tag != ops[i].Tag, "result %d has the tag %d: %v", i, r.Tag, res)
			if e := r.GetError(); e != nil {
				without = true
				s.wrong(!slices.Contains([]string{"NOT_APPLIED", "OUTCOME_UNKNOWN", "STALE_ID", "OVERLOADED", "QUOTA_EXCEEDED"}, e.Reason), "an operation is refused: %v", e)
			}
		}
		if s.over || !without {
			return res.Results
		}
	}
	s.over = true
	return nil
}

func (s *script) outcome(res *v1.BeginCallResponse, want v1.Outcome) {
	if !s.over {
		s.wrong(res.Outcome != want, "the outcome is %v, want %v: %v", res.Outcome, want, res)
	}
}

// end ends a call of the session.
func (s *script) end(req *v1.EndCallRequest) *v1.EndCallResponse {
	req.SessionId = s.own
	var res *v1.EndCallResponse
	if s.rng.IntN(3) == 0 {
		all := s.batch("end", &v1.Operation{Op: &v1.Operation_End{End: req}})
		if s.over {
			return nil
		}
		res = all[0].GetEnd()
		s.wrong(res == nil, "it is no end: %v", all[0])
	} else {
		res, _ = done(s, "end", func(ctx context.Context, n *node) (*v1.EndCallResponse, error) { return n.calls.EndCall(ctx, req) })
	}
	if s.over {
		return nil
	}
	// It is told to have ended before where the first answer was lost, if only between nodes.
	s.wrong(res.Outcome != v1.Outcome_OUTCOME_ENDED && res.Outcome != v1.Outcome_OUTCOME_ALREADY_ENDED, "the outcome is %v: %v", res.Outcome, res)
	return res
}

// An account is what a session has to have counted.
type account struct {
	v1.Counters
	tools map[string]int32
	open  []string // calls
}

// see holds the session, by its id and in the list of its agent, to an account.
func (s *script) see(want *account, state v1.SessionState) {
	hold := func(what string, x *v1.Session) {
		got := &v1.Counters{
			Attempts: x.Attempts, Calls: x.Calls, Executions: x.Executions, Failures: x.Failures,
			ConsecutiveFailures: x.ConsecutiveFailures, TokensUsed: x.TokensUsed,
		}
		s.alike("the counters of "+what, got, &want.Counters)
		s.wrong(!maps.Equal(x.CallsByTool, want.tools), "%s has calls by tool %v, want %v", what, x.CallsByTool, want.tools)
		var open []string
		for _, c := range x.OpenCalls {
			open = append(open, c.CallId)
		}
		slices.Sort(open)
		slices.Sort(want.open)
		s.wrong(!slices.Equal(open, want.open), "%s has the open calls %v, want %v", what, open, want.open)
		same(s, "the state of "+what, x.State, state)
	}
	res, ok := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
		return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: s.own})
	})
	if ok {
		hold("what is read", res.Session)
	}
	listed, ok := done(s, "list sessions", func(ctx context.Context, n *node) (*v1.ListSessionsResponse, error) {
		return n.sessions.ListSessions(ctx, &v1.ListSessionsRequest{AgentId: s.own})
	})
	if ok {
		if s.wrong(len(listed.Sessions) != 1, "the agent has sessions %v", listed.Sessions); !s.over {
			hold("what is listed", listed.Sessions[0])
		}
	}
}

// calls makes calls of two tools that end in all ways, and are refused in some, and holds
// each answer to what was counted.
func calls(s *script) {
	if !s.policy("max_tool_calls: 100\nmax_attempts: 100\nmax_concurrent: 3\nallowed_tools: [one, two]\n") || !s.session(map[string]string{"a": "b", "c": s.own}) {
		return
	}
	want := &account{tools: map[string]int32{}}
	counted := func(c *v1.Counters) { s.alike("the counters of the answer", c, &want.Counters) }
	tokens := map[string]int64{}
	admit := func() {
		req := s.call([]string{"one", "two"}[s.rng.IntN(2)])
		req.Tokens = s.rng.Int64N(50)
		res := s.begin(req)
		s.outcome(res, v1.Outcome_OUTCOME_ADMITTED)
		if s.over {
			return
		}
		want.Attempts, want.Calls = want.Attempts+1, want.Calls+1
		want.tools[req.Tool]++
		want.open, tokens[req.CallId] = append(want.open, req.CallId), req.Tokens
		counted(res.Counters)
		if s.rng.IntN(3) == 0 { // and the same again
			again := s.begin(req)
			s.outcome(again, v1.Outcome_OUTCOME_ADMITTED)
			s.wrong(!s.over && (again.DecisionId != res.DecisionId || again.Grants[0].Token != res.Grants[0].Token || !proto.Equal(again.Counters, res.Counters)),
				"the same id has another answer: %v, want %v", again, res)
		}
	}
	refuse := func(tool string, outcome v1.Outcome, counts bool) {
		res := s.begin(s.call(tool))
		s.outcome(res, outcome)
		if s.over {
			return
		}
		if counts {
			want.Attempts++
		}
		counted(res.Counters)
	}
	settle := func() {
		i := s.rng.IntN(len(want.open))
		id := want.open[i]
		status := []v1.Status{v1.Status_STATUS_SUCCEEDED, v1.Status_STATUS_FAILED, v1.Status_STATUS_CANCELLED}[s.rng.IntN(3)]
		req := &v1.EndCallRequest{CallId: id, Status: status}
		if s.rng.IntN(2) == 0 {
			tokens[id] = max(0, s.rng.Int64N(100)-20) // none at all, too
			req.Tokens = proto.Int64(tokens[id])
		}
		want.TokensUsed += tokens[id]
		res := s.end(req)
		if s.over {
			return
		}
		want.open = slices.Delete(want.open, i, i+1)
		want.Executions++
		switch status {
		case v1.Status_STATUS_FAILED:
			want.Failures, want.ConsecutiveFailures = want.Failures+1, want.ConsecutiveFailures+1
		case v1.Status_STATUS_SUCCEEDED:
			want.ConsecutiveFailures = 0
		}
		counted(res.Counters)
	}
	for range 6 + s.rng.IntN(6) {
		if s.over {
			return
		}
		switch n := s.rng.IntN(8); {
		case n == 0:
			refuse("three", v1.Outcome_OUTCOME_DENIED_BY_POLICY, true)
		case len(want.open) == 3 && n < 3:
			refuse("one", v1.Outcome_OUTCOME_CONCURRENCY_LIMIT, true)
		case len(want.open) == 3, len(want.open) > 0 && n < 4:
			settle()
		case n == 4:
			s.see(want, v1.SessionState_SESSION_STATE_OPEN)
		default:
			admit()
		}
	}
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
	res, ok := done(s, "close the session", func(ctx context.Context, n *node) (*v1.CloseSessionResponse, error) {
		return n.sessions.CloseSession(ctx, &v1.CloseSessionRequest{SessionId: s.own})
	})
	if !ok {
		return
	}
	// None where the first answer was lost, if only between nodes.
	s.wrong(res.Released != 0 && res.Released != int32(len(want.open)), "%d slots were freed of %d calls", res.Released, len(want.open))
	s.outcome(s.begin(s.call("one")), v1.Outcome_OUTCOME_SESSION_CLOSED)
}

// limits reaches each limit of a policy on the session's calls.
func limits(s *script) {
	if !s.policy("max_tool_calls: 4\nmax_attempts: 9\nmax_tokens: 100\nmax_calls_per_tool: {two: 1}\n") || !s.session(nil) {
		return
	}
	try := func(tool string, tokens int64, want v1.Outcome) {
		req := s.call(tool)
		req.Tokens = tokens
		s.outcome(s.begin(req), want)
	}
	const admitted = v1.Outcome_OUTCOME_ADMITTED
	try("one", 0, admitted)
	try("two", 60, admitted)
	try("two", 0, v1.Outcome_OUTCOME_TOOL_LIMIT)
	try("one", 101, v1.Outcome_OUTCOME_TOKEN_LIMIT)
	try("one", 0, admitted)
	try("one", 0, admitted)
	try("one", 0, v1.Outcome_OUTCOME_CALL_LIMIT)
	try("two", 0, v1.Outcome_OUTCOME_CALL_LIMIT)
}

// signals stops a session, lets it go on, and kills it.
func signals(s *script) {
	if !s.policy("max_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	targets := []*v1.SignalRequest{
		{Target: &v1.SignalRequest_SessionId{SessionId: s.own}}, {Target: &v1.SignalRequest_AgentId{AgentId: s.own}}, {Target: &v1.SignalRequest_PolicyName{PolicyName: s.own}},
	}
	target := targets[s.rng.IntN(len(targets))]
	send := func(signal string) *v1.SignalResponse {
		req := &v1.SignalRequest{Target: target.Target, Signal: signal, Reason: "why " + signal, RequestId: s.id(), Client: s.own}
		res, _ := done(s, "send "+signal, func(ctx context.Context, n *node) (*v1.SignalResponse, error) { return n.sessions.Signal(ctx, req) })
		return res
	}
	stands := func(signal string) {
		x, times := found(s, "list signals", func(ctx context.Context, n *node, token string) ([]*v1.Signal, string, error) {
			res, err := n.sessions.ListSignals(ctx, &v1.ListSignalsRequest{PageSize: s.perPage(), PageToken: token})
			return res.GetSignals(), res.GetNextPageToken(), err
		}, func(x *v1.Signal) bool {
			return x.GetSessionId() == s.own || x.GetAgentId() == s.own || x.GetPolicyName() == s.own
		})
		if signal == "" {
			s.wrong(times > 0, "a signal stands: %v", x)
			return
		}
		s.wrong(times >= 0 && (times != 1 || x.Signal != signal || x.Reason != "why "+signal), "%s is listed %d times: %v", signal, times, x)
	}
	req := s.call("one")
	s.outcome(s.begin(req), v1.Outcome_OUTCOME_ADMITTED)
	stands("")
	if res := send("STOP"); !s.over {
		s.wrong(res.Signal.GetSignal() != "STOP" || res.Signal.GetReason() != "why STOP", "what stands is %v", res.Signal)
	}
	stands("STOP")
	stopped := s.call("one")
	s.outcome(s.begin(stopped), v1.Outcome_OUTCOME_STOPPED)
	s.end(&v1.EndCallRequest{CallId: req.CallId, Status: v1.Status_STATUS_SUCCEEDED})
	if res := send("CONTINUE"); !s.over {
		s.wrong(res.Signal != nil, "what stands is %v", res.Signal)
	}
	stands("")
	s.outcome(s.begin(stopped), v1.Outcome_OUTCOME_ADMITTED)
	want := &account{tools: map[string]int32{"one": 2}, open: []string{stopped.CallId}}
	want.Attempts, want.Calls, want.Executions = 2, 2, 1
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
	if res := send("KILL"); !s.over && !res.Signal.GetSwept() {
		s.over = true // until some node has swept it calls go on, and it cannot be lifted
		return
	}
	if target.GetSessionId() != "" {
		stands("") // it is closed
	} else {
		stands("KILL")
	}
	s.outcome(s.begin(s.call("one")), v1.Outcome_OUTCOME_SESSION_CLOSED)
	end := &v1.EndCallRequest{SessionId: s.own, CallId: stopped.CallId, Status: v1.Status_STATUS_SUCCEEDED}
	if res, ok := done(s, "end what was killed", func(ctx context.Context, n *node) (*v1.EndCallResponse, error) { return n.calls.EndCall(ctx, end) }); ok {
		same(s, "the outcome", res.Outcome, v1.Outcome_OUTCOME_LEASE_LOST)
	}
	if target.GetSessionId() != "" {
		return
	}
	create := &v1.CreateSessionRequest{SessionId: s.own + "-next", AgentId: s.own, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}}
	next := func() string {
		_, reason, _ := told(s, "create another session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
			return n.sessions.CreateSession(ctx, create)
		})
		return reason
	}
	if reason := next(); !s.over {
		same(s, "the reason", reason, "KILLED")
	}
	send("CONTINUE")
	stands("")
	if reason := next(); !s.over {
		same(s, "the reason", reason, "")
	}
}

// tree opens a session under a policy that is replaced and deleted beneath it.
func tree(s *script) {
	if !s.policy("max_tool_calls: 100\nallowed_tools: [one]\n") || !s.session(nil) {
		return
	}
	get := func() *v1.Policy {
		res, ok := done(s, "get the policy", func(ctx context.Context, n *node) (*v1.GetPolicyResponse, error) {
			return n.policies.GetPolicy(ctx, &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: s.own}})
		})
		if !ok {
			return &v1.Policy{}
		}
		return res.Policy
	}
	first := get()
	same(s, "how many pin it", first.Pinned, 1)
	s.policy("max_tool_calls: 100\nallowed_tools: [two]\n")
	second := get()
	same(s, "how many pin the second", second.Pinned, 0)
	same(s, "the version of the second", second.Version, first.Version+1)
	judged := func(digest, tool string, allowed bool) {
		req := &v1.EvaluateRequest{Tool: tool, AgentId: s.own}
		if digest == "" {
			req.SessionId = s.own
		} else {
			req.Policy = &v1.PolicyRef{Ref: &v1.PolicyRef_Digest{Digest: digest}}
		}
		res, ok := done(s, "evaluate "+tool, func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) { return n.policies.Evaluate(ctx, req) })
		if ok {
			s.wrong(res.Decision.Allowed != allowed, "the decision is %v", res.Decision)
		}
	}
	judged("", "one", true)
	judged("", "two", false)
	judged(second.Digest, "two", true)
	judged(second.Digest, "one", false)
	s.outcome(s.begin(s.call("two")), v1.Outcome_OUTCOME_DENIED_BY_POLICY)
	s.outcome(s.begin(s.call("one")), v1.Outcome_OUTCOME_ADMITTED)
	remove := &v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Digest{Digest: first.Digest}, RequestId: s.id(), Client: s.own}
	if _, reason, ok := told(s, "delete what is pinned", func(ctx context.Context, n *node) (*v1.DeletePolicyResponse, error) {
		return n.policies.DeletePolicy(ctx, remove)
	}); ok {
		same(s, "the reason", reason, "POLICY_PINNED")
	}
	scan := &v1.ScanRequest{SessionId: s.own, Kind: v1.ScanKind_SCAN_KIND_INPUT, Text: "plain"}
	if res, ok := done(s, "scan", func(ctx context.Context, n *node) (*v1.ScanResponse, error) { return n.policies.Scan(ctx, scan) }); ok {
		s.wrong(!res.Allowed || res.PolicyDigest != first.Digest, "the scan says %v", res)
	}
}
