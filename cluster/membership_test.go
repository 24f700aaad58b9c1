package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/storage"
)

// Whoever removes a voter keeps a majority of those that are left, or is told
// who does not answer. One more voter that answers never costs a majority.
func TestAMajorityIsLeft(t *testing.T) {
	for voters := 2; voters <= 7; voters++ {
		for alive := voters/2 + 1; alive <= voters; alive++ {
			answers := map[string]bool{}
			for i := range voters {
				answers[fmt.Sprint("n", i)] = i < alive
			}
			for i := range voters {
				id := fmt.Sprint("n", i)
				left := alive
				if answers[id] {
					left--
				}
				err := leavesMajority(id, answers)
				require.Equal(t, left >= (voters-1)/2+1, err == nil, "%s of %v", id, answers)
				if err == nil {
					continue
				}
				require.ErrorIs(t, err, storage.ErrInvalid)
				for who, answered := range answers {
					if who != id {
						require.Equal(t, !answered, strings.Contains(strings.SplitAfter(err.Error(), "no answer comes from")[1], who))
					}
				}
			}
			require.GreaterOrEqual(t, alive+1, (voters+1)/2+1, "a voter more")
		}
	}
}

func TestRemoveNodeKeepsAMajority(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	leader, dead := c.leader(), c.follower()
	live := c.follower(dead)
	require.NoError(t, dead.Close())
	for _, asked := range []*testNode{leader, live} {
		for _, id := range []string{live.cfg.ID, leader.cfg.ID} {
			err := asked.RemoveNode(within(t, 10*time.Second), id, false)
			require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
			require.ErrorIs(t, err, storage.ErrInvalid)
			require.ErrorContains(t, err, "no answer comes from "+dead.cfg.ID+";")
		}
	}
	require.Len(t, roles(t, leader), 3)
	_, _, err := storage.One(t.Context(), live, increment("1"))
	require.NoError(t, err, "the cluster goes on")
	// Who is dead may go, and then the other.
	require.NoError(t, live.RemoveNode(within(t, 10*time.Second), dead.cfg.ID, false))
	require.NoError(t, leader.RemoveNode(within(t, 10*time.Second), live.cfg.ID, false))
	require.Len(t, roles(t, leader), 1)
}

func TestRemoveNodeByForce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	leader, dead := c.leader(), c.follower()
	live := c.follower(dead)
	require.NoError(t, dead.Close())
	// Two are left, and one is dead. The change itself is committed by those who
	// are to be there: nobody can say that it was.
	err := leader.RemoveNode(within(t, time.Second), live.cfg.ID, true)
	require.NotEqual(t, storage.NotApplied, storage.OutcomeOf(err), "%v", err)
	require.Len(t, roles(t, leader), 2)
}

// A change of members that may still come is not said to have been refused, and
// asking again tells.
func TestMembersOutcomes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	leader, other := c.leader(), c.follower()
	c.net.isolate(leader.Address(), true)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := leader.RemoveNode(ctx, other.cfg.ID, true)
	require.Equal(t, storage.Unknown, storage.OutcomeOf(err), "%v", err)
	c.net.isolate(leader.Address(), false)
	for range 2 {
		require.NoError(t, leader.RemoveNode(within(t, 20*time.Second), other.cfg.ID, false))
		for _, n := range c.nodes {
			if n != other {
				require.Eventually(t, func() bool { _, known := n.member(other.cfg.ID); return !known }, 10*time.Second, time.Millisecond)
			}
		}
	}
	for range 2 {
		require.NoError(t, leader.AddNode(within(t, 20*time.Second), other.cfg.ID, other.Address(), false))
		require.Equal(t, 3, c.leader().voters())
	}
}

// A leader that is cut off does not say that nothing is left to do: another may have
// changed the members since.
func TestWhoIsCutOffConfirmsNoMembers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	for name, change := range map[string]func(ctx context.Context, leader, other *testNode) error{
		"has its vote": func(ctx context.Context, leader, other *testNode) error {
			return leader.AddNode(ctx, other.cfg.ID, other.Address(), false)
		},
		"is a member": func(ctx context.Context, leader, other *testNode) error {
			return leader.AddNode(ctx, other.cfg.ID, other.Address(), true)
		},
		"is none": func(ctx context.Context, leader, _ *testNode) error { return leader.RemoveNode(ctx, "n9", false) },
	} {
		leader, other := c.leader(), c.follower()
		require.NoError(t, change(within(t, 20*time.Second), leader, other), name)
		c.net.isolate(leader.Address(), true)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err := change(ctx, leader, other)
		cancel()
		require.Equal(t, storage.NotApplied, storage.OutcomeOf(err), "%s: %v", name, err)
		c.net.isolate(leader.Address(), false)
	}
}

