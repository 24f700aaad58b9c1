package policy

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine"
)

// swapping puts something else in the place of a file between the look at it and its
// opening.
type swapping struct {
	fs.FS
	swap func()
}

func (s swapping) Open(name string) (fs.File, error) {
	if name == "governance.yaml" {
		s.swap()
	}
	return s.FS.Open(name)
}

// What a file was when it was looked at says nothing of what is opened: a link leads
// nowhere, and a pipe is not waited for.
func TestAFileThatIsSwapped(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside.yaml")
	require.NoError(t, os.WriteFile(outside, []byte("name: outside\nrules: []\n"), 0o600))
	for what, swap := range map[string]func(path string) error{
		"nothing":    func(string) error { return nil },
		"a link out": func(path string) error { return os.Symlink(outside, path) },
		"a link out by a folder": func(path string) error {
			return os.Symlink(filepath.Join("..", filepath.Base(filepath.Dir(outside)), "outside.yaml"), path)
		},
		"a pipe":   func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a folder": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "governance.yaml")
		require.NoError(t, os.WriteFile(path, []byte("name: inside\nrules: []\n"), 0o600))
		root, err := os.OpenRoot(dir)
		require.NoError(t, err)
		files, _, err := engine.ReadFiles(swapping{folder{root}, func() {
			if what != "nothing" {
				require.NoError(t, os.Remove(path))
			}
			require.NoError(t, swap(path))
		}})
		require.NoError(t, root.Close())
		if what == "nothing" {
			require.NoError(t, err)
			require.Len(t, files, 1)
			continue
		}
		require.Error(t, err, what)
		require.Empty(t, files, what)
	}
}
