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
