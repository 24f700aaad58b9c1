package alone

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// How refusals by count read: their category, what an end user may be shown, and the reason.

// A keptOut is a call that a limit keeps out.
type keptOut struct {
	set                      func(req *v1.BeginCallRequest, name string) // what the call asks for
	outcome                  v1.Outcome
	category, public, reason string // NAME is the name of the policy and of its session
	evaluated                bool   // Evaluate says so, too
}

// kindOf makes a call one of a kind.
func kindOf(kind v1.Kind, tool string) func(*v1.BeginCallRequest, string) {
	return func(req *v1.BeginCallRequest, _ string) { req.Kind, req.Tool = kind, tool }
}

func inPool(req *v1.BeginCallRequest, name string) { req.Pools = []*v1.Want{{Pool: name}} }

func atRate(req *v1.BeginCallRequest, name string) { req.Rates = []*v1.RateWant{{Rate: name}} }

func ofBudget(amount string) func(*v1.BeginCallRequest, string) {
	return func(req *v1.BeginCallRequest, name string) {
		req.Budgets = []*v1.BudgetAmount{{Budget: name, Amount: amount}}
	}
}

func andWaits(set func(*v1.BeginCallRequest, string)) func(*v1.BeginCallRequest, string) {
	return func(req *v1.BeginCallRequest, name string) {
		set(req, name)
		req.Wait = durationpb.New(300 * time.Millisecond)
	}
}

func plainCall(*v1.BeginCallRequest, string) {}

const (
	tooMany = "Tool-call limit exceeded."
	noRoom  = "Too many calls are running."
)

// bounded are policies, a call under each that is admitted before, whether that fails, and what
// is refused behind it.
var bounded = []struct {
	limits string
	before func(req *v1.BeginCallRequest, name string)
	fails  bool
	then   []keptOut
}{
	{"max_attempts: 1\n", plainCall, false, []keptOut{
		{plainCall, v1.Outcome_OUTCOME_ATTEMPT_LIMIT, "max_attempts", "Attempt limit exceeded.", "Attempt limit reached (1). Agent may be stuck in a retry loop. Stop and reassess.", true},
	}},
	{"max_tool_calls: 1\n", plainCall, false, []keptOut{
		{plainCall, v1.Outcome_OUTCOME_CALL_LIMIT, "max_tool_calls", tooMany, "Max tool calls exceeded (1)", true},
		{kindOf(v1.Kind_KIND_MODEL, ""), v1.Outcome_OUTCOME_CALL_LIMIT, "max_tool_calls", tooMany, "Max tool calls exceeded (1)", false},
	}},
	{"max_calls_per_tool: {one: 1}\n", plainCall, false, []keptOut{
		{plainCall, v1.Outcome_OUTCOME_TOOL_LIMIT, "max_calls_per_tool", tooMany, "Per-tool limit: one called 1 times (limit: 1).", true},
	}},
	{"max_model_calls: 0\nmax_agent_calls: 0\nmax_handoffs: 0\nmax_sampling_requests: 1\n", kindOf(v1.Kind_KIND_SAMPLING, "one"), false, []keptOut{
		{kindOf(v1.Kind_KIND_MODEL, ""), v1.Outcome_OUTCOME_KIND_LIMIT, "max_model_calls", "Model-call limit exceeded.", "Max model calls exceeded (0)", false},
		{kindOf(v1.Kind_KIND_AGENT, ""), v1.Outcome_OUTCOME_KIND_LIMIT, "max_agent_calls", "Agent-call limit exceeded.", "Max agent calls exceeded (0)", false},
		{kindOf(v1.Kind_KIND_HANDOFF, ""), v1.Outcome_OUTCOME_KIND_LIMIT, "max_handoffs", "Handoff limit exceeded.", "Max handoffs exceeded (0)", false},
		{kindOf(v1.Kind_KIND_SAMPLING, "one"), v1.Outcome_OUTCOME_KIND_LIMIT, "max_sampling_requests", "Sampling limit exceeded.", `Max sampling requests of server "one" exceeded (1)`, false},
	}},
	{"max_consecutive_failures: 1\nbreaker_reset: 1h\n", plainCall, true, []keptOut{
		{
			plainCall, v1.Outcome_OUTCOME_BREAKER_OPEN, "max_consecutive_failures", "Too many calls have failed.",
			"1 calls in a row failed; none is admitted until one that is tried after 1h0m0s succeeds", true,
		},
	}},
	{"max_tokens: 10\n", plainCall, false, []keptOut{
		{func(req *v1.BeginCallRequest, _ string) { req.Tokens = 11 }, v1.Outcome_OUTCOME_TOKEN_LIMIT, "max_tokens", "Token limit exceeded.", "Max tokens exceeded (10)", false},
	}},
	{"max_tool_calls: 10\n", ofBudget("7.25"), false, []keptOut{
		{ofBudget("3"), v1.Outcome_OUTCOME_BUDGET_EXCEEDED, "budget", "Budget exceeded.", "Budget NAME exceeded: 2.75 is left of it", false},
	}},
	{"max_tool_calls: 10\n", atRate, false, []keptOut{
		{atRate, v1.Outcome_OUTCOME_RATE_LIMITED, "rate_limit", "Too many calls at once; try again later.", "Rate limit NAME reached", false},
	}},
	{"max_tool_calls: 10\n", inPool, false, []keptOut{
		{inPool, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT, "max_concurrent", noRoom, "Max concurrency reached in one of the pools policy/NAME, NAME", false},
		{andWaits(inPool), v1.Outcome_OUTCOME_QUEUE_FULL, "max_concurrent", "Too many calls are waiting.", "Max concurrency reached in one of the pools policy/NAME, NAME, and its queue is full", false},
	}},
	{"max_concurrent: 1\n", plainCall, false, []keptOut{
		{plainCall, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT, "max_concurrent", noRoom, "Max concurrency reached (1)", false},
		{andWaits(plainCall), v1.Outcome_OUTCOME_WAIT_TIMEOUT, "max_concurrent", noRoom, "Max concurrency reached (1); no slot became free while the call waited", false},
	}},
}

