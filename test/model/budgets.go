package model

import (
	"slices"
	"time"

	"example.com/govnode/session"
)

// Budgets.

// bud is a budget. What is used of it is of the period that has the number, as
// long as anything is.
type bud struct {
	parent       string
	amount, used int64
	per, made    time.Duration
	period       int64
	serial       uint64
	depth        uint32
}

// charged is what a call was charged with.
type charged struct {
	session.Charge
	to     *bud // as it was then
	period int64
}

func (b *bud) now(now time.Duration) int64 {
	if b.per == 0 {
		return 0
	}
	return int64((now - b.made) / b.per)
}

func (b *bud) settle(now time.Duration) {
	if b.period != b.now(now) {
		b.used = 0
	}
	if b.used == 0 {
		b.period = 0
	}
}

func (b *bud) use(now time.Duration, by int64) {
	if b.used = max(0, b.used+by); b.used > 0 {
		b.period = b.now(now)
	}
	b.settle(now)
}

// reached is the share that is told, in percent.
func (b *bud) reached() uint8 {
	switch {
	case b.used >= b.amount:
		return 100
	case 5*b.used >= 4*b.amount:
		return 80
	}
	return 0
}

// total is what a node is charged: its own and what those below it are.
func total(nodes []session.Charge, name string) (sum int64) {
	for _, n := range nodes {
		if n.Budget == name {
			sum += n.Amount
		}
		if n.Parent == name {
			sum += total(nodes, n.Budget)
		}
	}
	return sum
}

func (s *space) children(name string) (n uint32) {
	for _, b := range s.budgets {
		if b.parent == name {
			n++
		}
	}
	return n
}

func (s *space) shown(name string, b *bud) session.BudgetCount {
	n := session.BudgetCount{
		Budget: name, Parent: b.parent, Amount: b.amount, Used: b.used, Per: b.per, Depth: b.depth, Children: s.children(name),
	}
	if b.per > 0 {
		n.PeriodEnds = b.per - (s.Now-b.made)%b.per
	}
	return n
}

// told changes a budget, and tells if that makes it reach a share.
func (s *space) told(name string, b *bud, change func(), r *session.Result) {
	before := b.reached()
	change()
	if after := b.reached(); after > before {
		n := s.shown(name, b)
		n.Crossed = after
		r.Budgets = append(r.Budgets, n)
	}
}

func (s *space) budgetsStand(c *session.Begin, r *session.Result) bool {
	for _, n := range c.Budgets {
		if b := s.budgets[n.Budget]; b == nil || b.parent != n.Parent {
			r.Code, r.Names = session.StalePremise, append(r.Names, n.Budget)
		}
	}
	return r.Code != session.StalePremise
}

// budgetsAllow also returns what is remembered of a refusal.
func (s *space) budgetsAllow(c *session.Begin, r *session.Result) (session.Code, uint64) {
	for i, n := range c.Budgets {
		if b := s.budgets[n.Budget]; b.used+total(c.Budgets, n.Budget) > b.amount {
			r.Budgets = []session.BudgetCount{s.shown(n.Budget, b)}
			return session.BudgetExceeded, uint64(i)<<60 + uint64(max(0, b.amount-b.used))
		}
	}
	return session.Done, 0
}

func (s *space) charge(c *session.Begin, h *held, r *session.Result) {
	for _, n := range c.Budgets {
		b := s.budgets[n.Budget]
		h.charges = append(h.charges, charged{n, b, b.now(s.Now)})
		s.told(n.Budget, b, func() { b.use(s.Now, total(c.Budgets, n.Budget)) }, r)
	}
}

