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

// Limits that one client reaches by itself.

// long is a time that no script lasts, whatever stands still meanwhile.
var long = durationpb.New(10 * time.Minute)

// slots takes all slots of a pool, is refused more, and gives them back in several ways.
func slots(s *script) {
	none := int32(0)
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 3, BackpressureThreshold: 2, QueueLimit: &none, RequestId: s.id(), Client: s.own}
	made, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) })
	if !ok {
		return
	}
	type held struct {
		id     string
		weight int32
		token  uint64
	}
	var all []held
	last := made.Pool.GetLastToken()
	// see holds the pool, and who holds its slots, to what has to be.
	see := func() {
		res, ok := done(s, "list slots", func(ctx context.Context, n *node) (*v1.ListSlotsResponse, error) {
			return n.slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: s.own})
		})
		if !ok {
			return
		}
		use := int32(0)
		for _, h := range all {
			use += h.weight
		}
		s.alike("the pool", res.Pool, &v1.Pool{Pool: s.own, Slots: 3, BackpressureThreshold: 2, InUse: use, LastToken: last})
		s.wrong(len(res.Slots) != len(all) || len(res.Waiters) > 0, "slots are %v and waiters %v, want %v", res.Slots, res.Waiters, all)
		for _, h := range all {
			times := 0
			for _, x := range res.Slots {
				if x.SlotId != h.id {
					continue
				}
				times++
				left := x.Ttl.AsDuration()
				s.wrong(x.Holder != s.own || x.Token != h.token || x.Weight != h.weight || x.Label != "label "+h.id || left <= 0 || left > long.AsDuration(),
					"a slot is %v, want %v", x, h)
			}
			same(s, "times that a slot is listed", times, 1)
		}
	}
	acquire := func(id string, weight int32) *v1.AcquireSlotResponse {
		req := &v1.AcquireSlotRequest{Pool: s.own, SlotId: id, Client: s.own, Weight: weight, Ttl: long, Label: "label " + id}
		res, _ := done(s, "acquire "+id, func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
			return n.slots.AcquireSlot(ctx, req)
		})
		return res
	}
	granted := func(id string, weight int32, level v1.Level) {
		res := acquire(id, weight)
		if s.over {
			return
		}
		same(s, "the outcome", res.Outcome, v1.Outcome_OUTCOME_ADMITTED)
		s.wrong(res.Token <= last, "the token is %d, and %d was given out before", res.Token, last)
		same(s, "the pressure", res.Pressure.GetLevel(), level)
		all, last = append(all, held{id, weight, res.Token}), res.Token
	}
	release := func(id string, token uint64) v1.Outcome {
		req := &v1.ReleaseSlotRequest{Pool: s.own, SlotId: id, Client: s.own, Token: token}
		res, _ := done(s, "release "+id, func(ctx context.Context, n *node) (*v1.ReleaseSlotResponse, error) {
			return n.slots.ReleaseSlot(ctx, req)
		})
		return res.GetOutcome()
	}
	a, b := s.id(), s.id()
	granted(a, 1, v1.Level_LEVEL_NONE)
	see()
	granted(b, 2, v1.Level_LEVEL_PRESSED)
	see()
	if res := acquire(s.id(), 1); !s.over {
		s.wrong(res.Outcome != v1.Outcome_OUTCOME_CONCURRENCY_LIMIT && res.Outcome != v1.Outcome_OUTCOME_QUEUE_FULL, "more than all was given out: %v", res)
	}
	if res := acquire(a, 1); !s.over {
		s.wrong(res.Outcome != v1.Outcome_OUTCOME_ADMITTED || res.Token != all[0].token, "the same id has another answer: %v, want %v", res, all[0])
	}
	see()
	renew := &v1.RenewSlotsRequest{Client: s.own, Ttl: long, Slots: []*v1.SlotRef{
		{Pool: s.own, SlotId: a, Token: last - 1}, {Pool: s.own, SlotId: b, Token: last + 7}, {Pool: s.own, SlotId: b, Token: last},
	}}
	if !s.over {
		renew.Slots[0].Token = all[0].token
	}
	if res, ok := done(s, "renew", func(ctx context.Context, n *node) (*v1.RenewSlotsResponse, error) {
		return n.slots.RenewSlots(ctx, renew)
	}); ok {
		s.wrong(len(res.Results) != 3 || res.Results[0].Outcome != v1.Outcome_OUTCOME_RENEWED || res.Results[1].Outcome != v1.Outcome_OUTCOME_FENCED ||
			res.Results[2].Outcome != v1.Outcome_OUTCOME_RENEWED, "results are %v", res.Results)
	}
	if s.over {
		return
	}
	same(s, "the outcome with another token", release(a, last+9), v1.Outcome_OUTCOME_FENCED)
	see()
	if o := release(a, all[0].token); o != v1.Outcome_OUTCOME_ALREADY_RELEASED { // as it is told where the first answer was lost, if only between nodes
		same(s, "the outcome", o, v1.Outcome_OUTCOME_RELEASED)
	}
	token := all[0].token
	all = all[1:]
	see()
	same(s, "the outcome once more", release(a, token), v1.Outcome_OUTCOME_ALREADY_RELEASED)
	granted(s.id(), 1, v1.Level_LEVEL_PRESSED)
	force := &v1.ForceReleaseRequest{Pool: s.own, SlotId: b, RequestId: s.id(), Client: s.own + "-other", HolderClient: s.own}
	if res, ok := done(s, "force "+b, func(ctx context.Context, n *node) (*v1.ForceReleaseResponse, error) {
		return n.slots.ForceRelease(ctx, force)
	}); ok {
		same(s, "the outcome", res.Outcome, v1.Outcome_OUTCOME_RELEASED)
		all = all[1:]
	}
	see()
	remove := &v1.DeletePoolRequest{Pool: s.own, RequestId: s.id(), Client: s.own}
	if _, reason, ok := told(s, "delete the pool in use", func(ctx context.Context, n *node) (*v1.DeletePoolResponse, error) {
		return n.slots.DeletePool(ctx, remove)
	}); ok {
		same(s, "the reason", reason, "POOL_IN_USE")
	}
	see()
	by := &v1.DeletePoolRequest{Pool: s.own, Force: true, RequestId: s.id(), Client: s.own}
	done(s, "delete the pool by force", func(ctx context.Context, n *node) (*v1.DeletePoolResponse, error) { return n.slots.DeletePool(ctx, by) })
	absent(s, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
		return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: s.own})
	})
}

