package limits

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/session/budget"
	"example.com/govnode/storage"
)

// Budgets: how they are put, adjusted, deleted and read, and what is above them.

// Tree finds what is above the budgets named. One that this node does not see is
// left to the state machine, which may know the call; it is missing where the
// latest state does not have it.
func (s *Service) Tree(ctx context.Context, ns string, costs map[string]int64, read storage.Read) ([]session.Charge, error) {
	parents := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(costs)) {
		for at := name; at != ""; at = parents[at] {
			if _, seen := parents[at]; seen {
				break
			}
			x, err := s.findBudget(ctx, ns, at, read)
			switch {
			case err != nil:
				return nil, err
			case x != nil:
				parents[at] = x.Parent
			case read == storage.Latest && at == name:
				return nil, fault.NotFound("budgets", "there is no budget %q; make it with PutBudget", name)
			default:
				parents[at] = ""
			}
		}
	}
	if most := int(input.Caps.Budgets.Max); len(parents) > most {
		return nil, fault.Invalid("budgets", "the budgets of this call and those above them are %d, the most is %d; name fewer", len(parents), most)
	}
	charges := make([]session.Charge, 0, len(parents))
	for _, name := range slices.Sorted(maps.Keys(parents)) {
		charges = append(charges, session.Charge{Budget: name, Parent: parents[name], Amount: costs[name]})
	}
	return charges, nil
}

// findBudget returns a budget; nil if there is none.
func (s *Service) findBudget(ctx context.Context, ns, name string, read storage.Read) (*session.Budget, error) {
	found, err := s.Store.Get(ctx, session.BudgetKey(ns, name), read)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	b, _ := found.Record.(*session.Budget)
	return b, nil
}

// budgetOf shows a budget.
func budgetOf(n *session.BudgetCount) *v1.Budget {
	out := &v1.Budget{
		Budget: n.Budget, Parent: n.Parent, Amount: input.FormatDecimal(n.Amount), Used: input.FormatDecimal(n.Used),
		Left: input.FormatDecimal(n.Left()), Depth: int32(n.Depth), Children: int32(n.Children), Share: 1,
	}
	if n.Amount > 0 {
		out.Share = float64(n.Used) / float64(n.Amount)
	}
	if n.Per > 0 {
		out.Per, out.PeriodEnds = durationpb.New(n.Per), durationpb.New(n.PeriodEnds)
	}
	return out
}

// PutBudget makes a budget, or changes its amount. Lowering it revokes nothing.
func (s *Service) PutBudget(ctx context.Context, req *v1.PutBudgetRequest) (*v1.PutBudgetResponse, error) {
	f := &input.Fields{}
	f.ID("budget", req.Budget)
	f.OptionalID("parent", req.Parent)
	if req.Parent == req.Budget && req.Parent != "" {
		f.Refuse("parent", "is the budget itself; name another one, or none")
	}
	cmd := &session.PutBudget{
		NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Budget: req.Budget, Parent: req.Parent,
		Amount: f.Amount("amount", req.Amount, 0),
	}
	if req.Per != nil {
		cmd.Per = f.Duration("per", req.Per, input.Caps.BudgetPer)
	}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.Store.Change(ctx, cmd, func(res *session.Result) error {
		switch {
		case res.Code == session.NotFound:
			return fault.NotFound("parent", "there is no budget %q; make it first", req.Parent)
		case res.Code == session.Invalid && len(res.Budgets) == 0:
			return fault.Invalid("parent", "%q is %d budgets deep, which is the most; choose one that is nearer to its root", req.Parent, res.Limit)
		case res.Code == session.Invalid && res.Budgets[0].Parent != req.Parent:
			return fault.Invalid("parent", "is fixed when a budget is made, and that of %q is %q; say the same, or delete the budget and make it anew", req.Budget, res.Budgets[0].Parent)
		case res.Code == session.Invalid:
			return fault.Invalid("per", "is fixed when a budget is made, and that of %q is %v; say the same, or delete the budget and make it anew", req.Budget, res.Budgets[0].Per)
		}
		return order.RequestFailure(cmd.By)(res)
	})
	if err != nil {
		return nil, err
	}
	s.Crossed(cmd.NS, &a.Result)
	s.changed(ctx, &a, "budget_put", req.Budget, "amount "+input.FormatDecimal(cmd.Amount), cmd.NS, cmd.By)
	out := &v1.PutBudgetResponse{Index: a.Index}
	if len(a.Result.Budgets) > 0 { // a repeat may come after DeleteBudget
		out.Budget = budgetOf(&a.Result.Budgets[0])
	}
	return out, nil
}

