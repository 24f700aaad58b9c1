package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.com/govnode/bench"
)

// benchOptions is what the command line says.
type benchOptions struct {
	addr      string
	namespace string
	nodes     []int
	transport []string
	clients   int

	scenario string
	callers  int
	rate     float64
	sweep    []int
	duration time.Duration
	warmup   time.Duration
	rounds   int
	sessions int
	slots    int
	hold     time.Duration

	against     []string
	redisServer string
	etcdProgram string
	etcdNodes   int

	perAgent   float64
	json, html string
	verbose    bool
}

func benchCommand() *cobra.Command {
	o := &benchOptions{}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what a cluster holds",
		Long: `Puts a load on a cluster: one that runs (--addr), or one that it starts on this
machine for the time being (--nodes). One operation is a BeginCall or an EndCall, on the
caller's own session, through two pools, with a policy of 10 rules; in the scenario
reads it is a GetSession.

With --callers the loop is closed: each caller has one operation under way, always. With
--rate it is open: operations are due by a schedule whether the ones before were
answered or not, and latency counts from when they were due, so that what waits behind
a slow operation is counted as slow (no coordinated omission).

  apart         sessions and pools of their own
  hot-pool      all callers through the same two pools
  fleet         few slots and many who wait; 1 % of the holders crash
  reads         linearizable reads of sessions
  policy-heavy  as apart, with 1,000 rules

At the end what the service has counted must be what its callers were answered; if it
is not, the exit code is 1.`,
		Example: `  govnode bench --nodes 3 --callers 256
  govnode bench --addr 127.0.0.1:7070 --rate 2000 --duration 30s
  govnode bench --nodes 3 --sweep 1,16,64,256,1024 --html bench.html
  govnode bench --nodes 3,1 --sweep 256,1024 --against etcd,redis --rounds 3 --json now.json
  govnode bench compare before.json now.json`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd.Flags().Changed); err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return exitWith(runBench(ctx, o, cmd.OutOrStdout(), cmd.ErrOrStderr()))
		},
	}
	o.register(cmd)
	cmd.AddCommand(benchCompareCommand())
	return cmd
}

func (o *benchOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.addr, "addr", "", "`addresses` of nodes of a running cluster, separated by commas")
	f.StringVar(&o.namespace, "namespace", "", "`name` of the namespace to work in; the default one if empty")
	f.IntSliceVar(&o.nodes, "nodes", []int{1}, "start clusters of so many nodes, 1, 3 or 5, one after another")
	f.StringSliceVar(&o.transport, "transport", []string{"exchange"}, "how requests go: exchange (a shared stream) or unary (each by itself), or both")
	f.IntVar(&o.clients, "clients", 1, "over how many clients the callers are spread: 1..64; each stands for a process")

	f.StringVar(&o.scenario, "scenario", bench.Apart, "what callers do: "+strings.Join(bench.Scenarios, "|"))
	f.IntVar(&o.callers, "callers", 256, "how many work at once: 1..16384")
	f.Float64Var(&o.rate, "rate", 0, "operations a second that are due (open loop); 0 for a closed loop")
	f.IntSliceVar(&o.sweep, "sweep", nil, "measure at each of these numbers of callers; of rates if --rate is given")
	f.DurationVar(&o.duration, "duration", 5*time.Second, "how long each load is measured: 100ms..1h")
	f.DurationVar(&o.warmup, "warmup", time.Second, "how long each load runs before: 0s..10m")
	f.IntVar(&o.rounds, "rounds", 1, "how often all is measured, system after system; the median counts: 1..99")
	f.IntVar(&o.sessions, "sessions", 1, "sessions of each caller, which takes them in turn")
	f.IntVar(&o.slots, "slots", 0, "slots of each pool; what the scenario needs if 0")
	f.DurationVar(&o.hold, "hold", 10*time.Millisecond, "how long a call takes: in the scenario fleet, and for --calls-per-agent")

	f.StringSliceVar(&o.against, "against", nil, "do the same work on redis or etcd, or both, in the same rounds")
	f.StringVar(&o.redisServer, "redis-server", "redis-server", "`program` to start for --against redis")
	f.StringVar(&o.etcdProgram, "etcd-program", "", "`program` to start for --against etcd, made by make bench-peers; bench-etcd beside this program if empty")
	f.IntVar(&o.etcdNodes, "etcd-nodes", 3, "how many members etcd has, 1 or 3")

	f.Float64Var(&o.perAgent, "calls-per-agent", 0, "calls of an agent in a minute: print how many agents fit")
	f.StringVar(&o.json, "json", "", "write the result to this `file`")
	f.StringVar(&o.html, "html", "", "write a page with the curves to this `file`")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print what the nodes log, too")
}

