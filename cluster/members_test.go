package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

func roles(t *testing.T, n *testNode) map[string]string {
	t.Helper()
	s, err := n.Status(t.Context())
	require.NoError(t, err)
	roles := map[string]string{}
	for _, p := range s.Peers {
		roles[p.Node] = p.Role
	}
	return roles
}

func TestStatus(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	leader := c.leader()
	require.Eventually(t, func() bool { // a round of greetings
		for _, n := range c.nodes {
			s, err := n.Status(t.Context())
			if err != nil || s.Health != "ok" || s.Leader != leader.cfg.ID || s.Node != n.cfg.ID || len(s.Peers) != 3 || n.LeaderAPI() != "api-of-"+leader.cfg.ID {
				return false
			}
			for _, p := range s.Peers {
				if p.APIAddress != "api-of-"+p.Node || p.Address == "" || !p.Known || !p.Up {
					return false
				}
			}
		}
		return true
	}, 10*time.Second, 10*time.Millisecond)
	s, err := leader.Status(t.Context())
	require.NoError(t, err)
	require.NotZero(t, s.Term)
	require.NotZero(t, s.AppliedIndex)
	require.Equal(t, "leader", roles(t, c.follower())[leader.cfg.ID])
	require.Equal(t, 3*leader.Node.cfg.HelloInterval, leader.members.silentAfter, "as Config says")
}

func TestMembersChangeThroughAnyNode(t *testing.T) {
	c := newCluster(t, 2, nil)
	f := c.follower()
	// One that an operator announces before it is started.
	cfg := c.config("n3")
	require.NoError(t, f.AddNode(t.Context(), "n3", cfg.Address, true))
	require.Equal(t, "nonvoter", roles(t, c.leader())["n3"])
	require.NoError(t, f.AddNode(t.Context(), "n3", cfg.Address, true), "again is harmless")
	n3, err := c.open(cfg)
	require.NoError(t, err)
	n3.waitReady(t)
	require.Equal(t, "voter", roles(t, c.leader())["n3"])

	_, _, err = storage.One(t.Context(), n3, increment("r"))
	require.NoError(t, err)
	require.NoError(t, n3.TransferLeadership(t.Context(), "n3"))
	require.Eventually(t, func() bool { return c.leader() == n3 }, 10*time.Second, time.Millisecond)
	require.NoError(t, f.TransferLeadership(t.Context(), "n3"), "it leads already")
	// The leader can be removed: another takes over first.
	require.NoError(t, f.RemoveNode(within(t, 10*time.Second), "n3", false))
	require.NotContains(t, roles(t, c.leader(n3)), "n3")
	require.EqualValues(t, 1, count(t, f, storage.Latest))
	// It follows the one that removed it until it hears of that.
	require.Eventually(t, func() bool { return n3.Ready(t.Context()) != nil }, 10*time.Second, 5*time.Millisecond)

	for what, err := range map[string]error{
		"bad name":  f.AddNode(t.Context(), "no name", "127.0.0.1:1", false),
		"bad place": f.AddNode(t.Context(), "n9", "127.0.0.1", false),
		"taken":     f.AddNode(t.Context(), "n9", f.Address(), false),
		"moved":     f.AddNode(t.Context(), f.cfg.ID, "127.0.0.1:1", false),
		"to nobody": f.TransferLeadership(t.Context(), "nobody"),
	} {
		require.ErrorIs(t, err, storage.ErrInvalid, what)
	}
	require.NoError(t, f.RemoveNode(t.Context(), "nobody", false), "who is gone is gone")
	require.Len(t, roles(t, f), 2)
}

