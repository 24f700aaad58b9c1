package sim

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"example.com/govnode/cluster"
	"example.com/govnode/session"
	"example.com/govnode/test/check"
)

// A Setting says what to run.
type Setting struct {
	Seed    uint64
	Nodes   int
	Clients int
	Length  time.Duration // of the part with faults
	Think   time.Duration // between two operations of a client, on average
	Gap     time.Duration // between two faults, on average
	// Heartbeat and Commit are Raft's timeouts; the defaults if 0. Long ones let
	// long runs be cheap. Members ask each other how they are once per heartbeat's
	// timeout then.
	Heartbeat, Commit time.Duration
	Only              []string     `json:",omitempty"` // kinds of faults; all if there are none
	Logger            *slog.Logger `json:"-"`
}

// A Report says what came of a run.
type Report struct {
	Setting
	Cluster    time.Duration // virtual
	Faults     map[string]int
	Ops        int            // steps of scripts included
	Alone      map[string]int // of them, by their names
	Unknown    int
	NotApplied int
	Violations []check.Violation
	Took       map[string][]time.Duration // by what has a bound in time
	Plan       []string                   `json:"-"`
	History    check.History              `json:"-"`
	witness    *witness
}

const (
	// healWithin is how long a cluster may take to be whole again when nothing
	// is wrong with it any more.
	healWithin = 10 * time.Second
	// leaseEnds is how long after its TTL a lease may last at most.
	leaseEnds = 5 * time.Second
	// longestWait is for how long a client waits for a slot.
	longestWait = 8 * time.Second
	// waiterEnds is after how long nothing is left of who waited.
	waiterEnds = 20 * time.Second
	// calm is how long clients work on when nothing is wrong any more.
	calm = 5 * time.Second
)

