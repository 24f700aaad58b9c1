package alone

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// An id stands for one request: with other content it is refused, whatever came of the first.

// A change makes another request of one that was answered.
type change[Q proto.Message] struct {
	what string
	make func(Q)
}

// others asks for what was answered before with one thing changed at a time, in turn.
func others[Q proto.Message, R any](s *script, step string, first Q, ask func(context.Context, *node, Q) (R, error), changes ...change[Q]) {
	for _, c := range changes {
		other := proto.CloneOf(first)
		c.make(other)
		if res, reason, ok := told(s, step+" with "+c.what, func(ctx context.Context, n *node) (R, error) { return ask(ctx, n, other) }); ok {
			s.wrong(reason != "ID_REUSED", "the id stands for another request, and the answer is {%v} (%s)", res, reason)
		}
	}
}

// reused begins a call, takes a slot and takes from a rate, and comes again under each id
// with another request: while it is held, when it is over, and where it was refused.
func reused(s *script) {
	other, limit := s.own+"-other", int32(100)
	for _, name := range []string{s.own, other} {
		pool := &v1.PutPoolRequest{Pool: name, Slots: limit, RequestId: s.id(), Client: s.own}
		if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
			return
		}
		rate := &v1.PutRateRequest{Rate: name, Limit: limit, Per: durationpb.New(time.Hour), RequestId: s.id(), Client: s.own}
		done(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return n.limits.PutRate(ctx, rate) })
		budget := &v1.PutBudgetRequest{Budget: name, Amount: "100", RequestId: s.id(), Client: s.own}
		done(s, "put a budget", func(ctx context.Context, n *node) (*v1.PutBudgetResponse, error) {
			return n.limits.PutBudget(ctx, budget)
		})
	}
	if !s.policy("max_tool_calls: 100\nmax_tokens: 1000\nallowed_tools: [one, two]\n") || !s.session(nil) {
		return
	}
	switch s.rng.IntN(3) {
	case 0:
		s.reusedCall(other)
	case 1:
		slot := &v1.AcquireSlotRequest{
			Pool: s.own, SlotId: s.id(), Client: s.own, Weight: 2, Ttl: long, MaxHold: durationpb.New(time.Hour), Priority: 3, Label: "label",
		}
		acquire := func(ctx context.Context, n *node, req *v1.AcquireSlotRequest) (*v1.AcquireSlotResponse, error) {
			return n.slots.AcquireSlot(ctx, req)
		}
		got, ok := done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) { return acquire(ctx, n, slot) })
		if !ok {
			return
		}
		type of = change[*v1.AcquireSlotRequest]
		all := []of{
			{"another pool", func(r *v1.AcquireSlotRequest) { r.Pool = other }}, {"another weight", func(r *v1.AcquireSlotRequest) { r.Weight = 1 }},
			{"another ttl", func(r *v1.AcquireSlotRequest) { r.Ttl = durationpb.New(time.Minute) }}, {"no ttl", func(r *v1.AcquireSlotRequest) { r.Ttl = nil }},
			{"another maxHold", func(r *v1.AcquireSlotRequest) { r.MaxHold = durationpb.New(2 * time.Hour) }}, {"no maxHold", func(r *v1.AcquireSlotRequest) { r.MaxHold = nil }},
			{"another priority", func(r *v1.AcquireSlotRequest) { r.Priority = 4 }}, {"another label", func(r *v1.AcquireSlotRequest) { r.Label = "" }},
		}
		others(s, "acquire", slot, acquire, all...)
		slot.Wait = durationpb.New(time.Second)
		if again, ok := done(s, "acquire with a wait", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) { return acquire(ctx, n, slot) }); ok {
			s.wrong(again.Outcome != v1.Outcome_OUTCOME_ADMITTED || again.Token != got.Token, "it is %v, and was %v", again, got)
		}
		release := &v1.ReleaseSlotRequest{Pool: s.own, SlotId: slot.SlotId, Client: s.own, Token: got.GetToken()}
		done(s, "release", func(ctx context.Context, n *node) (*v1.ReleaseSlotResponse, error) {
			return n.slots.ReleaseSlot(ctx, release)
		})
		others(s, "acquire after its release", slot, acquire, all...)
		if again, ok := done(s, "acquire what was released", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) { return acquire(ctx, n, slot) }); ok {
			s.wrong(again.Outcome != v1.Outcome_OUTCOME_ALREADY_ENDED || again.Token != 0 || again.Reason == "", "it is %v", again)
		}
	case 2:
		rate := &v1.TakeRateRequest{Rate: s.own, Client: s.own, RequestId: s.id(), Cost: 2, Priority: 3}
		take := func(ctx context.Context, n *node, req *v1.TakeRateRequest) (*v1.TakeRateResponse, error) {
			return n.limits.TakeRate(ctx, req)
		}
		for range 2 {
			res, ok := done(s, "take", func(ctx context.Context, n *node) (*v1.TakeRateResponse, error) { return take(ctx, n, rate) })
			if !ok {
				return
			}
			same(s, "the outcome", res.Outcome, v1.Outcome_OUTCOME_ADMITTED)
			rate.Wait = durationpb.New(time.Second)
		}
		type of = change[*v1.TakeRateRequest]
		others(s, "take", rate, take, of{"another rate", func(r *v1.TakeRateRequest) { r.Rate = other }}, of{"another cost", func(r *v1.TakeRateRequest) { r.Cost = 3 }},
			of{"no cost", func(r *v1.TakeRateRequest) { r.Cost = 0 }}, of{"another priority", func(r *v1.TakeRateRequest) { r.Priority = 0 }})
	}
}

