package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"

	"example.com/govnode/cluster/transport"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/storage"
)

// How a node becomes a member: by founding its cluster or by joining.

// bootstrap founds a cluster if that is asked for, and nothing is there.
func (n *Node) bootstrap() error {
	if !n.cfg.Bootstrap || !n.disk.empty {
		return nil
	}
	for _, a := range n.cfg.Join {
		if a == n.cfg.Address {
			continue
		}
		ctx, cancel := context.WithTimeout(n.ctx, transport.DialTimeout)
		h, err := n.peers.At(a).Hello(ctx, n.hello())
		cancel()
		if err == nil && h.GetCluster() != "" {
			return fmt.Errorf("cluster: Bootstrap: %s at %s belongs to a cluster already, and %s is empty; start without Bootstrap to join it under a new name, or with Replace if the data of %s is lost",
				h.GetNode(), a, n.cfg.Dir, n.cfg.ID)
		}
	}
	if n.clusterID() == "" {
		if err := n.belong(rand.Text()); err != nil {
			return err
		}
	}
	self := raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(n.cfg.ID), Address: raft.ServerAddress(n.cfg.Address)}
	if err := n.disk.found(raft.Configuration{Servers: []raft.Server{self}}); err != nil {
		return fmt.Errorf("cluster: Bootstrap: %w", err)
	}
	if err := n.identify(); err != nil {
		return err
	}
	return n.listen(n.cfg.BootstrapWait)
}

// listen gives members of another cluster that take this node for theirs the
// time to say so.
func (n *Node) listen(wait time.Duration) error {
	const look = 20 * time.Millisecond
	for end := time.Now().Add(wait); time.Now().Before(end); time.Sleep(look) {
		if failed := n.failed.Load(); failed != nil {
			return *failed
		}
	}
	return nil
}

// joinEvery is how often a node asks again while it is on its way in.
const joinEvery = 50 * time.Millisecond

func (n *Node) joinRequest() *nodev1.JoinRequest {
	return &nodev1.JoinRequest{Node: n.cfg.ID, Address: n.cfg.Address, Nonvoter: n.cfg.Nonvoter, Version: n.cfg.version, Self: n.hello().GetSelf()}
}

// enter asks for admission if the directory is empty, and waits for it. Raft is
// not started before: with neither votes nor entries to remember, the node must
// not speak for a member of its name.
func (n *Node) enter() error {
	if !n.disk.empty {
		return nil
	}
	if len(n.cfg.Join) == 0 {
		return fmt.Errorf("cluster: Join: %s is empty; name members of the cluster to join, or found one with Bootstrap", n.cfg.Dir)
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.JoinTimeout)
	defer cancel()
	if n.cfg.Enlist != nil && !n.cfg.Replace { // who takes the place of a member is known already
		if err := n.cfg.Enlist(ctx, n.memberAt); err != nil {
			return fmt.Errorf("cluster: Enlist: %w", err)
		}
	}
	r := n.joinRequest()
	r.Empty, r.Replace = true, n.cfg.Replace
	if err := n.join(ctx, r, false); err != nil {
		return fmt.Errorf("cluster: Join: %w", err)
	}
	return nil
}

// settleIn asks for what the node wants to be and is not, beside its work: the
// vote of one that was just admitted, or a new address; or all of it again, by one
// that was removed while it was down. Who leads has nobody to ask.
func (n *Node) settleIn() {
	asks := len(n.cfg.Join) > 0 && !n.turnedAway.Load()
	if !asks && !n.Leader() || n.isMember() && !n.expelled.Load() || !n.joining.CompareAndSwap(false, true) {
		return
	}
	n.tasks.Go(func() {
		err := n.join(n.ctx, n.joinRequest(), true)
		if n.ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			n.expelled.Store(false)
		case !errors.Is(err, errElsewhere): // it is refused, and stays what it is until somebody else changes that
			n.turnedAway.Store(true)
			n.cfg.Logger.Error("cannot join", "error", err)
		}
		n.joining.Store(false)
		if errors.Is(err, errElsewhere) && n.Leader() {
			n.settleIn() // it leads again, which may have been too early
		}
	})
}

// lacksVote reports whether the node is a member without the vote that it wants, in
// its own view, and has somebody to ask for it.
func (n *Node) lacksVote() bool {
	s, known := n.member(n.cfg.ID)
	return known && !isVoter(&s) && !n.cfg.Nonvoter && len(n.cfg.Join) > 0
}

