package matching

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/pattern"
)

// Of any number of literals the longest is found that a text begins with, and
// from it all shorter ones.
func TestLongestPrefix(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	word := func(most int) string {
		b := make([]byte, 1+rng.IntN(most))
		for i := range b {
			b[i] = "ab"[rng.IntN(2)]
		}
		return string(b)
	}
	deep := 0
	for range 2000 {
		var p prefixes
		longest, stem := 4, ""
		if rng.IntN(2) == 0 {
			stem = "a_head__" // which says nothing then
		}
		for i := range 1 + rng.IntN(20) {
			search, err := pattern.Search("^" + stem + word(longest))
			require.NoError(t, err)
			p.add(search, int32(i))
		}
		p.seal()
		text := stem + word(longest+1)
		var want []string
		for _, f := range p.list { // sorted, so that of those a text begins with the longest is last
			if strings.HasPrefix(text, f.text) {
				want = append([]string{f.text}, want...)
			}
		}
		var got []string
		for n := p.longest(text); n >= 0; n = p.list[n].shorter {
			got = append(got, p.list[n].text)
		}
		require.Equal(t, want, got, "of %q", text)
		if len(got) > 1 {
			deep++
		}
		if len(want) > 0 {
			require.True(t, p.mayBegin(text))
		}
	}
	require.Greater(t, deep, 200)

	var p prefixes
	search, err := pattern.Search(`^a\x00`)
	require.NoError(t, err)
	p.add(search, 0)
	p.seal()
	require.EqualValues(t, -1, p.longest("a"), "a head is filled with zeros, a text is not")
	require.EqualValues(t, 0, p.longest("a\x00"))
}