// Whoever is asked after it was removed says so, and at once: it hears of no
// leader any more, and would otherwise let each caller wait for one.
func TestARemovedNodeSaysSo(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	gone := c.follower(c.nodes[0]) // which was told whom to ask
	require.NoError(t, c.leader().RemoveNode(within(t, 10*time.Second), gone.cfg.ID, false))
	require.Eventually(t, func() bool { return errors.Is(gone.Ready(t.Context()), errRemoved) }, 10*time.Second, 5*time.Millisecond)

	ctx := within(t, time.Minute)
	_, _, err := storage.One(ctx, gone, increment("r"))
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	require.ErrorIs(t, err, errRemoved)
	_, err = gone.Get(ctx, session.CounterKey("default", "k"), storage.Latest)
	require.ErrorAs(t, err, new(*storage.ReadError))
	require.ErrorIs(t, err, errRemoved)
	require.NoError(t, ctx.Err(), "nobody waited for a leader")
	require.Zero(t, count(t, c.leader(gone), storage.Latest), "nothing was applied")

	// It was removed while it ran, and asks nobody to let it in again.
	require.Eventually(t, gone.expelled.Load, 10*time.Second, 5*time.Millisecond)
	gone.greetAgain()
	require.False(t, gone.joining.Load())
	require.NotContains(t, roles(t, c.leader(gone)), gone.cfg.ID)
	require.ErrorIs(t, gone.Ready(t.Context()), errRemoved)
}

// greetAgain returns when the node has asked the others once more how they are, and done what follows.
func (n *testNode) greetAgain() {
	for range 3 { // it may have begun before the first, and takes the third beside the second
		n.greet <- struct{}{}
	}
}

// One that was removed while it was down hears it from the leader when it is
// started again, says so with what to do, and comes back if it asks to.
func TestANodeThatWasRemovedWhileItWasDown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	gone := c.follower()
	require.NoError(t, gone.Close())
	require.NoError(t, c.leader(gone).RemoveNode(within(t, 10*time.Second), gone.cfg.ID, false))
	said := newAlarms()
	join := gone.cfg.Join
	if len(join) == 0 { // the first one
		join = []string{c.leader(gone).Address()}
	}
	gone.cfg.Join, gone.cfg.Bootstrap, gone.cfg.Logger = nil, false, slog.New(said)
	again := c.restart(gone)
	require.Eventually(t, func() bool { return again.Removed() && len(said.text()) > 0 }, 10*time.Second, 5*time.Millisecond)
	require.ErrorIs(t, again.Ready(t.Context()), errRemoved)
	require.ErrorContains(t, again.Ready(t.Context()), "start this one with --join")
	again.greetAgain()
	require.Equal(t, []string{"WARN " + errRemoved.Error()}, said.text(), "once")

	require.NoError(t, again.Close())
	again.cfg.Join = join
	c.restart(again).waitReady(t)
	require.Equal(t, "voter", roles(t, c.leader())[gone.cfg.ID])
}

// One that learns only while it runs that it has no vote asks for it then, and is not ready before: as one that took
// the place of a member, and began again when the log that it had so far told of the vote of the one before.
func TestANodeThatLearnsLateThatItHasNoVote(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(cfg *Config) { cfg.HelloInterval = 200 * time.Millisecond })
	n := c.nodes[2]
	require.NoError(t, n.Close())
	leader := c.leader(n)
	require.NoError(t, leader.raft.DemoteVoter(raft.ServerID(n.cfg.ID), 0, 10*time.Second).Error())
	require.Equal(t, "nonvoter", roles(t, leader)[n.cfg.ID])

	c.net.isolate(n.Address(), true)
	again := c.restart(n)
	require.True(t, again.isMember(), "it does not know yet")
	c.net.isolate(n.Address(), false)
	again.waitReady(t)
	require.Equal(t, "voter", roles(t, c.leader())[n.cfg.ID])
}

