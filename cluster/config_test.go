package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/storage"
)

// A node whose elections are set to take long does not refuse new work while
// one goes on as it should.
func TestPatience(t *testing.T) {
	for _, test := range []struct{ heartbeat, election, patience time.Duration }{
		{0, 0, 5 * time.Second}, // without Raft
		{500 * time.Millisecond, 500 * time.Millisecond, 5 * time.Second},
		{20 * time.Millisecond, 20 * time.Millisecond, 5 * time.Second},
		{3 * time.Second, time.Second, 30 * time.Second},
		{time.Second, time.Minute, 10 * time.Minute},
	} {
		require.Equal(t, test.patience, Patience(test.heartbeat, test.election), "%v", test)
	}
}

// Who has a day to wait does not wait for a majority that is gone: neither with
// a command, nor with a read of the latest state, nor with a change of members.
func TestAMajorityThatIsGoneIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, func(c *Config) { c.LeaderPatience = 50 * time.Millisecond })
	n := c.nodes[0]
	c.net.isolate(c.nodes[1].Address(), true)
	require.Eventually(t, func() bool { _, leader := n.raft.LeaderWithID(); return leader == "" }, 10*time.Second, 10*time.Millisecond)

	a := n.Apply(t.Context(), increment("r"))[0]
	require.Equal(t, storage.NotApplied, a.Outcome, "%v", a.Err)
	require.ErrorIs(t, a.Err, errNoLeader)
	_, err := n.View(t.Context(), storage.Latest)
	require.ErrorIs(t, err, errNoLeader)
	err = n.AddNode(t.Context(), "n3", "127.0.0.1:1", true)
	require.ErrorIs(t, err, errNoLeader)
	require.False(t, isUnknown(err))
}
