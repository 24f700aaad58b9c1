package storage_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/storage"
	"example.com/govnode/storage/storagetest"
)

func openMemory(t *testing.T, now func() time.Duration) storage.Store {
	m := storage.NewMemory(now)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func TestMemory(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store { return openMemory(t, nil) })
}

func TestMemoryHistories(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			storagetest.Histories(t, seed, 300, map[string]storagetest.Timed{"memory": openMemory})
		})
	}
}