func TestTheLastVoterStays(t *testing.T) {
	c := newCluster(t, 1, nil)
	n := c.nodes[0]
	require.ErrorContains(t, n.RemoveNode(t.Context(), "n1", false), "only voter")
	require.ErrorContains(t, n.TransferLeadership(t.Context(), ""), "no other voter")
	c.add("n2", func(cfg *Config) { cfg.Nonvoter = true })
	c.waitReady()
	require.Equal(t, map[string]string{"n1": "leader", "n2": "nonvoter"}, roles(t, n))
	require.ErrorContains(t, n.RemoveNode(t.Context(), "n1", false), "only voter")
	require.ErrorContains(t, n.TransferLeadership(t.Context(), "n2"), "no vote")
}

// A node that lost its directory does not remember its votes: it must not come
// back as if nothing had happened.
func TestAWipedNodeIsRefused(t *testing.T) { onEachStore(t, testAWipedNodeIsRefused) }

func testAWipedNodeIsRefused(t *testing.T, use func(*Config)) {
	c := newCluster(t, 3, use)
	_, _, err := storage.One(t.Context(), c.nodes[0], increment("r"))
	require.NoError(t, err)
	wiped := c.follower()
	require.NoError(t, wiped.Close())
	c.forget(wiped)
	again := func(change func(*Config)) (*testNode, error) {
		cfg := c.config(wiped.cfg.ID)
		cfg.Bootstrap = false
		use(&cfg)
		change(&cfg)
		return c.open(cfg)
	}
	_, err = again(func(*Config) {})
	require.ErrorContains(t, err, "is a member of this cluster already")
	_, err = again(func(c *Config) {
		_ = c.Listener.Close() // for the one that it had
		c.Address, c.Dial = wiped.cfg.Address, wiped.cfg.Dial
		c.Listener = listen(t, c.Address)
	})
	require.ErrorContains(t, err, "the data directory of the one that asks is empty")
	require.ErrorContains(t, err, "Replace")
	_, err = again(func(c *Config) { c.Bootstrap = true })
	require.ErrorContains(t, err, "belongs to a cluster already", "it must not found a second one either")
	require.Equal(t, "voter", roles(t, c.leader())[wiped.cfg.ID], "nothing changed")

	n, err := again(func(c *Config) { c.Replace = true })
	require.NoError(t, err)
	n.waitReady(t)
	require.EqualValues(t, 1, count(t, n, storage.Latest))
	s, err := c.leader().Status(t.Context())
	require.NoError(t, err)
	require.Len(t, s.Peers, 3)
}

func TestANodeMayMove(t *testing.T) {
	c := newCluster(t, 3, nil)
	f := c.follower()
	require.NoError(t, f.Close())
	c.forget(f)
	cfg := c.config(f.cfg.ID)
	cfg.Dir, cfg.Bootstrap = f.cfg.Dir, false
	n, err := c.open(cfg)
	require.NoError(t, err)
	n.waitReady(t)
	require.Eventually(t, func() bool {
		for _, n := range c.nodes {
			m, ok := n.member(f.cfg.ID)
			if !ok || string(m.Address) != cfg.Address {
				return false
			}
		}
		return true
	}, 10*time.Second, time.Millisecond)
	_, _, err = storage.One(t.Context(), n, increment("r"))
	require.NoError(t, err)
}

// Who leads at another address than the members know tells them, whomever it was told to ask. The
// others reach it there.
func TestALeaderMayMove(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"asks nobody":              func(*Config) {},
		"asks who does not answer": func(cfg *Config) { cfg.Join, cfg.Bootstrap = []string{"127.0.0.1:1"}, false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1, nil)
			n := c.nodes[0]
			require.NoError(t, n.Close())
			c.forget(n)
			cfg := c.config("n1")
			cfg.Dir = n.cfg.Dir
			change(&cfg)
			n, err := c.open(cfg)
			require.NoError(t, err)
			require.Eventually(t, func() bool { s, _ := n.member("n1"); return string(s.Address) == cfg.Address }, 10*time.Second, time.Millisecond)
			n.waitReady(t)
			other := c.add("n2", nil)
			other.waitReady(t)
			require.NoError(t, n.TransferLeadership(within(t, 20*time.Second), "n2"))
			_, _, err = storage.One(within(t, 20*time.Second), other, increment("r"))
			require.NoError(t, err, "with the vote of who moved")
			n.waitReady(t)
		})
	}
}

