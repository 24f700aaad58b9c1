package cluster

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cluster/transport"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/proto/govnode/node/v1/nodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A term is confirmed by as many voters as it takes, and by no more; whoever
// answers later is waited for by nobody, and does not wait either.
func TestConfirmTerm(t *testing.T) {
	const term = 7
	slow := map[string]time.Duration{"slow": time.Second, "hangs": time.Minute}
	says := map[string]uint64{"agrees": term, "too": term, "slow": term, "behind": term - 1, "silent": 0, "deposes": term + 1, "hangs": term}
	for _, c := range []struct {
		voters []string
		enough int
		err    error
		takes  time.Duration
	}{
		{nil, 0, nil, 0}, // the only voter
		{[]string{"agrees", "hangs"}, 1, nil, 0},
		{[]string{"agrees", "slow", "hangs", "hangs"}, 1, nil, 0},
		{[]string{"agrees", "too", "hangs", "silent"}, 2, nil, 0},
		{[]string{"behind", "slow"}, 1, nil, time.Second},
		{[]string{"agrees", "silent", "behind", "slow"}, 2, nil, time.Second},
		{[]string{"deposes", "hangs"}, 1, errDeposed, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			err := confirmTerm(term, c.voters, c.enough, func(v string) uint64 {
				time.Sleep(slow[v])
				return says[v]
			})
			require.ErrorIs(t, err, c.err, "%v", c.voters)
			require.Equal(t, c.takes, time.Since(start), "%v", c.voters)
			time.Sleep(time.Hour) // the test fails if somebody waits even then
		})
	}
	for _, voters := range [][]string{nil, {"silent", "behind"}, {"agrees", "silent", "behind"}} {
		err := confirmTerm(term, voters, 1+len(voters)/2, func(v string) uint64 { return says[v] })
		require.ErrorContains(t, err, "no majority")
	}
}

// A hung node is asked for its index and does not answer.
type hung struct {
	nodev1connect.NodeServiceHandler
	asked chan struct{}
}

func (h hung) ReadIndex(ctx context.Context, _ *nodev1.ReadIndexRequest) (*nodev1.ReadIndexResponse, error) {
	select {
	case h.asked <- struct{}{}:
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// A read that waits for a leader that hangs asks the next one as soon as there
// is one.
func TestAReadDoesNotWaitForAFormerLeader(t *testing.T) {
	t.Parallel()
	l := listen(t, "127.0.0.1:0")
	var hangs atomic.Value // address of a node that is reached at the listener
	c := newCluster(t, 3, func(cfg *Config) {
		dial := cfg.Dial
		cfg.RPCTimeout = time.Minute
		cfg.Dial = func(ctx context.Context, to string) (net.Conn, error) {
			if to == hangs.Load() {
				to = l.Addr().String()
			}
			return dial(ctx, to)
		}
	})
	leader, reader := c.leader(), c.follower()
	h := hung{&service{leader.Node}, make(chan struct{})}
	server := transport.NewServer(h, leader.port, leader.started.Load)
	go func() { _ = server.Serve(l) }() // until the test ends
	t.Cleanup(func() { _ = server.Close() })
	hangs.Store(leader.Address())
	ctx := within(t, 20*time.Second)
	read := make(chan error, 1)
	for asked := false; !asked; {
		reader.peers.Close() // unless it is in use
		go func() {
			_, err := reader.Get(ctx, session.CounterKey("default", "k"), storage.Latest)
			read <- err
		}()
		select {
		case <-h.asked:
			asked = true
		case err := <-read:
			require.NoError(t, err)
		}
	}
	require.NoError(t, leader.TransferLeadership(within(t, 10*time.Second), c.follower(reader).cfg.ID))
	require.NoError(t, <-read)
}

// Who gives up waiting for an index is told how far this node has come, and is waited for
// by nobody.
func TestWhoGivesUpWaitingForAnIndex(t *testing.T) {
	f := newFSM(noFatal(t), newMetrics())
	f.Apply(logEntry(3, 1, 0, increment("r")))
	open, end := context.WithCancel(t.Context())
	n := &Node{fsm: f, ctx: open}
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, n.wait(ctx, 3))
	cancel()
	err := n.wait(ctx, 5)
	require.ErrorAs(t, err, new(*storage.ReadError))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "applied 3 of 5")
	require.Empty(t, f.waiting)
	end()
	require.ErrorIs(t, n.wait(t.Context(), 5), errClosed)
}

// One of two voters is no majority: alone it reads nothing, though it may still think that
// it leads.
func TestOneOfTwoReadsNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, nil)
	old := c.leader()
	c.net.isolate(old.Address(), true)
	for old.Leader() { // as long as it does
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := old.View(ctx, "", storage.Latest)
		cancel()
		require.ErrorAs(t, err, new(*storage.ReadError))
	}
}

// Where a KILL is not swept the leader says so, and nobody else: it is not swept twice.
func TestTheLeaderSaysWhatIsNotSwept(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, nil)
	leader, f := c.leader(), c.follower()
	_, index, err := storage.One(within(t, 20*time.Second), leader, &session.Signal{
		NS: "n", By: session.Maker{Client: "c", Request: "kill"}, Target: session.Target{Scope: session.OfAgent, Name: "a"}, Signal: session.Kill,
	})
	require.NoError(t, err)
	for _, n := range c.nodes {
		require.NoError(t, n.wait(within(t, 20*time.Second), index))
		require.Len(t, n.fsm.unswept(), 1)
	}
	require.Equal(t, leader.fsm.unswept(), leader.Unswept(t.Context()))
	require.Empty(t, f.Unswept(t.Context()))
}
