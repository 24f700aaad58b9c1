package session

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"example.com/govnode/session/approval"
	"example.com/govnode/session/budget"
)

// Budgets in messages: what commands may say of them, and their encoding.

func (v *validator) charges(nodes []Charge) {
	v.count("Budgets", len(nodes), 0, MaxBudgets)
	for i := range nodes {
		n := &nodes[i]
		if v.err != nil {
			return
		}
		field := indexed("Budgets", i)
		if i > 0 && n.Budget <= nodes[i-1].Budget {
			v.fail(field+".Budget", "is not behind the one before it; order budgets by name and name each once")
		}
		v.id(field+".Budget", n.Budget)
		v.optional(field+".Parent", n.Parent)
		between(v, field+".Amount", n.Amount, 0, budget.MaxAmount)
	}
	if len(nodes) == 0 || v.err != nil {
		return
	}
	if at, problem := budget.Problem(nodes); problem != "" {
		v.fail(indexed("Budgets", at)+".Parent", problem)
	}
}

func (v *validator) spent(c *End) {
	v.names("Budgets", c.Budgets, MaxBudgets)
	v.count("Spent", len(c.Spent), 0, MaxBudgets)
	for i, n := range c.Spent {
		if v.err != nil {
			return
		}
		field := indexed("Spent", i)
		v.id(field+".Budget", n.Budget)
		if slices.ContainsFunc(c.Spent[:i], func(o Bill) bool { return o.Budget == n.Budget }) {
			v.fail(field+".Budget", "is named twice; give what was spent once")
		}
		between(v, field+".Amount", n.Amount, 0, budget.MaxAmount)
	}
}

func (v *validator) names(field string, names []string, most int) {
	v.count(field, len(names), 0, most)
	for i, name := range names {
		if v.err != nil {
			return
		}
		v.id(indexed(field, i), name)
		if contains(names[:i], name) {
			v.fail(indexed(field, i), "is named twice; name each once")
		}
	}
}

func (v *validator) putBudget(c *PutBudget) {
	v.of = "PutBudget"
	v.request(c.NS, c.By)
	v.id("Budget", c.Budget)
	v.optional("Parent", c.Parent)
	if c.Parent == c.Budget {
		v.fail("Parent", "is the budget itself; name another one, or none")
	}
	between(v, "Amount", c.Amount, 0, budget.MaxAmount)
	if c.Per != 0 {
		between(v, "Per", c.Per, MinBudgetPer, MaxBudgetPer)
	}
}

func (v *validator) adjustBudget(c *AdjustBudget) {
	v.of = "AdjustBudget"
	v.request(c.NS, c.By)
	v.id("Budget", c.Budget)
	v.names("Ancestors", c.Ancestors, budget.MaxDepth-1)
	if contains(c.Ancestors, c.Budget) {
		v.fail("Ancestors", "have the budget itself among them; name those above it")
	}
	between(v, "Amount", c.Amount, -budget.MaxAmount, budget.MaxAmount)
}

func (v *validator) deleteBudget(c *DeleteBudget) {
	v.of = "DeleteBudget"
	v.request(c.NS, c.By)
	v.id("Budget", c.Budget)
	v.optional("Parent", c.Parent)
}

func (c *PutBudget) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Budget)
	f.Kept(4, &c.Parent)
	f.Sint64(5, &c.Amount)
	f.Duration(6, &c.Per)
}

func (c *AdjustBudget) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Budget)
	f.Texts(4, &c.Ancestors)
	f.Sint64(5, &c.Amount)
}

func (c *DeleteBudget) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Budget)
	f.Text(4, &c.Parent)
}

func (f *codec) charges(num protowire.Number, v *[]Charge) {
	for i, n := elements(f, num, v, MaxBudgets); i < n; i++ {
		for m := f.Message(num, true); f.Visit(&m); {
			f.Text(1, &(*v)[i].Budget)
			f.Text(2, &(*v)[i].Parent)
			f.Sint64(3, &(*v)[i].Amount)
		}
	}
}

func (f *codec) bills(num protowire.Number, v *[]Bill) {
	for i, n := elements(f, num, v, MaxBudgets); i < n; i++ {
		for m := f.Message(num, true); f.Visit(&m); {
			f.Text(1, &(*v)[i].Budget)
			f.Sint64(2, &(*v)[i].Amount)
		}
	}
}

func (b *Budget) fields(f *codec) {
	f.Kept(1, &b.Parent)
	f.Sint64(2, &b.Amount)
	f.Sint64(3, &b.Used)
	f.Duration(4, &b.Per)
	f.Duration(5, &b.Made)
	f.Int64(6, &b.Period)
	f.Uint32(7, &b.Depth)
	f.Uint32(8, &b.Children)
	f.Uint64(9, &b.Serial)
}

func (g *HeldGates) fields(f *codec) {
	if f.Field() == 1 && g.Asked == nil {
		g.Asked = new(approval.Clock)
	}
	for m := f.Message(1, g.Asked != nil); f.Visit(&m); {
		clockFields(f, g.Asked)
	}
	f.digest(2, &g.Request)
	f.Fingerprint(3, (*[8]byte)(&g.Owner))
	for i, n := elements(f, 10, &g.Rates, MaxRates); i < n; i++ {
		for m := f.Message(10, true); f.Visit(&m); {
			r := &g.Rates[i]
			f.Name(1, &r.Pool)
			f.Uint64(2, &r.Token)
			f.Int32(3, &r.Weight)
			f.Duration(4, &r.Per)
		}
	}
	for i, n := elements(f, 20, &g.Charges, MaxBudgets); i < n; i++ {
		for m := f.Message(20, true); f.Visit(&m); {
			f.Name(1, &g.Charges[i].Budget)
			f.Name(2, &g.Charges[i].Parent)
			f.Sint64(3, &g.Charges[i].Amount)
			f.Uint64(4, &g.Charges[i].Serial)
			f.Int64(5, &g.Charges[i].Period)
		}
	}
}

func (n *BudgetCount) fields(f *codec) {
	f.Text(1, &n.Budget)
	f.Text(2, &n.Parent)
	f.Sint64(3, &n.Amount)
	f.Sint64(4, &n.Used)
	f.Duration(5, &n.Per)
	f.Duration(6, &n.PeriodEnds)
	f.Uint32(7, &n.Depth)
	f.Uint32(8, &n.Children)
	f.Uint8(9, &n.Crossed, 255)
}