// settled corrects a charge: more counts in any case, less if nothing has begun
// anew.
func (s *space) settled(c *session.End, h *held, r *session.Result) {
	var assumed, spent []session.Charge
	for _, ch := range h.charges {
		assumed = append(assumed, ch.Charge)
		for _, n := range c.Spent {
			if n.Budget == ch.Budget {
				ch.Amount = n.Amount
			}
		}
		spent = append(spent, ch.Charge)
	}
	for _, ch := range h.charges {
		b := s.budgets[ch.Budget]
		by := total(spent, ch.Budget) - total(assumed, ch.Budget)
		if b == ch.to && (by > 0 || by < 0 && b.now(s.Now) == ch.period) {
			s.told(ch.Budget, b, func() { b.use(s.Now, by) }, r)
		}
	}
}

func (h *held) budgets() (names []string) {
	for _, ch := range h.charges {
		names = append(names, ch.Budget)
	}
	return names
}

// billed reports whether what an end says of budgets is of its call.
func (h *held) billed(c *session.End, r *session.Result) bool {
	for _, name := range h.budgets() {
		if !slices.Contains(c.Budgets, name) {
			r.Code, r.Pools, r.Names = session.StalePremise, poolsOf(h), h.budgets()
			return false
		}
	}
	for _, n := range c.Spent {
		if !slices.Contains(h.budgets(), n.Budget) {
			r.Code, r.Names = session.Invalid, []string{n.Budget}
			return false
		}
	}
	return true
}

func (s *space) putBudget(c *session.PutBudget, r *session.Result) bool {
	if b := s.budgets[c.Budget]; b != nil {
		if b.parent != c.Parent || b.per != c.Per {
			r.Code, r.Budgets = session.Invalid, []session.BudgetCount{s.shown(c.Budget, b)}
			return false
		}
		s.told(c.Budget, b, func() { b.amount = c.Amount }, r)
		return true
	}
	b := &bud{parent: c.Parent, amount: c.Amount, per: c.Per, made: s.Now, depth: 1}
	if c.Parent != "" {
		up := s.budgets[c.Parent]
		if up == nil {
			r.Code, r.Names = session.NotFound, []string{c.Parent}
			return false
		}
		if b.depth = up.depth + 1; b.depth > 8 {
			r.Code, r.Limit = session.Invalid, 8
			return false
		}
	}
	s.budgetsMade++
	b.serial = s.budgetsMade
	s.budgets[c.Budget] = b
	return true
}

func (s *space) adjustBudget(c *session.AdjustBudget, r *session.Result) bool {
	if s.budgets[c.Budget] == nil {
		r.Code = session.NotFound
		return false
	}
	path := append([]string{c.Budget}, c.Ancestors...)
	for i, name := range path {
		if b := s.budgets[name]; b == nil || b.parent != append(path, "")[i+1] {
			r.Code, r.Names = session.StalePremise, []string{name}
			return false
		}
	}
	if used := s.budgets[c.Budget].used; -c.Amount > used {
		r.Code, r.Limit = session.Invalid, used
		return false
	}
	for _, name := range path {
		b := s.budgets[name]
		s.told(name, b, func() { b.use(s.Now, c.Amount) }, r)
	}
	return true
}

func (s *space) deleteBudget(c *session.DeleteBudget, r *session.Result) bool {
	b := s.budgets[c.Budget]
	switch {
	case b == nil:
		r.Code = session.NotFound
	case b.parent != c.Parent:
		r.Code, r.Names = session.StalePremise, []string{b.parent}
	case s.children(c.Budget) > 0:
		r.Code, r.Limit = session.BudgetHasChildren, int64(s.children(c.Budget))
	default:
		delete(s.budgets, c.Budget)
		return true
	}
	return false
}

// show puts the budget of a request first.
func (s *space) show(name string, r *session.Result) {
	if r.Code != session.Done {
		return
	}
	crossed := r.Budgets
	r.Budgets = nil
	if b := s.budgets[name]; b != nil {
		n := s.shown(name, b)
		if i := slices.IndexFunc(crossed, func(n session.BudgetCount) bool { return n.Budget == name }); i >= 0 {
			n.Crossed = crossed[i].Crossed
			crossed = slices.Delete(crossed, i, i+1)
		}
		r.Budgets = []session.BudgetCount{n}
	}
	r.Budgets = append(r.Budgets, crossed...)
}
