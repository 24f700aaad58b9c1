package serve

import (
	"io"
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

// A folder in which the socket may not be is refused before the node founds or joins anything.
func TestTheFolderOfTheSocketIsLookedAtFirst(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	c := &config.Config{Data: data, Auth: config.AuthTokens}
	require.NoError(t, socketCanBe(c), "it is made yet")
	require.NoError(t, os.Mkdir(data, 0o750))
	require.ErrorContains(t, socketCanBe(c), "run chmod 700 "+data)
	require.ErrorContains(t, serve(t.Context(), c, io.Discard, io.Discard), "run chmod 700 "+data)
	left, err := os.ReadDir(data)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, os.Chmod(filepath.Dir(data), 0o755))
	c.Socket = filepath.Join(filepath.Dir(data), "s")
	require.ErrorContains(t, socketCanBe(c), "chmod 700")
	require.NoError(t, os.Chmod(data, 0o700))
	c.Socket = ""
	require.NoError(t, socketCanBe(c))
}
