package alone

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
)

// What the Go client does for those who run the service: it does what it says, and tells
// what a node does.

// administered puts, reads, lists and takes back things by the client, and looks at each by
// plain requests.
func administered(s *script) {
	ways := []func(){s.ratesByClient, s.budgetsByClient, s.poolsByClient, s.policiesByClient, s.signalsByClient, s.peopleByClient, s.whoByClient}
	s.rng.Shuffle(len(ways), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] })
	for _, way := range ways {
		if s.over {
			return
		}
		way()
	}
}

// paged is found for what the client lists.
func paged[T any](s *script, step string, page func(ctx context.Context, c *client.Client, size int32, token string) (items []T, next string, err error), is func(T) bool) (item T, times int) {
	type answer struct {
		items []T
		next  string
	}
	for token, size := "", s.perPage(); ; {
		a, ok := given(s, step, func(ctx context.Context, c *client.Client) (answer, error) {
			items, next, err := page(ctx, c, size, token)
			return answer{items, next}, err
		})
		if !ok {
			return item, -1
		}
		for _, i := range a.items {
			if is(i) {
				item, times = i, times+1
			}
		}
		if a.next == "" {
			return item, times
		}
		s.wrong(a.next == token, "the list does not go on")
		token = a.next
	}
}

// denied holds what the client is told to the reason of the service.
func (s *script) denied(step string, want client.Reason, ask func(ctx context.Context, c *client.Client) error) {
	_, ok, err := through(s, step, func(ctx context.Context, c *client.Client) (any, error) { return nil, ask(ctx, c) })
	var no *client.Error
	s.wrong(ok && (!errors.As(err, &no) || no.Reason != want), "the answer is %v, want %s", err, want)
}

func (s *script) ratesByClient() {
	gone := func(ctx context.Context, c *client.Client) error { _, err := c.GetRate(ctx, s.own); return err }
	s.denied("get a rate that is not there", client.ReasonNotFound, gone)
	put, ok := given(s, "put a rate", func(ctx context.Context, c *client.Client) (*v1.Rate, error) {
		return c.PutRate(ctx, client.Rate{Name: s.own, Limit: 7, Per: time.Hour, QueueLimit: 5})
	})
	if !ok {
		return
	}
	want := &v1.Rate{Rate: s.own, Limit: 7, Per: durationpb.New(time.Hour), QueueLimit: 5}
	s.alike("the rate that is put", put, want)
	_, _, err := through(s, "take", func(ctx context.Context, c *client.Client) (any, error) {
		return nil, c.TakeRate(ctx, client.Take{Rate: s.own, ID: s.id(), Cost: 3, Wait: client.NoWait})
	})
	s.wrong(err != nil, "it was refused: %v", err)
	want.Used = 3
	got, _ := given(s, "get the rate", func(ctx context.Context, c *client.Client) (*v1.Rate, error) { return c.GetRate(ctx, s.own) })
	s.alike("the rate", got, want)
	s.alike("the rate as a node tells it", s.rate(s.own), want)
	x, times := paged(s, "list rates", func(ctx context.Context, c *client.Client, size int32, token string) ([]*v1.Rate, string, error) {
		res, err := c.ListRates(ctx, size, token)
		return res.GetRates(), res.GetNextPageToken(), err
	}, func(r *v1.Rate) bool { return r.Rate == s.own })
	s.wrong(!s.over && (times != 1 || !proto.Equal(x, want)), "it is listed %d times: %v", times, x)
	given(s, "put another rate", func(ctx context.Context, c *client.Client) (*v1.Rate, error) {
		return c.PutRate(ctx, client.Rate{Name: s.own + "-other", Limit: 1, Per: time.Hour})
	})
	one, ok := given(s, "list one rate", func(ctx context.Context, c *client.Client) (*v1.ListRatesResponse, error) {
		return c.ListRates(ctx, 1, "")
	})
	s.wrong(ok && len(one.Rates) != 1, "of one there are %v", one.GetRates())
	for _, name := range []string{s.own + "-other", s.own} {
		given(s, "delete the rate", func(ctx context.Context, c *client.Client) (any, error) { return nil, c.DeleteRate(ctx, name) })
	}
	s.denied("get the rate that was deleted", client.ReasonNotFound, gone)
}

