package value

import (
	"cmp"
	"errors"
	"math"
	"math/big"
	"strings"
)

// How values compare, as Python's do: Equal and Compare.

// ErrType is the error of Compare for values that have no order between them,
// such as a string and a number, where Python raises a TypeError.
var ErrType = errors.New("values of these types have no order")

// Equal reports whether a == b in Python: numbers and booleans compare as
// numbers, exactly and at any size (1 == 1.0 == true, 2**53+1 != 2.0**53);
// strings equal strings only; lists and maps compare deeply, maps without
// regard to order; null equals null.
func Equal(a, b Value) bool {
	if isNumeric(a) && isNumeric(b) {
		c, ok := compareNumbers(a, b)
		return ok && c == 0
	}
	if a.kind != b.kind {
		return false
	}
	switch a.kind {
	case Null:
		return true
	case String:
		return a.text == b.text
	case List:
		return equalLists(a.node, b.node)
	default:
		return equalMaps(a.node, b.node)
	}
}

func equalLists(a, b *node) bool {
	if len(a.items) != len(b.items) {
		return false
	}
	for i := range a.items {
		if !Equal(a.items[i], b.items[i]) {
			return false
		}
	}
	return true
}

func equalMaps(a, b *node) bool {
	if len(a.pairs) != len(b.pairs) {
		return false
	}
	for i := range a.pairs {
		p := &a.pairs[i]
		j := b.find(p.Key)
		if j < 0 || !Equal(p.Value, b.pairs[j].Value) {
			return false
		}
	}
	return true
}

// Compare returns -1, 0 or +1 as a is less than, equal to or greater than b in
// Python's order: numbers and booleans by value, strings by code point, lists
// item by item. Anything else, and a NaN, is ErrType.
func Compare(a, b Value) (int, error) {
	switch {
	case isNumeric(a) && isNumeric(b):
		if c, ok := compareNumbers(a, b); ok {
			return c, nil
		}
	case a.kind == String && b.kind == String:
		// The order of UTF-8 bytes is the order of code points.
		return strings.Compare(a.text, b.text), nil
	case a.kind == List && b.kind == List:
		return compareLists(a.node, b.node)
	}
	return 0, ErrType
}

// compareLists looks for the first pair that differs, as Python does, so that
// equal items need no order: [null, 1] < [null, 2].
func compareLists(a, b *node) (int, error) {
	for i := range min(len(a.items), len(b.items)) {
		if !Equal(a.items[i], b.items[i]) {
			return Compare(a.items[i], b.items[i])
		}
	}
	return cmp.Compare(len(a.items), len(b.items)), nil
}

func isNumeric(v Value) bool { return v.kind == Number || v.kind == Bool }

// compareNumbers compares two numbers or booleans exactly; ok is false if one
// is a NaN. Booleans are formInt with bits 0 or 1, so they need no case.
func compareNumbers(a, b Value) (c int, ok bool) {
	switch {
	case a.form == formInt && b.form == formInt:
		return cmp.Compare(a.int(), b.int()), true
	case a.form == formFloat && b.form == formFloat:
		x, y := a.float(), b.float()
		if math.IsNaN(x) || math.IsNaN(y) {
			return 0, false
		}
		return cmp.Compare(x, y), true
	case a.form == formFloat:
		c, ok = compareNumbers(b, a)
		return -c, ok
	case b.form == formFloat:
		return compareIntFloat(a, b.float())
	default:
		return bigOf(a).Cmp(bigOf(b)), true
	}
}

// compareIntFloat compares the integer a with f without rounding either.
func compareIntFloat(a Value, f float64) (c int, ok bool) {
	switch {
	case math.IsNaN(f):
		return 0, false
	case math.IsInf(f, 1):
		return -1, true
	case math.IsInf(f, -1):
		return 1, true
	}
	whole := math.Trunc(f)
	if a.form == formInt && whole >= -1<<63 && whole < 1<<63 {
		c = cmp.Compare(a.int(), int64(whole))
	} else {
		w, _ := big.NewFloat(whole).Int(nil)
		c = bigOf(a).Cmp(w)
	}
	if c == 0 {
		c = cmp.Compare(whole, f)
	}
	return c, true
}

func bigOf(v Value) *big.Int {
	if v.form == formBig {
		return v.node.big
	}
	return big.NewInt(v.int())
}

// TrueFirst orders true before false, as Compare functions do.
func TrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
