package durable

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// What was written of a file goes on to its last byte that is not 0, wherever that is,
// and to the end of its eight.
func TestWhatWasWrittenOfAFile(t *testing.T) {
	const mib = 1 << 20
	path := filepath.Join(tempDir(t), "file")
	for _, c := range []struct {
		size  int64
		last  int // that is not 0; -1: none
		until int
	}{
		{0, -1, 0}, {100, -1, 0}, {mib, -1, 0}, {mib + 1, -1, 0},
		{1, 0, 8}, {100, 0, 8}, {100, 7, 8}, {100, 8, 16}, {100, 99, 104}, {104, 103, 104},
		{3 * mib, 0, 8}, {3 * mib, mib - 1, mib}, {3 * mib, mib, mib + 8}, {3 * mib, 3*mib - 1, 3 * mib},
		{2*mib + 100, 99, 104}, {2*mib + 100, 100, 104}, {2*mib + 100, mib + 99, mib + 104}, {2*mib + 100, mib + 100, mib + 104},
	} {
		f, err := os.Create(path)
		require.NoError(t, err)
		require.NoError(t, f.Truncate(c.size))
		want := make([]byte, c.until)
		if c.last >= 0 {
			_, err := f.WriteAt([]byte{1}, int64(c.last))
			require.NoError(t, err)
			want[c.last] = 1
		}
		b, err := written(f)
		require.NoError(t, err, "%+v", c)
		require.Len(t, b, c.until, "%+v", c)
		require.True(t, bytes.Equal(want, b), "%+v", c)
		require.NoError(t, f.Close())
	}
}

// What an entry holds may look like the ends of batches. They are none, and a batch
// that was cut short in it is dropped.
func TestWhatLooksLikeTheEndOfABatch(t *testing.T) {
	b := append(bytes.Repeat([]byte{7}, walHead), walEntry, 0, 0, 0, 200, 0, 0, 0)
	for range 3 {
		b = append(b, walCommit, 0, 0, 0, 7, 7, 7, 7)
	}
	b = append(b, 7, 7, 7, 7, 7, 7, 7, 7)
	tail := readTail(b)
	require.Zero(t, tail.whole)
	require.True(t, tail.cutShort(b))
}
