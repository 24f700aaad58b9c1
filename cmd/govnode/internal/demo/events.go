package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/govnode/client"
	"example.com/govnode/cmd/govnode/internal/dev"
)

// What the demo makes happen: workers and the leader are killed, the cluster
// goes on, and the workers stop.

const (
	// How long to wait for something to happen that always does.
	patienceOfDemo = 20 * time.Second
	pollOfDemo     = 50 * time.Millisecond
)

// await polls until something is so.
func await(ctx context.Context, what string, so func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patienceOfDemo)
	defer cancel()
	tick := time.NewTicker(pollOfDemo)
	defer tick.Stop()
	for {
		ok, err := so()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %v", what, patienceOfDemo)
		case <-tick.C:
		}
	}
}

// killHolder kills a worker while it holds a slot. So that it surely does, it is
// told before to keep the next one that it gets.
func (d *demoRun) killHolder(ctx context.Context, i int) error {
	w, book := d.fleet[i], d.books.workers[i]
	w.tell("hold")
	err := await(ctx, fmt.Sprintf("worker %d holds a slot", w.orders.Index), func() (bool, error) {
		if err := d.readLedgers(); err != nil {
			return false, err
		}
		return book.holding, d.workersAlive()
	})
	if err != nil {
		return err
	}
	held := book.order[len(book.order)-1]
	w.killed = true
	w.end()
	died := machineTime()
	d.say(">>> worker %d holds the slot with token %d: killed with SIGKILL", w.orders.Index, held.token)
	d.watching.Go(func() { d.watchSlot(ctx, w.orders.Index, held.token, died) })
	return nil
}

// watchSlot finds out when the slot of a dead worker is free.
func (d *demoRun) watchSlot(ctx context.Context, worker int, token uint64, died time.Duration) {
	err := await(ctx, "the slot is free", func() (bool, error) {
		slots, err := d.client.ListSlots(ctx, demoPool)
		if err != nil {
			return false, ctx.Err() // there may be no leader now: it is asked again
		}
		for _, s := range slots.GetSlots() {
			if s.GetToken() == token {
				return false, nil
			}
		}
		return true, nil
	})
	took := machineTime() - died
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			d.problems = append(d.problems, fmt.Sprintf("the slot of worker %d was not free %v after its death", worker, round(took)))
		}
		return
	}
	d.freed = append(d.freed, took)
	d.say("    the slot of worker %d is free again, %v after its death (leases of %v)", worker, round(took), d.options.ttl())
}

