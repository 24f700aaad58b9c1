package demo

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"example.com/govnode/client"
)

// The scenes with gates. Each makes callers come to one, and returns how that is
// judged.

const (
	// The STOP of the fleet stands so long, and up to so long until every worker
	// has come to know it.
	lengthOfStop, longestStop = time.Second, 5 * time.Second
	// Payments that are asked about: 10, 20, 30 and so on, and up to which of
	// them there is a yes.
	payments, mostOfPayment = 6, 40
	// So many callers share a rate until so many calls of theirs were admitted.
	rateLimit, ratePer, rateCallers, rateCalls = 5, time.Second, 4, 15
	// So many callers share a budget, and each begins so many calls.
	budgetAmount, budgetCallers, budgetCalls = 50, 4, 4

	// The pool whose tokens number the calls of the fleet as they are admitted:
	// it has room for all, and is the last that a call takes.
	turnstile = "demo/turnstile"
)

// costOfCall is what a call is charged to that budget.
var costOfCall = charge{assumed: 9, spent: 4}

// aside lets a scene play while the fleet goes on, and keeps what it has found.
func (d *demoRun) aside(name string, into *gate, play func(context.Context) (gate, error)) func(context.Context) error {
	return func(ctx context.Context) error {
		d.scenes.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 2*patienceOfDemo)
			defer cancel()
			found, err := play(ctx)
			d.mu.Lock()
			defer d.mu.Unlock()
			if *into = found; err != nil {
				d.problems = append(d.problems, fmt.Sprintf("the %s could not be shown: %v", name, err))
			}
		})
		return nil
	}
}

// stopTheFleet stops all calls of the fleet for a while. What it comes to is judged
// when the ledgers are complete.
func (d *demoRun) stopTheFleet(ctx context.Context) (err error) {
	s := &d.books.stop
	s.sent = machineTime()
	if _, err := d.client.Signal(ctx, client.Target{Policy: demoPolicy}, client.Stop, "the demo shows it"); err != nil {
		return err
	}
	s.answered = machineTime()
	d.say(">>> STOP: no call of the fleet is let in any more; what runs may end")
	if s.first, err = d.pass(ctx); err != nil {
		return err
	}
	err = await(ctx, "every worker is kept out", func() (bool, error) {
		if err := d.readLedgers(); err != nil {
			return false, err
		}
		waiting := 0
		for _, t := range d.books.calls() {
			if t.outcome == "" {
				waiting++
			}
		}
		stood := machineTime() - s.answered
		return stood >= longestStop || stood >= lengthOfStop && waiting == len(d.fleet), d.workersAlive()
	})
	if err != nil {
		return err
	}
	d.progress()
	if s.last, err = d.pass(ctx); err != nil {
		return err
	}
	s.lifted = machineTime()
	if _, err = d.client.Signal(ctx, client.Target{Policy: demoPolicy}, client.Continue, ""); err != nil {
		return err
	}
	d.say(">>> CONTINUE: the calls that were kept out go on by themselves")
	return nil
}

// pass goes through the turnstile without a call, and returns its number.
func (d *demoRun) pass(ctx context.Context) (uint64, error) {
	slot, err := d.client.Acquire(ctx, turnstile)
	if err != nil {
		return 0, err
	}
	return slot.Token(), slot.Release()
}

