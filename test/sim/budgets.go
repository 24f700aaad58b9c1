package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/test/check"
)

// Calls that cost something, and what is left of their budgets.

// unit is 1, as budgets count.
const unit = 1_000_000

// budgets are a tree: of all that is spent, and below it of some seconds, which
// many clients use up.
var budgets = map[string]check.Budget{
	"firm": {Amount: 1_000_000 * unit},
	"team": {Parent: "firm", Amount: 60 * unit, Per: 5 * time.Second},
	"desk": {Parent: "team", Amount: 25 * unit, Per: 3 * time.Second},
}

// till is where some wait while others spend what they will not have then.
const till = "till"

// decimal writes millionths.
func decimal(n int64) string { return fmt.Sprintf("%d.%06d", n/unit, n%unit) }

// millionths reads a decimal as the service writes it.
func millionths(decimal string) (int64, error) {
	whole, fraction, _ := strings.Cut(decimal, ".")
	return strconv.ParseInt(whole+(fraction + "000000")[:6], 10, 64)
}

func costs(of []check.Cost) (all []client.Cost) {
	for _, c := range of {
		all = append(all, client.Cost{Budget: c.Budget, Amount: decimal(c.Amount)})
	}
	return all
}

func (w *worker) putBudgets(ctx context.Context) error {
	for _, name := range []string{"firm", "team", "desk"} { // a parent before those below it
		b := budgets[name]
		if _, err := w.client.PutBudget(ctx, client.Spending{Budget: name, Parent: b.Parent, Amount: decimal(b.Amount), Per: b.Per}); err != nil {
			return err
		}
	}
	return nil
}

// spend begins a call that costs something, at once or after a wait, and says at
// its end what it has cost, or leaves that as it was assumed. Of some nobody says
// that they have ended. Its session is one whose calls are not counted, since a
// call that waits is counted meanwhile.
func (w *worker) spend(ctx context.Context) {
	if w.crowded == nil {
		if w.crowded = w.open(ctx); w.crowded == nil {
			return
		}
	}
	s := w.crowded
	o := check.Op{Client: w.name, Kind: check.Begin, Object: s.ID(), ID: newID(), Costs: w.draw([]string{"firm", "team", "desk"}), Call: w.recorder.now()}
	c := client.Call{ID: o.ID, Tool: "t", Wait: client.NoWait, TTL: 5 * time.Second, Costs: costs(o.Costs)}
	if w.rng.IntN(2) == 0 {
		c.Pools, c.Wait = []client.Want{{Pool: till}}, time.Duration(1+w.rng.Int64N(int64(2*time.Second)))
	}
	lapses := w.rng.IntN(8) == 0
	if lapses {
		c.TTL, c.MaxHold = time.Second, time.Second
	}
	w.recorder.begun(o)
	call, err := s.Begin(ctx, c)
	o.Return = w.recorder.now()
	w.recorder.took(o.Call, o.Return, max(0, c.Wait))
	o.Outcome, o.Text, o.Granted = outcome(err), text(err), err == nil
	if err == nil {
		o.Index = call.Begun().GetIndex()
	}
	no := (*client.Refused)(nil)
	if errors.As(err, &no) && no.Outcome == client.LeaseLost {
		o.Outcome = check.Applied // the answer that said so was lost, and then its lease
	}
	w.recorder.done(o)
	if no != nil && !slices.Contains([]client.Outcome{client.BudgetExceeded, client.WaitTimeout, client.QueueFull, client.Stopped, client.LeaseLost}, no.Outcome) {
		w.crowded = nil // its time is over, most likely
	}
	if err != nil || lapses {
		return
	}
	work := w.short()
	if c.Pools == nil && w.rng.IntN(20) == 0 {
		work = time.Duration(w.rng.Int64N(int64(4 * time.Second))) // into another period of its budgets
	}
	_ = pause(ctx, work)
	e := check.Op{Client: w.name, Kind: check.End, Object: s.ID(), ID: o.ID, Call: w.recorder.now()}
	if w.rng.IntN(3) > 0 {
		var charged []string
		for _, c := range o.Costs {
			charged = append(charged, c.Budget)
		}
		e.Costs = w.draw(charged)
	}
	w.finish(ctx, call, e)
}

// draw draws amounts of some budgets, of one at least.
func (w *worker) draw(of []string) (all []check.Cost) {
	first := w.rng.IntN(len(of))
	for i, name := range of {
		if i == first || w.rng.IntN(3) == 0 {
			all = append(all, check.Cost{Budget: name, Amount: w.rng.Int64N(6 * unit)})
		}
	}
	return all
}

// bill charges what came late to a budget, and to all above it.
func (w *worker) bill(ctx context.Context) {
	o := check.Op{Client: w.name, Kind: check.Adjust, Object: "team", ID: newID(), Amount: 1 + w.rng.Int64N(2*unit), Call: w.recorder.now()}
	w.recorder.begun(o)
	w.ask(ctx, o, func(ctx context.Context, o *check.Op) error {
		res, err := w.limits[w.rng.IntN(len(w.limits))].AdjustBudget(ctx, &v1.AdjustBudgetRequest{Budget: o.Object, By: decimal(o.Amount), RequestId: o.ID, Client: w.name})
		if err == nil {
			o.Index = res.Index
		}
		return err
	})
}

// spent reads what is used of the budgets that have no period, after all is over.
func (w *worker) spent(ctx context.Context) (map[string]int64, error) {
	out := map[string]int64{}
	for name, b := range budgets {
		if b.Per > 0 {
			continue
		}
		res, err := w.client.GetBudget(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("budget %s in the end: %w", name, err)
		}
		if out[name], err = millionths(res.GetUsed()); err != nil {
			return nil, fmt.Errorf("budget %s in the end: %w", name, err)
		}
	}
	return out, nil
}
