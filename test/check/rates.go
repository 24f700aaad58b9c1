package check

import (
	"fmt"
	"slices"
	"time"
)

// Rates holds what was taken from each rate to its limit: no window of its time,
// which has one of its ends, holds more. Log time counts.
func Rates(h History) (broken []Violation) {
	for name, rate := range h.Rates {
		var taken []Effect
		for _, e := range h.Effects {
			if e.Kind == Take && e.Object == name {
				taken = append(taken, e)
			}
		}
		slices.SortStableFunc(taken, func(a, b Effect) int { return compare(a.At, b.At) })
		from, sum := 0, int64(0)
		for _, e := range taken {
			for sum += e.Amount; e.At-taken[from].At >= rate.Per; from++ {
				sum -= taken[from].Amount
			}
			if sum > rate.Limit {
				broken = append(broken, Violation{"rates", fmt.Sprintf("%s admitted %d of %d in the %v that end at log time %v, entry %d", name, sum, rate.Limit, rate.Per, e.At, e.Index)})
			}
		}
	}
	return broken
}

// Admitted is how much was taken from a rate between two log times, the second
// left out.
func (h *History) Admitted(rate string, from, until time.Duration) (sum int64) {
	for _, e := range h.Effects {
		if e.Kind == Take && e.Object == rate && from <= e.At && e.At < until {
			sum += e.Amount
		}
	}
	return sum
}
