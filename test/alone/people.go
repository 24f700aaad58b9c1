package alone

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What people decide.

// vote is the vote of a person, sent again until somebody has heard it.
func (s *script) vote(who int, id string, decision v1.Vote) (*v1.Approval, string) {
	req := &v1.ApprovalServiceDecideRequest{Id: id, Decision: decision, Approver: s.approver(who), Reason: "says " + People[who], RequestId: s.id(), Client: s.own}
	res, reason, _ := told(s, fmt.Sprintf("%v of %s", decision, People[who]), func(ctx context.Context, _ *node) (*v1.ApprovalServiceDecideResponse, error) {
		return s.person(who).Decide(ctx, req)
	})
	return res.GetApproval(), reason
}

// approval reads an approval, and looks for it in the list of its agent.
func (s *script) approval(id string, want v1.ApprovalState) *v1.Approval {
	res, ok := done(s, "get the approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceGetResponse, error) {
		return n.approvals.Get(ctx, &v1.ApprovalServiceGetRequest{Id: id})
	})
	if !ok {
		return nil
	}
	same(s, "the state of the approval", res.Approval.State, want)
	for _, state := range []v1.ApprovalState{0, want, v1.ApprovalState_APPROVAL_STATE_EXPIRED} {
		x, times := found(s, "list approvals", func(ctx context.Context, n *node, token string) ([]*v1.Approval, string, error) {
			res, err := n.approvals.List(ctx, &v1.ApprovalServiceListRequest{State: state, AgentId: s.own, PageSize: 1, PageToken: token})
			return res.GetApprovals(), res.GetNextPageToken(), err
		}, func(x *v1.Approval) bool { return x.Id == id })
		should := 1
		if state != 0 && state != want {
			should = 0
		}
		s.wrong(times >= 0 && times != should, "it is %d times among those of state %v", times, state)
		s.wrong(times == 1 && (x.State != want || x.Tool != res.Approval.Tool || len(x.Ballots) != len(res.Approval.Ballots)), "it is listed as %v, and read as %v", x, res.Approval)
	}
	return res.Approval
}

// ask asks for an approval without a call, which is decided, or taken back.
func ask(s *script) {
	req := &v1.ApprovalServiceRequestRequest{
		AgentId: s.own, Tool: "tool", ArgumentsJson: `{"n":1}`, Message: "why not", Timeout: durationpb.New(20 * time.Minute),
		Required: 2, Denials: 2, SessionId: "shown-with", RequestId: s.id(), Client: s.own,
	}
	res, ok := done(s, "request an approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceRequestResponse, error) {
		return n.approvals.Request(ctx, req)
	})
	if !ok {
		return
	}
	id := res.Approval.Id
	x := s.approval(id, v1.ApprovalState_APPROVAL_STATE_PENDING)
	if s.over {
		return
	}
	s.wrong(x.AgentId != s.own || x.Tool != "tool" || x.Arguments != `{"n":1}` || x.Reason != "why not" || x.Required != 2 || x.Denials != 2 ||
		x.SessionId != "shown-with" || x.CallId != "" || x.Timeout.AsDuration() != 20*time.Minute || len(x.Ballots) > 0, "the approval is %v", x)
	if s.rng.IntN(4) == 0 {
		cancel := &v1.ApprovalServiceCancelRequest{Id: id, RequestId: s.id(), Client: s.own}
		done(s, "cancel the approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceCancelResponse, error) {
			return n.approvals.Cancel(ctx, cancel)
		})
		s.approval(id, v1.ApprovalState_APPROVAL_STATE_CANCELLED)
		if _, reason := s.vote(0, id, v1.Vote_VOTE_APPROVE); !s.over {
			same(s, "the reason", reason, "ALREADY_DECIDED")
		}
		return
	}
	decision, end := v1.Vote_VOTE_APPROVE, v1.ApprovalState_APPROVAL_STATE_APPROVED
	if s.rng.IntN(2) == 0 {
		decision, end = v1.Vote_VOTE_DENY, v1.ApprovalState_APPROVAL_STATE_DENIED
	}
	first := s.rng.IntN(2)
	if got, reason := s.vote(first, id, decision); !s.over {
		s.wrong(reason != "" || got.State != v1.ApprovalState_APPROVAL_STATE_PENDING, "the first vote came to %v (%s)", got, reason)
	}
	if _, reason := s.vote(first, id, decision); !s.over {
		same(s, "the reason once more", reason, "")
	}
	if _, reason := s.vote(first, id, v1.Vote_VOTE_APPROVE+v1.Vote_VOTE_DENY-decision); !s.over {
		same(s, "the reason", reason, "ALREADY_VOTED")
	}
	x = s.approval(id, v1.ApprovalState_APPROVAL_STATE_PENDING)
	if s.over {
		return
	}
	s.wrong(len(x.Ballots) != 1 || !s.known && x.Ballots[0].Approver != People[first] || x.Ballots[0].Vote != decision || x.Ballots[0].Reason != "says "+People[first],
		"ballots are %v", x.Ballots)
	if got, reason := s.vote(1-first, id, decision); !s.over {
		s.wrong(reason != "" || got.State != end, "the second vote came to %v (%s), want %v", got, reason, end)
	}
	s.approval(id, end)
}

