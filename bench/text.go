package bench

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
)

// The results as text, for a terminal.

func (l Load) String() string {
	text := fmt.Sprintf("%s callers", Thousands(int64(l.Callers)))
	if l.Callers == 1 {
		text = "1 caller"
	}
	if l.Rate > 0 {
		text = fmt.Sprintf("%s ops/s due, %s", number(l.Rate), text)
	}
	if l.After > 0 {
		text += fmt.Sprintf(" after %s ops", Thousands(l.After))
	}
	return text
}

// Thousands prints a number with commas.
func Thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func (r Run) String() string {
	text := fmt.Sprintf("%s: %.0f ops/s, p50 %s, p99 %s", r.Load, r.Throughput, ms(r.Latency.P50), ms(r.Latency.P99))
	if r.Refused > 0 {
		text += fmt.Sprintf(", %d refused", r.Refused)
	}
	if r.Missed > 0 {
		text += fmt.Sprintf(", %d never begun", r.Missed)
	}
	if r.Errors > 0 {
		text += fmt.Sprintf(", %d errors, the first: %s", r.Errors, r.FirstError)
	}
	return text
}

// ms prints microseconds as milliseconds.
func ms(us int64) string {
	switch {
	case us >= 100_000:
		return fmt.Sprintf("%.0f ms", float64(us)/1000)
	case us >= 10_000:
		return fmt.Sprintf("%.1f ms", float64(us)/1000)
	}
	return fmt.Sprintf("%.2f ms", float64(us)/1000)
}

// Sustained returns the run to reckon with: the one at the knee, or the one with
// the most throughput where there are too few points for one.
func (s *Series) Sustained() Run {
	runs := s.medians()
	if s.Knee >= 0 && s.Knee < len(runs) {
		return runs[s.Knee]
	}
	var best Run
	for _, r := range runs {
		if r.Throughput > best.Throughput {
			best = r
		}
	}
	return best
}

// WriteText prints a result as tables.
func (r *Result) WriteText(w io.Writer) error {
	out := &printer{w: w}
	out.say("scenario %s, %s %s/%s, %d CPUs shared by clients and nodes", r.Scenario, r.Machine.Go, r.Machine.OS, r.Machine.Arch, r.Machine.CPUs)
	out.say("")
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row(t, "system", "load", "ops/s", "least", "most", "p50", "p90", "p99", "p99.9", "max", "refused", "errors", "")
	for _, s := range r.Series {
		for i, p := range s.Points {
			m := p.Median()
			least, most := p.Spread()
			mark := ""
			if i == s.Knee {
				mark = "knee"
			}
			row(t, s.System, m.Load, fmt.Sprintf("%.0f", m.Throughput), fmt.Sprintf("%.0f", least), fmt.Sprintf("%.0f", most),
				ms(m.Latency.P50), ms(m.Latency.P90), ms(m.Latency.P99), ms(m.Latency.P999), ms(m.Latency.Max), m.Refused, m.Errors, mark)
		}
	}
	_ = t.Flush() // out keeps its error
	r.writeCPU(out)
	if ratios := r.Against(); len(ratios) > 0 {
		out.say("")
		_ = WriteRatios(out, ratios)
	}
	out.say("")
	for _, s := range r.Series {
		var sum Audit
		for _, a := range s.Audit {
			sum.Sessions += a.Sessions
			sum.Attempts += a.Attempts
			sum.Unknown += a.Unknown
			sum.Lapsed += a.Lapsed
		}
		if why := s.NoKnee(); why != "" {
			out.say("%s: %s", s.System, why)
		}
		s.writeDisk(out)
		out.say("%s: the counts of %d sessions equal the ledgers: %d attempts, %d without an answer, %d lapsed", s.System, sum.Sessions, sum.Attempts, sum.Unknown, sum.Lapsed)
	}
	if f := r.Fit; f != nil {
		out.say("")
		out.say("%d agents fit that make %.4g calls a minute and hold each for %v: at %.0f ops/s and %.4g operations a call; %d calls are open at a time",
			f.Agents, f.CallsPerMinute, f.Hold, f.Throughput, f.OpsPerCall, f.OpenCalls)
		if f.PerAgent > 1 {
			out.say("each of them has %.3g calls open at a time: one that makes a call after another cannot do so many", f.PerAgent)
		}
	}
	return out.err
}

// HasProcesses reports whether it is known of any run what its processes used.
func (r *Result) HasProcesses() bool {
	return slices.ContainsFunc(r.Series, func(s *Series) bool {
		return slices.ContainsFunc(s.medians(), func(m Run) bool { return len(m.Processes) > 0 })
	})
}

// writeCPU prints where the cores go: a line for each system and load, with a
// cell for each of its processes.
func (r *Result) writeCPU(out *printer) {
	if !r.HasProcesses() {
		return
	}
	out.say("")
	out.say("µs of CPU for each operation, user + system; memory resident at the end")
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row(t, "system", "load", "cores busy", "all", "processes")
	for _, s := range r.Series {
		for _, m := range s.medians() {
			if len(m.Processes) == 0 {
				continue
			}
			cells := []any{s.System, m.Load, fmt.Sprintf("%.2f", m.CoresBusy()), fmt.Sprintf("%.1f", m.CPUPerOp())}
			for _, use := range m.Uses() {
				cells = append(cells, use)
			}
			row(t, cells...)
		}
	}
	_ = t.Flush() // out keeps its error
}

// writeDisk prints what the nodes of a system had on disk, and what snapshots
// they took.
func (s *Series) writeDisk(out *printer) {
	for _, m := range s.medians() {
		d := m.Disk
		if d == nil {
			continue
		}
		snapshots := ""
		if d.SnapshotsTaken > 0 {
			snapshots = fmt.Sprintf("; %d finished, and %.0f %% of the time one was being written", d.SnapshotsTaken, 100*d.SnapshotShare)
		}
		out.say("%s, %s: all nodes have on disk: log %s, audit %s, snapshots %s%s", s.System, m.Load, megabytes(d.Log), megabytes(d.Audit), megabytes(d.Snapshots), snapshots)
	}
}

// Uses says of each process what it used for an operation.
func (r Run) Uses() (all []string) {
	for _, p := range r.Processes {
		text := fmt.Sprintf("%s %.1f + %.1f, %d MB", p.Name, r.perOp(p.User), r.perOp(p.System), p.Memory>>20)
		if p.Ended {
			text = p.Name + ": ended"
		}
		all = append(all, text)
	}
	return all
}

// WriteRatios prints a comparison.
func WriteRatios(w io.Writer, ratios []Ratio) error {
	out := &printer{w: w}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row(t, "system", "against", "load", "throughput", "p50", "p99", "")
	for _, r := range ratios {
		note := ""
		if !r.Apart {
			note = "rounds overlap"
		}
		row(t, r.System, r.Against, r.Load, times(r.Throughput), times(r.P50), times(r.P99), note)
	}
	_ = t.Flush() // out keeps its error
	return out.err
}

func times(ratio float64) string { return fmt.Sprintf("%.2fx", ratio) }

func row(w io.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			_, _ = io.WriteString(w, "\t")
		}
		_, _ = fmt.Fprint(w, c)
	}
	_, _ = io.WriteString(w, "\t\n")
}

// A printer remembers the first error, so that many lines can be printed.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) Write(b []byte) (int, error) {
	if p.err != nil {
		return 0, p.err
	}
	n, err := p.w.Write(b)
	p.err = err
	return n, err
}

func (p *printer) say(format string, args ...any) { _, _ = fmt.Fprintf(p, format+"\n", args...) }

// when prints the beginning of a result.
func when(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
