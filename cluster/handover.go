package cluster

import (
	"context"
	"errors"
	"fmt"

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
		if _, to := n.raft.LeaderWithID(); id != "" && string(to) == id {
			return nil
		}
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
	var future raft.Future
	if id == "" {
		if n.voters() == 1 {
			return invalidField("node", "there is no other voter")
		}
		future = n.raft.LeadershipTransfer()
	} else {
		s, known := n.member(id)
		if !known {
			return invalidField("node", "%q is no member of this cluster", id)
		}
		if !isVoter(&s) {
			return invalidField("node", "%s has no vote", id)
		}
		if err := n.hasEverything(ctx, &s); err != nil {
			return err
		}
		future = n.raft.LeadershipTransferToServer(s.ID, s.Address)
	}
	return n.config(ctx, future)
}

// hasEverything waits, for no longer than an answer may take, until a member has applied
// what this node has applied now. Raft takes no commands while it hands leadership on, and
// waits for entries that the member lacks; where it does not reach the member, that is
// until it tries again, up to ten seconds later.
func (n *Node) hasEverything(ctx context.Context, s *raft.Server) error {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	own := n.fsm.applied()
	for pause := (backoff{}); ; {
		h, err := n.ask(ctx, s)
		switch {
		case err != nil:
			return fmt.Errorf("%s does not answer at %s, and cannot take over: %w", s.ID, s.Address, err)
		case h.GetAppliedIndex() >= own:
			return nil
		case !pause.wait(ctx, n.ctx.Done()):
			return fmt.Errorf("%s lacks entries, and cannot take over: it has applied %d of %d", s.ID, h.GetAppliedIndex(), own)
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
