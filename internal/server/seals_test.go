package server

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// What is sealed is not to be read in what is kept, is the same whoever seals it, and is
// opened in its namespace alone, also where nothing is sealed any more.
func TestSeals(t *testing.T) {
	ctx, store := t.Context(), storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	early := &sealer{key: &digestKey{store: store}, on: true}
	_, err := early.seal(ctx, "n", "s", "text")
	require.ErrorContains(t, err, "the key of the state is not known yet")
	_, ok := early.open(ctx, "n", sealMark+strings.Repeat("A", 60))
	require.False(t, ok)

	keep := &session.KeepKey{NS: session.ClusterNamespace, By: session.Maker{Client: "c", Request: "r"}, Key: session.Digest{1}}
	require.NoError(t, store.Apply(ctx, keep)[0].Err)
	one, other := &sealer{key: &digestKey{store: store}, on: true}, &sealer{key: &digestKey{store: store}, on: true}
	off := &sealer{key: &digestKey{store: store}}
	for _, text := range []string{"a secret", sealMark + "a secret", strings.Repeat("a secret", session.MaxText/8)} {
		kept, err := one.seal(ctx, "n", "s", text)
		require.NoError(t, err)
		require.NotContains(t, kept, "a secret")
		require.LessOrEqual(t, len(kept), session.MaxSealedOutput)
		again, err := other.seal(ctx, "n", "s", text)
		require.NoError(t, err)
		require.Equal(t, kept, again)
		elsewhere, err := other.seal(ctx, "n", "t", text)
		require.NoError(t, err)
		require.NotEqual(t, kept, elsewhere)
		for _, s := range []*sealer{one, other, off} {
			found, ok := s.open(ctx, "n", kept)
			require.True(t, ok)
			require.Equal(t, text, found)
		}
		_, ok := one.open(ctx, "m", kept)
		require.False(t, ok)
		_, ok = one.open(ctx, "n", kept[:len(kept)-1])
		require.False(t, ok)
		require.Equal(t, unsealed, one.show(ctx, "m", kept))
	}
	preview, err := one.seal(ctx, "n", "s", strings.Repeat("x", session.MaxPreview))
	require.NoError(t, err)
	require.LessOrEqual(t, len(preview), session.MaxSealedPreview)
	plain, err := off.seal(ctx, "n", "s", "text")
	require.NoError(t, err)
	require.Equal(t, "text", plain)
	found, ok := one.open(ctx, "n", plain)
	require.True(t, ok)
	require.Equal(t, "text", found)
}
