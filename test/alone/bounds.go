package alone

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What a request may hold: it is answered at each bound, and refused one step behind it by
// the name of the field.

// A bound is a request at one, or behind one, where the field has a name.
type bound struct {
	field string
	ask   func(context.Context, *node) error
}

// of is a bound of a method, whose request is made anew and changed.
func of[Q, R any](field string, base func() Q, ask func(*node) func(context.Context, Q) (R, error), change func(Q)) bound {
	req := base() // with an id that it keeps
	change(req)
	return bound{field, func(ctx context.Context, n *node) error { _, err := ask(n)(ctx, req); return err }}
}

// bounds asks for what is at a bound and behind it.
func bounds(s *script) {
	if !s.policy("max_tool_calls: 1000\nmax_concurrent: 64\nmax_attempts: 10000\nmax_tokens: 1000000000\nmax_calls_per_tool: {one: 1000}\n") || !s.session(nil) {
		return
	}
	for i := range 9 {
		name := fmt.Sprint(s.own, "-", i)
		pool := &v1.PutPoolRequest{Pool: name, Slots: 64, RequestId: s.id(), Client: s.own}
		rate := &v1.PutRateRequest{Rate: name, Limit: 1000, Per: durationpb.New(time.Hour), RequestId: s.id(), Client: s.own}
		done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) })
		if _, ok := done(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return n.limits.PutRate(ctx, rate) }); !ok {
			return
		}
	}
	all := s.durations()
	text := func(n int) string { return strings.Repeat("x", n) }
	pool := func(field string, change func(*v1.PutPoolRequest)) {
		all = append(all, of(field, func() *v1.PutPoolRequest {
			return &v1.PutPoolRequest{Pool: s.own, Slots: 1, RequestId: s.id(), Client: s.own}
		},
			func(n *node) func(context.Context, *v1.PutPoolRequest) (*v1.PutPoolResponse, error) {
				return n.slots.PutPool
			}, change))
	}
	pool("slots", func(r *v1.PutPoolRequest) { r.Slots = 0 })
	pool("slots", func(r *v1.PutPoolRequest) { r.Slots = -1 })
	pool("backpressureThreshold", func(r *v1.PutPoolRequest) { r.BackpressureThreshold = -1 })
	pool("queueLimit", func(r *v1.PutPoolRequest) { r.QueueLimit = new(int32); *r.QueueLimit = -1 })
	for _, name := range []string{"", "policy/" + s.own, "rate/" + s.own, "a b", "ü", text(129)} {
		pool("pool", func(r *v1.PutPoolRequest) { r.Pool = name })
	}
	slot := func(field string, change func(*v1.AcquireSlotRequest)) {
		all = append(all, of(field, func() *v1.AcquireSlotRequest {
			return &v1.AcquireSlotRequest{Pool: s.own + "-0", SlotId: s.id(), Client: s.own, Ttl: long}
		},
			func(n *node) func(context.Context, *v1.AcquireSlotRequest) (*v1.AcquireSlotResponse, error) {
				return n.slots.AcquireSlot
			}, change))
	}
	slot("priority", func(r *v1.AcquireSlotRequest) { r.Priority = 1001 })
	slot("priority", func(r *v1.AcquireSlotRequest) { r.Priority = -1001 })
	slot("", func(r *v1.AcquireSlotRequest) { r.Priority = 1000 })
	slot("", func(r *v1.AcquireSlotRequest) { r.Priority = -1000 })
	slot("weight", func(r *v1.AcquireSlotRequest) { r.Weight = -1 })
	slot("weight", func(r *v1.AcquireSlotRequest) { r.Weight = 65 })
	slot("label", func(r *v1.AcquireSlotRequest) { r.Label = text(129) })
	slot("label", func(r *v1.AcquireSlotRequest) { r.Label = "a\u202eb" })
	slot("label", func(r *v1.AcquireSlotRequest) { r.Label = "a\nb" })
	slot("", func(r *v1.AcquireSlotRequest) { r.Label = text(128) })
	slot("", func(r *v1.AcquireSlotRequest) { r.SlotId += text(128 - len(r.SlotId)) })
	slot("slotId", func(r *v1.AcquireSlotRequest) { r.SlotId = text(129) })
	slot("slotId", func(r *v1.AcquireSlotRequest) { r.SlotId = "" })
	slot("client", func(r *v1.AcquireSlotRequest) { r.Client = "a b" })
	call := func(field string, change func(*v1.BeginCallRequest)) {
		all = append(all, of(field, func() *v1.BeginCallRequest { return s.call("one") },
			func(n *node) func(context.Context, *v1.BeginCallRequest) (*v1.BeginCallResponse, error) {
				return n.calls.BeginCall
			}, change))
	}
	call("sessionId", func(r *v1.BeginCallRequest) { r.SessionId = "" })
	call("callId", func(r *v1.BeginCallRequest) { r.CallId = "a 5" })
	call("callId", func(r *v1.BeginCallRequest) { r.CallId = "7ZZZZZZZZZ" + r.CallId[10:] }) // of a time that is far ahead
	call("priority", func(r *v1.BeginCallRequest) { r.Priority = 1001 })
	call("tokens", func(r *v1.BeginCallRequest) { r.Tokens = -1 })
	call("tokens", func(r *v1.BeginCallRequest) { r.Tokens = 1_000_000_001 })
	call("", func(r *v1.BeginCallRequest) { r.Tokens = 1_000_000_000 })
	call("kind", func(r *v1.BeginCallRequest) { r.Kind = 99 })
	call("order", func(r *v1.BeginCallRequest) { r.Order = 99 })
	for _, tool := range []string{"", text(129), "a\u200bb", " one", "ONE", "оne", "ﬁnd"} { // the last but one begins with another alphabet's
		call("tool", func(r *v1.BeginCallRequest) { r.Tool = tool })
	}
	call("", func(r *v1.BeginCallRequest) { r.Tool = text(128) })
	call("serverLabel", func(r *v1.BeginCallRequest) { r.ServerLabel = text(129) })
	for n := 8; n <= 9; n++ {
		pools, rates := "", ""
		if n > 8 {
			pools, rates = "pools", "rates"
		}
		call(pools, func(r *v1.BeginCallRequest) {
			for i := range n {
				r.Pools = append(r.Pools, &v1.Want{Pool: fmt.Sprint(s.own, "-", i)})
			}
		})
		call(rates, func(r *v1.BeginCallRequest) {
			for i := range n {
				r.Rates = append(r.Rates, &v1.RateWant{Rate: fmt.Sprint(s.own, "-", i)})
			}
		})
	}
	first := s.own + "-0"
	call("pools[1].pool", func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: first}, {Pool: first}} })
	call("pools[0].weight", func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: first, Weight: -1}} })
	call("pools", func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: first, Weight: 65}} })
	call("rates[1].rate", func(r *v1.BeginCallRequest) {
		r.Rates = []*v1.RateWant{{Rate: first}, {Rate: first, By: v1.Cost_COST_TOKENS}}
	})
	call("rates[0].cost", func(r *v1.BeginCallRequest) {
		r.Rates = []*v1.RateWant{{Rate: first, Cost: 1, By: v1.Cost_COST_TOKENS}}
	})
	call("rates", func(r *v1.BeginCallRequest) { r.Rates = []*v1.RateWant{{Rate: first, Cost: 1001}} })
	call("budgets[1].budget", func(r *v1.BeginCallRequest) { r.Budgets = []*v1.BudgetAmount{{Budget: first}, {Budget: first}} })
	call("budgets[0].amount", func(r *v1.BeginCallRequest) { r.Budgets = []*v1.BudgetAmount{{Budget: first, Amount: "-1"}} })
	call("budgets[0].amount", func(r *v1.BeginCallRequest) { r.Budgets = []*v1.BudgetAmount{{Budget: first, Amount: "0.0000001"}} })
	end := func(field string, change func(*v1.EndCallRequest)) {
		all = append(all, of(field, func() *v1.EndCallRequest {
			return &v1.EndCallRequest{SessionId: s.own, CallId: s.id(), Status: v1.Status_STATUS_FAILED}
		},
			func(n *node) func(context.Context, *v1.EndCallRequest) (*v1.EndCallResponse, error) {
				return n.calls.EndCall
			}, change))
	}
	end("status", func(r *v1.EndCallRequest) { r.Status = 0 })
	end("status", func(r *v1.EndCallRequest) { r.Status = 9; r.Output = structpb.NewStringValue("a") })
	end("tokens", func(r *v1.EndCallRequest) { r.Tokens = proto.Int64(-1) })
	end("spent[1].budget", func(r *v1.EndCallRequest) { r.Spent = []*v1.BudgetAmount{{Budget: first}, {Budget: first}} })
	open := func(field string, change func(*v1.CreateSessionRequest)) {
		all = append(all, of(field, func() *v1.CreateSessionRequest {
			return &v1.CreateSessionRequest{SessionId: s.own + "-" + s.id(), AgentId: s.own + "-agent", Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}, IdleTtl: durationpb.New(time.Hour)}
		}, func(n *node) func(context.Context, *v1.CreateSessionRequest) (*v1.CreateSessionResponse, error) {
			return n.sessions.CreateSession
		}, change))
	}
	open("policy", func(r *v1.CreateSessionRequest) { r.Policy = nil })
	open("policy.digest", func(r *v1.CreateSessionRequest) { r.Policy.Ref = &v1.PolicyRef_Digest{Digest: "abc"} })
	open("agentId", func(r *v1.CreateSessionRequest) { r.AgentId = "" })
	open("parentSessionId", func(r *v1.CreateSessionRequest) { r.ParentSessionId = r.SessionId })
	open("sessionTokenSha256", func(r *v1.CreateSessionRequest) { r.SessionTokenSha256 = make([]byte, 31) })
	for n := 32; n <= 33; n++ {
		field := strings.Repeat("attributes", n-32)
		open(field, func(r *v1.CreateSessionRequest) {
			r.Attributes = map[string]string{}
			for i := range n {
				r.Attributes[fmt.Sprint("a", i)] = "b"
			}
		})
	}
	rate := func(field string, change func(*v1.PutRateRequest)) {
		all = append(all, of(field, func() *v1.PutRateRequest {
			return &v1.PutRateRequest{Rate: s.own, Limit: 1, Per: long, RequestId: s.id(), Client: s.own}
		},
			func(n *node) func(context.Context, *v1.PutRateRequest) (*v1.PutRateResponse, error) {
				return n.limits.PutRate
			}, change))
	}
	rate("limit", func(r *v1.PutRateRequest) { r.Limit = 0 })
	rate("limit", func(r *v1.PutRateRequest) { r.Limit = 1_000_000_001 })
	rate("", func(r *v1.PutRateRequest) { r.Limit = 1_000_000_000 })
	rate("per", func(r *v1.PutRateRequest) { r.Per = nil })
	rate("rate", func(r *v1.PutRateRequest) { r.Rate = "policy/" + s.own })
	take := func(field string, cost int32) {
		all = append(all, of(field, func() *v1.TakeRateRequest { return &v1.TakeRateRequest{Rate: first, RequestId: s.id(), Client: s.own} },
			func(n *node) func(context.Context, *v1.TakeRateRequest) (*v1.TakeRateResponse, error) {
				return n.limits.TakeRate
			}, func(r *v1.TakeRateRequest) { r.Cost = cost }))
	}
	take("cost", -1)
	take("cost", 1001)
	take("", 1000)
	budget := func(field string, change func(*v1.PutBudgetRequest)) {
		all = append(all, of(field, func() *v1.PutBudgetRequest {
			return &v1.PutBudgetRequest{Budget: s.own + "-" + s.id(), Amount: "1", RequestId: s.id(), Client: s.own}
		},
			func(n *node) func(context.Context, *v1.PutBudgetRequest) (*v1.PutBudgetResponse, error) {
				return n.limits.PutBudget
			}, change))
	}
	for _, amount := range []string{"", "-0.000001", "1.0000001", "1000000000000.000001", "x"} {
		budget("amount", func(r *v1.PutBudgetRequest) { r.Amount = amount })
	}
	budget("", func(r *v1.PutBudgetRequest) { r.Amount = "0" })
	budget("", func(r *v1.PutBudgetRequest) { r.Amount = "1000000000000" })
	budget("parent", func(r *v1.PutBudgetRequest) { r.Parent = r.Budget })
	list := func(field string, change func(*v1.AppendRequest)) {
		all = append(all, of(field, func() *v1.AppendRequest {
			return &v1.AppendRequest{Key: s.own + "-" + s.id(), Items: []string{"a"}, Ttl: long, RequestId: s.id(), Client: s.own}
		},
			func(n *node) func(context.Context, *v1.AppendRequest) (*v1.AppendResponse, error) {
				return n.counters.Append
			}, change))
	}
	list("items", func(r *v1.AppendRequest) { r.Items = nil })
	list("items", func(r *v1.AppendRequest) { r.Items = make([]string, 257) })
	list("", func(r *v1.AppendRequest) { r.Items = make([]string, 256) })
	list("items[1]", func(r *v1.AppendRequest) { r.Items = []string{"a", text(1<<16 + 1)} })
	list("ttl", func(r *v1.AppendRequest) { r.Ttl = nil })
	list("ifLength", func(r *v1.AppendRequest) { r.IfLength = new(int64); *r.IfLength = -1 })
	span := func(field string, from int64, limit int32) {
		all = append(all, of(field, func() *v1.RangeRequest { return &v1.RangeRequest{Key: s.own, From: from, Limit: limit} },
			func(n *node) func(context.Context, *v1.RangeRequest) (*v1.RangeResponse, error) {
				return n.counters.Range
			}, func(*v1.RangeRequest) {}))
	}
	span("from", -1, 1)
	span("limit", 0, -1)
	span("limit", 0, 1001)
	span("", 0, 1000)
	set := func(field string, change func(*v1.SetRequest)) {
		all = append(all, of(field, func() *v1.SetRequest { return &v1.SetRequest{Key: s.own, Value: "a", RequestId: s.id(), Client: s.own} },
			func(n *node) func(context.Context, *v1.SetRequest) (*v1.SetResponse, error) { return n.counters.Set }, change))
	}
	set("value", func(r *v1.SetRequest) { r.Value = text(1<<16 + 1) })
	set("", func(r *v1.SetRequest) { r.Value = text(1 << 16) })
	set("ifVersion", func(r *v1.SetRequest) { r.IfVersion = "1" })
	set("key", func(r *v1.SetRequest) { r.Key = "" })
	set("key", func(r *v1.SetRequest) { r.Key = text(513) })
	set("ttl", func(r *v1.SetRequest) { r.Ttl = durationpb.New(0) })
	many := func(field string, n int) {
		all = append(all, of(field, func() *v1.BatchGetRequest { return &v1.BatchGetRequest{} },
			func(n *node) func(context.Context, *v1.BatchGetRequest) (*v1.BatchGetResponse, error) {
				return n.counters.BatchGet
			},
			func(r *v1.BatchGetRequest) {
				for range n {
					r.Keys = append(r.Keys, s.own)
				}
			}))
	}
	many("keys", 0)
	many("keys", 1001)
	many("", 1000)
	page := func(field string, size int32, token string) {
		all = append(all, of(field, func() *v1.ListPoolsRequest { return &v1.ListPoolsRequest{PageSize: size, PageToken: token} },
			func(n *node) func(context.Context, *v1.ListPoolsRequest) (*v1.ListPoolsResponse, error) {
				return n.slots.ListPools
			}, func(*v1.ListPoolsRequest) {}))
	}
	page("pageSize", -1, "")
	page("pageSize", 1001, "")
	page("pageToken", 1, text(513))
	renew := func(field string, slots ...*v1.SlotRef) {
		all = append(all, of(field, func() *v1.RenewSlotsRequest { return &v1.RenewSlotsRequest{Client: s.own, Slots: slots} },
			func(n *node) func(context.Context, *v1.RenewSlotsRequest) (*v1.RenewSlotsResponse, error) {
				return n.slots.RenewSlots
			}, func(*v1.RenewSlotsRequest) {}))
	}
	renew("slots")
	renew("slots[1].slotId", &v1.SlotRef{Pool: first, SlotId: "a"}, &v1.SlotRef{Pool: first})
	renew("slots[0].pool", &v1.SlotRef{SlotId: "a"})
	s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i, b := range all {
		reason := ""
		if b.field != "" {
			reason = "INVALID_FIELD"
		}
		if s.over || i == 40 {
			return
		}
		s.refused(fmt.Sprintf("try what is at a bound of %q", b.field), reason, b.field, b.ask)
	}
}

