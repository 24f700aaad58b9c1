package alone

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Operations that are sent together.

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
