package model

import (
	"math/rand/v2"
	"slices"
	"time"

	"example.com/govnode/session"
)

// A Step is an entry of commands, and whether a replica was cut before it.
type Step struct {
	At       time.Duration
	Commands []session.Command
	Cut      Cut
}

// A Cut says what becomes of the replica that is cut.
type Cut uint8

const (
	NoCut      Cut = iota
	CutOwn         // it goes on from a snapshot of its own
	CutAnother     // it goes on from a snapshot of another replica, and what came since
)

// A Generator makes steps from a seed. It looks at a model to which its steps
// are applied, so that it finds tokens, deadlines and premises that matter; and
// it never looks at what it tests. Names are few so that they collide.
type Generator struct {
	*profile
	m      *Model
	r      *rand.Rand
	n      int
	past   []session.Command
	asked  map[string]session.Command // by who waits or holds
	calls  []string                   // recent ids
	slots  []string
	opened []string
}

// A profile is what differs between seeds: each has some kinds of commands often
// and others never.
type profile struct {
	weights  []int
	step     time.Duration // most steps are shorter
	steps    [4]int        // in a thousand: at a deadline, a jump, hours, back
	cuts     int           // in ten thousand
	timed    int           // ids with a time, in ten
	sessions int
	clients  int
	pools    int
	tools    int
	names    int
	agents   int
	slack    int32 // how large limits are
	priority int32
	crowd    bool // nothing ends
	one      bool // of sessions
	large    bool // items of lists
	known    bool // nodes know who asks
}

var namespaces = []string{"one", "two"}

// NewGenerator returns the generator of a seed, for a model that is empty.
func NewGenerator(seed uint64, m *Model) *Generator {
	r := rand.New(rand.NewPCG(seed, 0x10))
	p := &profile{
		step:  []time.Duration{time.Millisecond, 200 * time.Millisecond, 1500 * time.Millisecond}[r.IntN(3)],
		steps: [4]int{10 + r.IntN(80), 1 + r.IntN(8), r.IntN(4), r.IntN(50)},
		cuts:  40, timed: []int{0, 5, 9, 10}[r.IntN(4)], sessions: 1 + r.IntN(4), clients: 1 + r.IntN(3), pools: 1 + r.IntN(3), tools: 3, names: 3, agents: 2,
		slack: []int32{1, 2, 4}[r.IntN(3)], priority: int32(1 + r.IntN(3)),
	}
	for _, k := range kinds {
		p.weights = append(p.weights, k.often*[]int{1, 2, 2, 4}[r.IntN(4)])
	}
	rarely := func(often map[string]int) { // all that is not named is rare, and no session is closed
		for i, k := range kinds {
			if p.weights[i] = max(1, often[k.name]); k.name == "close" {
				p.weights[i] = 0
			}
		}
		p.sessions, p.clients, p.one, p.steps, p.step = 1, 1, true, [4]int{2, 0, 0, 10}, time.Millisecond
	}
	switch seed % 10 {
	case 0: // up to the caps of what is open
		rarely(map[string]int{"begin": 100, "acquire": 100})
		p.crowd, p.slack = true, 2000
	case 1: // up to the cap of tools
		rarely(map[string]int{"begin": 100, "end": 60})
		p.tools, p.slack, p.steps[0] = 400, 400, 0
	case 2: // up to the cap of names
		rarely(map[string]int{"putPolicy": 200})
		p.names = 1500
	case 3: // up to what a session remembers
		rarely(map[string]int{"begin": 100, "end": 100})
		p.slack = 500
	case 4: // up to what a client remembers
		rarely(map[string]int{"increment": 100, "acquire": 20, "release": 40})
	case 5: // up to the cap of a list
		p.large = true
	case 6: // up to the cap of signals
		rarely(map[string]int{"signal": 100})
		p.agents = 400
	}
	p.known = r.IntN(3) > 0
	return &Generator{profile: p, m: m, r: r, asked: map[string]session.Command{}}
}

// Step returns the next step; the caller applies it to the model.
func (g *Generator) Step() Step {
	s := Step{At: g.time()}
	if g.r.IntN(10_000) < g.cuts {
		s.Cut = Cut(1 + g.r.IntN(2))
	}
	n := 1
	if g.r.IntN(4) == 0 {
		n += g.r.IntN(6)
	}
	for range n {
		s.Commands = append(s.Commands, g.command())
	}
	return s
}

// time lets time step a little, mostly; else to a deadline, or just before or
// behind it, or far, or back.
func (g *Generator) time() time.Duration {
	p := g.r.IntN(1000)
	for i, often := range g.steps {
		if p -= often; p >= 0 {
			continue
		}
		switch i {
		case 0:
			if all := g.m.deadlines(); len(all) > 0 && (all[0] < g.m.Now+time.Minute || g.once(20)) {
				return all[g.r.IntN(min(4, len(all)))] + time.Duration(g.r.IntN(3)-1)
			}
		case 1:
			return g.m.Now + time.Duration(g.r.IntN(40_000))*time.Millisecond
		case 2:
			return g.m.Now + time.Duration(g.r.IntN(20))*10*time.Minute
		case 3:
			return max(0, g.m.Now-time.Duration(g.r.IntN(20))*time.Second)
		}
	}
	if p < 300 {
		return g.m.Now
	}
	return g.m.Now + time.Duration(g.r.Int64N(int64(g.step)))
}

