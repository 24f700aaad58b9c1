package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
)

// What members tell each other of themselves. How a node becomes one is in join.go, and
// changes that somebody orders are in membership.go.

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
		// Who is removed while it runs stays so. That a vote is missing may become known only
		// now: the log of one that took the place of a member, and began again before it had
		// all of it, tells first of the vote of the one before.
		if n.expelled.Load() && !n.led.Load() || n.lacksVote() {
			n.settleIn()
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
