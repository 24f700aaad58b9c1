package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"example.com/govnode/client"
	"example.com/govnode/cluster"
	"example.com/govnode/cmd/govnode/internal/dev"
	"example.com/govnode/cmd/govnode/internal/process"
	"example.com/govnode/cmd/govnode/internal/terminal"
)

// `govnode demo`: workers on a cluster of its own, what happens to them in the
// course of it, and what is said about that meanwhile.

const (
	demoPolicy    = "demo"
	demoPool      = "demo/gpu"
	demoSlots     = 5
	demoCallLimit = 20

	// When what happens, in hundredths of the duration.
	fleetIsStopped   = 10
	firstWorkerDies  = 25
	paymentsBegin    = 30
	rateIsUsed       = 35
	leaderDies       = 50
	secondWorkerDies = 70
	budgetIsUsed     = 85

	// How long after a lease's end its slot may still be held.
	leaseGrace = 2 * time.Second
)

// demoYAML is what every session of the demo is pinned to. The pool of the
// policy is large: it is the shared pool that is scarce.
var demoYAML = fmt.Sprintf(`name: %s
max_tool_calls: %d
max_attempts: 500
max_concurrent: 200
backpressure_threshold: 200
timeout_seconds: 3600
allowed_tools: [%s]
`, demoPolicy, demoCallLimit, allowedTool)

// demoOptions is what the command line says.
type demoOptions struct {
	duration time.Duration
	workers  int
	logStore string
	output   string
	verbose  bool
}