// durations are the bounds of times.
func (s *script) durations() (all []bound) {
	const day = 24 * time.Hour
	for _, x := range []struct {
		field       string
		least, most time.Duration // 0: none
		ask         func(field string, d *durationpb.Duration) bound
	}{
		{"ttl", time.Second, time.Hour, s.timed(func(r *v1.AcquireSlotRequest, d *durationpb.Duration) { r.Ttl = d })},
		{"maxHold", time.Second, day, s.timed(func(r *v1.AcquireSlotRequest, d *durationpb.Duration) { r.MaxHold = d })},
		{"wait", 0, 10 * time.Minute, s.timed(func(r *v1.AcquireSlotRequest, d *durationpb.Duration) { r.Wait = d })},
		{"ttl", time.Second, time.Hour, s.called(func(r *v1.BeginCallRequest, d *durationpb.Duration) { r.Ttl = d })},
		{"maxHold", time.Second, day, s.called(func(r *v1.BeginCallRequest, d *durationpb.Duration) { r.MaxHold = d })},
		{"wait", 0, 10 * time.Minute, s.called(func(r *v1.BeginCallRequest, d *durationpb.Duration) { r.Wait = d })},
		{"idleTtl", time.Second, 30 * day, func(field string, d *durationpb.Duration) bound {
			return of(field, func() *v1.CreateSessionRequest {
				return &v1.CreateSessionRequest{SessionId: s.own + "-" + s.id(), AgentId: s.own + "-agent", Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}, IdleTtl: d}
			}, func(n *node) func(context.Context, *v1.CreateSessionRequest) (*v1.CreateSessionResponse, error) {
				return n.sessions.CreateSession
			}, func(*v1.CreateSessionRequest) {})
		}},
		{"per", 100 * time.Millisecond, day, func(field string, d *durationpb.Duration) bound {
			return of(field, func() *v1.PutRateRequest {
				return &v1.PutRateRequest{Rate: s.own, Limit: 1, Per: d, RequestId: s.id(), Client: s.own}
			},
				func(n *node) func(context.Context, *v1.PutRateRequest) (*v1.PutRateResponse, error) {
					return n.limits.PutRate
				}, func(*v1.PutRateRequest) {})
		}},
		{"per", time.Second, 366 * day, func(field string, d *durationpb.Duration) bound {
			return of(field, func() *v1.PutBudgetRequest {
				return &v1.PutBudgetRequest{Budget: s.own + "-" + s.id(), Amount: "1", Per: d, RequestId: s.id(), Client: s.own}
			}, func(n *node) func(context.Context, *v1.PutBudgetRequest) (*v1.PutBudgetResponse, error) {
				return n.limits.PutBudget
			}, func(*v1.PutBudgetRequest) {})
		}},
		{"ttl", 0, 30 * day, func(field string, d *durationpb.Duration) bound {
			return of(field, func() *v1.AppendRequest {
				return &v1.AppendRequest{Key: s.own + "-" + s.id(), Items: []string{"a"}, Ttl: d, RequestId: s.id(), Client: s.own}
			}, func(n *node) func(context.Context, *v1.AppendRequest) (*v1.AppendResponse, error) {
				return n.counters.Append
			}, func(*v1.AppendRequest) {})
		}},
	} {
		if x.least > 0 {
			all = append(all, x.ask("", durationpb.New(x.least)))
		}
		all = append(all, x.ask(x.field, durationpb.New(x.least-1)), x.ask("", durationpb.New(x.most)), x.ask(x.field, durationpb.New(x.most+1)))
	}
	return all
}

func (s *script) timed(set func(*v1.AcquireSlotRequest, *durationpb.Duration)) func(string, *durationpb.Duration) bound {
	return func(field string, d *durationpb.Duration) bound {
		return of(field, func() *v1.AcquireSlotRequest {
			return &v1.AcquireSlotRequest{Pool: s.own + "-1", SlotId: s.id(), Client: s.own}
		},
			func(n *node) func(context.Context, *v1.AcquireSlotRequest) (*v1.AcquireSlotResponse, error) {
				return n.slots.AcquireSlot
			},
			func(r *v1.AcquireSlotRequest) { set(r, d) })
	}
}

func (s *script) called(set func(*v1.BeginCallRequest, *durationpb.Duration)) func(string, *durationpb.Duration) bound {
	return func(field string, d *durationpb.Duration) bound {
		return of(field, func() *v1.BeginCallRequest { return s.call("one") },
			func(n *node) func(context.Context, *v1.BeginCallRequest) (*v1.BeginCallResponse, error) {
				return n.calls.BeginCall
			},
			func(r *v1.BeginCallRequest) { set(r, d) })
	}
}
