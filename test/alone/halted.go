package alone

import (
	"context"
	"strings"
	"time"

	"connectrpc.com/connect"

	v1 "example.com/govnode/proto/govnode/v1"
)

// halted lets signals for a session, its agent and its policy stand over each other, and
// lifts them one by one: each is lifted by itself, and a session goes on when none stands.
func halted(s *script) {
	if !s.policy("max_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	targets := map[string]*v1.SignalRequest{
		"session": {Target: &v1.SignalRequest_SessionId{SessionId: s.own}}, "agent": {Target: &v1.SignalRequest_AgentId{AgentId: s.own}},
		"policy": {Target: &v1.SignalRequest_PolicyName{PolicyName: s.own}},
	}
	of := func(x *v1.Signal) string {
		switch {
		case x.GetSessionId() == s.own:
			return "session"
		case x.GetAgentId() == s.own:
			return "agent"
		case x.GetPolicyName() == s.own:
			return "policy"
		}
		return ""
	}
	stands := map[string]*v1.Signal{}
	alike := func(what string, got *v1.Signal, target string) {
		want := stands[target]
		if want == nil {
			s.wrong(got != nil, "%s is %v", what, got)
			return
		}
		s.wrong(of(got) != target || got.Signal != want.Signal || got.Reason != want.Reason || got.Age.AsDuration() > time.Minute || got.Swept && got.Signal == "STOP", "%s is %v, want %v of the %s", what, got, want, target)
	}
	// send sends a signal, after which that has to stand which is in stands.
	send := func(target, signal, reason string) {
		res, no := s.send(&v1.SignalRequest{Target: targets[target].Target, Signal: signal, Reason: reason})
		if s.wrong(no != "", "it is refused: %s", no); s.over {
			return
		}
		alike("what stands", res.Signal, target)
	}
	stop := func(target, reason string) {
		stands[target] = &v1.Signal{Signal: "STOP", Reason: reason}
		send(target, []string{"STOP", "stop", "Stop"}[s.rng.IntN(3)], reason)
	}
	lift := func(target string) {
		delete(stands, target)
		send(target, "CONTINUE", "ignored")
	}
	order := []string{"session", "agent", "policy"}
	see := func(req *v1.BeginCallRequest) *v1.BeginCallResponse {
		res := s.begin(req)
		if s.over {
			return nil
		}
		if len(stands) > 0 {
			s.outcome(res, v1.Outcome_OUTCOME_STOPPED)
			told := of(res.Signal)
			s.wrong(told == "" || stands[told] == nil || !strings.Contains(res.Reason, stands[told].Reason) || res.Decision.GetAllowed() && res.Decision.GetAction() == "deny", "it is stopped by %v (%s)", res.Signal, res.Reason)
			if told != "" {
				alike("the signal of the answer", res.Signal, told)
			}
		} else {
			s.outcome(res, v1.Outcome_OUTCOME_ADMITTED)
			s.wrong(res.Signal != nil, "it is told of %v", res.Signal)
		}
		got := map[string]*v1.Signal{}
		last := ""
		found(s, "list signals", func(ctx context.Context, n *node, token string) ([]*v1.Signal, string, error) {
			res, err := n.sessions.ListSignals(ctx, &v1.ListSignalsRequest{PageSize: s.perPage(), PageToken: token})
			return res.GetSignals(), res.GetNextPageToken(), err
		}, func(x *v1.Signal) bool {
			target := of(x)
			if target == "" {
				return false
			}
			s.wrong(got[target] != nil || x.Age == nil, "it is listed twice, or without its age: %v", x)
			s.wrong(last == "session", "a session stands before %v", x) // single sessions come last
			got[target], last = x, target
			return true
		})
		if s.over {
			return nil
		}
		for _, target := range order {
			alike("what is listed", got[target], target)
		}
		x, ok := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
			return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: s.own})
		})
		if ok {
			alike("the session's own", x.Session.Signal, "session")
			s.wrong(x.Session.Signal != nil && x.Session.Signal.Age == nil, "the session's own is %v", x.Session.Signal)
			s.wrong(x.Session.ClosedReason != "" || x.Session.State != v1.SessionState_SESSION_STATE_OPEN, "the session is %v", x.Session)
		}
		return res
	}
	lift(order[s.rng.IntN(3)]) // where nothing stands
	req := s.call("one")
	s.rng.Shuffle(3, func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, target := range order {
		stop(target, "the "+target)
		see(req)
	}
	stop(order[0], "otherwise") // in place of the one before
	if res, reason := s.send(&v1.SignalRequest{Target: targets[order[1]].Target, Signal: "drain", Reason: "an update"}); !s.over {
		s.wrong(reason != "", "an event is refused: %s", reason)
		s.wrong(res.GetSignal() != nil && res.Signal.Signal == "drain", "an event stands: %v", res)
	}
	see(req)
	s.rng.Shuffle(3, func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, target := range order {
		lift(target)
		if res := see(req); res != nil && target == order[2] {
			s.alike("the counters", res.Counters, &v1.Counters{Attempts: 1, Calls: 1}) // what was kept out is not counted
		}
	}
	// A KILL is not weakened by a STOP.
	kill := []string{"session", "agent", "policy"}[s.rng.IntN(3)]
	res, _ := s.send(&v1.SignalRequest{Target: targets[kill].Target, Signal: "KILL", Reason: "enough"})
	if s.over {
		return
	}
	s.wrong(kill != "session" && (of(res.Signal) != kill || res.Signal.Signal != "KILL" || res.Signal.Reason != "enough"), "what stands is %v", res)
	closed := s.begin(s.call("one"))
	if s.over {
		return
	}
	s.wrong(closed.Outcome != v1.Outcome_OUTCOME_SESSION_CLOSED || of(closed.Signal) == "" || closed.Signal.Signal != "KILL" || closed.Signal.Reason != "enough" || !strings.Contains(closed.Reason, "killed: enough"), "what is killed is %v", closed)
	got, ok := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
		return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: s.own})
	})
	if ok { // others than the KILL of one session are swept after it is answered, or before
		s.wrong(kill == "session" && got.Session.State != v1.SessionState_SESSION_STATE_CLOSED, "the session is %v", got.Session)
		s.wrong(got.Session.State == v1.SessionState_SESSION_STATE_CLOSED && got.Session.ClosedReason != "killed: enough", "the session is %v", got.Session)
	}
	next, reason := s.send(&v1.SignalRequest{Target: targets[kill].Target, Signal: "STOP", Reason: "weaker"})
	if s.over {
		return
	}
	if kill == "session" {
		same(s, "the reason", reason, "SESSION_CLOSED")
		_, reason = s.send(&v1.SignalRequest{Target: targets[kill].Target, Signal: "CONTINUE"})
		if !s.over {
			same(s, "the reason", reason, "SESSION_CLOSED")
		}
		return
	}
	s.wrong(reason != "" || next.Signal.GetSignal() != "KILL" || next.Signal.GetReason() != "enough", "a STOP where a KILL stands comes to %v (%s)", next, reason)
	for range 3 * asks {
		res, reason := s.send(&v1.SignalRequest{Target: targets[kill].Target, Signal: "CONTINUE"})
		if s.over {
			return
		}
		if reason == "" {
			s.wrong(res.Signal != nil, "what stands is %v", res.Signal)
			s.outcome(s.begin(s.call("one")), v1.Outcome_OUTCOME_SESSION_CLOSED) // what was closed stays closed
			return
		}
		same(s, "the reason", reason, "KILL_UNDER_WAY")
		select {
		case <-s.ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
	s.over = true // it is not swept
}

// everybody stops and kills everything of a namespace of its own. Where people are known by
// what they show there is one, which others have as well.
func everybody(s *script) {
	if s.known {
		return
	}
	in := func(ctx context.Context) context.Context {
		ctx, info := connect.NewClientContext(ctx)
		info.RequestHeader().Set("Govnode-Namespace", s.own)
		return ctx
	}
	put := &v1.PutPolicyRequest{Yaml: "name: " + s.own + "\nmax_tool_calls: 100\n", RequestId: s.id(), Client: s.own}
	done(s, "put a policy there", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(in(ctx), put)
	})
	create := func(id string) string {
		req := &v1.CreateSessionRequest{SessionId: id, AgentId: id, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}}
		_, reason, _ := told(s, "create a session there", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
			return n.sessions.CreateSession(in(ctx), req)
		})
		return reason
	}
	for _, id := range []string{s.own, s.own + "-two"} {
		if reason := create(id); !s.over {
			same(s, "the reason", reason, "")
		}
	}
	begin := func(id string, want v1.Outcome) {
		req := s.call("one")
		req.SessionId = id
		res, ok := done(s, "begin there", func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) {
			return n.calls.BeginCall(in(ctx), req)
		})
		if ok {
			s.outcome(res, want)
			s.wrong((want == v1.Outcome_OUTCOME_STOPPED) != res.Signal.GetEverything() && want != v1.Outcome_OUTCOME_SESSION_CLOSED, "it is told of %v", res.Signal)
		}
	}
	send := func(signal string) (*v1.SignalResponse, string) {
		req := &v1.SignalRequest{Target: &v1.SignalRequest_Everything{Everything: true}, Signal: signal, Reason: "lunch", RequestId: s.id(), Client: s.own}
		res, reason, _ := told(s, "send "+signal, func(ctx context.Context, n *node) (*v1.SignalResponse, error) {
			return n.sessions.Signal(in(ctx), req)
		})
		return res, reason
	}
	list := func() []*v1.Signal {
		res, _ := done(s, "list signals there", func(ctx context.Context, n *node) (*v1.ListSignalsResponse, error) {
			return n.sessions.ListSignals(in(ctx), &v1.ListSignalsRequest{})
		})
		return res.GetSignals()
	}
	begin(s.own, v1.Outcome_OUTCOME_ADMITTED)
	send("STOP")
	begin(s.own, v1.Outcome_OUTCOME_STOPPED)
	begin(s.own+"-two", v1.Outcome_OUTCOME_STOPPED)
	if reason := create(s.own + "-three"); !s.over { // sessions may be created
		same(s, "the reason", reason, "")
	}
	if all := list(); !s.over {
		s.wrong(len(all) != 1 || !all[0].GetEverything() || all[0].Signal != "STOP" || all[0].Reason != "lunch", "signals are %v", all)
	}
	send("CONTINUE")
	begin(s.own+"-two", v1.Outcome_OUTCOME_ADMITTED)
	begin(s.own+"-three", v1.Outcome_OUTCOME_ADMITTED)
	if all := list(); !s.over {
		s.wrong(len(all) > 0, "signals are %v", all)
	}
	send("KILL")
	begin(s.own, v1.Outcome_OUTCOME_SESSION_CLOSED)
	if reason := create(s.own + "-four"); !s.over {
		same(s, "the reason", reason, "KILLED")
	}
	for range 3 * asks {
		all := list()
		if s.over {
			return
		}
		s.wrong(len(all) != 1 || !all[0].GetEverything() || all[0].Signal != "KILL", "signals are %v", all)
		if !s.over && !all[0].Swept {
			select {
			case <-s.ctx.Done():
			case <-time.After(300 * time.Millisecond):
			}
			continue
		}
		res, ok := done(s, "list sessions there", func(ctx context.Context, n *node) (*v1.ListSessionsResponse, error) {
			return n.sessions.ListSessions(in(ctx), &v1.ListSessionsRequest{})
		})
		s.wrong(ok && len(res.Sessions) != 3, "sessions are %v", res.GetSessions())
		for _, x := range res.GetSessions() {
			s.wrong(x.State != v1.SessionState_SESSION_STATE_CLOSED || len(x.OpenCalls) > 0 || x.Executions != 1 || x.ClosedReason != "killed: lunch", "all are closed, and one is %v", x)
		}
		if _, reason := send("CONTINUE"); !s.over {
			same(s, "the reason", reason, "")
		}
		if reason := create(s.own + "-four"); !s.over {
			same(s, "the reason", reason, "")
		}
		return
	}
	s.over = true // it is not swept
}
