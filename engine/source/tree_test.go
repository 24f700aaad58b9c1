package source

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func of(path, content string) File { return File{Path: path, Content: []byte(content)} }

// The digest is over the set of files: their order does not matter, every byte
// of a path or a content does.
func TestTreeDigest(t *testing.T) {
	a, err := NewTree([]File{of("a.yaml", "x"), of("b/c.yaml", "y")})
	require.NoError(t, err)
	b, err := NewTree([]File{of("b/c.yaml", "y"), of("a.yaml", "x")})
	require.NoError(t, err)
	require.Equal(t, a.Digest(), b.Digest())
	require.Equal(t, a.Encode(), b.Encode())
	require.Equal(t, "a.yaml", a.Files()[0].Path)

	for name, other := range map[string][]File{
		"content":        {of("a.yaml", "x "), of("b/c.yaml", "y")},
		"path":           {of("a.yml", "x"), of("b/c.yaml", "y")},
		"moved boundary": {of("a.yaml", "xb/c.yaml"), of("b/c.yaml", "y")},
		"fewer":          {of("a.yaml", "x")},
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
		_, err := NewTree([]File{of(path, "rules: []")})
		require.Error(t, err, "%q", path)
	}
	_, err := NewTree([]File{of("a.yaml", ""), of("a.yaml", "")})
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
	tree, err := NewTree([]File{of("b.yaml", ""), of("a.yaml", "rules: []")})
	require.NoError(t, err)
	back, err := DecodeTree(tree.Encode())
	require.NoError(t, err)
	require.Equal(t, tree.Digest(), back.Digest())

	swapped := encodeFiles([]File{of("b.yaml", ""), of("a.yaml", "rules: []")})
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
