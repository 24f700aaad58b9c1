package check

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// summed is a sound history without a log.
func summed() History {
	return History{
		Ops: []Op{
			{Kind: Increment, Object: "a", ID: "1", Amount: 2, Call: 0, Return: 1 * s, Outcome: Applied, Value: 2},
			{Kind: Increment, Object: "a", ID: "2", Amount: 3, Call: 2 * s, Return: 5 * s, Outcome: Applied, Value: 5},
			{Kind: Increment, Object: "a", ID: "3", Amount: 4, Call: 4 * s, Return: 5 * s, Outcome: NotApplied},
			{Kind: Increment, Object: "a", ID: "4", Amount: 7, Call: 4 * s, Return: 6 * s, Outcome: Applied, Value: 12},
			{Kind: Read, Object: "a", Call: 7 * s, Return: 8 * s, Outcome: Applied, Value: 12},
		},
		Final: map[string]int64{"a": 12},
	}
}

func TestSums(t *testing.T) {
	require.Empty(t, Sums(summed()))
	for name, change := range map[string]func(*History){
		"an answer that has forgotten one":  func(h *History) { h.Ops[3].Value, h.Final["a"] = 9, 9 },
		"one that is lost":                  func(h *History) { h.Ops[1], h.Ops[3].Value, h.Ops[4].Value = Op{}, 9, 9 },
		"one that happened twice":           func(h *History) { h.Ops[3].Value, h.Ops[4].Value, h.Final["a"] = 15, 15, 15 },
		"one that was said not to be":       func(h *History) { h.Ops[3].Value, h.Ops[4].Value, h.Final["a"] = 16, 16, 16 },
		"lost in the end":                   func(h *History) { h.Final["a"] = 5 },
		"all is lost in the end":            func(h *History) { h.Final["a"] = 0 },
		"more in the end":                   func(h *History) { h.Final["a"] = 13 },
		"a sum from before what returned":   func(h *History) { h.Ops[0].Call, h.Ops[0].Return = 20*s, 21*s },
		"a read of the past":                func(h *History) { h.Ops[4].Value = 5 },
		"a read of what is not yet":         func(h *History) { h.Ops[4].Value = 19 },
		"more than what is unknown between": func(h *History) { h.Ops[2].Outcome, h.Ops[3].Value, h.Ops[4].Value, h.Final["a"] = Unknown, 17, 17, 17 },
		"what nobody asked for":             func(h *History) { h.Final["b"] = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			h := summed()
			change(&h)
			if name == "one that is lost" {
				h.Final["a"] = 9
				h.Ops = append(h.Ops, Op{Kind: Increment, Object: "a", ID: "2", Amount: 3, Call: 2 * s, Return: 3 * s, Outcome: Applied, Value: 5})
			}
			require.NotEmpty(t, Sums(h))
		})
	}
	for name, change := range map[string]func(*History){
		"an unknown one between":      func(h *History) { h.Ops[2].Outcome, h.Ops[3].Value, h.Ops[4].Value, h.Final["a"] = Unknown, 16, 16, 16 },
		"an unknown one in the end":   func(h *History) { h.Ops[2].Outcome, h.Final["a"] = Unknown, 16 },
		"an unknown one that was not": func(h *History) { h.Ops[2].Outcome = Unknown },
		"a read beside an increment":  func(h *History) { h.Ops[4].Call, h.Ops[4].Value = 5*s+1, 5 },
	} {
		t.Run(name, func(t *testing.T) {
			h := summed()
			change(&h)
			require.Empty(t, Sums(h))
		})
	}
}
