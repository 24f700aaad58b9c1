package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/raft"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
)

// How leadership is passed on.

// TransferLeadership makes the voter of that name the leader, or any that is
// caught up if id is empty. It works on any node, and returns once the present
// leader has stepped down. As long as the voter is down or lacks entries it is asked
// again, and not handed anything.
func (n *Node) TransferLeadership(ctx context.Context, id string) error {
	asked := "" // the address of a leader that may have stepped down for it
	ask := func(leader string, transfer func() error) error {
		if id == "" && asked != "" && asked != leader {
			return nil
		}
		err := transfer()
		if isUnknown(err) || errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			asked = leader
		}
		return err
	}
	return n.change(ctx, func(ctx context.Context, _ *leadership) error {
		return ask(n.cfg.Address, func() error { return n.transferHere(ctx, id) })
	}, func(ctx context.Context, leader string) error {
		return ask(leader, func() error {
			_, err := n.peers.At(leader).TransferLeadership(ctx, &nodev1.TransferLeadershipRequest{Node: id})
			return sent(err)
		})
	})
}

// transferHere is TransferLeadership on the leader.
func (n *Node) transferHere(ctx context.Context, id string) error {
	if id == n.cfg.ID {
		return nil
	}
	next, err := n.successor(ctx, id)
	if err != nil {
		return err
	}
	return n.config(ctx, n.raft.LeadershipTransferToServer(next.ID, next.Address))
}

// successor returns the voter of that name if it has everything; any that has, if id is
// empty. Raft would choose one by what it was sent last, whether it is still there or not.
func (n *Node) successor(ctx context.Context, id string) (*raft.Server, error) {
	if id != "" {
		s, known := n.member(id)
		if !known {
			return nil, invalidField("node", "%q is no member of this cluster", id)
		}
		if !isVoter(&s) {
			return nil, invalidField("node", "%s has no vote", id)
		}
		return &s, n.hasEverything(ctx, &s)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		from *raft.Server
		err  error
	}
	others := slices.DeleteFunc(slices.Clone(n.servers()), func(s raft.Server) bool { return !isVoter(&s) || string(s.ID) == n.cfg.ID })
	answers := make(chan answer, len(others)) // those that come late have a place, too
	for _, s := range others {
		go func() { answers <- answer{&s, n.hasEverything(ctx, &s)} }()
	}
	err := invalidField("node", "there is no other voter")
	for range others {
		a := <-answers
		if a.err == nil {
			return a.from, nil
		}
		err = a.err
	}
	return nil, err
}

// hasEverything waits, for no longer than an answer may take, until a member has applied
// what this node has applied now. Raft takes no commands while it hands leadership on, and
// waits for entries that the member lacks; where it does not reach the member, that is
// until it tries again, up to ten seconds later.
func (n *Node) hasEverything(ctx context.Context, s *raft.Server) error {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	own, has := n.fsm.applied(), uint64(0)
	for pause := (backoff{}); ; {
		h, err := n.ask(ctx, s)
		if err == nil {
			has = h.GetAppliedIndex()
		} else if has == 0 {
			return fmt.Errorf("%s does not answer at %s, and cannot take over: %w", s.ID, s.Address, err)
		}
		if has >= own {
			return nil
		}
		if !pause.wait(ctx, n.ctx.Done()) {
			return fmt.Errorf("%s lacks entries, and cannot take over: it has applied %d of %d", s.ID, has, own)
		}
	}
}

// Drain makes the node take no more commands, lets those under way end, and
// hands leadership on. Nothing of it is undone: Close follows. Its error says
// what was left; the cluster is as safe as if the node had crashed.
func (n *Node) Drain(ctx context.Context) error {
	ctx, cancel := n.deadline(ctx)
	defer cancel()
	n.draining.Store(true)
	l := n.leading.Load()
	if l == nil {
		return nil
	}
	l.queue.close(elsewhere(errDraining))
	select {
	case <-l.idle:
	case <-ctx.Done():
		return fmt.Errorf("cluster: drain: commands are still under way: %w", ctx.Err())
	}
	if n.voters() < 2 {
		return nil
	}
	for pause := (backoff{}); n.raft.State() == raft.Leader; {
		err := n.transferHere(ctx, "")
		if err == nil {
			return nil
		}
		if _, _, moved := n.leader(); !pause.wait(ctx, moved) {
			return fmt.Errorf("cluster: drain: leadership was not handed on: %w", err)
		}
	}
	return nil
}
