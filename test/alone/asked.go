package alone

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What is said of calls that people are asked about, in every field, and when they are not.

// asking puts a policy by which people are asked about a tool, and opens a session.
func (s *script) asking(approval string) bool {
	req := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{
		{Path: "limits.yaml", Content: "name: " + s.own + "\nmax_concurrent: 64\nmax_tool_calls: 100\napproval: {" + approval + "}\n"},
		{Path: "rules.yaml", Content: `name: rules
rules:
  - {name: large, condition: {field: tool_name, operator: eq, value: pay}, action: ask, priority: 100, message: who pays}
  - {name: model, condition: {field: action_type, operator: eq, value: model_call}, action: ask, priority: 90}
  - {name: never, condition: {field: arguments.amount, operator: gt, value: 500}, action: deny, priority: 10, message: never so much}
`},
	}}
	_, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, req)
	})
	return ok && s.session(nil)
}

// send sends a signal, and returns what is answered, or why it is refused.
func (s *script) send(req *v1.SignalRequest) (*v1.SignalResponse, string) {
	req.RequestId, req.Client = s.id(), s.own
	res, reason, _ := told(s, "send "+req.Signal, func(ctx context.Context, n *node) (*v1.SignalResponse, error) {
		return n.sessions.Signal(ctx, req)
	})
	return res, reason
}

// refuses holds a call to the reason with which it is refused.
func (s *script) refuses(req *v1.BeginCallRequest, want string) {
	_, reason, ok := told(s, "begin "+req.Tool, func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) { return n.calls.BeginCall(ctx, req) })
	if ok {
		same(s, "the reason", reason, want)
	}
}

// who is a person as he is known; only where he says who he is that is known here.
func (s *script) who(name string, i int) bool { return s.known || name == People[i] }

