package remote

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nobody else may read what a login keeps, whatever was left behind beside it, and logins
// at once do not take it from each other half-way.
func TestLoginsAreKeptToTheirUser(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", home)
	file, err := Remember("a:1", "gn_default.abcd.secret")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file+".next", nil, 0o600))
	require.NoError(t, os.Chmod(file+".next", 0o644))
	_, err = Remember("b:1", "gn_default.efgh.secret")
	require.NoError(t, err)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())

	failed := make([]error, 20)
	var all sync.WaitGroup
	for i := range failed {
		all.Go(func() { _, failed[i] = Remember("c:1", "gn_default.ijkl.secret") })
	}
	all.Wait()
	for _, err := range failed {
		require.NoError(t, err)
	}
	token, err := Login("a:1")
	require.NoError(t, err)
	require.Equal(t, "gn_default.abcd.secret", token)
	left, err := filepath.Glob(file + ".*.next")
	require.NoError(t, err)
	require.Empty(t, left)
}