// askPeople makes payments that somebody has to agree to. Another process decides,
// at a node that does not lead.
func (d *demoRun) askPeople(ctx context.Context) (gate, error) {
	g, err := d.newGroup(ctx, "demo-payments", "require_human_approval: true\napproval: {timeout: 60s}\n")
	if err != nil {
		return gate{}, err
	}
	nodes, leader := d.cluster.List(), d.currentLeader()
	if nodes[0].Name == leader {
		nodes[0], nodes[1] = nodes[1], nodes[0]
	}
	orders := approverOrders{Ledger: filepath.Join(d.folder, "approver.jsonl"), Most: mostOfPayment}
	for _, n := range nodes {
		orders.Addresses = append(orders.Addresses, n.API)
	}
	approver, err := startChild(d.spawner, "approver", orders, d.stderr)
	if err != nil {
		return gate{}, err
	}
	defer approver.end()
	d.say(">>> APPROVAL: %d payments wait until somebody agrees; another process decides, at %s (pid %d)", payments, nodes[0].Name, approver.cmd.Process.Pid)
	err = together(payments, func(i int) error {
		_, err := g.call(ctx, client.Call{ID: fmt.Sprintf("p%d", i), Tool: "pay", Arguments: map[string]any{"amount": 10 * (i + 1)}}, 0)
		return err
	})
	if err != nil {
		return gate{}, err
	}
	approver.tell("stop")
	select {
	case <-approver.ended:
	case <-ctx.Done():
		return gate{}, ctx.Err()
	}
	if !approver.cmd.ProcessState.Success() {
		return gate{}, fmt.Errorf("the process that decides has failed: %s", approver.lastWords())
	}
	ledger := ledgerReader{path: orders.Ledger}
	entries, err := ledger.next()
	if err != nil {
		return gate{}, err
	}
	found := withoutApproval(g.calls, votesOf(entries))
	d.say("    APPROVAL: %d payments went on, %d were denied", found.Admitted, found.KeptOut)
	return found, nil
}

// useRate lets callers share a rate, each as fast as it may. Who is refused comes
// back when he was told to.
func (d *demoRun) useRate(ctx context.Context) (gate, error) {
	g, err := d.newGroup(ctx, "demo-rate", fmt.Sprintf("rate_limits: [{name: calls, limit: %d, per: %v}]\n", rateLimit, ratePer))
	if err != nil {
		return gate{}, err
	}
	d.say(">>> RATE: %d callers together may make %d calls in any %v, and want to make %d", rateCallers, rateLimit, ratePer, rateCalls)
	began := machineTime()
	var made atomic.Int32
	err = together(rateCallers, func(i int) error {
		for n := 0; made.Load() < rateCalls; n++ {
			a, err := g.call(ctx, client.Call{ID: fmt.Sprintf("r%d-%d", i, n), Tool: "model", Wait: client.NoWait}, 0)
			if err != nil {
				return err
			}
			if a.outcome == admitted {
				made.Add(1)
			}
			if err := pause(ctx, a.retryAfter); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return gate{}, err
	}
	found := overRate(g.calls, rateLimit, ratePer)
	d.say("    RATE: they have made %d, in %v", found.Admitted, round(machineTime()-began))
	return found, nil
}

// useBudget lets callers spend more than there is.
func (d *demoRun) useBudget(ctx context.Context) (gate, error) {
	g, err := d.newGroup(ctx, "demo-budget", "")
	if err != nil {
		return gate{}, err
	}
	if _, err := d.client.PutBudget(ctx, client.Spending{Budget: "demo-budget", Amount: strconv.Itoa(budgetAmount)}); err != nil {
		return gate{}, err
	}
	d.say(">>> BUDGET: %d callers share %d; a call is charged %d when it begins, and has cost %d in the end", budgetCallers, budgetAmount, costOfCall.assumed, costOfCall.spent)
	err = together(budgetCallers, func(i int) error {
		for n := range budgetCalls {
			call := client.Call{
				ID: fmt.Sprintf("b%d-%d", i, n), Tool: "model", Wait: client.NoWait,
				Costs: []client.Cost{{Budget: "demo-budget", Amount: strconv.Itoa(costOfCall.assumed)}},
			}
			spent := client.Spent(client.Cost{Budget: "demo-budget", Amount: strconv.Itoa(costOfCall.spent)})
			if _, err := g.call(ctx, call, 20*time.Millisecond, spent); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return gate{}, err
	}
	found := overBudget(g.calls, budgetAmount, costOfCall)
	left, err := d.client.GetBudget(ctx, "demo-budget")
	if err != nil {
		return gate{}, err
	}
	if spent := strconv.Itoa(found.Admitted * costOfCall.spent); left.GetUsed() != spent {
		return found, fmt.Errorf("the service says that %s is used of the budget, and its callers have spent %s", left.GetUsed(), spent)
	}
	d.say("    BUDGET: there was room for %d calls, %d were refused; %s is left", found.Admitted, found.KeptOut, left.GetLeft())
	return found, nil
}
