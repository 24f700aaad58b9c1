package main

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each attack has a number of its own, what is required, and tests that exist and that
// the command runs.
func TestEachAttackHasTests(t *testing.T) {
	rows, err := Rows()
	require.NoError(t, err)
	seen := map[int]bool{}
	for _, r := range rows {
		assert.False(t, seen[r.N], "attack %d stands twice", r.N)
		seen[r.N] = true
		assert.True(t, r.N >= 1 && r.N <= Attacks, "attack %d", r.N)
		assert.NotEmpty(t, r.Attack, "attack %d", r.N)
		assert.NotEmpty(t, r.Outcome, "attack %d", r.N)
		tests, err := r.Parsed()
		require.NoError(t, err)
		assert.NotEmpty(t, tests, "attack %d", r.N)
		for _, test := range tests {
			assert.True(t, exists(t, test), "attack %d: %s does not exist, or not with the tags %s", r.N, test, tags)
		}
	}
}

var known = map[string]map[string]bool{}

func exists(t *testing.T, test Test) bool {
	if known[test.Package] == nil {
		known[test.Package] = functions(t, filepath.Join("../..", test.Package))
	}
	return known[test.Package][test.Top()]
}

// functions are those of the tests in a folder that the tags let in.
func functions(t *testing.T, dir string) map[string]bool {
	all := map[string]bool{}
	paths, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		if !letIn(string(content)) {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, content, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				all[f.Name.Name] = true
			}
		}
	}
	return all
}

func letIn(content string) bool {
	for line := range strings.Lines(content) {
		if !constraint.IsGoBuild(line) {
			continue
		}
		x, err := constraint.Parse(strings.TrimSpace(line))
		return err == nil && x.Eval(func(tag string) bool { return strings.Contains(","+tags+",linux,amd64,unix,", ","+tag+",") })
	}
	return true
}

// An attack that a test could not try, or that no test tried, counts as one that had its
// way.
func TestTheTableCountsWhatWasNotTried(t *testing.T) {
	row := func(n int, tests ...string) Row { return Row{N: n, Attack: "a", Outcome: "o", Tests: tests} }
	good, bad, skipped := Test{"./p", "TestGood"}, Test{"./p", "TestBad"}, Test{"./p", "TestSkipped"}
	outcomes := map[Test]string{good: "pass", bad: "fail", skipped: "skip"}
	for _, c := range []struct {
		row  Row
		root bool
		word string
		fail int
	}{
		{row(1, good.String()), true, "as required", 0},
		{row(2), false, "**no test**", 1},
		{row(3, good.String(), bad.String()), true, "**had its way**", 1},
		{row(4, good.String(), skipped.String()), true, "**skipped**", 1},
		{row(5, good.String(), skipped.String()), false, "skipped: needs root", 0},
		{row(6, "./p TestOther"), false, "**not run**", 1},
		{row(7, bad.String(), skipped.String()), false, "**had its way**", 1},
	} {
		table, failed := tell([]Row{c.row}, outcomes, c.root)
		assert.Contains(t, table, c.word, c.row.N)
		assert.Equal(t, c.fail, failed, c.row.N)
	}
}
