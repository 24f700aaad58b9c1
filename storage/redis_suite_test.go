package storage_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/storage"
	"example.com/govnode/storage/storagetest"
)

func TestRedis(t *testing.T) {
	url := storage.StartRedisForTest(t)
	var n atomic.Int64
	storagetest.Run(t, func(t *testing.T) storage.Store {
		return openRedis(t, url, fmt.Sprintf("gov-suite%d", n.Add(1)), nil)
	})
}

func openRedis(t *testing.T, url, prefix string, now func() time.Duration) storage.Store {
	r, err := storage.OpenRedis(t.Context(), storage.TimedRedisConfig(url, prefix, now))
	require.NoError(t, err)
	t.Cleanup(func() {
		if now != nil { // else it goes on, and so do leases
			storage.SoundForTest(t, r)
		}
		require.NoError(t, r.Close())
	})
	return r
}

func TestRedisHistories(t *testing.T) {
	url := storage.StartRedisForTest(t)
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			storagetest.Histories(t, seed, 300, map[string]storagetest.Timed{
				"memory": openMemory,
				"redis": func(t *testing.T, now func() time.Duration) storage.Store {
					return openRedis(t, url, fmt.Sprintf("gov-history%d", seed), now)
				},
			})
		})
	}
}

func TestRedisClusterSuite(t *testing.T) {
	addresses, url := storage.StartClusterForTest(t)
	var n atomic.Int64
	storagetest.Run(t, func(t *testing.T) storage.Store {
		cfg := storage.TimedRedisConfig(url, fmt.Sprintf("gov-suite%d", n.Add(1)), nil)
		cfg.Cluster = addresses
		r, err := storage.OpenRedis(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		return r
	})
}
