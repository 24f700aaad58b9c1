package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func file(path, content string) File { return File{Path: path, Content: []byte(content)} }

// The digest is over the set of files: their order does not matter, every byte
// of a path or a content does.
func TestTreeDigest(t *testing.T) {
	a, err := NewTree([]File{file("a.yaml", "x"), file("b/c.yaml", "y")})
	require.NoError(t, err)
	b, err := NewTree([]File{file("b/c.yaml", "y"), file("a.yaml", "x")})
	require.NoError(t, err)
	require.Equal(t, a.Digest(), b.Digest())
	require.Equal(t, a.Encode(), b.Encode())
	require.Equal(t, "a.yaml", a.Files()[0].Path)

	for name, other := range map[string][]File{
		"content":        {file("a.yaml", "x "), file("b/c.yaml", "y")},
		"path":           {file("a.yml", "x"), file("b/c.yaml", "y")},
		"moved boundary": {file("a.yaml", "xb/c.yaml"), file("b/c.yaml", "y")},
		"fewer":          {file("a.yaml", "x")},
	} {
		tree, err := NewTree(other)
		require.NoError(t, err)
		require.NotEqual(t, a.Digest(), tree.Digest(), name)
	}
	parsed, err := ParseDigest(a.Digest().String())
	require.NoError(t, err)
	require.Equal(t, a.Digest(), parsed)
	for _, bad := range []string{"", "sha256:", strings.ToUpper(a.Digest().String()), a.Digest().String() + "0", strings.Replace(a.Digest().String(), "sha256:", "sha256:g", 1)[:71]} {
		_, err := ParseDigest(bad)
		require.Error(t, err, bad)
	}
}

// The digest of a known tree must never change: sessions are pinned by it.
func TestTreeDigestIsStable(t *testing.T) {
	tree, err := SingleFile("rules: []\n")
	require.NoError(t, err)
	require.Equal(t, "govnode-tree/1\n\x0bpolicy.yaml\x0arules: []\n", string(tree.Encode()))
	require.Equal(t, "sha256:a5920c8c4c314852238132d521c1b383b5046e1aa7760a88fbccd291cb51a250", tree.Digest().String())
}

func TestTreeRefusesPaths(t *testing.T) {
	for _, path := range []string{"", "/a.yaml", "../a.yaml", "a/../b.yaml", "./a.yaml", "a//b.yaml", "a/", "..", ".", `a\b.yaml`, "C:a.yaml", "a\x00.yaml", "a\n.yaml", "\xff.yaml", strings.Repeat("a", MaxPathBytes+1)} {
		_, err := NewTree([]File{file(path, "rules: []")})
		require.Error(t, err, "%q", path)
	}
	_, err := NewTree([]File{file("a.yaml", ""), file("a.yaml", "")})
	require.ErrorContains(t, err, "a.yaml: the path appears twice")
	_, err = NewTree(nil)
	require.ErrorContains(t, err, "no files")
}

func TestTreeSizeCaps(t *testing.T) {
	room := MaxTreeBytes - len("policy.yaml")
	_, err := SingleFile(strings.Repeat("#", room))
	require.NoError(t, err)
	_, err = SingleFile(strings.Repeat("#", room+1))
	require.ErrorContains(t, err, "larger than 1048576 bytes")
	_, err = NewTree(make([]File, MaxFiles+1))
	require.ErrorContains(t, err, "4097 files")
}

func TestDecodeTree(t *testing.T) {
	tree, err := NewTree([]File{file("b.yaml", ""), file("a.yaml", "rules: []")})
	require.NoError(t, err)
	back, err := DecodeTree(tree.Encode())
	require.NoError(t, err)
	require.Equal(t, tree.Digest(), back.Digest())

	swapped := encodeFiles([]File{file("b.yaml", ""), file("a.yaml", "rules: []")})
	_, err = DecodeTree(swapped)
	require.ErrorContains(t, err, "not canonical")
	for n := range tree.Encode() {
		// Cut between two files what is left is a tree, but another one.
		if less, err := DecodeTree(tree.Encode()[:n]); err == nil {
			require.NotEqual(t, tree.Digest(), less.Digest(), "cut at %d", n)
		}
	}
	_, err = DecodeTree(append([]byte("govnode-tree/1\n"), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f))
	require.Error(t, err, "a length beyond the input")
}

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

	both, err := NewTree([]File{tree[0]})
	require.NoError(t, err)
	_, err = Compile(both)
	require.ErrorContains(t, err, "both_test.yaml:1: cases: the file has fields of a policy and cases of a table of tests")

	_, _, err = ReadFiles(fstest.MapFS{"big.yaml": {Data: make([]byte, MaxTreeBytes+1)}})
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

func paths(files []File) []string {
	var out []string
	for _, f := range files {
		out = append(out, f.Path)
	}
	return out
}
