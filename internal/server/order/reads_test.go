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

// Records of several kinds are read from one view as well as those of one.
func TestAViewHasRecordsOfAllKinds(t *testing.T) {
	m := storage.NewMemory(func() time.Duration { return 0 })
	defer func() { require.NoError(t, m.Close()) }()
	for _, c := range []session.Command{
		&session.Set{NS: "n", By: session.Maker{Client: "c", Request: "r"}, Key: "a", Value: session.Value{Text: "x"}},
		&session.PutPool{NS: "n", By: session.Maker{Client: "c", Request: "s"}, Pool: "p", Slots: 1, Queue: 1},
	} {
		require.NoError(t, m.Apply(t.Context(), c)[0].Failure())
	}
	keys := []session.Key{session.PoolKey("n", "p"), session.CounterKey("n", "b"), session.ClientKey("n", "c"), session.CounterKey("n", "a")}
	view, err := m.View(t.Context(), "", storage.Latest)
	require.NoError(t, err)
	found, err := New(m, nil, nil, nil).ReadBeside(t.Context(), view, keys)
	require.NoError(t, err)
	require.IsType(t, &session.Pool{}, found[0])
	require.Nil(t, found[1])
	require.IsType(t, &session.Client{}, found[2])
	require.Equal(t, "x", found[3].(*session.Counter).Value.Text)
}
