package durable

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// A library that meets what it cannot have written panics, and one that has mapped a
// file meets a fault where the file has become shorter. Both are damage, and not the
// end of the process.
func TestAPanicIsDamage(t *testing.T) {
	require.NoError(t, Guarded(func() error { return nil }))
	require.Equal(t, errDisk, Guarded(func() error { return errDisk }))
	err := Guarded(func() error { panic("page 7") })
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "page 7")

	path := filepath.Join(tempDir(t), votesFile)
	bolt, err := openBolt(path)
	require.NoError(t, err)
	require.NoError(t, bolt.StoreLog(entryAt(1, 1, 5)))
	require.NoError(t, os.Truncate(path, int64(2*os.Getpagesize()))) // all but its heads
	require.ErrorIs(t, Guarded(func() error { return bolt.GetLog(1, new(raft.Log)) }), ErrDamaged)
	require.NoError(t, bolt.Close())
}
