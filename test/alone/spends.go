package alone

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What returns with time: rates, those of policies, and budgets with periods.

func (s *script) rate(name string) *v1.Rate {
	res, _ := done(s, "get the rate "+name, func(ctx context.Context, n *node) (*v1.GetRateResponse, error) {
		return n.limits.GetRate(ctx, &v1.GetRateRequest{Rate: name})
	})
	return res.GetRate()
}

func (s *script) pause(d time.Duration) {
	select {
	case <-s.ctx.Done():
	case <-time.After(d):
	}
}

// windows spends all of a rate, lets two wait for it of which the later one goes first, and
// sees it come back: no window holds more than the limit.
func windows(s *script) {
	const per, early = 3 * time.Second, 1200 * time.Millisecond
	queue := int32(2)
	put := &v1.PutRateRequest{Rate: s.own, Limit: 3, Per: durationpb.New(per), QueueLimit: &queue, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return n.limits.PutRate(ctx, put) }); !ok {
		return
	}
	s.single = true // what waits is answered otherwise when its turn comes
	take := func(id string, cost, priority int32, wait time.Duration) *v1.TakeRateResponse {
		req := &v1.TakeRateRequest{Rate: s.own, Client: s.own, RequestId: id, Cost: cost, Priority: priority, Wait: durationpb.New(wait)}
		res := s.batch("take", &v1.Operation{Op: &v1.Operation_Take{Take: req}, Timeout: durationpb.New(20 * time.Millisecond)})
		if s.over {
			return nil
		}
		return res[0].GetTake()
	}
	came := func(res *v1.TakeRateResponse, want v1.Outcome) {
		s.wrong(!s.over && res.GetOutcome() != want, "the outcome is {%v}, want %v", res, want)
	}
	asked := time.Now()
	late := func() bool { // the window of the first may be over
		if time.Since(asked) > early {
			s.over = true
		}
		return s.over
	}
	came(take(s.id(), 2, 0, 0), v1.Outcome_OUTCOME_ADMITTED)
	if res := take(s.id(), 2, 0, 0); !late() {
		wait := res.RetryAfter.AsDuration()
		s.wrong(res.Outcome != v1.Outcome_OUTCOME_RATE_LIMITED || res.Reason == "" || wait <= 0 || wait > per || res.Queue != nil, "the outcome is {%v}", res)
	}
	if now := s.rate(s.own); !late() {
		s.wrong(now.Used != 2 || now.FreeIn != nil || now.Waiting != 0 || now.Limit != 3 || now.QueueLimit != 2 || now.Per.AsDuration() != per, "the rate is {%v}", now)
	}
	if res := take(s.id(), 0, 0, 0); !late() { // 1
		came(res, v1.Outcome_OUTCOME_ADMITTED)
	}
	if now := s.rate(s.own); !late() {
		s.wrong(now.Used != 3 || now.FreeIn == nil || now.FreeIn.AsDuration() > per, "the rate is {%v}", now)
	}
	first, second := s.id(), s.id()
	if res := take(first, 3, 0, time.Minute); !late() {
		came(res, v1.Outcome_OUTCOME_QUEUED)
		s.wrong(res.Queue.GetPosition() != 1, "its place is {%v}", res)
	}
	if res := take(second, 3, 5, time.Minute); !late() { // before the other
		came(res, v1.Outcome_OUTCOME_QUEUED)
		s.wrong(res.Queue.GetPosition() != 1, "its place is {%v}", res)
	}
	if res := take(s.id(), 1, 9, time.Minute); !late() {
		came(res, v1.Outcome_OUTCOME_QUEUE_FULL)
	}
	if now := s.rate(s.own); !late() {
		s.wrong(now.Waiting != 2 || now.Used != 3, "the rate is {%v}", now)
	}
	remove := &v1.DeleteRateRequest{Rate: s.own, RequestId: s.id(), Client: s.own}
	_, reason, ok := told(s, "delete the rate", func(ctx context.Context, n *node) (*v1.DeleteRateResponse, error) {
		return n.limits.DeleteRate(ctx, remove)
	})
	if !ok || late() {
		return
	}
	same(s, "the reason", reason, "POOL_IN_USE")
	// Each has to come in its turn, a window after the one before.
	for i, before, heard := 0, asked, time.Now(); i < 2 && !s.over; {
		res, other := take([]string{second, first}[i], 3, []int32{5, 0}[i], time.Minute), (*v1.TakeRateResponse)(nil)
		if i == 0 {
			other = take(first, 3, 0, time.Minute)
		}
		if time.Since(heard) > 4*time.Second { // who waits is forgotten
			s.over = true
		}
		if s.over {
			return
		}
		heard = time.Now()
		switch res.Outcome {
		case v1.Outcome_OUTCOME_ADMITTED:
			s.wrong(time.Since(before) < per/2, "it is admitted %v after what was spent before", time.Since(before))
			before, i = before.Add(per/2), i+1
		default:
			came(res, v1.Outcome_OUTCOME_QUEUED)
			if other != nil {
				came(other, v1.Outcome_OUTCOME_QUEUED)
			}
			s.pause(200 * time.Millisecond)
		}
	}
	for { // and all of it comes back
		now := s.rate(s.own)
		if s.over {
			return
		}
		s.wrong(now.Used != 3 && now.Used != 0 || now.Waiting != 0 || (now.FreeIn != nil) != (now.Used == 3), "the rate is {%v}", now)
		if now.Used == 0 {
			break
		}
		s.pause(300 * time.Millisecond)
	}
}

