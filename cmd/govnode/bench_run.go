package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"example.com/govnode/bench"
)

// A benchRun is one command under way.
type benchRun struct {
	options  *benchOptions
	result   *bench.Result
	progress io.Writer
	logs     io.Writer
	spawner  *spawner
}

// A benchSystem is something to measure. Start brings up what it needs; the
// driver's stop ends that again.
type benchSystem struct {
	name  string
	start func(ctx context.Context, plan bench.Plan) (*benchDriver, error)
}

// A benchDriver drives callers, in this process or in another.
type benchDriver struct {
	drive  func(context.Context, bench.Load, func(bench.Second)) (bench.Run, error)
	verify func(context.Context) (bench.Audit, error)
	stop   func() error
}

// driverOf drives a target in this process. The systems under it are ended by
// stop, after the target.
func driverOf(t bench.Target, stop func() error) *benchDriver {
	return &benchDriver{
		drive: func(ctx context.Context, l bench.Load, p func(bench.Second)) (bench.Run, error) {
			return bench.Drive(ctx, t, l, p)
		},
		verify: t.Verify,
		stop:   func() error { return errors.Join(t.Close(), stop()) },
	}
}

// systems are what one round goes through, peers first.
func (b *benchRun) systems() ([]benchSystem, error) {
	var all []benchSystem
	for _, peer := range b.options.against {
		s, err := b.peer(peer)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	for _, transport := range b.options.transport {
		if b.options.addr != "" {
			all = append(all, benchSystem{"govnode at " + b.options.addr + transportName(transport), func(ctx context.Context, plan bench.Plan) (*benchDriver, error) {
				return b.onCluster(ctx, splitList(b.options.addr), transport, plan, func() error { return nil })
			}})
			continue
		}
		for _, nodes := range b.options.nodes {
			name := fmt.Sprintf("govnode, %d nodes", nodes)
			if nodes == 1 {
				name = "govnode, 1 node"
			}
			all = append(all, benchSystem{name + transportName(transport), func(ctx context.Context, plan bench.Plan) (*benchDriver, error) {
				cluster, err := startBenchCluster(ctx, nodes, b.logs)
				if err != nil {
					return nil, fmt.Errorf("the cluster did not start: %w", err)
				}
				return b.onCluster(ctx, cluster.addresses(), transport, plan, cluster.stop)
			}})
		}
	}
	return all, nil
}

func transportName(transport string) string {
	if transport == "exchange" {
		return ""
	}
	return ", " + transport
}

func (b *benchRun) onCluster(ctx context.Context, addresses []string, transport string, plan bench.Plan, stop func() error) (*benchDriver, error) {
	cfg := bench.GovnodeConfig{Addresses: addresses, Namespace: b.options.namespace, Unary: transport == "unary", Clients: b.options.clients}
	t, err := bench.NewGovnode(ctx, cfg, plan)
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return driverOf(t, stop), nil
}

// startBenchCluster runs dev with so many nodes on free ports, in a folder that
// goes away with them.
func startBenchCluster(ctx context.Context, nodes int, logs io.Writer) (*demoCluster, error) {
	config := bind(&cobra.Command{}, onDev)
	config.Listen, config.LogLevel, config.Nodes = "127.0.0.1:0", "warn", nodes
	if err := config.check(onDev); err != nil {
		return nil, err
	}
	c := &demoCluster{http: &http.Client{Timeout: time.Second}, ended: make(chan error, 1), ready: make(chan struct{})}
	ctx, c.end = context.WithCancel(context.WithoutCancel(ctx)) // it is stopped after what works on it
	go func() { c.ended <- dev(ctx, config, c, logs) }()
	select {
	case <-c.ready:
		return c, nil
	case err := <-c.ended:
		c.end()
		if err == nil {
			err = errors.New("interrupted")
		}
		return nil, err
	}
}

// measure brings one system up, measures it at every load, holds the ledgers to
// its counts, and ends it.
func (b *benchRun) measure(ctx context.Context, s benchSystem, round int) (err error) {
	b.say("round %d of %d: %s: starting", round, b.options.rounds, s.name)
	d, err := s.start(ctx, b.options.plan("bench-"+ulid.Make().String()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	series := b.result.Of(s.name)
	for i, load := range b.options.loads() {
		run, err := d.drive(ctx, load, func(now bench.Second) { b.second(s.name, load, now) })
		if err != nil {
			return err
		}
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