func (s *script) budgetsByClient() {
	root, child := s.own+"-root", s.own+"-child"
	hold := func(what string, got, want *v1.Budget) {
		if s.over {
			return
		}
		want.Share = got.GetShare() // it follows from the others
		s.alike(what, got, want)
	}
	put := func(b client.Spending) *v1.Budget {
		got, _ := given(s, "put a budget", func(ctx context.Context, c *client.Client) (*v1.Budget, error) { return c.PutBudget(ctx, b) })
		return got
	}
	hold("the budget that is put", put(client.Spending{Budget: root, Amount: "100"}), &v1.Budget{Budget: root, Amount: "100", Used: "0", Left: "100", Depth: 1})
	got := put(client.Spending{Budget: child, Parent: root, Amount: "10", Per: 48 * time.Hour})
	of := func(used, left string) *v1.Budget {
		return &v1.Budget{Budget: child, Parent: root, Amount: "10", Used: used, Left: left, Per: durationpb.New(48 * time.Hour), Depth: 2}
	}
	hold("the budget that is put", undated(got), of("0", "10"))
	for _, x := range []struct{ by, used, left, above, leftAbove string }{{"2.5", "2.5", "7.5", "2.5", "97.5"}, {"-1", "1.5", "8.5", "1.5", "98.5"}, {"11", "12.5", "0", "12.5", "87.5"}} {
		got, _ := given(s, "adjust by "+x.by, func(ctx context.Context, c *client.Client) (*v1.Budget, error) {
			return c.AdjustBudget(ctx, child, x.by)
		})
		hold("the budget that is adjusted", undated(got), of(x.used, x.left))
		if got := s.budget(child); !s.over {
			hold("the budget as a node tells it", undated(got), of(x.used, x.left))
		}
		got, _ = given(s, "get the budget", func(ctx context.Context, c *client.Client) (*v1.Budget, error) { return c.GetBudget(ctx, root) })
		hold("the budget above", got, &v1.Budget{Budget: root, Amount: "100", Used: x.above, Left: x.leftAbove, Depth: 1, Children: 1})
	}
	x, times := paged(s, "list budgets", func(ctx context.Context, c *client.Client, size int32, token string) ([]*v1.Budget, string, error) {
		res, err := c.ListBudgets(ctx, size, token)
		return res.GetBudgets(), res.GetNextPageToken(), err
	}, func(b *v1.Budget) bool { return b.Budget == child })
	s.wrong(!s.over && times != 1, "it is listed %d times", times)
	hold("the budget that is listed", undated(x), of("12.5", "0"))
	one, ok := given(s, "list one budget", func(ctx context.Context, c *client.Client) (*v1.ListBudgetsResponse, error) {
		return c.ListBudgets(ctx, 1, "")
	})
	s.wrong(ok && len(one.Budgets) != 1, "of one there are %v", one.GetBudgets())
	s.denied("delete a parent", client.ReasonBudgetHasChildren, func(ctx context.Context, c *client.Client) error { return c.DeleteBudget(ctx, root) })
	for _, name := range []string{child, root} {
		given(s, "delete a budget", func(ctx context.Context, c *client.Client) (any, error) { return nil, c.DeleteBudget(ctx, name) })
		s.denied("get the budget that was deleted", client.ReasonNotFound, func(ctx context.Context, c *client.Client) error { _, err := c.GetBudget(ctx, name); return err })
	}
}

func (s *script) poolsByClient() {
	put, ok := given(s, "put a pool", func(ctx context.Context, c *client.Client) (*v1.Pool, error) {
		return c.PutPool(ctx, client.Pool{Name: s.own, Slots: 4, BackpressureThreshold: 3, QueueLimit: client.NoQueue})
	})
	if !ok {
		return
	}
	s.alike("the pool", put, &v1.Pool{Pool: s.own, Slots: 4, BackpressureThreshold: 3, LastToken: put.LastToken})
	take := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Weight: 2, Label: "label", Ttl: long}
	held, ok := done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
		return n.slots.AcquireSlot(ctx, take)
	})
	if !ok {
		return
	}
	of, ok := given(s, "list slots", func(ctx context.Context, c *client.Client) (*v1.ListSlotsResponse, error) {
		return c.ListSlots(ctx, s.own)
	})
	s.wrong(ok && (of.Pool.GetInUse() != 2 || len(of.Slots) != 1 || of.Slots[0].SlotId != take.SlotId || of.Slots[0].Token != held.Token || of.Slots[0].Weight != 2 || of.Slots[0].Label != "label"), "slots are %v, want %v", of, held)
	s.denied("list slots of no pool", client.ReasonNotFound, func(ctx context.Context, c *client.Client) error {
		_, err := c.ListSlots(ctx, s.own+"-none")
		return err
	})
}