// asked has two people decide about calls, with a STOP between, and holds what is said of
// each to what was asked for.
func asked(s *script) {
	if !s.asking("required: 2, denials: 2, timeout: 10m, max_pending: 2") {
		return
	}
	pay := func(amount string) *v1.BeginCallRequest {
		req := s.call("pay")
		req.ArgumentsJson, req.ServerLabel = `{"api_key": "hidden", "amount": `+amount+`}`, "shop"
		return req
	}
	within := func(d *durationpb.Duration) bool {
		return d != nil && d.AsDuration() <= 10*time.Minute && d.AsDuration() > 9*time.Minute
	}
	// pending begins what people are asked about.
	pending := func(req *v1.BeginCallRequest, votes int32) string {
		res := s.begin(req)
		if s.outcome(res, v1.Outcome_OUTCOME_APPROVAL_REQUIRED); s.over {
			return ""
		}
		a, d := res.Approval, res.Decision
		s.wrong(a.GetId() == "" || a.State != v1.ApprovalState_APPROVAL_STATE_PENDING || a.Required != 2 || a.Votes != votes || a.DecidedBy != "" || a.DecisionReason != "" || !within(a.ExpiresIn), "the approval is %v", a)
		s.wrong(d.GetAllowed() || d.GetAction() != "ask" || d.MatchedRule != "large" || d.Category != "human_approval_required" || d.Policy != "rules" || d.Reason != "who pays" || res.Reason != d.Reason, "the decision is %v (%s)", d, res.Reason)
		s.wrong(len(res.Grants) > 0 || res.Budget != nil || res.Signal != nil || res.Queue != nil, "it holds something: %v", res)
		return a.GetId()
	}
	one, two := pay("20"), pay("30")
	id := pending(one, 0)
	x := s.approval(id, v1.ApprovalState_APPROVAL_STATE_PENDING)
	pinned, ok := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
		return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: s.own})
	})
	if !ok || s.over {
		return
	}
	s.wrong(len(pinned.Session.OpenCalls) != 1 || !pinned.Session.OpenCalls[0].Waiting || pinned.Session.OpenCalls[0].ApprovalId != id || len(pinned.Session.OpenCalls[0].Grants) > 0, "open calls are %v", pinned.Session.OpenCalls)
	digest := x.RequestDigest
	want := &v1.Approval{
		Id: id, State: v1.ApprovalState_APPROVAL_STATE_PENDING, AgentId: s.own, SessionId: s.own, CallId: one.CallId, Tool: "pay", Arguments: `{"amount":20,"api_key":"[REDACTED]"}`,
		Reason: "who pays", Rule: "large", PolicyDigest: pinned.Session.PolicyDigest, RequestDigest: digest, Required: 2, Denials: 2,
		OnTimeout: v1.OnTimeout_ON_TIMEOUT_DENY, Timeout: durationpb.New(10 * time.Minute), Kind: "tool", ServerLabel: "shop",
	}
	s.wrong(!within(x.ExpiresIn) || x.Age.AsDuration() > time.Minute || digest == "", "the approval is %v", x)
	x.ExpiresIn, x.Age = nil, nil
	s.alike("the approval", x, want)
	if res := s.begin(pay("501")); !s.over { // a deny wins over an ask
		s.wrong(res.Outcome != v1.Outcome_OUTCOME_DENIED_BY_POLICY || res.Reason != "never so much" || res.Decision.GetMatchedRule() != "never" || res.Approval != nil, "what is never paid is %v", res)
	}
	other := pay("21")
	other.CallId = one.CallId
	s.refuses(other, "ID_REUSED")
	second := pending(two, 0)
	if res := s.begin(pay("40")); !s.over { // beyond max_pending
		s.outcome(res, v1.Outcome_OUTCOME_APPROVAL_DENIED)
		s.reads("the answer", res.Decision, approvalFirst, noApproval, "Too many calls of this session wait for approval")
	}
	s.approval(id, v1.ApprovalState_APPROVAL_STATE_PENDING)
	target := &v1.SignalRequest_SessionId{SessionId: s.own}
	s.send(&v1.SignalRequest{Target: target, Signal: "STOP"})
	s.outcome(s.begin(one), v1.Outcome_OUTCOME_STOPPED)
	s.approval(id, v1.ApprovalState_APPROVAL_STATE_PENDING)
	decide := func(who int, id string, decision v1.Vote, digest string) (*v1.Approval, string) {
		req := &v1.ApprovalServiceDecideRequest{Id: id, Decision: decision, Approver: strings.ToUpper(s.approver(who)), Reason: "says " + People[who], RequestId: s.id(), Client: s.own, RequestDigest: digest}
		res, reason, _ := told(s, "decide by a digest", func(ctx context.Context, _ *node) (*v1.ApprovalServiceDecideResponse, error) {
			return s.person(who).Decide(ctx, req)
		})
		return res.GetApproval(), reason
	}
	first := s.rng.IntN(2)
	seen := s.approval(second, v1.ApprovalState_APPROVAL_STATE_PENDING)
	if s.over {
		return
	}
	s.wrong(seen.RequestDigest == digest, "two requests have the digest %s", digest)
	if got, reason := decide(first, id, v1.Vote_VOTE_APPROVE, seen.RequestDigest); !s.over { // of something else
		s.wrong(reason != "INVALID_FIELD", "a vote for something else came to %v (%s)", got, reason)
	}
	if got, reason := decide(first, id, v1.Vote_VOTE_APPROVE, digest); !s.over {
		s.wrong(reason != "" || got.State != v1.ApprovalState_APPROVAL_STATE_PENDING || len(got.Ballots) != 1 || !s.who(got.Ballots[0].Approver, first) || got.Ballots[0].Vote != v1.Vote_VOTE_APPROVE, "the first vote came to %v (%s)", got, reason)
	}
	s.send(&v1.SignalRequest{Target: target, Signal: "CONTINUE"})
	s.wrong(pending(one, 1) != id && !s.over, "it is asked about anew")
	if got, reason := decide(1-first, id, v1.Vote_VOTE_APPROVE, ""); !s.over {
		state := got.GetState() // the call may come by itself, where its answer was lost
		s.wrong(reason != "" || state != v1.ApprovalState_APPROVAL_STATE_APPROVED && state != v1.ApprovalState_APPROVAL_STATE_USED || got.ByTimeout || len(got.Ballots) != 2 || state == v1.ApprovalState_APPROVAL_STATE_APPROVED && !within(got.ExpiresIn), "the second vote came to %v (%s)", got, reason)
	}
	s.refuses(other, "ID_REUSED")
	if res := s.begin(one); !s.over {
		a := res.Approval // which a repeat may not have
		s.outcome(res, v1.Outcome_OUTCOME_ADMITTED)
		s.wrong(a != nil && (a.Id != id || a.State != v1.ApprovalState_APPROVAL_STATE_USED || a.Votes != 2 || a.Required != 2 || !s.who(a.DecidedBy, 1-first) || a.DecisionReason != "says "+People[1-first] || a.ExpiresIn.AsDuration() != 0), "the approval is %v", a)
	}
	x = s.approval(id, v1.ApprovalState_APPROVAL_STATE_USED)
	if s.over {
		return
	}
	s.wrong(x.ExpiresIn != nil || x.ByTimeout || len(x.Ballots) != 2 || !s.who(x.Ballots[0].Approver, first) || !s.who(x.Ballots[1].Approver, 1-first), "the approval is %v", x)
	if got, reason := s.vote(first, second, v1.Vote_VOTE_DENY); !s.over {
		s.wrong(reason != "" || got.State != v1.ApprovalState_APPROVAL_STATE_PENDING, "the first vote came to %v (%s)", got, reason)
	}
	pending(two, 0) // votes are those to approve it
	account := &account{tools: map[string]int32{"pay": 1}}
	account.Attempts, account.Calls = 4, 1
	account.open = []string{one.CallId, two.CallId}
	end, state := v1.Outcome_OUTCOME_APPROVAL_DENIED, v1.ApprovalState_APPROVAL_STATE_DENIED
	category, public, why := approvalFirst, noApproval, "Approval denied"
	how := s.rng.IntN(4)
	switch how {
	case 0:
		if got, reason := s.vote(1-first, second, v1.Vote_VOTE_DENY); !s.over {
			s.wrong(reason != "" || got.State != state, "the second vote came to %v (%s)", got, reason)
		}
	case 1:
		cancel := &v1.ApprovalServiceCancelRequest{Id: second, RequestId: s.id(), Client: s.own}
		done(s, "cancel the approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceCancelResponse, error) {
			return n.approvals.Cancel(ctx, cancel)
		})
		state, why = v1.ApprovalState_APPROVAL_STATE_CANCELLED, "The approval was cancelled"
	case 2:
		done(s, "cancel the call", func(ctx context.Context, n *node) (*v1.CancelCallResponse, error) {
			return n.calls.CancelCall(ctx, &v1.CancelCallRequest{SessionId: s.own, CallId: two.CallId})
		})
		end, state = v1.Outcome_OUTCOME_CANCELLED, v1.ApprovalState_APPROVAL_STATE_CANCELLED
		category, public, why = "max_concurrent", "The call was given up.", "The wait was given up by its caller"
	default:
		s.send(&v1.SignalRequest{Target: target, Signal: "KILL", Reason: "enough"})
		s.approval(second, v1.ApprovalState_APPROVAL_STATE_CANCELLED)
		s.approval(id, v1.ApprovalState_APPROVAL_STATE_USED)
		return
	}
	if res := s.begin(two); !s.over {
		s.outcome(res, end)
		s.reads("the answer", res.Decision, category, public, why)
		a := res.Approval
		s.wrong(how == 0 && (a.GetState() != state || !s.who(a.GetDecidedBy(), 1-first) || a.GetDecisionReason() != "says "+People[1-first] || a.GetVotes() != 0 || res.Reason != why), "it is answered by %v", res)
	}
	if x = s.approval(second, state); x != nil {
		s.wrong(x.ExpiresIn != nil, "the approval is %v", x)
	}
	account.open = account.open[:0]
	account.open = append(account.open, one.CallId)
	s.see(account, v1.SessionState_SESSION_STATE_OPEN)
}

