package session

import (
	"time"
	"unique"

	"example.com/govnode/session/approval"
	"example.com/govnode/session/budget"
)

// Budgets: how they are put, charged at admission, corrected at the end of a
// call, adjusted and deleted.

const (
	// MaxBudgets is how many budgets one call charges, ancestors included.
	MaxBudgets = 16
	// MinBudgetPer and MaxBudgetPer bound the period of a budget.
	MinBudgetPer = time.Second
	MaxBudgetPer = 366 * 24 * time.Hour
)

// Budget is the record of a budget: a node of a tree.
type Budget struct {
	entry uint64
	budget.Budget
	Parent   string
	Depth    uint32 // 1 for a root
	Children uint32
	Serial   uint64 // of all budgets ever made in the namespace
}

// A Charge is what a call charges a budget with, as the command says it; Parent
// is a premise.
type Charge = budget.Node

// A Bill is what a call has cost a budget that it named.
type Bill struct {
	Budget string
	Amount int64
}

// HeldGates are what an open call has beside its slots; immutable.
type HeldGates struct {
	Asked   *approval.Clock // of the approval that it waits for; nil once it is admitted
	Request Digest          // that was agreed to, of one that was asked about
	Rates   []Spent         // that are corrected at its end
	Charges []Charged
	Owner   Principal // who took a slot of a client; zero if nobody was asked
}

// Charged is what a call was charged with at its admission.
type Charged struct {
	Budget, Parent unique.Handle[string]
	Amount         int64 // its own share, see budget.Node
	Serial         uint64
	Period         int64
}

// BudgetCount is a budget as an answer shows it.
type BudgetCount struct {
	Budget, Parent string
	Amount, Used   int64
	Per            time.Duration
	PeriodEnds     time.Duration // what is left of the period
	Depth          uint32
	Children       uint32
	Crossed        uint8 // the share in percent that the command made it reach
}

type (
	// PutBudget makes a budget, or changes its amount. Parent and Per are those
	// that it was made with.
	PutBudget struct {
		Authorized
		NS     string
		By     Maker
		Budget string
		Parent string
		Amount int64
		Per    time.Duration
	}

	// AdjustBudget adds to what is used of a budget and of all its ancestors,
	// which are a premise, from its parent to the root.
	AdjustBudget struct {
		Authorized
		NS        string
		By        Maker
		Budget    string
		Ancestors []string
		Amount    int64
	}

	// DeleteBudget removes a budget without children. Parent is a premise.
	DeleteBudget struct {
		Authorized
		NS     string
		By     Maker
		Budget string
		Parent string
	}
)

// Left is what may still be spent.
func (n *BudgetCount) Left() int64 { return max(n.Amount-n.Used, 0) }

func budgetKeys(ns string, names []string, more []Key) []Key {
	for _, name := range names {
		if name != "" {
			more = append(more, BudgetKey(ns, name))
		}
	}
	return more
}

func (c *PutBudget) Touches() []Key {
	return budgetKeys(c.NS, []string{c.Budget, c.Parent}, c.By.touches(c.NS))
}

func (c *AdjustBudget) Touches() []Key {
	return budgetKeys(c.NS, c.Ancestors, append(c.By.touches(c.NS), BudgetKey(c.NS, c.Budget)))
}

func (c *DeleteBudget) Touches() []Key {
	return budgetKeys(c.NS, []string{c.Budget, c.Parent}, c.By.touches(c.NS))
}

func (*PutBudget) Kind() uint16    { return 31 }
func (*AdjustBudget) Kind() uint16 { return 32 }
func (*DeleteBudget) Kind() uint16 { return 33 }

func (c *PutBudget) from() (ns string, by Maker)    { return c.NS, c.By }
func (c *AdjustBudget) from() (ns string, by Maker) { return c.NS, c.By }
func (c *DeleteBudget) from() (ns string, by Maker) { return c.NS, c.By }

// At returns the budget with nothing used of a period that has begun since.
func (b *Budget) At(now time.Duration) Record {
	if at, ok := b.Due(); !ok || at > now {
		return b
	}
	c := *b
	c.Settle(now)
	return &c
}

// budget returns the budget as it stands, or nil.
func (s *State) budget(k ref) *Budget {
	b, _ := s.lookup(k).(*Budget)
	if b == nil {
		return nil
	}
	if at, ok := b.Due(); ok && at <= s.now {
		b = s.ownBudget(k, b)
		b.Settle(s.now)
	}
	return b
}

func (s *State) ownBudget(k ref, b *Budget) *Budget {
	if b.entry == s.entry {
		return b
	}
	c := *b
	c.entry = s.entry
	s.write(k, &c)
	return &c
}

