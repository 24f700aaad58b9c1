package redis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A node that nobody has asked for anything yet finds the primary that was
// promoted for the list of namespaces as well, and is ready again by itself.
func TestRedisClusterFailoverOfAnIdleNode(t *testing.T) {
	all := startCluster(t)
	r := openCluster(t, all, "idle")
	require.NoError(t, r.Ready(t.Context()))
	lists := serves(t, all, r.keys.Namespaces())
	lists.kill()
	require.Error(t, r.Ready(t.Context()))
	require.Eventually(t, func() bool {
		s := serves(t, all, r.keys.Namespaces())
		return s != nil && s != lists
	}, 20*time.Second, 20*time.Millisecond, "no replica is promoted")
	ready(t, r)
}