// Nobody moves to where another member is, or while the member is alive where it was.
func TestALeaderThatMayNotMove(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	require.NoError(t, leader.AddNode(within(t, 10*time.Second), "n9", "127.0.0.1:1", true))
	before := leader.servers()
	n := leader.as(t, "n1", "127.0.0.1:1")
	require.ErrorIs(t, n.moveHere(within(t, 10*time.Second)), storage.ErrInvalid)
	n = leader.as(t, "n1", "127.0.0.1:2")
	n.failed.Store(new(errors.New("it ends"))) // only once
	require.ErrorContains(t, n.moveHere(within(t, 10*time.Second)), "node n1 is alive at "+leader.Address())
	require.Equal(t, before, leader.servers())
}

// A node that founded its cluster asks to be where it is like any other.
func TestTheFirstNodeMayMove(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	n := c.nodes[0]
	require.NoError(t, n.Close())
	c.forget(n)
	cfg := c.config("n1")
	cfg.Dir, cfg.Bootstrap = n.cfg.Dir, true
	n, err := c.open(cfg)
	require.NoError(t, err)
	n.waitReady(t)
}

// Who is refused does not wait for an answer any more, whoever it was: if somebody adds it, it is ready.
func TestWhoIsTurnedAway(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	at := newStandIn(t, leader)
	at.says(&nodev1.HelloResponse{Cluster: leader.clusterID(), LeaderAddress: at.address})
	asked := make(chan bool, 9)
	at.join = func(*nodev1.JoinRequest) (*nodev1.JoinResponse, error) {
		asked <- true
		return nil, wireError(invalid(errors.New("no")))
	}
	for _, expelled := range []bool{false, true} {
		n := leader.as(t, "n2", "127.0.0.1:1")
		n.cfg.Join, n.cfg.Bootstrap = []string{at.address}, false
		n.expelled.Store(expelled)
		n.settleIn()
		<-asked
		n.tasks.Wait()
		require.False(t, n.joining.Load())
		require.ErrorIs(t, n.noLeader(), errRemoved)
		n.settleIn()
		require.False(t, n.joining.Load(), "it asks once")
	}
}

// Who has nobody to ask and leads no more leaves it at what it is, until it leads again.
func TestWhoMovesAndLeadsNoMore(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	n := leader.as(t, "n1", "127.0.0.1:1")
	n.cfg.Join = nil
	n.leading.Store(nil)
	require.ErrorIs(t, n.join(within(t, 10*time.Second), n.joinRequest(), true), errElsewhere)
	n.turnedAway.Store(true)
	require.ErrorContains(t, n.Ready(within(t, 10*time.Second)), "do not let this node be what it wants")
}

func TestClustersDoNotMix(t *testing.T) {
	one, two := newCluster(t, 1, nil), newCluster(t, 1, nil)
	a, b := one.nodes[0], two.nodes[0]
	require.NotEqual(t, a.clusterID(), b.clusterID())
	// The first takes the second for a member of its own.
	require.NoError(t, a.AddNode(t.Context(), "n2", b.Address(), true))
	_, _, err := storage.One(t.Context(), a, increment("r"))
	require.NoError(t, err)
	require.Never(t, func() bool { return b.fsm.get(session.CounterKey("default", "k")).Record != nil }, 300*time.Millisecond, 10*time.Millisecond)
	require.Equal(t, map[string]string{"n1": "leader"}, roles(t, b))
	_, err = a.peers.At(b.Address()).Term(t.Context(), nil)
	require.ErrorContains(t, err, "belongs to cluster")
}

