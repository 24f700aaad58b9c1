package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/oklog/ulid/v2"

	"example.com/govnode/bench"
	"example.com/govnode/cmd/govnode/internal/process"
)

// A benchRun is one command under way.
type benchRun struct {
	options  *benchOptions
	result   *bench.Result
	progress io.Writer
	logs     io.Writer
	spawner  *process.Spawner
}

// measure brings one system up, measures it at every load, holds the ledgers to
// its counts, and ends it.
func (b *benchRun) measure(ctx context.Context, s benchSystem, round int) (err error) {
	b.say("round %d of %d: %s: starting", round, b.options.rounds, s.name)
	d, err := s.start(ctx, b.options.plan("bench-"+ulid.Make().String(), s))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	series := b.result.Of(s.name)
	series.Scenario = s.scenario
	done := int64(0) // operations
	for i, load := range b.options.loads() {
		if done, err = b.churn(ctx, s.name, d, done, load.After); err != nil {
			return err
		}
		run, err := d.measured(ctx, load, func(now bench.Second) { b.second(s.name, load, now) })
		if err != nil {
			return err
		}
		run.Before, done = done, done+run.Ops
		series.Add(i, run)
		b.say("round %d of %d: %s: %s", round, b.options.rounds, s.name, run)
		if run.Ops == 0 {
			return fmt.Errorf("nothing was answered in %v: %s", load.Duration, run.FirstError)
		}
	}
	audit, err := d.verify(ctx)
	if err != nil {
		return err
	}
	series.Audit = append(series.Audit, audit)
	return nil
}

// churn has operations done until there were as many as a load asks for, for as
// long at a time as a load is measured.
func (b *benchRun) churn(ctx context.Context, system string, d *benchDriver, done, until int64) (int64, error) {
	for done < until {
		l := bench.Load{Callers: b.options.churners, Duration: b.options.duration}
		run, err := d.drive(ctx, l, nil)
		if err != nil {
			return done, err
		}
		if run.Ops == 0 || run.Errors > 0 {
			return done, fmt.Errorf("on the way to %d operations %d were answered and %d failed in %v: %s", until, run.Ops, run.Errors, l.Duration, run.FirstError)
		}
		done += run.Ops
		b.say("%s  %s of %s operations done  %9.0f ops/s", system, bench.Thousands(done), bench.Thousands(until), run.Throughput)
	}
	return done, nil
}

// second prints the line of progress.
func (b *benchRun) second(system string, load bench.Load, now bench.Second) {
	warming := ""
	if now.Warming {
		warming = "  warming up"
	}
	b.say("%s  %s  %3.0f s  %9.0f ops/s  p50 %v  p99 %v  %d errors%s", system, load, now.At.Seconds(),
		float64(now.Ops)/now.Seconds, short(now.P50), short(now.P99), now.Errors, warming)
}

func short(d time.Duration) time.Duration {
	if d >= 10*time.Millisecond {
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(time.Microsecond)
}

func (b *benchRun) say(format string, args ...any) {
	_, _ = fmt.Fprintf(b.progress, format+"\n", args...)
}
