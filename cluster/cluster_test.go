package cluster

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/storage"
)

func TestThreeNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	for i := range 30 {
		n := c.nodes[i%3]
		r, index, err := storage.One(t.Context(), n, increment(fmt.Sprint("r", i)))
		require.NoError(t, err)
		require.NotZero(t, index)
		require.EqualValues(t, (i+1)*1_000_000, r.Value)
		// Any other node sees it at once, if asked for the latest.
		require.EqualValues(t, i+1, count(t, c.nodes[(i+1)%3], storage.Latest))
	}
}

func TestNothingAcknowledgedIsLostWhenAllNodesStop(t *testing.T) {
	onEachStore(t, testNothingAcknowledgedIsLost)
}

func testNothingAcknowledgedIsLost(t *testing.T, use func(*Config)) {
	c := newCluster(t, 3, use)
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			_, _, err := storage.One(t.Context(), c.nodes[i%3], increment(fmt.Sprint("r", i)))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	nodes := append([]*testNode(nil), c.nodes...)
	for _, n := range nodes {
		require.NoError(t, n.Close())
	}
	for _, n := range nodes {
		c.restart(n)
	}
	c.waitReady()
	for _, n := range c.nodes {
		require.EqualValues(t, 60, count(t, n, storage.Latest))
	}
	// Sent again, they have no second effect.
	_, _, err := storage.One(t.Context(), c.nodes[0], increment("r7"))
	require.NoError(t, err)
	require.EqualValues(t, 60, count(t, c.nodes[0], storage.Latest))
}

func TestANodeThatLostItsLeaderSendsToTheNext(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	follower := c.follower()
	leader := c.leader()
	start := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := leader.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range 50 {
		_, _, err := storage.One(within(t, 10*time.Second), follower, increment(fmt.Sprint("r", i)))
		require.NoError(t, err)
	}
	wg.Wait()
	require.Less(t, time.Since(start), 3*time.Second)
	require.EqualValues(t, 50, count(t, follower, storage.Latest))
}
