package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Which tests come by the place of a mutant, as a run of each by itself with
// coverage shows before anything is changed. No other test can tell.

// module is the path that stands before those of files in coverage profiles.
const module = "example.com/govnode/"

// A suite is the tests of one package.
type suite struct {
	folder string
	tests  []*test // the quickest first
}

type test struct {
	name    string
	took    time.Duration
	reached map[string][]block // by file
}

// A block is a stretch of code that has run.
type block struct{ from, to place }

type place struct{ line, column int }

func (p place) before(q place) bool {
	return p.line < q.line || p.line == q.line && p.column < q.column
}

// suites are those of the folders that were asked about.
type suites struct {
	dir, tags string
	mu        sync.Mutex // held while tests are run, each by itself
	known     map[string]*suite
}

// of returns the suite of a folder, with what its tests reach below root.
func (s *suites) of(ctx context.Context, folder, root string) (*suite, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.known[folder]; ok {
		return known, nil
	}
	fmt.Printf("    what each test of %s reaches …\n", folder)
	x := &suite{folder: folder}
	s.known[folder] = x
	binary, profile := filepath.Join(s.dir, "covered.test"), filepath.Join(s.dir, "profile")
	found, err := compile(ctx, folder, binary, "-tags", s.tags, "-cover", "-coverpkg=./"+root+"/...")
	if err != nil || !found {
		return x, err
	}
	names, err := list(ctx, folder, binary)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		start := time.Now()
		if out, err := execute(ctx, folder, binary, "-test.run=^"+name+"$", "-test.coverprofile="+profile); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			fmt.Printf("    %s fails as it is, and is left out: %s\n", name, firstFailure(out))
			continue
		}
		t := &test{name: name, took: time.Since(start)}
		if t.reached, err = read(profile); err != nil {
			return nil, err
		}
		x.tests = append(x.tests, t)
	}
	slices.SortStableFunc(x.tests, func(a, b *test) int { return int(a.took - b.took) })
	return x, nil
}

// compile makes a binary of a folder's tests, if it has any.
func compile(ctx context.Context, folder, binary string, args ...string) (found bool, err error) {
	if err := os.Remove(binary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	args = slices.Concat([]string{"test", "-c", "-vet=off", "-o", binary}, args, []string{"./" + folder})
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return false, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	_, err = os.Stat(binary)
	return err == nil, nil
}

// list returns the names of what a binary has to run, benchmarks apart.
func list(ctx context.Context, folder, binary string) (names []string, err error) {
	out, err := execute(ctx, folder, binary, "-test.list=^(Test|Fuzz|Example)")
	for line := range strings.Lines(out) {
		if name := strings.TrimSpace(line); !strings.Contains(name, " ") {
			names = append(names, name)
		}
	}
	return names, err
}

// execute runs a binary of tests where its tests expect to be.
func execute(ctx context.Context, folder, binary string, args ...string) (output string, err error) {
	c := exec.CommandContext(ctx, binary, args...)
	c.Dir, c.WaitDelay = folder, time.Second
	out, err := c.CombinedOutput()
	return string(out), err
}

// read returns what a profile says has run.
func read(profile string) (map[string][]block, error) {
	f, err := os.Open(profile)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	reached := map[string][]block{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		file, text, ok := strings.Cut(strings.TrimPrefix(lines.Text(), module), ":")
		var b block
		var statements, count int
		if n, _ := fmt.Sscanf(text, "%d.%d,%d.%d %d %d", &b.from.line, &b.from.column, &b.to.line, &b.to.column, &statements, &count); ok && n == 6 && count > 0 {
			reached[file] = append(reached[file], b)
		}
	}
	return reached, nil
}

// reaching returns the tests that come by a mutant. What belongs to no stretch of
// code, as the cases of a switch, is reached by who comes into its function, and
// what is outside of functions by all.
func (x *suite) reaching(m *mutant) (tests []*test) {
	if m.begin.line == 0 {
		return x.tests
	}
	file := path.Clean(filepath.ToSlash(m.file))
	at, known := place{m.line, m.column}, false
	for _, t := range x.tests {
		inside, around := false, false
		for _, b := range t.reached[file] {
			inside = inside || !at.before(b.from) && at.before(b.to)
			around = around || !b.from.before(m.begin) && !m.end.before(b.to)
		}
		if inside && !known {
			known, tests = true, nil
		}
		if inside || around && !known {
			tests = append(tests, t)
		}
	}
	return tests
}
