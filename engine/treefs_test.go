package engine

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/source"
)

func TestReadFiles(t *testing.T) {
	files, hidden, err := ReadFiles(fstest.MapFS{
		"policy.yaml":        {Data: []byte("rules: []")},
		"src/governance.yml": {Data: []byte("rules: []")},
		"policy_test.yaml":   {Data: []byte("cases: []")},
		"latest_test.yaml":   {Data: []byte("rules: []")},
		".git":               {Data: []byte("gitdir: elsewhere")}, // of a work tree; what follows it counts
		"src/.git/config":    {Data: []byte("x")},
		"src/.git/a.yaml":    {Data: []byte("rules: []")},
		".hidden.yaml":       {Data: []byte("x")},
		".ci/build.yaml":     {Data: []byte("steps: []")},
		".aws/x/policy.yaml": {Data: []byte("rules: []")},
		"src/.a.yml":         {Data: []byte("max_tokens: 1")},
		// What is no table stays in the tree, which is refused with it.
		"both_test.yaml":   {Data: []byte("cases: []\nrules: []")},
		"broken_test.yaml": {Data: []byte("cases: [")},
		"odd_test.yaml":    {Data: []byte("cases: 5")},
	})
	require.NoError(t, err)
	require.Equal(t, []string{".aws/x/policy.yaml", "src/.a.yml"}, hidden)
	tree, tests := SplitTests(files)
	require.Equal(t, []string{"both_test.yaml", "broken_test.yaml", "latest_test.yaml", "odd_test.yaml", "policy.yaml", "src/governance.yml"}, paths(tree))
	require.Equal(t, []string{"policy_test.yaml"}, paths(tests))

	both, err := source.NewTree([]source.File{tree[0]})
	require.NoError(t, err)
	_, err = Compile(both)
	require.ErrorContains(t, err, "both_test.yaml:1: cases: the file has fields of a policy and cases of a table of tests")

	_, _, err = ReadFiles(fstest.MapFS{"big.yaml": {Data: make([]byte, source.MaxTreeBytes+1)}})
	require.ErrorContains(t, err, "larger than")
}

// A link in a policy directory could lead anywhere, so it is not followed.
func TestReadFilesRefusesLinks(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte("rules: []"), 0o600))
	require.NoError(t, os.Symlink("a.yaml", filepath.Join(dir, "governance.yaml")))
	_, _, err := ReadFiles(os.DirFS(dir))
	require.ErrorContains(t, err, "governance.yaml: the file is a symbolic link")
}

func paths(files []source.File) []string {
	var out []string
	for _, f := range files {
		out = append(out, f.Path)
	}
	return out
}