// check refuses what cannot stand, by the name of the flag.
func (o *benchOptions) check(given func(flag string) bool) error {
	within := func(flag string, n, least, most int) error {
		if n < least || n > most {
			return usagef("%s: %d: must be %d to %d", flag, n, least, most)
		}
		return nil
	}
	switch {
	case o.addr != "" && given("nodes"):
		return usagef("nodes: belongs to a cluster that is started here: leave it or --addr out")
	case !slices.Contains(bench.Scenarios, o.scenario):
		return usagef("scenario: %q: must be %s", o.scenario, strings.Join(bench.Scenarios, ", "))
	case math.IsNaN(o.rate) || o.rate < 0 || o.rate > 1e7:
		return usagef("rate: %v: must be 0 to 10000000", o.rate)
	case o.duration < 100*time.Millisecond || o.duration > time.Hour:
		return usagef("duration: %v: must be 100ms to 1h", o.duration)
	case o.warmup < 0 || o.warmup > 10*time.Minute:
		return usagef("warmup: %v: must be 0s to 10m", o.warmup)
	case o.hold < 0 || o.hold > time.Hour:
		return usagef("hold: %v: must be 0s to 1h", o.hold)
	case math.IsNaN(o.perAgent) || o.perAgent < 0 || o.perAgent > 1e6:
		return usagef("calls-per-agent: %v: must be 0 to 1000000 in a minute", o.perAgent)
	case o.etcdNodes != 1 && o.etcdNodes != 3:
		return usagef("etcd-nodes: %d: must be 1 or 3", o.etcdNodes)
	}
	for _, err := range []error{
		within("callers", o.callers, 1, 16384), within("rounds", o.rounds, 1, 99), within("clients", o.clients, 1, 64),
		within("sessions", o.sessions, 1, 2_000_000), within("slots", o.slots, 0, 1_000_000),
		o.checkLists(), o.checkPeers(),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *benchOptions) checkLists() error {
	for _, n := range o.nodes {
		if n != 1 && n != 3 && n != 5 {
			return usagef("nodes: %d: must be 1, 3 or 5", n)
		}
	}
	for _, t := range o.transport {
		if t != "exchange" && t != "unary" {
			return usagef("transport: %q: must be exchange or unary", t)
		}
	}
	for _, address := range splitList(o.addr) {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return usagef("addr: %q: must be addresses as HOST:PORT, separated by commas", address)
		}
	}
	most := 16384
	if o.rate > 0 {
		most = 10_000_000
	}
	for i, n := range o.sweep {
		if n < 1 || n > most {
			return usagef("sweep: %d: must be 1 to %d", n, most)
		}
		if slices.Contains(o.sweep[:i], n) {
			return usagef("sweep: %d: stands twice: leave one out", n)
		}
	}
	if len(o.nodes) == 0 || len(o.transport) == 0 {
		return usagef("nodes, transport: name at least one of each")
	}
	return nil
}

func (o *benchOptions) checkPeers() error {
	for _, peer := range o.against {
		if peer != "redis" && peer != "etcd" {
			return usagef("against: %q: must be redis or etcd", peer)
		}
	}
	if len(o.against) == 0 {
		return nil
	}
	if o.scenario != bench.Apart && o.scenario != bench.HotPool {
		return usagef("scenario: %q: peers do only %s and %s", o.scenario, bench.Apart, bench.HotPool)
	}
	if o.sessions != 1 {
		return usagef("sessions: %d: must be 1 with --against", o.sessions)
	}
	return nil
}

// loads are the points that every system is measured at.
func (o *benchOptions) loads() []bench.Load {
	one := bench.Load{Callers: o.callers, Rate: o.rate, Warmup: o.warmup, Duration: o.duration}
	if len(o.sweep) == 0 {
		return []bench.Load{one}
	}
	var all []bench.Load
	for _, n := range o.sweep {
		l := one
		if o.rate > 0 {
			l.Rate = float64(n)
		} else {
			l.Callers = n
		}
		all = append(all, l)
	}
	return all
}

func (o *benchOptions) plan(name string) bench.Plan {
	most := 0
	for _, l := range o.loads() {
		most = max(most, l.Callers)
	}
	return bench.Plan{Scenario: o.scenario, Name: name, Callers: most, Sessions: o.sessions, Slots: o.slots, Hold: o.hold}
}

// runBench measures every system in every round, and writes the result.
func runBench(ctx context.Context, o *benchOptions, stdout, stderr io.Writer) error {
	b := &benchRun{options: o, result: bench.NewResult(o.scenario, time.Now().UTC()), progress: stderr, logs: io.Discard, spawner: newSpawner()}
	defer b.spawner.close()
	if o.verbose {
		b.logs = &lockedWriter{w: stderr}
	}
	systems, err := b.systems()
	if err != nil {
		return err
	}
	for round := 1; round <= o.rounds; round++ {
		for _, s := range systems {
			if err := b.measure(ctx, s, round); err != nil {
				if ctx.Err() != nil {
					return fmt.Errorf("interrupted in round %d", round)
				}
				return fmt.Errorf("%s, round %d: %w", s.name, round, err)
			}
		}
	}
	b.result.Finish()
	if o.perAgent > 0 {
		if err := b.fit(); err != nil {
			return err
		}
	}
	return b.write(stdout)
}

// fit reckons agents from the first system that is govnode: at its knee, where
// there is one, since behind it every call gets slower.
func (b *benchRun) fit() error {
	for _, s := range b.result.Series {
		if bench.IsPeer(s.System) {
			continue
		}
		f, err := bench.FitAgents(s.Sustained().Throughput, b.options.perAgent, b.options.hold)
		if err != nil {
			return err
		}
		b.result.Fit = &f
		return nil
	}
	return nil
}

func (b *benchRun) write(stdout io.Writer) error {
	if err := b.result.WriteText(stdout); err != nil {
		return err
	}
	if b.options.json != "" {
		if err := b.result.WriteJSON(b.options.json); err != nil {
			return fmt.Errorf("json: %w", err)
		}
	}
	if b.options.html != "" {
		if err := b.result.WriteHTML(b.options.html); err != nil {
			return fmt.Errorf("html: %w", err)
		}
	}
	return nil
}

func benchCompareCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "compare BEFORE.json AFTER.json",
		Short: "Compare two results of govnode bench",
		Args:  arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			before, err := bench.ReadResult(args[0])
			if err != nil {
				return exitWith(err)
			}
			after, err := bench.ReadResult(args[1])
			if err != nil {
				return exitWith(err)
			}
			ratios, err := bench.Compare(before, after)
			if err != nil {
				return exitWith(err)
			}
			return exitWith(bench.WriteRatios(cmd.OutOrStdout(), ratios))
		},
	}
}
