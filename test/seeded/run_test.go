package seeded

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/test/chaos/power"
	"example.com/govnode/test/processes/disks"
	"example.com/govnode/test/report"
	"example.com/govnode/test/sim"
)

const (
	// runEnv says which bugs: their names with commas between them, all, or how
	// many of them in turn.
	runEnv = "GOVNODE_SEEDED_RUN"
	// seedEnv says from where on they are taken in turn, and with which seeds L1
	// begins. The day, if it is not set.
	seedEnv = "GOVNODE_SEEDED_SEED"
	// binEnv names a folder with what was built before, and what is built is left.
	binEnv = "GOVNODE_SEEDED_BIN"
	bugEnv = "GOVNODE_SEEDED"

	// patience is how long a layer may take for one bug.
	patience   = 40 * time.Second
	reportMark = "report: "
)

// layers are what is built with the bugs in it: tests of a folder, or the program.
var layers = map[string]string{L0: "test/model", L1: "test/sim", L3: "cmd/govnode"}

// TestEveryBugHasARow holds the table to the bugs that there are, and to itself.
func TestEveryBugHasARow(t *testing.T) {
	source, err := os.ReadFile("../../internal/seeded/on.go")
	require.NoError(t, err)
	names := map[string]bool{}
	for _, b := range Bugs {
		require.Contains(t, string(source), strconv.Quote(b.Name))
		require.False(t, names[b.Name], b.Name)
		require.NotEmpty(t, b.Checks, b.Name)
		names[b.Name] = true
	}
	rows := regexp.MustCompile(`(?m)^\t[A-Z]\w+:\s+"[a-z-]+",$`).FindAllString(string(source), -1)
	require.Len(t, rows, len(names), "a bug that nobody has to catch")
}

// TestSeeded lets each layer catch what it has to.
func TestSeeded(t *testing.T) {
	choice := os.Getenv(runEnv)
	if choice == "" {
		t.Skip(runEnv + " says which bugs are to be caught: names, all, or a number")
	}
	seed := uint64(time.Now().UTC().YearDay())
	if text := os.Getenv(seedEnv); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, seedEnv)
	}
	bugs := choose(t, choice, seed)
	bin := os.Getenv(binEnv)
	if bin == "" {
		bin = t.TempDir()
	}
	start := time.Now()
	for layer, folder := range layers {
		if slices.ContainsFunc(bugs, func(b Bug) bool { return b.Layer == layer }) {
			build(t, bin, folder)
		}
	}
	t.Logf("built in %v; seed %d", time.Since(start).Round(time.Second), seed)
	start = time.Now()
	if slices.ContainsFunc(bugs, func(b Bug) bool { return b.Layer == L3 }) {
		if err := disks.Usable(); err != nil {
			t.Logf("without what L3 catches: %v", err)
			bugs = slices.DeleteFunc(slices.Clone(bugs), func(b Bug) bool { return b.Layer == L3 })
		}
	}
	l := report.Layer{Name: "seeded", Seeds: []uint64{seed}, Figures: map[string]float64{}}
	caught := 0
	for _, b := range bugs {
		begun := time.Now()
		lost.Store(nil)
		by, runs := catch(t.Context(), b, bin, seed)
		took := time.Since(begun)
		if by == "" {
			l.Violations = append(l.Violations, fmt.Sprintf("seeded: %s was not caught by %s (%s) in %d runs: %s", b.Name, b.Layer, strings.Join(b.Checks, ", "), runs, b.What))
			t.Errorf("%-16s %s: NOT CAUGHT in %d runs, %v", b.Name, b.Layer, runs, took.Round(time.Millisecond))
			if lost.Load() != nil {
				t.Logf("a run without a report: %s", *lost.Load())
			}
			continue
		}
		caught++
		l.Figures[b.Name+" caught after s"] = took.Seconds()
		t.Logf("%-16s %s, %d runs, %v: %.200s", b.Name, b.Layer, runs, took.Round(time.Millisecond), strings.ReplaceAll(by, "\n", " "))
	}
	if choice == "all" {
		for _, layer := range []string{L0, L1, L3} {
			if said := control(t.Context(), layer, bugs, bin, seed); said != "" {
				l.Violations = append(l.Violations, "control: "+said)
				t.Errorf("%s speaks where there is no bug: %s", layer, said)
			}
		}
	}
	l.Took = time.Since(start)
	l.Operations = len(bugs)
	l.Figures["caught"] = float64(caught)
	l.Figures["bugs"] = float64(len(bugs))
	if len(l.Violations) > 0 {
		l.Replay = fmt.Sprintf("%s=%s %s=%d make prove-seeded", runEnv, choice, seedEnv, seed)
	}
	require.NoError(t, report.Write(l))
}

// Documents say how many bugs there are.
func TestHowMany(t *testing.T) {
	for path, text := range map[string]string{
		"docs/guarantees.md": "one of %d bugs put in on purpose", "CONTRIBUTING.md": "| %d bugs on purpose",
	} {
		b, err := os.ReadFile(filepath.Join("../..", path))
		require.NoError(t, err)
		require.Contains(t, string(b), fmt.Sprintf(text, len(Bugs)), path)
	}
}

// choose returns the bugs that are to be caught.
func choose(t *testing.T, choice string, seed uint64) (bugs []Bug) {
	if choice == "all" {
		return Bugs
	}
	if n, err := strconv.Atoi(choice); err == nil {
		for i := range min(n, len(Bugs)) {
			bugs = append(bugs, Bugs[(int(seed%uint64(len(Bugs)))*n+i*7)%len(Bugs)])
		}
		return bugs
	}
	for _, name := range strings.Split(choice, ",") {
		i := slices.IndexFunc(Bugs, func(b Bug) bool { return b.Name == name })
		require.GreaterOrEqual(t, i, 0, "%s: there is no bug %q", runEnv, name)
		bugs = append(bugs, Bugs[i])
	}
	return bugs
}

