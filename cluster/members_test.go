package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
				if p.APIAddress != "api-of-"+p.Node || p.Address == "" {
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
	gone := c.follower()
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
	require.Equal(t, []string{"WARN " + errRemoved.Error()}, said.text())

	require.NoError(t, again.Close())
	again.cfg.Join = join
	c.restart(again).waitReady(t)
	require.Equal(t, "voter", roles(t, c.leader())[gone.cfg.ID])
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
	_, _, err := storage.One(t.Context(), old, increment("late"))
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
		v, err := n.View(t.Context(), storage.Nearby)
		require.NoError(t, err)
		found, err := v.Find(session.Prefix(session.KindCounter, "n"), "", 100, nil)
		require.NoError(t, err)
		require.Len(t, found, 40)
		require.NotZero(t, snapshots(n))
	}
}
