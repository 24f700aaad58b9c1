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

// Who is asked to hand leadership to a member that is down, or that lacks entries and cannot be
// sent them now, does not: nothing could be changed until that member has them. Once it has, it
// leads.
func TestLeadershipIsHandedToWhoHasEverything(t *testing.T) {
	t.Parallel()
	var behind atomic.Value // the address of a member that is sent no entries
	c := newCluster(t, 3, func(cfg *Config) {
		dial := cfg.Dial
		cfg.Dial = func(ctx context.Context, to string) (net.Conn, error) {
			conn, err := dial(ctx, to)
			if err != nil {
				return nil, err
			}
			return &withoutRaft{Conn: conn, cut: func() bool { return behind.Load() == to }}, nil
		}
	})
	leader, late := c.leader(), c.follower()
	down := c.follower(late)
	refuses := func(to *testNode, request, says string) {
		require.NoError(t, leader.Apply(within(t, 20*time.Second), increment(request))[0].Err)
		ctx := within(t, 3*time.Second)
		answer := make(chan error, 1)
		go func() { answer <- leader.TransferLeadership(ctx, to.cfg.ID) }()
		require.NoError(t, leader.Apply(ctx, increment(request+"-meanwhile"))[0].Err)
		err := <-answer
		require.Equal(t, storage.NotApplied, storage.OutcomeOf(err), "%v", err)
		require.ErrorContains(t, err, says)
	}
	behind.Store(late.Address())
	refuses(late, "1", late.cfg.ID+" lacks entries")
	behind.Store("")
	late.waitReady(t)
	require.NoError(t, down.Close())
	refuses(down, "2", down.cfg.ID+" does not answer")
	require.NoError(t, leader.TransferLeadership(within(t, 30*time.Second), late.cfg.ID))
	require.Eventually(t, late.Leader, 20*time.Second, time.Millisecond)
	require.EqualValues(t, 4, count(t, late, storage.Latest))
}
