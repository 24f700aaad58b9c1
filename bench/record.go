package bench

import (
	"errors"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A recorder takes what the callers measure.
type recorder struct {
	shards [shards]shard
}

// Latencies are recorded in microseconds, up to ten minutes, with three
// significant digits.
const (
	longest = int64(10 * time.Minute / time.Microsecond)
	digits  = 3
	// shards keep callers from waiting for each other when they record.
	shards = 8
)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, longest, digits) }

type shard struct {
	mu sync.Mutex
	// corrected counts from when an operation was due, service from when it
	// was sent. In a closed loop the two are one.
	corrected, service *hdrhistogram.Histogram
	interval           *hdrhistogram.Histogram // since the last line of progress
	counts             Counts
	since              Counts // since the last line of progress
	first              string // error
}

// Counts are operations by what became of them.
type Counts struct {
	Ops     int64 `json:"ops"` // answered, refusals included
	Refused int64 `json:"refused,omitempty"`
	Errors  int64 `json:"errors,omitempty"`
	// Missed were due before the end and not begun by then.
	Missed int64 `json:"missed,omitempty"`
}

func (c *Counts) add(o Counts) {
	c.Ops += o.Ops
	c.Refused += o.Refused
	c.Errors += o.Errors
	c.Missed += o.Missed
}

func newRecorder(l Load) *recorder {
	r := &recorder{}
	for i := range r.shards {
		s := &r.shards[i]
		s.corrected, s.interval = newHistogram(), newHistogram()
		s.service = s.corrected
		if l.Rate > 0 {
			s.service = newHistogram()
		}
	}
	return r
}

// note records one operation. It counts towards the throughput if it was
// answered within the measured time, and its latency if it was due within it.
func (r *recorder) note(caller int, due, sent, done, from, to time.Time, err error) {
	s := &r.shards[caller%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	var c Counts
	refused := errors.Is(err, ErrRefused)
	switch {
	case err == nil:
		c.Ops = 1
	case refused:
		c.Ops, c.Refused = 1, 1
	default:
		c.Errors = 1
	}
	s.since.add(c)
	if err == nil || refused {
		observe(s.interval, done.Sub(due))
		if !due.Before(from) && due.Before(to) {
			observe(s.corrected, done.Sub(due))
			if s.service != s.corrected {
				observe(s.service, done.Sub(sent))
			}
		}
	} else if s.first == "" {
		s.first = err.Error()
	}
	if !done.Before(from) && done.Before(to) {
		s.counts.add(c)
	} else if c.Errors > 0 {
		s.counts.Errors++ // an error is never left out because of when it came
	}
}

// miss records an operation that was not begun: it was late by at least what
// was left of the run.
func (r *recorder) miss(due, from, to time.Time) {
	if due.Before(from) {
		return
	}
	s := &r.shards[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Missed++
	observe(s.corrected, to.Sub(due))
}

func observe(h *hdrhistogram.Histogram, d time.Duration) {
	us := min(max(d.Microseconds(), 1), longest)
	_ = h.RecordValue(us) // it lies within the bounds of the histogram
}

// second takes what has come since it was last called.
func (r *recorder) second() Second {
	all := newHistogram()
	var c Counts
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		all.Merge(s.interval)
		s.interval.Reset()
		c.add(s.since)
		s.since = Counts{}
		s.mu.Unlock()
	}
	return Second{Ops: c.Ops, Errors: c.Errors, P50: micros(all.ValueAtQuantile(50)), P99: micros(all.ValueAtQuantile(99))}
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// run sums up, once all callers are done.
func (r *recorder) run(l Load) Run {
	corrected, service := newHistogram(), newHistogram()
	run := Run{Load: l}
	for i := range r.shards {
		s := &r.shards[i]
		corrected.Merge(s.corrected)
		service.Merge(s.service)
		run.Counts.add(s.counts)
		if run.FirstError == "" {
			run.FirstError = s.first
		}
	}
	run.Throughput = float64(run.Ops) / l.Duration.Seconds()
	run.Latency = summarize(corrected)
	if l.Rate > 0 {
		uncorrected := summarize(service)
		run.Uncorrected = &uncorrected
	}
	return run
}

func summarize(h *hdrhistogram.Histogram) Latency {
	l := Latency{
		P50: h.ValueAtQuantile(50), P90: h.ValueAtQuantile(90), P99: h.ValueAtQuantile(99),
		P999: h.ValueAtQuantile(99.9), Max: h.Max(), Mean: h.Mean(),
	}
	for _, q := range curve {
		l.Curve = append(l.Curve, h.ValueAtQuantile(q))
	}
	return l
}

// curve are the quantiles of Latency.Curve, in percent.
var curve = []float64{0, 10, 25, 50, 75, 90, 95, 97.5, 99, 99.5, 99.75, 99.9, 99.95, 99.99, 100}
