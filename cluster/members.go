package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"

	"example.com/govnode/cluster/transport"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/storage"
)

// What members tell each other of themselves, and how a node becomes one: by
// founding its cluster or by joining. Changes that somebody orders are in
// membership.go.

// firstVersion is the newest kind of command of the first release: what every
// member knows, also one that has not been heard of. Until that release it goes up with
// session.Version, and then never again: else a member that is down, or was added and
// has not been started, keeps a leader that never heard of it from newer commands.
const firstVersion = 42

// members is what the other members have said of themselves.
type members struct {
	self        string
	version     uint32
	silentAfter time.Duration // how long a member may not be heard of before it counts as down
	low         atomic.Pointer[lowest]

	mu     sync.Mutex
	said   map[string]said
	silent map[string]bool // those who went silent, as turned told
	coming string          // who is being made a member, and counts as one; "" for nobody
}

// said is what one member told in its latest Hello.
type said struct {
	at      time.Time // when; zero while it does not take part
	api     string
	version uint32
	applied uint64
	lag     uint64 // entries behind this node, at that time
	logged  uint64 // bytes of log since its last snapshot
}

// silentFor is after how many intervals without a Hello a member counts as down:
// one and its repeat may be lost, or take long.
const silentFor = 3

// heard tells of the latest contact with a member: how long ago it was, where
// the member stood, and how far that is behind own, which is where this node
// stands now. Of one that is up it is as far as it was then: this node has gone
// on since, and the member as well.
func (s *said) heard(own uint64, silentAfter time.Duration) (c Contact) {
	if s.at.IsZero() {
		return Contact{}
	}
	c = Contact{Known: true, Silent: time.Since(s.at), Applied: s.applied, Lag: s.lag}
	c.Up = c.Silent < silentAfter
	if !c.Up {
		c.Lag = own - min(own, s.applied)
	}
	return c
}

// lowest is the member that knows the fewest kinds of commands.
type lowest struct {
	version uint32
	node    string
	heard   bool // it said so
}

func newMembers(self string, version uint32, silentAfter time.Duration) *members {
	m := &members{self: self, version: version, silentAfter: silentAfter, said: make(map[string]said), silent: make(map[string]bool)}
	m.low.Store(&lowest{version, self, true})
	return m
}

// know says who may not know commands up to a kind; nil if every member does. What a
// member said of itself is the last word, until it is another program.
func (m *members) know(kind uint32) error {
	l := m.low.Load()
	switch {
	case kind <= l.version:
		return nil
	case l.heard:
		return wrong(fmt.Errorf("member %s does not know commands of kind %d (it knows up to %d); finish the upgrade of all nodes first", l.node, kind, l.version))
	}
	return fmt.Errorf("member %s has not been heard of yet, and may not know commands of kind %d; if it is down, start it or remove it from the cluster", l.node, kind)
}

// note keeps what a member said. What it said of where it stands outlasts what
// it says before it takes part again.
func (m *members) note(node string, s said) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if was := m.said[node]; s.at.IsZero() {
		s.at, s.applied, s.lag = was.at, was.applied, was.lag
	}
	m.said[node] = s
}

// asks keeps the version of who asks to be a member. What it told before stands.
func (m *members) asks(node string, version uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.said[node]
	s.version = version
	m.said[node] = s
}

// forget drops what a member has said: another takes its place.
func (m *members) forget(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.said, node)
	delete(m.silent, node)
}

// expect says who counts as a member from now on, whether it is one yet or not, and
// settles.
func (m *members) expect(node string, members func() []raft.Server) {
	m.mu.Lock()
	m.coming = node
	m.mu.Unlock()
	m.settle(members)
}

func (m *members) of(node string) (said, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.said[node]
	return s, ok
}

// nodeAt returns who has told that its API is at an address; "" if nobody has.
func (m *members) nodeAt(api string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for node, s := range m.said {
		if s.api == api {
			return node
		}
	}
	return ""
}

// NodeAt returns the name of the other member whose API is at an address; "" if
// this node has not heard of one.
func (n *Node) NodeAt(apiAddress string) string { return n.members.nodeAt(apiAddress) }

// turned returns who went silent since it was asked last, and who came back.
func (m *members) turned() (went, came []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for node, s := range m.said {
		switch c := s.heard(0, m.silentAfter); {
		case c.Known && !c.Up && !m.silent[node]:
			went = append(went, node)
			m.silent[node] = true
		case c.Up && m.silent[node]:
			came = append(came, node)
			delete(m.silent, node)
		}
	}
	return went, came
}

