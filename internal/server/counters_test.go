package server

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
	s := &Server{store: m}
	out, ok, err := s.readTogether(t.Context(), "n", []string{"a", "b"}, storage.Latest)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, map[string]string{"a": "x", "b": "x"}, out.Values)

	step.Store(int64(time.Second))
	_, ok, err = s.readTogether(t.Context(), "n", []string{"a", "b"}, storage.Latest)
	require.NoError(t, err)
	require.False(t, ok)
}
