package session

import (
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Auditors compute the heads of chains by themselves, so that what is hashed never
// changes.
func TestWhatIsHashedOfAChain(t *testing.T) {
	of := func(parts ...string) Digest { return sha256.Sum256([]byte(strings.Join(parts, ""))) }
	audited := Digest{7, 8}
	first := (*Chain)(nil).Next(3, Denied, audited)
	head := of("govnode.link.1\x00", strings.Repeat("\x00", 32), "\x00\x00\x00\x00\x00\x00\x00\x01", "\x00\x00\x00\x03", string([]byte{byte(Denied)}), string(audited[:]))
	require.Equal(t, &Chain{N: 1, Generation: 3, Head: head}, first)
	second := first.Next(4, Admitted, Digest{})
	next := of("govnode.link.1\x00", string(head[:]), "\x00\x00\x00\x00\x00\x00\x00\x02", "\x00\x00\x00\x04", string([]byte{byte(Admitted)}), strings.Repeat("\x00", 32))
	require.Equal(t, &Chain{N: 2, Generation: 4, Head: next}, second)
	require.Equal(t, head, first.Head, "which others may hold")

	fold := Fold{Key: SessionKey("ns", "s"), Chain: *second, Into: *first}
	require.Equal(t, of("govnode.fold.1\x00", string(fold.Key), "\x00", "\x00\x00\x00\x00\x00\x00\x00\x02", "\x00\x00\x00\x04", string(next[:])), fold.Audited())
}
