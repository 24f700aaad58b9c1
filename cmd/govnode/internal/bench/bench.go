package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.com/govnode/bench"
	"example.com/govnode/cmd/govnode/internal/process"
	"example.com/govnode/cmd/govnode/internal/terminal"
)

// `govnode bench`: its flags, and the run that they ask for.

// benchOptions is what the command line says.
type benchOptions struct {
	addr      string
	token     string
	tlsCA     string
	namespace string
	nodes     []int
	transport []string
	clients   int
	logStore  []string
	snapshots []string

	scenario []string
	callers  int
	rate     float64
	sweep    []int
	after    []int64
	churners int
	duration time.Duration
	warmup   time.Duration
	rounds   int
	sessions int
	slots    []int
	fill     []int
	hold     time.Duration

	against     []string
	redisServer string
	etcdProgram string
	etcdNodes   int

	perAgent   float64
	json, html string
	verbose    bool
}

// Command is `govnode bench`.
func Command() *cobra.Command {
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
  pools         as few pools of --slots as have room for all callers
  queue         all callers through one pool of --slots; those above wait

--nodes, --transport, --log-store, --scenario, --slots, --fill and --snapshots take
lists: each combination is a system, and all systems are measured in turn in each
round. What is printed beside the figures are ratios to the first of them, and to the
peers. Where this command starts the processes it tells what CPU each of them used for
an operation.

At the end what the service has counted must be what its callers were answered; if it
is not, the exit code is 1.`,
		Example: `  govnode bench --nodes 3 --callers 256
  govnode bench --addr 127.0.0.1:7070 --rate 2000 --duration 30s
  govnode bench --nodes 3 --sweep 1,16,64,256,1024 --html bench.html
  govnode bench --nodes 3,1 --sweep 256,1024 --against etcd,redis --rounds 3 --json now.json
  govnode bench --nodes 3 --scenario apart,hot-pool --rounds 3
  govnode bench --nodes 3 --fill 1000,100000,1000000 --sessions 40
  govnode bench compare before.json now.json`,
		Args: terminal.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd.Flags().Changed); err != nil {
				return err
			}
			ctx, stop := process.UntilSignal(cmd.Context())
			defer stop()
			return terminal.ExitWith(runBench(ctx, o, cmd.OutOrStdout(), cmd.ErrOrStderr()))
		},
	}
	o.register(cmd)
	cmd.AddCommand(benchCompareCommand(), benchTableCommand())
	return cmd
}

func (o *benchOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.addr, "addr", "", "`addresses` of nodes of a running cluster, separated by commas")
	f.StringVar(&o.token, "token", os.Getenv("GOVNODE_TOKEN"), "`text` of the token to show to the nodes of --addr; better set GOVNODE_TOKEN")
	f.Lookup("token").DefValue = "$GOVNODE_TOKEN"
	f.StringVar(&o.tlsCA, "tls-ca", "", "`file` of who may vouch for the nodes of --addr, which are reached by https then")
	f.StringVar(&o.namespace, "namespace", "", "`name` of the namespace to work in; the default one if empty")
	f.IntSliceVar(&o.nodes, "nodes", []int{1}, "start clusters of so many nodes, 1, 3 or 5, one after another")
	f.StringSliceVar(&o.transport, "transport", []string{"exchange"}, "how requests go: exchange|unary, or both; exchange is a shared stream, and unary sends each by itself")
	f.IntVar(&o.clients, "clients", 1, "over how many clients the callers are spread: 1..64; each stands for a process")
	f.StringSliceVar(&o.logStore, "log-store", nil, "`names` of what keeps the log of the nodes that are started, boltdb|wal; their default if empty")
	f.StringSliceVar(&o.snapshots, "snapshots", nil, "`when` the nodes take snapshots, none|raft|save: with raft each node takes one after another, with save a client asks for one after another; as they do by themselves if empty")

	f.StringSliceVar(&o.scenario, "scenario", []string{bench.Apart}, "what callers do: "+strings.Join(bench.Scenarios, "|"))
	f.IntVar(&o.callers, "callers", 256, "how many work at once: 1..16384")
	f.Float64Var(&o.rate, "rate", 0, "operations a second that are due (open loop); 0 for a closed loop")
	f.IntSliceVar(&o.sweep, "sweep", nil, "measure at each of these numbers of callers; of rates if --rate is given")
	f.Int64SliceVar(&o.after, "after", nil, "measure each load when so many `operations` were done in all, 0 for at once; rising")
	f.IntVar(&o.churners, "after-callers", 2048, "how many callers do the operations of --after: 1..16384")
	f.DurationVar(&o.duration, "duration", 5*time.Second, "how long each load is measured: 100ms..1h")
	f.DurationVar(&o.warmup, "warmup", time.Second, "how long each load runs before: 0s..10m")
	f.IntVar(&o.rounds, "rounds", 1, "how often all is measured, system after system; the median counts: 1..99")
	f.IntVar(&o.sessions, "sessions", 1, "sessions of each caller, which takes them in turn")
	f.IntSliceVar(&o.slots, "slots", nil, "slots of each pool; what the scenario needs if empty")
	f.IntSliceVar(&o.fill, "fill", nil, "`sessions` that the cluster is given beforehand, among them those of the callers; its state is replaced for that. Only for clusters that are started here")
	f.DurationVar(&o.hold, "hold", 10*time.Millisecond, "how long a call takes: in the scenarios fleet and queue, and for --calls-per-agent")

	f.StringSliceVar(&o.against, "against", nil, "do the same work on these `peers`, redis|etcd, in the same rounds")
	f.StringVar(&o.redisServer, "redis-server", "redis-server", "`program` to start for --against redis")
	f.StringVar(&o.etcdProgram, "etcd-program", "", "`program` to start for --against etcd, made by make bench-peers; bench-etcd beside this program if empty")
	f.IntVar(&o.etcdNodes, "etcd-nodes", 3, "how many members etcd has, 1 or 3")

	f.Float64Var(&o.perAgent, "calls-per-agent", 0, "calls of an agent in a minute: print how many agents fit")
	f.StringVar(&o.json, "json", "", "write the result to this `file`")
	f.StringVar(&o.html, "html", "", "write a page with the curves to this `file`")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print what the nodes log, too")
}

// runBench measures every system in every round, and writes the result.
func runBench(ctx context.Context, o *benchOptions, stdout, stderr io.Writer) error {
	b := &benchRun{options: o, result: bench.NewResult(strings.Join(o.scenario, ", "), time.Now().UTC()), progress: stderr, logs: io.Discard, spawner: process.NewSpawner()}
	defer b.spawner.Close()
	if o.verbose {
		b.logs = &process.LockedWriter{W: stderr}
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
