package storage

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
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
			v, _ := s.do("GET", one.place(testNS).part(session.ClientKey(testNS, "w"), part)).(string)
			n += len(v)
		}
		return n
	}
	require.GreaterOrEqual(t, bytesOfParts(), session.MaxRemembered*44)
	require.LessOrEqual(t, bytesOfParts(), (session.MaxRemembered+128)*44)
	for i := 0; i < all; i += 13 {
		for _, node := range []*Redis{two, s.open("three")} {
			r, _, err := One(t.Context(), node, count(i))
			require.NoError(t, err)
			if i >= all-session.MaxRemembered {
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

	// A part that is gone, or has an id more, is noticed.
	k, part, _ := session.IDOf(count(all - 1))
	key := one.place(testNS).part(k, part)
	v := s.do("GET", key).(string)
	for name, bad := range map[string]string{
		"gone": "", "cut": v[44:], "an id more": v + v[len(v)-44:], "a bit": strings.Replace(v, v[50:51], string([]byte{v[50] ^ 1}), 1),
	} {
		s.do("SET", key, bad)
		_, _, err := One(t.Context(), s.open(strings.ReplaceAll(name, " ", "-")), count(all-1))
		require.ErrorContains(t, err, "damaged", name)
	}
}
