package model

import (
	"fmt"
	"slices"
	"time"

	"example.com/govnode/session"
)

// Commands of rates that a Generator makes.

var pers = []time.Duration{session.MinPer, time.Second, time.Second, 7 * time.Second, time.Minute, time.Hour}

func (g *Generator) rate() string { return fmt.Sprintf("r%d", g.r.IntN(g.pools)) }

func (g *Generator) putRate() session.Command {
	return &session.PutRate{NS: g.ns(), By: g.maker(), Rate: g.rate(), Limit: pick(g, 1, 3, 20*g.slack, session.MaxRate), Per: pick(g, pers...), Queue: g.r.Int32N(5)}
}

func (g *Generator) deleteRate() session.Command {
	return &session.DeleteRate{NS: g.ns(), By: g.maker(), Rate: g.rate()}
}

func (g *Generator) takeRate() session.Command {
	ns := g.ns()
	c := &session.TakeRate{NS: ns, Client: g.client(), ID: g.id("l"), Content: g.content(), Rate: g.rate(), Cost: g.cost(), Priority: g.r.Int32N(g.priority) - 1}
	if g.m.space(ns).pools[session.RatePool(c.Rate)] == nil && !g.once(4) {
		return g.putRate()
	}
	if c.Wait, _ = g.wait(); g.once(20) {
		c.ID = g.recent(&g.slots, "l", 10)
	}
	r := ref{c.NS, c.Client, false, &held{id: c.ID}}
	g.asked[r.key()] = c
	return c
}

func (g *Generator) cost() int32 { return pick[int32](g, 1, 1, 1, 2, 4, 30) }

// rates are those that a call names, in order: of a policy, whose versions have
// windows of different lengths, and others.
func (g *Generator) rates(ns string, c *session.Begin) (all []session.RateWant) {
	add := func(w session.RateWant) {
		if w.Tokens = g.once(3); w.Tokens {
			w.Cost = int32(max(c.Tokens, 1))
		}
		all = append(all, w)
	}
	for _, name := range []string{"policy//all", "policy/p0/x", "policy/p0/x#s1"} {
		if g.once(8) {
			add(session.RateWant{Pool: session.RatePool(name), Cost: 1, Limit: pick[int32](g, 2, 2, 10, 1000), Per: pick(g, time.Second, time.Second, 5*time.Second)})
		}
	}
	for i := range g.pools {
		pool := session.RatePool(fmt.Sprintf("r%d", i))
		if g.once(5) && (g.m.space(ns).pools[pool] != nil || g.once(20)) {
			add(session.RateWant{Pool: pool, Cost: g.cost()})
		}
	}
	return all
}

// spentMuch is of calls that have spent more than one at a rate where somebody waits.
func (g *Generator) spentMuch(ns string) func(*held) bool {
	pools := g.m.space(ns).pools
	return func(h *held) bool {
		return slices.ContainsFunc(h.spent, func(at spent) bool { p := pools[at.pool]; return p != nil && at.weight > 1 && len(p.queue) > 0 })
	}
}
