// Mutate changes one place of a package at a time, in ways in which somebody
// could have written it wrongly, and sees whether the package's own tests tell.
//
//	go run ./test/mutate -count 300 limiter session cluster
//
// The places are drawn by a seed that is printed, evenly from all that there are
// in the packages and the rooms below them. A change that does not compile is no
// mutant, and another one is drawn. The files stay as they are: the compiler is
// given the changed one in their place. Tests that do not come by a place are not
// run for it, and the quickest of the others are run first; see reach.go.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// The ends that a mutant can come to.
const (
	caught   = "caught"
	hung     = "hung" // until the time was up: its tests tell, but late
	survived = "survived"
	invalid  = "invalid" // it does not compile
)

func run() error {
	seed := flag.Uint64("seed", rand.Uint64N(1<<32), "by which mutants are drawn")
	count := flag.Int("count", 300, "mutants to try")
	within := flag.Duration("timeout", 3*time.Minute, "for the tests of one mutant")
	least := flag.Float64("least", 0.85, "share of the mutants that has to be caught")
	tags := flag.String("tags", "hashicorpmetrics", "build tags")
	at := flag.String("at", "", "try only those whose description this pattern matches, as session/codec.go:273:")
	list := flag.Bool("list", false, "print what would be tried, and end")
	jobs := flag.Int("jobs", runtime.GOMAXPROCS(0), "mutants tried at once")
	flag.Parse()
	if flag.NArg() == 0 {
		return errors.New("name the folders of packages to change")
	}
	all, err := mutants(flag.Args(), *tags)
	if err != nil {
		return err
	}
	if *at != "" {
		pattern, err := regexp.Compile(*at)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(m *mutant) bool { return !pattern.MatchString(m.String()) })
	}
	rand.New(rand.NewPCG(*seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	fmt.Printf("seed %d: %d of %d mutants of %s\n", *seed, *count, len(all), strings.Join(flag.Args(), ", "))
	if *list {
		for _, m := range all[:min(*count, len(all))] {
			fmt.Println(m)
		}
		return nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := os.MkdirTemp("", "mutate-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	known := &suites{dir: dir, tags: *tags, known: map[string]*suite{}}
	d := &draw{left: all, most: *count, ends: map[string]int{}}
	var under sync.WaitGroup
	for i := range *jobs {
		own := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(own, 0o700); err != nil {
			return err
		}
		under.Go(func() {
			for m := d.next(); m != nil && ctx.Err() == nil; m = d.next() {
				end, by, took, err := m.try(ctx, own, known, *within)
				if ctx.Err() == nil { // else it was cut off
					d.came(m, end, by, took, err)
				}
			}
		})
	}
	if under.Wait(); d.failed != nil {
		return d.failed
	}
	ends := d.ends
	tried := ends[caught] + ends[hung] + ends[survived]
	share := float64(ends[caught]+ends[hung]) / float64(max(tried, 1))
	fmt.Printf("seed %d: %d tried: %d caught, %d hung, %d survived: %.1f %%\n", *seed, tried, ends[caught], ends[hung], ends[survived], 100*share)
	if tried == 0 || share < *least {
		return fmt.Errorf("less than %.0f %% are caught", 100**least)
	}
	return nil
}

// A draw hands out mutants and takes down what they came to.
type draw struct {
	mu     sync.Mutex
	left   []*mutant
	most   int // to try
	under  int // being tried
	ends   map[string]int
	failed error
}

// next returns nil where no other is to be tried. One more is handed out for each that
// does not compile.
func (d *draw) next() *mutant {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed != nil || len(d.left) == 0 || d.tried()+d.under >= d.most {
		return nil
	}
	m := d.left[0]
	d.left, d.under = d.left[1:], d.under+1
	return m
}

func (d *draw) tried() int { return d.ends[caught] + d.ends[hung] + d.ends[survived] }

func (d *draw) came(m *mutant, end, by string, took time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.under--
	if err != nil {
		d.failed = cmp.Or(d.failed, err)
		return
	}
	if d.ends[end]++; end != invalid {
		fmt.Printf("%3d %-8s %5.1f s  %v  %s\n", d.tried(), end, took.Seconds(), m, by)
	}
}

// try runs the tests that come by a mutant, of its package and of the one that it
// is a room of, and names the first that fails. Its files are put into dir.
func (m *mutant) try(ctx context.Context, dir string, known *suites, within time.Duration) (end, by string, took time.Duration, err error) {
	folder := filepath.ToSlash(filepath.Dir(m.file))
	folders := slices.Compact([]string{folder, filepath.ToSlash(m.root)}) // a room is also tested by what it is a room of
	var tests [][]*test
	for _, folder := range folders {
		s, err := known.of(ctx, folder, filepath.ToSlash(m.root))
		if err != nil {
			return "", "", 0, err
		}
		tests = append(tests, s.reaching(m))
	}
	start := time.Now()
	changed, overlay, binary := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "changed.test")
	if err := os.WriteFile(changed, m.source(), 0o600); err != nil {
		return "", "", 0, err
	}
	path, err := filepath.Abs(m.file)
	if err != nil {
		return "", "", 0, err
	}
	b, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		return "", "", 0, err
	}
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		return "", "", 0, err
	}
	if exec.CommandContext(ctx, "go", "build", "-tags", known.tags, "-overlay", overlay, "./"+folder).Run() != nil {
		return invalid, "", 0, nil
	}
	end, by = survived, "no test comes by"
	for i, folder := range folders {
		if len(tests[i]) == 0 {
			continue
		}
		if _, err := compile(ctx, folder, binary, "-tags", known.tags, "-overlay", overlay); err != nil {
			return "", "", 0, err
		}
		if end, by = tell(ctx, folder, binary, tests[i], within); end != survived {
			break
		}
	}
	return end, by, time.Since(start), nil
}

// tell runs tests, at first those that take no time, and says how they end. What
// goes on for ten times as long as without a change, and some, hangs.
func tell(ctx context.Context, folder, binary string, tests []*test, within time.Duration) (end, by string) {
	usual := time.Duration(0)
	for _, t := range tests {
		usual += t.took
	}
	within = min(within, 15*time.Second+10*usual)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for atOnce := time.Second; len(tests) > 0; atOnce *= 8 {
		var names []string
		for took := time.Duration(0); len(tests) > 0 && took < atOnce; tests = tests[1:] {
			names, took = append(names, tests[0].name), took+tests[0].took
		}
		out, err := execute(ctx, folder, binary, "-test.failfast", "-test.timeout="+within.String(), "-test.run=^("+strings.Join(names, "|")+")$")
		switch {
		case err == nil:
		case ctx.Err() != nil, strings.Contains(out, "panic: test timed out"):
			return hung, ""
		default:
			return caught, firstFailure(out)
		}
	}
	return survived, ""
}

// firstFailure names what failed.
func firstFailure(output string) string {
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "--- FAIL") || strings.HasPrefix(line, "panic:") {
			return "by " + strings.TrimSpace(strings.TrimPrefix(line, "--- FAIL: "))
		}
	}
	return ""
}