// AdjustBudget adds to what is used, of the budget and of all above it.
func (s *Service) AdjustBudget(ctx context.Context, req *v1.AdjustBudgetRequest) (*v1.AdjustBudgetResponse, error) {
	f := &input.Fields{}
	f.ID("budget", req.Budget)
	cmd := session.AdjustBudget{
		NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Budget: req.Budget, Amount: f.Amount("by", req.By, -budget.MaxAmount),
	}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.above(ctx, cmd.NS, req.Budget, func(ancestors []string) session.Command {
		next := cmd
		next.Ancestors = ancestors
		return &next
	}, func(res *session.Result) error {
		if res.Code == session.Invalid {
			return fault.Invalid("by", "is %s, and %s is used; no more can be given back, for the rest above it is of others", input.FormatDecimal(cmd.Amount), input.FormatDecimal(res.Limit))
		}
		return order.RequestFailure(cmd.By)(res)
	})
	if err != nil {
		return nil, err
	}
	s.Crossed(cmd.NS, &a.Result)
	s.changed(ctx, &a, "budget_adjusted", req.Budget, "by "+input.FormatDecimal(cmd.Amount), cmd.NS, cmd.By)
	out := &v1.AdjustBudgetResponse{Index: a.Index}
	if len(a.Result.Budgets) > 0 {
		out.Budget = budgetOf(&a.Result.Budgets[0])
	}
	return out, nil
}

// DeleteBudget removes a budget that is the parent of none.
func (s *Service) DeleteBudget(ctx context.Context, req *v1.DeleteBudgetRequest) (*v1.DeleteBudgetResponse, error) {
	f := &input.Fields{}
	f.ID("budget", req.Budget)
	cmd := session.DeleteBudget{NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Budget: req.Budget}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.above(ctx, cmd.NS, req.Budget, func(ancestors []string) session.Command {
		next := cmd
		if len(ancestors) > 0 {
			next.Parent = ancestors[0]
		}
		return &next
	}, func(res *session.Result) error {
		if res.Code == session.BudgetHasChildren {
			return fault.OfResult(res, fmt.Sprintf("budget %q", req.Budget))
		}
		return order.RequestFailure(cmd.By)(res)
	})
	if err != nil {
		return nil, err
	}
	s.changed(ctx, &a, "budget_deleted", req.Budget, "", cmd.NS, cmd.By)
	return &v1.DeleteBudgetResponse{Index: a.Index}, nil
}

// above orders a command whose premise is what is above a budget, from its parent
// on. The order decides whether there is one: a request may be known that has
// deleted it.
func (s *Service) above(ctx context.Context, ns, name string, on func(ancestors []string) session.Command, refused func(*session.Result) error) (storage.Answer, error) {
	return s.Store.ChangeOn(ctx, func(*session.Result) (session.Command, error) {
		var ancestors []string
		for at := name; len(ancestors) < budget.MaxDepth; {
			b, err := s.findBudget(ctx, ns, at, storage.Latest)
			if err != nil {
				return nil, err
			}
			if b == nil || b.Parent == "" {
				break
			}
			at = b.Parent
			ancestors = append(ancestors, at)
		}
		return on(ancestors), nil
	}, func(res *session.Result) error {
		if res.Code == session.NotFound {
			return fault.NotFound("budget", "there is no budget %q; make it with PutBudget", name)
		}
		return refused(res)
	})
}

// GetBudget returns a budget as it stands.
func (s *Service) GetBudget(ctx context.Context, req *v1.GetBudgetRequest) (*v1.GetBudgetResponse, error) {
	f := &input.Fields{}
	f.ID("budget", req.Budget)
	read := order.ReadOf(f, req.Consistency)
	if f.Err != nil {
		return nil, f.Err
	}
	found, err := s.Store.Get(ctx, session.BudgetKey(input.Namespace(ctx), req.Budget), read)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	b, ok := found.Record.(*session.Budget)
	if !ok || b == nil {
		return nil, fault.NotFound("budget", "there is no budget %q; make it with PutBudget", req.Budget)
	}
	n := b.Count(req.Budget, found.Now)
	return &v1.GetBudgetResponse{Budget: budgetOf(&n), AppliedIndex: found.Index}, nil
}

// ListBudgets returns budgets in the order of their names.
func (s *Service) ListBudgets(ctx context.Context, req *v1.ListBudgetsRequest) (*v1.ListBudgetsResponse, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, req.Consistency)
	p := order.PageOf(f, req.PageSize, req.PageToken)
	if f.Err != nil {
		return nil, f.Err
	}
	entries, next, view, err := s.Store.List(ctx, session.KindBudget, p, read, nil)
	if err != nil {
		return nil, err
	}
	out := &v1.ListBudgetsResponse{NextPageToken: next, AppliedIndex: view.Index}
	for _, e := range entries {
		n := e.Record.(*session.Budget).Count(e.Key.Name(), view.Now)
		out.Budgets = append(out.Budgets, budgetOf(&n))
	}
	return out, nil
}