// lapsed lets the time of calls that are asked about run out: nobody decides, or the call
// does not come back in the time that it has again after a yes.
func lapsed(s *script) {
	const timeout = 4 * time.Second
	how := s.rng.IntN(3)
	then := "deny"
	if how == 0 {
		then = "allow"
	}
	if !s.asking("required: 1, denials: 1, timeout: 4s, on_timeout: " + then) {
		return
	}
	req := s.call("pay")
	res := s.begin(req)
	if s.over || res.Outcome == v1.Outcome_OUTCOME_APPROVAL_EXPIRED || how == 0 && res.Outcome == v1.Outcome_OUTCOME_ADMITTED {
		return // it was answered late
	}
	if s.outcome(res, v1.Outcome_OUTCOME_APPROVAL_REQUIRED); s.over {
		return
	}
	id := res.Approval.GetId()
	get := func(wait time.Duration) *v1.Approval {
		got, _ := done(s, "wait for the approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceGetResponse, error) {
			return n.approvals.Get(ctx, &v1.ApprovalServiceGetRequest{Id: id, Wait: durationpb.New(wait)})
		})
		return got.GetApproval()
	}
	from := v1.ApprovalState_APPROVAL_STATE_PENDING
	if how == 2 {
		select {
		case <-s.ctx.Done():
		case <-time.After(timeout * 3 / 8):
		}
		begun := time.Now()
		x, reason := s.vote(0, id, v1.Vote_VOTE_APPROVE)
		if s.over || reason == "ALREADY_DECIDED" || x.GetState() != v1.ApprovalState_APPROVAL_STATE_APPROVED {
			return
		}
		// After a yes it has as long again.
		s.wrong(s.tries == 1 && time.Since(begun) < timeout/20 && x.ExpiresIn.AsDuration() < timeout*3/4, "it has %v to come back, of %v", x.ExpiresIn.AsDuration(), timeout)
		from = x.State
	}
	for range 2 * asks {
		x := get(2 * time.Second)
		if s.over {
			return
		}
		if x.State == from {
			select {
			case <-s.ctx.Done():
			case <-time.After(300 * time.Millisecond):
			}
			continue
		}
		if how != 1 && x.State == v1.ApprovalState_APPROVAL_STATE_USED {
			return // the call came back by an attempt that was late
		}
		if how == 0 && x.State == v1.ApprovalState_APPROVAL_STATE_APPROVED {
			s.wrong(!x.ByTimeout || len(x.Ballots) > 0 || x.OnTimeout != v1.OnTimeout_ON_TIMEOUT_ALLOW, "the approval is %v", x)
			res := s.begin(req)
			if s.over || res.Outcome == v1.Outcome_OUTCOME_APPROVAL_EXPIRED {
				return // it came back late
			}
			s.outcome(res, v1.Outcome_OUTCOME_ADMITTED)
			a := res.Approval
			s.wrong(a != nil && (a.State != v1.ApprovalState_APPROVAL_STATE_USED || a.DecidedBy != "timeout" || a.Votes != 0), "the approval is %v", a)
			return
		}
		s.wrong(x.State != v1.ApprovalState_APPROVAL_STATE_EXPIRED || x.ByTimeout && how != 0 || x.ExpiresIn != nil || x.AgentId != s.own, "the approval is %v", x)
		res := s.begin(req)
		s.outcome(res, v1.Outcome_OUTCOME_APPROVAL_EXPIRED)
		s.wrong(!s.over && res.Approval.GetState() != v1.ApprovalState_APPROVAL_STATE_EXPIRED, "it is answered by %v", res)
		s.reads("the answer", res.GetDecision(), approvalFirst, noApproval, "Approval expired: nobody decided in time, or the call did not come back in time")
		want := &account{tools: map[string]int32{}}
		want.Attempts = 1
		s.see(want, v1.SessionState_SESSION_STATE_OPEN)
		return
	}
	s.over = true // time stands still
}

