package session_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

// An entry that is stamped earlier than the latest is one of the same time:
// nothing that has run out comes back.
func TestLogTimeDoesNotRunBackwards(t *testing.T) {
	acquire := func(slot string) []session.Command {
		return []session.Command{&session.Acquire{NS: ns, Client: "w", Slot: slot, Pool: "b", Weight: 2, TTL: 10 * time.Second}}
	}
	var after []map[session.Key]string
	for _, at := range []time.Duration{time.Minute, time.Second, 0, -time.Second} {
		s := session.NewPartial()
		s.ApplyAll(0, sessiontest.Setup())
		s.ApplyAll(0, acquire("first"))
		s.ApplyAll(time.Minute, nil)
		r := s.ApplyAll(at, acquire("second"))
		require.Equal(t, time.Minute, s.Now())
		require.Equal(t, session.Admitted, r[0].Code, "the first has run out")
		after = append(after, sessiontest.Dump(s))
		require.Equal(t, after[0], after[len(after)-1])
	}
}

// Tokens of a pool go on above those of all pools of its name that were deleted,
// whether somebody held a slot then or not.
func TestTokensGoOnAbovePoolsThatWereDeleted(t *testing.T) {
	by := session.Maker{Client: "op"}
	s := session.NewPartial()
	do := func(c session.Command) session.Result {
		require.NoError(t, session.Validate(c))
		return s.ApplyAll(0, []session.Command{c})[0]
	}
	last := uint64(0)
	for _, tt := range []struct{ held, force bool }{{false, false}, {true, true}, {false, true}, {true, true}, {false, false}} {
		require.Equal(t, session.Done, do(&session.PutPool{NS: ns, By: by, Pool: "q", Slots: 2}).Code)
		for _, slot := range []string{"one", "two"} {
			slot := time.Duration(last).String() + slot
			r := do(&session.Acquire{NS: ns, Client: "w", Slot: slot, Pool: "q", Weight: 1, TTL: time.Minute})
			require.Equal(t, session.Admitted, r.Code)
			require.Greater(t, r.Grants[0].Token, last, "%+v", tt)
			last = r.Grants[0].Token
			if !tt.held {
				require.Equal(t, session.Released, do(&session.Release{NS: ns, Client: "w", Slot: slot, Pool: "q", Token: last}).Code)
			}
		}
		require.Equal(t, session.Done, do(&session.DeletePool{NS: ns, By: by, Pool: "q", Force: tt.force}).Code)
		require.Nil(t, s.Stored(session.PoolKey(ns, "q")))
	}
}

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