func (s *script) policiesByClient() {
	text := "name: " + s.own + "\nmax_tool_calls: 100\nallowed_tools: [one]\nblocked_patterns: [drop table]\n"
	put, ok := given(s, "put a policy", func(ctx context.Context, c *client.Client) (*v1.PutPolicyResponse, error) {
		if s.rng.IntN(2) == 0 {
			return c.PutPolicyTree(ctx, &v1.PutPolicyRequest{Files: []*v1.TextFile{{Path: "policy.yaml", Content: text}}})
		}
		return c.PutPolicy(ctx, "", text)
	})
	if !ok {
		return
	}
	s.wrong(put.Name != s.own || put.Version < 1 || put.Digest == "" || len(put.Warnings) > 0, "it is put as %v", put)
	want := &v1.Policy{Name: s.own, Version: put.Version, Digest: put.Digest, Files: []*v1.TextFile{{Path: "policy.yaml", Content: text}}}
	got, _ := given(s, "get the policy", func(ctx context.Context, c *client.Client) (*v1.Policy, error) { return c.GetPolicy(ctx, s.own) })
	s.alike("the policy", got, want)
	x, times := paged(s, "list policies", func(ctx context.Context, c *client.Client, size int32, token string) ([]*v1.Policy, string, error) {
		res, err := c.ListPolicies(ctx, size, token)
		return res.GetPolicies(), res.GetNextPageToken(), err
	}, func(p *v1.Policy) bool { return p.Name == s.own })
	want.Files = nil
	s.wrong(!s.over && (times != 1 || !proto.Equal(x, want)), "it is listed %d times: %v, want %v", times, x, want)
	by := &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}
	for tool, allowed := range map[string]bool{"one": true, "two": false} {
		req := &v1.EvaluateRequest{Policy: by, Tool: tool, AgentId: s.own}
		would, _ := given(s, "evaluate "+tool, func(ctx context.Context, c *client.Client) (*v1.EvaluateResponse, error) { return c.Evaluate(ctx, req) })
		plain, ok := done(s, "evaluate "+tool, func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) { return n.policies.Evaluate(ctx, req) })
		if ok {
			same(s, "whether it is allowed", would.Decision.GetAllowed(), allowed)
			s.alike("what the client is told", decided(would.Decision), decided(plain.Decision))
		}
	}
	for text, allowed := range map[string]bool{"plain": true, "drop table x": false} {
		req := &v1.ScanRequest{Policy: by, Kind: v1.ScanKind_SCAN_KIND_OUTPUT, Text: text}
		scan, _ := given(s, "scan", func(ctx context.Context, c *client.Client) (*v1.ScanResponse, error) { return c.Scan(ctx, req) })
		plain, ok := done(s, "scan", func(ctx context.Context, n *node) (*v1.ScanResponse, error) { return n.policies.Scan(ctx, req) })
		if ok {
			same(s, "whether it is allowed", scan.Allowed, allowed)
			scan.DecisionId = plain.DecisionId // each has its own
			s.alike("what the client is told", scan, plain)
		}
	}
	s.denied("get a policy that is not there", client.ReasonNotFound, func(ctx context.Context, c *client.Client) error {
		_, err := c.GetPolicy(ctx, s.own+"-none")
		return err
	})
}