// Run runs a cluster under a plan of faults. It must be called in a bubble of
// testing/synctest. The error says that the run could not be made; what is wrong
// with the cluster is in the report.
func Run(s Setting) (report Report, err error) {
	report = Report{Setting: s, Faults: map[string]int{}, Took: map[string][]time.Duration{}}
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	start := time.Now()
	rng := rand.New(rand.NewPCG(s.Seed, 1))
	f, err := newFleet(s.Nodes, rng, s.Logger, func(c *cluster.Config) {
		c.SnapshotBytes, c.TrailingLogs, c.CheckInterval = 96<<10, 64, 20*time.Second
		if s.Heartbeat > 0 {
			c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = s.Heartbeat, s.Heartbeat, s.Heartbeat
			c.CommitTimeout, c.HelloInterval = s.Commit, s.Heartbeat
		}
	})
	if err != nil {
		return report, err
	}
	f.ping, f.silent = max(f.ping, s.Heartbeat), max(f.silent, 3*s.Heartbeat)
	defer func() { err = errors.Join(err, f.end()) }()
	if err := f.found(); err != nil {
		return report, err
	}
	rec := &recorder{start: start}
	var workers []*worker
	for i := range s.Clients {
		w, err := newWorker(fmt.Sprintf("c%d", i+1), f, rand.New(rand.NewPCG(s.Seed, uint64(100+i))), rec, s.Think, s.Logger)
		if err != nil {
			return report, err
		}
		workers = append(workers, w)
	}
	defer func() {
		for _, w := range workers {
			err = errors.Join(err, w.close())
		}
	}()
	if err := workers[0].prepare(context.Background()); err != nil {
		return report, err
	}
	n := newNemesis(f, rand.New(rand.NewPCG(s.Seed, 2)), workers, s)
	report.Plan = n.plan()
	working, stop := context.WithCancel(context.Background())
	var busy sync.WaitGroup
	for _, w := range workers {
		busy.Go(func() { w.work(working) })
	}
	n.run()
	report.Faults = n.counts
	violated := func(name string, err error) {
		if err != nil {
			report.Violations = append(report.Violations, check.Violation{Check: name, Text: err.Error()})
		}
	}
	whole := time.Now()
	heals := max(healWithin, 4*s.Heartbeat) // who has heard a leader votes for no other for up to twice a heartbeat's timeout
	violated("heal", f.ready(heals))
	report.Took[healed] = append(report.Took[healed], time.Since(whole))
	time.Sleep(n.weather.settle + calm)
	stop()
	busy.Wait()
	n.victims.under.Wait()
	took, broken := liveness(n.weather.fair(), rec.spans, n.weather.soon)
	report.Took[answered], report.Took[freed] = took, n.victims.took
	report.Violations = append(append(report.Violations, broken...), n.victims.broken...)
	for _, w := range workers {
		w.resolve(context.Background())
		w.liftAll()
		w.end()
	}
	ordered := s.Seed/4%2 == 0 // in one run of two, with three nodes and with five
	drilled, found := f.drill(workers[0], s.Seed%4 == 0, ordered)
	if report.Violations = append(report.Violations, found...); drilled {
		report.Faults["drill"]++
	}
	if ordered {
		gone, found := f.goes(context.Background(), workers[0])
		if report.Violations = append(report.Violations, found...); gone {
			report.Faults["goes"]++
		}
	}
	violated("heal", f.ready(heals)) // the last node to go may have led
	h := check.History{Ops: rec.ops, Holds: rec.holds, Limits: pools, Rates: rates, Budgets: budgets, Alone: rec.steps}
	violated("final", workers[0].final(context.Background(), &h))
	report.Violations = append(report.Violations, rec.broken...)
	report.Violations = append(report.Violations, f.unwritten(rec.denied)...)
	time.Sleep(waiterEnds)
	violated("orphans", orphans(workers[0]))
	states, until, err := f.states(healWithin)
	violated("states", err)
	for _, x := range f.hosts {
		for _, err := range x.failures() {
			violated("node", err)
		}
		x.failed = nil
	}
	var w *witness
	log, err := f.committed(until)
	if err == nil {
		w, err = replay(log, start, states)
	}
	if err != nil {
		violated("log", err)
	} else {
		h.Effects, report.witness = w.effects, w
		report.Violations = append(report.Violations, w.time.broken...)
		for _, own := range states {
			if log := w.digests[own.at]; !slices.Contains(log, own.digest) {
				violated("states", fmt.Errorf("%s has the state %s at log time %v, and the log comes to %v", own.host, own.digest, own.at, log))
			}
		}
	}
	report.Cluster, report.History, report.Ops, report.Alone = time.Since(start), h, len(h.Ops)+sum(h.Alone), h.Alone
	for _, o := range h.Ops {
		switch o.Outcome {
		case check.Unknown:
			report.Unknown++
		case check.NotApplied:
			report.NotApplied++
		case check.Applied, check.Refused:
		}
	}
	return report, nil
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// Judge runs the checks of package check over a run whose log is known. It is
// called outside of the bubble: a search must end in real time.
func (r *Report) Judge() {
	if r.History.Effects != nil {
		r.Violations = append(r.Violations, check.All(r.History)...)
	}
}

// A replica is the state of one node as it stood at a log time.
type replica struct {
	host   string
	at     time.Duration
	digest string
}

// states returns the state of each node, none of them older than the call, and an
// index that the log has reached.
func (f *fleet) states(within time.Duration) (all []replica, until uint64, err error) {
	for _, h := range f.hosts {
		err := eventually(within, func() error {
			node := h.up()
			if node == nil {
				return fmt.Errorf("%s is down", h.name)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			var b bytes.Buffer
			if err := node.Save(ctx, &b); err != nil {
				return fmt.Errorf("%s: %w", h.name, err)
			}
			status, err := node.Status(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", h.name, err)
			}
			state, err := session.ReadSnapshot(&b)
			if err != nil {
				return fmt.Errorf("%s: %w", h.name, err)
			}
			digest, err := digestOf(state)
			all, until = append(all, replica{h.name, state.Now(), digest}), max(until, status.AppliedIndex)
			return err
		})
		if err != nil {
			return nil, until, err
		}
	}
	return all, until, nil
}

func digestOf(state *session.State) (string, error) {
	d, err := state.Snapshot().Digest(nil, nil)
	return hex.EncodeToString(d[:8]), err
}

// orphans says which slots are held although nobody holds them.
func orphans(w *worker) error {
	for pool := range pools {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		list, err := w.client.ListSlots(ctx, pool)
		cancel()
		if err != nil {
			return err
		}
		if len(list.Slots) > 0 || len(list.Waiters) > 0 {
			return fmt.Errorf("%s has slots %v and waiters %v", pool, list.Slots, list.Waiters)
		}
	}
	return nil
}
