package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"

	"example.com/govnode/cluster/transport"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
)

// A member is more than its name. The data folder has an incarnation, made with
// it and copied with it; the place in the log at which it was admitted puts two
// incarnations of one name in order; and each process has a run. Members tell
// each other all of it whenever they speak, and remember it: see roll. So
//
//   - a folder that was replaced is known by its incarnation,
//   - an old copy by a log that ends before what others have seen of it,
//   - a copy of a folder in use by the process that answers at the member's
//     address and is another one: the membership says which of the two is the
//     member.
//
// Whoever is refused stops. The name of the server in Raft stays the name of the
// node: with an incarnation in it every replacement would be a new voter beside
// the old one, and a copy would bear the same name all the same.

// identify sets what this process tells of itself, once its folder is a member's.
func (n *Node) identify() error {
	d := n.disk
	last, err := d.last()
	if err != nil {
		return err
	}
	n.self.Store(&nodev1.Identity{Node: n.cfg.ID, Incarnation: d.incarnation, Admitted: d.admitted, Run: n.run, LastIndex: last, Term: d.term})
	return nil
}

// hello is what this node says to another.
func (n *Node) hello() *nodev1.HelloRequest { return &nodev1.HelloRequest{Self: n.self.Load()} }

// judge says why the caller cannot be the member for whom it speaks; "" if it
// can.
func (n *Node) judge(ctx context.Context, id *nodev1.Identity) string {
	if id.GetNode() == n.cfg.ID {
		if id.GetRun() == n.run {
			return ""
		}
		return copyOf(id.GetNode(), n.cfg.Address)
	}
	if n.roll.latest(id) {
		return ""
	}
	if n.started.Load() {
		s, known := n.member(id.GetNode())
		if !known {
			return ""
		}
		ctx, cancel := context.WithTimeout(ctx, answersWithin/2)
		defer cancel()
		h, err := n.peers.At(string(s.Address)).Hello(ctx, &nodev1.HelloRequest{})
		if err == nil && h.GetNode() == id.GetNode() && h.GetTerm() > 0 && h.GetSelf().GetRun() != id.GetRun() {
			return copyOf(id.GetNode(), string(s.Address))
		}
	}
	return n.roll.meet(id)
}

func copyOf(node, address string) string {
	return fmt.Sprintf("node %s is alive at %s, and this data folder is a copy of its own: leave that one running, and start this one on an empty folder under a name of its own", node, address)
}

// met takes note of what another member answered. The error says that this
// process must not take part.
func (n *Node) met(h *nodev1.HelloResponse) error {
	if h.GetCluster() != n.clusterID() {
		return nil // nothing to us
	}
	if h.GetNode() == n.cfg.ID {
		if self := h.GetSelf(); self.GetRun() != n.run && h.GetTerm() > 0 {
			return fmt.Errorf("cluster: Dir: %s: %s", n.cfg.Dir, copyOf(n.cfg.ID, h.GetAddress()))
		}
		return nil
	}
	if id := h.GetSelf(); id.GetNode() == h.GetNode() && h.GetTerm() > 0 && n.roll.meet(id) == "" {
		n.roll.came(id, h.GetAppliedIndex(), h.GetTerm())
	}
	if r := h.GetRefusal(); r != "" {
		return fmt.Errorf("cluster: Dir: %s: %s", n.cfg.Dir, r)
	}
	return nil
}

