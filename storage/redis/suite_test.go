package redis_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session/sessiontest"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis"
	"example.com/govnode/storage/storagetest"
)

func TestRedis(t *testing.T) {
	url := redis.StartForTest(t)
	var n atomic.Int64
	storagetest.Run(t, func(t *testing.T) storage.Store {
		return openRedis(t, url, fmt.Sprintf("gov-suite%d", n.Add(1)), nil)
	})
}

func openRedis(t *testing.T, url, prefix string, now func() time.Duration) storage.Store {
	r, err := redis.Open(t.Context(), redis.TimedConfig(url, prefix, now))
	require.NoError(t, err)
	t.Cleanup(func() {
		if now != nil { // else it goes on, and so do leases
			redis.SoundForTest(t, r)
		}
		require.NoError(t, r.Close())
	})
	return r
}

func TestRedisHistories(t *testing.T) {
	url := redis.StartForTest(t)
	var did sessiontest.Tally
	t.Run("seed", func(t *testing.T) {
		for seed := range uint64(8) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				storagetest.Histories(t, seed, 300, map[string]storagetest.Timed{
					"memory": func(t *testing.T, now func() time.Duration) storage.Store {
						m := storage.NewMemory(now)
						t.Cleanup(func() { require.NoError(t, m.Close()) })
						return m
					},
					"redis": func(t *testing.T, now func() time.Duration) storage.Store {
						return openRedis(t, url, fmt.Sprintf("gov-history%d", seed), now)
					},
				}, &did)
			})
		}
	})
	require.Empty(t, did.Missing(), "no history did that with an approval")
}

func TestRedisClusterSuite(t *testing.T) {
	t.Parallel()
	addresses, url := redis.StartClusterForTest(t)
	var n atomic.Int64
	storagetest.Run(t, func(t *testing.T) storage.Store {
		cfg := redis.TimedConfig(url, fmt.Sprintf("gov-suite%d", n.Add(1)), nil)
		cfg.Cluster = addresses
		r, err := redis.Open(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		return r
	})
}