// Count returns the budget as an answer shows it, at the time at which it stands.
func (b *Budget) Count(name string, now time.Duration) BudgetCount {
	n := BudgetCount{
		Budget: name, Parent: b.Parent, Amount: b.Amount, Used: b.Used, Per: b.Per, Depth: b.Depth, Children: b.Children,
	}
	if b.Per > 0 {
		n.PeriodEnds = b.Made + time.Duration(b.PeriodAt(now)+1)*b.Per - now
	}
	return n
}

// use adds to what is used, and tells if that crosses a share upwards.
func (s *State) use(k ref, b *Budget, by int64, r *Result) {
	b = s.ownBudget(k, b)
	before := b.Level()
	b.Add(s.now, by)
	s.tellLevel(k.name, b, before, r)
}

func (s *State) tellLevel(name string, b *Budget, before uint8, r *Result) {
	if level := b.Level(); level > before {
		n := b.Count(name, s.now)
		n.Crossed = level
		r.Budgets = append(r.Budgets, n)
	}
}

// budgetsStand reports whether the budgets that a call charges are there, each
// below the parent that the node has seen. Where one is not, nothing is counted.
func (s *State) budgetsStand(c *Begin, r *Result) bool {
	for _, n := range c.Budgets {
		if b := s.budget(ref{KindBudget, c.NS, n.Budget}); b == nil || b.Parent != n.Parent {
			r.Code = StalePremise
			r.Names = append(r.Names, n.Budget)
		}
	}
	return r.Code != StalePremise
}

// budgetsAllow refuses what would use more than the amount of one of the
// budgets, which the answer then shows.
func (s *State) budgetsAllow(c *Begin, r *Result) Code {
	if len(c.Budgets) == 0 {
		return Done
	}
	for i, total := range budget.Totals(c.Budgets) {
		if b := s.budget(ref{KindBudget, c.NS, c.Budgets[i].Budget}); !b.Allows(total) {
			r.Budgets = []BudgetCount{b.Count(c.Budgets[i].Budget, s.now)}
			return BudgetExceeded
		}
	}
	return Done
}

// charge charges what the call is assumed to cost, once it is admitted.
func (s *State) charge(c *Begin, h *Held, r *Result) {
	if len(c.Budgets) == 0 {
		return
	}
	charges := make([]Charged, len(c.Budgets))
	for i, total := range budget.Totals(c.Budgets) {
		n := &c.Budgets[i]
		k := ref{KindBudget, c.NS, n.Budget}
		b := s.budget(k)
		charges[i] = Charged{s.name(n.Budget), s.name(n.Parent), n.Amount, b.Serial, b.PeriodAt(s.now)}
		if total > 0 {
			s.use(k, b, total, r)
		}
	}
	h.changeGates(func(g *HeldGates) { g.Charges = charges })
}

// changeGates changes a copy, for what is there is shared with older states.
func (h *Held) changeGates(change func(g *HeldGates)) {
	var g HeldGates
	if h.Gates != nil {
		g = *h.Gates
	}
	change(&g)
	if h.Gates = &g; g.Asked == nil && g.Request == (Digest{}) && g.Rates == nil && g.Charges == nil && g.Owner == (Principal{}) {
		h.Gates = nil
	}
}

// Which of its budgets had no room for a call, and what was left there, is
// remembered in one number: both fit.
const leftBits = 60

func rememberBudget(c *Begin, r *Result) uint64 {
	for i := range c.Budgets {
		if n := &r.Budgets[0]; c.Budgets[i].Budget == n.Budget {
			return uint64(i)<<leftBits | uint64(n.Left())
		}
	}
	return 0
}

func recallBudget(c *Begin, value uint64, r *Result) {
	if i := int(value >> leftBits); i < len(c.Budgets) {
		n := &c.Budgets[i]
		r.Budgets = []BudgetCount{{Budget: n.Budget, Parent: n.Parent, Amount: int64(value & (1<<leftBits - 1))}}
	}
}

// charges are those of an open call.
func (h *Held) charges() []Charged {
	if h.Gates == nil {
		return nil
	}
	return h.Gates.Charges
}

// BudgetNames returns the budgets that an open call was charged to.
func (h *Held) BudgetNames() (names []string) {
	for _, c := range h.charges() {
		names = append(names, c.Budget.Value())
	}
	return names
}

// budgetsNamed reports whether the premise names every budget that the call was
// charged to, and what was spent only those.
func (h *Held) budgetsNamed(c *End, r *Result) bool {
	names := h.BudgetNames()
	for _, n := range names {
		if !contains(c.Budgets, n) {
			r.Code, r.Pools, r.Names = StalePremise, h.PoolNames(), names
			return false
		}
	}
	for _, n := range c.Spent {
		if !contains(names, n.Budget) {
			r.Code, r.Names = Invalid, []string{n.Budget}
			return false
		}
	}
	return true
}