// reusedCall is reused for a call.
func (s *script) reusedCall(other string) {
	req := s.call("one")
	req.Kind, req.ArgumentsJson, req.ContextJson, req.Order, req.ServerLabel = v1.Kind_KIND_TOOL, `{}`, `{"a": 1}`, v1.Order_ORDER_INTERCEPTOR, "label"
	req.Pools, req.Rates = []*v1.Want{{Pool: s.own, Weight: 2}}, []*v1.RateWant{{Rate: s.own, Cost: 2}}
	req.Budgets, req.Metadata = []*v1.BudgetAmount{{Budget: s.own, Amount: "2"}}, map[string]string{"a": "b"}
	req.MaxHold, req.Priority, req.Tokens = durationpb.New(time.Hour), 3, 7
	type of = change[*v1.BeginCallRequest]
	all := []of{
		{"another kind", func(r *v1.BeginCallRequest) { r.Kind = v1.Kind_KIND_MODEL }}, {"another tool", func(r *v1.BeginCallRequest) { r.Tool = "two" }},
		{"no arguments", func(r *v1.BeginCallRequest) { r.ArgumentsJson = "" }}, {"other arguments", func(r *v1.BeginCallRequest) { r.ArgumentsJson = `{"n": 1}` }},
		{"another context", func(r *v1.BeginCallRequest) { r.ContextJson = `{"a": 2}` }}, {"another order", func(r *v1.BeginCallRequest) { r.Order = v1.Order_ORDER_PRE_EXECUTE }},
		{"another label", func(r *v1.BeginCallRequest) { r.ServerLabel = "" }}, {"no pool", func(r *v1.BeginCallRequest) { r.Pools = nil }},
		{"another pool", func(r *v1.BeginCallRequest) { r.Pools[0].Pool = other }}, {"another weight", func(r *v1.BeginCallRequest) { r.Pools[0].Weight = 3 }},
		{"another rate", func(r *v1.BeginCallRequest) { r.Rates[0].Rate = other }}, {"another cost", func(r *v1.BeginCallRequest) { r.Rates[0].Cost = 3 }},
		{"its tokens as cost", func(r *v1.BeginCallRequest) { r.Rates[0].Cost, r.Rates[0].By = 0, v1.Cost_COST_TOKENS }},
		{"another budget", func(r *v1.BeginCallRequest) { r.Budgets[0].Budget = other }}, {"another amount", func(r *v1.BeginCallRequest) { r.Budgets[0].Amount = "1" }},
		{"other metadata", func(r *v1.BeginCallRequest) { r.Metadata["a"] = "c" }}, {"another ttl", func(r *v1.BeginCallRequest) { r.Ttl = durationpb.New(time.Minute) }},
		{"no ttl", func(r *v1.BeginCallRequest) { r.Ttl = nil }}, {"another maxHold", func(r *v1.BeginCallRequest) { r.MaxHold = durationpb.New(2 * time.Hour) }},
		{"another priority", func(r *v1.BeginCallRequest) { r.Priority = 4 }}, {"other tokens", func(r *v1.BeginCallRequest) { r.Tokens = 8 }},
	}
	begin := func(ctx context.Context, n *node, req *v1.BeginCallRequest) (*v1.BeginCallResponse, error) {
		return n.calls.BeginCall(ctx, req)
	}
	some := func() []of {
		s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		return all[:8]
	}
	first := s.begin(req)
	s.outcome(first, v1.Outcome_OUTCOME_ADMITTED)
	others(s, "begin", req, begin, all...)
	req.Wait = durationpb.New(time.Second)
	if again := s.begin(req); !s.over {
		s.wrong(again.Outcome != first.Outcome || again.DecisionId != first.DecisionId || again.Grants[0].Token != first.Grants[0].Token, "with a wait it is {%v}, and was {%v}", again, first)
	}
	s.end(&v1.EndCallRequest{CallId: req.CallId, Status: v1.Status_STATUS_SUCCEEDED})
	others(s, "begin after its end", req, begin, some()...)
	s.outcome(s.begin(req), v1.Outcome_OUTCOME_ALREADY_ENDED)
	end := &v1.EndCallRequest{SessionId: s.own, CallId: req.CallId, Status: v1.Status_STATUS_SUCCEEDED}
	others(s, "end", end, func(ctx context.Context, n *node, req *v1.EndCallRequest) (*v1.EndCallResponse, error) {
		return n.calls.EndCall(ctx, req)
	},
		change[*v1.EndCallRequest]{"another status", func(r *v1.EndCallRequest) { r.Status = v1.Status_STATUS_FAILED }},
		change[*v1.EndCallRequest]{"another status", func(r *v1.EndCallRequest) { r.Status = v1.Status_STATUS_CANCELLED }})
	req.CallId, req.Tool = s.id(), "three"
	s.outcome(s.begin(req), v1.Outcome_OUTCOME_DENIED_BY_POLICY)
	others(s, "begin what was refused", req, begin, some()...)
	want := &account{tools: map[string]int32{"one": 1}}
	want.Attempts, want.Calls, want.Executions, want.TokensUsed = 2, 1, 1, 7
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
}

