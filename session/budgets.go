package session

import (
	"slices"
	"time"
	"unique"

	"google.golang.org/protobuf/encoding/protowire"

	"example.com/govnode/session/budget"
)

// Budgets: how they are put, charged at admission, corrected at the end of a
// call, adjusted and deleted; and what of them stands in commands and records.

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
	Rates   []Spent // that are corrected at its end
	Charges []Charged
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
		NS        string
		By        Maker
		Budget    string
		Ancestors []string
		Amount    int64
	}

	// DeleteBudget removes a budget without children. Parent is a premise.
	DeleteBudget struct {
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
	var gates HeldGates
	if h.Gates != nil {
		gates = *h.Gates
	}
	gates.Charges = make([]Charged, len(c.Budgets))
	for i, total := range budget.Totals(c.Budgets) {
		n := &c.Budgets[i]
		k := ref{KindBudget, c.NS, n.Budget}
		b := s.budget(k)
		gates.Charges[i] = Charged{s.name(n.Budget), s.name(n.Parent), n.Amount, b.Serial, b.PeriodAt(s.now)}
		if total > 0 {
			s.use(k, b, total, r)
		}
	}
	h.Gates = &gates
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