func (s *script) signalsByClient() {
	signal := func(signal, reason string) *v1.Signal {
		res, _ := given(s, "send "+signal, func(ctx context.Context, c *client.Client) (*v1.SignalResponse, error) {
			return c.Signal(ctx, client.Target{Agent: s.own}, signal, reason)
		})
		return res.GetSignal()
	}
	stands := func(want *v1.Signal) {
		all, ok := given(s, "list signals", func(ctx context.Context, c *client.Client) ([]*client.Signal, error) { return c.ListSignals(ctx) })
		var mine []*v1.Signal
		for _, x := range all {
			if x.GetAgentId() == s.own {
				x = proto.CloneOf(x)
				x.Age = nil
				mine = append(mine, x)
			}
		}
		s.wrong(ok && (len(mine) > 1 || (len(mine) == 1) != (want != nil) || want != nil && !proto.Equal(mine[0], want)), "%v stand, want %v", mine, want)
	}
	stands(nil)
	if x := signal(client.Stop, "why"); !s.over {
		s.wrong(x.GetSignal() != client.Stop || x.GetReason() != "why", "what stands is %v", x)
	}
	stands(&v1.Signal{Target: &v1.Signal_AgentId{AgentId: s.own}, Signal: client.Stop, Reason: "why"})
	if x := signal(client.Continue, ""); !s.over {
		s.wrong(x != nil, "what stands is %v", x)
	}
	stands(nil)
}

// peopleByClient denies an approval, and lets calls pass. Where people are known by what they
// show the client is none.
func (s *script) peopleByClient() {
	if s.known {
		return
	}
	asked, ok := given(s, "request an approval", func(ctx context.Context, c *client.Client) (*v1.Approval, error) {
		return c.RequestApproval(ctx, client.Question{Agent: s.own, Tool: "tool", AllowOnTimeout: true, Required: 2, Denials: 2})
	})
	if !ok {
		return
	}
	s.wrong(asked.OnTimeout != v1.OnTimeout_ON_TIMEOUT_ALLOW || asked.Timeout.AsDuration() != 5*time.Minute || asked.Required != 2 || asked.Denials != 2, "the approval is %v", asked)
	for i, who := range People {
		a, ok := given(s, "deny", func(ctx context.Context, c *client.Client) (*v1.Approval, error) {
			return c.Deny(ctx, asked.Id, client.Vote{Approver: who, Reason: "no " + who})
		})
		if !ok {
			return
		}
		state := client.ApprovalPending
		if i == 1 {
			state = client.ApprovalDenied
		}
		s.wrong(a.State != state || len(a.Ballots) != i+1 || a.Ballots[i].Approver != who || a.Ballots[i].Vote != v1.Vote_VOTE_DENY || a.Ballots[i].Reason != "no "+who, "the approval is %v", a)
	}
	s.approval(asked.Id, client.ApprovalDenied)
	id, ok := given(s, "put a standing approval", func(ctx context.Context, c *client.Client) (string, error) {
		return c.PutStanding(ctx, client.Standing{
			Scope: client.OfAgent, Name: s.own, Tool: "tool", ServerLabel: "server", Arguments: map[string]any{"n": 1}, Uses: 3, Expiry: 2 * time.Hour,
		})
	})
	if !ok {
		return
	}
	args := `{"n":1}`
	want := &v1.Standing{Id: id, Scope: client.OfAgent, Name: s.own, Tool: "tool", ServerLabel: "server", Arguments: &args, Uses: 3}
	listed := func(times int) {
		x, got := paged(s, "list standing approvals", func(ctx context.Context, c *client.Client, size int32, token string) ([]*v1.Standing, string, error) {
			res, err := c.ListStanding(ctx, size, token)
			return res.GetStandings(), res.GetNextPageToken(), err
		}, func(x *v1.Standing) bool { return x.Name == s.own })
		if s.wrong(!s.over && got != times, "it is listed %d times", got); s.over || times == 0 {
			return
		}
		left := x.ExpiresIn.AsDuration()
		s.wrong(left > 2*time.Hour || left < 119*time.Minute, "it expires in %v", left)
		x = proto.CloneOf(x)
		x.ExpiresIn, x.Age = nil, nil
		s.alike("what stands", x, want)
	}
	listed(1)
	given(s, "delete the standing approval", func(ctx context.Context, c *client.Client) (any, error) { return nil, c.DeleteStanding(ctx, id) })
	listed(0)
}

func (s *script) whoByClient() {
	who, _ := given(s, "ask who it is", func(ctx context.Context, c *client.Client) (*v1.WhoAmIResponse, error) { return c.WhoAmI(ctx) })
	plain, ok := done(s, "ask who it is", func(ctx context.Context, n *node) (*v1.WhoAmIResponse, error) {
		return n.access.WhoAmI(ctx, &v1.WhoAmIRequest{})
	})
	if ok {
		s.alike("who it is", who, plain)
	}
}