// settleCharges corrects what a call was assumed to cost by what it has cost. What is
// more counts in the present period; what is less comes back only in the period
// of the admission. A budget that was made anew since is left alone.
func (s *State) settleCharges(c *End, h *Held, r *Result) {
	charges := h.charges()
	if len(c.Spent) == 0 || len(charges) == 0 {
		return
	}
	nodes := make([]budget.Node, len(charges))
	for i, ch := range charges {
		nodes[i] = budget.Node{Budget: ch.Budget.Value(), Parent: ch.Parent.Value(), Amount: ch.Amount}
	}
	assumed := budget.Totals(nodes)
	for i := range nodes {
		for _, n := range c.Spent {
			if n.Budget == nodes[i].Budget {
				nodes[i].Amount = n.Amount
			}
		}
	}
	for i, total := range budget.Totals(nodes) {
		k := ref{KindBudget, c.NS, nodes[i].Budget}
		b := s.budget(k)
		by := total - assumed[i]
		if b == nil || b.Serial != charges[i].Serial || by == 0 || by < 0 && b.PeriodAt(s.now) != charges[i].Period {
			continue
		}
		s.use(k, b, by, r)
	}
}

func (s *State) putBudget(c *PutBudget, r *Result) {
	k := ref{KindBudget, c.NS, c.Budget}
	b := s.budget(k)
	if b == nil {
		s.makeBudget(c, k, r)
		return
	}
	if b.Parent != c.Parent || b.Per != c.Per {
		r.Code, r.Budgets = Invalid, []BudgetCount{b.Count(c.Budget, s.now)}
		return
	}
	b = s.ownBudget(k, b)
	before := b.Level()
	b.Amount = c.Amount
	s.tellLevel(c.Budget, b, before, r)
}

func (s *State) makeBudget(c *PutBudget, k ref, r *Result) {
	b := &Budget{entry: s.entry, Parent: c.Parent, Depth: 1}
	b.Amount, b.Per, b.Made = c.Amount, c.Per, s.now
	if c.Parent != "" {
		pk := ref{KindBudget, c.NS, c.Parent}
		p := s.budget(pk)
		if p == nil {
			r.Code, r.Names = NotFound, []string{c.Parent}
			return
		}
		if p.Depth >= budget.MaxDepth {
			r.Code, r.Limit = Invalid, budget.MaxDepth
			return
		}
		p = s.ownBudget(pk, p)
		p.Children++
		b.Depth = p.Depth + 1
	}
	ns := s.namespace(c.NS)
	ns.Budgets++
	s.write(ref{KindNamespace, c.NS, ""}, &ns)
	b.Serial = ns.Budgets
	s.write(k, b)
}

func (s *State) adjustBudget(c *AdjustBudget, r *Result) {
	names := append([]string{c.Budget}, c.Ancestors...)
	for i, name := range names {
		b := s.budget(ref{KindBudget, c.NS, name})
		if b == nil && i == 0 {
			r.Code = NotFound
			return
		}
		parent := ""
		if i+1 < len(names) {
			parent = names[i+1]
		}
		if b == nil || b.Parent != parent {
			r.Code, r.Names = StalePremise, []string{name}
			return
		}
	}
	if used := s.budget(ref{KindBudget, c.NS, c.Budget}).Used; -c.Amount > used {
		r.Code, r.Limit = Invalid, used // what others have used of those above is not his to give back
		return
	}
	for _, name := range names {
		k := ref{KindBudget, c.NS, name}
		s.use(k, s.budget(k), c.Amount, r)
	}
}

func (s *State) deleteBudget(c *DeleteBudget, r *Result) {
	k := ref{KindBudget, c.NS, c.Budget}
	b := s.budget(k)
	switch {
	case b == nil:
		r.Code = NotFound
	case b.Parent != c.Parent:
		r.Code, r.Names = StalePremise, []string{b.Parent}
	case b.Children > 0:
		r.Code, r.Limit = BudgetHasChildren, int64(b.Children)
	default:
		if c.Parent != "" {
			pk := ref{KindBudget, c.NS, c.Parent}
			s.ownBudget(pk, s.budget(pk)).Children--
		}
		s.put(k, nil)
	}
}

// showBudget puts the budget of a request that was carried out, now or before,
// before those of which a share was crossed.
func (s *State) showBudget(ns, name string, r *Result) {
	var now []BudgetCount
	if b := s.budget(ref{KindBudget, ns, name}); b != nil {
		now = []BudgetCount{b.Count(name, s.now)}
	}
	for _, n := range r.Budgets {
		if n.Budget == name {
			now[0].Crossed = n.Crossed
		} else {
			now = append(now, n)
		}
	}
	r.Budgets = now
}
