package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

func (l Load) String() string {
	if l.Rate > 0 {
		return fmt.Sprintf("%.0f ops/s due, %d callers", l.Rate, l.Callers)
	}
	if l.Callers == 1 {
		return "1 caller"
	}
	return fmt.Sprintf("%d callers", l.Callers)
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
