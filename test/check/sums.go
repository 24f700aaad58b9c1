package check

import (
	"fmt"
	"slices"
)

// Sums holds the answers of increments of more than 0 to each other, without a
// log: in the order of their answers each adds its amount to the one before, and
// what had returned before another one was called comes before it. Only what is
// unknown to the end may stand between two of them. So nothing that was
// acknowledged is lost, nothing happens twice, and nothing that was said not to
// be applied was. The counters in the end come to all of it.
func Sums(h History) (broken []Violation) {
	violated := func(format string, args ...any) {
		broken = append(broken, Violation{"sums", fmt.Sprintf(format, args...)})
	}
	byCounter, unknown := map[string][]Op{}, map[string]int64{}
	for _, o := range h.Ops {
		switch {
		case o.Kind == Increment && o.Outcome == Unknown:
			unknown[o.Object] += o.Amount
		case (o.Kind == Increment || o.Kind == Read) && o.Outcome == Applied:
			byCounter[o.Object] = append(byCounter[o.Object], o)
		}
	}
	for counter := range h.Final {
		if _, known := byCounter[counter]; !known {
			byCounter[counter] = nil
		}
	}
	for counter, ops := range byCounter {
		answers := make([]placed, len(ops))
		for i, o := range ops {
			answers[i] = placed{o, uint64(o.Value)}
		}
		broken = append(broken, inOrder("sums", answers)...)
		slices.SortStableFunc(ops, func(a, b Op) int {
			if a.Value != b.Value {
				return int(a.Value - b.Value)
			}
			return len(b.Kind) - len(a.Kind) // a read after what it read: the longer word is the increment
		})
		var last Op
		var sum, between int64
		follow := func(before, after int64, what string) {
			switch gap := before - sum; {
			case gap < 0:
				violated("%s begins at %d, and %d had been reached: %v", what, before, sum, last)
			case gap > 0:
				if between += gap; between > unknown[counter] {
					violated("%s begins at %d, and what is known comes to %d; of what is unknown there are %d in all: after %v", what, before, sum, unknown[counter], last)
				}
			}
			sum = after
		}
		for _, o := range ops {
			if o.Kind == Read {
				follow(max(sum, o.Value), max(sum, o.Value), o.String())
				continue
			}
			follow(o.Value-o.Amount, o.Value, o.String())
			last = o
		}
		if final, known := h.Final[counter]; known {
			follow(final, final, counter+" in the end")
		}
	}
	slices.SortFunc(broken, func(a, b Violation) int { return compareText(a.Text, b.Text) })
	return broken
}
