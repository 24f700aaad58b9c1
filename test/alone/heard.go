package alone

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// heard follows one node, and asks that node alone: each event of a session is told in
// order and in every field, once; and whoever comes later is told the same, or the part of it
// that he asks for.
func heard(s *script) {
	put := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{
		{Path: "limits.yaml", Content: "name: " + s.own + "\nmax_concurrent: 64\nmax_tool_calls: 100\ncheckpoint_frequency: 2\ndrift_threshold: 0.5\napproval: {timeout: 10m}\n"},
		{Path: "rules.yaml", Content: `name: rules
rules:
  - {name: asks, condition: {field: tool_name, operator: eq, value: pay}, action: ask, priority: 100, message: who pays}
  - {name: never, condition: {field: tool_name, operator: eq, value: not}, action: deny, priority: 10, message: never}
`},
		{Path: "looks.yaml", Content: `apiVersion: edictum/v1
kind: Ruleset
metadata: {name: looks}
defaults: {mode: enforce}
rules:
  - {id: keys, type: post, tool: look, when: {output.text: {matches: "sk-[a-z0-9]+"}}, then: {action: redact, message: a key}}
`},
	}}
	if _, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, put)
	}); !ok || !s.session(nil) {
		return
	}
	s.putBudget(&v1.PutBudgetRequest{Budget: s.own, Amount: "10"})
	which := s.rng.IntN(len(s.nodes))
	at := s.nodes[which]
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	// follow tells what is heard until it is stopped, or the stream ends.
	follow := func(ctx context.Context, req *v1.FollowRequest) (messages chan *v1.FollowResponse) {
		messages = make(chan *v1.FollowResponse, 256)
		go func() {
			defer close(messages)
			stream, err := at.events.Follow(ctx, req)
			if err != nil {
				return
			}
			defer func() { _ = stream.Close() }()
			for stream.Receive() {
				select {
				case <-ctx.Done():
					return
				case messages <- stream.Msg():
				}
			}
		}()
		return messages
	}
	// next is the next message that is not only a cursor.
	next := func(messages chan *v1.FollowResponse) *v1.FollowResponse {
		for {
			select {
			case m := <-messages:
				if m == nil || m.Event != nil || m.Gap != nil {
					return m
				}
			case <-time.After(3 * time.Second):
				return nil
			}
		}
	}
	messages := follow(ctx, &v1.FollowRequest{SessionId: s.own})
	defer func() {
		stop()
		for range messages { // until it has ended
		}
	}()
	select {
	case m := <-messages:
		s.last = "follow"
		s.wrong(m != nil && (m.Cursor == "" || m.Event != nil), "the first message is %v", m)
		if m == nil || s.over {
			s.over = true
			return
		}
	case <-time.After(3 * time.Second):
		s.over = true
		return
	}
	// What is asked is asked once: a repeat is told of otherwise, or not at all.
	ask := func(f func(ctx context.Context) error) bool {
		if s.over {
			return false
		}
		ctx, cancel := context.WithTimeout(s.ctx, 3*time.Second)
		defer cancel()
		s.over = f(ctx) != nil
		s.steps++
		return !s.over
	}
	var want []*v1.Event
	expect := func(e *v1.Event, types ...string) {
		e.SessionId = s.own
		for _, t := range types {
			e = proto.CloneOf(e)
			e.Type = t
			want = append(want, e)
		}
	}
	begin := func(tool string, outcome v1.Outcome, budgets ...*v1.BudgetAmount) (req *v1.BeginCallRequest, res *v1.BeginCallResponse) {
		req = s.call(tool)
		req.Budgets = budgets
		s.last = "begin " + tool
		ask(func(ctx context.Context) (err error) { res, err = at.calls.BeginCall(ctx, req); return err })
		if s.outcome(res, outcome); s.over {
			return req, res
		}
		d := res.Decision
		if id := res.Approval.GetId(); id != "" {
			expect(&v1.Event{AgentId: s.own, CallId: req.CallId, Tool: tool, ApprovalId: id, Category: "requested", Reason: d.GetReason()}, "approval_requested")
		}
		types := []string{"policy_check"}
		if outcome == v1.Outcome_OUTCOME_DENIED_BY_POLICY {
			types = append(types, "policy_violation", "tool_call_blocked")
		}
		expect(&v1.Event{AgentId: s.own, CallId: req.CallId, Tool: tool, Policy: d.GetPolicy(), Rule: d.GetMatchedRule(), Category: d.GetCategory(), Reason: d.GetReason(), DecisionId: res.DecisionId}, types...)
		return req, res
	}
	begin("not", v1.Outcome_OUTCOME_DENIED_BY_POLICY)
	ask(func(ctx context.Context) error {
		res, err := at.policies.Evaluate(ctx, &v1.EvaluateRequest{SessionId: s.own, Tool: "fine"})
		if d := res.GetDecision(); err == nil {
			expect(&v1.Event{AgentId: s.own, Tool: "fine", Policy: d.GetPolicy(), Reason: d.GetReason(), DecisionId: res.DecisionId, DryRun: true}, "policy_check")
		}
		return err
	})
	drain := func() {
		ask(func(ctx context.Context) error {
			_, err := at.sessions.Signal(ctx, &v1.SignalRequest{Target: &v1.SignalRequest_SessionId{SessionId: s.own}, Signal: "drain", Reason: "an update", RequestId: s.id(), Client: s.own})
			expect(&v1.Event{Category: "drain", Reason: "an update"}, "signal")
			return err
		})
	}
	drain()
	for _, output := range []string{"as it was", "zzz", "sk-a1b2"} { // the last one is looked at
		tool := "fine"
		if output == "sk-a1b2" {
			tool = "look"
		}
		req, begun := begin(tool, v1.Outcome_OUTCOME_ADMITTED)
		end := &v1.EndCallRequest{SessionId: s.own, CallId: req.CallId, Status: v1.Status_STATUS_SUCCEEDED, Output: structpb.NewStringValue(output)}
		if begun.GetReviews() {
			end.Begin = req
		}
		var ended *v1.EndCallResponse
		s.last = "end"
		ask(func(ctx context.Context) (err error) { ended, err = at.calls.EndCall(ctx, end); return err })
		if s.over || ended.Outcome != v1.Outcome_OUTCOME_ENDED {
			s.over = true
			return
		}
		about := &v1.Event{AgentId: s.own, CallId: req.CallId}
		if d := ended.Drift; d.GetExceeded() {
			e := proto.CloneOf(about)
			e.Drift, e.Category, e.Reason = d, "drift", fmt.Sprintf("Drift score %.2f exceeds threshold 0.50", d.GetScore())
			expect(e, "drift_detected")
		}
		if tool == "look" {
			expect(&v1.Event{AgentId: s.own, CallId: req.CallId, Rule: "keys", Category: "secret_detected", Reason: "a key"}, "output_reviewed")
		}
		if about.CheckpointId = ended.CheckpointId; about.CheckpointId != "" {
			expect(about, "checkpoint_created")
		}
	}
	for _, x := range []struct{ amount, event, says string }{
		{"7.5", "", ""}, {"0.5", "budget_warning", " has reached 80 % of its amount: 8 of 10 are used"}, {"1.5", "", ""}, {"0.5", "budget_exceeded", " is used up: 10 of 10 are used"},
	} {
		req, _ := begin("fine", v1.Outcome_OUTCOME_ADMITTED, &v1.BudgetAmount{Budget: s.own, Amount: x.amount})
		if x.event != "" {
			expect(&v1.Event{AgentId: s.own, CallId: req.CallId, Reason: "Budget " + s.own + x.says}, x.event)
		}
	}
	for range 3 {
		req, res := begin("pay", v1.Outcome_OUTCOME_APPROVAL_REQUIRED)
		if s.over {
			return
		}
		id := res.Approval.GetId()
		who := s.rng.IntN(2)
		s.last = "decide"
		ask(func(ctx context.Context) error {
			got, err := s.people[People[who]][which].Decide(ctx, &v1.ApprovalServiceDecideRequest{
				Id: id, Decision: v1.Vote_VOTE_DENY, Approver: s.approver(who), Reason: "says " + People[who], RequestId: s.id(), Client: s.own,
			})
			if err == nil {
				expect(&v1.Event{
					AgentId: s.own, CallId: req.CallId, Tool: "pay", ApprovalId: id, Category: "denied", Reason: "says " + People[who], Approver: got.Approval.GetBallots()[0].GetApprover(),
				}, "approval_decided")
			}
			return err
		})
	}
	drain()
	if s.over {
		return
	}
	type told struct {
		event  *v1.Event
		cursor string
	}
	var all []told
	s.last = "follow"
	for drains := 0; drains < 2; {
		m := next(messages)
		if m == nil || m.Gap != nil || m.Event.Repeat { // the node is gone, or slow, or has sent something again
			s.over = true
			return
		}
		if all = append(all, told{m.Event, m.Cursor}); m.Event.Type == "signal" {
			drains++
		}
	}
	if s.wrong(len(all) != len(want), "events are %v, want %v", all, want); s.over {
		return
	}
	for i, w := range want {
		got := all[i].event
		at, err := time.Parse(time.RFC3339Nano, got.Timestamp)
		s.wrong(err != nil || at.Location() != time.UTC || got.Node != all[0].event.Node || got.Node == "" || i > 0 && got.Sequence <= all[i-1].event.Sequence || all[i].cursor == "", "event %d is %v, after %v", i, got, all[max(0, i-1)].event)
		plain := proto.CloneOf(got)
		plain.Node, plain.Sequence, plain.Timestamp = "", 0, ""
		if plain.Type == "drift_detected" || plain.Type == "checkpoint_created" || plain.Type == "output_reviewed" {
			s.wrong(plain.Tool != "" && plain.Tool != "fine" && plain.Tool != "look", "it is of another tool: %v", plain)
			plain.Tool = "" // which the node knows, or does not
		}
		s.alike("an event", plain, w)
	}
	// later follows once more, and wants those that are named.
	later := func(what string, req *v1.FollowRequest, from int, which func(*v1.Event) bool) {
		if s.over {
			return
		}
		s.last = "follow " + what
		ctx, stop := context.WithTimeout(s.ctx, 12*time.Second)
		defer stop()
		again := follow(ctx, req)
		defer func() {
			stop()
			for range again {
			}
		}()
		for i, x := range all {
			if i < from || !which(x.event) {
				continue
			}
			m := next(again)
			if m == nil || m.Gap != nil {
				gap := m != nil
				drain() // that is heard by who has listened all the time, if the node is the same
				if still := next(messages); s.over || gap || still == nil {
					s.over = true
					return
				}
				if m = next(again); m == nil { // it may all be late; where one event is missing another comes
					s.over = true
					return
				}
			}
			s.alike("event "+req.String(), m.GetEvent(), x.event)
			if s.over {
				return
			}
		}
	}
	every := func(*v1.Event) bool { return true }
	later("from the oldest", &v1.FollowRequest{FromOldest: true, SessionId: s.own}, 0, every)
	later("its agent", &v1.FollowRequest{FromOldest: true, AgentId: s.own}, 0, func(e *v1.Event) bool { return e.AgentId == s.own })
	types := []string{
		"policy_violation", "signal", "checkpoint_created", "approval_decided", "drift_detected", "approval_requested", "tool_call_blocked", "output_reviewed", "budget_warning", "budget_exceeded",
	}
	s.rng.Shuffle(len(types), func(i, j int) { types[i], types[j] = types[j], types[i] })
	types = types[:1+s.rng.IntN(3)]
	later("some types", &v1.FollowRequest{FromOldest: true, SessionId: s.own, Types: types}, 0, func(e *v1.Event) bool { return slices.Contains(types, e.Type) })
	i := s.rng.IntN(len(all) - 1)
	later("from a cursor", &v1.FollowRequest{After: all[i].cursor, SessionId: s.own}, i+1, every)
	later("from a cursor, some types", &v1.FollowRequest{After: all[i].cursor, AgentId: s.own, Types: types}, i+1, func(e *v1.Event) bool { return e.AgentId == s.own && slices.Contains(types, e.Type) })
}
