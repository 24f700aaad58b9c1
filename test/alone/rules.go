package alone

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What a policy says of calls.

// ruled makes calls under a policy with rules for all, rules of a folder, and checks of
// limits, and holds each answer to what decides it.
func ruled(s *script) {
	req := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{
		{Path: "limits.yaml", Content: "name: " + s.own + `
max_concurrent: 64
max_tool_calls: 100
max_tokens: 5000
allowed_tools: [search, read, mail, refund]
blocked_patterns: ["DROP TABLE", {pattern: '\b\d{16}\b', type: regex}]
`},
		{Path: "governance.yaml", Content: `name: all
rules:
  - {name: watched, condition: {field: tool_name, operator: eq, value: mail}, action: audit, priority: 10}
  - {name: large, condition: {field: arguments.amount, operator: gt, value: 500}, action: deny, priority: 100, message: too much}
  - {name: spent, condition: {field: tokens_used, operator: gte, value: 4000}, action: deny, priority: 90}
  - {name: odd, condition: {field: arguments.q, operator: matches, value: "^[0-9]+$"}, action: deny, priority: 20}
`},
		{Path: "refunds/governance.yaml", Content: `name: refunds
rules:
  - {name: managers, condition: {field: role, operator: in, value: [manager, owner]}, action: allow, priority: 50}
defaults: {action: deny}
`},
	}}
	if _, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, req)
	}); !ok || !s.session(nil) {
		return
	}
	const admitted, denied = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_DENIED_BY_POLICY
	type try struct {
		tool, arguments, context string
		want                     v1.Outcome
		rule, category           string
	}
	tries := []try{
		{"search", `{"q": "shoes"}`, `{}`, admitted, "", ""},
		{"search", `{"q": "17"}`, `{}`, denied, "odd", "policy_rule"},
		{"refund", `{"amount": 500}`, `{}`, admitted, "", ""},
		{"refund", `{"amount": 500.5}`, `{}`, denied, "large", "policy_rule"},
		{"mail", `{"to": "anna"}`, `{}`, admitted, "watched", ""},
		{"mail", `{"to": "anna", "amount": 501}`, `{}`, denied, "large", "policy_rule"},
		{"search", `{"q": "drop table x"}`, `{}`, denied, "", "blocked_pattern_tool"},
		{"search", `{"deep": {"in": ["4111111111111111"]}}`, `{}`, denied, "", "blocked_pattern_tool"},
		{"shell", `{}`, `{}`, denied, "", "not_allowed_tool"},
		{"search", `{}`, `{"confidence": 0.5}`, denied, "", "confidence_threshold"},
		{"search", `{}`, `{"confidence": 0.9}`, admitted, "", ""},
		{"read", `{}`, `{"path": "refunds/7.txt", "role": "clerk"}`, denied, "", "default_action"},
		{"read", `{}`, `{"path": "refunds/7.txt"}`, denied, "", "default_action"},
		{"read", `{}`, `{"path": "refunds/7.txt", "role": "owner"}`, admitted, "managers", ""},
		{"read", `{}`, `{"path": "other/7.txt", "role": "clerk"}`, admitted, "", ""},
		{"refund", `{"amount": 501}`, `{"path": "refunds/7.txt", "role": "owner"}`, denied, "large", "policy_rule"},
		{"read", `{}`, `{"path": "../refunds/7.txt", "role": "owner"}`, denied, "", "PATH_ESCAPE"},
		{"read", `{}`, `{"tokens_used": 9999}`, admitted, "", ""}, // it is the service that knows
	}
	s.rng.Shuffle(len(tries), func(i, j int) { tries[i], tries[j] = tries[j], tries[i] })
	begin := func(x try, tokens int64) string {
		req := s.call(x.tool)
		req.ArgumentsJson, req.ContextJson, req.Tokens = x.arguments, x.context, tokens
		res := s.begin(req)
		s.outcome(res, x.want)
		if s.over {
			return ""
		}
		d := res.Decision
		s.wrong(d.GetAllowed() != (x.want == admitted) || d.GetMatchedRule() != x.rule || x.want == denied && d.GetCategory() != x.category, "the decision on %v is %v", x, d)
		s.wrong(x.rule == "large" && res.Reason != "too much", "the reason is %q", res.Reason)
		return req.CallId
	}
	for _, x := range tries[:6] {
		begin(x, 0)
	}
	plain, over := try{"search", `{}`, `{}`, admitted, "", ""}, try{"search", `{}`, `{}`, denied, "spent", "policy_rule"}
	id := begin(plain, 4000)
	begin(over, 0)
	s.end(&v1.EndCallRequest{CallId: id, Status: v1.Status_STATUS_SUCCEEDED, Tokens: proto.Int64(3999)})
	begin(plain, 1)
	begin(over, 0)
}

