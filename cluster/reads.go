package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Get implements storage.Store. A Nearby read is of this node's own state.
func (n *Node) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if r == storage.Latest {
		if err := n.catchUp(ctx); err != nil {
			return storage.Found{}, err
		}
	}
	return n.fsm.get(k), nil
}

// View implements storage.Store.
func (n *Node) View(ctx context.Context, r storage.Read) (storage.View, error) {
	if r == storage.Latest {
		if err := n.catchUp(ctx); err != nil {
			return storage.View{}, err
		}
	}
	return n.fsm.viewed(), nil
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
		r, err := n.peers.at(leader).ReadIndex(ctx, &nodev1.ReadIndexRequest{})
		if err == nil {
			index = r.GetIndex()
		}
		return err
	})
	if err != nil {
		return unavailable(err)
	}
	return n.wait(ctx, index)
}

// wait returns when the index has been applied here.
func (n *Node) wait(ctx context.Context, index uint64) error {
	done := n.fsm.reached(index)
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		n.fsm.leave(done)
		return unavailable(fmt.Errorf("this node has not caught up: it has applied %d of %d: %w", n.fsm.applied(), index, ctx.Err()))
	case <-n.ctx.Done():
		return unavailable(errClosed)
	}
}

// readIndex returns an index that covers every change acknowledged before the
// call. It is that of the latest entry applied here: what was acknowledged
// under this leadership was applied by this node first, and what was
// acknowledged before lies behind this leadership's barrier. The round that
// follows proves that there was no later leadership when the call came in.
func (n *Node) readIndex(ctx context.Context, l *leadership) (uint64, error) {
	index := n.fsm.applied()
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
	answers := make(chan uint64, len(n.servers())) // 0: none
	asked := 0
	for _, s := range n.servers() {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if s.ID == raft.ServerID(n.cfg.ID) {
			if n.raft.State() == raft.Leader && n.raft.CurrentTerm() == l.term {
				agree++
			}
			continue
		}
		asked++
		go func() { answers <- n.askTerm(ctx, string(s.Address)) }()
	}
	for ; agree <= voters/2; asked-- {
		if asked == 0 {
			return errors.New("no majority of the voters answers this node")
		}
		switch term := <-answers; {
		case term > l.term:
			return errDeposed
		case term == l.term:
			agree++
		}
	}
	return nil
}

func (n *Node) askTerm(ctx context.Context, address string) uint64 {
	r, err := n.peers.at(address).Term(ctx, &nodev1.TermRequest{})
	if err != nil {
		return 0
	}
	return r.GetTerm()
}
