package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client/internal/ids"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Rates: how they are put, read and deleted, and how something is taken from one.

// A Rate admits Limit in each window of Per.
type Rate struct {
	Name  string
	Limit int32
	Per   time.Duration // 0.1 s to 24 h
	// QueueLimit is how many may wait; 1,024 if 0, NoQueue for none.
	QueueLimit int32
}

// A RateWant is what a call spends at a rate.
type RateWant struct {
	Rate string
	Cost int32 // 1 if 0
	// Tokens says that the call costs what it may use, its Tokens, and in the end
	// what it has used.
	Tokens bool
}

// A Take says what to take from a rate. Only Rate must be set.
type Take struct {
	Rate     string
	ID       string        // under which it can be sent again after an Unknown; drawn if empty
	Cost     int32         // 1 if 0
	Wait     time.Duration // in the rate's queue; 10 s if 0; NoWait for none
	Priority int32
}

// PutRate makes a rate or changes it. The rate as it then is comes as a message of
// govnode/v1.
func (c *Client) PutRate(ctx context.Context, r Rate) (*govnodev1.Rate, error) {
	if r.Name == "" {
		return nil, errors.New("client: Rate.Name: empty: name the rate")
	}
	req := &govnodev1.PutRateRequest{Rate: r.Name, Limit: r.Limit, Per: durationpb.New(r.Per), Client: c.cfg.Name}
	if r.QueueLimit != 0 {
		limit := max(r.QueueLimit, 0)
		req.QueueLimit = &limit
	}
	res, err := change(ctx, c, "PutRate", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.PutRateResponse, error) {
		return n.limits.PutRate(ctx, req)
	})
	return res.GetRate(), err
}

// GetRate returns a rate as it stands, in a message of govnode/v1.
func (c *Client) GetRate(ctx context.Context, rate string) (*govnodev1.Rate, error) {
	res, err := read(ctx, c, "GetRate", func(ctx context.Context, n *node) (*govnodev1.GetRateResponse, error) {
		return n.limits.GetRate(ctx, &govnodev1.GetRateRequest{Rate: rate})
	})
	return res.GetRate(), err
}

// ListRates returns one page of the rates, in messages of govnode/v1.
func (c *Client) ListRates(ctx context.Context, pageSize int32, pageToken string) (*govnodev1.ListRatesResponse, error) {
	return read(ctx, c, "ListRates", func(ctx context.Context, n *node) (*govnodev1.ListRatesResponse, error) {
		return n.limits.ListRates(ctx, &govnodev1.ListRatesRequest{PageSize: pageSize, PageToken: pageToken})
	})
}

// DeleteRate removes a rate for which nobody waits.
func (c *Client) DeleteRate(ctx context.Context, rate string) error {
	req := &govnodev1.DeleteRateRequest{Rate: rate, Client: c.cfg.Name}
	_, err := change(ctx, c, "DeleteRate", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.DeleteRateResponse, error) {
		return n.limits.DeleteRate(ctx, req)
	})
	return err
}

// TakeRate takes from a rate, or waits until it may. Nothing has to be given back.
// A rate that gives nothing is a *Refused, which says when it may be worth trying
// again.
func (c *Client) TakeRate(ctx context.Context, t Take) error {
	if err := ids.Check("Take.ID", t.ID); err != nil {
		return err
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	orElse(&t.Wait, defaultWait)
	req := &govnodev1.TakeRateRequest{Rate: t.Rate, RequestId: t.ID, Client: c.cfg.Name, Cost: t.Cost, Priority: t.Priority}
	a := admission{operation: operation{name: "TakeRate", wait: within(t.Wait)}}
	if err := c.identify(&a.operation, &req.RequestId); err != nil {
		return err
	}
	var res *govnodev1.TakeRateResponse
	err := a.ask(ctx, c, func(e *errand, wait *durationpb.Duration) (granted, error) {
		var err error
		req.Wait = wait
		res, err = alone(e, func(ctx context.Context) (*govnodev1.TakeRateResponse, error) {
			return e.node.limits.TakeRate(ctx, req)
		})
		return granted{res.GetOutcome(), math.MaxInt64}, err // it has no lease that runs out
	})
	if err != nil {
		return err
	}
	if res.GetOutcome() != Admitted {
		return fmt.Errorf("client: rate %s: %w", t.Rate, &Refused{Outcome: res.GetOutcome(), Reason: res.GetReason(), RetryAfter: res.GetRetryAfter().AsDuration()})
	}
	return nil
}
