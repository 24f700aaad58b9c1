package cluster

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/storage"
)

func (n *testNode) peer(t *testing.T, name string) (s Status, p Peer) {
	t.Helper()
	s, err := n.Status(t.Context())
	require.NoError(t, err)
	for _, p := range s.Peers {
		if p.Node == name {
			return s, p
		}
	}
	return s, Peer{}
}

// A member that dies is shown as down, with where it stood and how far behind
// that is, whichever node is asked; and as it was seen last where no leader is
// left to ask.
func TestStatusTellsOfADeadMember(t *testing.T) {
	t.Parallel()
	registry := map[string]*prometheus.Registry{}
	c := newCluster(t, 3, func(cfg *Config) {
		cfg.Registry = prometheus.NewRegistry()
		registry[cfg.ID] = cfg.Registry
	})
	leader, dead := c.leader(), c.follower()
	other := c.follower(dead)
	all := func(what string, ok func(Status, Peer) bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			for _, n := range []*testNode{leader, other} {
				if s, p := n.peer(t, dead.cfg.ID); s.SeenBy != leader.cfg.ID || p.Role != "voter" || !ok(s, p) {
					return false
				}
			}
			return true
		}, 20*time.Second, 10*time.Millisecond, what)
	}
	all("it is up", func(_ Status, p Peer) bool {
		told, _ := other.members.of(dead.cfg.ID) // by then by its own question, too
		return p.Known && p.Up && p.Applied > 0 && told.heard(0, silentAfter).Up
	})
	gauge := func(n *testNode, name string) float64 {
		families, err := registry[n.cfg.ID].Gather()
		require.NoError(t, err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == name && m.GetLabel()[0].GetValue() == dead.cfg.ID {
					return m.GetGauge().GetValue()
				}
			}
		}
		return -1
	}
	require.EqualValues(t, 1, gauge(leader, "gov_raft_member_up"))

	require.NoError(t, dead.Close())
	c.forget(dead)
	stood := dead.fsm.applied()
	for _, r := range []string{"a", "b", "c"} {
		_, _, err := storage.One(within(t, 10*time.Second), leader, increment(r))
		require.NoError(t, err)
	}
	all("it is down", func(s Status, p Peer) bool {
		return p.Known && !p.Up && p.Silent >= silentAfter && p.Applied <= stood && p.Applied+p.Lag >= stood+3
	})
	require.Eventually(t, func() bool {
		return gauge(leader, "gov_raft_member_up") == 0 && gauge(other, "gov_raft_member_up") == 0
	}, 10*time.Second, 10*time.Millisecond)
	require.GreaterOrEqual(t, gauge(leader, "gov_raft_member_last_contact_seconds"), silentAfter.Seconds())
	require.GreaterOrEqual(t, gauge(leader, "gov_raft_member_lag_entries"), 3.0)
	require.EqualValues(t, -1, gauge(other, "gov_raft_member_lag_entries"), "it does not know where the leader stands")

	require.NoError(t, leader.Close())
	c.forget(leader)
	require.Eventually(t, func() bool {
		s, p := other.peer(t, leader.cfg.ID)
		_, q := other.peer(t, dead.cfg.ID)
		return s.SeenBy == other.cfg.ID && s.Leader == "" && p.Known && !p.Up && q.Known && !q.Up
	}, 20*time.Second, 10*time.Millisecond)
}

// A node that begins while another member is down shows that one as down, too,
// with where it had come and for how long at least.
func TestStatusTellsOfAMemberThatDiedBefore(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	dead := c.follower()
	require.Eventually(t, func() bool {
		for _, n := range c.nodes {
			if stood, met := n.roll.stood(dead.cfg.ID); n != dead && (!met || stood == 0) {
				return false
			}
		}
		return true
	}, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, dead.Close())
	c.forget(dead)
	for _, n := range slices.Clone(c.nodes) {
		require.NoError(t, n.Close())
	}
	for _, n := range slices.Clone(c.nodes) {
		c.restart(n)
	}
	c.waitReady()
	for _, n := range c.nodes {
		require.Eventually(t, func() bool {
			s, p := n.peer(t, dead.cfg.ID)
			return s.SeenBy == s.Leader && p.Known && p.AtLeast && !p.Up && p.Silent >= silentAfter && p.Applied > 0
		}, 20*time.Second, 10*time.Millisecond)
	}
}

// Of a member that was never heard of nothing is said.
func TestStatusOfAMemberThatNeverCame(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, nil)
	require.NoError(t, c.leader().AddNode(t.Context(), "n9", "127.0.0.1:1", true))
	for _, n := range c.nodes {
		require.Eventually(t, func() bool {
			_, p := n.peer(t, "n9")
			return p.Role == "nonvoter" && p.Contact == Contact{}
		}, 10*time.Second, 10*time.Millisecond)
	}
}

