package pattern

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The direct form of an expression, where it has one, says what the regular
// expression says, and every text found begins with the prefix.
func TestAnchoredEqualsRegexp(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	parts := []string{"ab", "[a-c]+", "[ab]*", "[b\\n]+", "[^a]*", "$", `\Z`, ".", ".*", "(?i:c)", "c?", "é"}
	letters := []string{"a", "b", "c", "C", "\n", "é", "ab"}
	direct, found := 0, 0
	for range 4000 {
		expr := []string{"^", `\A`}[rng.IntN(2)] + []string{"a", "ab", "é"}[rng.IntN(3)]
		for range rng.IntN(4) {
			expr += parts[rng.IntN(len(parts))]
		}
		s, err := Search(expr)
		require.NoError(t, err, expr)
		if s.direct != nil {
			direct++
		}
		for range 40 {
			text := ""
			for range rng.IntN(6) {
				text += letters[rng.IntN(len(letters))]
			}
			want := s.re.MatchString(text)
			require.Equal(t, want, s.Match(text), "%q in %q", expr, text)
			if strings.HasPrefix(text, s.Prefix()) {
				require.Equal(t, want, s.MatchAfter(text), "%q in %q", expr, text)
			}
			if want {
				found++
				require.Truef(t, len(text) >= len(s.Prefix()) && text[:len(s.Prefix())] == s.Prefix(), "%q in %q: prefix %q", expr, text, s.Prefix())
			}
		}
	}
	require.Greater(t, direct, 500)
	require.Greater(t, found, 5000)
}

// What is no literal at the beginning of the text is no prefix.
func TestPrefix(t *testing.T) {
	for expr, want := range map[string]string{
		"^svc_[a-z]+$": "svc_", `\Aread`: "read", "^ab*": "a", "^ab|cd": "", "svc": "",
		"^(?i:ab)": "", "(?m)^ab": "", "^$": "", "": "",
	} {
		s, err := Search(expr)
		require.NoError(t, err, expr)
		require.Equal(t, want, s.Prefix(), expr)
	}
}