// aged waits until a session is older than its policy lets it be.
func aged(s *script) {
	if !s.policy("max_tool_calls: 100\ntimeout_seconds: 2\n") {
		return
	}
	asked := time.Now()
	if !s.session(nil) {
		return
	}
	for range 3 * asks {
		res := s.begin(s.call("one"))
		if s.over {
			return
		}
		if age := time.Since(asked); res.Outcome != v1.Outcome_OUTCOME_ADMITTED {
			// The clock of a node may be the quicker one.
			s.wrong(age < 1500*time.Millisecond || res.Outcome != v1.Outcome_OUTCOME_SESSION_TIMEOUT && res.Decision.GetCategory() != "timeout", "after %v it is %v", age, res)
			s.wrong(s.begin(s.call("one")).GetOutcome() != res.Outcome, "it has become young again")
			return
		}
		select {
		case <-s.ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
	s.over = true // time stands still
}

// mixed sends operations of several kinds together: each has an answer of its own, with
// what was done by those before it.
func mixed(s *script) {
	none := int32(0)
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 2, QueueLimit: &none, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	rate := &v1.PutRateRequest{Rate: s.own, Limit: 3, Per: durationpb.New(24 * time.Hour), QueueLimit: &none, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return n.limits.PutRate(ctx, rate) }); !ok {
		return
	}
	if !s.policy("max_tool_calls: 100\nallowed_tools: [one]\n") || !s.session(nil) {
		return
	}
	call, bad := s.call("one"), s.call("two")
	call.Pools = []*v1.Want{{Pool: s.own}}
	slot := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long}
	take := &v1.TakeRateRequest{Rate: s.own, Client: s.own, RequestId: s.id(), Cost: 2}
	ops := []*v1.Operation{
		{Op: &v1.Operation_Begin{Begin: call}}, {Op: &v1.Operation_Begin{Begin: bad}}, {Op: &v1.Operation_Acquire{Acquire: slot}}, {Op: &v1.Operation_Take{Take: take}},
	}
	s.rng.Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
	tokens := map[string]uint64{}
	for _, r := range s.batch("begin, acquire and take", ops...) {
		switch ops[r.Tag-10].Op.(type) {
		case *v1.Operation_Begin:
			b := r.GetBegin()
			if ops[r.Tag-10].GetBegin() == bad {
				s.outcome(b, v1.Outcome_OUTCOME_DENIED_BY_POLICY)
				continue
			}
			s.outcome(b, v1.Outcome_OUTCOME_ADMITTED)
			for _, g := range b.GetGrants() {
				if g.Pool == s.own {
					tokens["call"] = g.Token
				}
			}
		case *v1.Operation_Acquire:
			a := r.GetAcquire()
			s.wrong(a.GetOutcome() != v1.Outcome_OUTCOME_ADMITTED, "the slot is %v", r)
			tokens["slot"] = a.GetToken()
		case *v1.Operation_Take:
			s.wrong(r.GetTake().GetOutcome() != v1.Outcome_OUTCOME_ADMITTED, "what is taken is %v", r)
		}
	}
	if s.over {
		return
	}
	s.wrong(tokens["call"] == 0 || tokens["slot"] == 0 || tokens["call"] == tokens["slot"], "tokens are %v", tokens)
	more := &v1.TakeRateRequest{Rate: s.own, Client: s.own, RequestId: s.id(), Cost: 2}
	renew := &v1.RenewSlotsRequest{Client: s.own, Ttl: long, Slots: []*v1.SlotRef{
		{Pool: s.own, SlotId: slot.SlotId, Token: tokens["slot"]}, {SessionId: s.own, SlotId: call.CallId, Token: tokens["call"]}, {Pool: s.own, SlotId: s.id(), Token: 1},
	}}
	full := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long}
	res := s.batch("take, renew and acquire", &v1.Operation{Op: &v1.Operation_Take{Take: more}}, &v1.Operation{Op: &v1.Operation_Renew{Renew: renew}}, &v1.Operation{Op: &v1.Operation_Acquire{Acquire: full}})
	if s.over {
		return
	}
	same(s, "what is taken", res[0].GetTake().GetOutcome(), v1.Outcome_OUTCOME_RATE_LIMITED)
	var outcomes []v1.Outcome
	for _, r := range res[1].GetRenew().GetResults() {
		outcomes = append(outcomes, r.Outcome)
	}
	if slices.Contains(outcomes, v1.Outcome_OUTCOME_UNSPECIFIED) { // the node could not look
		s.over = true
		return
	}
	s.wrong(len(outcomes) != 3 || outcomes[0] != v1.Outcome_OUTCOME_RENEWED || outcomes[1] != v1.Outcome_OUTCOME_RENEWED || outcomes[2] == v1.Outcome_OUTCOME_RENEWED, "what is renewed is %v", outcomes)
	o := res[2].GetAcquire().GetOutcome()
	s.wrong(o != v1.Outcome_OUTCOME_CONCURRENCY_LIMIT && o != v1.Outcome_OUTCOME_QUEUE_FULL, "more than all was given out: %v", res[2])
	end := &v1.EndCallRequest{SessionId: s.own, CallId: call.CallId, Status: v1.Status_STATUS_FAILED}
	release := &v1.ReleaseSlotRequest{Pool: s.own, SlotId: slot.SlotId, Client: s.own, Token: tokens["slot"]}
	res = s.batch("release and end", &v1.Operation{Op: &v1.Operation_Release{Release: release}}, &v1.Operation{Op: &v1.Operation_End{End: end}})
	if s.over {
		return
	}
	released, ended := res[0].GetRelease().GetOutcome(), res[1].GetEnd().GetOutcome()
	s.wrong(released != v1.Outcome_OUTCOME_RELEASED && released != v1.Outcome_OUTCOME_ALREADY_RELEASED || ended != v1.Outcome_OUTCOME_ENDED && ended != v1.Outcome_OUTCOME_ALREADY_ENDED, "they are %v", res)
	want := &account{tools: map[string]int32{"one": 1}}
	want.Attempts, want.Calls, want.Executions, want.Failures, want.ConsecutiveFailures = 2, 1, 1, 1, 1
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
	if got, ok := done(s, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
		return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: s.own})
	}); ok {
		s.wrong(got.Pool.InUse != 0 || got.Pool.LastToken != max(tokens["call"], tokens["slot"]), "the pool is %v", got.Pool)
	}
}
