package limits

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Rates: how they are put, read and deleted.

// PutRate makes a rate, or changes one. What was spent counts by the new length.
func (s *Service) PutRate(ctx context.Context, req *v1.PutRateRequest) (*v1.PutRateResponse, error) {
	f := &input.Fields{}
	f.Rate("rate", req.Rate)
	if req.Per == nil {
		f.Refuse("per", "is missing; give the time after which what was spent returns, for instance 1s")
	}
	cmd := &session.PutRate{
		NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Rate: req.Rate,
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
	a, err := s.Store.Change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	s.changed(ctx, &a, "rate_put", req.Rate, fmt.Sprintf("%d per %v, queue %d", cmd.Limit, cmd.Per, cmd.Queue), cmd.NS, cmd.By)
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
func (s *Service) DeleteRate(ctx context.Context, req *v1.DeleteRateRequest) (*v1.DeleteRateResponse, error) {
	f := &input.Fields{}
	f.Rate("rate", req.Rate)
	cmd := &session.DeleteRate{NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Rate: req.Rate}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.Store.Change(ctx, cmd, func(res *session.Result) error {
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
	s.changed(ctx, &a, "rate_deleted", req.Rate, "", cmd.NS, cmd.By)
	return &v1.DeleteRateResponse{Index: a.Index}, nil
}

// GetRate returns a rate as it stands.
func (s *Service) GetRate(ctx context.Context, req *v1.GetRateRequest) (*v1.GetRateResponse, error) {
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
	found, err := s.Store.Get(ctx, session.PoolKey(input.Namespace(ctx), session.RatePool(req.Rate)), read)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	p, ok := found.Record.(*session.Pool)
	if !ok || p == nil || s.ofOthers(ctx, req.Rate) {
		return nil, fault.NotFound("rate", "there is no rate %q; make it with PutRate. The rate of a policy is there while something of it is spent", req.Rate)
	}
	return &v1.GetRateResponse{Rate: rateOf(req.Rate, p, found.Now), AppliedIndex: found.Index}, nil
}

// ListRates returns rates in the order of their names.
func (s *Service) ListRates(ctx context.Context, req *v1.ListRatesRequest) (*v1.ListRatesResponse, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, req.Consistency)
	page := order.PageOf(f, req.PageSize, req.PageToken)
	if f.Err != nil {
		return nil, f.Err
	}
	if page.After != "" {
		page.After = session.RatePool(page.After)
	}
	entries, next, view, err := s.Store.List(ctx, session.KindPool, page, read, func(k session.Key, _ session.Record) bool {
		return session.IsRate(k.Name()) && !s.ofOthers(ctx, session.RateName(k.Name()))
	})
	if err != nil {
		return nil, err
	}
	out := &v1.ListRatesResponse{NextPageToken: session.RateName(next), AppliedIndex: view.Index}
	for _, e := range entries {
		out.Rates = append(out.Rates, rateOf(session.RateName(e.Key.Name()), e.Record.(*session.Pool), view.Now))
	}
	return out, nil
}

// ofOthers reports whether a rate is that of an agent or a session that is not there for who
// asks. Its name does not tell which of the two it is of: a session of that id decides where
// there is one.
func (s *Service) ofOthers(ctx context.Context, rate string) bool {
	_, of, one := strings.Cut(rate, "#")
	who := access.From(ctx)
	if !one || !who.Scoped() {
		return false
	}
	found, err := s.Store.Reader.Get(ctx, session.SessionKey(input.Namespace(ctx), of), storage.Nearby)
	if x, _ := found.Record.(*session.Session); err != nil || x != nil {
		return err != nil || !who.Visible(x)
	}
	return !who.Sees(of)
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