// Command is `govnode demo`.
func Command() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch a fleet be governed while nodes and workers are killed",
		Long: `Runs a cluster of three nodes and a fleet of worker processes on this machine. Each
worker opens sessions with a limit of ` + fmt.Sprint(demoCallLimit) + ` calls, tries more than that, and waits for one of
` + fmt.Sprint(demoSlots) + ` slots that all share. Two workers are killed while they hold a slot, and half-way the
leader of the cluster is. In between all calls of the fleet are stopped for a second,
payments wait for another process to agree, and callers share a rate and a budget. On
a slow machine it goes on until it has come to all of its limits, up to three times as
long.

Every worker keeps a ledger of its own. At the end they are checked against what the
service has counted: no limit may have been exceeded, no slot leaked, no count lost or
doubled, and nobody let in that a gate should have kept out. If one of these is not
so, the exit code is 1.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			ctx, stop := process.UntilSignal(cmd.Context())
			defer stop()
			return terminal.ExitWith(demo(ctx, o, cmd.OutOrStdout(), cmd.ErrOrStderr()))
		},
	}
	cmd.Flags().DurationVar(&o.duration, "duration", 10*time.Second, "how long the fleet works: 10s..10m")
	cmd.Flags().IntVar(&o.workers, "workers", 8, "how many processes: 8..64")
	cmd.Flags().StringVar(&o.logStore, "log-store", cluster.LogBoltDB, "what keeps the Raft log of the nodes: boltdb|wal")
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "how to print the result: text|json; progress goes to standard error with json")
	cmd.Flags().BoolVarP(&o.verbose, "verbose", "v", false, "print what dev and the workers have to say, too")
	cmd.AddCommand(demoWorkerCommand(), demoApproverCommand())
	return cmd
}

func (o *demoOptions) check() error {
	switch {
	case o.duration < 10*time.Second || o.duration > 10*time.Minute:
		return terminal.Usagef("duration: %v: must be 10s to 10m", o.duration)
	case o.workers < 8 || o.workers > 64:
		return terminal.Usagef("workers: %d: must be 8 to 64", o.workers)
	case o.logStore != cluster.LogBoltDB && o.logStore != cluster.LogWAL:
		return terminal.Usagef("log-store: %q: must be %s or %s", o.logStore, cluster.LogBoltDB, cluster.LogWAL)
	case o.output != "text" && o.output != "json":
		return terminal.Usagef("output: %q: must be text or json", o.output)
	}
	return nil
}

// ttl is how long the leases of the demo last: short enough for what a dead
// worker held to be free again before the next thing happens.
func (o *demoOptions) ttl() time.Duration {
	return min(max(o.duration/6, 2*time.Second), 5*time.Second)
}

// A demoRun is one demo under way.
type demoRun struct {
	options demoOptions
	stderr  io.Writer
	cluster *dev.Cluster
	client  *client.Client
	fleet   []*workerProcess
	spawner *process.Spawner
	folder  string        // for ledgers
	started time.Duration // when the fleet began, by machineTime; 0 before

	out  sync.Mutex // guards what is printed; started changes under it
	show io.Writer

	// The main goroutine's own.
	books    *books
	nextLine time.Duration // since started: when progress is due

	report demoReport // each scene has a part of its own

	watching sync.WaitGroup
	scenes   sync.WaitGroup // those that play aside
	mu       sync.Mutex
	leader   string          // empty: nobody
	dead     string          // the leader that was killed; the others name it for a while yet
	freed    []time.Duration // how long after the death of a worker its slot was free
	problems []string        // why the demo did not show what it should
}

// demo runs it all, prints the result and returns an error if something was
// exceeded, leaked, lost or doubled.
func demo(ctx context.Context, o demoOptions, stdout, stderr io.Writer) (err error) {
	folder, err := os.MkdirTemp("", "govnode-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	d := &demoRun{options: o, stderr: io.Discard, show: stdout, books: newBooks(o.workers), spawner: process.NewSpawner(), folder: folder}
	defer d.spawner.Close()
	if o.output == "json" {
		d.show = stderr
	}
	if o.verbose {
		d.stderr = &process.LockedWriter{W: stderr}
	}
	d.say("starting three nodes")
	settings := dev.Settings()
	settings.LogStore = o.logStore
	if d.cluster, err = dev.Start(ctx, settings, d.stderr); err != nil {
		return fmt.Errorf("the cluster did not start: %w", err)
	}
	defer func() { err = errors.Join(err, d.cluster.Stop()) }()
	if d.client, err = client.New(client.Config{Addresses: d.cluster.Addresses(), Name: "demo"}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.client.Close()) }()
	defer d.endFleet()
	if err := d.run(ctx); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		return err
	}
	if err := d.report.print(stdout, o.output); err != nil {
		return err
	}
	return d.report.verdict()
}

// run goes from a cluster that is ready to a report that is filled in.
func (d *demoRun) run(ctx context.Context) error {
	for _, n := range d.cluster.List() {
		d.say("%s has its API at %s (pid %d)", n.Name, n.API, n.PID)
	}
	if _, err := d.client.PutPolicy(ctx, "", demoYAML); err != nil {
		return err
	}
	for _, p := range []client.Pool{{Name: demoPool, Slots: demoSlots}, {Name: turnstile, Slots: 1000}} {
		if _, err := d.client.PutPool(ctx, p); err != nil {
			return err
		}
	}
	d.say("policy %q: %d calls in a session; pool %q: %d slots; leases of %v", demoPolicy, demoCallLimit, demoPool, demoSlots, d.options.ttl())
	ctx, endWatch := context.WithCancel(ctx)
	defer d.watching.Wait()
	defer d.scenes.Wait()
	defer endWatch()
	d.watching.Go(func() { d.watchLeader(ctx) })

	if err := d.startFleet(); err != nil {
		return err
	}
	d.out.Lock()
	d.started, d.nextLine = machineTime(), time.Second
	d.out.Unlock()
	d.say("%d workers begin: each asks before every call, and notes down what it is told", d.options.workers)
	if err := d.follow(ctx); err != nil {
		return err
	}
	stopped := machineTime()
	if err := d.stopFleet(ctx); err != nil {
		return err
	}
	d.scenes.Wait()
	return d.settle(ctx, stopped)
}

// follow lets things happen at their time and prints a line a second, until
// the duration is over. A slow machine has more time, if the fleet has not come to
// all of its limits by then.
func (d *demoRun) follow(ctx context.Context) error {
	at := func(percent int) time.Duration { return d.options.duration * time.Duration(percent) / 100 }
	events := []struct {
		at time.Duration
		do func(context.Context) error
	}{
		{at(fleetIsStopped), d.stopTheFleet},
		{at(firstWorkerDies), func(ctx context.Context) error { return d.killHolder(ctx, 1) }},
		{at(paymentsBegin), d.aside("approvals", &d.report.Approval, d.askPeople)},
		{at(rateIsUsed), d.aside("rate", &d.report.Rate, d.useRate)},
		{at(leaderDies), d.killLeader},
		{at(secondWorkerDies), func(ctx context.Context) error { return d.killHolder(ctx, 2) }},
		{at(budgetIsUsed), d.aside("budget", &d.report.Budget, d.useBudget)},
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-d.cluster.Ended:
			d.cluster.Ended <- err
			return fmt.Errorf("the cluster has ended: %w", err)
		case <-tick.C:
		}
		if err := d.readLedgers(); err != nil {
			return err
		}
		if err := d.workersAlive(); err != nil {
			return err
		}
		now := machineTime() - d.started
		if len(events) > 0 && now >= events[0].at {
			if err := events[0].do(ctx); err != nil {
				return err
			}
			events = events[1:]
		}
		if machineTime()-d.started >= d.nextLine {
			d.progress()
		}
		over := machineTime() - d.started - d.options.duration
		if over >= 2*d.options.duration || over >= 0 && len(d.books.unmet()) == 0 {
			return nil
		}
	}
}

// progress prints where things stand. It is due again with the next second.
func (d *demoRun) progress() {
	now := machineTime()
	d.nextLine = (now - d.started).Truncate(time.Second) + time.Second
	dead := map[int]bool{}
	for i, w := range d.fleet {
		dead[i] = w.killed
	}
	inUse, waiting := d.books.present(now, dead)
	took, refused := d.books.outcomes()
	all := 0
	for _, n := range refused {
		all += n
	}
	latest := now - d.started
	for _, w := range d.books.workers {
		if n := len(w.answers); n > 0 {
			latest = min(latest, now-w.answers[n-1])
		}
	}
	leader, used := inLine(d.currentLeader(), inUse)
	d.say("%-6s leads   slots in use %s/%d   waiting %2d   admitted %4d   refused %4d   last outcome %s ago",
		leader, used, demoSlots, waiting, took, all, round(latest))
}

// inLine is who leads and how many slots are in use, in words. While nobody
// leads the ledgers do not know the second: workers stop at the end of their
// leases, which the service lengthens by the election.
func inLine(leader string, inUse int) (who, used string) {
	if leader == "" {
		return "nobody", "?"
	}
	return leader, strconv.Itoa(inUse)
}

// say prints a line with the time since the fleet began, if it has.
func (d *demoRun) say(format string, args ...any) {
	d.out.Lock()
	defer d.out.Unlock()
	at := "        "
	if d.started != 0 {
		at = fmt.Sprintf("%6.1f s", (machineTime() - d.started).Seconds())
	}
	_, _ = fmt.Fprintf(d.show, "%s  %s\n", at, fmt.Sprintf(format, args...))
}

func round(t time.Duration) time.Duration {
	if t > time.Second {
		return t.Round(10 * time.Millisecond)
	}
	return t.Round(time.Millisecond)
}

func (d *demoRun) startFleet() error {
	for i := range d.options.workers {
		orders := workerOrders{
			Index: i + 1, Addresses: d.cluster.Addresses(), Ledger: filepath.Join(d.folder, fmt.Sprintf("worker-%d.jsonl", i+1)),
			Policy: demoPolicy, Pool: demoPool, CallLimit: demoCallLimit, TTL: d.options.ttl(),
		}
		w, err := startWorker(d.spawner, orders, d.stderr)
		if err != nil {
			return fmt.Errorf("worker %d did not start: %w", i+1, err)
		}
		d.fleet = append(d.fleet, w)
	}
	return nil
}

// endFleet kills whatever still runs.
func (d *demoRun) endFleet() {
	for _, w := range d.fleet {
		w.kill()
	}
	for _, w := range d.fleet {
		w.end()
	}
}

func (d *demoRun) readLedgers() error {
	for i, w := range d.fleet {
		entries, err := w.reader.next()
		if err != nil {
			return err
		}
		d.books.add(i, entries)
	}
	return nil
}

// workersAlive returns an error if a worker has ended that nobody killed.
func (d *demoRun) workersAlive() error {
	for _, w := range d.fleet {
		select {
		case <-w.ended:
			if !w.killed {
				return fmt.Errorf("worker %d has ended: %s", w.orders.Index, strings.TrimSpace(w.lastWords()))
			}
		default:
		}
	}
	return nil
}