// votes begins calls that people have to agree to, and lets one pass by a standing
// approval.
func votes(s *script) {
	if !s.policy("max_tool_calls: 100\nrequire_human_approval: true\napproval: {required: 1, denials: 1, timeout: 10m, max_pending: 8}\n") || !s.session(nil) {
		return
	}
	asked := func(tool string) (*v1.BeginCallRequest, string) {
		req := s.call(tool)
		res := s.begin(req)
		s.outcome(res, v1.Outcome_OUTCOME_APPROVAL_REQUIRED)
		if s.over {
			return req, ""
		}
		s.wrong(res.Approval.GetState() != v1.ApprovalState_APPROVAL_STATE_PENDING || res.Approval.GetRequired() != 1, "the approval is %v", res.Approval)
		return req, res.Approval.GetId()
	}
	req, id := asked("one")
	s.vote(s.rng.IntN(2), id, v1.Vote_VOTE_APPROVE)
	// The call may come once more by itself, where an answer was lost, and use it.
	if got, ok := done(s, "get the approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceGetResponse, error) {
		return n.approvals.Get(ctx, &v1.ApprovalServiceGetRequest{Id: id})
	}); ok {
		state := got.Approval.State
		s.wrong(state != v1.ApprovalState_APPROVAL_STATE_APPROVED && state != v1.ApprovalState_APPROVAL_STATE_USED, "the approval is %v", got.Approval)
	}
	res := s.begin(req)
	s.outcome(res, v1.Outcome_OUTCOME_ADMITTED)
	// The answer that is given again tells of none where it cannot be read.
	s.wrong(!s.over && res.Approval != nil && res.Approval.State != v1.ApprovalState_APPROVAL_STATE_USED, "the approval is %v", res.GetApproval())
	s.approval(id, v1.ApprovalState_APPROVAL_STATE_USED)
	s.end(&v1.EndCallRequest{CallId: req.CallId, Status: v1.Status_STATUS_SUCCEEDED})
	req, id = asked("one")
	s.vote(s.rng.IntN(2), id, v1.Vote_VOTE_DENY)
	s.outcome(s.begin(req), v1.Outcome_OUTCOME_APPROVAL_DENIED)
	s.approval(id, v1.ApprovalState_APPROVAL_STATE_DENIED)
	standing := &v1.PutStandingRequest{
		Scope: v1.StandingScope_STANDING_SCOPE_SESSION, Name: s.own, Tool: "two", Uses: 1, Expiry: durationpb.New(time.Hour), RequestId: s.id(), Client: s.own,
	}
	to := s.rng.IntN(2)
	if _, ok := done(s, "put a standing approval", func(ctx context.Context, _ *node) (*v1.PutStandingResponse, error) {
		return s.person(to).PutStanding(ctx, standing)
	}); !ok {
		return
	}
	_, id = asked("one")
	cancel := &v1.ApprovalServiceCancelRequest{Id: id, RequestId: s.id(), Client: s.own}
	done(s, "cancel the approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceCancelResponse, error) {
		return n.approvals.Cancel(ctx, cancel)
	})
	s.outcome(s.begin(s.call("two")), v1.Outcome_OUTCOME_ADMITTED)
	asked("two")
}

