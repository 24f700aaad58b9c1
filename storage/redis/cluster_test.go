package redis

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// startCluster starts six processes, three primaries with a replica each.
func startCluster(t *testing.T) []*server {
	if !full() {
		t.Skip("six processes: run it with make redis")
	}
	var all []*server
	for range 6 {
		all = append(all, startRedis(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-replica-validity-factor", "0"))
	}
	joinCluster(t, all)
	return all
}

func openCluster(t *testing.T, all []*server, name string, change ...func(*Config)) *Store {
	cfg := Config{Node: name, Logger: testLog()}
	for _, s := range all {
		cfg.Cluster = append(cfg.Cluster, s.addr())
	}
	for _, f := range change {
		f(&cfg)
	}
	r, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { r.Close() })
	return r
}

func TestRedisClusterLastSlot(t *testing.T) {
	all := startCluster(t)
	f := &fleet{t: t}
	for i := range 3 {
		f.nodes = append(f.nodes, openCluster(t, all, fmt.Sprint("n", i)))
	}
	f.fire(300, 24, nil)

	// Namespaces lie in slots of their own, and each is whole.
	var cmds []session.Command
	for i := range 30 {
		cmds = append(cmds, &session.Increment{NS: fmt.Sprint("ns", i%10), Key: "k", Amount: 1, By: session.Maker{Client: "w", Request: fmt.Sprint(i)}})
	}
	for i, a := range f.nodes[0].Apply(t.Context(), cmds...) {
		require.NoError(t, a.Err)
		require.EqualValues(t, i/10+1, a.Result.Value)
	}
	v, err := f.nodes[1].View(t.Context(), storage.Latest)
	require.NoError(t, err)
	found, err := v.Find("k", "", 100, nil)
	require.NoError(t, err)
	require.Len(t, found, 10)
}

// A view and a snapshot have one time for all namespaces, each of which has a clock
// of its own: what one has that was begun much later has not run out there.
func TestRedisClusterNamespaceBegunLater(t *testing.T) {
	all := startCluster(t)
	r := openCluster(t, all, "one")
	one(t, r, set("old", "k", time.Hour))
	old := r.domain("old")
	primary := serves(t, all, old.key("clock"))
	_, seq, err := wire.ParseClock(primary.do("GET", old.key("clock")))
	require.NoError(t, err)
	primary.do("SET", old.key("clock"), fmt.Sprint(wire.ClockText(240*time.Hour), " ", seq+1000)) // ten days later

	two := openCluster(t, all, "two") // which has not looked at any yet
	one(t, two, set("new", "k", time.Hour))
	for _, node := range []*Store{two, r} {
		v, err := node.View(t.Context(), storage.Latest)
		require.NoError(t, err)
		found, err := v.Find(session.CounterKey("new", ""), "", 9, nil)
		require.NoError(t, err)
		require.Len(t, found, 1)
	}
	var snapshot bytes.Buffer
	require.NoError(t, two.Save(t.Context(), &snapshot))
	require.NoError(t, two.Restore(t.Context(), &snapshot))
	found, err := two.Get(t.Context(), session.CounterKey("new", "k"), storage.Latest)
	require.NoError(t, err)
	require.NotNil(t, found.Record)
}

// A primary of the cluster dies and its replica is promoted: the namespaces in
// its slots are in quarantine, and served again after it.
func TestRedisClusterFailover(t *testing.T) {
	all := startCluster(t)
	const quarantine = 3 * time.Second
	r := openCluster(t, all, "one", func(c *Config) { c.Quarantine = quarantine })
	f := &fleet{t: t, nodes: []*Store{r}}
	f.must(0, &session.PutPool{NS: testNS, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: "put"}})
	for _, s := range all { // the primary that has the key, not its replica
		if n, err := s.client.Exists(t.Context(), "{gov:test}:epoch").Result(); err == nil && n == 1 {
			s.kill()
			break
		}
	}
	acquire := &session.Acquire{NS: testNS, Client: "w", Slot: "1", Pool: "one", Weight: 1, TTL: time.Minute}
	require.Eventually(t, func() bool {
		_, _, err := storage.One(t.Context(), r, acquire)
		return err != nil && strings.Contains(err.Error(), "quarantine")
	}, 30*time.Second, 20*time.Millisecond)
	require.Error(t, r.Ready(t.Context()))
	res := f.must(0, acquire)
	require.Equal(t, session.Admitted, res.Code)
	require.Positive(t, res.Grants[0].Token>>40, "a new generation of tokens")
	require.NoError(t, r.Ready(t.Context()))
}

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
