package pattern

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// What Python's \d, \w and \s mean, as the inside of a class of RE2: decimal
// digits; letters, numbers and the underscore (str.isalnum); str.isspace. Behind
// them what they mean with the ASCII flag.
const (
	classDigit = `\p{Nd}`
	classWord  = `\p{L}\p{N}_`
	classSpace = `\t-\r\x1c-\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}`

	asciiDigit = `0-9`
	asciiWord  = `0-9A-Za-z_`
	asciiSpace = `\t-\r\x20`
)

// wideRanges is what a Unicode property may have of ranges, about.
const wideRanges = 700

// nothing is a class that no character is in, in every dialect.
const nothing = `[^\s\S]`

type setKey struct {
	letter byte // d, w or s
	ascii  bool
	to     dialect
}

type namedSet struct {
	inside string // the members as the inside of a class
	others string // all other characters likewise
	ranges int    // how many ranges the members are
}

// namedSets spells the sets of the escapes for both dialects. The complements
// are needed within a class, where a set cannot be negated on its own.
var namedSets = sync.OnceValue(func() map[setKey]namedSet {
	sets := make(map[setKey]namedSet)
	for key, inside := range map[setKey]string{
		{'d', false, dialectRE2}: classDigit, {'d', true, dialectRE2}: asciiDigit,
		{'w', false, dialectRE2}: classWord, {'w', true, dialectRE2}: asciiWord,
		{'s', false, dialectRE2}: classSpace, {'s', true, dialectRE2}: asciiSpace,
	} {
		members := rangesOf("[" + inside + "]")
		set := namedSet{inside: inside, others: members.others().inside(), ranges: len(members)}
		sets[key] = set
		if key.letter == 's' {
			set.inside = members.inside() // .NET has no \x{...}
		}
		key.to = dialectBacktracking
		sets[key] = set
	}
	return sets
})

// runeSet is a set of characters as inclusive ranges, in any order.
type runeSet [][2]rune

// rangesOf returns the members of a class in the syntax of RE2, which must be
// a correct one.
func rangesOf(class string) runeSet {
	re, err := syntax.Parse(class, syntax.Perl)
	if err != nil {
		panic("pattern: class " + class + " of this package: " + err.Error())
	}
	var set runeSet
	for i := 0; i+1 < len(re.Rune); i += 2 {
		set = append(set, [2]rune{re.Rune[i], re.Rune[i+1]})
	}
	return set
}

// merged returns the same set in rising order, without overlaps.
func (s runeSet) merged() runeSet {
	s = slices.Clone(s)
	slices.SortFunc(s, func(a, b [2]rune) int { return int(a[0]) - int(b[0]) })
	var out runeSet
	for _, x := range s {
		if n := len(out); n > 0 && x[0] <= out[n-1][1]+1 {
			out[n-1][1] = max(out[n-1][1], x[1])
			continue
		}
		out = append(out, x)
	}
	return out
}

// folded returns the set with everything that differs from a member in case.
func (s runeSet) folded() runeSet {
	cased := casedRunes()
	out := slices.Clone(s)
	for _, x := range s.merged() {
		from, _ := slices.BinarySearch(cased, x[0])
		for _, r := range cased[from:] {
			if r > x[1] {
				break
			}
			for _, same := range orbitOf(r) {
				out = append(out, [2]rune{same, same})
			}
		}
	}
	return out
}

// others returns the complement.
func (s runeSet) others() runeSet {
	var out runeSet
	next := rune(0)
	for _, x := range s.merged() {
		if next < x[0] {
			out = append(out, [2]rune{next, x[0] - 1})
		}
		next = x[1] + 1
	}
	if next <= unicode.MaxRune {
		out = append(out, [2]rune{next, unicode.MaxRune})
	}
	return out
}

// inside writes the set as the inside of a class that both dialects read.
func (s runeSet) inside() string {
	var out strings.Builder
	for _, x := range s {
		writeClassRange(&out, x[0], x[1])
	}
	return out.String()
}

func writeClassRange(out *strings.Builder, low, high rune) {
	writeClassRune(out, low)
	if low != high {
		out.WriteByte('-')
		writeClassRune(out, high)
	}
}

// writeClassRune writes one character of a class so that it means itself.
func writeClassRune(out *strings.Builder, c rune) {
	switch {
	case c < 0x20 || c == 0x7f:
		fmt.Fprintf(out, `\x%02x`, c)
	case strings.ContainsRune(`\]["^-&~|:`, c):
		out.WriteByte('\\')
		out.WriteRune(c)
	default:
		out.WriteRune(c)
	}
}
