package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	"example.com/govnode/internal/seeded"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// How a node reads: its own state, or one that has all that was acknowledged
// before.

// Get implements storage.Store. A Nearby read is of this node's own state.
func (n *Node) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if r == storage.Latest {
		if err := n.catchUp(ctx); err != nil {
			return storage.Found{}, err
		}
	}
	return n.fsm.get(k), nil
}

// View implements storage.Store. It has all namespaces, whatever is asked for.
func (n *Node) View(ctx context.Context, _ string, r storage.Read) (storage.View, error) {
	if r == storage.Latest {
		if err := n.catchUp(ctx); err != nil {
			return storage.View{}, err
		}
	}
	return n.fsm.viewed(), nil
}

// Count implements storage.Counting.
func (n *Node) Count(_ context.Context, ns string) (session.Tally, error) {
	return n.fsm.tally(ns), nil
}

// Settled implements storage.Settling: this node applies what any other has asked for.
func (n *Node) Settled() *storage.Settled { return &n.fsm.settled }

// Unswept implements storage.Sweeping: the leader sees to KILLs.
func (n *Node) Unswept(context.Context) []session.Key {
	if l, _, _ := n.leader(); l == nil {
		return nil
	}
	return n.fsm.unswept()
}

// Changed implements storage.Store.
func (n *Node) Changed() <-chan struct{} { return n.fsm.changed }

// catchUp returns when this node has applied every change that was acknowledged
// before the call.
func (n *Node) catchUp(ctx context.Context) error {
	ctx, cancel := n.deadline(ctx)
	defer cancel()
	var index uint64
	err := n.atLeader(ctx, func(ctx context.Context, l *leadership) (err error) {
		index, err = n.readIndex(ctx, l)
		return err
	}, func(ctx context.Context, leader string) error {
		ctx, cancel := context.WithTimeout(ctx, n.cfg.RPCTimeout)
		defer cancel()
		go n.whileLeads(ctx, leader, cancel)
		r, err := n.peers.At(leader).ReadIndex(ctx, &nodev1.ReadIndexRequest{})
		if err == nil {
			index = r.GetIndex()
		}
		return remote(err)
	})
	if err != nil {
		return storage.Unread(err)
	}
	return n.wait(ctx, index)
}

// whileLeads gives a request up when the node that was asked is not known to
// lead any more: one that hangs answers too late for whoever could ask the next
// leader. It returns when ctx is done.
func (n *Node) whileLeads(ctx context.Context, leader string, giveUp func()) {
	for {
		_, address, moved := n.leader()
		if address != leader {
			giveUp()
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// wait returns when the index has been applied here.
func (n *Node) wait(ctx context.Context, index uint64) error {
	done := n.fsm.reached(index)
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		n.fsm.leave(done)
		return storage.Unread(fmt.Errorf("this node has not caught up: it has applied %d of %d: %w", n.fsm.applied(), index, ctx.Err()))
	case <-n.ctx.Done():
		return storage.Unread(errClosed)
	}
}

// readIndex returns an index that covers every change acknowledged before the
// call. It is that of the latest entry applied here: what was acknowledged
// under this leadership was applied by this node first, and what was
// acknowledged before lies behind this leadership's barrier. The round that
// follows proves that there was no later leadership when the call came in.
func (n *Node) readIndex(ctx context.Context, l *leadership) (uint64, error) {
	index := n.fsm.applied()
	if seeded.On(seeded.ReadUnasked) {
		return index, nil
	}
	err := l.rounds.confirm(ctx, func() error { return n.askTerms(l) })
	return index, err
}

// rounds lets those who need a proof of leadership share one. A request takes
// part in a round only if the round begins after the request came in.
type rounds struct {
	mu      sync.Mutex
	running bool
	next    *round // begins when the one under way has ended
}

type round struct {
	done chan struct{}
	err  error
}

func (r *rounds) confirm(ctx context.Context, ask func() error) error {
	r.mu.Lock()
	if r.next == nil {
		r.next = &round{done: make(chan struct{})}
	}
	mine := r.next
	if !r.running {
		r.running = true
		go r.run(ask)
	}
	r.mu.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *rounds) run(ask func() error) {
	for {
		r.mu.Lock()
		now := r.next
		r.next, r.running = nil, now != nil
		r.mu.Unlock()
		if now == nil {
			return
		}
		now.err = ask()
		close(now.done)
	}
}

// errDeposed reports that a voter has seen a later term.
var errDeposed = fmt.Errorf("%w any more", errElsewhere)

// askTerms returns nil once a majority of the voters, this node included, says
// that the term of the leadership is the latest it has seen. Then nobody was
// elected in a later term before the question was asked. Raft's own
// VerifyLeader is not enough: it counts answers to requests that were sent
// before the read came in, and those of members without a vote.
func (n *Node) askTerms(l *leadership) (err error) {
	defer func() { n.metrics.round(err) }()
	ctx, cancel := context.WithTimeout(l.ctx, n.cfg.RPCTimeout)
	defer cancel()
	voters, agree := 0, 0
	var others []string
	for _, s := range n.servers() {
		switch {
		case !isVoter(&s):
			continue
		case s.ID != raft.ServerID(n.cfg.ID):
			others = append(others, string(s.Address))
		case n.raft.State() == raft.Leader && n.raft.CurrentTerm() == l.term:
			agree++
		}
		voters++
	}
	return confirmTerm(l.term, others, voters/2+1-agree, func(address string) uint64 { return n.askTerm(ctx, address) })
}

// confirmTerm asks other voters, all at once, for the latest term that each has
// seen, 0 being no answer, and returns nil once enough of them have named this
// one.
func confirmTerm(term uint64, voters []string, enough int, ask func(address string) uint64) error {
	answers := make(chan uint64, len(voters)) // those that come after the round have a place, too
	for _, v := range voters {
		go func() { answers <- ask(v) }()
	}
	for asked := len(voters); enough > 0; asked-- {
		if asked == 0 {
			return errors.New("no majority of the voters answers this node")
		}
		switch seen := <-answers; {
		case seen > term:
			return errDeposed
		case seen == term:
			enough--
		}
	}
	return nil
}

func (n *Node) askTerm(ctx context.Context, address string) uint64 {
	r, err := n.peers.At(address).Term(ctx, &nodev1.TermRequest{})
	if err != nil {
		return 0
	}
	return r.GetTerm()
}