// killLeader kills the node that leads, which dev starts again.
func (d *demoRun) killLeader(ctx context.Context) error {
	var n dev.Node
	err := await(ctx, "somebody leads", func() (bool, error) {
		var known bool
		n, known = d.cluster.Node(d.cluster.Leader(ctx, ""))
		return known, nil
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.leader, d.dead = "", n.Name
	d.mu.Unlock()
	if err := d.cluster.Kill(n); err != nil {
		return fmt.Errorf("%s could not be killed: %w", n.Name, err)
	}
	killed := machineTime()
	d.report.LeaderKilled = n.Name
	d.say(">>> %s, the leader (pid %d): killed with SIGKILL", n.Name, n.PID)
	d.watching.Go(func() { d.watchReturn(ctx, n, killed) })
	return nil
}

// watchReturn finds out when a node that was killed takes work again.
func (d *demoRun) watchReturn(ctx context.Context, dead dev.Node, killed time.Duration) {
	err := await(ctx, dead.Name+" is back", func() (bool, error) {
		n, _ := d.cluster.Node(dead.Name)
		return n.Starts > dead.Starts && d.cluster.IsReady(ctx, n), nil
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			d.problems = append(d.problems, dead.Name+" did not come back")
		}
		return
	}
	n, _ := d.cluster.Node(dead.Name)
	d.report.LeaderBack = (machineTime() - killed).Seconds()
	d.say("    %s is back (pid %d), %v after its death", n.Name, n.PID, round(machineTime()-killed))
}

// watchLeader keeps up with who leads.
func (d *demoRun) watchLeader(ctx context.Context) {
	told := ""
	tick := time.NewTicker(pollOfDemo)
	defer tick.Stop()
	for {
		d.mu.Lock()
		dead := d.dead
		d.mu.Unlock()
		name := d.cluster.Leader(ctx, dead)
		d.mu.Lock()
		if name != "" && name != d.dead {
			d.leader, d.dead = name, ""
		}
		leader := d.leader
		d.mu.Unlock()
		if leader != "" && leader != told {
			d.say("    %s leads", leader)
			told = leader
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (d *demoRun) currentLeader() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leader
}

// stopFleet lets the workers finish what they are at and end.
func (d *demoRun) stopFleet(ctx context.Context) error {
	d.say("the workers stop")
	for _, w := range d.fleet {
		w.tell("stop")
	}
	for _, w := range d.fleet {
		select {
		case <-w.ended:
		case <-time.After(2 * patienceOfDemo):
			return fmt.Errorf("worker %d does not stop", w.orders.Index)
		case <-ctx.Done():
			return ctx.Err()
		}
		if !w.killed && !w.cmd.ProcessState.Success() {
			return fmt.Errorf("worker %d failed: %s", w.orders.Index, w.lastWords())
		}
	}
	return d.readLedgers()
}

// resolve learns what became of everything that a worker has no answer to, by
// asking for the same things again under the same ids, as the worker.
func (d *demoRun) resolve(ctx context.Context, i int) (n int, err error) {
	open := d.books.workers[i].unresolved()
	if len(open) == 0 {
		return 0, nil
	}
	orders := d.fleet[i].orders
	c, err := orders.client()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for _, t := range open {
		var entries []entry
		if t.intent.Session != "" {
			entries, err = resolveCall(ctx, c, orders, t)
		} else {
			entries, err = resolveSlot(ctx, c, orders, t)
		}
		if err != nil {
			return n, err
		}
		d.books.add(i, entries)
		n++
	}
	return n, nil
}

// resolveCall begins a call again. If it was admitted it is ended, as the
// worker was about to.
func resolveCall(ctx context.Context, c *client.Client, orders workerOrders, t *thing) ([]entry, error) {
	at := entry{Session: t.intent.Session, ID: t.intent.ID, What: wroteAnswer}
	call := orders.call(at.ID, t.intent.Tool)
	call.Wait = client.NoWait
	open, err := c.Session(at.Session).Begin(ctx, call)
	if err != nil {
		if at.Outcome = outcomeOf(err); at.Outcome == "" {
			return nil, err
		}
		if t.finish == nil {
			return []entry{at}, nil
		}
		at.What = wroteDone // the end that was reported has arrived, or came too late
		return []entry{at}, nil
	}
	at.Outcome = admitted
	finish, done := at, at
	finish.What, done.What = wroteFinish, wroteDone
	status := client.Cancelled
	if t.finish != nil {
		if finish.Failed, status = t.finish.Failed, client.Succeeded; finish.Failed {
			status = client.Failed
		}
	}
	done.Outcome = "ENDED"
	if err := open.End(ctx, status); err != nil {
		if done.Outcome = outcomeOf(err); done.Outcome == "" {
			return nil, err
		}
	}
	return []entry{at, finish, done}, nil
}

// resolveSlot asks for a slot again. If it was granted it is given back.
func resolveSlot(ctx context.Context, c *client.Client, orders workerOrders, t *thing) ([]entry, error) {
	at := entry{ID: t.intent.ID, What: wroteAnswer}
	slot, err := c.Acquire(ctx, orders.Pool, client.SlotID(at.ID), client.TTL(orders.TTL), client.Wait(client.NoWait))
	if err == nil {
		err = slot.Release()
		at.Outcome = admitted
	}
	if err != nil {
		if at.Outcome = outcomeOf(err); at.Outcome == "" {
			return nil, err
		}
	}
	done := at
	done.What = wroteDone
	return []entry{at, done}, nil
}