// deadline asks people and lets the time run out, in which nobody has voted, or one of two.
func deadline(s *script) {
	then := []v1.OnTimeout{v1.OnTimeout_ON_TIMEOUT_ALLOW, v1.OnTimeout_ON_TIMEOUT_DENY}[s.rng.IntN(2)]
	voted := s.rng.IntN(2) == 0
	ask := &v1.ApprovalServiceRequestRequest{
		AgentId: s.own, Tool: "tool", Timeout: durationpb.New(2 * time.Second), OnTimeout: then, Required: 2, Denials: 2, RequestId: s.id(), Client: s.own,
	}
	res, ok := done(s, "request an approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceRequestResponse, error) {
		return n.approvals.Request(ctx, ask)
	})
	if !ok {
		return
	}
	id := res.Approval.Id
	if voted {
		if _, reason := s.vote(0, id, v1.Vote_VOTE_DENY); reason == "ALREADY_DECIDED" {
			return // it came late
		}
	}
	want := v1.ApprovalState_APPROVAL_STATE_EXPIRED
	if then == v1.OnTimeout_ON_TIMEOUT_ALLOW && !voted {
		want = v1.ApprovalState_APPROVAL_STATE_APPROVED
	}
	for range asks {
		got, ok := done(s, "wait for the approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceGetResponse, error) {
			return n.approvals.Get(ctx, &v1.ApprovalServiceGetRequest{Id: id, Wait: durationpb.New(2 * time.Second)})
		})
		if !ok {
			return
		}
		if x := got.Approval; x.State != v1.ApprovalState_APPROVAL_STATE_PENDING {
			s.wrong(x.State != want || x.ByTimeout != (want == v1.ApprovalState_APPROVAL_STATE_APPROVED) || voted != (len(x.Ballots) == 1), "the approval is %v, want %v", x, want)
			s.approval(id, want)
			if _, reason := s.vote(1, id, v1.Vote_VOTE_APPROVE); !s.over {
				same(s, "the reason", reason, "ALREADY_DECIDED")
			}
			return
		}
	}
	s.over = true // time stands still
}

