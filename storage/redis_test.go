package storage

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

const testNS = sessiontest.NS

func setup(t testing.TB, s Store) {
	t.Helper()
	for _, a := range s.Apply(context.Background(), sessiontest.Setup()...) {
		require.NoError(t, a.Err)
		require.Equal(t, session.Done, a.Result.Code)
	}
}

func TestRedisSmoke(t *testing.T) {
	s := startRedis(t)
	r := s.open("one")
	setup(t, r)
	setup(t, r)
	acquire := &session.Acquire{NS: testNS, Client: "w", Slot: "l1", Pool: "a", Weight: 1, TTL: 10 * time.Second}
	res, index, err := One(t.Context(), r, acquire)
	require.NoError(t, err)
	require.Zero(t, index)
	require.Equal(t, session.Admitted, res.Code)
	require.Equal(t, uint64(1), res.Grants[0].Token)

	two := s.open("two")
	for _, read := range []Read{Nearby, Latest} {
		f, err := two.Get(t.Context(), session.PoolKey(testNS, "a"), read)
		require.NoError(t, err)
		require.Len(t, f.Record.(*session.Pool).Leases, 1)
	}
	v, err := two.View(t.Context(), Latest)
	require.NoError(t, err)
	pools, err := v.Find(session.Prefix(session.KindPool, testNS), "", 10, nil)
	require.NoError(t, err)
	require.Len(t, pools, 3)
	var b bytes.Buffer
	require.NoError(t, two.Save(t.Context(), &b))
	m := NewMemory(nil)
	defer m.Close()
	require.NoError(t, m.Restore(t.Context(), bytes.NewReader(b.Bytes())))
	require.NoError(t, r.Restore(t.Context(), bytes.NewReader(b.Bytes())))
	res, _, err = One(t.Context(), two, &session.Acquire{NS: testNS, Client: "w", Slot: "l2", Pool: "a", Weight: 1, TTL: 10 * time.Second})
	require.NoError(t, err)
	require.Equal(t, session.Admitted, res.Code, "a restore ends leases")
	require.Equal(t, uint64(1)<<40+1, res.Grants[0].Token)
}

func encodeResults(answers []Answer) string {
	s := ""
	for _, a := range answers {
		s += fmt.Sprintf("%x %v\n", session.EncodeResult(&a.Result), a.Err)
	}
	return s
}
