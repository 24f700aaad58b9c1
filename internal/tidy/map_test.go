package tidy

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The maps that people find their way by name paths in backticks, and functions
// right behind the path of their file.
var maps = []string{"ARCHITECTURE.md", "CONTRIBUTING.md"}

var (
	quoted   = regexp.MustCompile("`([A-Za-z0-9_./-]+)`")
	fileName = regexp.MustCompile(`^[a-z0-9_]+\.(go|md|proto)$`)
	inFile   = regexp.MustCompile("`([a-z0-9_/]+\\.go)`, `(?:[A-Za-z]+\\.)?([A-Za-z]+)`")
)

// What a map names is there: so whoever moves a file mends the map.
func TestMapsAreTrue(t *testing.T) {
	names := fileNames(t)
	for _, m := range maps {
		text := strings.Join(source(t, "../../"+m), "\n")
		found := 0
		for _, p := range paths(text) {
			found++
			if fileName.MatchString(p) {
				require.True(t, names[p], "%s: no file is called %s", m, p)
				continue
			}
			_, err := os.Stat("../../" + p)
			require.NoError(t, err, "%s: there is no %s", m, p)
		}
		require.NotZero(t, found, "%s: the checker found no path", m)
		for _, f := range functions(text) {
			code := strings.Join(source(t, "../../"+f.path), "\n")
			require.Regexp(t, `(?m)^func (\([^)]*\) )?`+f.name+`[(\[]`, code, "%s: %s has no %s", m, f.path, f.name)
		}
	}
}

// paths are what a text names in backticks and means a file or a folder by. What
// is built is not there yet.
func paths(text string) (found []string) {
	for _, q := range quoted.FindAllStringSubmatch(text, -1) {
		p := q[1]
		isPath := strings.Contains(p, "/") && !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "./") && path.Dir(p) != "bin"
		if isPath || fileName.MatchString(p) {
			found = append(found, p)
		}
	}
	return found
}

type function struct{ path, name string }

func functions(text string) (found []function) {
	for _, f := range inFile.FindAllStringSubmatch(text, -1) {
		if f[2] != "go" { // another file
			found = append(found, function{f[1], f[2]})
		}
	}
	return found
}

func fileNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	require.NoError(t, filepath.WalkDir("../..", func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			names[d.Name()] = true
		}
		return err
	}))
	return names
}

func TestMapCheckerFinds(t *testing.T) {
	text := "| `session/calls.go`, `admit` | `a/b.go`, `T.M`, and `c.go`, `d.go` | `a.B` `word` `/readyz` `./x` `bin/govnode` `make test` |"
	require.Equal(t, []string{"session/calls.go", "a/b.go", "c.go", "d.go"}, paths(text))
	require.Equal(t, []function{{"session/calls.go", "admit"}, {"a/b.go", "M"}}, functions(text))
}
