package value

import (
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Repr returns what Python's repr prints for the tree that json.loads would
// make of it: single quotes, True, False and None, ", " and ": ", backslash
// escapes. This is form (a) of the text that blocked patterns are matched on.
func (v Value) Repr() string { return string(v.AppendRepr(nil)) }

// Quote is Repr of a string.
func Quote(s string) string { return OfString(s).Repr() }

// Str returns what Python's str prints: a string as it is, else its repr.
func (v Value) Str() string {
	if v.kind == String {
		return v.text
	}
	return v.Repr()
}

// AppendRepr appends Repr to dst.
func (v Value) AppendRepr(dst []byte) []byte {
	switch v.kind {
	case Null:
		return append(dst, "None"...)
	case Bool:
		if v.bits == 1 {
			return append(dst, "True"...)
		}
		return append(dst, "False"...)
	case Number:
		return v.appendNumberRepr(dst)
	case String:
		return appendReprString(dst, v.text)
	case List:
		dst = append(dst, '[')
		for i, item := range v.node.items {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = item.AppendRepr(dst)
		}
		return append(dst, ']')
	default:
		dst = append(dst, '{')
		for i := range v.node.pairs {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			p := &v.node.pairs[i]
			dst = append(appendReprString(dst, p.Key), ": "...)
			dst = p.Value.AppendRepr(dst)
		}
		return append(dst, '}')
	}
}

// appendNumberRepr prints an integer as received and a float as Python would.
// The one integer that json.loads does not give back is -0.
func (v Value) appendNumberRepr(dst []byte) []byte {
	switch v.form {
	case formInt:
		return strconv.AppendInt(dst, v.int(), 10)
	case formFloat:
		return appendReprFloat(dst, v.float())
	default:
		return append(dst, v.text...)
	}
}

// appendReprFloat prints f with the fewest digits that give it back, with an
// exponent below 1e-4 and from 1e16 on, as float_repr_style "short" does.
func appendReprFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "nan"...)
	case math.IsInf(f, 1):
		return append(dst, "inf"...)
	case math.IsInf(f, -1):
		return append(dst, "-inf"...)
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64) // Go writes e+16 and e-05 as Python does
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if !strings.Contains(string(dst[start:]), ".") {
		dst = append(dst, ".0"...)
	}
	return dst
}

// appendReprString prints s as CPython's unicode_repr does: in single quotes
// unless that would need escapes which double quotes save.
func appendReprString(dst []byte, s string) []byte {
	quote := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		quote = '"'
	}
	dst = append(dst, quote)
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf {
			dst = appendReprASCII(dst, c, quote)
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if unicode.IsPrint(r) {
			dst = append(dst, s[i:i+size]...)
		} else {
			dst = appendReprEscape(dst, r)
		}
		i += size
	}
	return append(dst, quote)
}

func appendReprASCII(dst []byte, c, quote byte) []byte {
	switch {
	case c == quote || c == '\\':
		return append(dst, '\\', c)
	case c == '\n':
		return append(dst, `\n`...)
	case c == '\r':
		return append(dst, `\r`...)
	case c == '\t':
		return append(dst, `\t`...)
	case c < ' ' || c == 0x7f:
		return appendReprEscape(dst, rune(c))
	default:
		return append(dst, c)
	}
}

func appendReprEscape(dst []byte, r rune) []byte {
	switch {
	case r <= 0xff:
		return appendHex(append(dst, `\x`...), r, 2)
	case r <= 0xffff:
		return appendHex(append(dst, `\u`...), r, 4)
	default:
		return appendHex(append(dst, `\U`...), r, 8)
	}
}

func appendHex(dst []byte, r rune, width int) []byte {
	const hex = "0123456789abcdef"
	for shift := 4 * (width - 1); shift >= 0; shift -= 4 {
		dst = append(dst, hex[r>>shift&0xf])
	}
	return dst
}