// What was never sent was not done; what was sent to a leader that is gone is
// not known.
func TestOutcomesOverTheWire(t *testing.T) {
	t.Parallel()
	var hang atomic.Bool
	c := newCluster(t, 2, func(cfg *Config) {
		dial := cfg.Dial
		cfg.Dial = func(ctx context.Context, to string) (net.Conn, error) {
			if hang.Load() {
				return nil, errors.New("no way")
			}
			return dial(ctx, to)
		}
	})
	leader, f := c.leader(), c.follower()
	cut := leader.Address()
	hang.Store(true)
	c.net.isolate(cut, true) // ends what is open
	if f.raft.State() == raft.Leader {
		leader, f = f, leader // it has come to lead since
	}
	f.peers.Close()
	err := f.RemoveNode(within(t, 300*time.Millisecond), "nobody", false)
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err), "%v", err)
	c.net.isolate(cut, false)
	hang.Store(false)
	c.waitReady()

	gone := listen(t, "127.0.0.1:0") // takes what is sent, and ends
	t.Cleanup(func() { _ = gone.Close() })
	go func() {
		for {
			conn, err := gone.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1<<10))
			_ = conn.Close()
		}
	}()
	_, err = f.peers.At(gone.Addr().String()).RemoveNode(within(t, 5*time.Second), nil)
	require.Equal(t, storage.Unknown, storage.OutcomeOf(sent(err)), "%v", err)
	other := c.follower().cfg.Address // which does not lead, and says so
	_, err = f.peers.At(other).RemoveNode(within(t, 5*time.Second), nil)
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(sent(err)), "%v", err)
	require.ErrorIs(t, sent(err), errElsewhere)
}

// Whoever waits for another change of members gives up when it has waited long
// enough, and has changed nothing.
func TestChangeOfMembersWaitsItsTurn(t *testing.T) {
	c := newCluster(t, 1, nil)
	n := c.nodes[0]
	n.changing <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for _, err := range []error{n.RemoveNode(ctx, "n2", false), n.AddNode(ctx, "n2", "127.0.0.1:1", true)} {
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	}
	<-n.changing
	require.NoError(t, n.RemoveNode(t.Context(), "n2", false))
}

// A node that is removed while it is added stays removed: whoever adds it hears so, and
// does not add it a second time.
func TestRemovedWhileItIsAdded(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	added := make(chan error, 1)
	ctx := within(t, 10*time.Second)
	go func() { added <- leader.AddNode(ctx, "n9", "127.0.0.1:1", false) }()
	isMember := func() bool { _, is := leader.member("n9"); return is }
	require.Eventually(t, isMember, 5*time.Second, 5*time.Millisecond)
	require.NoError(t, leader.RemoveNode(within(t, 5*time.Second), "n9", false))
	err := <-added
	require.ErrorIs(t, err, storage.ErrInvalid)
	require.ErrorContains(t, err, "n9 was removed while it was added")
	require.False(t, isMember())
}

// A leader that was once sent a snapshot, with changes of members in it of which it has no
// entry, changes members like any other.
func TestMembersAreChangedBehindASnapshot(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(cfg *Config) { cfg.SnapshotBytes, cfg.TrailingLogs = 1, 1 })
	late := c.follower()
	c.net.isolate(late.Address(), true)
	leader := c.leader(late)
	require.NoError(t, leader.AddNode(within(t, 20*time.Second), "n9", "127.0.0.1:1", true))
	for i := range 10 {
		_, _, err := storage.One(within(t, 20*time.Second), leader, increment(fmt.Sprint(i)))
		require.NoError(t, err)
	}
	for _, n := range c.nodes {
		if n != late {
			require.Eventually(t, func() bool {
				_ = await(n.raft.Snapshot(), n.dead) // there may be nothing new
				first, err := n.disk.log.FirstIndex()
				return err == nil && first > n.fsm.memberIndex()
			}, 20*time.Second, time.Millisecond)
		}
	}
	c.net.isolate(late.Address(), false)
	require.Eventually(t, func() bool { return counted(late.metrics.restores) > 0 }, 30*time.Second, time.Millisecond)
	late.waitReady(t)
	require.Eventually(t, func() bool {
		return late.Leader() || late.TransferLeadership(within(t, 10*time.Second), late.cfg.ID) == nil && late.Leader()
	}, 30*time.Second, time.Millisecond)
	require.NoError(t, late.RemoveNode(within(t, 5*time.Second), "n9", false))
	require.NotContains(t, roles(t, late), "n9")
}

// Whoever moves the leadership is told that it has moved only if it has.
func TestATransferToNobody(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(cfg *Config) {
		cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 4*time.Second, 4*time.Second, 4*time.Second
	})
	leader := c.leader()
	for _, n := range c.nodes {
		if n != leader {
			c.net.isolate(n.Address(), true)
		}
	}
	err := leader.TransferLeadership(within(t, time.Second), "")
	require.Error(t, err)
	require.Equal(t, storage.Unknown, storage.OutcomeOf(err))
	require.True(t, leader.Leader())
	for _, n := range c.nodes {
		c.net.isolate(n.Address(), false)
	}
	require.NoError(t, leader.TransferLeadership(within(t, 30*time.Second), ""))
	require.Eventually(t, func() bool { return c.leader() != leader }, 20*time.Second, time.Millisecond)
}

// A member that says to be where another one is told so, and asks in vain no more.
func TestAMemberAtTheAddressOfAnother(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	n, other := c.follower(), c.leader()
	_, err := c.leader().admit(within(t, 10*time.Second), &nodev1.JoinRequest{Node: n.cfg.ID, Address: other.Address(), Self: n.hello().GetSelf()})
	require.ErrorIs(t, err, storage.ErrInvalid)
	require.ErrorContains(t, err, "is that of another member")
	_, err = c.leader().admit(within(t, 10*time.Second), &nodev1.JoinRequest{Node: n.cfg.ID, Address: n.Address(), Self: n.hello().GetSelf()})
	require.NoError(t, err, "it may say its own")
}