// reputs is reused for what is put, set and added to, and for the session itself.
func reputs(s *script) {
	id := s.id()
	once := func(what, reason string) { s.wrong(reason != "", "%s: it was refused: %s", what, reason) }
	switch s.rng.IntN(7) {
	case 0:
		queue := int32(5)
		first := &v1.PutPoolRequest{Pool: s.own, Slots: 3, BackpressureThreshold: 2, QueueLimit: &queue, RequestId: id, Client: s.own}
		put := func(ctx context.Context, n *node, req *v1.PutPoolRequest) (*v1.PutPoolResponse, error) {
			return n.slots.PutPool(ctx, req)
		}
		_, reason, _ := told(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return put(ctx, n, first) })
		once("put", reason)
		type of = change[*v1.PutPoolRequest]
		others(s, "put", first, put, of{"another pool", func(r *v1.PutPoolRequest) { r.Pool += "-other" }}, of{"other slots", func(r *v1.PutPoolRequest) { r.Slots = 4 }},
			of{"another threshold", func(r *v1.PutPoolRequest) { r.BackpressureThreshold = 0 }}, of{"no queueLimit", func(r *v1.PutPoolRequest) { r.QueueLimit = nil }})
		remove := &v1.DeletePoolRequest{Pool: s.own, RequestId: id, Client: s.own}
		others(s, "delete", remove, func(ctx context.Context, n *node, req *v1.DeletePoolRequest) (*v1.DeletePoolResponse, error) {
			return n.slots.DeletePool(ctx, req)
		},
			change[*v1.DeletePoolRequest]{"the id of the put", func(*v1.DeletePoolRequest) {}})
	case 1:
		first := &v1.PutRateRequest{Rate: s.own, Limit: 3, Per: durationpb.New(time.Hour), RequestId: id, Client: s.own}
		put := func(ctx context.Context, n *node, req *v1.PutRateRequest) (*v1.PutRateResponse, error) {
			return n.limits.PutRate(ctx, req)
		}
		_, reason, _ := told(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return put(ctx, n, first) })
		once("put", reason)
		type of = change[*v1.PutRateRequest]
		others(s, "put", first, put, of{"another rate", func(r *v1.PutRateRequest) { r.Rate += "-other" }}, of{"another limit", func(r *v1.PutRateRequest) { r.Limit = 4 }},
			of{"another per", func(r *v1.PutRateRequest) { r.Per = durationpb.New(time.Minute) }}, of{"a queueLimit", func(r *v1.PutRateRequest) { r.QueueLimit = new(int32) }})
	case 2:
		first := &v1.PutBudgetRequest{Budget: s.own, Amount: "3", RequestId: id, Client: s.own}
		put := func(ctx context.Context, n *node, req *v1.PutBudgetRequest) (*v1.PutBudgetResponse, error) {
			return n.limits.PutBudget(ctx, req)
		}
		_, reason, _ := told(s, "put a budget", func(ctx context.Context, n *node) (*v1.PutBudgetResponse, error) { return put(ctx, n, first) })
		once("put", reason)
		type of = change[*v1.PutBudgetRequest]
		others(s, "put", first, put, of{"another budget", func(r *v1.PutBudgetRequest) { r.Budget += "-other" }}, of{"another amount", func(r *v1.PutBudgetRequest) { r.Amount = "4" }},
			of{"a period", func(r *v1.PutBudgetRequest) { r.Per = long }})
		adjust := &v1.AdjustBudgetRequest{Budget: s.own, By: "1", RequestId: s.id(), Client: s.own}
		by := func(ctx context.Context, n *node, req *v1.AdjustBudgetRequest) (*v1.AdjustBudgetResponse, error) {
			return n.limits.AdjustBudget(ctx, req)
		}
		_, reason, _ = told(s, "adjust", func(ctx context.Context, n *node) (*v1.AdjustBudgetResponse, error) { return by(ctx, n, adjust) })
		once("adjust", reason)
		others(s, "adjust", adjust, by, change[*v1.AdjustBudgetRequest]{"another amount", func(r *v1.AdjustBudgetRequest) { r.By = "2" }})
	case 3:
		// A condition that does not hold changes nothing and is not remembered.
		set := func(ctx context.Context, n *node, req *v1.SetRequest) (*v1.SetResponse, error) {
			return n.counters.Set(ctx, req)
		}
		first := &v1.SetRequest{Key: s.own, Value: "a", Ttl: long, IfVersion: "11111111111111111111111111111111", RequestId: id, Client: s.own}
		for range 2 {
			if _, reason, ok := told(s, "set what is not there", func(ctx context.Context, n *node) (*v1.SetResponse, error) { return set(ctx, n, first) }); ok {
				same(s, "the reason", reason, "VERSION_CONFLICT")
			}
		}
		first.IfVersion = "0"
		_, reason, _ := told(s, "set with another condition", func(ctx context.Context, n *node) (*v1.SetResponse, error) { return set(ctx, n, first) })
		once("set", reason)
		type of = change[*v1.SetRequest]
		others(s, "set", first, set, of{"another key", func(r *v1.SetRequest) { r.Key += "-other" }}, of{"another value", func(r *v1.SetRequest) { r.Value = "b" }},
			of{"no ttl", func(r *v1.SetRequest) { r.Ttl = nil }}, of{"no condition", func(r *v1.SetRequest) { r.IfVersion = "" }})
		next := &v1.SetRequest{Key: s.own, Value: "b", RequestId: s.id(), Client: s.own}
		done(s, "set again", func(ctx context.Context, n *node) (*v1.SetResponse, error) { return set(ctx, n, next) })
		// What was carried out is answered as before, whatever the version is now.
		if _, ok := done(s, "set as before", func(ctx context.Context, n *node) (*v1.SetResponse, error) { return set(ctx, n, first) }); ok {
			got, ok := done(s, "get the value", func(ctx context.Context, n *node) (*v1.GetResponse, error) {
				return n.counters.Get(ctx, &v1.GetRequest{Key: s.own})
			})
			s.wrong(ok && got.Value != "b", "the value is %v", got)
		}
	case 4:
		first := &v1.IncrementRequest{Key: s.own, Amount: "2", RequestId: id, Client: s.own}
		add := func(ctx context.Context, n *node, req *v1.IncrementRequest) (*v1.IncrementResponse, error) {
			return n.counters.Increment(ctx, req)
		}
		_, reason, _ := told(s, "add", func(ctx context.Context, n *node) (*v1.IncrementResponse, error) { return add(ctx, n, first) })
		once("add", reason)
		type of = change[*v1.IncrementRequest]
		others(s, "add", first, add, of{"another key", func(r *v1.IncrementRequest) { r.Key += "-other" }}, of{"another amount", func(r *v1.IncrementRequest) { r.Amount = "3" }},
			of{"no amount", func(r *v1.IncrementRequest) { r.Amount = "" }})
		remove := &v1.DeleteRequest{Key: s.own, RequestId: s.id(), Client: s.own}
		del := func(ctx context.Context, n *node, req *v1.DeleteRequest) (*v1.DeleteResponse, error) {
			return n.counters.Delete(ctx, req)
		}
		_, reason, _ = told(s, "delete", func(ctx context.Context, n *node) (*v1.DeleteResponse, error) { return del(ctx, n, remove) })
		once("delete", reason)
		others(s, "delete", remove, del, change[*v1.DeleteRequest]{"another key", func(r *v1.DeleteRequest) { r.Key += "-other" }},
			change[*v1.DeleteRequest]{"a condition", func(r *v1.DeleteRequest) { r.IfVersion = "0" }})
	case 5:
		first := &v1.AppendRequest{Key: s.own, Items: []string{"a", "b"}, Ttl: long, RequestId: id, Client: s.own}
		put := func(ctx context.Context, n *node, req *v1.AppendRequest) (*v1.AppendResponse, error) {
			return n.counters.Append(ctx, req)
		}
		_, reason, _ := told(s, "append", func(ctx context.Context, n *node) (*v1.AppendResponse, error) { return put(ctx, n, first) })
		once("append", reason)
		type of = change[*v1.AppendRequest]
		others(s, "append", first, put, of{"another key", func(r *v1.AppendRequest) { r.Key += "-other" }}, of{"fewer items", func(r *v1.AppendRequest) { r.Items = r.Items[:1] }},
			of{"items in another order", func(r *v1.AppendRequest) { r.Items[0], r.Items[1] = r.Items[1], r.Items[0] }},
			of{"another ttl", func(r *v1.AppendRequest) { r.Ttl = durationpb.New(time.Hour) }}, of{"a length", func(r *v1.AppendRequest) { r.IfLength = new(int64) }})
		remove := &v1.DeleteListRequest{Key: s.own, RequestId: s.id(), Client: s.own}
		del := func(ctx context.Context, n *node, req *v1.DeleteListRequest) (*v1.DeleteListResponse, error) {
			return n.counters.DeleteList(ctx, req)
		}
		_, reason, _ = told(s, "delete", func(ctx context.Context, n *node) (*v1.DeleteListResponse, error) { return del(ctx, n, remove) })
		once("delete", reason)
		others(s, "delete", remove, del, change[*v1.DeleteListRequest]{"another key", func(r *v1.DeleteListRequest) { r.Key += "-other" }})
	case 6:
		if !s.policy("max_tool_calls: 100\n") {
			return
		}
		first := &v1.CreateSessionRequest{
			SessionId: s.own, AgentId: s.own, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}, IdleTtl: durationpb.New(time.Hour),
			ParentSessionId: "parent", Attributes: map[string]string{"a": "b"}, SessionTokenSha256: make([]byte, 32),
		}
		create := func(ctx context.Context, n *node, req *v1.CreateSessionRequest) (*v1.CreateSessionResponse, error) {
			return n.sessions.CreateSession(ctx, req)
		}
		made, reason, ok := told(s, "create a session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) { return create(ctx, n, first) })
		if once("create", reason); !ok || s.over {
			return
		}
		type of = change[*v1.CreateSessionRequest]
		all := []of{
			{"another agent", func(r *v1.CreateSessionRequest) { r.AgentId += "-other" }}, {"another idleTtl", func(r *v1.CreateSessionRequest) { r.IdleTtl = nil }},
			{"another parent", func(r *v1.CreateSessionRequest) { r.ParentSessionId = "" }}, {"other attributes", func(r *v1.CreateSessionRequest) { r.Attributes["a"] = "c" }},
			{"another secret", func(r *v1.CreateSessionRequest) { r.SessionTokenSha256[0] = 1 }},
			{"its digest in place of the name", func(r *v1.CreateSessionRequest) {
				r.Policy.Ref = &v1.PolicyRef_Digest{Digest: made.Session.PolicyDigest}
			}},
		}
		others(s, "create", first, create, all...)
		done(s, "close the session", func(ctx context.Context, n *node) (*v1.CloseSessionResponse, error) {
			return n.sessions.CloseSession(ctx, &v1.CloseSessionRequest{SessionId: s.own})
		})
		others(s, "create after it was closed", first, create, all...)
	}
}