// settle forgets those who are no members, and finds the lowest version among
// the others. Members are read when nobody else settles: what was read before may be
// without one who has come since.
func (m *members) settle(members func() []raft.Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	low := &lowest{m.version, m.self, true}
	is := map[string]bool{}
	for _, s := range members() {
		is[string(s.ID)] = true
	}
	if m.coming != "" {
		is[m.coming] = true
	}
	for _, id := range slices.Sorted(maps.Keys(is)) {
		if id == m.self {
			continue
		}
		v := uint32(firstVersion)
		told, heard := m.said[id]
		if heard {
			v = told.version
		}
		if v < low.version {
			low = &lowest{v, id, heard}
		}
	}
	for id := range m.said {
		if !is[id] {
			delete(m.said, id)
			delete(m.silent, id)
		}
	}
	m.low.Store(low)
}

// answersWithin is how long a member may take to say how it is, or to tell who is
// in its place.
const answersWithin = time.Second

// greetMembers asks every other member how it is, again and again.
func (n *Node) greetMembers() {
	t := time.NewTicker(n.cfg.HelloInterval)
	defer t.Stop()
	for told := false; ; {
		n.greetAll()
		if n.expelled.Load() && !n.led.Load() {
			n.settleIn() // who is removed while it runs stays so
		}
		if !told && n.Removed() {
			told = true // once: the leader may go on trying to reach it for a while
			n.cfg.Logger.Warn(errRemoved.Error())
		}
		select {
		case <-n.ctx.Done():
			return
		case <-n.greet:
		case <-t.C:
		}
	}
}

func (n *Node) greetAll() {
	var asked sync.WaitGroup
	for _, s := range n.servers() {
		if s.ID == raft.ServerID(n.cfg.ID) && string(s.Address) == n.cfg.Address {
			continue
		}
		asked.Go(func() {
			ctx, cancel := context.WithTimeout(n.ctx, answersWithin)
			defer cancel()
			h, err := n.peers.At(string(s.Address)).Hello(ctx, n.hello())
			if err != nil || h.GetNode() != string(s.ID) {
				return // it is down, or somebody else has its address
			}
			if err := n.met(h); err != nil {
				n.fatal(err)
				return
			}
			if h.GetNode() == n.cfg.ID {
				return // at an address that it had
			}
			n.members.note(h.GetNode(), n.heard(h))
			if h.GetLeader() == h.GetNode() {
				n.expelled.Store(h.GetRemoved())
			}
		})
	}
	asked.Wait()
	n.members.settle(n.servers)
	n.port.DropStrangers()
	n.notice()
	if err := n.remember(n.servers(), false); err != nil && n.ctx.Err() == nil {
		n.cfg.Logger.Error("cannot write down whom this node has met", "error", err)
	}
}

// notice says in the log of members that they went silent or came back, once
// each.
func (n *Node) notice() {
	went, came := n.members.turned()
	for _, node := range went {
		n.cfg.Logger.Warn("a member does not answer: it is down, or this node does not reach it", "member", node, "for", n.members.silentAfter)
	}
	for _, node := range came {
		n.cfg.Logger.Info("a member answers again", "member", node)
	}
}

func (n *Node) heard(h *nodev1.HelloResponse) said {
	s := said{api: h.GetApiAddress(), version: h.GetVersion(), logged: h.GetLogBytes()}
	if h.GetCluster() == n.clusterID() && h.GetTerm() > 0 {
		own := n.fsm.applied()
		s.at, s.applied, s.lag = time.Now(), h.GetAppliedIndex(), own-min(own, h.GetAppliedIndex())
	}
	return s
}

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
	if err := n.disk.admit(1); err != nil { // the place of the first members
		return err
	}
	self := raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(n.cfg.ID), Address: raft.ServerAddress(n.cfg.Address)}
	c := n.raftConfig(nil)
	// Only its encoding of peers is used, for a protocol that is not spoken.
	_, t := raft.NewInmemTransport(self.Address)
	err := raft.BootstrapCluster(c, n.disk.log, n.disk.log, n.disk.snapshots, t, raft.Configuration{Servers: []raft.Server{self}})
	if err != nil {
		return fmt.Errorf("cluster: Bootstrap: %w", err)
	}
	n.disk.empty = false
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
	if n.cfg.Enlist != nil {
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
