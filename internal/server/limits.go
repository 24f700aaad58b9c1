package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/limits"
	"example.com/govnode/internal/server/record"
	"example.com/govnode/internal/server/waiting"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/session/budget"
	"example.com/govnode/storage"
)

// Limits: how clients take from a rate, and the rates and budgets that calls name.

// limitService answers govnode.v1.LimitService.
type limitService struct {
	*Server
	*limits.Service
}

// TakeRate spends at a rate, or waits until it may.
func (s limitService) TakeRate(ctx context.Context, req *v1.TakeRateRequest) (*v1.TakeRateResponse, error) {
	return unary(ctx, s.Server, &take{}, req)
}

// A take is one TakeRate on its way.
type take struct {
	request[v1.TakeRateRequest, v1.TakeRateResponse]
	cmd *session.TakeRate
}

func (t *take) check(_ context.Context, f *input.Fields) error {
	req := t.req
	f.Rate("rate", req.Rate)
	f.NewID("requestId", req.RequestId, t.s.cfg.Now)
	t.cmd = &session.TakeRate{
		NS: t.ns, Client: f.Client(req.Client), ID: req.RequestId, Rate: req.Rate,
		Cost:     int32(f.Number("cost", int64(req.Cost), input.Caps.Cost)),
		Wait:     f.Duration("wait", req.Wait, input.Caps.Wait),
		Priority: int32(f.Number("priority", int64(req.Priority), input.Caps.Priority)),
	}
	if f.Err != nil {
		return f.Err
	}
	wait := req.Wait
	req.Wait = nil
	t.cmd.Content = input.Fingerprint(req)
	req.Wait = wait
	t.one[0] = t.cmd
	return nil
}

// judgeAgain leaves the command alone that may still be on its way.
func (t *take) judgeAgain(context.Context) error {
	next := *t.cmd
	t.cmd = &next
	t.one[0] = t.cmd
	return nil
}

func (t *take) hurry() { t.cmd.Wait = 0 }

func (t *take) waiting() *waiting.Wait {
	if t.answer.Result.Code != session.Queued {
		return nil
	}
	c, pools := t.cmd, []string{session.RatePool(t.cmd.Rate)}
	return &waiting.Wait{
		NS: c.NS, Pool: session.PoolKey(c.NS, pools[0]), Answer: t.ownAnswer(),
		Holder: words.HolderName(session.KindClient, c.Client, c.ID), Claim: c, Length: c.Wait,
		Renew:  &session.Renew{NS: c.NS, Client: c.Client, ID: c.ID, Pools: pools, TTL: input.Caps.TTL.Default},
		Cancel: &session.Cancel{NS: c.NS, Client: c.Client, Call: c.ID, Pools: pools},
	}
}

func (t *take) queue() {
	t.out = &v1.TakeRateResponse{Outcome: v1.Outcome_OUTCOME_QUEUED, Queue: words.PlaceOf(t.answer.Result.Queue), Index: t.answer.Index}
}

func (t *take) respond() error {
	res := &t.answer.Result
	switch {
	case res.Code == session.NotFound:
		return fault.NotFound("rate", "there is no rate %q; make it with PutRate", t.cmd.Rate)
	case res.Code == session.Invalid:
		return fault.Invalid("cost", "is %d, and the rate %q admits %d; ask for less", t.cmd.Cost, t.cmd.Rate, res.Limit)
	case res.Code.Failure():
		return fault.OfResult(res, fmt.Sprintf("requestId %q of client %q", t.cmd.ID, t.cmd.Client))
	}
	t.out = &v1.TakeRateResponse{
		Outcome: words.Outcomes[res.Code], Reason: takeReasons[res.Code], Queue: words.PlaceOf(res.Queue),
		RetryAfter: words.SomeDuration(res.RetryAfter), Index: t.answer.Index,
	}
	t.s.metrics.rateOutcome(t.out.Outcome)
	return nil
}

// takeReasons are the words of what a rate refused.
var takeReasons = map[session.Code]string{
	session.RateLimited:   "Rate limit reached",
	session.QueueFull:     "Rate limit reached, and its queue is full",
	session.WaitTimeout:   "The rate did not come free while the request waited",
	session.WaitCancelled: "The wait was given up by its caller",
}

// ratesOf checks the rates that a call names.
func ratesOf(f *input.Fields, rates []*v1.RateWant, tokens int64) []session.RateWant {
	f.Count("rates", len(rates), input.Caps.Rates)
	var wants []session.RateWant
	for i, r := range rates {
		in := f.At("rates", i)
		in.Rate("rate", r.GetRate())
		input.Enum(in, "by", r.GetBy(), v1.Cost_name)
		w := session.RateWant{Pool: session.RatePool(r.GetRate())}
		if w.Tokens = r.GetBy() == v1.Cost_COST_TOKENS; !w.Tokens {
			w.Cost = int32(in.Number("cost", int64(r.GetCost()), input.Caps.Cost))
		} else if w.Cost = tokenCost(tokens); r.GetCost() != 0 {
			in.Refuse("cost", "is given beside COST_TOKENS; give one of the two")
		}
		if slices.ContainsFunc(wants, func(o session.RateWant) bool { return o.Pool == w.Pool }) {
			in.Refuse("rate", "names %q twice; give its cost once", r.GetRate())
		}
		f.Take(in)
		wants = append(wants, w)
	}
	return wants
}

