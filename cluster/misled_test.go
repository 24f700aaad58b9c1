package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// misled is what a network does whose name service sends one node to the wrong place: whoever
// is inside is cut off from all others, and what one of them looks for outside is reached
// inside.
type misled struct {
	inside map[string]bool // addresses
	who    string
	looks  map[string]string // for these, and finds those
}

// In a cluster of five the leader is left with one other node, and led to that for a third. Two
// nodes are no majority, whatever they are called: nothing is acknowledged there, and nothing is
// read, while the three others go on.
func TestOneNodeIsNotCountedAsTwo(t *testing.T) {
	t.Parallel()
	var now atomic.Pointer[misled]
	c := newCluster(t, 5, func(cfg *Config) {
		dial, from := cfg.Dial, cfg.Address
		cfg.Dial = func(ctx context.Context, to string) (net.Conn, error) {
			if m := now.Load(); m != nil && m.who == from && m.looks[to] != "" {
				to = m.looks[to]
			}
			conn, err := dial(ctx, to)
			if err != nil {
				return nil, err
			}
			// Asked now, so that no connection that was under way meanwhile stays.
			if m := now.Load(); m != nil && m.inside[from] != m.inside[to] {
				return nil, errors.Join(fmt.Errorf("%s does not reach %s", from, to), conn.Close())
			}
			return conn, nil
		}
	})
	leader := c.leader()
	with := c.follower()
	third := c.follower(with)
	require.NoError(t, leader.Apply(within(t, 20*time.Second), increment("before"))[0].Err)
	inside := map[string]bool{leader.Address(): true, with.Address(): true}
	now.Store(&misled{inside, leader.Address(), map[string]string{third.Address(): with.Address()}})
	for address := range inside { // ends what is open
		c.net.isolate(address, true)
		c.net.isolate(address, false)
	}
	next := c.leader(leader, with)
	a := next.Apply(within(t, 20*time.Second), increment("outside"))[0]
	require.NoError(t, a.Err)
	read, ctx := make(chan error, 1), within(t, 3*time.Second)
	go func() {
		_, err := leader.Get(ctx, session.CounterKey("default", "k"), storage.Latest)
		read <- err
	}()
	a = leader.Apply(ctx, increment("inside"))[0]
	require.NotEqual(t, storage.Applied, a.Outcome)
	require.ErrorAs(t, <-read, new(*storage.ReadError))

	now.Store(nil)
	c.waitReady()
	require.NoError(t, next.Apply(within(t, 20*time.Second), increment("inside"))[0].Err)
	for _, n := range c.nodes {
		require.EqualValues(t, 3, count(t, n, storage.Latest))
	}
}