// reads holds a decision to the words of a refusal.
func (s *script) reads(who string, d *v1.Decision, category, public, reason string) {
	s.wrong(d.GetAllowed() || d.GetAction() != "deny" || d.GetMatchedRule() != "" || d.GetSource() != "" || d.GetCategory() != category || d.GetPublicMessage() != public || d.GetReason() != reason,
		"%s says {%v}, want %s, %q and %q", who, d, category, public, reason)
}

// refusals reaches some limits, and has each refusal say what it is: who evaluates the call
// before is told the same.
func refusals(s *script) {
	for i, of := range s.rng.Perm(len(bounded))[:4] {
		x, name := &bounded[of], fmt.Sprintf("%s-%d", s.own, i)
		if !s.room(name) || !s.under(name, limitsOf(name, x.limits)) {
			return
		}
		first := s.call("one")
		first.SessionId = name
		x.before(first, name)
		s.outcome(s.begin(first), v1.Outcome_OUTCOME_ADMITTED)
		if x.fails {
			end := &v1.EndCallRequest{SessionId: name, CallId: first.CallId, Status: v1.Status_STATUS_FAILED}
			done(s, "end", func(ctx context.Context, n *node) (*v1.EndCallResponse, error) { return n.calls.EndCall(ctx, end) })
		}
		for _, r := range x.then {
			if s.over {
				return
			}
			reason := strings.ReplaceAll(r.reason, "NAME", name)
			if r.evaluated {
				if would, ok := s.evaluated(&v1.EvaluateRequest{SessionId: name, Tool: "one"}, ""); ok {
					s.reads("Evaluate", would, r.category, r.public, reason)
				}
			}
			req := s.call("one")
			req.SessionId = name
			r.set(req, name)
			// By itself: in a batch a call that waits is answered before it has.
			res, ok := done(s, "begin "+req.Tool, func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) { return n.calls.BeginCall(ctx, req) })
			if !ok {
				return
			}
			if s.outcome(res, r.outcome); s.over {
				return
			}
			s.reads("the answer", res.Decision, r.category, r.public, reason)
			same(s, "the reason", res.Reason, reason)
		}
	}
	s.behindAll()
}

// limitsOf is limitsFile for limits that are to be reached.
func limitsOf(name, limits string) *v1.TextFile {
	return &v1.TextFile{Path: "limits.yaml", Content: "name: " + name + "\n" + limits}
}