// silentAfter is that of nodes with the interval that they have by default.
const silentAfter = silentFor * time.Second

// Who answers once a second is up; who does not for three seconds is down, and
// is behind by all that has been done since.
func TestContactGrowsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers("n1", 1, silentAfter)
		contact := func(own uint64) Contact {
			s, _ := m.of("n2")
			return s.heard(own, silentAfter)
		}
		require.Equal(t, Contact{}, contact(7))
		m.note("n2", said{version: 1}) // on its way in
		require.Equal(t, Contact{}, contact(7))
		m.note("n2", said{at: time.Now(), applied: 5, lag: 1})
		time.Sleep(silentAfter - 1)
		require.Equal(t, Contact{Known: true, Up: true, Silent: silentAfter - 1, Applied: 5, Lag: 1}, contact(100))
		went, came := m.turned()
		require.Empty(t, append(went, came...), "it is up, and was")
		time.Sleep(time.Nanosecond)
		require.Equal(t, Contact{Known: true, Silent: silentAfter, Applied: 5, Lag: 95}, contact(100))
		require.Zero(t, contact(4).Lag)
		went, came = m.turned()
		require.Equal(t, []string{"n2"}, went)
		require.Empty(t, came)
		m.note("n2", said{version: 1}) // started again, and not there yet
		require.False(t, contact(100).Up)
		require.EqualValues(t, 95, contact(100).Lag)
		went, came = m.turned()
		require.Empty(t, append(went, came...), "once is enough")
		m.note("n2", said{at: time.Now(), applied: 100})
		went, came = m.turned()
		require.Empty(t, went)
		require.Equal(t, []string{"n2"}, came)
		went, came = m.turned()
		require.Empty(t, append(went, came...), "once is enough")
	})
}

// A member that was met before this node began, and has not been heard of since, counts as down as
// soon as it has been silent for as long as any other.
func TestWhoIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{began: time.Now(), members: newMembers("n1", 1, silentAfter)}
		var err error
		n.roll, err = newRoll(nil)
		require.NoError(t, err)
		id := &nodev1.Identity{Node: "n2", Incarnation: "a", Run: "r"}
		require.Empty(t, n.roll.meet(id))
		n.roll.came(id, 5, 1)
		time.Sleep(silentAfter - 1)
		require.Equal(t, Contact{}, n.missed("n2", 9))
		time.Sleep(time.Nanosecond)
		require.Equal(t, Contact{Known: true, Silent: silentAfter, AtLeast: true, Applied: 5, Lag: 4}, n.missed("n2", 9))
		require.Zero(t, n.missed("n2", 3).Lag)
		require.Equal(t, Contact{}, n.missed("n3", 9), "who was never met")
	})
}

// What the leader says of the members is what a node shows; a member counts as down there when it
// would here.
func TestTheLeadersView(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	at := newStandIn(t, leader)
	heard := durationpb.New(silentAfter - 1)
	at.members = []*nodev1.Member{
		{Node: "n1", Address: "a:1", ApiAddress: "a:2", Voter: true, Silent: durationpb.New(0), AppliedIndex: proto.Uint64(9)},
		{Node: "n2", Address: "b:1", Voter: true, Silent: heard, AppliedIndex: proto.Uint64(8), Lag: 1},
		{Node: "n3", Address: "c:1", Silent: durationpb.New(silentAfter), AppliedIndex: proto.Uint64(7), Lag: 2, AtLeast: true},
		{Node: "n4", Address: "d:1"},
	}
	var seen []Peer
	require.Eventually(t, func() bool {
		seen = leader.leadersView(t.Context(), at.address)
		return seen != nil
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, []Peer{
		{Node: "n1", Address: "a:1", Role: "voter", APIAddress: "a:2", Contact: Contact{Known: true, Up: true, Applied: 9}},
		{Node: "n2", Address: "b:1", Role: "voter", Contact: Contact{Known: true, Up: true, Silent: silentAfter - 1, Applied: 8, Lag: 1}},
		{Node: "n3", Address: "c:1", Role: "nonvoter", Contact: Contact{Known: true, Silent: silentAfter, AtLeast: true, Applied: 7, Lag: 2}},
		{Node: "n4", Address: "d:1", Role: "nonvoter"},
	}, seen)
	require.Nil(t, leader.leadersView(t.Context(), "127.0.0.1:1"), "nobody is there")
}

// What waits on a node waits for its own leadership, or for that of another.
func TestWhatWaitsOnANode(t *testing.T) {
	var n Node
	require.Zero(t, n.queued())
	n.forward = newTestForwarder()
	require.NoError(t, n.forward.queue.add(sized(1, 1)))
	require.Equal(t, 2, n.queued())
	l := &leadership{queue: newQueue(10, entrySize)}
	require.NoError(t, l.queue.add(sized(1, 1, 1)))
	n.leading.Store(l)
	require.Equal(t, 5, n.queued())
}
