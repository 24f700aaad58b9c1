package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/waiting"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// Rates: how they are put, read and deleted, taken from by clients, and named by
// calls.

// limitService answers govnode.v1.LimitService.
type limitService struct{ *Server }

// checkRate checks the name of a rate that was put.
func checkRate(f *input.Fields, field, name string) {
	f.ID(field, name)
	if strings.HasPrefix(name, session.PolicyPool("")) {
		f.Refuse(field, "begins with policy/, which is reserved for the rates of policies; choose another name")
	}
}

// PutRate makes a rate, or changes one. What was spent counts by the new length.
func (s limitService) PutRate(ctx context.Context, req *v1.PutRateRequest) (*v1.PutRateResponse, error) {
	f := &input.Fields{}
	checkRate(f, "rate", req.Rate)
	if req.Per == nil {
		f.Refuse("per", "is missing; give the time after which what was spent returns, for instance 1s")
	}
	cmd := &session.PutRate{
		NS: input.Namespace(ctx), By: f.Maker(req, s.cfg.Now), Rate: req.Rate,
		Limit: int32(f.Number("limit", int64(req.Limit), input.Caps.Rate)),
		Per:   f.Duration("per", req.Per, input.Caps.Per),
		Queue: int32(input.Caps.Queue.Default),
	}
	if req.QueueLimit != nil {
		f.Within("queueLimit", int64(*req.QueueLimit), input.Caps.Queue)
		cmd.Queue = *req.QueueLimit
	}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.store.Change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	out := &v1.PutRateResponse{Index: a.Index}
	if after := a.Result.After; after != nil && after.Pool != nil { // a repeat may come after DeleteRate
		p := after.Pool
		out.Rate = &v1.Rate{
			Rate: req.Rate, Limit: p.Slots, Per: durationpb.New(p.Per), QueueLimit: p.MaxQueue,
			Used: p.InUse, Waiting: p.Waiting, FreeIn: words.SomeDuration(p.Free),
		}
	}
	return out, nil
}

// DeleteRate removes a rate. It is refused while somebody waits.
func (s limitService) DeleteRate(ctx context.Context, req *v1.DeleteRateRequest) (*v1.DeleteRateResponse, error) {
	f := &input.Fields{}
	checkRate(f, "rate", req.Rate)
	cmd := &session.DeleteRate{NS: input.Namespace(ctx), By: f.Maker(req, s.cfg.Now), Rate: req.Rate}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.store.Change(ctx, cmd, func(res *session.Result) error {
		switch res.Code {
		case session.NotFound:
			return fault.NotFound("rate", "there is no rate %q", req.Rate)
		case session.PoolInUse:
			return fault.New(connect.CodeFailedPrecondition, fault.ReasonPoolInUse, fmt.Sprintf("rate %q: somebody waits for it, or is about to take from it; delete it when they are gone", req.Rate))
		}
		return order.RequestFailure(cmd.By)(res)
	})
	if err != nil {
		return nil, err
	}
	return &v1.DeleteRateResponse{Index: a.Index}, nil
}

// GetRate returns a rate as it stands.
func (s limitService) GetRate(ctx context.Context, req *v1.GetRateRequest) (*v1.GetRateResponse, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, req.Consistency)
	if strings.HasPrefix(req.Rate, session.PolicyPool("")) {
		f.Text("rate", req.Rate, input.Caps.CounterKey)
	} else {
		f.ID("rate", req.Rate)
	}
	if f.Err != nil {
		return nil, f.Err
	}
	found, err := s.store.Get(ctx, session.PoolKey(input.Namespace(ctx), session.RatePool(req.Rate)), read)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	p, ok := found.Record.(*session.Pool)
	if !ok || p == nil {
		return nil, fault.NotFound("rate", "there is no rate %q; make it with PutRate. The rate of a policy is there while something of it is spent", req.Rate)
	}
	return &v1.GetRateResponse{Rate: rateOf(req.Rate, p, found.Now), AppliedIndex: found.Index}, nil
}

// ListRates returns rates in the order of their names.
func (s limitService) ListRates(ctx context.Context, req *v1.ListRatesRequest) (*v1.ListRatesResponse, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, req.Consistency)
	page := order.PageOf(f, req.PageSize, req.PageToken)
	if f.Err != nil {
		return nil, f.Err
	}
	if page.After != "" {
		page.After = session.RatePool(page.After)
	}
	entries, next, view, err := s.store.List(ctx, session.KindPool, page, read, func(k session.Key, _ session.Record) bool { return session.IsRate(k.Name()) })
	if err != nil {
		return nil, err
	}
	out := &v1.ListRatesResponse{NextPageToken: session.RateName(next), AppliedIndex: view.Index}
	for _, e := range entries {
		out.Rates = append(out.Rates, rateOf(session.RateName(e.Key.Name()), e.Record.(*session.Pool), view.Now))
	}
	return out, nil
}

func rateOf(name string, p *session.Pool, now time.Duration) *v1.Rate {
	out := &v1.Rate{
		Rate: name, Limit: p.Slots, Per: durationpb.New(p.Per), QueueLimit: p.MaxQueue,
		Used: p.InUse(), Waiting: int32(len(p.Queue)),
	}
	if p.Slots > 0 {
		out.FreeIn = words.SomeDuration(p.Free(now, 1, 0, 0))
	}
	return out
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
	checkRate(f, "rate", req.Rate)
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

func (t *take) waiting() *waiting.Wait {
	if t.answer.Result.Code != session.Queued {
		return nil
	}
	c, pools := t.cmd, []string{session.RatePool(t.cmd.Rate)}
	return &waiting.Wait{
		NS: c.NS, Pool: session.PoolKey(c.NS, pools[0]), Answer: &t.answer,
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
		checkRate(in, "rate", r.GetRate())
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

// rateKinds are the kinds of calls as policies name them.
var rateKinds = map[session.CallKind]string{session.Tool: "tool", session.Model: "model", session.Agent: "agent", session.Handoff: "handoff", session.Sampling: "sampling"}

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
		if !l.Holds(rateKinds[b.cmd.CallKind], b.req.Tool) {
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