// allRates are the rates that a call names and those of its policy, in the order
// in which they are taken.
func (b *begin) allRates(f *input.Fields) ([]session.RateWant, error) {
	limits := b.policy.Governance().RateLimits
	if len(b.rates)+len(limits) == 0 {
		return nil, nil
	}
	all := slices.Clone(b.rates)
	for i := range limits {
		l := &limits[i]
		if !l.Holds(words.CallKinds[b.cmd.CallKind], b.req.Tool) {
			continue
		}
		w := session.RateWant{Pool: b.policyRate(l), Cost: 1, Tokens: l.Tokens, Limit: int32(l.Limit), Per: l.Per}
		if l.Tokens {
			w.Cost = tokenCost(b.cmd.Tokens)
		}
		all = append(all, w)
	}
	if len(all) > session.MaxRates {
		if f == nil {
			f = &input.Fields{}
		}
		f.Refuse("rates", "has %d items, and the policy holds this call to %d more; the most is %d together", len(b.rates), len(all)-len(b.rates), session.MaxRates)
		return nil, f.Err
	}
	slices.SortFunc(all, func(a, b session.RateWant) int { return strings.Compare(a.Pool, b.Pool) })
	return all, nil
}

// policyRate names the pool of a rate of the call's policy.
func (b *begin) policyRate(l *engine.RateLimit) string {
	policy, of := b.session.Policy.Value(), ""
	switch l.Scope {
	case engine.ScopeSession:
		of = b.req.SessionId
	case engine.ScopeAgent:
		of = b.session.Agent.Value()
	case engine.ScopeNamespace:
		policy = ""
	}
	return session.RatePool(session.PolicyRate(policy, l.Name, of))
}

// tokenCost is what a call costs by its tokens before they are known.
func tokenCost(tokens int64) int32 { return int32(max(tokens, 1)) }

// budgetAmounts checks the budgets that a call names.
func budgetAmounts(f *input.Fields, field string, list []*v1.BudgetAmount) map[string]int64 {
	f.Count(field, len(list), input.Caps.Budgets)
	if len(list) == 0 {
		return nil
	}
	amounts := make(map[string]int64, len(list))
	for i, b := range list {
		in := f.At(field, i)
		in.ID("budget", b.GetBudget())
		if _, twice := amounts[b.GetBudget()]; twice {
			in.Refuse("budget", "names %q twice; give its amount once", b.GetBudget())
		}
		amount := int64(input.Million)
		if text := b.GetAmount(); text != "" {
			amount = in.Amount("amount", text, 0)
		}
		amounts[b.GetBudget()] = amount
		f.Take(in)
	}
	return amounts
}

// charge puts what the call charges into the command: the budgets that it and
// its policy name, and all above them.
func (b *begin) charge(ctx context.Context, read storage.Read) error {
	costs := b.costs
	if named := b.policy.Governance().Budgets; len(named) > 0 {
		if costs = maps.Clone(costs); costs == nil {
			costs = map[string]int64{}
		}
		for _, n := range named {
			costs[n.Budget] = min(costs[n.Budget]+n.Amount, budget.MaxAmount)
		}
	}
	if len(costs) == 0 {
		b.cmd.Budgets = nil
		return nil
	}
	var err error
	b.cmd.Budgets, err = b.s.limits.Tree(ctx, b.ns, costs, read)
	return err
}

// budgets takes down which budgets a command has made to reach a share: as an
// event, in the metrics and in the audit log.
func (a *auditor) budgets(ns string, in engine.Input, res *session.Result) {
	var events []engine.Event
	for i := range res.Budgets {
		n := &res.Budgets[i]
		if n.Crossed == 0 {
			continue
		}
		typ, says := engine.BudgetWarning, "has reached 80 % of its amount"
		if n.Crossed >= budget.Exceeded {
			typ, says = engine.BudgetExceeded, "is used up"
		}
		events = append(events, engine.Event{
			Type: typ, Time: a.now(), AgentID: engine.Redact(in.AgentID), SessionID: in.SessionID, CallID: in.CallID,
			Reason: fmt.Sprintf("Budget %s %s: %s of %s are used", n.Budget, says, input.FormatDecimal(n.Used), input.FormatDecimal(n.Amount)),
		})
	}
	if len(events) == 0 {
		return
	}
	a.journal.Add(record.Told(ns, in.AgentID, false, events...))
}
