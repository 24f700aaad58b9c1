package session_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

// The version of a name rises with each tree that it is put to, and with nothing
// else: not with the tree that it has, nor where the name was removed between.
func TestVersionsOfAName(t *testing.T) {
	by := session.Maker{Client: "op"}
	s := session.NewPartial()
	one, two := sessiontest.Digest(8), sessiontest.Digest(9)
	do := func(c session.Command) session.Result {
		require.NoError(t, session.Validate(c))
		return s.ApplyAll(0, []session.Command{c})[0]
	}
	put := func(name string, d session.Digest) int64 {
		r := do(&session.PutPolicy{NS: ns, By: by, Name: name, Digest: d, Tree: []byte{1}, Limits: sessiontest.Limits(1)})
		require.Equal(t, session.Done, r.Code)
		return r.Value
	}
	require.EqualValues(t, 1, put("main", one))
	require.EqualValues(t, 1, put("main", one))
	require.EqualValues(t, 1, put("other", one))
	require.EqualValues(t, 1, put("main", one), "it has two names now")
	require.EqualValues(t, 2, put("main", two))
	require.EqualValues(t, 2, put("main", two))
	require.EqualValues(t, 3, put("main", one))
	names := s.Get(session.PolicyKey(ns, one)).(*session.Policy).Names
	require.Equal(t, session.Done, do(&session.DeletePolicy{NS: ns, By: by, Name: "main", Digest: one, Names: names}).Code)
	require.EqualValues(t, 4, put("main", one))
	require.EqualValues(t, 1, put("other", one))
}
