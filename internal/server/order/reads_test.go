package order

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Reads one by one are of one instant only if time stood still between them as
// well: what runs out meanwhile needs no index.
func TestReadsTogetherAreOfOneInstant(t *testing.T) {
	var now, step atomic.Int64
	m := storage.NewMemory(func() time.Duration { return time.Duration(now.Add(step.Load())) })
	defer func() { require.NoError(t, m.Close()) }()
	for _, key := range []string{"a", "b"} {
		require.NoError(t, m.Apply(t.Context(), &session.Set{NS: "n", By: session.Maker{Client: "c"}, Key: key, Value: session.Value{Text: "x"}, TTL: time.Minute})[0].Failure())
	}
	s := New(m, nil, nil, nil)
	keys := []session.Key{session.CounterKey("n", "a"), session.CounterKey("n", "b")}
	found, _, ok, err := s.readTogether(t.Context(), keys, storage.Latest)
	require.NoError(t, err)
	require.True(t, ok)
	require.Len(t, found, 2)
	require.Equal(t, "x", found[1].(*session.Counter).Value.Text)

	step.Store(int64(time.Second))
	_, _, ok, err = s.readTogether(t.Context(), keys, storage.Latest)
	require.NoError(t, err)
	require.False(t, ok)
}
