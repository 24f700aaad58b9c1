package sim

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Who works where another works who may is seen, and who comes with a token of
// before; and nobody else.
func TestSite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, start := filepath.Join(t.TempDir(), "site"), time.Now()
		one, other := &site{path: path, start: start}, &site{path: path, start: start}
		enter := func(s *site, pool string, limit int, x inside) (admitted, fine bool) {
			admitted, broken, err := s.enter(pool, limit, x)
			require.NoError(t, err)
			return admitted, broken == nil
		}
		stay := func(s *site, pool string, token uint64, until time.Duration) bool {
			broken, err := s.stay(pool, token, until)
			require.NoError(t, err)
			return broken == nil
		}
		require.Equal(t, []any{true, true}, pair(enter(one, "wide", 3, inside{7, 2, time.Second})))
		require.Equal(t, []any{true, true}, pair(enter(other, "wide", 3, inside{6, 1, time.Second})), "a token of before, with room")
		require.True(t, stay(one, "wide", 7, 3*time.Second))
		require.NoError(t, other.leave("wide", 6))
		require.Equal(t, []any{true, false}, pair(enter(other, "wide", 3, inside{8, 2, 3 * time.Second})), "an overlap")

		require.Equal(t, []any{true, true}, pair(enter(one, "narrow", 1, inside{7, 1, time.Second})))
		require.Equal(t, []any{false, false}, pair(enter(other, "narrow", 1, inside{6, 1, time.Second})), "a token of before")
		require.Equal(t, []any{true, false}, pair(enter(other, "narrow", 1, inside{8, 1, time.Second})), "an overlap")
		require.NoError(t, other.leave("narrow", 8))
		time.Sleep(2 * time.Second)
		require.Equal(t, []any{false, true}, pair(enter(other, "narrow", 1, inside{6, 1, time.Second})), "its lease is over")
		require.Equal(t, []any{true, true}, pair(enter(other, "narrow", 1, inside{9, 1, 4 * time.Second})), "who was there may no longer be")
		require.True(t, stay(one, "narrow", 7, time.Second), "it knows that its lease is over")
		require.False(t, stay(one, "narrow", 7, 3*time.Second), "its place was taken and it believes in its lease")
	})
}

func pair(admitted, fine bool) []any { return []any{admitted, fine} }
