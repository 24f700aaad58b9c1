package alone

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
)

// heldUp begins calls that are charged in all ways and that a STOP, people and a full pool
// hold up, as drawn: asked for at all nodes at once each is charged once.
func heldUp(s *script) {
	stopped, asked, full := s.rng.IntN(2) == 0, s.rng.IntN(2) == 0, s.rng.IntN(2) == 0
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 1, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	rate := &v1.PutRateRequest{Rate: s.own, Limit: 100, Per: durationpb.New(24 * time.Hour), RequestId: s.id(), Client: s.own}
	done(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return n.limits.PutRate(ctx, rate) })
	root, child, every := s.own+"-root", s.own+"-child", s.own+"-every"
	for _, b := range []*v1.PutBudgetRequest{{Budget: root, Amount: "100"}, {Budget: child, Parent: root, Amount: "50"}, {Budget: every, Parent: root, Amount: "50"}} {
		b.RequestId, b.Client = s.id(), s.own
		done(s, "put "+b.Budget, func(ctx context.Context, n *node) (*v1.PutBudgetResponse, error) { return n.limits.PutBudget(ctx, b) })
	}
	text := "max_tool_calls: 100\nmax_tokens: 1000\nbudgets: [{budget: " + every + ", amount: 0.5}]\n"
	if asked {
		text += "require_human_approval: true\napproval: {required: 1, denials: 1, timeout: 10m, max_pending: 8}\n"
	}
	if !s.policy(text) || !s.session(nil) {
		return
	}
	req := s.call("one")
	req.Pools, req.Rates, req.Budgets = []*v1.Want{{Pool: s.own}}, []*v1.RateWant{{Rate: s.own, Cost: 3}}, []*v1.BudgetAmount{{Budget: child, Amount: "2"}}
	req.Tokens, req.Wait = 10, durationpb.New(10*time.Second)
	var held *v1.AcquireSlotResponse
	take := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long}
	if full {
		held, _ = done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
			return n.slots.AcquireSlot(ctx, take)
		})
	}
	send := func(signal string) {
		req := &v1.SignalRequest{Target: &v1.SignalRequest_SessionId{SessionId: s.own}, Signal: signal, RequestId: s.id(), Client: s.own}
		done(s, "send "+signal, func(ctx context.Context, n *node) (*v1.SignalResponse, error) { return n.sessions.Signal(ctx, req) })
	}
	approval := ""
	if asked {
		res := s.batch("begin what is asked about", &v1.Operation{Op: &v1.Operation_Begin{Begin: req}, Timeout: durationpb.New(20 * time.Millisecond)})
		if s.over {
			return
		}
		if approval = res[0].GetBegin().GetApproval().GetId(); approval == "" {
			s.wrong(true, "people are not asked: %v", res[0])
			return
		}
	}
	if stopped {
		send("STOP")
	}
	if s.over {
		return
	}
	answers := make(chan *v1.BeginCallResponse, 2*len(s.nodes))
	var under sync.WaitGroup
	for i := range cap(answers) {
		at := s.nodes[i%len(s.nodes)]
		under.Go(func() {
			ctx, cancel := context.WithTimeout(s.ctx, 12*time.Second)
			defer cancel()
			if res, err := at.calls.BeginCall(ctx, req); err == nil {
				answers <- res
			}
		})
	}
	defer under.Wait()
	var ways []func()
	if stopped {
		ways = append(ways, func() { send("CONTINUE") })
	}
	if asked {
		ways = append(ways, func() { s.vote(s.rng.IntN(2), approval, v1.Vote_VOTE_APPROVE) })
	}
	if full {
		release := &v1.ReleaseSlotRequest{Pool: s.own, SlotId: take.SlotId, Client: s.own, Token: held.GetToken()}
		ways = append(ways, func() {
			done(s, "release", func(ctx context.Context, n *node) (*v1.ReleaseSlotResponse, error) {
				return n.slots.ReleaseSlot(ctx, release)
			})
		})
	}
	s.rng.Shuffle(len(ways), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] })
	for _, free := range ways {
		select {
		case <-s.ctx.Done():
		case <-time.After(time.Duration(s.rng.Int64N(int64(600 * time.Millisecond)))):
		}
		free()
	}
	under.Wait()
	close(answers)
	if s.over {
		return
	}
	res := s.begin(req)
	if s.over {
		return
	}
	for a := range answers {
		s.wrong(a.Outcome == v1.Outcome_OUTCOME_ADMITTED && (res.Outcome != a.Outcome || res.Grants[0].Token != a.Grants[0].Token), "it is answered by %v and by %v", a, res)
	}
	if res.Outcome != v1.Outcome_OUTCOME_ADMITTED { // its wait was over before all had been heard
		s.over = true
		return
	}
	see := func(ofChild, ofEvery, ofRoot string, slots int32) {
		for name, want := range map[string]string{child: ofChild, every: ofEvery, root: ofRoot} {
			b, ok := done(s, "get "+name, func(ctx context.Context, n *node) (*v1.GetBudgetResponse, error) {
				return n.limits.GetBudget(ctx, &v1.GetBudgetRequest{Budget: name})
			})
			s.wrong(ok && b.Budget.Used != want, "%v is used up to %v, want %s", name, b.GetBudget(), want)
		}
		r, ok := done(s, "get the rate", func(ctx context.Context, n *node) (*v1.GetRateResponse, error) {
			return n.limits.GetRate(ctx, &v1.GetRateRequest{Rate: s.own})
		})
		s.wrong(ok && (r.Rate.Used != 3 || r.Rate.Waiting != 0), "the rate is %v", r.GetRate())
		for _, name := range []string{s.own, "policy/" + s.own} {
			p, ok := done(s, "get a pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
				return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: name})
			})
			s.wrong(ok && (p.Pool.InUse != slots || p.Pool.Waiting != 0), "the pool is %v, want %d in use", p.GetPool(), slots)
		}
	}
	see("2", "0.5", "2.5", 1)
	want := &account{tools: map[string]int32{"one": 1}, open: []string{req.CallId}}
	want.Attempts, want.Calls = 1, 1
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
	s.end(&v1.EndCallRequest{CallId: req.CallId, Status: v1.Status_STATUS_SUCCEEDED, Tokens: proto.Int64(4), Spent: []*v1.BudgetAmount{{Budget: child, Amount: "1.25"}}})
	see("1.25", "0.5", "1.75", 0)
	want.Executions, want.TokensUsed, want.open = 1, 4, nil
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
}

