package cluster

import (
	"context"
	"time"

	"github.com/hashicorp/raft"

	"example.com/govnode/internal/seeded"
	"example.com/govnode/session"
)

// How a node begins to lead and ends, and how it follows who leads.

// watchLeadership follows what Raft says about this node's own leadership.
func (n *Node) watchLeadership(notify <-chan bool) {
	stop := func() {}
	for {
		select {
		case <-n.ctx.Done():
			stop()
			return
		case leads := <-notify:
			stop()
			n.announce()
			if leads {
				var ctx context.Context
				ctx, stop = context.WithCancel(n.ctx)
				n.tasks.Go(func() { n.lead(ctx) })
			}
		}
	}
}

// lead serves one leadership, from its barrier until ctx is done.
func (n *Node) lead(ctx context.Context) {
	term, ok := n.barrier(ctx)
	if !ok {
		return
	}
	l := &leadership{
		term: term, ctx: ctx, clock: newClock(n.fsm.begin(), n.cfg.Clocks), queue: newQueue(n.cfg.MaxQueue, entrySize),
		raft: n.raft, known: n.members, metrics: n.metrics, lapses: &n.Lapses, tasks: &n.tasks, dead: n.dead, own: n.fsm.own, idle: make(chan struct{}),
	}
	if seeded.On(seeded.RestartTTL) {
		l.clock.at -= 30 * time.Second
	}
	if seeded.On(seeded.OldClock) {
		l.clock = seededClock(n, l.clock)
	}
	if seeded.On(seeded.AnswerEarly) {
		seededState(l, n.fsm)
	}
	l.now = l.clock.Now
	if n.cfg.LogTime != nil {
		l.now = n.cfg.LogTime
	}
	n.members.settle(n.servers) // also those who have come since the others were asked last
	if !n.take(l) {
		return
	}
	defer n.drop(l)
	n.settleIn()
	n.cfg.Logger.Info("leads", "term", term, "logTime", n.fsm.now())
	n.metrics.leaderships.Inc()
	n.tasks.Go(l.propose)
	n.tasks.Go(func() { l.clock.run(ctx) })
	n.tasks.Go(func() { n.orderChecks(l) })
	(&housekeeper{now: l.now, due: n.fsm.due, overdue: n.fsm.overdue, propose: l.tick}).run(ctx)
}

// barrier waits until this node has applied whatever earlier leaders may have
// acknowledged, and returns the term in which it leads.
func (n *Node) barrier(ctx context.Context) (term uint64, ok bool) {
	for ctx.Err() == nil {
		term = n.raft.CurrentTerm()
		if seeded.On(seeded.NoBarrier) {
			return term, true
		}
		err := await(n.raft.Barrier(enqueueTimeout), n.dead)
		// Terms only grow: what was a leader's between two looks at the same
		// term was that term's.
		if err == nil && n.raft.CurrentTerm() == term && n.raft.State() == raft.Leader {
			return term, true
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	return 0, false
}

// take makes l what this node serves, unless it has ended by now.
func (n *Node) take(l *leadership) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.ctx.Err() != nil {
		return false
	}
	n.leading.Store(l)
	n.led.Store(true)
	n.announceLocked()
	return true
}

func (n *Node) drop(l *leadership) {
	n.leading.CompareAndSwap(l, nil)
	l.queue.close(errElsewhere)
	n.cfg.Logger.Info("leads no more", "term", l.term)
	n.announce()
}

// tick proposes a Tick and waits for it.
func (l *leadership) tick(ctx context.Context, t *session.Tick) error {
	g := newGroup([]pending{{cmd: t, raw: session.EncodeCommand(t), until: time.Now().Add(enqueueTimeout)}})
	if err := l.queue.first(g); err != nil {
		return err
	}
	select {
	case <-g.done:
		return g.answers[0].Failure()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watchLeader follows what Raft says about who leads.
func (n *Node) watchLeader() {
	changes := make(chan raft.Observation, 16)
	o := raft.NewObserver(changes, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	n.raft.RegisterObserver(o)
	defer n.raft.DeregisterObserver(o)
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-changes:
			n.announce()
		}
	}
}

// announce wakes those who wait for a leader, and drops the stream to a former
// one: what it has not answered is unknown and will be sent to the new one.
func (n *Node) announce() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.announceLocked()
}

func (n *Node) announceLocked() {
	close(n.moved)
	n.moved = make(chan struct{})
	if f := n.forward; f != nil {
		if address, _ := n.raft.LeaderWithID(); string(address) != f.address {
			f.cancel()
			n.forward = nil
		}
	}
	select {
	case n.greet <- struct{}{}:
	default:
	}
}

// leader returns the leadership if it is this node's, or the address of who
// leads, or neither; and a channel that is closed when that may have changed.
func (n *Node) leader() (l *leadership, address string, moved <-chan struct{}) {
	n.mu.Lock()
	moved = n.moved
	n.mu.Unlock()
	if l = n.leading.Load(); l != nil {
		return l, "", moved
	}
	a, id := n.raft.LeaderWithID()
	if a != "" && !n.led.Load() { // most often it is known, and not written
		n.led.Store(true)
	}
	if id == raft.ServerID(n.cfg.ID) {
		a = "" // before its barrier, or after its end
	}
	return nil, string(a), moved
}