// build builds the tests of a folder with the bugs in them, unless they are there.
func build(t *testing.T, bin, folder string) {
	path := binary(bin, folder)
	if _, err := os.Stat(path); err == nil {
		return
	}
	args := []string{"test", "-c"}
	if folder == layers[L3] {
		args = []string{"build"}
	}
	out, err := exec.Command("go", append(args, "-tags", "hashicorpmetrics,seeded", "-o", path, "../../"+folder)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func binary(bin, folder string) string { return filepath.Join(bin, filepath.Base(folder)+".test") }

// catch runs the layer of a bug until one of its checks speaks, and returns what
// that said; nothing if the time is up before.
func catch(ctx context.Context, b Bug, bin string, seed uint64) (by string, runs int) {
	ctx, cancel := context.WithTimeout(ctx, b.patience())
	defer cancel()
	if b.Layer == L0 {
		out := run(ctx, b, bin, "^TestUntil$", "GOVNODE_L0_UNTIL="+(b.patience()/2).String())
		var l report.Layer
		_ = json.Unmarshal(out, &l) // without a report nothing was caught
		for _, v := range l.Violations {
			if check, _, _ := strings.Cut(v, ": "); slices.Contains(b.Checks, check) {
				return v, 1
			}
		}
		return "", 1
	}
	if b.Layer == L3 {
		return powerCuts(b, bin, seed)
	}
	var mu sync.Mutex
	var under sync.WaitGroup
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 2 { // cores
		under.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				s := setting(rng.Uint64()>>32, b, runs)
				runs++
				mu.Unlock()
				found := simulate(ctx, b, bin, s)
				if found != "" {
					mu.Lock()
					by = found
					mu.Unlock()
					cancel()
				}
			}
		})
	}
	under.Wait()
	return by, runs
}

// control runs a layer without a bug, and returns what any check said that would
// have caught one.
func control(ctx context.Context, layer string, bugs []Bug, bin string, seed uint64) string {
	none := Bug{Layer: layer}
	for _, b := range bugs {
		if b.Layer == layer {
			none.Checks, none.Faults = append(none.Checks, b.Checks...), append(none.Faults, b.Faults...)
		}
	}
	if len(none.Checks) == 0 {
		return ""
	}
	said, _ := catch(ctx, none, bin, seed)
	return said
}

// patience is for how long a layer may look for a bug, and for none.
func (b Bug) patience() time.Duration {
	if b.Name == "" {
		return patience / 2
	}
	return patience
}

// powerCuts cuts the power of real nodes that have a bug.
func powerCuts(b Bug, bin string, seed uint64) (by string, runs int) {
	defer os.Unsetenv(bugEnv)
	os.Setenv(bugEnv, b.Name) // for their processes, and this one is built without it
	for end := time.Now().Add(b.patience()); time.Now().Before(end); seed++ {
		r, err := power.Unflushed(power.Setting{Program: binary(bin, layers[L3]), Seed: seed, Clients: 24, Settle: patience / 4, Log: func(string, ...any) {}, Args: []string{"--log-store", "boltdb"}})
		runs++
		if err != nil {
			return "", runs
		}
		for _, v := range r.Violations {
			if slices.Contains(b.Checks, v.Check) {
				return v.String(), runs
			}
		}
	}
	return "", runs
}

// setting is that of the busy runs of L1, with the faults of the bug alone in every
// second one.
func setting(seed uint64, b Bug, run int) sim.Setting {
	s := sim.Setting{Seed: seed, Nodes: 3, Clients: 16, Length: 15 * time.Second, Think: 30 * time.Millisecond, Gap: 2 * time.Second}
	if run%2 == 0 {
		s.Only = b.Faults
	}
	return s
}

// simulate runs one cluster, and returns what a check of the bug said.
func simulate(ctx context.Context, b Bug, bin string, s sim.Setting) string {
	text, err := json.Marshal(s)
	if err != nil {
		return ""
	}
	var r sim.Report
	if json.Unmarshal(run(ctx, b, bin, "^TestOne$", "GOVNODE_L1_SETTING="+string(text)), &r) != nil {
		return "" // it was cut off, or crashed
	}
	for _, v := range r.Violations {
		if slices.Contains(b.Checks, v.Check) {
			return v.String()
		}
	}
	return ""
}

// run runs one test of a layer with a bug in it, and returns its report.
func run(ctx context.Context, b Bug, bin, test, env string) []byte {
	folder := layers[b.Layer]
	var out bytes.Buffer
	c := exec.CommandContext(ctx, binary(bin, folder), "-test.run="+test, "-test.timeout=2m")
	c.Dir = "../../" + folder
	c.Env = append(os.Environ(), "GOGC=400", bugEnv+"="+b.Name, env, report.DirEnv+"=")
	c.Stdout, c.Stderr = &out, &out
	_ = c.Run() // its report says what came of it
	for line := range bytes.Lines(out.Bytes()) {
		if text, ok := bytes.CutPrefix(line, []byte(reportMark)); ok {
			return text
		}
	}
	if text := out.String(); ctx.Err() == nil {
		lost.Store(&text)
	}
	return nil
}

// lost is what a run of the present bug said that had no report, as one that cannot begin.
var lost atomic.Pointer[string]
