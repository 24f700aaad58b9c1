package server_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
)

// A node whose store takes no changes says so in its health, and why.
func TestStatusOfAStoreThatIsNotReady(t *testing.T) {
	var why error
	n := start(t, func(c *server.Config) { c.Ready = func(context.Context) error { return why } })
	for _, why = range []error{nil, errors.New("in quarantine for 20 s"), nil} {
		res, err := n.cluster.Status(n.ctx(), &v1.StatusRequest{})
		require.NoError(t, err)
		if why == nil {
			require.Equal(t, "ok", res.Health)
		} else {
			require.Equal(t, why.Error(), res.Health)
		}
	}
}

// Of each member it is told whether it is up, since when it was not heard of and
// where it stood; what is not known is left out.
func TestStatusOfMembers(t *testing.T) {
	all := &fellows{}
	n := start(t, func(c *server.Config) { c.Cluster = all })
	all.set(server.Peer{Node: "n1", Role: "leader", Known: true, Up: true, Applied: 9},
		server.Peer{Node: "n2", Role: "voter", Known: true, Silent: 12 * time.Second, Applied: 4, Lag: 5}, server.Peer{Node: "n3", Role: "voter"})
	res, err := n.cluster.Status(n.ctx(), &v1.StatusRequest{})
	require.NoError(t, err)
	require.Len(t, res.Peers, 3)
	require.True(t, res.Peers[0].Up)
	require.False(t, res.Peers[1].Up)
	require.Equal(t, 12*time.Second, res.Peers[1].LastContact.AsDuration())
	require.EqualValues(t, 4, res.Peers[1].GetAppliedIndex())
	require.EqualValues(t, 5, res.Peers[1].Lag)
	require.False(t, res.Peers[2].Up)
	require.Nil(t, res.Peers[2].LastContact)
	require.Nil(t, res.Peers[2].AppliedIndex)
}