// moveHere tells the members where this node is, which leads: no other could.
func (n *Node) moveHere(ctx context.Context) error {
	end, err := n.turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	s, _ := n.member(n.cfg.ID)
	if string(s.Address) == n.cfg.Address {
		return n.confirm(ctx)
	}
	if err := n.free(n.cfg.Address, n.cfg.ID); err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	if h, err := n.peers.At(string(s.Address)).Hello(asking, n.hello()); err == nil {
		if err := n.met(h); err != nil { // who is there is the member, and this one a copy
			n.fatal(err)
			return err
		}
	}
	return n.place(ctx, n.cfg.ID, n.cfg.Address, true)
}

// isMember reports whether the node is in its own view of the cluster what its
// configuration wants it to be.
func (n *Node) isMember() bool {
	for _, s := range n.servers() {
		if string(s.ID) == n.cfg.ID {
			return string(s.Address) == n.cfg.Address && (n.cfg.Nonvoter || isVoter(&s))
		}
	}
	return false
}

// noLeader says why no leader is known. One who was removed, and does not ask
// to come back, need not wait for one. It may have been removed while it was down:
// then its folder does not know, and the leader says so.
func (n *Node) noLeader() error {
	_, known := n.member(n.cfg.ID)
	if gone := !known && len(n.servers()) > 0 || n.expelled.Load(); gone && !n.joining.Load() {
		return errRemoved
	}
	return errNoLeader
}

// Removed reports whether this node was taken out of its cluster: it hears of no
// leader any more, and in what it heard last it is no member. It turns false
// again if the node is made a member again.
func (n *Node) Removed() bool {
	leader, _ := n.raft.LeaderWithID()
	return leader == "" && errors.Is(n.noLeader(), errRemoved)
}

// join asks until the leader has admitted the node; and, if all is set, until
// it is what it wants to be, which the leader may be itself.
func (n *Node) join(ctx context.Context, r *nodev1.JoinRequest, all bool) error {
	var last error
	for {
		if all && n.Leader() {
			if last = n.moveHere(ctx); last == nil || errors.Is(last, storage.ErrInvalid) {
				return last
			}
		} else if all && len(n.cfg.Join) == 0 {
			return errElsewhere // when it leads the next time it says where it is
		}
		for _, a := range n.cfg.Join {
			done, err := n.joinAt(ctx, a, r)
			if errors.Is(err, storage.ErrInvalid) {
				return err
			}
			if err == nil && (done || !all) {
				return nil
			}
			if err != nil && (last == nil || ctx.Err() == nil) {
				last = err // that the time is over is no reason
			}
		}
		select {
		case <-ctx.Done():
			if last == nil {
				last = errors.New("still catching up")
			}
			return fmt.Errorf("not admitted: %w: %w", last, ctx.Err())
		case <-time.After(joinEvery):
		}
	}
}

// memberAt returns which member is at an address, and where its API is.
func (n *Node) memberAt(ctx context.Context, address string) (node, api string, err error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.RPCTimeout)
	defer cancel()
	h, err := n.peers.At(address).Hello(ctx, n.hello())
	if err != nil {
		return "", "", err
	}
	if h.GetCluster() == "" || h.GetApiAddress() == "" {
		return "", "", fmt.Errorf("%s is no member of a cluster yet", address)
	}
	return h.GetNode(), h.GetApiAddress(), nil
}

// joinAt asks the leader that the node at an address knows.
func (n *Node) joinAt(ctx context.Context, address string, r *nodev1.JoinRequest) (done bool, err error) {
	if address == n.cfg.Address {
		return false, errors.New("no other member answers")
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.RPCTimeout+n.cfg.TransportTimeout)
	defer cancel()
	h, err := n.peers.At(address).Hello(ctx, n.hello())
	if connect.CodeOf(err) == connect.CodePermissionDenied {
		return false, invalid(err)
	}
	if err != nil {
		return false, err
	}
	leader := h.GetLeaderAddress()
	switch {
	case h.GetCluster() == "":
		return false, fmt.Errorf("%s is no member of a cluster yet", address)
	case leader == "" || leader == n.cfg.Address:
		return false, errNoLeader
	}
	r.AppliedIndex = n.fsm.applied()
	answer, err := n.peers.At(leader).Join(ctx, r)
	if err != nil {
		return false, remote(err)
	}
	if n.clusterID() == "" {
		if err := n.belong(h.GetCluster()); err != nil {
			return false, err
		}
	}
	if r.GetEmpty() {
		if err := n.disk.admit(answer.GetIndex()); err != nil {
			return false, err
		}
		if err := n.identify(); err != nil {
			return false, err
		}
	}
	return answer.GetDone(), nil
}
