package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// tags are those of the tests: the tests of vectors, and of test/outside.
const tags = "hashicorpmetrics,outside,attack"

func main() {
	only := flag.String("only", "", "attacks to try, as 20-50,86; all if empty")
	out := flag.String("out", "bin/attack", "folder of the report")
	flag.Parse()
	if err := run(*only, *out); err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

func run(only, out string) error {
	all, err := Rows()
	if err != nil {
		return err
	}
	chosen, err := choose(all, only)
	if err != nil {
		return err
	}
	began := time.Now()
	outcomes := map[Test]string{}
	tests := map[string][]Test{} // by package
	for _, r := range chosen {
		parsed, err := r.Parsed()
		if err != nil {
			return err
		}
		for _, t := range parsed {
			if !slices.Contains(tests[t.Package], t) {
				tests[t.Package] = append(tests[t.Package], t)
			}
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		if err := try(pkg, tests[pkg], outcomes); err != nil {
			return err
		}
	}
	table, failed := tell(chosen, outcomes, os.Getuid() == 0)
	table += fmt.Sprintf("\n%d attacks, %d had their way or were not tried, %.0f s\n", len(chosen), failed, time.Since(began).Seconds())
	fmt.Print("\n", table)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "report.md"), []byte(table), 0o644); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d attacks had their way or were not tried", failed, len(chosen))
	}
	return nil
}

// choose takes the rows that a list as 20-50,86 names.
func choose(all []Row, only string) ([]Row, error) {
	if only == "" {
		return all, nil
	}
	var chosen []Row
	for part := range strings.SplitSeq(only, ",") {
		var first, last int
		if n, _ := fmt.Sscanf(part, "%d-%d", &first, &last); n == 1 {
			last = first
		} else if n == 0 {
			return nil, fmt.Errorf("-only: %q is no attack: write 20-50,86", part)
		}
		for _, r := range all {
			if r.N >= first && r.N <= last {
				chosen = append(chosen, r)
			}
		}
	}
	return chosen, nil
}

// try runs the tests of one package and notes how each ended: pass, fail or skip.
func try(pkg string, tests []Test, outcomes map[Test]string) error {
	var names []string
	for _, t := range tests {
		names = append(names, regexp.QuoteMeta(t.Top()))
	}
	slices.Sort(names)
	fmt.Fprintln(os.Stderr, pkg)
	cmd := exec.Command("go", "test", "-json", "-count=1", "-timeout", "15m", "-tags", tags, "-run", "^("+strings.Join(slices.Compact(names), "|")+")$", pkg)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	said := map[string]*strings.Builder{}
	lines := bufio.NewReader(pipe)
	for {
		line, err := lines.ReadBytes('\n')
		note(line, pkg, outcomes, said)
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
	}
	if err := cmd.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		return err
	}
	return nil
}

// note reads a line of go test -json, and prints what failed.
func note(line []byte, pkg string, outcomes map[Test]string, said map[string]*strings.Builder) {
	var e struct{ Action, Test, Output string }
	if json.Unmarshal(line, &e) != nil {
		return
	}
	switch e.Action {
	case "output", "build-output":
		if said[e.Test] == nil {
			said[e.Test] = new(strings.Builder)
		}
		said[e.Test].WriteString(e.Output)
	case "pass", "fail", "skip":
		outcomes[Test{pkg, e.Test}] = e.Action
		if e.Action == "fail" && said[e.Test] != nil {
			fmt.Fprint(os.Stderr, said[e.Test])
		}
		delete(said, e.Test)
	}
}

// tell makes the table, and counts the attacks that had their way or were not tried.
func tell(rows []Row, outcomes map[Test]string, root bool) (table string, failed int) {
	var b strings.Builder
	b.WriteString("| | attack | required | outcome | tried by |\n|---|---|---|---|---|\n")
	for _, r := range rows {
		tests, _ := r.Parsed()
		word := "as required"
		if len(tests) == 0 {
			word = "**no test**"
		}
		for _, t := range tests {
			switch o := outcomes[t]; {
			case o == "pass":
			case o == "skip" && !root && word == "as required":
				word = "skipped: needs root"
			case o == "skip" && !root:
			case o == "":
				word = "**not run**"
			case o == "skip":
				word = "**skipped**"
			default:
				word = "**had its way**"
			}
		}
		if strings.HasPrefix(word, "**") {
			failed++
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %s | `%s` |\n", r.N, r.Attack, r.Outcome, word, strings.Join(r.Tests, "`, `"))
	}
	return b.String(), failed
}
