package redis

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// startSentinels starts three that watch a primary under the name "main", with a
// password of their own, and returns their addresses when all know each other
// and the replica.
func startSentinels(t *testing.T, primary *server) (addresses []string) {
	t.Helper()
	for range 3 {
		port, dir := freePort(t), redisFolder(t)
		file := filepath.Join(dir, "sentinel.conf")
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `port %d
bind 127.0.0.1
dir %s
requirepass watch
sentinel monitor main 127.0.0.1 %d 2
sentinel down-after-milliseconds main 700
sentinel failover-timeout main 3000
`, port, dir, primary.port), 0o600))
		cmd := exec.Command(needRedis(t), file, "--sentinel")
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		addresses = append(addresses, "127.0.0.1:"+strconv.Itoa(port))
	}
	for _, a := range addresses {
		c := redis.NewSentinelClient(&redis.Options{Addr: a, Password: "watch"})
		t.Cleanup(func() { _ = c.Close() })
		require.Eventually(t, func() bool {
			m, err := c.Master(context.Background(), "main").Result()
			return err == nil && m["num-other-sentinels"] == "2" && m["num-slaves"] == "1"
		}, 30*time.Second, 20*time.Millisecond, "the Sentinels do not find together")
	}
	return addresses
}

// The primary dies and the Sentinels promote its replica, again and again while
// callers ask: nodes find the new primary by themselves, everything is in
// quarantine, and the one slot has one holder at a time.
func TestRedisSentinelFailover(t *testing.T) {
	if !full() {
		t.Skip("two servers, three Sentinels and a failover: run it with make redis")
	}
	t.Parallel()
	primary, replica := startRedis(t), startRedis(t)
	replica.do("REPLICAOF", "127.0.0.1", primary.port)
	addresses := startSentinels(t, primary)
	const quarantine = 3 * time.Second
	f := &fleet{t: t}
	for i := range 2 {
		r, err := Open(t.Context(), Config{
			Node: fmt.Sprint("n", i), Logger: testLog(), Quarantine: quarantine, Timeout: time.Second,
			Sentinel: Sentinel{Master: "main", Addresses: addresses, Password: "watch"},
		})
		require.NoError(t, err)
		t.Cleanup(func() { _ = r.Close() })
		f.nodes = append(f.nodes, r)
	}
	f.must(0, &session.PutPool{NS: testNS, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: "put"}})
	acquire := func(slot string, ttl time.Duration) session.Command {
		return &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "one", Weight: 1, TTL: ttl}
	}
	const ttl = 2 * time.Second
	held := f.must(0, acquire("held", ttl))
	require.Equal(t, session.Admitted, held.Code)
	lapses := time.Now().Add(ttl)
	primary.kill()

	// Both nodes refuse until the quarantine of the new primary is over.
	var all sync.WaitGroup
	for _, r := range f.nodes {
		all.Go(func() { notReady(t, r, "quarantine for another") })
	}
	all.Wait()
	next := f.must(1, acquire("next", time.Minute))
	require.Equal(t, session.Admitted, next.Code)
	require.True(t, time.Now().After(lapses), "the slot was given out twice")
	require.Greater(t, next.Grants[0].Token, held.Grants[0].Token)
	require.Equal(t, session.ConcurrencyLimit, f.must(0, acquire("third", time.Minute)).Code)

	// The old one comes back, takes itself for a primary for a moment, and is
	// made a replica: nobody is moved by that.
	primary.start()
	require.Eventually(t, func() bool {
		return parseInfo(primary.do("INFO", "replication").(string))["role"] == "slave"
	}, 30*time.Second, 20*time.Millisecond)
	require.Equal(t, session.ConcurrencyLimit, f.must(0, acquire("fourth", time.Minute)).Code)
	require.NoError(t, f.node(0).Ready(t.Context()))
}

// A primary that was cut off from its replica, which was promoted elsewhere: one
// that needs a replica for its writes stops, and says why. The other goes on,
// which the starting checks warn of: then the slot has two holders.
func TestRedisCutOffPrimary(t *testing.T) {
	t.Parallel()
	for name, needs := range map[string]string{"that needs a replica": "1", "that needs none": "0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := startRedis(t, "--min-replicas-to-write", needs, "--min-replicas-max-lag", "10")
			replica := startRedis(t)
			replica.do("REPLICAOF", "127.0.0.1", primary.port)
			require.Eventually(t, func() bool {
				return parseInfo(primary.do("INFO", "replication").(string))["connected_slaves"] == "1" && primary.client.Set(t.Context(), "x", "x", 0).Err() == nil
			}, 15*time.Second, 10*time.Millisecond, "the replica does not follow")
			quarantine := func(c *Config) { c.Quarantine = 3 * time.Second }
			stays := &fleet{t: t, nodes: []*Store{primary.open("stays", quarantine)}}
			stays.must(0, &session.PutPool{NS: testNS, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: "put"}})
			require.Eventually(t, func() bool { return replica.do("EXISTS", "{gov:test}:r:ptest/one").(int64) == 1 }, 10*time.Second, 5*time.Millisecond)
			replica.do("REPLICAOF", "NO", "ONE")
			moved := &fleet{t: t, nodes: []*Store{replica.open("moved", quarantine)}}

			acquire := func(slot string) session.Command {
				return &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "one", Weight: 1, TTL: time.Minute}
			}
			require.Equal(t, session.Admitted, moved.must(0, acquire("there")).Code)
			if needs == "0" {
				require.Equal(t, session.Admitted, stays.must(0, acquire("here")).Code, "the control: two holders")
				return
			}
			_, _, err := storage.One(t.Context(), stays.node(0), acquire("here"))
			require.Equal(t, storage.NotApplied, storage.OutcomeOf(err), "%v", err)
			notReady(t, stays.node(0), "NOREPLICAS")
		})
	}
}
