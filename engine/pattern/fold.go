package pattern

import (
	"slices"
	"strings"
	"sync"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// When two characters, or two texts, count as the same: without regard to case,
// and without disguises.

// Two characters are the same without regard to case if they are in one orbit
// of unicode.SimpleFold, or in one of these groups, which Python's IGNORECASE
// has on top of that (Lib/re/_casefix.py). Tests hold the two against each other.
var extraOrbits = [][]rune{
	{'I', 'i', 'İ', 'ı'},
	{'\u0390', '\u1FD3'},
	{'\u03B0', '\u1FE3'},
	{'\uFB05', '\uFB06'},
}

// extraOrbit returns the group of extraOrbits that r is in, or nil.
func extraOrbit(r rune) []rune {
	for _, orbit := range extraOrbits {
		if slices.Contains(orbit, r) {
			return orbit
		}
	}
	return nil
}

// orbitOf returns all characters that IGNORECASE takes for r, r among them.
func orbitOf(r rune) []rune {
	if orbit := extraOrbit(r); orbit != nil {
		return orbit
	}
	orbit := []rune{r}
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		orbit = append(orbit, f)
	}
	return orbit
}

// casedRunes are all characters with an orbit of more than themselves, rising.
var casedRunes = sync.OnceValue(func() []rune {
	var cased []rune
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if unicode.SimpleFold(r) != r || extraOrbit(r) != nil {
			cased = append(cased, r)
		}
	}
	return cased
})

// foldRune maps all characters of an orbit of unicode.SimpleFold to one of
// them, for the letters of English the lower-case one.
func foldRune(r rune) rune {
	if r < 0x80 {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}
	least := r
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		least = min(least, f)
	}
	if 'A' <= least && least <= 'Z' { // long s and the Kelvin sign
		least += 'a' - 'A'
	}
	return least
}

// appendFolded appends s folded for the comparison of substrings. It finds all
// that Python's a.lower() in b.lower() finds, and beyond that what differs in
// a final sigma. The dotted capital I becomes two characters, as in Python.
func appendFolded(dst []byte, s string) []byte {
	for _, r := range s {
		switch {
		case r < 0x80:
			dst = append(dst, byte(foldRune(r)))
		case r == 'İ':
			dst = append(dst, "i\u0307"...)
		default:
			dst = appendRune(dst, foldRune(r))
		}
	}
	return dst
}

// appendLoose appends s, which follows on what dst ends with, folded for the
// prefilter. It makes equal whatever any kind of pattern may take for equal, so
// that a text whose loose form lacks the loose form of a literal cannot hold
// that literal: besides the orbits it merges the extra ones, drops the dot that
// İ leaves behind in lower case, makes every digit 0, and makes every run of
// white space one space. With the last two, expressions like from\s+now\s+on
// and \d{3}-\d{2} have literals.
func appendLoose(dst []byte, s string) []byte {
	for _, r := range s {
		switch {
		case isSpace(r):
			if n := len(dst); n == 0 || dst[n-1] != ' ' {
				dst = append(dst, ' ')
			}
		case '0' <= r && r <= '9':
			dst = append(dst, '0')
		case r < 0x80:
			dst = append(dst, byte(foldRune(r)))
		case r == '\u0307':
		case unicode.Is(unicode.Nd, r):
			dst = append(dst, '0')
		default:
			dst = appendRune(dst, looseRune(r))
		}
	}
	return dst
}

func looseRune(r rune) rune {
	if orbit := extraOrbit(r); orbit != nil {
		return foldRune(orbit[0])
	}
	return foldRune(r)
}

// isSpace reports whether \s matches r.
func isSpace(r rune) bool {
	return r == ' ' || '\t' <= r && r <= '\r' || 0x1c <= r && r <= 0x1f || r >= 0x80 && unicode.IsSpace(r)
}

func appendRune(dst []byte, r rune) []byte { return append(dst, string(r)...) }

var caseFolder = cases.Fold()

// normalize undoes the disguises that a text can wear without looking
// different: compatibility forms (NFKC), characters of no width, and case.
func normalize(s string) string {
	s = norm.NFKC.String(s)
	s = strings.Map(func(r rune) rune {
		if zeroWidth(r) {
			return -1
		}
		return r
	}, s)
	// Folding can bring back what NFKC composes, and taking characters out can
	// make neighbours of two that compose.
	return norm.NFKC.String(caseFolder.String(s))
}

// zeroWidth reports whether r shows nothing and stands between other letters:
// the format characters (soft hyphen, zero-width space and joiners, directional
// marks, tags, byte order mark), variation selectors and fillers.
func zeroWidth(r rune) bool {
	if r < 0x80 {
		return false
	}
	return unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Variation_Selector, r) ||
		r == '\u034F' || r == '\u115F' || r == '\u1160' || r == '\u3164' || r == '\uFFA0'
}