// take spends all of a rate whose window outlasts the script.
func take(s *script) {
	none := int32(0)
	req := &v1.PutRateRequest{Rate: s.own, Limit: 5, Per: durationpb.New(24 * time.Hour), QueueLimit: &none, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return n.limits.PutRate(ctx, req) }); !ok {
		return
	}
	used := int32(0)
	spend := func(id string, cost int32, again bool) {
		req := &v1.TakeRateRequest{Rate: s.own, Client: s.own, RequestId: id, Cost: cost}
		res, ok := done(s, "take", func(ctx context.Context, n *node) (*v1.TakeRateResponse, error) { return n.limits.TakeRate(ctx, req) })
		if !ok {
			return
		}
		want := v1.Outcome_OUTCOME_ADMITTED
		switch {
		case again:
		case used+cost > 5:
			want = v1.Outcome_OUTCOME_RATE_LIMITED
			s.wrong(res.RetryAfter.AsDuration() <= 23*time.Hour, "there is room in %v", res.RetryAfter.AsDuration())
		default:
			used += cost
		}
		same(s, "the outcome", res.Outcome, want)
		got, ok := done(s, "get the rate", func(ctx context.Context, n *node) (*v1.GetRateResponse, error) {
			return n.limits.GetRate(ctx, &v1.GetRateRequest{Rate: s.own})
		})
		if ok {
			same(s, "what is used", got.Rate.Used, used)
			same(s, "who waits", got.Rate.Waiting, 0)
		}
	}
	first := s.id()
	spend(first, 2, false)
	spend(s.id(), 4, false)
	spend(s.id(), 3, false)
	spend(first, 2, true)
	spend(s.id(), 1, false)
}

