package matching

import (
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/value"
)

// A factTest is a condition over a fact, compiled to the ranges of integers in
// which it is true. Comparing integers instead of values makes the test and
// its premise agree to the last unit, and costs no allocation.
type factTest struct {
	kind      call.FactKind
	tool      string
	ranges    [][2]int64 // ascending, disjoint: where the condition is true
	asText    bool       // matches: the regular expression sees the decimal text
	typeError bool       // the operator cannot work on a number
}

// factField recognises a field that is a fact.
func factField(name string) (kind call.FactKind, tool string) {
	switch name {
	case "call_count":
		return call.CallCount, ""
	case "attempts":
		return call.Attempts, ""
	case "tokens_used":
		return call.TokensUsed, ""
	case "active_slots":
		return call.ActiveSlots, ""
	case "elapsed_seconds":
		return call.Elapsed, ""
	}
	if tool, ok := strings.CutPrefix(name, "tool_calls."); ok {
		return call.ToolCalls, tool
	}
	return 0, ""
}

// newFactTest compiles a condition whose field is a fact; nil if it is not.
func newFactTest(c *document.Condition) *factTest {
	kind, tool := factField(c.Field)
	if kind == 0 {
		return nil
	}
	t := &factTest{kind: kind, tool: tool}
	switch c.Operator {
	case document.OpMatches:
		t.asText = true
	case document.OpContains:
		t.typeError = true
	case document.OpIn, document.OpNotIn:
		t.membership(c)
	default:
		t.comparison(c)
	}
	return t
}

func (t *factTest) membership(c *document.Condition) {
	switch c.Value.Kind() {
	case value.String:
		t.typeError = true
	case value.List:
		for item := range c.Value.Items() {
			if r, ok := t.scaled(item); ok && r.IsInt() && r.Num().IsInt64() {
				x := r.Num().Int64()
				t.ranges = append(t.ranges, [2]int64{x, x})
			}
		}
		t.normalise()
	}
	if c.Operator == document.OpNotIn {
		t.complement()
	}
}

func (t *factTest) comparison(c *document.Condition) {
	r, ok := t.scaled(c.Value)
	if !ok {
		// A number never equals a string, list or mapping, and cannot be
		// ordered against one.
		t.typeError = c.Operator != document.OpEq && c.Operator != document.OpNe
		if c.Operator == document.OpNe {
			t.complement()
		}
		return
	}
	if beyond := outOfRange(r); beyond != 0 {
		// Every integer lies on one side of the target.
		always := c.Operator == document.OpNe ||
			beyond > 0 && (c.Operator == document.OpLt || c.Operator == document.OpLte) ||
			beyond < 0 && (c.Operator == document.OpGt || c.Operator == document.OpGte)
		if always {
			t.complement()
		}
		return
	}
	floor := floorInt64(r)
	ceil := floor
	if !r.IsInt() && floor < math.MaxInt64 {
		ceil++
	}
	switch c.Operator {
	case document.OpEq, document.OpNe:
		if r.IsInt() {
			t.ranges = [][2]int64{{floor, floor}}
		}
		if c.Operator == document.OpNe {
			t.complement()
		}
	case document.OpGte:
		t.ranges = [][2]int64{{ceil, math.MaxInt64}}
	case document.OpLte:
		t.ranges = [][2]int64{{math.MinInt64, floor}}
	case document.OpGt:
		t.ranges = [][2]int64{{math.MinInt64, floor}}
		t.complement()
	case document.OpLt:
		t.ranges = [][2]int64{{ceil, math.MaxInt64}}
		t.complement()
	}
}

// scaled turns a target into units of the fact.
func (t *factTest) scaled(v value.Value) (*big.Rat, bool) {
	if b, isBool := v.AsBool(); isBool {
		v = value.OfInt(int64(toInt(b)))
	}
	if v.Kind() != value.Number {
		return nil, false
	}
	text := v.JSON()
	// Beyond what 64 bits hold in either unit; a rational of 1e400 would cost
	// memory and decide nothing.
	if f, ok := v.AsFloat(); ok && math.Abs(f) > 1e30 {
		text = strconv.FormatFloat(math.Copysign(1e30, f), 'f', 0, 64)
	} else if ok && f != 0 && math.Abs(f) < 1e-30 {
		text = strconv.FormatFloat(math.Copysign(1e-30, f), 'e', -1, 64)
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil, false
	}
	if t.kind == call.Elapsed {
		r.Mul(r, new(big.Rat).SetInt64(int64(time.Second)))
	}
	return r, true
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// outOfRange is positive for a number above all integers of 64 bits, negative
// for one below them, else 0.
func outOfRange(r *big.Rat) int {
	switch {
	case r.Cmp(new(big.Rat).SetInt64(math.MaxInt64)) > 0:
		return 1
	case r.Cmp(new(big.Rat).SetInt64(math.MinInt64)) < 0:
		return -1
	}
	return 0
}

// floorInt64 rounds down a number that is in range.
func floorInt64(r *big.Rat) int64 {
	// Euclidean division rounds down for a positive denominator.
	return new(big.Int).Div(r.Num(), r.Denom()).Int64()
}

// normalise sorts single points and drops repeats.
func (t *factTest) normalise() {
	slices.SortFunc(t.ranges, func(a, b [2]int64) int {
		switch {
		case a[0] < b[0]:
			return -1
		case a[0] > b[0]:
			return 1
		}
		return 0
	})
	t.ranges = slices.Compact(t.ranges)
}

// complement replaces the ranges by the gaps between them.
func (t *factTest) complement() {
	var gaps [][2]int64
	next := int64(math.MinInt64)
	for _, r := range t.ranges {
		if r[0] > next {
			gaps = append(gaps, [2]int64{next, r[0] - 1})
		}
		if r[1] == math.MaxInt64 {
			t.ranges = gaps
			return
		}
		next = r[1] + 1
	}
	t.ranges = append(gaps, [2]int64{next, math.MaxInt64})
}

// match tests x and returns the range around it in which the answer stands.
func (t *factTest) match(x int64) (truth bool, lo, hi int64) {
	lo, hi = math.MinInt64, math.MaxInt64
	for _, r := range t.ranges {
		switch {
		case x < r[0]:
			return false, lo, r[0] - 1
		case x <= r[1]:
			return true, r[0], r[1]
		}
		// x > r[1], which therefore is not the largest integer.
		lo = r[1] + 1
	}
	return false, lo, hi
}
