package redis

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// joinCluster makes a Redis Cluster of six servers, three primaries with a
// replica each, that is in step. With is how redis-cli reaches them.
func joinCluster(t *testing.T, all []*server, with ...string) {
	t.Helper()
	cli, err := exec.LookPath("redis-cli")
	require.NoError(t, err, "install it with: sudo apt-get install -y redis-tools")
	args := append(with, "--cluster", "create")
	for _, s := range all {
		args = append(args, s.addr())
	}
	out, err := exec.Command(cli, append(args, "--cluster-replicas", "1", "--cluster-yes")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, s := range all {
		require.Eventually(t, func() bool {
			info := parseInfo(s.client.ClusterInfo(context.Background()).Val(), s.client.Info(context.Background(), "replication").Val())
			inStep := info["role"] == "master" && info["connected_slaves"] == "1" || info["master_link_status"] == "up"
			return info["cluster_state"] == "ok" && inStep
		}, 30*time.Second, 20*time.Millisecond, "the Redis Cluster does not find together")
	}
}

// serves returns the running server that is the primary for a key, nil
// while there is none.
func serves(t *testing.T, all []*server, key string) *server {
	t.Helper()
	for _, s := range all {
		if s.cmd == nil {
			continue
		}
		slot := s.do("CLUSTER", "KEYSLOT", key).(int64)
		for _, r := range s.do("CLUSTER", "SLOTS").([]any) {
			first, last, primary := r.([]any)[0].(int64), r.([]any)[1].(int64), r.([]any)[2].([]any)
			for _, x := range all {
				if first <= slot && slot <= last && x.cmd != nil && primary[1] == int64(x.port) {
					return x
				}
			}
		}
	}
	return nil
}