// spend charges calls, and bills, to a budget and the one above it.
func spend(s *script) {
	root, child := s.own+"-root", s.own+"-child"
	put := func(b *v1.PutBudgetRequest) {
		b.RequestId, b.Client = s.id(), s.own
		done(s, "put "+b.Budget, func(ctx context.Context, n *node) (*v1.PutBudgetResponse, error) { return n.limits.PutBudget(ctx, b) })
	}
	put(&v1.PutBudgetRequest{Budget: root, Amount: "100"})
	put(&v1.PutBudgetRequest{Budget: child, Parent: root, Amount: "10"})
	see := func(used, left, ofRoot string) {
		whole := &v1.Budget{Budget: root, Amount: "100", Left: ofRoot, Depth: 1, Children: 1}
		for _, want := range []*v1.Budget{{Budget: child, Parent: root, Amount: "10", Used: used, Left: left, Depth: 2}, whole} {
			res, ok := done(s, "get "+want.Budget, func(ctx context.Context, n *node) (*v1.GetBudgetResponse, error) {
				return n.limits.GetBudget(ctx, &v1.GetBudgetRequest{Budget: want.Budget})
			})
			if ok {
				want.Share = res.Budget.Share // it follows from the others
				if want == whole {
					want.Used = res.Budget.Used // likewise
				}
				s.alike("the budget", res.Budget, want)
			}
		}
	}
	see("0", "10", "100")
	adjust := func(by string) {
		req := &v1.AdjustBudgetRequest{Budget: child, By: by, RequestId: s.id(), Client: s.own}
		done(s, "adjust by "+by, func(ctx context.Context, n *node) (*v1.AdjustBudgetResponse, error) {
			return n.limits.AdjustBudget(ctx, req)
		})
	}
	adjust("2.5")
	see("2.5", "7.5", "97.5")
	adjust("-1")
	see("1.5", "8.5", "98.5")
	if !s.policy("max_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	begin := func(amount string) (string, *v1.BeginCallResponse) {
		req := s.call("t")
		req.Budgets = []*v1.BudgetAmount{{Budget: child, Amount: amount}}
		return req.CallId, s.begin(req)
	}
	if _, res := begin("9"); !s.over {
		same(s, "the outcome", res.Outcome, v1.Outcome_OUTCOME_BUDGET_EXCEEDED)
		s.alike("what was left", res.Budget, &v1.BudgetAmount{Budget: child, Amount: "8.5"})
	}
	see("1.5", "8.5", "98.5")
	id, res := begin("8")
	s.outcome(res, v1.Outcome_OUTCOME_ADMITTED)
	see("9.5", "0.5", "90.5")
	s.end(&v1.EndCallRequest{CallId: id, Status: v1.Status_STATUS_SUCCEEDED, Spent: []*v1.BudgetAmount{{Budget: child, Amount: "3.25"}}})
	see("4.75", "5.25", "95.25")
	id, res = begin("1")
	s.outcome(res, v1.Outcome_OUTCOME_ADMITTED)
	s.end(&v1.EndCallRequest{CallId: id, Status: v1.Status_STATUS_FAILED})
	see("5.75", "4.25", "94.25")
	// What was charged to a budget that is gone is no matter of one that is made anew.
	id, res = begin("1")
	s.outcome(res, v1.Outcome_OUTCOME_ADMITTED)
	gone := &v1.DeleteBudgetRequest{Budget: child, RequestId: s.id(), Client: s.own}
	done(s, "delete "+child, func(ctx context.Context, n *node) (*v1.DeleteBudgetResponse, error) {
		return n.limits.DeleteBudget(ctx, gone)
	})
	put(&v1.PutBudgetRequest{Budget: child, Parent: root, Amount: "10"})
	adjust("2")
	see("2", "8", "91.25")
	s.end(&v1.EndCallRequest{CallId: id, Status: v1.Status_STATUS_SUCCEEDED, Spent: []*v1.BudgetAmount{{Budget: child, Amount: "3.5"}}})
	see("2", "8", "88.75")
	remove := &v1.DeleteBudgetRequest{Budget: root, RequestId: s.id(), Client: s.own}
	if _, reason, ok := told(s, "delete the root", func(ctx context.Context, n *node) (*v1.DeleteBudgetResponse, error) {
		return n.limits.DeleteBudget(ctx, remove)
	}); ok {
		same(s, "the reason", reason, "BUDGET_HAS_CHILDREN")
	}
	// A policy charges beside what a call names itself, also of the same budget.
	both := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{{
		Path: "limits.yaml", Content: "name: " + s.own + "\nmax_tool_calls: 100\nbudgets: [{budget: " + child + ", amount: 1.5}]\n",
	}}}
	if _, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, both)
	}); !ok {
		return
	}
	charging := s.own + "-charging"
	create := &v1.CreateSessionRequest{SessionId: charging, AgentId: s.own, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}}
	if _, ok := done(s, "create another session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
		return n.sessions.CreateSession(ctx, create)
	}); !ok {
		return
	}
	for _, x := range []struct{ names, used, left, ofRoot string }{{"", "3.5", "6.5", "87.25"}, {"2", "7", "3", "83.75"}, {"0", "8.5", "1.5", "82.25"}} {
		req := s.call("t")
		if req.SessionId = charging; x.names != "" {
			req.Budgets = []*v1.BudgetAmount{{Budget: child, Amount: x.names}}
		}
		s.outcome(s.begin(req), v1.Outcome_OUTCOME_ADMITTED)
		see(x.used, x.left, x.ofRoot)
	}
	for _, name := range []string{child, root} {
		req := &v1.DeleteBudgetRequest{Budget: name, RequestId: s.id(), Client: s.own}
		done(s, "delete "+name, func(ctx context.Context, n *node) (*v1.DeleteBudgetResponse, error) {
			return n.limits.DeleteBudget(ctx, req)
		})
	}
}

