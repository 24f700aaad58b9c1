package session_test

import (
	"fmt"
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

// A version tells values apart by type and content, and nothing else.
func TestVersionsOfValues(t *testing.T) {
	seen := map[string]session.Value{}
	for _, v := range []session.Value{
		{}, {Text: "0"}, {Text: "n"}, {Number: true}, {Number: true, N: 1}, {Number: true, N: -1}, {Number: true, N: 0x7400000000000000},
		{Text: "n\x00\x00\x00\x00\x00\x00\x00\x01"}, {Text: "\x00\x00\x00\x00\x00\x00\x00\x01"},
	} {
		version := v.Version()
		require.True(t, session.IsVersion(version))
		require.Equal(t, version, v.Version())
		require.NotContains(t, seen, version, "%+v", v)
		seen[version] = v
	}
	require.Equal(t, "e3b98a4da31a127d4bde6e43033f66ba", session.Value{}.Version(), "which is stored nowhere and must stay")
	for _, not := range []string{"", "1", "00", "E3B98A4DA31A127D4BDE6E43033F66BA", "e3b98a4da31a127d4bde6e43033f66b", "e3b98a4da31a127d4bde6e43033f66ba0", "g3b98a4da31a127d4bde6e43033f66ba"} {
		require.False(t, session.IsVersion(not), not)
	}
	require.True(t, session.IsVersion(session.Absent))
}

// A name, and that of a namespace, may be a single letter.
func TestShortKeys(t *testing.T) {
	require.True(t, session.WellFormed(session.SessionKey("n", "s")))
	require.False(t, session.WellFormed(session.SessionKey("", "s")))
	require.False(t, session.WellFormed("s"))
}

// No key of a list is that of another's item, whatever the lists are called.
func TestKeysOfLists(t *testing.T) {
	names := []string{"a", "a/00000000", "a/00000001", "a/00000000/00000001", "/", "a/"}
	seen := map[session.Key]string{}
	for _, name := range names {
		for i := range int64(3) {
			for k, r := range map[session.Key]session.Record{
				session.ListKey(ns, name): &session.List{}, session.ListItemKey(ns, name, i): &session.ListItem{},
			} {
				what := fmt.Sprintf("%T %q", r, name)
				require.True(t, session.WellFormed(k), k)
				require.True(t, session.Belongs(k, r), k)
				require.True(t, seen[k] == "" || seen[k] == what, "%s is that of %s and of %s", k, seen[k], what)
				seen[k] = what
			}
		}
		require.False(t, session.Belongs(session.ListKey(ns, name), &session.ListItem{}))
		require.False(t, session.Belongs(session.ListItemKey(ns, name, 0), &session.List{}))
		require.False(t, session.Belongs(session.ListKey(ns, name), &session.Hash{}))
	}
	for _, k := range []session.Key{"ln/", "ln/a", "ln/0000000", "ln//0000000", "ln/a/0000000g", "ln/a/000000", "ln/a-00000000"} {
		require.False(t, session.WellFormed(k), k)
	}
}
