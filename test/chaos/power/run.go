package power

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"example.com/govnode/test/check"
	"example.com/govnode/test/processes/disks"
)

// A Setting says what to run.
type Setting struct {
	Program string // the built one
	Seed    uint64
	Clients int
	Length  time.Duration
	Cuts    int  // at least so many, if it takes longer
	Whole   int  // of them at least so many of the whole cluster
	Faults  bool // other faults of disks as well, each at least once
	Log     func(format string, args ...any)
}

// A Report says what came of a run.
type Report struct {
	Took       time.Duration
	Faults     map[string]int
	Ops        int
	Unknown    int // of which nobody knew for a while what became of them
	NotApplied int
	Asked      int // acknowledged ones that were sent again
	Recovery   []time.Duration
	Violations []check.Violation
}

// Lost is how many violations say that something acknowledged was not there.
func (r *Report) Lost() (n int) {
	for _, v := range r.Violations {
		if v.Check == "lost" {
			n++
		}
	}
	return n
}

// A fault befalls a running cluster, and leaves it as it was.
type fault struct {
	name string
	do   func(*nemesis) error
}

// The powers that are cut.
var (
	cutOne      = fault{"power cut of one", func(n *nemesis) error { return n.cut(n.some(1)...) }}
	cutLeader   = fault{"power cut of the leader", func(n *nemesis) error { return n.cut(n.leader()) }}
	cutMajority = fault{"power cut of a majority", func(n *nemesis) error { return n.cut(n.some(2)...) }}
	cutAll      = fault{"power cut of all", func(n *nemesis) error { return n.cut(n.some(3)...) }}
)

// A nemesis lets disks break.
type nemesis struct {
	*cluster
	fleet  *fleet
	report *Report
	log    func(format string, args ...any)
}

// Run runs a cluster on disks that break. The error says that the run could not
// be made; what is wrong with the cluster is in the report.
func Run(s Setting) (report *Report, err error) {
	return run(s, func(n *nemesis) error {
		deck := n.deck(s)
		end := n.fleet.start.Add(s.Length)
		for i := 0; i < len(deck) || time.Now().Before(end); i++ {
			f := cutOne
			if i < len(deck) {
				f = deck[i]
			}
			n.log("%v %s", n.fleet.now().Round(time.Millisecond), f.name)
			if err := f.do(n); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			n.report.Faults[f.name]++
			n.fleet.cuts.Add(1)
			n.work(100 + n.rng.IntN(400))
			if bad := n.surprises(); bad != nil {
				return errors.Join(bad...)
			}
		}
		return nil
	})
}

// deck is the faults of a run, in an order that the seed gives.
func (n *nemesis) deck(s Setting) (deck []fault) {
	for i := range s.Cuts {
		switch {
		case i < s.Whole:
			deck = append(deck, cutAll)
		case i%5 == 0:
			deck = append(deck, cutMajority)
		case i%5 == 1:
			deck = append(deck, cutLeader)
		default:
			deck = append(deck, cutOne)
		}
	}
	if s.Faults {
		deck = append(deck, others...)
	}
	n.rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	return deck
}

// work lets clients work for a while.
func (n *nemesis) work(milliseconds int) { time.Sleep(time.Duration(milliseconds) * time.Millisecond) }

// cut cuts the power of nodes and brings it back. One time in four the processes
// go on for a moment, and see their disks go.
func (n *nemesis) cut(nodes ...*node) error {
	freeze := n.rng.IntN(4) > 0
	if err := cutPower(freeze, nodes...); err != nil {
		return broken{err}
	}
	began := time.Now()
	if len(nodes) < len(n.nodes) {
		n.work(n.rng.IntN(400)) // the others go on, or wait
		began = time.Now()
	}
	err := n.restart(nodes...)
	n.report.Recovery = append(n.report.Recovery, time.Since(began))
	return err
}

// broken is an error of the rig, and not of the cluster.
type broken struct{ error }

// run makes a cluster and its clients, lets something happen, heals, and judges.
func run(s Setting, happen func(*nemesis) error) (report *Report, err error) {
	report = &Report{Faults: map[string]int{}}
	if err := disks.Sweep(); err != nil {
		return report, err
	}
	rng := rand.New(rand.NewPCG(s.Seed, 3))
	c, err := newCluster(s.Program, rng)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	f := newFleet(c, s.Clients, rng)
	n := &nemesis{c, f, report, s.Log}
	working, stop := context.WithCancel(context.Background())
	hard, give := context.WithCancel(context.Background())
	defer give()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.run(working, hard)
	}()
	happened := happen(n)
	var rig broken
	if errors.As(happened, &rig) {
		stop()
		give()
		<-done
		return report, happened
	}
	if happened != nil {
		f.violated("heal", "%v", happened)
	} else if err := c.whole(); err != nil {
		happened = err
		f.violated("heal", "%v", err)
	}
	stop()
	if happened != nil {
		give() // nobody would answer
	}
	late := time.AfterFunc(time.Minute, func() {
		f.violated("heal", "clients have no answers a minute after all is over")
		give()
	})
	<-done
	late.Stop()
	report.Took = f.now()
	h := check.History{Ops: f.ops, Holds: f.holds, Limits: map[string]int{poolName: poolSlots}}
	if happened == nil {
		reading, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		h.Final, err = f.workers[0].final(reading)
		cancel()
		if err != nil {
			f.violated("heal", "%v", err)
		}
	}
	for _, err := range c.surprises() {
		f.violated("node", "%v", err)
	}
	report.Violations = append(f.broken, judge(h)...)
	report.Ops, report.Unknown, report.Asked = len(h.Ops), int(f.unsure.Load()), int(f.asked.Load())
	for _, o := range h.Ops {
		if o.Outcome == check.NotApplied {
			report.NotApplied++
		}
	}
	return report, nil
}

// judge holds what clients saw to what was promised.
func judge(h check.History) (all []check.Violation) {
	for _, c := range []func(check.History) []check.Violation{check.Sums, check.Answers, check.Holders, check.Tokens} {
		all = append(all, c(h)...)
	}
	return all
}

// Control is a run on disks that lie about what they flushed, from some time on,
// with a power cut of all of them. It must find violations. Where the nodes
// notice by themselves that they have lost something, and refuse to go on, what
// was acknowledged is lost as well.
func Control(s Setting) (report *Report, err error) {
	return run(s, func(n *nemesis) error {
		n.work(500)
		for _, x := range n.nodes {
			if err := x.running().tamper(disks.Lying); err != nil {
				return broken{err}
			}
		}
		before := n.fleet.count()
		for end := time.Now().Add(20 * time.Second); n.fleet.count() < before+300 && time.Now().Before(end); {
			n.work(50)
		}
		n.log("%d operations on disks that lie", n.fleet.count()-before)
		if err := cutPower(true, n.nodes...); err != nil {
			return broken{err}
		}
		n.report.Faults["lying disks and a power cut of all"]++
		err := n.restart(n.nodes...)
		n.fleet.cuts.Add(1)
		if err == nil {
			n.work(1000)
			return nil
		}
		n.fleet.violated("lost", "the nodes do not go on with what they have: %v", strings.ReplaceAll(err.Error(), "\n", " "))
		return err
	})
}

func (f *fleet) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ops)
}
