package cluster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

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
	nodev1connect.NodeServiceClient
	asked chan struct{}
}

func (h hung) ReadIndex(ctx context.Context, _ *nodev1.ReadIndexRequest) (*nodev1.ReadIndexResponse, error) {
	close(h.asked)
	<-ctx.Done()
	return nil, connect.NewError(connect.CodeCanceled, ctx.Err())
}

// A read that waits for a leader that hangs asks the next one as soon as there
// is one.
func TestAReadDoesNotWaitForAFormerLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(c *Config) { c.RPCTimeout = time.Minute })
	leader, reader := c.leader(), c.follower()
	h := hung{reader.peers.at(leader.Address()), make(chan struct{})}
	reader.peers.mu.Lock()
	reader.peers.known[leader.Address()] = h
	reader.peers.mu.Unlock()
	read := make(chan error, 1)
	ctx := within(t, 20*time.Second)
	go func() {
		_, err := reader.Get(ctx, session.CounterKey("default", "k"), storage.Latest)
		read <- err
	}()
	<-h.asked
	var next string
	for _, n := range c.nodes {
		if n != leader && n != reader {
			next = n.cfg.ID
		}
	}
	require.NoError(t, leader.TransferLeadership(within(t, 10*time.Second), next))
	require.NoError(t, <-read)
}
