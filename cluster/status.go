package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/types/known/durationpb"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
)

// A Status is what a node knows of its cluster.
type Status struct {
	Node         string
	Leader       string // node name; empty if unknown
	Term         uint64
	AppliedIndex uint64
	SeenBy       string // whose view Peers is: that of the leader, or of this node if there is none that answers
	Peers        []Peer // all members, this node included, in the order in which they came
	Health       string // ok, or the check of Ready that fails
}

// A Peer is one member.
type Peer struct {
	Node       string
	Address    string // of its Raft port
	Role       string // leader, voter or nonvoter
	APIAddress string // empty if the member has not been heard of
	Contact
}

// A Contact is what is known of a member by whoever sees it: the latest answer
// to the question that nodes ask each other; see Config.HelloInterval.
type Contact struct {
	Known   bool          // there was one; else nothing is known
	Up      bool          // it was within the last three intervals
	Silent  time.Duration // how long ago it was
	AtLeast bool          // it was before this node began, which is Silent ago
	Applied uint64        // the entry that the member had applied then
	Lag     uint64        // entries behind who sees it
}

// Status returns what this node knows, and of the members what the leader does:
// nobody else knows what they lack. It never fails; Health says what is wrong.
func (n *Node) Status(ctx context.Context) (Status, error) {
	leaderAt, leader := n.raft.LeaderWithID()
	s := Status{Node: n.cfg.ID, Leader: string(leader), Term: n.raft.CurrentTerm(), AppliedIndex: n.fsm.applied(), SeenBy: n.cfg.ID, Health: "ok"}
	var asked sync.WaitGroup
	if leader != "" && s.Leader != n.cfg.ID {
		asked.Go(func() {
			if peers := n.leadersView(ctx, string(leaderAt)); peers != nil {
				s.Peers, s.SeenBy = peers, s.Leader
			}
		})
	}
	if err := n.Ready(ctx); err != nil {
		s.Health = err.Error()
	}
	asked.Wait()
	if s.Peers == nil {
		s.Peers = n.view()
	}
	for i := range s.Peers {
		if s.Peers[i].Node == s.Leader {
			s.Peers[i].Role = "leader"
		}
	}
	return s, nil
}

// view is how this node sees the members.
func (n *Node) view() (peers []Peer) {
	own := n.fsm.applied()
	for _, m := range n.servers() {
		p := Peer{Node: string(m.ID), Address: string(m.Address), Role: roleOf(isVoter(&m))}
		if p.Node == n.cfg.ID {
			p.APIAddress, p.Contact = n.cfg.APIAddress, Contact{Known: true, Up: true, Applied: own}
		} else {
			told, _ := n.members.of(p.Node)
			if p.APIAddress, p.Contact = told.api, told.heard(own, n.members.silentAfter); !p.Known {
				p.Contact = n.missed(p.Node, own)
			}
		}
		peers = append(peers, p)
	}
	return peers
}

// missed tells of a member that has not been heard of since this node began,
// and was before.
func (n *Node) missed(node string, own uint64) (c Contact) {
	silent := time.Since(n.began)
	if stood, met := n.roll.stood(node); met && silent >= n.members.silentAfter {
		c = Contact{Known: true, Silent: silent, AtLeast: true, Applied: stood, Lag: own - min(own, stood)}
	}
	return c
}

// leadersView asks the leader how it sees the members; nil if it does not answer.
func (n *Node) leadersView(ctx context.Context, leader string) (peers []Peer) {
	ctx, cancel := context.WithTimeout(ctx, min(n.cfg.RPCTimeout, answersWithin))
	defer cancel()
	r, err := n.peers.At(leader).Members(ctx, &nodev1.MembersRequest{})
	if err != nil {
		return nil
	}
	for _, m := range r.GetMembers() {
		p := Peer{Node: m.GetNode(), Address: m.GetAddress(), Role: roleOf(m.GetVoter()), APIAddress: m.GetApiAddress()}
		if m.GetSilent() != nil {
			silent := m.GetSilent().AsDuration()
			p.Contact = Contact{Known: true, Up: silent < n.members.silentAfter, Silent: silent, AtLeast: m.GetAtLeast(), Applied: m.GetAppliedIndex(), Lag: m.GetLag()}
		}
		peers = append(peers, p)
	}
	return peers
}

// Members implements nodev1connect.NodeServiceHandler.
func (s *service) Members(context.Context, *nodev1.MembersRequest) (*nodev1.MembersResponse, error) {
	if s.n.raft.State() != raft.Leader {
		return nil, wireError(errElsewhere)
	}
	out := &nodev1.MembersResponse{}
	for _, p := range s.n.view() {
		m := &nodev1.Member{Node: p.Node, Address: p.Address, ApiAddress: p.APIAddress, Voter: p.Role == "voter"}
		if p.Known {
			m.Silent, m.AtLeast, m.AppliedIndex, m.Lag = durationpb.New(p.Silent), p.AtLeast, &p.Applied, p.Lag
		}
		out.Members = append(out.Members, m)
	}
	return out, nil
}

func roleOf(voter bool) string {
	if voter {
		return "voter"
	}
	return "nonvoter"
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
	if n.turnedAway.Load() && !n.isMember() {
		return errors.New("the members do not let this node be what it wants; its log says why")
	}
	if n.joining.Load() || n.lacksVote() {
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
