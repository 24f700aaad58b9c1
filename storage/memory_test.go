package storage_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
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
	var did sessiontest.Tally
	t.Run("seed", func(t *testing.T) {
		for seed := range uint64(20) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				storagetest.Histories(t, seed, 300, map[string]storagetest.Timed{"memory": openMemory}, &did)
			})
		}
	})
	require.Empty(t, did.Missing(), "no history did that with an approval")
}

// A snapshot from a later time sets the clock ahead: leases that are given out
// after it still end.
func TestMemoryRestoreOfALaterTime(t *testing.T) {
	ctx := t.Context()
	early := time.Minute
	from := storage.NewMemory(func() time.Duration { return 10 * time.Hour })
	defer from.Close()
	from.Apply(ctx, &session.PutPool{NS: "ns", Pool: "gpu", Slots: 1, By: session.Maker{Client: "c", Request: "r"}})
	var snapshot bytes.Buffer
	require.NoError(t, from.Save(ctx, &snapshot))

	m := storage.NewMemory(func() time.Duration { return early })
	defer m.Close()
	require.NoError(t, m.Restore(ctx, &snapshot))
	acquire := func(slot string) session.Code {
		return m.Apply(ctx, &session.Acquire{NS: "ns", Client: "c", Slot: slot, Pool: "gpu", Weight: 1, TTL: time.Second})[0].Result.Code
	}
	require.Equal(t, session.Admitted, acquire("a"))
	require.Equal(t, session.ConcurrencyLimit, acquire("b"))
	early += time.Second
	require.Equal(t, session.Admitted, acquire("c"), "a second is a second after the restore, too")
}

// What is read at once stood at one instant, also while the clock moves.
func TestMemoryGetAllIsOneInstant(t *testing.T) {
	var now time.Duration
	m := storage.NewMemory(func() time.Duration { now += time.Millisecond; return now })
	defer func() { require.NoError(t, m.Close()) }()
	keys := []session.Key{session.CounterKey("n", "a"), session.CounterKey("n", "b")}
	set := func(key string) session.Command {
		return &session.Set{NS: "n", By: session.Maker{Client: "c"}, Key: key, Value: session.Value{Text: "x"}, TTL: time.Second}
	}
	for _, a := range m.Apply(t.Context(), set("a"), set("b")) {
		require.NoError(t, a.Failure())
	}
	for there := true; there; {
		all, err := m.GetAll(t.Context(), keys...)
		require.NoError(t, err)
		require.Equal(t, all[0], all[1])
		there = all[0].Record != nil
	}
	require.Greater(t, now, time.Second)
}
