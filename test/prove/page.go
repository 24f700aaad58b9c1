package main

import (
	"encoding/json"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	_ "embed"

	"example.com/govnode/test/report"
)

// A Report is what all layers said.
type Report struct {
	Mode    string
	Root    bool
	Started time.Time
	Built   time.Duration
	Took    time.Duration // without the building
	Results []Result
}

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"round":   func(d time.Duration) time.Duration { return d.Round(roundTo(d)) },
	"percent": func(l report.Layer) string { return fmt.Sprintf("%.2f %%", unknown(l)) },
	"total":   func(l report.Layer) int { return int(faults(l)) },
	"seeds":   seeds,
	"machine": func() string {
		return fmt.Sprintf("%d cores, %s, %s", runtime.NumCPU(), runtime.GOARCH, runtime.Version())
	},
}).Parse(pageText))

func roundTo(d time.Duration) time.Duration {
	if d < time.Second {
		return time.Millisecond / 10
	}
	return time.Second
}

// seeds says with which seeds a layer ran, in short where they follow each other.
func seeds(all []uint64) string {
	all = slices.Clone(all)
	slices.Sort(all)
	var parts []string
	for i := 0; i < len(all); {
		j := i
		for j+1 < len(all) && all[j+1] <= all[j]+1 {
			j++
		}
		if j > i {
			parts = append(parts, fmt.Sprintf("%d to %d", all[i], all[j]))
		} else {
			parts = append(parts, fmt.Sprint(all[i]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

// Problems is how many there are.
func (r Report) Problems() (n int) {
	for _, x := range r.Results {
		n += len(x.Problems)
	}
	return n
}

func (r Report) write(dir string) error {
	b, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "report.json"), append(b, '\n'), 0o644); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "report.html"))
	if err != nil {
		return err
	}
	defer f.Close()
	return page.Execute(f, r)
}

// summary is what a terminal shows of a result.
func (x Result) summary() string {
	s := fmt.Sprintf("%-7s %v: %d operations, %.2f %% of unknown outcome, %.0f faults of %.0f kinds, %d problems",
		x.Name, x.Took.Round(time.Second), x.Operations, unknown(x.Layer), faults(x.Layer), kinds(x.Layer), len(x.Problems))
	if x.Skipped != "" {
		s += "\n  skipped: " + x.Skipped
	}
	for _, short := range x.Short {
		s += "\n  below its figure: " + short
	}
	for i, p := range x.Problems {
		if i == 5 {
			s += fmt.Sprintf("\n  and %d more", len(x.Problems)-i)
			break
		}
		s += "\n  PROBLEM " + strings.ReplaceAll(p, "\n", "\n    ")
	}
	if len(x.Problems) > 0 && x.Replay != "" {
		s += "\n  again: " + x.Replay
	}
	return s
}
