package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
)

// A Result is everything that one command has measured. It is what --json
// writes and what compare reads.
type Result struct {
	Format   int       `json:"format"`
	Scenario string    `json:"scenario"`
	Started  time.Time `json:"started"`
	Machine  Machine   `json:"machine"`
	Series   []*Series `json:"series"`
	Fit      *Fit      `json:"fit,omitempty"`
}

// resultFormat is the version of the JSON form.
const resultFormat = 1

// A Machine is what the client ran on.
type Machine struct {
	OS   string `json:"os"`
	Arch string `json:"arch"`
	CPUs int    `json:"cpus"`
	Go   string `json:"go"`
}

// A Series is what one system did at each load.
type Series struct {
	System string `json:"system"`
	// Scenario is what this system was worked with; that of the result if empty.
	Scenario string  `json:"scenario,omitempty"`
	Points   []Point `json:"points"`
	// Knee is the index of the point behind which more load brings little more;
	// see Knee. -1 if there is none.
	Knee  int     `json:"knee"`
	Audit []Audit `json:"audit"` // one for each round
}

// A Point is what one system did at one load, in every round.
type Point struct {
	Runs []Run `json:"runs"`
}

// A Run is what was measured at one load in one round.
type Run struct {
	Load
	Counts
	Throughput float64 `json:"throughput"` // operations a second
	// Latency counts from when an operation was due, so that what waits behind
	// a slow one is counted as slow too (no coordinated omission). In a closed
	// loop an operation is due when it is sent.
	Latency Latency `json:"latency"`
	// Uncorrected counts from when an operation was sent. Nil in a closed loop.
	Uncorrected *Latency `json:"uncorrected,omitempty"`
	ClientCPU   float64  `json:"client_cpu"` // cores that the load itself used
	// Processes are the client, the nodes and the peers, as far as they run on
	// this machine and were started here.
	Processes []ProcessUse `json:"processes,omitempty"`
	// Disk is what nodes that were started here had on disk at the end.
	Disk *Disk `json:"disk,omitempty"`
	// Before is how many operations had been done when this run began, those of
	// earlier runs and for Load.After, without those of warm-ups.
	Before     int64  `json:"before,omitempty"`
	FirstError string `json:"first_error,omitempty"`
}

// A Latency is a distribution, in microseconds.
type Latency struct {
	P50   int64   `json:"p50_us"`
	P90   int64   `json:"p90_us"`
	P99   int64   `json:"p99_us"`
	P999  int64   `json:"p999_us"`
	Max   int64   `json:"max_us"`
	Mean  float64 `json:"mean_us"`
	Curve []int64 `json:"curve_us"` // at the quantiles 0, 10, 25, ... 100
}

// NewResult makes an empty result of this machine.
func NewResult(scenario string, started time.Time) *Result {
	return &Result{
		Format: resultFormat, Scenario: scenario, Started: started,
		Machine: Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version()},
	}
}

// Of returns the series of a system, and makes it if there is none.
func (r *Result) Of(system string) *Series {
	for _, s := range r.Series {
		if s.System == system {
			return s
		}
	}
	s := &Series{System: system, Knee: -1}
	r.Series = append(r.Series, s)
	return s
}

// Add adds the run of point number i.
func (s *Series) Add(i int, run Run) {
	for len(s.Points) <= i {
		s.Points = append(s.Points, Point{})
	}
	s.Points[i].Runs = append(s.Points[i].Runs, run)
}

// Finish computes what follows from the points.
func (r *Result) Finish() {
	for _, s := range r.Series {
		s.Knee = Knee(s.medians())
	}
}

func (s *Series) medians() []Run {
	runs := make([]Run, len(s.Points))
	for i, p := range s.Points {
		runs[i] = p.Median()
	}
	return runs
}

// Median returns the run with the median throughput, the lower one of two.
func (p Point) Median() Run {
	if len(p.Runs) == 0 {
		return Run{}
	}
	runs := slices.Clone(p.Runs)
	slices.SortStableFunc(runs, func(a, b Run) int {
		switch {
		case a.Throughput < b.Throughput:
			return -1
		case a.Throughput > b.Throughput:
			return 1
		}
		return 0
	})
	return runs[(len(runs)-1)/2]
}

// Spread returns the least and the most throughput of the rounds.
func (p Point) Spread() (least, most float64) {
	for i, r := range p.Runs {
		if i == 0 || r.Throughput < least {
			least = r.Throughput
		}
		most = max(most, r.Throughput)
	}
	return least, most
}

// WriteJSON writes a result to a file.
func (r *Result) WriteJSON(path string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// ReadResult reads what WriteJSON has written.
func ReadResult(path string) (*Result, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &Result{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: is not a result of govnode bench: %w", path, err)
	}
	if r.Format != resultFormat {
		return nil, fmt.Errorf("%s: format: %d: this program reads %d: measure again with --json", path, r.Format, resultFormat)
	}
	return r, nil
}