// checkIdentity asks the members that the folder knows, before Raft speaks for
// it. Those that do not answer are asked again as long as the node lives.
func (n *Node) checkIdentity() error {
	if n.disk.empty {
		return nil
	}
	servers, err := n.disk.servers()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(n.ctx, transport.DialTimeout)
	defer cancel()
	var asked sync.WaitGroup
	errs := make([]error, len(servers))
	for i, s := range servers {
		asked.Go(func() {
			if h, err := n.peers.At(string(s.Address)).Hello(ctx, n.hello()); err == nil {
				errs[i] = n.met(h)
			}
		})
	}
	asked.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// remember writes down whom this node has met.
func (n *Node) remember(servers []raft.Server, end bool) error {
	b := n.roll.due(servers, end)
	if b == nil {
		return nil
	}
	return n.disk.log.Set(keyRoll, b)
}

// foreign stops a node that members of another cluster take for theirs. One of
// the two clusters is there by mistake, and who asks here for the other would be
// answered wrongly.
func (n *Node) foreign(cluster string) {
	n.fatal(fmt.Errorf("cluster: a member of cluster %s takes this node for its member %s, but the data folder %s is of cluster %s. If the folder was lost and a second cluster was founded here by mistake, %s, without --bootstrap; if this is to be a cluster of its own, give it another name or address",
		cluster, n.cfg.ID, n.cfg.Dir, n.clusterID(), adviceReplace))
}

// nameAt returns the name of the member at an address; "" if there is none.
func (n *Node) nameAt(a string) string {
	if !n.started.Load() {
		return ""
	}
	for _, s := range n.servers() {
		if string(s.Address) == a {
			return string(s.ID)
		}
	}
	return ""
}

// meant returns the member that has to be at an address; "" if any node may be. A
// node that is on its way in, or that was removed, may know addresses from before,
// and must find its way in all the same.
func (n *Node) meant(a string) string {
	if n.joining.Load() || n.expelled.Load() {
		return ""
	}
	return n.nameAt(a)
}

// strange reports whether a node is known to be no member.
func (n *Node) strange(node string) bool {
	if !n.started.Load() {
		return false
	}
	_, leader := n.raft.LeaderWithID()
	return isStrange(node, string(leader), n.servers())
}

// isStrange is strange for who hears from a leader, "" for none, and knows some
// members. Whoever hears from a leader hears of every change of members; it may be
// behind, and then who was just admitted has to come again. The leader itself is
// never strange: it may need one more connection to tell that it is a member.
func isStrange(node, leader string, members []raft.Server) bool {
	return leader != "" && leader != node && len(members) > 0 &&
		!slices.ContainsFunc(members, func(s raft.Server) bool { return string(s.ID) == node })
}

// speaksFor refuses what a node says for another one, where certificates tell.
func speaksFor(ctx context.Context, node string) error {
	if who := transport.Caller(ctx); who != "" && who != node {
		return transport.Refusal(connect.CodePermissionDenied, fmt.Errorf("the certificate is that of node %s, and it speaks for node %q", who, node))
	}
	return nil
}

// last returns the index of the last entry that the folder has or has a snapshot
// of.
func (d *disk) last() (uint64, error) {
	last, err := d.log.LastIndex()
	if err != nil {
		return 0, err
	}
	list, err := d.snapshots.List()
	if err != nil {
		return 0, fmt.Errorf("cluster: Dir: %w", err)
	}
	for _, s := range list {
		last = max(last, s.Index)
	}
	return last, nil
}

// servers returns the members as the folder knows them.
func (d *disk) servers() ([]raft.Server, error) {
	list, err := d.snapshots.List() // the newest first
	if err != nil {
		return nil, fmt.Errorf("cluster: Dir: %w", err)
	}
	first, err := d.log.FirstIndex()
	if err != nil {
		return nil, err
	}
	last, err := d.log.LastIndex()
	if err != nil {
		return nil, err
	}
	var known raft.Configuration
	if len(list) > 0 {
		first, known = max(first, list[0].Index+1), list[0].Configuration
	}
	for i := last; i >= first && i > 0; i-- {
		var l raft.Log
		if err := d.log.GetLog(i, &l); errors.Is(err, raft.ErrLogNotFound) {
			break // behind a snapshot that was sent
		} else if err != nil {
			return nil, err
		}
		if l.Type == raft.LogConfiguration {
			known = raft.DecodeConfiguration(l.Data)
			break
		}
	}
	return known.Servers, nil
}

// rollOf reads what was written down.
func (d *disk) rollOf() (*roll, error) {
	text, err := d.text(keyRoll)
	if err != nil {
		return nil, err
	}
	r, err := newRoll([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("cluster: Dir: what the folder knows of other members cannot be read: %w; %s", err, adviceReplace)
	}
	return r, nil
}