func TestDrain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	old := c.leader()
	done := make(chan error)
	f := c.follower()
	go func() {
		for i := range 100 {
			if _, _, err := storage.One(context.Background(), f, increment(fmt.Sprint("r", i))); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	require.NoError(t, old.Drain(within(t, 5*time.Second)))
	require.ErrorContains(t, old.Ready(t.Context()), "draining")
	s, err := old.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, "draining", s.Health)
	_, _, err = storage.One(t.Context(), old, increment("late"))
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	next := c.leader(old)
	require.NoError(t, old.Close())
	require.NoError(t, <-done, "nobody else was disturbed")
	require.EqualValues(t, 100, count(t, next, storage.Latest))
	require.ErrorContains(t, old.Ready(t.Context()), "closed")
	_, _, err = storage.One(t.Context(), old, increment("later"))
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	require.NoError(t, old.Close(), "again is harmless")
}

// Two nodes hand the leadership on as well as three do, and one that is alone has nobody to hand it to.
func TestDrainOfFew(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, nil)
	first := c.leader()
	require.NoError(t, first.TransferLeadership(within(t, 10*time.Second), ""))
	second := c.leader(first)
	require.NoError(t, second.Drain(within(t, 10*time.Second)))
	require.NotEqual(t, raft.Leader, second.raft.State())
	require.Same(t, first, c.leader(second))
	require.NoError(t, newCluster(t, 1, nil).leader().Drain(within(t, 10*time.Second)))
}

// What was under way, or could not be handed on, when a drain was over is told.
func TestADrainThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	n, open, underWay := held(t, 0)
	err := n.Drain(within(t, 10*time.Millisecond))
	require.ErrorContains(t, err, "cluster: drain: commands are still under way")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, _, err = storage.One(t.Context(), n, increment("late"))
	require.ErrorIs(t, err, errDraining)
	open()
	underWay.Wait()
	require.EqualValues(t, inFlight, count(t, n, storage.Nearby))

	c := newCluster(t, 2, func(cfg *Config) {
		cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 10*time.Second, 10*time.Second, 9*time.Second
	})
	leader := c.leader()
	c.net.isolate(c.follower().Address(), true)
	require.ErrorContains(t, leader.Drain(within(t, 200*time.Millisecond)), "cluster: drain: ")
}

func TestNodeSnapshots(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(cfg *Config) {
		cfg.SnapshotBytes = 64 << 10
		cfg.TrailingLogs = 2
	})
	set := func(i int) *session.Set {
		return &session.Set{NS: "n", By: session.Maker{Client: "c", Request: fmt.Sprint("s", i)}, Key: fmt.Sprint("k", i), Value: session.Value{Text: string(make([]byte, 4096))}}
	}
	for i := range 40 {
		_, _, err := storage.One(t.Context(), c.nodes[i%3], set(i))
		require.NoError(t, err)
	}
	snapshots := func(n *testNode) int {
		l, _ := n.disk.snapshots.List() // none if it fails
		return len(l)
	}
	for _, n := range c.nodes {
		require.Eventually(t, func() bool { return snapshots(n) > 0 && n.fsm.logged.since() < n.cfg.SnapshotBytes }, 10*time.Second, 10*time.Millisecond)
	}
	// One that was there restores it, one that was not is sent it.
	f := c.follower()
	require.NoError(t, f.Close())
	f = c.restart(f)
	n4 := c.add("n4", nil)
	for _, n := range []*testNode{f, n4} {
		n.waitReady(t)
		v, err := n.View(t.Context(), "", storage.Nearby)
		require.NoError(t, err)
		found, err := v.Find(session.Prefix(session.KindCounter, "n"), "", 100, nil)
		require.NoError(t, err)
		require.Len(t, found, 40)
		require.NotZero(t, snapshots(n))
	}
}

