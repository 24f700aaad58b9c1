package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// How a load is put on a system: what a Target has to do, how much is asked of
// it and when, and Drive, which asks.

// ErrRefused is what a step returns when the system answered, and the answer was
// no. It is an operation like any other, and counted apart.
var ErrRefused = errors.New("refused")

// A Target is a system under load, with the callers that work on it.
type Target interface {
	// Step does the next operation of a caller: BeginCall, then EndCall, and so
	// on; in the reading scenario a read. Each caller is used by one goroutine
	// at a time.
	Step(ctx context.Context, caller int) error
	// Verify ends what is open and returns an error if what the system has
	// counted is not what its callers were answered.
	Verify(ctx context.Context) (Audit, error)
	// Close gives up connections.
	Close() error
}

// A Thinker is a Target whose callers do something between operations that is
// no part of them, and is not measured.
type Thinker interface {
	Think(ctx context.Context, caller int)
}

// A Settler is a Target whose callers may hold what others wait for. Settle is
// called when a caller is done, lest the others wait for it to the end of their
// patience.
type Settler interface {
	Settle(ctx context.Context, caller int)
}

// A Load says how hard a target is worked.
type Load struct {
	// Callers is how many work at once. Each has one operation under way.
	Callers int `json:"callers"`
	// Rate is how many operations a second are due, over all callers together.
	// At 0 the loop is closed: each caller begins its next operation when the
	// last one is answered.
	Rate float64 `json:"rate,omitempty"`
	// After is how many operations are done before this load, in all. Drive
	// leaves that to its caller.
	After int64 `json:"after,omitempty"`
	// Warmup is how long the callers work before anything is measured.
	Warmup time.Duration `json:"warmup"`
	// Duration is how long they are measured.
	Duration time.Duration `json:"duration"`
}

func (l Load) check() error {
	switch {
	case l.Callers < 1:
		return fmt.Errorf("callers: %d: must be at least 1", l.Callers)
	case l.Rate < 0:
		return fmt.Errorf("rate: %v: must not be negative", l.Rate)
	case l.Duration <= 0:
		return fmt.Errorf("duration: %v: must be longer than 0", l.Duration)
	case l.Warmup < 0:
		return fmt.Errorf("warmup: %v: must not be negative", l.Warmup)
	}
	return nil
}

// A Second is what one second of a run looked like, for the line of progress.
type Second struct {
	At       time.Duration `json:"at"` // since the run began, its warm-up included
	Warming  bool          `json:"warming,omitempty"`
	Seconds  float64       `json:"seconds"`
	Ops      int64         `json:"ops"`
	Errors   int64         `json:"errors"`
	P50, P99 time.Duration
}

// Drive puts a load on a target and returns what was measured. Progress, if not
// nil, is called once a second. An error means that nothing was measured; errors
// of operations are counted in the Run.
func Drive(ctx context.Context, t Target, l Load, progress func(Second)) (Run, error) {
	if err := l.check(); err != nil {
		return Run{}, err
	}
	d := &drive{target: t, load: l, record: newRecorder(l)}
	d.start = time.Now()
	d.from = d.start.Add(l.Warmup)
	d.to = d.from.Add(l.Duration)
	done := make(chan struct{})
	var report sync.WaitGroup
	report.Go(func() { d.watch(done, progress) })
	cpu := newCPUMeter(d.from, d.to)
	var callers sync.WaitGroup
	for i := range l.Callers {
		callers.Go(func() { d.call(ctx, i) })
	}
	callers.Wait()
	close(done)
	report.Wait()
	if err := ctx.Err(); err != nil {
		return Run{}, context.Cause(ctx)
	}
	run := d.record.run(l)
	run.ClientCPU = cpu.cores()
	return run, nil
}

// A drive is one run under way.
type drive struct {
	target          Target
	load            Load
	record          *recorder
	start, from, to time.Time
}

// call is the loop of one caller.
func (d *drive) call(ctx context.Context, caller int) {
	pace := d.pace(caller)
	thinker, thinks := d.target.(Thinker)
	if s, settles := d.target.(Settler); settles {
		defer s.Settle(ctx, caller)
	}
	for n := 0; ctx.Err() == nil; n++ {
		if thinks {
			thinker.Think(ctx, caller)
		}
		due := time.Now()
		if d.load.Rate > 0 {
			due = pace.due(n)
			if !due.Before(d.to) || !sleepUntil(ctx, earlier(due, d.to)) {
				return
			}
		}
		sent := time.Now()
		if !sent.Before(d.to) {
			d.missed(pace, n)
			return
		}
		err := d.target.Step(ctx, caller)
		if ctx.Err() != nil {
			return
		}
		d.record.note(caller, due, sent, time.Now(), d.from, d.to, err)
	}
}

// missed records what a caller should have begun before the end and did not
// come to: each waited at least until the end.
func (d *drive) missed(p pacing, n int) {
	if d.load.Rate == 0 {
		return
	}
	for ; ; n++ {
		due := p.due(n)
		if !due.Before(d.to) {
			return
		}
		d.record.miss(due, d.from, d.to)
	}
}

// A pacing is the schedule of one caller. All schedules together are evenly
// spread.
type pacing struct {
	first time.Time
	every time.Duration
}

func (d *drive) pace(caller int) pacing {
	if d.load.Rate == 0 {
		return pacing{}
	}
	gap := float64(time.Second) / d.load.Rate
	return pacing{d.start.Add(time.Duration(gap * float64(caller))), time.Duration(gap * float64(d.load.Callers))}
}

// due is when operation n is to begin, whether the ones before it are answered
// or not.
func (p pacing) due(n int) time.Time { return p.first.Add(time.Duration(n) * p.every) }

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func sleepUntil(ctx context.Context, at time.Time) bool {
	left := time.Until(at)
	if left <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// watch reports once a second until the callers are done.
func (d *drive) watch(done <-chan struct{}, progress func(Second)) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := d.start
	for {
		select {
		case <-done:
			return
		case now := <-tick.C:
			s := d.record.second()
			s.At, s.Seconds, s.Warming = now.Sub(d.start), now.Sub(last).Seconds(), now.Before(d.from)
			last = now
			if progress != nil {
				progress(s)
			}
		}
	}
}
