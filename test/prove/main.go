package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	mode := flag.String("mode", "normal", "normal, long, or smoke, which tries the runner in a minute")
	dir := flag.String("dir", "bin/prove", "the folder for the report and what the layers write")
	only := flag.String("only", "", "names of layers with commas between them; all if empty")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	problems, err := prove(ctx, *mode, *dir, *only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "prove:", err)
		os.Exit(1)
	}
	if problems > 0 {
		os.Exit(1)
	}
}

func prove(ctx context.Context, mode, dir, only string) (problems int, err error) {
	all, err := layers(mode)
	if err != nil {
		return 0, err
	}
	if only != "" {
		if all, err = choose(all, strings.Split(only, ",")); err != nil {
			return 0, err
		}
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return 0, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	begun := time.Now()
	bin := filepath.Join(dir, "bin")
	for _, l := range all {
		fmt.Printf("building %s\n", l.Name)
		if err := l.build(ctx, bin); err != nil {
			return 0, fmt.Errorf("%s: %w", l.Name, err)
		}
	}
	r := Report{Mode: mode, Root: os.Geteuid() == 0, Started: time.Now().UTC().Truncate(time.Second), Built: time.Since(begun)}
	for len(all) > 0 {
		n := slices.IndexFunc(all, func(l layer) bool { return !l.beside }) + 1
		if n == 0 {
			n = len(all)
		}
		results := make([]Result, n)
		var running sync.WaitGroup
		for i, l := range all[:n] {
			fmt.Printf("%-7s runs for about %v\n", l.Name, l.About)
			running.Go(func() { results[i] = l.run(ctx, bin, dir, r.Root) })
		}
		running.Wait()
		for _, x := range results {
			fmt.Println(x.summary())
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		r.Results, all = append(r.Results, results...), all[n:]
	}
	r.Took = time.Since(r.Started)
	for _, x := range r.Results {
		problems += len(x.Problems)
	}
	if err := r.write(dir); err != nil {
		return 0, err
	}
	fmt.Printf("%d problems; the report: %s\n", problems, filepath.Join(dir, "report.html"))
	return problems, nil
}

func choose(all []layer, names []string) (chosen []layer, err error) {
	for _, name := range names {
		found := false
		for _, l := range all {
			if l.Name == name {
				chosen, found = append(chosen, l), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no layer %q", name)
		}
	}
	return chosen, nil
}