// narrowest has several standing approvals for one call: the narrowest is used first, what
// is denied is not let through by any, and a call of another server or kind neither.
func narrowest(s *script) {
	if !s.asking("required: 1") {
		return
	}
	const session, agent, policy = v1.StandingScope_STANDING_SCOPE_SESSION, v1.StandingScope_STANDING_SCOPE_AGENT, v1.StandingScope_STANDING_SCOPE_POLICY
	five := &structpb.Struct{Fields: map[string]*structpb.Value{"amount": structpb.NewNumberValue(5)}}
	put := func(scope v1.StandingScope, exact bool, label string, uses int32) string {
		req := &v1.PutStandingRequest{Scope: scope, Name: s.own, Tool: "pay", ServerLabel: label, Uses: uses, Expiry: durationpb.New(time.Hour), RequestId: s.id(), Client: s.own}
		if exact {
			req.Arguments = five
		}
		to := s.rng.IntN(2)
		res, _ := done(s, "put a standing approval", func(ctx context.Context, _ *node) (*v1.PutStandingResponse, error) {
			return s.person(to).PutStanding(ctx, req)
		})
		if x := res.GetStanding(); !s.over {
			s.wrong(x.GetId() == "" || x.Uses != uses || x.Scope != scope || x.ServerLabel != label || (x.Arguments != nil) != exact || exact && *x.Arguments != `{"amount":5}`, "it is %v", x)
		}
		return res.GetStanding().GetId()
	}
	var order []string
	for _, scope := range []v1.StandingScope{session, agent, policy} {
		order = append(order, put(scope, true, "", 1), put(scope, false, "", 1))
	}
	if s.over {
		return
	}
	left := map[string]int32{}
	for _, id := range order {
		left[id] = 1
	}
	s.wrong(len(left) != len(order), "ids are %v", order)
	see := func() {
		scopes := []v1.StandingScope{session, agent, policy}
		of := scopes[s.rng.IntN(len(scopes))]
		got := map[string]int32{}
		found(s, "list standing approvals", func(ctx context.Context, _ *node, token string) ([]*v1.Standing, string, error) {
			res, err := s.person(s.rng.IntN(2)).ListStanding(ctx, &v1.ListStandingRequest{Scope: of, Name: s.own, PageSize: 1, PageToken: token})
			return res.GetStandings(), res.GetNextPageToken(), err
		}, func(x *v1.Standing) bool {
			s.wrong(x.Scope != of || x.Name != s.own || x.Tool != "pay", "it lists another: %v", x)
			got[x.Id] = x.Uses
			return true
		})
		if s.over {
			return
		}
		for i, id := range order {
			uses, there := got[id]
			n := left[id]
			s.wrong(scopes[i/2] == of && (there != (n > 0) || uses != n), "of %v standing approval %d has %d uses left, want %d", of, i, uses, n)
		}
	}
	try := func(arguments, label string, want v1.Outcome) *v1.BeginCallResponse {
		req := s.call("pay")
		if req.ArgumentsJson, req.ServerLabel = arguments, label; s.rng.IntN(2) == 0 && arguments == `{"amount": 5}` {
			req.ArgumentsJson, req.Arguments = "", five
		}
		res := s.begin(req)
		s.outcome(res, want)
		return res
	}
	const admitted, asked, denied = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, v1.Outcome_OUTCOME_DENIED_BY_POLICY
	see()
	try(`{"amount": 501}`, "", denied)
	try(`{"amount": 5}`, "shop", asked)
	model := s.call("") // which is asked about each time
	model.Kind = v1.Kind_KIND_MODEL
	s.outcome(s.begin(model), asked)
	see()
	// One that is for no more calls is made anew.
	if again := put(session, true, "", 2); !s.over {
		same(s, "the id of what is made anew", again, order[0])
		left[order[0]] = 2
	}
	for i := 0; i < len(order); {
		if res := try(`{"amount": 5}`, "", admitted); !s.over {
			s.wrong(res.Approval != nil && res.Approval.State == v1.ApprovalState_APPROVAL_STATE_PENDING, "the approval is %v", res.Approval)
		}
		if s.over {
			return
		}
		if left[order[i]]--; left[order[i]] == 0 {
			i++
		}
		see()
	}
	try(`{"amount": 5}`, "", asked)
	gone := &v1.DeleteStandingRequest{Id: order[0], RequestId: s.id(), Client: s.own}
	if _, reason, ok := told(s, "delete what is used up", func(ctx context.Context, _ *node) (*v1.DeleteStandingResponse, error) {
		return s.person(0).DeleteStanding(ctx, gone)
	}); ok {
		same(s, "the reason", reason, "NOT_FOUND")
	}
	put(agent, false, "shop", 0)
	try(`{"amount": 5}`, "", asked)
	for range 2 {
		try(`{"amount": 7}`, "shop", admitted)
	}
	// As text numbers are compared as they were written, and keys in order.
	text := &v1.PutStandingRequest{
		Scope: session, Name: s.own, Tool: "pay", ArgumentsJson: `{"b": 1, "a": 5.0}`, Expiry: durationpb.New(time.Hour), RequestId: s.id(), Client: s.own,
	}
	done(s, "put a standing approval", func(ctx context.Context, _ *node) (*v1.PutStandingResponse, error) {
		return s.person(0).PutStanding(ctx, text)
	})
	try(`{"a": 5, "b": 1}`, "", asked)
	try(`{"a":5.0,"b":1}`, "", admitted)
	try(`{"a":5.0,"b":1,"c":2}`, "", asked)
}