// waits has a call that people have agreed to wait for room, and takes back what they have
// agreed to.
func waits(s *script) {
	if !s.policy("max_tool_calls: 100\nmax_concurrent: 1\nrequire_human_approval: true\napproval: {required: 1, denials: 1, timeout: 10m, max_pending: 8}\n") || !s.session(nil) {
		return
	}
	// Both may wait from the start, so that it does not matter how often one is heard of.
	begin := func(req *v1.BeginCallRequest, want v1.Outcome) *v1.BeginCallResponse {
		s.good = time.Now().Add(9 * time.Second) // nobody renews its place
		defer func() { s.good = time.Time{} }()
		res := s.batch("begin what may wait", &v1.Operation{Op: &v1.Operation_Begin{Begin: req}, Timeout: durationpb.New(20 * time.Millisecond)})
		if s.over {
			return nil
		}
		s.wrong(res[0].GetBegin().GetOutcome() != want, "the outcome is %v, want %v", res[0], want)
		return res[0].GetBegin()
	}
	agreed := func() (req *v1.BeginCallRequest, id string) {
		req = s.call("one")
		req.Wait = durationpb.New(5 * time.Minute)
		id = begin(req, v1.Outcome_OUTCOME_APPROVAL_REQUIRED).GetApproval().GetId()
		s.vote(s.rng.IntN(2), id, v1.Vote_VOTE_APPROVE)
		return req, id
	}
	first, _ := agreed()
	begin(first, v1.Outcome_OUTCOME_ADMITTED)
	req, id := agreed()
	if begun := begin(req, v1.Outcome_OUTCOME_QUEUED); !s.over {
		s.wrong(begun.Queue.GetPosition() != 1, "the place is %v", begun)
	}
	s.approval(id, v1.ApprovalState_APPROVAL_STATE_APPROVED)
	cancel := &v1.ApprovalServiceCancelRequest{Id: id, RequestId: s.id(), Client: s.own}
	done(s, "cancel the approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceCancelResponse, error) {
		return n.approvals.Cancel(ctx, cancel)
	})
	s.approval(id, v1.ApprovalState_APPROVAL_STATE_CANCELLED)
	pool := func(used, waiting int32) {
		if res, ok := done(s, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
			return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: "policy/" + s.own})
		}); ok {
			s.wrong(res.Pool.InUse != used || res.Pool.Waiting != waiting, "the pool is %v", res.Pool)
		}
	}
	pool(1, 0)
	s.outcome(s.begin(req), v1.Outcome_OUTCOME_APPROVAL_DENIED)
	s.end(&v1.EndCallRequest{CallId: first.CallId, Status: v1.Status_STATUS_SUCCEEDED})
	pool(0, 0)
	want := &account{tools: map[string]int32{"one": 1}}
	want.Attempts, want.Calls, want.Executions = 2, 1, 1
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
}

// stand lets calls of a tool pass without asking, with any arguments or some alone, and
// takes that back.
func stand(s *script) {
	if !s.policy("max_tool_calls: 100\nrequire_human_approval: true\napproval: {required: 1, denials: 1, timeout: 10m, max_pending: 8}\n") || !s.session(nil) {
		return
	}
	scope := []v1.StandingScope{v1.StandingScope_STANDING_SCOPE_SESSION, v1.StandingScope_STANDING_SCOPE_AGENT, v1.StandingScope_STANDING_SCOPE_POLICY}[s.rng.IntN(3)]
	of := []string{"", `{}`, `{"n": 1}`, `{"n": null}`}[s.rng.IntN(4)]
	put := &v1.PutStandingRequest{Scope: scope, Name: s.own, Tool: "one", ArgumentsJson: of, Expiry: durationpb.New(time.Hour), RequestId: s.id(), Client: s.own}
	to := s.rng.IntN(2)
	made, ok := done(s, "put a standing approval", func(ctx context.Context, _ *node) (*v1.PutStandingResponse, error) {
		return s.person(to).PutStanding(ctx, put)
	})
	if !ok {
		return
	}
	s.wrong(made.Standing == nil || (made.Standing.Arguments != nil) != (of != ""), "it is %v, for %q", made, of)
	try := func(tool, args string, want v1.Outcome) {
		req := s.call(tool)
		req.ArgumentsJson = args
		s.outcome(s.begin(req), want)
	}
	const admitted, asked = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_APPROVAL_REQUIRED
	for _, args := range []string{`{}`, `{"n": 1}`, `{"n": 2}`, `{"n":null}`} {
		if of == "" || strings.ReplaceAll(of, " ", "") == strings.ReplaceAll(args, " ", "") {
			try("one", args, admitted)
		} else {
			try("one", args, asked)
		}
	}
	try("two", `{"n": 1}`, asked)
	remove := &v1.DeleteStandingRequest{Id: made.Standing.GetId(), RequestId: s.id(), Client: s.own}
	done(s, "delete the standing approval", func(ctx context.Context, _ *node) (*v1.DeleteStandingResponse, error) {
		return s.person(to).DeleteStanding(ctx, remove)
	})
	try("one", `{"n": 1}`, asked)
}