// A first node that looks for a cluster before it founds one founds it where those that it asks have
// none either, or do not answer.
func TestAFirstNodeAmongOthersThatHaveNoCluster(t *testing.T) {
	t.Parallel()
	at := newStandIn(t, newCluster(t, 1, nil).nodes[0])
	at.says(&nodev1.HelloResponse{Node: "n2"})
	c := newCluster(t, 1, func(cfg *Config) { cfg.Join = []string{cfg.Address, "127.0.0.1:1", at.address} })
	require.Equal(t, map[string]string{"n1": "leader"}, roles(t, c.nodes[0]))
}

// A node is a member if it is what it wants to be. Who is none, or hears from the leader that it is
// none, was removed, unless it asks to come back.
func TestWhoIsAMember(t *testing.T) {
	leader := newCluster(t, 1, nil).leader()
	for _, tt := range []struct {
		id                         string
		expelled, joining, removed bool
	}{
		{"n1", false, false, false},
		{"n1", true, false, true},
		{"n1", true, true, false},
		{"n2", false, false, true},
		{"n2", false, true, false},
	} {
		n := leader.as(t, tt.id, leader.Address())
		n.expelled.Store(tt.expelled)
		n.joining.Store(tt.joining)
		require.Equal(t, tt.removed, errors.Is(n.noLeader(), errRemoved), "%v", tt)
		require.False(t, n.Removed(), "there is a leader")
	}

	const elsewhere = "127.0.0.1:1"
	require.NoError(t, leader.AddNode(within(t, 10*time.Second), "n2", elsewhere, true))
	for _, tt := range []struct {
		id, address      string
		nonvoter, member bool
	}{
		{"n1", leader.Address(), false, true},
		{"n1", leader.Address(), true, true},
		{"n1", elsewhere, false, false}, // it has moved
		{"n2", elsewhere, true, true},
		{"n2", elsewhere, false, false}, // it has no vote
		{"n3", elsewhere, true, false},
	} {
		n := leader.as(t, tt.id, tt.address)
		n.cfg.Nonvoter = tt.nonvoter
		require.Equal(t, tt.member, n.isMember(), "%v", tt)
	}

	// Who has nobody to ask for a vote has all that it can have.
	for _, tt := range []struct {
		id       string
		nonvoter bool
		join     []string
		lacks    bool
	}{
		{"n1", false, []string{elsewhere}, false},
		{"n2", false, []string{elsewhere}, true},
		{"n2", false, nil, false},
		{"n2", true, []string{elsewhere}, false},
		{"n3", false, []string{elsewhere}, false},
	} {
		n := leader.as(t, tt.id, elsewhere)
		n.cfg.Nonvoter, n.cfg.Join = tt.nonvoter, tt.join
		require.Equal(t, tt.lacks, n.lacksVote(), "%v", tt)
		err := n.Ready(within(t, 10*time.Second))
		require.Equal(t, tt.lacks, err != nil && strings.Contains(err.Error(), "no vote yet"), "%v: %v", tt, err)
	}
}

// Where another node stands counts if it is of this cluster and takes part in it; what else it says
// of itself counts always.
func TestWhatIsHeard(t *testing.T) {
	own := "cluster"
	n := &Node{fsm: newFSM(noFatal(t), newMetrics())}
	n.cluster.Store(&own)
	n.fsm.Apply(logEntry(10, 1, 0, increment("r")))
	for _, tt := range []struct {
		cluster       string
		term, applied uint64
		stands        bool
		lag           uint64
	}{
		{own, 1, 4, true, 6},
		{own, 1, 12, true, 0},
		{own, 0, 4, false, 0},
		{"another", 1, 4, false, 0},
	} {
		s := n.heard(&nodev1.HelloResponse{Cluster: tt.cluster, Term: tt.term, AppliedIndex: tt.applied, ApiAddress: "api", Version: 7, LogBytes: 5})
		require.Equal(t, tt.stands, !s.at.IsZero(), "%v", tt)
		require.Equal(t, tt.stands, s.applied == tt.applied, "%v", tt)
		require.Equal(t, tt.lag, s.lag, "%v", tt)
		require.Equal(t, said{at: s.at, api: "api", version: 7, applied: s.applied, lag: s.lag, logged: 5}, s)
	}
}

