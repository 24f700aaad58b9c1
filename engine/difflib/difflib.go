// Package difflib measures how alike two texts are, exactly as Python's
// difflib.SequenceMatcher(None, a, b).ratio() does on two str. The drift check
// of the adapter contract (section 3.12) is defined by that number.
//
// It is one function of that class and not a diff library: there are no
// opcodes, no junk predicate and no way to switch the autojunk heuristic off.
package difflib

// MaxRunes is the length, in code points, that either text may have for Measure
// to measure it.
const MaxRunes = 65536

// maxSteps bounds the work of one measurement, so that its end does not depend
// on a clock and is the same on every node. A step is one pair of equal
// characters or one character walked over; 4*10^8 of them take about a second and
// a half. Two texts of prose take 10^5 if they have 4 Ki characters each, and
// 3*10^8 if they have 64 Ki.
const maxSteps = 400_000_000

// Measure returns 2*M/T, where T is the number of code points in a and b together
// and M how many of them Ratcliff and Obershelp's matching pairs up; two empty
// texts give 1. It is not symmetric: a is the baseline, b the text compared
// with it, and characters that make up more than one percent of a b of 200 or
// more code points start no match (autojunk).
//
// Exact reports whether the number is Python's. It is not
// if one of two different texts is longer than MaxRunes code points, which
// gives 0, or if the matching takes more than 4*10^8 steps, which only texts made
// for that purpose do; then what was paired up so far counts, so that the ratio
// is too low and never too high.
func Measure(a, b string) (ratio float64, exact bool) {
	if a == b {
		return 1, true
	}
	x, y := []rune(a), []rune(b)
	if len(x) > MaxRunes || len(y) > MaxRunes {
		return 0, false
	}
	m := newMatcher(x, y)
	matched := m.matched()
	return 2 * float64(matched) / float64(len(x)+len(y)), m.steps <= maxSteps
}