// givenUp begins a call, or asks for a slot, by the client and gives that up at some moment:
// what it may have been granted is given back by itself, and who waited waits no more.
func givenUp(s *script) {
	defer func() { s.single = true }() // what was given up may still be on its way, and change the session
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 1, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	if !s.policy("max_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	open := s.shipped.Session(s.own)
	for range 3 {
		// What was given up may still be on its way, and be granted and given back now.
		take := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long, Wait: durationpb.New(2 * time.Second)}
		full := s.rng.IntN(2) == 0
		held := &v1.AcquireSlotResponse{}
		if full {
			held, _ = done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
				return n.slots.AcquireSlot(ctx, take)
			})
		}
		if s.over || full && held.Outcome != v1.Outcome_OUTCOME_ADMITTED {
			return
		}
		s.last, s.tries = "give up", 1
		patience := 300 * time.Millisecond
		if s.rng.IntN(2) == 0 {
			patience = 5 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(s.ctx, time.Duration(1+s.rng.Int64N(int64(patience))))
		granted := true
		if s.rng.IntN(2) == 0 {
			call, err := open.Begin(ctx, client.Call{Tool: "one", Pools: []client.Want{{Pool: s.own}}, TTL: long.AsDuration(), Wait: 10 * time.Second})
			if granted = err == nil; granted {
				_ = call.End(s.ctx, client.Succeeded)
			}
		} else {
			slot, err := s.shipped.Acquire(ctx, s.own, client.TTL(long.AsDuration()), client.Wait(10*time.Second))
			if granted = err == nil; granted {
				_ = slot.ReleaseContext(s.ctx)
			}
		}
		cancel()
		s.wrong(granted && full, "it was granted, and there is no room")
		if full {
			release := &v1.ReleaseSlotRequest{Pool: s.own, SlotId: take.SlotId, Client: s.own, Token: held.Token}
			done(s, "release", func(ctx context.Context, n *node) (*v1.ReleaseSlotResponse, error) {
				return n.slots.ReleaseSlot(ctx, release)
			})
		}
		for free := false; !free; {
			p, ok := done(s, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
				return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: s.own})
			})
			if !ok {
				return // where it could not be given back in time it is held until its lease ends
			}
			if free = p.Pool.InUse == 0 && p.Pool.Waiting == 0; !free {
				select {
				case <-s.ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
		}
	}
}