// room puts a pool, a rate and a budget of a name.
func (s *script) room(name string) bool {
	none := int32(0)
	pool := &v1.PutPoolRequest{Pool: name, Slots: 1, QueueLimit: &none, RequestId: s.id(), Client: s.own}
	done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) })
	rate := &v1.PutRateRequest{Rate: name, Limit: 1, Per: durationpb.New(24 * time.Hour), QueueLimit: &none, RequestId: s.id(), Client: s.own}
	done(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return n.limits.PutRate(ctx, rate) })
	s.putBudget(&v1.PutBudgetRequest{Budget: name, Amount: "10"})
	return !s.over
}

// evaluated asks what would be said of a call, and holds it to the reason with which that is refused.
func (s *script) evaluated(req *v1.EvaluateRequest, want string) (d *v1.Decision, ok bool) {
	res, reason, ok := told(s, "evaluate", func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) { return n.policies.Evaluate(ctx, req) })
	s.wrong(ok && reason != want, "Evaluate of {%v} is refused as %q, want %q", req, reason, want)
	return res.GetDecision(), ok && reason == ""
}

// behindAll has a session whose calls are over, which is stopped and then killed: none of it is
// by a limit, and reads as what it is.
func (s *script) behindAll() {
	name := s.own + "-over"
	if s.over || !s.under(name, limitsFile(name, "")) {
		return
	}
	again := func(req *v1.BeginCallRequest, outcome v1.Outcome, category, public, reason string) {
		res := s.begin(req)
		if s.outcome(res, outcome); !s.over {
			s.reads("the answer", res.Decision, category, public, reason)
		}
	}
	begin := func() *v1.BeginCallRequest {
		req := s.call("one")
		req.SessionId = name
		s.outcome(s.begin(req), v1.Outcome_OUTCOME_ADMITTED)
		return req
	}
	ended, forced := begin(), begin()
	end := &v1.EndCallRequest{SessionId: name, CallId: ended.CallId, Status: v1.Status_STATUS_SUCCEEDED}
	done(s, "end", func(ctx context.Context, n *node) (*v1.EndCallResponse, error) { return n.calls.EndCall(ctx, end) })
	again(ended, v1.Outcome_OUTCOME_ALREADY_ENDED, "session", "The call has ended.", "This call has already ended; take a new callId for a new call")
	force := &v1.ForceReleaseRequest{SessionId: name, SlotId: forced.CallId, RequestId: s.id(), Client: s.own}
	done(s, "force the call", func(ctx context.Context, n *node) (*v1.ForceReleaseResponse, error) {
		return n.slots.ForceRelease(ctx, force)
	})
	again(forced, v1.Outcome_OUTCOME_LEASE_LOST, "session", "The call has lapsed.", "The lease of this call ran out; it was settled as unknown and counts as executed")
	s.evaluated(&v1.EvaluateRequest{SessionId: name, Tool: "one", AgentId: s.own}, "")
	s.evaluated(&v1.EvaluateRequest{SessionId: name, Tool: "one", AgentId: s.own + "-other"}, "INVALID_FIELD")
	s.evaluated(&v1.EvaluateRequest{SessionId: name, Tool: "one", Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: name}}}, "INVALID_FIELD")
	target := func(signal string) *v1.SignalRequest {
		return &v1.SignalRequest{Target: &v1.SignalRequest_SessionId{SessionId: name}, Signal: signal, Reason: "why " + signal}
	}
	next := s.call("one")
	next.SessionId = name
	s.send(target("STOP"))
	again(next, v1.Outcome_OUTCOME_STOPPED, "signal", "Work is stopped for now.", fmt.Sprintf("Stopped by a signal for sessionId %q (why STOP); nothing was counted, and the same id may be sent again", name))
	if s.rng.IntN(2) == 0 {
		s.send(target("KILL"))
		again(next, v1.Outcome_OUTCOME_SESSION_CLOSED, "signal", "The session was ended by an operator.", "killed: why KILL")
	} else {
		done(s, "close the session", func(ctx context.Context, n *node) (*v1.CloseSessionResponse, error) {
			return n.sessions.CloseSession(ctx, &v1.CloseSessionRequest{SessionId: name})
		})
		again(next, v1.Outcome_OUTCOME_SESSION_CLOSED, "session", "The session is closed.", "Session is closed; create a new one")
	}
	s.evaluated(&v1.EvaluateRequest{SessionId: name, Tool: "one"}, "SESSION_CLOSED")
}
