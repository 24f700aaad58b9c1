package sessiontest

import (
	"time"

	"example.com/govnode/session"
)

// Budgets of a history: a tree of three levels, and one with a period.

var budgets = []string{"bob", "hour", "org", "team"}

func parentOf(budget string) string { return map[string]string{"bob": "team", "team": "org"}[budget] }

func putBudgets() (cmds []session.Command) {
	for _, name := range []string{"org", "team", "bob", "hour"} {
		c := &session.PutBudget{NS: NS, Budget: name, Parent: parentOf(name), Amount: 40, By: session.Maker{Client: "setup", Request: "budget-" + name}}
		if name == "hour" {
			c.Per = 20 * time.Second
		}
		cmds = append(cmds, c)
	}
	return cmds
}

// charges are what a call charges: mostly nothing.
func (h *History) charges() (nodes []session.Charge) {
	if h.r.IntN(3) > 0 {
		return nil
	}
	for _, name := range budgets {
		n := session.Charge{Budget: name, Parent: parentOf(name)}
		if name != "org" && h.r.IntN(3) > 0 {
			n.Amount = int64(h.r.IntN(6))
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// bill names what a call was charged to, and sometimes what it has spent.
func (h *History) bill(c *session.End, b *session.Begin) {
	for _, n := range b.Budgets {
		c.Budgets = append(c.Budgets, n.Budget)
		if h.r.IntN(2) == 0 {
			c.Spent = append(c.Spent, session.Bill{Budget: n.Budget, Amount: int64(h.r.IntN(8))})
		}
	}
}

// ofBudgets changes a budget: makes it, deletes it, or gives back much.
func (h *History) ofBudgets() session.Command {
	name := budgets[h.r.IntN(len(budgets))]
	switch h.r.IntN(4) {
	case 0:
		return &session.DeleteBudget{NS: NS, By: h.maker(), Budget: name, Parent: parentOf(name)}
	case 1:
		put := putBudgets()[h.r.IntN(len(budgets))].(*session.PutBudget)
		put.By, put.Amount = h.maker(), int64(20+h.r.IntN(40))
		return put
	}
	c := &session.AdjustBudget{NS: NS, By: h.maker(), Budget: name, Amount: int64(h.r.IntN(10) - 15)}
	for up := parentOf(name); up != ""; up = parentOf(up) {
		c.Ancestors = append(c.Ancestors, up)
	}
	return c
}
