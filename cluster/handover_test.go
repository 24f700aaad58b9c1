package cluster

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/storage"
)

// A withoutRaft connection fails once what is written to it is Raft's and cut off.
type withoutRaft struct {
	net.Conn
	said, raft bool
	cut        func() bool
}

func (c *withoutRaft) Write(b []byte) (int, error) {
	if !c.said {
		c.said, c.raft = true, b[0] == 'R' // as package transport has it
	}
	if c.raft && c.cut() {
		return 0, errors.Join(errors.New("cut off"), c.Close())
	}
	return c.Conn.Write(b)
}

// cutOffRaft has a node send those members nothing of Raft, and all else, while cut says so.
func cutOffRaft(cfg *Config, cut func(to string) bool) {
	dial := cfg.Dial
	cfg.Dial = func(ctx context.Context, to string) (net.Conn, error) {
		conn, err := dial(ctx, to)
		if err != nil {
			return nil, err
		}
		return &withoutRaft{Conn: conn, cut: func() bool { return cut(to) }}, nil
	}
}

// Who is asked to hand leadership to a member that is down, or that lacks entries and cannot be
// sent them now, does not: nothing could be changed until that member has them. Once it has, it
// leads.
func TestLeadershipIsHandedToWhoHasEverything(t *testing.T) {
	t.Parallel()
	var behind atomic.Value // the address of a member that is sent no entries
	c := newCluster(t, 3, func(cfg *Config) {
		cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 2*time.Second, 2*time.Second, 2*time.Second
		cutOffRaft(cfg, func(to string) bool { return behind.Load() == to })
	})
	leader, late := c.leader(), c.follower()
	down := c.follower(late)
	refuses := func(to *testNode, request string) {
		require.NoError(t, leader.Apply(within(t, 20*time.Second), increment(request))[0].Err)
		ctx := within(t, 3*time.Second)
		answer := make(chan error, 1)
		go func() { answer <- leader.TransferLeadership(ctx, to.cfg.ID) }()
		require.NoError(t, leader.Apply(ctx, increment(request+"-meanwhile"))[0].Err)
		err := <-answer
		require.Equal(t, storage.NotApplied, storage.OutcomeOf(err), "%v", err)
		require.ErrorContains(t, err, "cannot take over")
	}
	behind.Store(late.Address())
	refuses(late, "1")
	behind.Store("")
	late.waitReady(t)
	require.NoError(t, down.Close())
	refuses(down, "2")
	require.NoError(t, leader.TransferLeadership(within(t, 30*time.Second), late.cfg.ID))
	require.Eventually(t, late.Leader, 20*time.Second, time.Millisecond)
	require.EqualValues(t, 4, count(t, late, storage.Latest))
}

// Where nobody is named, who is down is not handed anything, though it may have had everything
// when it went down.
func TestLeadershipIsHandedToWhoIsThere(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	leader := c.leader()
	var down *testNode
	for _, s := range leader.servers() { // Raft looks at them in this order
		for _, n := range c.nodes {
			if down == nil && n != leader && n.cfg.ID == string(s.ID) {
				down = n
			}
		}
	}
	next := c.follower(down)
	require.NoError(t, down.Close())
	require.NoError(t, leader.TransferLeadership(within(t, 10*time.Second), ""))
	require.Eventually(t, next.Leader, 20*time.Second, time.Millisecond)
}

// Whoever moves the leadership is told that it has moved only if it has, and that it has not
// only if nobody was told to take it.
func TestATransferToNobody(t *testing.T) {
	t.Parallel()
	var cut atomic.Bool // Raft, and nothing else
	c := newCluster(t, 3, func(cfg *Config) {
		cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 4*time.Second, 4*time.Second, 4*time.Second
		cutOffRaft(cfg, func(string) bool { return cut.Load() })
	})
	leader := c.leader()
	isolate := func(now bool) {
		for _, n := range c.nodes {
			if n != leader {
				c.net.isolate(n.Address(), now)
			}
		}
	}
	for _, x := range []struct {
		cut  func(bool)
		want storage.Outcome
	}{{isolate, storage.NotApplied}, {cut.Store, storage.Unknown}} {
		c.waitReady()
		x.cut(true)
		err := leader.TransferLeadership(within(t, time.Second), "")
		require.Error(t, err)
		require.Equal(t, x.want, storage.OutcomeOf(err), "%v", err)
		require.True(t, leader.Leader())
		x.cut(false)
	}
	require.NoError(t, leader.TransferLeadership(within(t, 30*time.Second), ""))
	require.Eventually(t, func() bool { return c.leader() != leader }, 20*time.Second, time.Millisecond)
}

// Who still takes a former leader for the present one has it lead again, and does not say
// that it leads.
func TestATransferToAFormerLeader(t *testing.T) {
	t.Parallel()
	var behind atomic.Value // the address of a member that hears nothing of Raft
	c := newCluster(t, 3, func(cfg *Config) {
		cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 4*time.Second, 4*time.Second, 4*time.Second
		cutOffRaft(cfg, func(to string) bool { return behind.Load() == to })
	})
	leader, late := c.leader(), c.follower()
	next := c.follower(late)
	behind.Store(late.Address())
	require.NoError(t, leader.TransferLeadership(within(t, 20*time.Second), next.cfg.ID))
	require.Eventually(t, next.Leader, 20*time.Second, time.Millisecond)
	answer := make(chan error, 1)
	go func() { answer <- late.TransferLeadership(within(t, 30*time.Second), leader.cfg.ID) }()
	select {
	case <-time.After(100 * time.Millisecond): // it has asked the former leader
	case err := <-answer:
		require.NoError(t, err)
		require.True(t, leader.Leader(), "it was said to lead")
		return
	}
	behind.Store("")
	require.NoError(t, <-answer)
	require.Eventually(t, leader.Leader, 20*time.Second, time.Millisecond)
}
