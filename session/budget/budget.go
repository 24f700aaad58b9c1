package budget

import (
	"time"
)

// A budget by itself: amounts are millionths.

const (
	// MaxAmount is the largest amount: 10^12.
	MaxAmount = int64(1_000_000_000_000) * 1_000_000
	// MaxUsed is where what is used stops rising, so that no sum overflows.
	MaxUsed = 9 * MaxAmount
	// MaxDepth is how many budgets there are from one to its root.
	MaxDepth = 8
)

// A Budget is an amount and what is used of it. Nothing in it lapses but a
// period as a whole.
type Budget struct {
	Amount int64
	Used   int64
	Per    time.Duration // length of a period; 0: there are none
	Made   time.Duration // the first period begins here
	Period int64         // in which Used was used; 0 while nothing is
}

// PeriodAt is the number of the period at now.
func (b *Budget) PeriodAt(now time.Duration) int64 {
	if b.Per == 0 {
		return 0
	}
	return int64((now - b.Made) / b.Per)
}

// Due is when what is used will be 0; ok is false if it never will by itself.
func (b *Budget) Due() (at time.Duration, ok bool) {
	if b.Per == 0 || b.Used == 0 {
		return 0, false
	}
	return b.Made + time.Duration(b.Period+1)*b.Per, true
}

// Settle ends the period that is over.
func (b *Budget) Settle(now time.Duration) {
	if b.Period != b.PeriodAt(now) {
		b.Used, b.Period = 0, 0
	}
}

// Left is what may be spent.
func (b *Budget) Left() int64 { return max(b.Amount-b.Used, 0) }

// Allows reports whether so much may be charged. One whose amount was lowered
// below what is used allows nothing, not even 0.
func (b *Budget) Allows(charge int64) bool { return charge <= b.Amount-b.Used }

// Add changes what is used in the present period, within 0 and MaxUsed.
func (b *Budget) Add(now time.Duration, by int64) {
	b.Settle(now)
	if by > 0 && b.Used > MaxUsed-by {
		b.Used = MaxUsed
	} else {
		b.Used = max(b.Used+by, 0)
	}
	if b.Period = 0; b.Used > 0 {
		b.Period = b.PeriodAt(now)
	}
}

// Levels are the shares, in percent, whose crossing is told.
const (
	Warning  = 80
	Exceeded = 100
)

// Level is the highest share that is reached, 0 below all.
func (b *Budget) Level() uint8 {
	switch {
	case b.Used >= b.Amount:
		return Exceeded
	case b.Used >= b.Amount-b.Amount/5:
		return Warning
	}
	return 0
}

// A Node is a budget that a call charges, with its own share of the charge: 0
// for one that is there since another is below it.
type Node struct {
	Budget, Parent string
	Amount         int64
}

// Totals is what each of the nodes is charged: its own share and those of all
// below it. Every parent is one of them.
func Totals(nodes []Node) []int64 {
	totals := make([]int64, len(nodes))
	for i := range nodes {
		at := i
		for range MaxDepth { // what is no tree ends too
			if at < 0 {
				break
			}
			if totals[at] += nodes[i].Amount; totals[at] > MaxUsed || totals[at] < 0 {
				totals[at] = MaxUsed
			}
			at = find(nodes, nodes[at].Parent)
		}
	}
	return totals
}

func find(nodes []Node, name string) int {
	if name == "" {
		return -1
	}
	for i := range nodes {
		if nodes[i].Budget == name {
			return i
		}
	}
	return -1
}

// Problem says why nodes are no part of a forest: a parent is missing, or one is
// below itself. It is empty where they are.
func Problem(nodes []Node) (at int, problem string) {
	for i := range nodes {
		depth := 1
		for j := i; nodes[j].Parent != ""; depth++ {
			if j = find(nodes, nodes[j].Parent); j < 0 {
				return i, "has an ancestor that is not named; name all of them"
			}
			if depth >= MaxDepth {
				return i, "has more ancestors than a budget can have"
			}
		}
	}
	return 0, ""
}
