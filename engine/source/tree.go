package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// A policy tree: its files, its digest, and the form in which it is stored.

// Caps of a tree. They bound what a crafted tree can cost before anything of
// it is parsed.
const (
	MaxTreeBytes = 1 << 20 // all paths and contents together
	MaxFiles     = 4096
	MaxPathBytes = 1024
)

// A File is one file of a policy tree.
type File struct {
	Path    string // relative, forward slashes, clean
	Content []byte
}

// A Digest is the SHA-256 of a tree's canonical encoding. Equal digests mean
// equal files, so a decision can be traced to the exact text it rests on
// (policy engine spec 18.2).
type Digest [sha256.Size]byte

// DigestPrefix stands before the hexadecimal digits of a SHA-256.
const DigestPrefix = "sha256:"

// String prints "sha256:" and 64 hexadecimal digits.
func (d Digest) String() string { // made at once: each decision is written with one
	var text [len(DigestPrefix) + 2*len(d)]byte
	hex.Encode(text[copy(text[:], DigestPrefix):], d[:])
	return string(text[:])
}

// ParseDigest reads what String prints.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	text, ok := strings.CutPrefix(s, DigestPrefix)
	if !ok || len(text) != 2*len(d) || strings.ToLower(text) != text {
		return Digest{}, fmt.Errorf("digest %q must be sha256: followed by 64 lower-case hexadecimal digits", Clip(s, 80))
	}
	if _, err := hex.Decode(d[:], []byte(text)); err != nil {
		return Digest{}, fmt.Errorf("digest %q must be sha256: followed by 64 lower-case hexadecimal digits", Clip(s, 80))
	}
	return d, nil
}

// A Tree is an immutable set of files in canonical order. It knows nothing of
// their meaning; [Compile] does.
type Tree struct {
	files   []File
	encoded []byte
	digest  Digest
}

// NewTree builds a tree from files in any order. Paths must be relative, clean
// and written with forward slashes; no two may be equal; all together may hold
// at most [MaxTreeBytes]. The error is a [*LoadError].
func NewTree(files []File) (*Tree, error) {
	if err := checkFiles(files); err != nil {
		return nil, err
	}
	sorted := make([]File, len(files))
	for i, f := range files {
		sorted[i] = File{Path: f.Path, Content: bytes.Clone(f.Content)}
	}
	slices.SortFunc(sorted, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	for i := 1; i < len(sorted); i++ {
		if sorted[i].Path == sorted[i-1].Path {
			return nil, TreeProblem(sorted[i].Path, "the path appears twice; keep one file of that name")
		}
	}
	t := &Tree{files: sorted}
	t.encoded = encodeFiles(sorted)
	t.digest = sha256.Sum256(t.encoded)
	return t, nil
}

// SingleFile is a tree of one file, named policy.yaml.
func SingleFile(yaml string) (*Tree, error) {
	return NewTree([]File{{Path: "policy.yaml", Content: []byte(yaml)}})
}

// Digest addresses the tree by its content.
func (t *Tree) Digest() Digest { return t.digest }

// Files returns a copy of the files, sorted by path. Contents are shared and
// must not be written to.
func (t *Tree) Files() []File { return slices.Clone(t.files) }

// Encode returns the canonical encoding, which is what the digest is taken
// over. The result must not be written to.
func (t *Tree) Encode() []byte { return t.encoded }

// treeMagic names the format and its version. Each file follows as
//
//	uvarint(len path) path uvarint(len content) content
var treeMagic = []byte("govnode-tree/1\n")

// DecodeTree reads what Encode wrote. It accepts the canonical form alone:
// any other byte order of the same files would have another digest.
func DecodeTree(b []byte) (*Tree, error) {
	rest, ok := bytes.CutPrefix(b, treeMagic)
	if !ok {
		return nil, errors.New("policy tree: unknown format, it does not begin with govnode-tree/1")
	}
	var files []File
	for len(rest) > 0 {
		var name, content []byte
		var err error
		if name, rest, err = cutChunk(rest); err != nil {
			return nil, err
		}
		if content, rest, err = cutChunk(rest); err != nil {
			return nil, err
		}
		files = append(files, File{Path: string(name), Content: content})
	}
	t, err := NewTree(files)
	if err != nil {
		return nil, fmt.Errorf("policy tree: %w", err)
	}
	if !bytes.Equal(t.encoded, b) {
		return nil, errors.New("policy tree: the encoding is not canonical, its files are out of order")
	}
	return t, nil
}

func encodeFiles(files []File) []byte {
	out := bytes.Clone(treeMagic)
	for _, f := range files {
		out = binary.AppendUvarint(out, uint64(len(f.Path)))
		out = append(out, f.Path...)
		out = binary.AppendUvarint(out, uint64(len(f.Content)))
		out = append(out, f.Content...)
	}
	return out
}

func cutChunk(b []byte) (chunk, rest []byte, err error) {
	n, width := binary.Uvarint(b)
	if width <= 0 || n > uint64(len(b)-width) {
		return nil, nil, errors.New("policy tree: the encoding is cut short")
	}
	return b[width : width+int(n)], b[width+int(n):], nil
}

func checkFiles(files []File) error {
	if len(files) == 0 {
		return TreeProblem("", "the tree has no files; put at least one policy file into it")
	}
	if len(files) > MaxFiles {
		return TreeProblem("", fmt.Sprintf("the tree has %d files; the most is %d", len(files), MaxFiles))
	}
	total := 0
	for _, f := range files {
		if msg := pathProblem(f.Path); msg != "" {
			return TreeProblem(Clip(f.Path, MaxPathBytes), msg)
		}
		total += len(f.Path) + len(f.Content)
		if total > MaxTreeBytes {
			return TreeProblem("", fmt.Sprintf("the tree is larger than %d bytes; split it or remove what is not policy", MaxTreeBytes))
		}
	}
	return nil
}

// pathProblem says what is wrong with the path of a file, or nothing.
func pathProblem(p string) string {
	switch {
	case p == "":
		return "a file has no path"
	case len(p) > MaxPathBytes:
		return fmt.Sprintf("the path is longer than %d bytes", MaxPathBytes)
	case !utf8.ValidString(p):
		return "the path is not valid UTF-8"
	case strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "the path holds a control character"
	case strings.Contains(p, `\`):
		return `the path holds a backslash; write it with forward slashes`
	case strings.HasPrefix(p, "/") || HasDriveLetter(p):
		return "the path is absolute; write it relative to the root of the tree"
	case path.Clean(p) != p || p == "." || p == ".." || strings.HasPrefix(p, "../"):
		return "the path is not clean; write it without . and .. and without doubled or trailing slashes"
	}
	return ""
}

// HasDriveLetter reports whether a path is one of another system.
func HasDriveLetter(p string) bool {
	return len(p) >= 2 && p[1] == ':' && (p[0]|0x20 >= 'a' && p[0]|0x20 <= 'z')
}

// TreeProblem is the error of one problem with a file as a whole, or with the tree.
func TreeProblem(path, message string) *LoadError {
	return &LoadError{Problems: []Problem{{Path: path, Message: message}}}
}

// Clip shortens s for a message, at a rune boundary.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