// deadlines are the instants at which something ends, in order.
func (m *Model) deadlines() (all []time.Duration) {
	add := func(at time.Duration) {
		if at > m.Now {
			all = append(all, at)
		}
	}
	for _, s := range m.spaces {
		for _, x := range s.sessions {
			add(x.used + x.idle)
			add(x.used + keptFor)
			add(x.opened + x.limits.Timeout)
			for _, h := range x.open {
				add(h.deadline)
			}
		}
		for _, x := range s.clients {
			add(x.used + keptFor)
		}
		for _, p := range s.pools {
			for _, l := range p.leases {
				add(l.expires)
			}
			for _, t := range p.queue {
				add(t.lapses())
			}
		}
		for _, b := range s.budgets {
			if b.per > 0 {
				add(b.made + time.Duration(b.now(m.Now)+1)*b.per)
			}
		}
		for _, a := range s.approvals {
			add(a.deadline)
			add(a.ended + keptFor)
		}
		for _, a := range s.standings {
			add(a.until)
		}
		for _, x := range s.counters {
			add(x.until)
		}
		for _, l := range s.lists {
			add(l.until)
			for _, i := range l.items {
				add(i.until)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// command returns the next command. One in eight was sent before, perhaps with
// something else in it.
func (g *Generator) command() session.Command {
	if len(g.past) > 0 && g.r.IntN(8) == 0 {
		return g.authorized(g.again(g.past[max(0, len(g.past)-1-g.r.IntN(40))]))
	}
	c := g.authorized(g.judged(g.fresh()))
	if g.past = append(g.past, c); len(g.past) > 100 {
		g.past = g.past[50:]
	}
	return c
}

// kinds are what commands are made of; often is how often, compared to others.
var kinds = []struct {
	name  string
	often int
	make  func(*Generator) session.Command
}{
	{"open", 6, (*Generator).open},
	{"begin", 22, (*Generator).begin},
	{"claim", 10, (*Generator).claim},
	{"end", 14, (*Generator).end},
	{"cancel", 4, (*Generator).cancel},
	{"close", 1, (*Generator).close},
	{"acquire", 10, (*Generator).acquire},
	{"release", 8, (*Generator).release},
	{"renew", 6, (*Generator).renew},
	{"force", 2, (*Generator).force},
	{"putPool", 3, (*Generator).putPool},
	{"deletePool", 1, (*Generator).deletePool},
	{"putPolicy", 3, (*Generator).putPolicy},
	{"deletePolicy", 1, (*Generator).deletePolicy},
	{"set", 2, (*Generator).set},
	{"delete", 1, (*Generator).delete},
	{"increment", 3, (*Generator).increment},
	{"putHash", 1, (*Generator).putHash},
	{"repair", 1, (*Generator).repair},
	{"putRate", 2, (*Generator).putRate},
	{"deleteRate", 1, (*Generator).deleteRate},
	{"takeRate", 5, (*Generator).takeRate},
	{"putBudget", 4, (*Generator).putBudget},
	{"adjustBudget", 2, (*Generator).adjustBudget},
	{"deleteBudget", 1, (*Generator).deleteBudget},
	{"append", 3, (*Generator).append},
	{"deleteList", 1, (*Generator).deleteList},
	{"tick", 2, (*Generator).tick},
	{"signal", 3, (*Generator).signal},
	{"swept", 2, (*Generator).swept},
	{"access", 1, (*Generator).access},
	{"decide", 9, (*Generator).decide},
	{"ask", 1, (*Generator).ask},
	{"cancelApproval", 1, (*Generator).cancelApproval},
	{"putStanding", 2, (*Generator).putStanding},
	{"deleteStanding", 1, (*Generator).deleteStanding},
}

func (g *Generator) fresh() session.Command {
	g.n++
	if g.n < 8 || g.n%97 == 0 { // there is something to begin with
		return []func() session.Command{g.putPolicy, g.putPool, g.open, g.putPolicy, g.putPool}[g.n%5]()
	}
	if g.r.IntN(1500) == 0 && !g.crowd {
		return &session.Restore{}
	}
	sum := 0
	for _, w := range g.weights {
		sum += w
	}
	at := g.r.IntN(sum)
	for i, w := range g.weights {
		if at -= w; at < 0 {
			c := kinds[i].make(g)
			switch c.(type) {
			case *session.End, *session.Close, *session.Release, *session.ForceRelease, *session.Cancel:
				if g.crowd && g.r.IntN(20) > 0 {
					return []func() session.Command{g.begin, g.acquire}[g.r.IntN(2)]()
				}
			}
			return c
		}
	}
	panic("model: no kind")
}

// again returns a command that was sent before, sometimes with other content.
func (g *Generator) again(c session.Command) session.Command {
	if g.r.IntN(6) > 0 {
		return c
	}
	by := func(m session.Maker) session.Maker {
		m.Content[2]++
		return m
	}
	switch c := c.(type) {
	case *session.Open:
		d := *c
		d.Content[2]++
		return &d
	case *session.Begin:
		d := *c
		d.Content[2]++
		return &d
	case *session.Acquire:
		d := *c
		d.Content[2]++
		return &d
	case *session.End:
		d := *c
		d.Status = session.Status(1 + g.r.IntN(3))
		return &d
	case *session.TakeRate:
		d := *c
		d.Content[2]++
		return &d
	case *session.Increment:
		d := *c
		d.By = by(c.By)
		return &d
	case *session.PutPool:
		d := *c
		d.By = by(c.By)
		return &d
	}
	return c
}

func pick[T any](g *Generator, of ...T) T { return of[g.r.IntN(len(of))] }

// once reports true once in n times.
func (g *Generator) once(n int) bool { return g.r.IntN(n) == 0 }
