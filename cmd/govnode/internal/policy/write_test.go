package policy

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// A node that is not to be trusted cannot have the command write elsewhere.
func TestWritePolicyStaysInItsFolder(t *testing.T) {
	top := t.TempDir()
	folder := filepath.Join(top, "in")
	for _, path := range []string{"../out.yaml", "/out.yaml", "a/../../out.yaml"} {
		require.Error(t, writePolicy(folder, []*govnodev1.TextFile{{Path: path, Content: "x"}}), path)
	}
	require.NoFileExists(t, filepath.Join(top, "out.yaml"))
	require.NoError(t, writePolicy(folder, []*govnodev1.TextFile{{Path: "a/b.yaml", Content: "x"}}))
	require.FileExists(t, filepath.Join(folder, "a", "b.yaml"))
}
