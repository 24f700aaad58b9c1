package demo

import (
	"cmp"
	"slices"
	"time"
)

// How much of something was in use at once, from what those who used it saw.

// A step is an instant from which on more is in use, or less.
type step struct {
	at time.Duration
	by int
}

// peak returns the most that was ever in use, and how often a step made it more
// than the limit.
func peak(steps []step, limit int) (highest, over int) {
	steps = slices.SortedFunc(slices.Values(steps), func(a, b step) int {
		// At the same instant less comes first: a use ends before its end.
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by))
	})
	now := 0
	for _, s := range steps {
		now += s.by
		highest = max(highest, now)
		if s.by > 0 && now > limit {
			over++
		}
	}
	return highest, over
}

// A use is the time for which somebody was in a slot: from entering it to
// leaving it, or to the end of the lease where that comes first, as it does for
// a process that was killed.
type use struct {
	from, to time.Duration
	token    uint64
}

func (b *books) uses() (uses []use) {
	for _, w := range b.workers {
		for _, t := range w.order {
			if t.entered == 0 || t.token == 0 {
				continue
			}
			to := t.until
			if t.left != 0 {
				to = min(to, t.left)
			}
			if to > t.entered {
				uses = append(uses, use{t.entered, to, t.token})
			}
		}
	}
	return uses
}

// most returns the most slots that were ever in use at once, and how often
// somebody entered who made it more than the limit.
func most(uses []use, limit int) (highest, over int) {
	var steps []step
	for _, u := range uses {
		steps = append(steps, step{u.from, 1}, step{u.to, -1})
	}
	return peak(steps, limit)
}

// repeatedTokens returns how many uses had the token of another: a token is
// given out once.
func repeatedTokens(uses []use) (n int) {
	seen := map[uint64]bool{}
	for _, u := range uses {
		if seen[u.token] {
			n++
		}
		seen[u.token] = true
	}
	return n
}
