package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/test/report"
)

// What ends with 1 is a violation, a layer that says nothing, one that failed for
// another reason, and one that was left out without need.
func TestJudge(t *testing.T) {
	l := layer{Name: "L9", Is: "a layer", wants: map[string]want{"faults": {3, faults}}}
	for name, test := range map[string]struct {
		said     *report.Layer
		failed   error
		root     bool
		problems []string
		short    int
	}{
		"all is well":            {said: &report.Layer{Faults: map[string]int{"a": 1, "b": 2}}},
		"little was done":        {said: &report.Layer{Faults: map[string]int{"a": 1}}, short: 1},
		"a violation":            {said: &report.Layer{Violations: []string{"order: x"}}, problems: []string{"order: x"}, short: 1},
		"a violation, as tests":  {said: &report.Layer{Violations: []string{"order: x"}}, failed: errors.New("exit 1"), problems: []string{"order: x"}, short: 1},
		"no report":              {problems: []string{"missing: it did not say what it did"}},
		"no report, for reasons": {failed: errors.New("exit 2"), problems: []string{"missing: exit 2"}},
		"another failure":        {said: &report.Layer{}, failed: errors.New("exit 1"), problems: []string{"failed, without a violation: exit 1"}, short: 1},
		"skipped":                {said: &report.Layer{Skipped: "no root"}},
		"skipped, as root":       {said: &report.Layer{Skipped: "no loop"}, root: true, problems: []string{"skipped, though it can run for root: no loop"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := l.judge(test.said, test.failed, test.root, t.TempDir())
			require.Equal(t, test.problems, r.Problems)
			require.Len(t, r.Short, test.short)
		})
	}
}

// Documents say how many fuzz targets there are.
func TestHowManyTargets(t *testing.T) {
	targets := 0
	require.NoError(t, filepath.WalkDir("../..", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		targets += bytes.Count(b, []byte("\nfunc Fuzz"))
		return err
	}))
	b, err := os.ReadFile("../../docs/guarantees.md")
	require.NoError(t, err)
	require.Contains(t, string(b), fmt.Sprintf("every target of the repository, which are %d |", targets))
}

// The page shows what was found, as text.
func TestPage(t *testing.T) {
	r := Report{Mode: "normal", Started: time.Unix(0, 0).UTC(), Results: []Result{{
		Layer: report.Layer{
			Name: "L1", Seeds: []uint64{7, 5, 6, 9}, Operations: 200, Unknown: 3, Faults: map[string]int{"kill": 2},
			P99: map[string]time.Duration{"healed": 12 * time.Millisecond}, Figures: map[string]float64{"runs": 4}, Replay: "make it again",
		},
		Is: "clusters", Problems: []string{"order: <script>alert(1)</script>"}, Short: []string{"faults: 2 of 3"}, Output: "L1.out",
	}, {Layer: report.Layer{Name: "L3", Skipped: "it needs root"}}}}
	dir := t.TempDir()
	require.NoError(t, r.write(dir))
	b, err := os.ReadFile(filepath.Join(dir, "report.html"))
	require.NoError(t, err)
	for _, text := range []string{"1 problems", "1.50 %", "kill", "12ms", "5 to 7, 9", "make it again", "it needs root", "faults: 2 of 3", "&lt;script&gt;"} {
		require.Contains(t, string(b), text)
	}
	require.NotContains(t, string(b), "<script")
	b, err = os.ReadFile(filepath.Join(dir, "report.json"))
	require.NoError(t, err)
	require.True(t, bytes.Contains(b, []byte(`"Unknown": 3`)), "%s", b)
}

func TestExecutions(t *testing.T) {
	out := "fuzz: elapsed: 0s, gathering baseline coverage: 0/5 completed\nfuzz: elapsed: 3s, execs: 1200 (400/sec), new interesting: 1\nfuzz: elapsed: 4s, execs: 1700 (400/sec)\nPASS\n"
	require.Equal(t, 1700, executions(out))
}

// Every target is found, and there are enough of them.
func TestFuzzing(t *testing.T) {
	t.Chdir("../..")
	all, err := fuzzing(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(all), 8)
	require.True(t, strings.HasSuffix(all["session.fuzz"].folder, "session"), "%v", all)
}

func TestChoose(t *testing.T) {
	all, err := layers("normal")
	require.NoError(t, err)
	_, err = choose(all, []string{"L7"})
	require.ErrorContains(t, err, `no layer "L7"`)
	chosen, err := choose(all, []string{"L1", "L0"})
	require.NoError(t, err)
	require.Equal(t, "L1", chosen[0].Name)
	_, err = layers("fast")
	require.Error(t, err)
}