// charged spends the tokens of calls at a rate, which is held to what they used when they
// end, and a number of its own at another.
func charged(s *script) {
	none := int32(0)
	other := s.own + "-calls"
	for name, limit := range map[string]int32{s.own: 1000, other: 100} {
		req := &v1.PutRateRequest{Rate: name, Limit: limit, Per: durationpb.New(24 * time.Hour), QueueLimit: &none, RequestId: s.id(), Client: s.own}
		if _, ok := done(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return n.limits.PutRate(ctx, req) }); !ok {
			return
		}
	}
	if !s.policy("max_tool_calls: 100\nmax_tokens: 1000\n") || !s.session(nil) {
		return
	}
	used, calls := int32(0), int32(0)
	see := func() {
		for name, want := range map[string]int32{s.own: used, other: calls} {
			got, ok := done(s, "get the rate", func(ctx context.Context, n *node) (*v1.GetRateResponse, error) {
				return n.limits.GetRate(ctx, &v1.GetRateRequest{Rate: name})
			})
			if ok {
				same(s, "what is used of "+name, got.Rate.Used, want)
			}
		}
	}
	begin := func(tokens int64, admitted bool) string {
		req := s.call("one")
		req.Tokens, req.Rates = tokens, []*v1.RateWant{{Rate: other, Cost: 2}, {Rate: s.own, By: v1.Cost_COST_TOKENS}}
		res := s.begin(req)
		if admitted {
			s.outcome(res, v1.Outcome_OUTCOME_ADMITTED)
			used, calls = used+max(1, int32(tokens)), calls+2
		} else if s.outcome(res, v1.Outcome_OUTCOME_RATE_LIMITED); !s.over {
			same(s, "the rate", res.Rate, s.own)
		}
		see()
		return req.CallId
	}
	end := func(id string, tokens *int64, by int32) {
		status := []v1.Status{v1.Status_STATUS_SUCCEEDED, v1.Status_STATUS_FAILED, v1.Status_STATUS_CANCELLED}[s.rng.IntN(3)]
		s.end(&v1.EndCallRequest{CallId: id, Status: status, Tokens: tokens})
		used += by
		see()
	}
	see()
	a := begin(900, true)
	begin(200, false)
	end(a, proto.Int64(300), -600)
	b := begin(0, true)
	a = begin(600, true)
	end(b, nil, 0) // it has cost what was said
	c := begin(90, true)
	end(c, proto.Int64(0), -90) // it has cost nothing
	end(a, proto.Int64(850), 250)
	begin(0, false)
}