// Commands that a member does not know are not written. Who was never heard of knows those of the
// first release, and who is no member any more is not asked.
func TestWhoKnowsTheFewestCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMembers("n2", firstVersion+5, silentAfter)
		are := func(members ...raft.ServerID) func() []raft.Server {
			return func() (servers []raft.Server) {
				for _, id := range members {
					servers = append(servers, raft.Server{ID: id})
				}
				return servers
			}
		}
		oldest := func(members ...raft.ServerID) string {
			m.settle(are(members...))
			low := m.low.Load()
			return fmt.Sprintf("%s %+d", low.node, int(low.version)-firstVersion)
		}
		require.Equal(t, "n2 +5", oldest("n2"))
		m.note("n1", said{version: firstVersion + 2})
		m.note("n3", said{version: firstVersion - 1, at: time.Now()})
		m.note("n4", said{version: 1})
		require.Equal(t, "n3 -1", oldest("n2", "n1", "n3"))
		_, known := m.of("n4")
		require.False(t, known)
		require.Equal(t, "n3 -1", oldest("n2", "n3", "n1", "n5"))
		require.Equal(t, "n5 +0", oldest("n1", "n5", "n2"))
		m.asks("n6", firstVersion-2)
		m.expect("n6", are("n1", "n2"))
		require.Equal(t, "n6 -2", oldest("n1", "n2"), "it counts before it is one")
		m.expect("", are("n1", "n2"))
		require.Equal(t, "n1 +2", oldest("n1", "n2"))
		_, known = m.of("n1")
		require.True(t, known)

		// Who was silent when it was removed begins anew when it is back.
		m.note("n1", said{at: time.Now()})
		time.Sleep(silentAfter)
		went, _ := m.turned()
		require.Equal(t, []string{"n1"}, went)
		oldest("n2")
		m.note("n1", said{at: time.Now()})
		went, came := m.turned()
		require.Empty(t, append(went, came...))
	})
}

// Whoever answers at the address of a member under another name is not that member, and nobody
// else. That this node is none any more the leader alone says.
func TestWhoAnswersAtTheAddressOfAMember(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	at := newStandIn(t, leader)
	require.NoError(t, leader.AddNode(within(t, 10*time.Second), "n2", at.address, true))
	require.NoError(t, leader.AddNode(within(t, 10*time.Second), "n3", "127.0.0.1:1", true))
	n := leader.as(t, "n1", leader.Address())
	hears := func(leads string, removed bool) {
		at.says(&nodev1.HelloResponse{Cluster: leader.clusterID(), Node: "n2", Term: 1, AppliedIndex: 3, Leader: leads, Removed: removed})
	}
	at.says(&nodev1.HelloResponse{Cluster: leader.clusterID(), Node: "n3", Term: 1, AppliedIndex: 3})
	n.greetAll()
	for _, id := range []string{"n2", "n3"} {
		_, known := n.members.of(id)
		require.False(t, known, id)
	}
	hears("n3", true)
	require.Eventually(t, func() bool {
		n.greetAll()
		s, known := n.members.of("n2")
		return known && s.applied == 3
	}, 10*time.Second, time.Millisecond)
	require.False(t, n.expelled.Load())
	for _, removed := range []bool{true, false} {
		hears("n2", removed)
		require.Eventually(t, func() bool { n.greetAll(); return n.expelled.Load() == removed }, 10*time.Second, time.Millisecond)
		hears("n3", !removed)
		n.greetAll()
		require.Equal(t, removed, n.expelled.Load())
	}
}

