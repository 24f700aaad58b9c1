package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Budgets of the service: how they are put, read, adjusted and deleted, and what
// calls cost.

// A Cost is an amount of a budget: a decimal with at most six digits behind the
// point, such as "0.25".
type Cost struct {
	Budget string
	Amount string // 1 if empty
}

func (c Cost) message() *govnodev1.BudgetAmount {
	return &govnodev1.BudgetAmount{Budget: c.Budget, Amount: c.Amount}
}

// Spent is what the call has cost one of the budgets that it was charged to. A
// budget that is not named keeps what was assumed.
func Spent(costs ...Cost) EndOption {
	return func(r *ending) error {
		for _, c := range costs {
			if c.Amount == "" {
				return fmt.Errorf("client: Spent: budget %q: Amount is empty; say what the call has cost", c.Budget)
			}
			r.Spent = append(r.Spent, c.message())
		}
		return nil
	}
}

// A Spending is a budget of the service, as it is put.
type Spending struct {
	Budget string
	Parent string // charged with all that this one is; fixed when it is made
	Amount string // a decimal from 0 to 10^12
	// Per is after how long nothing is used of it, again and again; 0 for never.
	// It is fixed when the budget is made.
	Per time.Duration
}

// PutBudget makes a budget or changes its amount. The budget as it then is comes
// as a message of govnode/v1.
func (c *Client) PutBudget(ctx context.Context, b Spending) (*govnodev1.Budget, error) {
	if b.Budget == "" {
		return nil, errors.New("client: Spending.Budget: empty: name the budget")
	}
	req := &govnodev1.PutBudgetRequest{Budget: b.Budget, Parent: b.Parent, Amount: b.Amount, Client: c.cfg.Name}
	if b.Per != 0 {
		req.Per = durationpb.New(b.Per)
	}
	res, err := change(ctx, c, "PutBudget", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.PutBudgetResponse, error) {
		return n.limits.PutBudget(ctx, req)
	})
	return res.GetBudget(), err
}

// GetBudget returns a budget as it stands, in a message of govnode/v1.
func (c *Client) GetBudget(ctx context.Context, budget string) (*govnodev1.Budget, error) {
	res, err := read(ctx, c, "GetBudget", func(ctx context.Context, n *node) (*govnodev1.GetBudgetResponse, error) {
		return n.limits.GetBudget(ctx, &govnodev1.GetBudgetRequest{Budget: budget})
	})
	return res.GetBudget(), err
}

// ListBudgets returns one page of the budgets, in messages of govnode/v1.
func (c *Client) ListBudgets(ctx context.Context, pageSize int32, pageToken string) (*govnodev1.ListBudgetsResponse, error) {
	return read(ctx, c, "ListBudgets", func(ctx context.Context, n *node) (*govnodev1.ListBudgetsResponse, error) {
		return n.limits.ListBudgets(ctx, &govnodev1.ListBudgetsRequest{PageSize: pageSize, PageToken: pageToken})
	})
}

// AdjustBudget adds to what is used of a budget and of all above it, for
// instance by a bill that came late; below 0 it gives back. The budget as it then
// is comes as a message of govnode/v1.
func (c *Client) AdjustBudget(ctx context.Context, budget, by string) (*govnodev1.Budget, error) {
	req := &govnodev1.AdjustBudgetRequest{Budget: budget, By: by, Client: c.cfg.Name}
	res, err := change(ctx, c, "AdjustBudget", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.AdjustBudgetResponse, error) {
		return n.limits.AdjustBudget(ctx, req)
	})
	return res.GetBudget(), err
}

// DeleteBudget removes a budget that is the parent of none.
func (c *Client) DeleteBudget(ctx context.Context, budget string) error {
	req := &govnodev1.DeleteBudgetRequest{Budget: budget, Client: c.cfg.Name}
	_, err := change(ctx, c, "DeleteBudget", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.DeleteBudgetResponse, error) {
		return n.limits.DeleteBudget(ctx, req)
	})
	return err
}
