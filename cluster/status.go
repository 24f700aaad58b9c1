package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// A Status is what a node knows of its cluster.
type Status struct {
	Node         string
	Leader       string // node name; empty if unknown
	Term         uint64
	AppliedIndex uint64
	Peers        []Peer // all members, this node included, in the order in which they came
	Health       string // ok, or the check of Ready that fails
}

// A Peer is one member.
type Peer struct {
	Node       string
	Address    string // of its Raft port
	Role       string // leader, voter or nonvoter
	Lag        uint64 // entries behind the leader, as of a second ago; known to the leader alone
	APIAddress string // empty if the member has not been heard of
}

// Status returns what this node knows. It never fails; Health says what is
// wrong.
func (n *Node) Status(ctx context.Context) (Status, error) {
	_, leader := n.raft.LeaderWithID()
	s := Status{Node: n.cfg.ID, Leader: string(leader), Term: n.raft.CurrentTerm(), AppliedIndex: n.fsm.applied(), Health: "ok"}
	leads := n.Leader()
	for _, m := range n.servers() {
		p := Peer{Node: string(m.ID), Address: string(m.Address), Role: "nonvoter"}
		if isVoter(&m) {
			p.Role = "voter"
		}
		if m.ID == leader {
			p.Role = "leader"
		}
		if p.Node == n.cfg.ID {
			p.APIAddress = n.cfg.APIAddress
		} else if told, ok := n.members.of(p.Node); ok {
			p.APIAddress = told.api
			if leads {
				p.Lag = told.lag
			}
		}
		s.Peers = append(s.Peers, p)
	}
	if err := n.Ready(ctx); err != nil {
		s.Health = err.Error()
	}
	return s, nil
}

// Leader reports whether this node leads and takes proposals.
func (n *Node) Leader() bool { return n.leading.Load() != nil }

// LeaderAPI returns the address at which clients reach the leader; "" if it is
// not known.
func (n *Node) LeaderAPI() string {
	_, leader := n.raft.LeaderWithID()
	if string(leader) == n.cfg.ID {
		return n.cfg.APIAddress
	}
	told, _ := n.members.of(string(leader))
	return told.api
}

// Ready returns nil if the node serves: it has not failed, it does not drain, a
// leader is known, it has the vote that it wants, and it has applied what had
// been acknowledged when it was asked. The error names the check that fails. It waits for
// Config.RPCTimeout at most.
func (n *Node) Ready(ctx context.Context) error {
	if err := n.failed.Load(); err != nil {
		return fmt.Errorf("failed: %w", *err)
	}
	if n.ctx.Err() != nil {
		return errClosed
	}
	if n.draining.Load() {
		return errors.New("draining")
	}
	if leader, _ := n.raft.LeaderWithID(); leader == "" {
		return n.noLeader()
	}
	if _, known := n.member(n.cfg.ID); !known {
		return errors.New("this node is no member of the cluster")
	}
	if n.joining.Load() {
		return errors.New("joining: this node has no vote yet")
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.RPCTimeout)
	defer cancel()
	if err := n.catchUp(ctx); err != nil {
		return fmt.Errorf("not caught up: %w", err)
	}
	return nil
}

// queued returns how many commands wait here.
func (n *Node) queued() (count int) {
	if l := n.leading.Load(); l != nil {
		count += l.queue.len()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.forward != nil {
		count += n.forward.queue.len()
	}
	return count
}

func isVoter(s *raft.Server) bool { return s.Suffrage == raft.Voter }