// fleet makes calls under rates of a policy: each counts for whom and for what it says.
func fleet(s *script) {
	shared := s.id() // of the namespace
	rates := fmt.Sprintf(`max_tool_calls: 100
max_concurrent: 64
max_tokens: 5000
rate_limits:
  - {name: each, limit: 2, per: 1h, scope: session, tools: ["web_*"]}
  - {name: agents, limit: 3, per: 1h, scope: agent, kinds: [model]}
  - {name: all, limit: 4, per: 1h, kinds: [handoff]}
  - {name: %s, limit: 1000, per: 1h, scope: namespace, kinds: [agent], cost: tokens}
`, shared)
	other := s.own + "-other"
	for _, name := range []string{s.own, other} {
		put := &v1.PutPolicyRequest{Name: name, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{{Path: "limits.yaml", Content: "name: " + name + "\n" + rates}}}
		if _, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
			return n.policies.PutPolicy(ctx, put)
		}); !ok {
			return
		}
	}
	// Two sessions of one agent, one of another, and one under the other policy.
	var x []string
	for i, of := range [][2]string{{s.own, s.own}, {s.own, s.own}, {other, s.own}, {s.own, other}} {
		create := &v1.CreateSessionRequest{SessionId: fmt.Sprint(s.own, "-", i), AgentId: of[0], Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: of[1]}}}
		if _, ok := done(s, "create a session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
			return n.sessions.CreateSession(ctx, create)
		}); !ok {
			return
		}
		x = append(x, create.SessionId)
	}
	begin := func(in int, kind v1.Kind, tool string, tokens int64, refusal string) string {
		req := s.call(tool)
		req.SessionId, req.Kind, req.Tokens = x[in], kind, tokens
		res := s.begin(req)
		if s.over {
			return ""
		}
		if refusal == "" {
			s.outcome(res, v1.Outcome_OUTCOME_ADMITTED)
			s.wrong(res.Rate != "", "it is admitted, and names a rate: {%v}", res)
			return req.CallId
		}
		wait := res.RetryAfter.AsDuration()
		s.wrong(res.Outcome != v1.Outcome_OUTCOME_RATE_LIMITED || res.Rate != refusal || wait > time.Hour || wait < 50*time.Minute, "session %d is answered {%v}, want %s", in, res, refusal)
		return req.CallId
	}
	const tool, model, handoff, agent = v1.Kind_KIND_TOOL, v1.Kind_KIND_MODEL, v1.Kind_KIND_HANDOFF, v1.Kind_KIND_AGENT
	used := func(rate string, want int32) {
		now := s.rate(rate)
		s.wrong(!s.over && (now.Used != want || now.Limit != 0 || now.Per.AsDuration() != time.Hour || now.Waiting != 0), "the rate is {%v}, want %d used", now, want)
	}
	each, agents, all, tokens := "policy/"+s.own+"/each#"+x[0], "policy/"+s.own+"/agents#"+s.own, "policy/"+s.own+"/all", "policy//"+shared
	ways := []func(){
		func() {
			begin(0, tool, "web_a", 0, "")
			begin(0, tool, "web_b", 0, "")
			begin(0, tool, "web_a", 0, each)
			begin(0, tool, "aweb_a", 0, "")
			begin(1, tool, "web_a", 0, "")
			used(each, 2)
		},
		func() {
			for _, in := range []int{0, 1, 0} {
				begin(in, model, "", 0, "")
			}
			begin(1, model, "", 0, agents)
			begin(2, model, "", 0, "")
			begin(3, model, "", 0, "")
			used(agents, 3)
		},
		func() {
			for _, in := range []int{0, 1, 2, 0} {
				begin(in, handoff, "", 0, "")
			}
			begin(1, handoff, "", 0, all)
			begin(3, handoff, "", 0, "")
			used(all, 4)
		},
		func() {
			id := begin(0, agent, "", 900, "")
			used(tokens, 900)
			begin(3, agent, "", 101, tokens)
			begin(3, agent, "", 100, "")
			used(tokens, 1000)
			end := func(in int, id string, tokens int64) {
				req := &v1.EndCallRequest{SessionId: x[in], CallId: id, Status: v1.Status_STATUS_SUCCEEDED, Tokens: proto.Int64(tokens)}
				done(s, "end", func(ctx context.Context, n *node) (*v1.EndCallResponse, error) { return n.calls.EndCall(ctx, req) })
			}
			end(0, id, 300)
			used(tokens, 400)
			end(2, begin(2, agent, "", 600, ""), 0)
			used(tokens, 400)
			id = begin(2, agent, "", 600, "")
			end(2, id, 1600) // what is more than there is, is spent
			used(tokens, 2000)
			begin(1, agent, "", 0, tokens)
		},
	}
	s.rng.Shuffle(len(ways), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] })
	for _, way := range ways {
		way()
	}
}

