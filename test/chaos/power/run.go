package power

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"example.com/govnode/test/chaos/trail"
	"example.com/govnode/test/check"
	"example.com/govnode/test/processes/disks"
)

// A Setting says what to run.
type Setting struct {
	Program string // the built one
	Seed    uint64
	Clients int
	Length  time.Duration
	Settle  time.Duration // how long clients may take to end what they have begun
	Cuts    int           // at least so many, if it takes longer
	Whole   int           // of them at least so many of the whole cluster
	Others  int           // how often each other fault of disks befalls as well
	Log     func(format string, args ...any)
	Args    []string // more of the nodes
}

// A Report says what came of a run.
type Report struct {
	Took       time.Duration
	Audited    trail.Found
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

// Run runs a cluster on disks that break. The error says that the run could not
// be made; what is wrong with the cluster is in the report.
func Run(s Setting) (report *Report, err error) {
	return run(s, true, func(r *Rig, f *fleet) error {
		deck := deck(s, r.Rand)
		end := f.start.Add(s.Length)
		for i := 0; i < len(deck) || time.Now().Before(end); i++ {
			fault := CutOne
			if i < len(deck) {
				fault = deck[i]
			}
			s.Log("%v %s", f.now().Round(time.Millisecond), fault.Name)
			if err := fault.Do(r); err != nil {
				return fmt.Errorf("%s: %w", fault.Name, err)
			}
			r.Faults[fault.Name]++
			f.cuts.Add(1)
			r.work(time.Duration(100+r.Rand.IntN(400)) * time.Millisecond)
			if bad := r.surprises(); bad != nil {
				return errors.Join(bad...)
			}
		}
		return nil
	})
}

// deck is the faults of a run, in an order that the seed gives.
func deck(s Setting, rng *rand.Rand) (deck []Fault) {
	for i := range s.Cuts {
		switch {
		case i < s.Whole:
			deck = append(deck, CutAll)
		case i%5 == 0:
			deck = append(deck, CutMajority)
		case i%5 == 1:
			deck = append(deck, CutLeader)
		default:
			deck = append(deck, CutOne)
		}
	}
	for range s.Others {
		deck = append(deck, Others...)
	}
	rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	return deck
}

// Control is a run on disks that lie about what they flushed, from some time on,
// with a power cut of all of them. It must find violations. Where the nodes
// notice by themselves that they have lost something, and refuse to go on, what
// was acknowledged is lost as well.
func Control(s Setting) (report *Report, err error) {
	return run(s, false, func(r *Rig, f *fleet) error {
		r.work(500 * time.Millisecond)
		for _, n := range r.Nodes {
			if err := r.tamper(n, disks.Lying); err != nil {
				return err
			}
		}
		before := f.count()
		for end := time.Now().Add(20 * time.Second); f.count() < before+300 && time.Now().Before(end); {
			r.work(50 * time.Millisecond)
		}
		s.Log("%d operations on disks that lie", f.count()-before)
		if err := r.cut(true, r.Nodes...); err != nil {
			return err
		}
		r.Faults["lying disks and a power cut of all"]++
		err := r.restart(r.Nodes...)
		f.cuts.Add(1)
		if err == nil {
			r.work(time.Second)
			return nil
		}
		f.violated("lost", "the nodes do not go on with what they have: %v", strings.ReplaceAll(err.Error(), "\n", " "))
		return err
	})
}

// run makes a cluster and its clients, lets something happen, heals, and judges: the
// audits too, unless disks lie about them.
func run(s Setting, audited bool, happen func(*Rig, *fleet) error) (report *Report, err error) {
	rng := rand.New(rand.NewPCG(s.Seed, 3))
	r, err := NewRig(s.Program, Loopback{}, rng, s.Log, s.Args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.prepare(); err != nil {
		return nil, err
	}
	f, err := newFleet(r, s.Clients, rng)
	if err != nil {
		return nil, err
	}
	working, stop := context.WithCancel(context.Background())
	hard, give := context.WithCancel(context.Background())
	defer give()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.run(working, hard)
	}()
	happened := happen(r, f)
	if errors.As(happened, new(Failure)) {
		stop()
		give()
		<-done
		return nil, happened
	}
	if happened == nil {
		happened = r.Whole()
	}
	stop()
	if happened != nil {
		f.violated("heal", "%v", happened)
		give() // nobody would answer
	}
	late := time.AfterFunc(s.Settle, func() {
		f.violated("heal", "clients have no answers after all is over")
		give()
	})
	<-done
	late.Stop()
	h := check.History{Ops: f.ops, Holds: f.holds, Limits: map[string]int{poolName: poolSlots}}
	if happened == nil {
		reading, cancel := context.WithTimeout(context.Background(), s.Settle)
		h.Final, err = f.workers[0].final(reading)
		cancel()
		if err != nil {
			f.violated("heal", "%v", err)
		}
	}
	for _, err := range r.surprises() {
		f.violated("node", "%v", err)
	}
	var found trail.Found
	if audited && happened == nil {
		if found, err = r.judgeAudits(h); err != nil {
			f.violated("audit", "%v", err)
		}
		f.broken = append(f.broken, found.Broken...)
	}
	report = &Report{
		Audited: found, Took: f.now(), Faults: r.Faults, Recovery: r.Recovery, Ops: len(h.Ops), Unknown: int(f.unsure.Load()), Asked: int(f.asked.Load()),
		Violations: append(f.broken, judge(h)...),
	}
	for _, o := range h.Ops {
		if o.Outcome == check.NotApplied {
			report.NotApplied++
		}
	}
	return report, nil
}

// judgeAudits stops the nodes and holds their audits to what befell them.
func (r *Rig) judgeAudits(h check.History) (found trail.Found, err error) {
	token, err := r.Secured.NewToken(r.Nodes[0], namespace, "auditor")
	if err == nil {
		err = r.audits.Heads(token)
	}
	if err != nil {
		return found, err
	}
	for _, n := range r.Nodes {
		n.Stop(15 * time.Second)
	}
	return r.audits.Judge(h)
}

// judge holds what clients saw to what was promised.
func judge(h check.History) (all []check.Violation) {
	for _, c := range []func(check.History) []check.Violation{check.Sums, check.Answers, check.Holders, check.Tokens} {
		all = append(all, c(h)...)
	}
	return all
}

func (f *fleet) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ops)
}
