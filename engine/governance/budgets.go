package governance

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/nearest"
)

// Budgets that a policy charges its calls to.

// A BudgetAmount charges a budget when a call is admitted.
type BudgetAmount struct {
	Budget string
	Amount int64 // millionths
}

// Bounds of budgets: what one call can charge.
const (
	MaxBudgets      = 16
	MaxBudgetName   = 128
	MaxBudgetAmount = int64(1_000_000_000_000) * million

	million = 1_000_000
)

var budgetFields = []string{"budget", "amount"}

func (r reader) budgets(g *Policy) {
	f := r.holding("budgets", source.List, "list of mappings with budget and amount")
	if len(f.Items) > MaxBudgets {
		r.Add(f.Line, "budgets", "budgets must have at most %d entries, got %d", MaxBudgets, len(f.Items))
		return
	}
	for i := range f.Items {
		field := fmt.Sprintf("budgets[%d]", i)
		b := r.budget(&f.Items[i], field)
		if slices.ContainsFunc(g.Budgets, func(o BudgetAmount) bool { return o.Budget == b.Budget }) {
			r.Add(f.Items[i].Line, field, "%s: the budget %s is named twice; give its amount once", field, value.Quote(b.Budget))
		}
		g.Budgets = append(g.Budgets, b)
	}
}

func (r reader) budget(n *source.Node, field string) BudgetAmount {
	b := BudgetAmount{Amount: million}
	if n.Kind != source.Map {
		r.Add(n.Line, field, "%s must be a mapping with budget and amount, got %s", field, n.TypeName())
		return b
	}
	b.Budget = r.text(n, field, "budget")
	odd := func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._:@/-", c))
	}
	if len(b.Budget) > MaxBudgetName || strings.ContainsFunc(b.Budget, odd) {
		r.Add(n.Line, field+".budget", "%s.budget must be 1 to %d of A-Z a-z 0-9 . _ : @ / -, got %s", field, MaxBudgetName, value.Quote(source.Clip(b.Budget, 80)))
	}
	if f, ok := n.Get("amount"); ok {
		amount, ok := millionthsOf(f)
		if !ok {
			r.Add(f.Line, field+".amount", "%s.amount must be a decimal from 0 to 10^12 with at most 6 digits behind the point, got %s", field, f.Repr())
		}
		b.Amount = amount
	}
	for _, k := range n.Keys {
		if !slices.Contains(budgetFields, k.Text) {
			r.Add(k.Line, source.Join(field, k.Text), "unknown field%s; known are budget and amount", nearest.Hint(k.Text, "", budgetFields))
		}
	}
	return b
}

// millionthsOf reads a decimal exactly, from a number or from a text.
func millionthsOf(n *source.Node) (int64, bool) {
	const longest = 20 // digits before the point, the point, and those behind it
	if n.Kind != source.Int && n.Kind != source.Float && n.Kind != source.String ||
		len(n.Text) > longest || strings.Trim(n.Text, "0123456789.") != "" {
		return 0, false
	}
	x, ok := new(big.Rat).SetString(n.Text)
	if !ok {
		return 0, false
	}
	x.Mul(x, big.NewRat(million, 1))
	if !x.IsInt() || !x.Num().IsInt64() || x.Num().Int64() > MaxBudgetAmount {
		return 0, false
	}
	return x.Num().Int64(), true
}

// budgetValue writes an amount as it is read: as a text, which is exact.
func budgetValue(b BudgetAmount) value.Value {
	text := new(big.Rat).SetFrac64(b.Amount, million).FloatString(6)
	return value.OfMap(
		value.Pair{Key: "budget", Value: value.OfString(b.Budget)},
		value.Pair{Key: "amount", Value: value.OfString(strings.TrimSuffix(strings.TrimRight(text, "0"), "."))},
	)
}
