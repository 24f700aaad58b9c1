package serve

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/config"
)

// What a killed process has left is replaced; anything else at the path of the socket is
// somebody's, and stays.
func TestSocketReplacesNothingButSockets(t *testing.T) {
	folder, err := os.MkdirTemp("", "s") // short, as paths of sockets are
	require.NoError(t, err)
	defer func() { _ = os.RemoveAll(folder) }()
	file, link, left := filepath.Join(folder, "file"), filepath.Join(folder, "link"), filepath.Join(folder, "left")
	require.NoError(t, os.WriteFile(file, []byte("precious"), 0o600))
	require.NoError(t, os.Symlink(file, link))
	for _, path := range []string{file, link} {
		_, err := listenLocal(&config.Config{Socket: path})
		require.ErrorContains(t, err, "is no socket")
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "precious", string(b))
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	again, err := listenLocal(&config.Config{Socket: left})
	require.NoError(t, err)
	info, err := os.Stat(left)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, again.Close())
	require.NoError(t, os.Chmod(folder, 0o755))
	_, err = listenLocal(&config.Config{Socket: left})
	require.ErrorContains(t, err, "chmod 700")
}