// Whoever wants to join asks the leader that another node knows, and is told what stands against it.
func TestWhomANodeAsksToJoin(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	at := newStandIn(t, leader)
	n := leader.as(t, "n2", "127.0.0.1:1")
	own, ctx := leader.clusterID(), within(t, 30*time.Second)
	asked, answer, refusal := 0, false, error(nil)
	at.join = func(r *nodev1.JoinRequest) (*nodev1.JoinResponse, error) {
		asked++
		if r.GetNode() != "n2" || r.GetAppliedIndex() == 0 {
			return nil, connect.NewError(connect.CodeInternal, errors.New("that is not what was to be asked"))
		}
		return &nodev1.JoinResponse{Done: answer}, refusal
	}
	for name, tt := range map[string]struct {
		there   *nodev1.HelloResponse
		refuses connect.Code
		want    string
		invalid bool
	}{
		"nobody":                           {nil, connect.CodeUnavailable, "no", false},
		"one that it must not ask":         {nil, connect.CodePermissionDenied, "no", true},
		"one without a cluster":            {&nodev1.HelloResponse{LeaderAddress: at.address}, 0, "is no member of a cluster yet", false},
		"one without a leader":             {&nodev1.HelloResponse{Cluster: own}, 0, errNoLeader.Error(), false},
		"one that takes it for the leader": {&nodev1.HelloResponse{Cluster: own, LeaderAddress: n.cfg.Address}, 0, errNoLeader.Error(), false},
	} {
		at.answers(func(*nodev1.HelloRequest) (*nodev1.HelloResponse, error) {
			if tt.there == nil {
				return nil, connect.NewError(tt.refuses, errors.New("no"))
			}
			return tt.there, nil
		})
		done, err := n.joinAt(ctx, at.address, n.joinRequest())
		require.ErrorContains(t, err, tt.want, name)
		require.Equal(t, tt.invalid, errors.Is(err, storage.ErrInvalid), name)
		require.False(t, done, name)
		require.Zero(t, asked, name)
	}
	done, err := n.joinAt(ctx, n.cfg.Address, n.joinRequest())
	require.ErrorContains(t, err, "no other member answers")
	require.False(t, done)

	at.says(&nodev1.HelloResponse{Cluster: own, LeaderAddress: at.address})
	for _, answer = range []bool{false, true} {
		done, err = n.joinAt(ctx, at.address, n.joinRequest())
		require.NoError(t, err)
		require.Equal(t, answer, done)
	}
	n.cfg.Join, answer = []string{at.address}, false
	require.NoError(t, n.join(ctx, n.joinRequest(), false), "it is admitted, and catches up")
	answer = true
	require.NoError(t, n.join(ctx, n.joinRequest(), true))
	refusal = wireError(invalidField("address", "%s is taken", "it"))
	for _, all := range []bool{false, true} {
		err = n.join(ctx, n.joinRequest(), all)
		require.ErrorIs(t, err, storage.ErrInvalid)
		require.ErrorContains(t, err, "it is taken")
	}
	require.Equal(t, 6, asked)

	// That the time is over is not why nobody has let it in.
	n.cfg.Join = []string{n.cfg.Address}
	over, end := context.WithCancel(ctx)
	end()
	err = n.join(over, n.joinRequest(), false)
	require.ErrorContains(t, err, "not admitted: no other member answers")
	require.ErrorIs(t, err, context.Canceled)
}

// Who enlists asks members of a cluster whose API it is told.
func TestWhoCanBeAskedToEnlist(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	at := newStandIn(t, leader)
	n := leader.as(t, "n2", "127.0.0.1:1")
	for _, tt := range []struct {
		cluster, api string
		can          bool
	}{
		{leader.clusterID(), "api", true},
		{leader.clusterID(), "", false},
		{"", "api", false},
	} {
		at.says(&nodev1.HelloResponse{Node: "n5", Cluster: tt.cluster, ApiAddress: tt.api})
		node, api, err := n.memberAt(t.Context(), at.address)
		if !tt.can {
			require.ErrorContains(t, err, "is no member of a cluster yet")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, []string{"n5", tt.api}, []string{node, api})
	}
}
