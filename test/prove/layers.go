package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"example.com/govnode/test/report"
)

const (
	tags    = "hashicorpmetrics"
	program = "govnode"
)

// A layer is a test that says what it did, and how it is run.
type layer struct {
	Name  string
	Is    string        // in a sentence
	About time.Duration // that it takes

	beside  bool   // it runs beside the next one, since it waits for most of its time
	folder  string // of its test
	pattern string // which tests of it
	env     []string
	program bool            // it needs the program
	wants   map[string]want // what it has to do at least, by what is counted
	special string          // how it is run if it is no single test
}

// A want is a figure that a layer has to reach.
type want struct {
	Least float64
	Got   func(report.Layer) float64
}

func operations(l report.Layer) float64 { return float64(l.Operations) }
func hours(l report.Layer) float64      { return l.Cluster.Hours() }
func kinds(l report.Layer) float64      { return float64(len(l.Faults)) }

func faults(l report.Layer) (n float64) {
	for _, k := range l.Faults {
		n += float64(k)
	}
	return n
}

func unknown(l report.Layer) float64 {
	return 100 * float64(l.Unknown) / float64(max(l.Operations, 1))
}

func figure(name string) func(report.Layer) float64 {
	return func(l report.Layer) float64 { return l.Figures[name] }
}

// layers returns what is run in a mode.
func layers(mode string) ([]layer, error) {
	l0 := layer{
		Name: "L0", Is: "the state machine, under generated commands, beside a model of it", About: time.Minute,
		folder: "test/model", pattern: "^TestStateMachine$", env: []string{"GOVNODE_L0=long"},
		wants: map[string]want{"commands": {1_000_000, operations}, "cuts": {2000, figure("cuts")}},
	}
	l1 := layer{
		Name: "L1", Is: "clusters of real nodes and clients in virtual time", About: 150 * time.Second,
		folder: "test/sim", pattern: "^(TestClusters|TestAlone)$", env: []string{"GOVNODE_L1=long"},
		wants: map[string]want{
			"hours of cluster time": {24, hours}, "faults": {3000, faults}, "kinds of faults": {10, kinds}, "operations": {300_000, operations},
		},
	}
	l2 := layer{
		Name: "L2", Is: "the program as processes on a network that breaks", About: 3 * time.Minute,
		folder: "test/chaos", pattern: "^TestProcesses$", env: []string{"GOVNODE_L2=1"}, program: true,
		wants: map[string]want{
			"faults": {40, faults}, "kinds of faults": {8, kinds}, "operations": {50_000, operations}, "percent of unknown outcomes": {0.5, unknown},
		},
	}
	l3 := layer{
		Name: "L3", Is: "nodes on disks of their own that lose power, space and bits", About: time.Minute,
		folder: "test/chaos/power", pattern: "^TestPower$", env: []string{"GOVNODE_L3=1"}, program: true,
		wants: map[string]want{
			"power cuts": {20, figure("power cuts")}, "power cuts of all": {5, figure("power cuts of all")},
			"lost with disks that lie": {1, figure("acknowledged and lost with disks that lie")},
		},
	}
	onRedis := layer{
		Name: "L2-redis", Is: "the same over a Redis that breaks", About: 80 * time.Second,
		folder: "test/chaos", pattern: "^TestProcessesOnRedis$", env: []string{"GOVNODE_L2=1"}, program: true,
		wants: map[string]want{"kinds of faults": {8, kinds}},
	}
	losses := layer{
		Name: "L2-redis-losses", Is: "the same over a Redis that loses what it acknowledged", About: 70 * time.Second,
		folder: "test/chaos", pattern: "^TestProcessesOnRedisThatLoses$", env: []string{"GOVNODE_L2=1"}, program: true,
	}
	bits := layer{
		Name: "L6", Is: "bits that turn in the memory of one node of such a cluster", About: time.Minute,
		folder: "test/sim", pattern: "^TestTurnedBitsAreFound$", env: []string{"GOVNODE_L1=long"},
		wants: map[string]want{"bits found": {10, figure("bits found")}},
	}
	fuzz := layer{Name: "fuzz", Is: "whatever parses, under made and mutated input", About: time.Minute, special: "fuzz"}
	seeded := layer{
		Name: "seeded", Is: "bugs that are put in on purpose, each of which a named check has to catch", About: 3 * time.Minute,
		folder: "test/seeded", pattern: "^TestSeeded$", env: []string{"GOVNODE_SEEDED_RUN=4"}, special: "seeded",
	}
	switch mode {
	case "normal": // as much of Redis as the ten minutes leave room for
		onRedis.env, onRedis.wants, onRedis.About, onRedis.beside = []string{"GOVNODE_L2=1", "GOVNODE_L2_FOR=20s"}, nil, time.Minute, true
		return []layer{l0, l1, l2, l3, onRedis, fuzz, seeded}, nil
	case "long":
		l1.env, l1.About = []string{"GOVNODE_L1=20m"}, 20*time.Minute
		l2.env, l2.About = []string{"GOVNODE_L2=1", "GOVNODE_L2_FOR=10m"}, 10*time.Minute
		l3.env, l3.About = []string{"GOVNODE_L3=long"}, 5*time.Minute
		fuzz.About = 20 * time.Minute
		seeded.env, seeded.About = []string{"GOVNODE_SEEDED_RUN=all"}, 15*time.Minute
		return []layer{l0, l1, l2, onRedis, losses, l3, bits, fuzz, seeded}, nil
	case "smoke":
		l0.env, l0.wants, l0.About = nil, nil, 5*time.Second
		l1.env, l1.wants, l1.About = nil, nil, 15*time.Second
		fuzz.About = 20 * time.Second
		return []layer{l0, l1, fuzz}, nil
	default:
		return nil, fmt.Errorf("-mode is normal, long or smoke, not %q", mode)
	}
}

