package check

import (
	"fmt"
	"slices"
	"sort"
)

// Counters replays the increments in the order of the log: each answer is the
// sum so far, each read what stood at its place, and what is left at the end
// what was acknowledged and what the log has of the unknown ones.
func Counters(h History) (broken []Violation) {
	type step struct {
		index uint64
		sum   int64
	}
	ops := map[string]Op{}
	for _, o := range h.Ops {
		if o.Kind == Increment {
			ops[o.ID] = o
		}
	}
	sums := map[string][]step{}
	for _, e := range h.Effects {
		o, asked := ops[e.ID]
		if e.Kind != Increment {
			continue
		}
		if !asked || o.Object != e.Object {
			broken = append(broken, Violation{"counters", fmt.Sprintf("nobody asked for the increment %s of %s at %d", e.ID, e.Object, e.Index)})
			continue
		}
		steps := sums[e.Object]
		sum := o.Amount
		if n := len(steps); n > 0 {
			sum += steps[n-1].sum
		}
		sums[e.Object] = append(steps, step{e.Index, sum})
		if o.Outcome == Applied && o.Value != sum {
			broken = append(broken, Violation{"counters", fmt.Sprintf("the sum at %d is %d: %v", e.Index, sum, o)})
		}
	}
	at := func(object string, index uint64) int64 {
		steps := sums[object]
		n := sort.Search(len(steps), func(i int) bool { return steps[i].index > index })
		if n == 0 {
			return 0
		}
		return steps[n-1].sum
	}
	for _, o := range h.Ops {
		if o.Kind == Read && o.Outcome == Applied && o.Value != at(o.Object, o.Index) {
			broken = append(broken, Violation{"counters", fmt.Sprintf("the sum at %d is %d: %v", o.Index, at(o.Object, o.Index), o)})
		}
	}
	for object, final := range h.Final {
		if sum := at(object, ^uint64(0)); sum != final {
			broken = append(broken, Violation{"counters", fmt.Sprintf("%s is %d in the end, and the log comes to %d", object, final, sum)})
		}
		var least, most int64
		for _, o := range ops {
			if o.Object != object || o.Outcome == NotApplied {
				continue
			}
			if most += o.Amount; o.Outcome == Applied {
				least += o.Amount
			}
		}
		if final < least || final > most {
			broken = append(broken, Violation{"ledger", fmt.Sprintf("%s is %d in the end; acknowledged were %d, and with the unknown ones at most %d", object, final, least, most)})
		}
	}
	slices.SortFunc(broken, func(a, b Violation) int { return compareText(a.Text, b.Text) })
	return broken
}

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
