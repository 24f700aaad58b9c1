package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/test/report"
)

const (
	// settingEnv has one Setting, for a process that runs it alone: libraries
	// keep channels for the next one to use, and none may leave its bubble.
	settingEnv = "GOVNODE_L1_SETTING"
	reportMark = "report: "
	// keepEnv is set to keep the log of a run in which nothing was wrong.
	keepEnv = "GOVNODE_L1_KEEP"
)

// TestOne runs what the environment says.
func TestOne(t *testing.T) {
	text := os.Getenv(settingEnv)
	if text == "" {
		t.Skip("it is run by TestClusters, for one setting")
	}
	var s Setting
	require.NoError(t, json.Unmarshal([]byte(text), &s))
	if os.Getenv("GOVNODE_L1_LOG") != "" {
		s.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	var r Report
	inVirtualTime(t, func(t *testing.T) {
		var err error
		r, err = Run(s)
		require.NoError(t, err)
	})
	r.Judge()
	if len(r.Violations) > 0 || os.Getenv(keepEnv) != "" {
		keep(t, r)
	}
	b, err := json.Marshal(r)
	require.NoError(t, err)
	fmt.Println(reportMark + string(b))
}

// keep leaves behind what tells more of a run: what was to go wrong, what clients
// saw and what the log has of it; and the log itself, which package model replays.
func keep(t *testing.T, r Report) {
	dir := os.Getenv(report.DirEnv)
	if dir == "" {
		dir = os.TempDir()
	}
	path := filepath.Join(dir, fmt.Sprintf("L1-%d", r.Seed))
	var b strings.Builder
	fmt.Fprintf(&b, "%+v\nplan:\n%s\nviolations:\n", r.Setting, strings.Join(r.Plan, "\n"))
	for _, v := range r.Violations {
		fmt.Fprintln(&b, v)
	}
	fmt.Fprintln(&b, "history:")
	for _, o := range r.History.Ops {
		fmt.Fprintln(&b, o)
	}
	for _, h := range r.History.Holds {
		fmt.Fprintf(&b, "%+v\n", h)
	}
	for _, e := range r.History.Effects {
		fmt.Fprintf(&b, "%+v\n", e)
	}
	require.NoError(t, os.WriteFile(path+".txt", []byte(b.String()), 0o644))
	fmt.Printf("plan and history: %s.txt\n", path)
	if r.witness == nil {
		return
	}
	log, err := r.witness.lines()
	if err != nil { // what is wrong may be why
		fmt.Printf("there is no log to apply again: %v\n", err)
		return
	}
	require.NoError(t, os.WriteFile(path+".log", log, 0o644))
	fmt.Printf("the log again, entry by entry: GOVNODE_L0_LOG=%s.log go test ./test/model -run TestLog -v\n", path)
}

// runAlone runs a setting in a process of its own.
func runAlone(ctx context.Context, s Setting) (r Report, output string, err error) {
	text, err := json.Marshal(s)
	if err != nil {
		return r, "", err
	}
	output, err = testProcess(ctx, "^TestOne$", settingEnv+"="+string(text))
	for line := range strings.Lines(output) {
		if b, ok := strings.CutPrefix(line, reportMark); ok {
			return r, output, json.Unmarshal([]byte(b), &r)
		}
	}
	return r, output, fmt.Errorf("no report: %w", err)
}

// testProcess runs a test of this package in a process of its own.
func testProcess(ctx context.Context, test string, env ...string) (output string, err error) {
	var out bytes.Buffer
	c := exec.CommandContext(ctx, os.Args[0], "-test.run="+test, "-test.timeout=5m")
	c.Env = append(append(os.Environ(), "GOGC=400", "GOMAXPROCS=1"), env...) // each core has a process of its own: so they do almost twice as much
	c.Stdout, c.Stderr = &out, &out
	err = c.Run()
	return out.String(), err
}

// busy is a run in which much happens, and quiet one in which it takes long: two of the
// former come before one of the latter. Every eighth busy one has five nodes, which take
// half as long again.
func busy(seed uint64) Setting {
	nodes := 3
	if seed%16 == 1 || seed%16 == 13 { // with the orders of an operator and without
		nodes = 5
	}
	return Setting{
		Seed: seed, Nodes: nodes, Clients: 24, Length: time.Minute,
		Think: 30 * time.Millisecond, Gap: 2 * time.Second,
	}
}

func quiet(seed uint64) Setting {
	return Setting{
		Seed: seed, Nodes: 3, Clients: 2, Length: 135 * time.Minute, Think: 20 * time.Second, Gap: 40 * time.Second,
		Heartbeat: 6 * time.Second, Commit: 1500 * time.Millisecond,
	}
}

// short is busy for as long as nobody has to wait for it.
func short(seed uint64) Setting {
	s := busy(seed)
	s.Length /= 2
	return s
}

// found are runs in which a promise was broken once: a follower took a snapshot
// that was older than what it had applied. They take too long for the short form.
var found = func() []Setting {
	s := busy(150)
	s.Nodes = 3
	return []Setting{s}
}()

// TestClusters runs clusters under faults and wants nothing of what they promise
// to be broken: a few in virtual minutes, or with GOVNODE_L1=long those of found and as
// many more as fit into 150 s, or into another time that it names. GOVNODE_L1_SEED is
// the first seed of these.
func TestClusters(t *testing.T) {
	if os.Getenv(settingEnv) != "" {
		t.Skip("this process runs one setting")
	}
	seed, limit, kinds, before := uint64(1), 2, []func(uint64) Setting{short}, []Setting(nil)
	ctx := t.Context()
	if length := os.Getenv("GOVNODE_L1"); length != "" {
		runFor := 150 * time.Second
		if length != "long" {
			var err error
			runFor, err = time.ParseDuration(length)
			require.NoError(t, err, "GOVNODE_L1 is long, or a time")
		}
		seed, limit, kinds, before = rand.Uint64N(1<<32), 1<<30, []func(uint64) Setting{busy, busy, quiet}, found
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, runFor)
		defer cancel()
	}
	if text := os.Getenv("GOVNODE_L1_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "GOVNODE_L1_SEED")
	}
	t.Logf("first seed %d", seed)
	var mu sync.Mutex
	all := Report{Faults: map[string]int{}, Alone: map[string]int{}, Took: map[string][]time.Duration{}}
	start := time.Now()
	var seeds []uint64
	var failed []string
	var again string // how the first that failed is run again
	runs, next := 0, 0
	pace := map[pacing]float64{} // what a virtual second takes in the longest run of its kind
	var under sync.WaitGroup
	for range 2 {
		under.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				if i >= limit || ctx.Err() != nil {
					mu.Unlock()
					return
				}
				var s Setting
				if i < len(before) {
					s = before[i]
				} else {
					i -= len(before)
					s = kinds[i%len(kinds)](seed + uint64(i))
				}
				kind := pacing{s.Length, s.Nodes}
				if until, ok := ctx.Deadline(); ok && pace[kind] > 0 { // the last is as long as there is time
					s.Length = min(s.Length, time.Duration(float64(time.Until(until))/(1.2*pace[kind])).Truncate(time.Second))
				}
				mu.Unlock()
				if s.Length < 5*s.Gap {
					return
				}
				begun := time.Now()
				r, output, err := runAlone(ctx, s)
				if ctx.Err() != nil {
					return // it was cut off, and says nothing
				}
				mu.Lock()
				pace[kind] = max(pace[kind], time.Since(begun).Seconds()/s.Length.Seconds())
				seeds = append(seeds, s.Seed)
				for _, v := range r.Violations {
					failed = append(failed, fmt.Sprintf("%s (seed %d)", v, s.Seed))
				}
				if err != nil {
					failed = append(failed, fmt.Sprintf("run: %v (seed %d)", err, s.Seed))
				}
				if runs++; err != nil || len(r.Violations) > 0 {
					if setting, err := json.Marshal(s); err == nil && again == "" {
						again = fmt.Sprintf("%s='%s' go test -tags hashicorpmetrics ./test/sim -run TestOne -count=1 -v", settingEnv, setting)
					}
					t.Errorf("seed %d, %+v: %v, %d violations: %s\n%s", s.Seed, s, err, len(r.Violations), first(r), output)
				}
				all.add(r)
				mu.Unlock()
			}
		})
	}
	under.Wait()
	require.Positive(t, runs, "no run has come to its end")
	t.Logf("%d runs, %v of cluster time, %d operations, %.2f %% unknown, %d not applied, %d faults of %d kinds, %d violations",
		runs, all.Cluster.Round(time.Second), all.Ops, 100*float64(all.Unknown)/float64(max(all.Ops, 1)), all.NotApplied,
		sum(all.Faults), len(all.Faults), len(all.Violations))
	for _, kind := range slices.Sorted(maps.Keys(all.Faults)) {
		t.Logf("%6d %s", all.Faults[kind], kind)
	}
	t.Logf("steps of scripts: %v", all.Alone)
	layer := report.Layer{
		Name: "L1", Seeds: seeds, Took: time.Since(start), Cluster: all.Cluster, Operations: all.Ops, Unknown: all.Unknown,
		NotApplied: all.NotApplied, Faults: all.Faults, Violations: failed, P99: map[string]time.Duration{},
		Figures: map[string]float64{"runs": float64(runs), "hours of cluster time": all.Cluster.Hours(), "steps of scripts": float64(sum(all.Alone))},
	}
	if len(failed) > 0 {
		layer.Replay = again
	}
	for _, what := range slices.Sorted(maps.Keys(all.Took)) {
		layer.P99[what] = p99(all.Took[what])
		t.Logf("p99 of %d: %v: %s", len(all.Took[what]), layer.P99[what].Round(time.Millisecond), what)
	}
	require.NoError(t, report.Write(layer))
}

// A pacing is what runs have in common that take about as long.
type pacing struct {
	length time.Duration
	nodes  int
}

func first(r Report) string {
	if len(r.Violations) == 0 {
		return ""
	}
	return r.Violations[0].String()
}

func (r *Report) add(o Report) {
	r.Cluster += o.Cluster
	r.Ops += o.Ops
	r.Unknown += o.Unknown
	r.NotApplied += o.NotApplied
	r.Violations = append(r.Violations, o.Violations...)
	for what, took := range o.Took {
		r.Took[what] = append(r.Took[what], took...)
	}
	for kind, n := range o.Faults {
		r.Faults[kind] += n
	}
	for script, n := range o.Alone {
		r.Alone[script] += n
	}
}