// build builds what a layer runs. What two layers share is built once.
func (l layer) build(ctx context.Context, bin string) error {
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	if l.program {
		if err := once(ctx, filepath.Join(bin, program), "build", "./cmd/govnode"); err != nil {
			return err
		}
	}
	if l.special == "fuzz" {
		return buildFuzz(ctx, bin)
	}
	if _, err := os.Stat(l.folder); errors.Is(err, os.ErrNotExist) {
		return nil // it will be missing
	}
	if l.special == "seeded" { // it builds what it runs with the bugs in it
		for _, folder := range []string{"test/model", "test/sim"} {
			path := filepath.Join(bin, "seeded", filepath.Base(folder)+".test")
			if err := once(ctx, path, "test", "-c", "-tags", tags+",seeded", "./"+folder); err != nil {
				return err
			}
		}
	}
	return once(ctx, l.binary(bin), "test", "-c", "./"+l.folder)
}

func (l layer) binary(bin string) string { return filepath.Join(bin, filepath.Base(l.folder)+".test") }

// once builds something unless it is there.
func once(ctx context.Context, path string, args ...string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	what := args[len(args)-1]
	args = append(append([]string{args[0], "-tags", tags}, args[1:len(args)-1]...), "-o", path, what)
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// A Result is what a layer did, and what is wrong with that.
type Result struct {
	report.Layer
	Is       string
	Problems []string // for which the exit code is 1
	Short    []string // figures that were not reached, as on a machine with other work
	Output   string   `json:",omitempty"`
}

// run runs a layer and reads what it says of itself.
func (l layer) run(ctx context.Context, bin, dir string, root bool) Result {
	if l.special == "fuzz" {
		found := runFuzz(ctx, bin, dir, l.About)
		return l.judge(found, nil, root, dir)
	}
	if _, err := os.Stat(l.binary(bin)); err != nil {
		return l.judge(nil, errors.New("there is no test of it"), root, dir)
	}
	env := append([]string{
		report.DirEnv + "=" + dir, "GOVNODE_BIN=" + filepath.Join(bin, program), "GOVNODE_SEEDED_BIN=" + filepath.Join(bin, "seeded"),
	}, l.env...)
	args := []string{"-test.v", "-test.count=1", "-test.timeout=" + (4*l.About + 2*time.Minute).String()}
	if l.pattern != "" {
		args = append(args, "-test.run="+l.pattern)
	}
	failed := command(ctx, l.folder, filepath.Join(dir, l.Name+".out"), env, l.binary(bin), args...)
	var said *report.Layer
	if b, err := os.ReadFile(filepath.Join(dir, l.Name+".json")); err == nil {
		said = new(report.Layer)
		if err := json.Unmarshal(b, said); err != nil {
			return l.judge(nil, err, root, dir)
		}
	}
	return l.judge(said, failed, root, dir)
}

// command runs a program in a folder, with its output in a file. When ctx is done
// it is told to say where it stands, and to end.
func command(ctx context.Context, folder, output string, env []string, program string, args ...string) error {
	f, err := os.Create(output)
	if err != nil {
		return err
	}
	defer f.Close()
	c := exec.CommandContext(ctx, program, args...)
	c.Dir, c.Env, c.Stdout, c.Stderr = folder, append(os.Environ(), env...), f, f
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGQUIT) }
	c.WaitDelay = 20 * time.Second
	return c.Run()
}

// judge says what is wrong with what a layer did.
func (l layer) judge(said *report.Layer, failed error, root bool, dir string) Result {
	r := Result{Is: l.Is, Output: l.Name + ".out"}
	if said == nil {
		r.Layer = report.Layer{Name: l.Name}
		why := "it did not say what it did"
		if failed != nil {
			why = failed.Error()
		}
		r.Problems = []string{"missing: " + why + tail(filepath.Join(dir, r.Output))}
		return r
	}
	r.Layer = *said
	r.Problems = append(r.Problems, said.Violations...)
	switch {
	case said.Skipped != "":
		if root {
			r.Problems = append(r.Problems, "skipped, though it can run for root: "+said.Skipped)
		}
		return r
	case failed != nil && len(said.Violations) == 0:
		r.Problems = append(r.Problems, "failed, without a violation: "+failed.Error()+tail(filepath.Join(dir, r.Output)))
	}
	for what, w := range l.wants {
		if got := w.Got(*said); got < w.Least {
			r.Short = append(r.Short, fmt.Sprintf("%s: %.4g of %.4g", what, got, w.Least))
		}
	}
	return r
}

// tail returns the end of a file, for who has to find out why.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	return "\n" + string(bytes.Join(lines[max(0, len(lines)-15):], []byte("\n")))
}
