package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"example.com/govnode/test/report"
)

// fuzzing finds the packages that have targets, by what go list knows of them and
// by what is in their files; a binary says itself which targets it has.
func fuzzing(ctx context.Context) (all map[string]fuzzed, err error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-tags", tags, "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles", "./...").Output()
	if err != nil {
		return nil, err
	}
	all = map[string]fuzzed{} // by the names of their binaries
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		for _, name := range append(p.TestGoFiles, p.XTestGoFiles...) {
			b, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				return nil, err
			}
			if bytes.Contains(b, []byte("\nfunc Fuzz")) {
				path := strings.TrimPrefix(p.ImportPath, "example.com/govnode/")
				all[strings.ReplaceAll(path, "/", "-")+".fuzz"] = fuzzed{p.ImportPath, p.Dir}
			}
		}
	}
	return all, nil
}

func buildFuzz(ctx context.Context, bin string) error {
	all, err := fuzzing(ctx)
	if err != nil {
		return err
	}
	for name, p := range all {
		if err := once(ctx, filepath.Join(bin, name), "test", "-c", "-fuzz=.", p.path); err != nil {
			return err
		}
	}
	return nil
}

// A fuzzed package has targets.
type fuzzed struct{ path, folder string }

// A target is one fuzz test.
type target struct{ name, binary, folder string }

// runFuzz lets all targets share a time.
func runFuzz(ctx context.Context, bin, dir string, share time.Duration) *report.Layer {
	l := &report.Layer{Name: "fuzz", Figures: map[string]float64{}}
	start := time.Now()
	broken := func(format string, args ...any) { l.Violations = append(l.Violations, fmt.Sprintf(format, args...)) }
	packages, err := fuzzing(ctx)
	if err != nil {
		broken("fuzz: %v", err)
		return l
	}
	var all []target
	for name, p := range packages {
		binary := filepath.Join(bin, name)
		c := exec.CommandContext(ctx, binary, "-test.list=^Fuzz")
		c.Dir = p.folder
		out, err := c.Output()
		if err != nil {
			broken("fuzz: %s -test.list: %v", name, err)
			continue
		}
		for line := range strings.Lines(string(out)) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "Fuzz") {
				all = append(all, target{line, binary, p.folder})
			}
		}
	}
	output := filepath.Join(dir, "fuzz.out")
	for _, t := range all {
		each := share / time.Duration(len(all))
		one := filepath.Join(dir, "fuzz-"+t.name+".out")
		err := command(ctx, t.folder, one, nil, t.binary, "-test.run=^$", "-test.fuzz=^"+t.name+"$", "-test.fuzztime="+each.String(),
			"-test.fuzzcachedir="+filepath.Join(dir, "corpus", t.name), "-test.timeout="+(each+2*time.Minute).String())
		b, _ := os.ReadFile(one)
		l.Operations += executions(string(b))
		if err != nil && !bytes.Contains(b, []byte("Failing input")) && bytes.Contains(b, []byte("context deadline exceeded")) {
			err = nil // the fuzzer's own end came while it was at work, which it takes for a failure
		}
		if err != nil {
			broken("fuzz %s: %v%s", t.name, err, tail(one))
			l.Replay = fmt.Sprintf("cd %s && go test -tags %s -run '^%s$'", t.folder, tags, t.name)
		}
	}
	l.Figures["targets"], l.Took = float64(len(all)), time.Since(start)
	_ = os.WriteFile(output, fmt.Appendf(nil, "%d targets, %d executions\n", len(all), l.Operations), 0o644)
	return l
}

// executions returns how many inputs were tried, as the fuzzer says.
func executions(output string) (n int) {
	for line := range strings.Lines(output) {
		_, text, ok := strings.Cut(line, "execs: ")
		if !ok {
			continue
		}
		text, _, _ = strings.Cut(text, " ")
		if count, err := strconv.Atoi(text); err == nil {
			n = max(n, count)
		}
	}
	return n
}
