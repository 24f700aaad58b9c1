package value

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// Numbers: how a Value holds one, and how one is made and read.

// numberForm says how a Number is held.
type numberForm uint8

const (
	formInt   numberForm = iota // bits is an int64
	formFloat                   // bits is a float64
	formBig                     // node.big is an integer that int64 cannot hold
)

// maxNumber is how many characters a number may have beside its sign. CPython
// refuses longer integers as well (sys.int_info.default_max_str_digits), because
// converting them takes time quadratic in their length.
const maxNumber = 4300

// OfInt returns an integer.
func OfInt(i int64) Value { return Value{kind: Number, form: formInt, bits: uint64(i)} }

// OfFloat returns a floating-point number. JSON has no infinities and no NaN;
// they are kept, print as Python prints them, are null in JSON, and a NaN has
// no place in an order (Compare refuses it).
func OfFloat(f float64) Value {
	return Value{kind: Number, form: formFloat, bits: math.Float64bits(f)}
}

// OfNumber returns the number that text, in the syntax of JSON, stands for. A
// text with a fraction or an exponent is a float, any other an integer of
// whatever size. It refuses what is no JSON number, a text of more than 4,300
// characters, and a float too large for a double.
func OfNumber(text string) (Value, error) {
	if !isJSONNumber(text) {
		return Value{}, fmt.Errorf("%s is no number in JSON syntax", quoteShort(text))
	}
	return numberOf(text)
}

// numberOf is OfNumber for a text whose syntax is known to be right.
func numberOf(text string) (Value, error) {
	if n := len(strings.TrimPrefix(text, "-")); n > maxNumber {
		return Value{}, fmt.Errorf("a number of %d characters is longer than the %d allowed", n, maxNumber)
	}
	if strings.ContainsAny(text, ".eE") {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return Value{}, fmt.Errorf("number %s is too large for a double", quoteShort(text))
		}
		return Value{kind: Number, form: formFloat, bits: math.Float64bits(f), text: text}, nil
	}
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return Value{kind: Number, form: formInt, bits: uint64(i), text: text}, nil
	}
	b, ok := new(big.Int).SetString(text, 10)
	if !ok {
		return Value{}, fmt.Errorf("%s is no number in JSON syntax", quoteShort(text))
	}
	return Value{kind: Number, form: formBig, text: text, node: bigNode(b)}, nil
}

// ofBig returns the integer b, which it keeps.
func ofBig(b *big.Int) Value {
	if b.IsInt64() {
		return OfInt(b.Int64())
	}
	return Value{kind: Number, form: formBig, text: b.String(), node: bigNode(b)}
}

func (v Value) int() int64     { return int64(v.bits) }
func (v Value) float() float64 { return math.Float64frombits(v.bits) }

// AsInt returns the number that v is if it is an integer that fits, also one
// written as a float (2.0); ok is false otherwise. A boolean is no integer here.
func (v Value) AsInt() (i int64, ok bool) { return v.Int() }

// Int is AsInt without a copy.
func (v *Value) Int() (i int64, ok bool) {
	if v.kind != Number {
		return 0, false
	}
	switch v.form {
	case formInt:
		return int64(v.bits), true
	case formFloat:
		f := math.Float64frombits(v.bits)
		if f != math.Trunc(f) || f < -1<<63 || f >= 1<<63 {
			return 0, false
		}
		return int64(f), true
	default:
		return 0, false
	}
}

// AsFloat returns the double nearest to the number that v is; ok is false if v
// is no number. An integer beyond the range of doubles gives an infinity.
func (v Value) AsFloat() (f float64, ok bool) {
	if v.kind != Number {
		return 0, false
	}
	switch v.form {
	case formInt:
		return float64(v.int()), true
	case formFloat:
		return v.float(), true
	default:
		f, _ := new(big.Float).SetInt(v.node.big).Float64()
		return f, true
	}
}

// IsInteger reports whether v is a number without fraction and exponent, what
// Python reads as an int. A boolean is none.
func (v Value) IsInteger() bool { return v.kind == Number && v.form != formFloat }

// isJSONNumber reports whether s is a number as RFC 8259 section 6 defines it.
func isJSONNumber(s string) bool {
	s = strings.TrimPrefix(s, "-")
	whole := digits(s)
	if whole == 0 || whole > 1 && s[0] == '0' {
		return false
	}
	s = s[whole:]
	if strings.HasPrefix(s, ".") {
		n := digits(s[1:])
		if n == 0 {
			return false
		}
		s = s[1+n:]
	}
	if s != "" && (s[0] == 'e' || s[0] == 'E') {
		s = s[1:]
		if s != "" && (s[0] == '+' || s[0] == '-') {
			s = s[1:]
		}
		n := digits(s)
		return n > 0 && n == len(s)
	}
	return s == ""
}

// digits returns how many ASCII digits s begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}

// quoteShort quotes s for an error message, cut after 40 bytes.
func quoteShort(s string) string {
	if len(s) > 40 {
		return strconv.Quote(s[:40]) + "..."
	}
	return strconv.Quote(s)
}