// holds takes slots of two pools with each call, all of them or none, and has one taken
// away.
func holds(s *script) {
	none := int32(0)
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 3, QueueLimit: &none, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	if !s.policy("max_tool_calls: 100\nmax_concurrent: 2\n") || !s.session(nil) {
		return
	}
	type held struct {
		tokens map[string]uint64
		weight int32
	}
	of := "policy/" + s.own
	all, last := map[string]held{}, map[string]uint64{}
	see := func() {
		for _, name := range []string{s.own, of} {
			res, ok := done(s, "list slots of "+name, func(ctx context.Context, n *node) (*v1.ListSlotsResponse, error) {
				return n.slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: name})
			})
			if !ok {
				return
			}
			sum := int32(0)
			for _, x := range res.Slots {
				h, known := all[x.SlotId]
				weight := h.weight
				if name == of {
					weight = 1
				}
				sum += weight
				// Of a session that cannot be read it has neither the agent nor the tool.
				s.wrong(!known || x.SessionId != s.own || x.Holder != s.own && x.Holder != "" || x.Tool != "one" && x.Tool != "" || x.Token != h.tokens[name] || x.Weight != weight, "a slot is %v, want %v", x, h)
			}
			s.wrong(len(res.Slots) != len(all) || len(res.Waiters) > 0 || res.Pool.InUse != sum, "slots of %v are %v, want %v", res.Pool, res.Slots, all)
		}
	}
	begin := func(weight int32, want ...v1.Outcome) string {
		req := s.call("one")
		req.Pools = []*v1.Want{{Pool: s.own, Weight: weight}}
		res := s.begin(req)
		if s.over {
			return ""
		}
		s.wrong(!slices.Contains(want, res.Outcome), "the outcome is %v, want %v", res, want)
		if res.Outcome == v1.Outcome_OUTCOME_ADMITTED {
			h := held{map[string]uint64{}, weight}
			for _, g := range res.Grants {
				s.wrong(g.Token <= last[g.Pool], "the grants are %v, and there were %v", res.Grants, last)
				h.tokens[g.Pool], last[g.Pool] = g.Token, g.Token
			}
			s.wrong(len(res.Grants) != 2 || len(h.tokens) != 2, "the grants are %v", res.Grants)
			all[req.CallId] = h
		}
		see()
		return req.CallId
	}
	const admitted, full, queue = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT, v1.Outcome_OUTCOME_QUEUE_FULL
	a := begin(2, admitted)
	begin(2, full, queue)
	b := begin(1, admitted)
	begin(1, full, queue)
	force := &v1.ForceReleaseRequest{SessionId: s.own, SlotId: a, RequestId: s.id(), Client: s.own}
	if res, ok := done(s, "force the call", func(ctx context.Context, n *node) (*v1.ForceReleaseResponse, error) {
		return n.slots.ForceRelease(ctx, force)
	}); ok {
		same(s, "the outcome", res.Outcome, v1.Outcome_OUTCOME_RELEASED)
	}
	delete(all, a)
	see()
	end := &v1.EndCallRequest{SessionId: s.own, CallId: a, Status: v1.Status_STATUS_SUCCEEDED}
	if res, ok := done(s, "end what was forced", func(ctx context.Context, n *node) (*v1.EndCallResponse, error) { return n.calls.EndCall(ctx, end) }); ok {
		same(s, "the outcome", res.Outcome, v1.Outcome_OUTCOME_LEASE_LOST)
	}
	begin(2, admitted)
	s.end(&v1.EndCallRequest{CallId: b, Status: v1.Status_STATUS_SUCCEEDED})
	delete(all, b)
	see()
	want := &account{tools: map[string]int32{"one": 3}, open: slices.Collect(maps.Keys(all))}
	want.Attempts, want.Calls, want.Executions = 5, 3, 2
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
}
