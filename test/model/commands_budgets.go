package model

import (
	"maps"
	"slices"
	"time"

	"example.com/govnode/session"
)

// Commands of budgets, and what calls charge.

func (g *Generator) budget(ns string) string {
	if all := slices.Sorted(maps.Keys(g.m.space(ns).budgets)); len(all) > 0 && !g.once(10) {
		return pick(g, all...)
	}
	return string(rune('u' + g.r.IntN(4)))
}

func (g *Generator) amount() int64 {
	return pick[int64](g, 0, 1, 2, 5, 10, 10, 20, 50) * int64(g.slack)
}

func (g *Generator) putBudget() session.Command {
	ns := g.ns()
	c := &session.PutBudget{NS: ns, By: g.maker(), Budget: string(rune('u' + g.r.IntN(4))), Amount: g.amount() * pick[int64](g, 1, 1, 100), Per: pick(g, 0, time.Second, 10*time.Second, time.Minute)}
	if g.once(3) {
		c.Budget += pick(g, "1", "2", "3", "4", "5", "6", "7", "8", "9") // so that some are deep
	}
	if _, gone := g.charged(ns, func(b *bud, _ charged) bool { return b == nil }); len(gone) > 0 && g.once(2) {
		c.Budget = pick(g, gone...) // and the end of the call is none of its business
	}
	if b := g.m.space(ns).budgets[c.Budget]; b != nil && !g.once(5) {
		c.Parent, c.Per = b.parent, b.per
	} else if up := g.budget(ns); g.once(2) && up != c.Budget {
		c.Parent = up
	}
	return c
}

// above names what is above a budget, rarely not all of it.
func (g *Generator) above(ns, name string) (names []string) {
	for b := g.m.space(ns).budgets[name]; b != nil && b.parent != ""; b = g.m.space(ns).budgets[b.parent] {
		names = append(names, b.parent)
	}
	if len(names) > 0 && g.once(10) {
		names = names[1:]
	}
	return names
}

func (g *Generator) adjustBudget() session.Command {
	c := &session.AdjustBudget{NS: g.ns(), By: g.maker(), Amount: g.amount() - int64(20*g.slack)}
	c.Budget = g.budget(c.NS)
	if name := g.awaited(c.NS); name != "" && g.once(2) { // and gone when it is charged
		b := g.m.space(c.NS).budgets[name]
		c.Budget, c.Amount = name, max(1, b.amount-b.used)
	}
	if _, names := g.charged(c.NS, func(b *bud, ch charged) bool { return g.passed(b, ch) && b.used == 0 }); len(names) > 0 && g.once(2) {
		c.Budget, c.Amount = pick(g, names...), 1+g.amount() // something is used of the period that follows
	}
	c.Ancestors = g.above(c.NS, c.Budget)
	return c
}

// awaited is a budget that a call which waits will be charged to; empty if there is
// none.
func (g *Generator) awaited(ns string) string {
	var names []string
	for _, r := range g.m.open(ns, func(h *held) bool { return h.until != 0 }) {
		if b, ok := g.asked[r.key()].(*session.Begin); ok {
			for _, n := range b.Budgets {
				if g.m.space(ns).budgets[n.Budget] != nil && n.Amount > 0 {
					names = append(names, n.Budget)
				}
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return pick(g, names...)
}

// charged are the calls, and the budgets that they were charged to, of which keep says so:
// it is told what stands under the name by now, nil if nothing does.
func (g *Generator) charged(ns string, keep func(b *bud, ch charged) bool) (calls []ref, names []string) {
	for _, r := range g.m.open(ns, func(h *held) bool { return len(h.charges) > 0 }) {
		for _, ch := range r.charges {
			if keep(g.m.space(ns).budgets[ch.Budget], ch) {
				calls, names = append(calls, r), append(names, ch.Budget)
			}
		}
	}
	return calls, names
}

// passed reports whether what a call was charged is of a period that is over.
func (g *Generator) passed(b *bud, ch charged) bool {
	return b != nil && b == ch.to && ch.Amount > 0 && b.now(g.m.Now) != ch.period
}

// lateFor is passed, where something is used of the present period.
func (g *Generator) lateFor(b *bud, ch charged) bool {
	return g.passed(b, ch) && b.used > 0 && b.period == b.now(g.m.Now)
}

func (g *Generator) deleteBudget() session.Command {
	c := &session.DeleteBudget{NS: g.ns(), By: g.maker()}
	c.Budget = g.budget(c.NS)
	if _, open := g.charged(c.NS, func(b *bud, ch charged) bool { return b != nil && b == ch.to }); len(open) > 0 && g.once(2) {
		c.Budget = pick(g, open...)
	}
	if up := g.above(c.NS, c.Budget); len(up) > 0 {
		c.Parent = up[0]
	}
	return c
}

// charges are what a call charges: two budgets at most, with all above them.
func (g *Generator) charges(ns string) (nodes []session.Charge) {
	own := map[string]int64{}
	for range g.r.IntN(3) {
		name := g.budget(ns)
		if g.m.space(ns).budgets[name] == nil && !g.once(4) {
			continue
		}
		own[name] += g.amount() / 4
		for b := g.m.space(ns).budgets[name]; b != nil && b.parent != ""; b = g.m.space(ns).budgets[b.parent] {
			own[b.parent] += 0
		}
	}
	if len(own) > session.MaxBudgets {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		n := session.Charge{Budget: name, Amount: own[name]}
		if b := g.m.space(ns).budgets[name]; b != nil && !g.once(40) {
			n.Parent = b.parent
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// bill says what a call has spent of what it was charged with.
func (g *Generator) bill(c *session.End, h *held) {
	if c.Budgets = h.budgets(); g.once(15) && len(c.Budgets) > 0 {
		c.Budgets = c.Budgets[1:]
	}
	for _, name := range h.budgets() {
		if g.once(2) {
			c.Spent = append(c.Spent, session.Bill{Budget: name, Amount: g.amount() / 2})
		}
	}
	if g.once(40) {
		c.Spent = append(c.Spent, session.Bill{Budget: "zzz"})
	}
}
