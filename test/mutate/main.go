// Mutate changes one place of a package at a time, in ways in which somebody
// could have written it wrongly, and sees whether the package's own tests tell.
//
//	go run ./test/mutate -count 300 limiter session cluster
//
// The places are drawn by a seed that is printed, evenly from all that there are
// in the packages and the rooms below them. A change that does not compile is no
// mutant, and another one is drawn. The files stay as they are: the compiler is
// given the changed one in their place.
package main

import (
	"bytes"
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
	"strings"
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
	list := flag.Bool("list", false, "print what would be tried, and end")
	flag.Parse()
	if flag.NArg() == 0 {
		return errors.New("name the folders of packages to change")
	}
	all, err := mutants(flag.Args())
	if err != nil {
		return err
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
	ends := map[string]int{}
	for _, m := range all {
		tried := ends[caught] + ends[hung] + ends[survived]
		if tried == *count || ctx.Err() != nil {
			break
		}
		start := time.Now()
		end, by, err := m.try(ctx, dir, *tags, *within)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			break // it was cut off
		}
		if ends[end]++; end != invalid {
			fmt.Printf("%3d %-8s %5.1f s  %v  %s\n", tried+1, end, time.Since(start).Seconds(), m, by)
		}
	}
	tried := ends[caught] + ends[hung] + ends[survived]
	share := float64(ends[caught]+ends[hung]) / float64(max(tried, 1))
	fmt.Printf("seed %d: %d tried: %d caught, %d hung, %d survived: %.1f %%\n", *seed, tried, ends[caught], ends[hung], ends[survived], 100*share)
	if tried == 0 || share < *least {
		return fmt.Errorf("less than %.0f %% are caught", 100**least)
	}
	return nil
}

// try runs the tests of the package of a mutant, and of the one that it is a room
// of, and names the first that fails.
func (m *mutant) try(ctx context.Context, dir, tags string, within time.Duration) (end, by string, err error) {
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(changed, m.source(), 0o600); err != nil {
		return "", "", err
	}
	path, err := filepath.Abs(m.file)
	if err != nil {
		return "", "", err
	}
	b, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		return "", "", err
	}
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		return "", "", err
	}
	pkg, root := "./"+filepath.ToSlash(filepath.Dir(m.file)), "./"+filepath.ToSlash(m.root)
	if exec.CommandContext(ctx, "go", "build", "-tags", tags, "-overlay", overlay, pkg).Run() != nil {
		return invalid, "", nil
	}
	end, by = tests(ctx, within, "-tags", tags, "-overlay", overlay, pkg)
	if end == survived && root != pkg { // a room is also tested by what it is a room of
		end, by = tests(ctx, within, "-tags", tags, "-overlay", overlay, root)
	}
	return end, by, nil
}

// tests runs tests and says how they end.
func tests(ctx context.Context, within time.Duration, args ...string) (end, by string) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	test := exec.CommandContext(ctx, "go", append([]string{"test", "-vet=off", "-failfast", "-timeout", within.String()}, args...)...)
	test.WaitDelay = time.Second
	var out bytes.Buffer
	test.Stdout, test.Stderr = &out, &out
	switch err := test.Run(); {
	case err == nil:
		return survived, ""
	case ctx.Err() != nil, strings.Contains(out.String(), "panic: test timed out"):
		return hung, ""
	}
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "--- FAIL") || strings.HasPrefix(line, "panic:") {
			return caught, "by " + strings.TrimSpace(strings.TrimPrefix(line, "--- FAIL: "))
		}
	}
	return caught, ""
}
