package redis

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/ids"
	"example.com/govnode/storage"
)

// Nodes that take turns with one client remember its last ids and no more: what
// is forgotten is cut off in parts that none of them has read.
func TestRedisPartsAreCut(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	one, two := s.open("one"), s.open("two")
	count := func(i int) session.Command {
		return &session.Increment{NS: testNS, Key: "k", Amount: 1,
			By: session.Maker{Client: "w", Request: fmt.Sprintf("01JE%06d%016d", i, i)}}
	}
	const all, together = 3000, 25
	for i := 0; i < all; i += together {
		node := one
		if i/together%3 == 1 {
			node = two
		}
		var cmds []session.Command
		for j := range together {
			cmds = append(cmds, count(i+j))
		}
		for _, a := range node.Apply(t.Context(), cmds...) {
			require.NoError(t, a.Err)
			require.Equal(t, session.Done, a.Result.Code)
			require.False(t, a.Result.Repeat)
		}
	}
	bytesOfParts := func() (n int) {
		for part := range session.ForgottenParts {
			v, _ := s.do("GET", one.place(testNS).Part(session.ClientKey(testNS, "w"), part)).(string)
			n += len(v)
		}
		return n
	}
	require.GreaterOrEqual(t, bytesOfParts(), ids.MaxRemembered*44)
	require.LessOrEqual(t, bytesOfParts(), (ids.MaxRemembered+128)*44)
	for i := 0; i < all; i += 13 {
		for _, node := range []*Store{two, s.open("three")} {
			r, _, err := storage.One(t.Context(), node, count(i))
			require.NoError(t, err)
			if i >= all-ids.MaxRemembered {
				require.True(t, r.Repeat, i)
			} else {
				require.True(t, r.Repeat || r.Code == session.StaleID, "%d: %v", i, r.Code)
			}
			if i%130 != 0 {
				break
			}
		}
	}
	var b bytes.Buffer
	require.NoError(t, two.Save(t.Context(), &b), "whole records can be made of them")

	// A part that has an id less or more is damaged, and one that is gone is lost.
	k, part, _ := session.IDOf(count(all - 1))
	key := one.place(testNS).Part(k, part)
	v := s.do("GET", key).(string)
	turned := []byte(v)
	turned[50] ^= 1
	for name, bad := range map[string]string{"cut": v[44:], "cut-off": v[:10], "an-id-more": v + v[len(v)-44:], "a-bit": string(turned)} {
		s.do("SET", key, bad)
		node := s.open(name)
		_, _, err := storage.One(t.Context(), node, count(all-1))
		require.Equal(t, storage.NotApplied, storage.OutcomeOf(err), name)
		require.ErrorContains(t, err, key, name)
		require.Error(t, node.BringBack(t.Context(), k), name)
		s.do("SET", key, v)
		require.NoError(t, node.BringBack(t.Context(), k), name)
		r, _, err := storage.One(t.Context(), node, count(all-1))
		require.NoError(t, err, name)
		require.True(t, r.Repeat, name)
	}
	s.do("DEL", key)
	_, _, err := storage.One(t.Context(), s.open("gone"), count(all-1))
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	require.ErrorContains(t, err, "quarantine")
}
