package remote

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The text of a join token says what it was made from, and what is none is refused.
func TestTextsOfJoinTokens(t *testing.T) {
	for _, want := range []JoinToken{
		{ID: "abcd", Secret: strings.Repeat("s", 43)},
		{ID: "abcd", Secret: strings.Repeat("s", 43), Authority: bytes.Repeat([]byte{7}, 32)},
	} {
		got, err := ParseJoinToken(want.String())
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, "gn_$cluster.abcd."+want.Secret, got.Bearer())
	}
	for _, bad := range []string{
		"", "gnj_", "gnj_a", "gnj_a.", "gnj_.b", "gn_$cluster.abcd.secret", "abcd.secret", "gnj_a.b.", "gnj_a.b.c", "gnj_a.b.c.d",
		"gnj_a.b." + strings.Repeat("A", 42), "gnj_a.b." + strings.Repeat("A", 44), "gnj_a.b." + strings.Repeat("=", 43),
	} {
		_, err := ParseJoinToken(bad)
		require.ErrorIs(t, err, errNoJoinToken, bad)
	}
}