// budget reads a budget.
func (s *script) budget(name string) *v1.Budget {
	res, _ := done(s, "get the budget "+name, func(ctx context.Context, n *node) (*v1.GetBudgetResponse, error) {
		return n.limits.GetBudget(ctx, &v1.GetBudgetRequest{Budget: name})
	})
	return res.GetBudget()
}

func (s *script) putBudget(b *v1.PutBudgetRequest) *v1.Budget {
	b.RequestId, b.Client = s.id(), s.own
	res, _ := done(s, "put the budget "+b.Budget, func(ctx context.Context, n *node) (*v1.PutBudgetResponse, error) { return n.limits.PutBudget(ctx, b) })
	return res.GetBudget()
}

// periods charges calls to two budgets below one, of which one begins anew again and again.
func periods(s *script) {
	const per = 3 * time.Second
	root, child, other := s.own+"-root", s.own+"-child", s.own+"-other"
	if !s.policy("max_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	s.putBudget(&v1.PutBudgetRequest{Budget: root, Amount: "20"})
	s.putBudget(&v1.PutBudgetRequest{Budget: other, Amount: "100", Parent: root})
	asked := time.Now()
	made := s.putBudget(&v1.PutBudgetRequest{Budget: child, Amount: "10", Parent: root, Per: durationpb.New(per)})
	if s.over {
		return
	}
	s.wrong(made.PeriodEnds == nil || made.PeriodEnds.AsDuration() > per || made.PeriodEnds.AsDuration() <= 0, "it ends in %v", made.PeriodEnds)
	begin := func(outcome v1.Outcome, left *v1.BudgetAmount, of ...*v1.BudgetAmount) string {
		req := s.call("one")
		req.Budgets = of
		res := s.begin(req)
		if s.outcome(res, outcome); !s.over {
			s.alike("the budget without room", res.Budget, left)
			s.wrong((res.Reason != "") != (left != nil), "the reason is %q", res.Reason)
		}
		return req.CallId
	}
	some := func(name, amount string) *v1.BudgetAmount { return &v1.BudgetAmount{Budget: name, Amount: amount} }
	used := func(name, used, left string) {
		b := s.budget(name)
		s.wrong(!s.over && (b.Used != used || b.Left != left), "the budget is {%v}, want %s used and %s left", b, used, left)
	}
	const admitted, exceeded = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_BUDGET_EXCEEDED
	first := begin(admitted, nil, some(child, "8"))
	now := s.budget(child)
	if s.over || time.Since(asked) > per/3 {
		return
	}
	s.alike("the budget", undated(now), &v1.Budget{Budget: child, Parent: root, Amount: "10", Used: "8", Left: "2", Share: 0.8, Per: durationpb.New(per), Depth: 2})
	req := s.call("one")
	req.Budgets = []*v1.BudgetAmount{some(child, "2.000001")}
	if res := s.begin(req); s.over || time.Since(asked) > per/3 {
		return
	} else {
		s.outcome(res, exceeded)
		s.alike("the budget without room", res.Budget, some(child, "2"))
	}
	for { // until it begins anew
		now := s.budget(child)
		if s.over {
			return
		}
		if now.Used == "0" {
			s.wrong(time.Since(asked) < per/2, "it has begun anew after %v", time.Since(asked))
			break
		}
		same(s, "what is used", now.Used, "8")
		s.pause(300 * time.Millisecond)
	}
	used(root, "8", "12") // it has no period
	s.end(&v1.EndCallRequest{CallId: first, Status: v1.Status_STATUS_SUCCEEDED, Spent: []*v1.BudgetAmount{some(child, "1")}})
	used(child, "0", "10") // what is less comes back in the period of the admission alone
	used(root, "1", "19")
	begin(exceeded, some(root, "19"), some(other, "19.5"))
	used(other, "0", "100")
	both := begin(admitted, nil, some(other, "17"), some(child, "2")) // all there is
	used(root, "20", "0")
	used(other, "17", "83")
	begin(exceeded, some(root, "0"), some(other, "")) // 1
	begin(admitted, nil, some(other, "0"))
	s.refused("end with another budget", "INVALID_FIELD", "spent", func(ctx context.Context, n *node) error {
		_, err := n.calls.EndCall(ctx, &v1.EndCallRequest{SessionId: s.own, CallId: both, Status: v1.Status_STATUS_SUCCEEDED, Spent: []*v1.BudgetAmount{some(s.own, "1")}})
		return err
	})
	s.end(&v1.EndCallRequest{CallId: both, Status: v1.Status_STATUS_FAILED, Spent: []*v1.BudgetAmount{some(other, "110")}}) // more counts in full
	used(other, "110", "0")
	used(root, "113", "0")
	if b := s.budget(root); !s.over {
		s.wrong(b.Share != 5.65 || b.Children != 2 || b.Depth != 1, "the budget is {%v}", b)
	}
	// Its amount may change, and less than is used takes nothing away.
	s.putBudget(&v1.PutBudgetRequest{Budget: root, Amount: "50"})
	used(root, "113", "0")
	adjust := func(by, reason string) {
		req := &v1.AdjustBudgetRequest{Budget: other, By: by, RequestId: s.id(), Client: s.own}
		_, got, ok := told(s, "adjust by "+by, func(ctx context.Context, n *node) (*v1.AdjustBudgetResponse, error) {
			return n.limits.AdjustBudget(ctx, req)
		})
		if ok {
			same(s, "the reason", got, reason)
		}
	}
	adjust("-110.000001", "INVALID_FIELD")
	used(root, "113", "0")
	adjust("-110", "")
	used(other, "0", "100")
	used(root, "3", "47")
	for _, x := range []struct {
		field string
		req   *v1.PutBudgetRequest
	}{
		{"parent", &v1.PutBudgetRequest{Budget: other, Amount: "1"}}, {"parent", &v1.PutBudgetRequest{Budget: other, Amount: "1", Parent: child}},
		{"per", &v1.PutBudgetRequest{Budget: child, Amount: "1", Parent: root}}, {"per", &v1.PutBudgetRequest{Budget: child, Amount: "1", Parent: root, Per: long}},
	} {
		x.req.RequestId, x.req.Client = s.id(), s.own
		s.refused("put "+x.req.Budget+" elsewhere", "INVALID_FIELD", x.field, func(ctx context.Context, n *node) error {
			_, err := n.limits.PutBudget(ctx, x.req)
			return err
		})
	}
	used(other, "0", "100")
	remove := &v1.DeleteBudgetRequest{Budget: other, RequestId: s.id(), Client: s.own}
	done(s, "delete "+other, func(ctx context.Context, n *node) (*v1.DeleteBudgetResponse, error) {
		return n.limits.DeleteBudget(ctx, remove)
	})
	if b := s.budget(root); !s.over {
		s.wrong(b.Children != 1 || b.Used != "3", "the budget is {%v}", b)
	}
}

// deep makes two budgets with seven above each, which one call charges together, and no
// more.
func deep(s *script) {
	if !s.policy("max_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	name := func(tree, depth int) string { return fmt.Sprintf("%s-%d-%d", s.own, tree, depth) }
	for tree := range 2 {
		for depth := 1; depth <= 8; depth++ {
			b := &v1.PutBudgetRequest{Budget: name(tree, depth), Amount: "10"}
			if depth > 1 {
				b.Parent = name(tree, depth-1)
			}
			if made := s.putBudget(b); !s.over {
				same(s, "its depth", made.Depth, int32(depth))
			}
		}
	}
	ninth := &v1.PutBudgetRequest{Budget: name(0, 9), Amount: "10", Parent: name(0, 8), RequestId: s.id(), Client: s.own}
	s.refused("put a ninth", "INVALID_FIELD", "parent", func(ctx context.Context, n *node) error {
		_, err := n.limits.PutBudget(ctx, ninth)
		return err
	})
	absent(s, "get the ninth", func(ctx context.Context, n *node) (*v1.GetBudgetResponse, error) {
		return n.limits.GetBudget(ctx, &v1.GetBudgetRequest{Budget: ninth.Budget})
	})
	req := s.call("one")
	req.Budgets = []*v1.BudgetAmount{{Budget: name(0, 8), Amount: "2"}, {Budget: name(1, 8), Amount: "3"}, {Budget: name(1, 4), Amount: "4"}}
	s.outcome(s.begin(req), v1.Outcome_OUTCOME_ADMITTED)
	bill := &v1.AdjustBudgetRequest{Budget: name(0, 8), By: "0.5", RequestId: s.id(), Client: s.own}
	done(s, "adjust", func(ctx context.Context, n *node) (*v1.AdjustBudgetResponse, error) {
		return n.limits.AdjustBudget(ctx, bill)
	})
	for tree := range 2 {
		for depth := 1; depth <= 8; depth++ {
			want := "2.5"
			if tree == 1 {
				if want = "7"; depth > 4 {
					want = "3"
				}
			}
			if b := s.budget(name(tree, depth)); !s.over {
				s.wrong(b.Used != want, "the budget is {%v}, want %s used", b, want)
			}
		}
	}
	s.putBudget(&v1.PutBudgetRequest{Budget: s.own, Amount: "10"})
	over := s.call("one")
	over.Budgets = append(req.Budgets[:2:2], &v1.BudgetAmount{Budget: s.own})
	s.refused("begin with one more", "INVALID_FIELD", "budgets", func(ctx context.Context, n *node) error {
		_, err := n.calls.BeginCall(ctx, over)
		return err
	})
	over.Budgets = []*v1.BudgetAmount{{Budget: s.own + "-none"}}
	s.refused("begin with none", "NOT_FOUND", "budgets", func(ctx context.Context, n *node) error {
		_, err := n.calls.BeginCall(ctx, over)
		return err
	})
	want := &account{tools: map[string]int32{"one": 1}, open: []string{req.CallId}}
	want.Attempts, want.Calls = 1, 1
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
}
