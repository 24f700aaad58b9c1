// Package toolname says which names of tools are taken. Rules, limits and counters go by
// the name, so two names that a person or a framework takes for one must not be two for
// them: what shows nothing, what has another form that looks the same, and letters of one
// alphabet that pass for those of another are refused. Nothing is rewritten, since who
// calls the tool would call it by the name that was written.
package toolname

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Problem says what is wrong with a name of valid UTF-8, and what to do; "" if nothing is.
func Problem(name string) string {
	if strings.HasPrefix(name, " ") || strings.HasSuffix(name, " ") {
		return "begins or ends with a space; take it out"
	}
	if ascii(name) {
		return ""
	}
	for i, r := range name {
		if invisible(r) {
			return fmt.Sprintf("holds %U at byte %d, which shows nothing; take it out", r, i)
		}
	}
	if plain := norm.NFKC.String(name); plain != name {
		return fmt.Sprintf("is another form of %+q; write that", plain)
	}
	return foreign(name)
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// invisible reports whether a character shows nothing: format characters (zero-width
// space and joiners, marks of direction, tags, byte order mark), variation selectors,
// fillers, the blank of Braille, and what no font has.
func invisible(r rune) bool {
	return unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Co, unicode.Other_Default_Ignorable_Code_Point) ||
		r == '\u2800' || !unicode.IsGraphic(r)
}

// beside are scripts that stand beside Latin letters in names of one language; letters of
// any other beside Latin ones are a disguise (UTS 39, highly restrictive).
var beside = []*unicode.RangeTable{unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul, unicode.Bopomofo, unicode.Common, unicode.Inherited}

// lookalikes are letters of other alphabets that are drawn as Latin ones.
const lookalikes = "АВЕЅІЈКМНОРСТУХԌԚԜҮаеѕіјӏкорсухһԁԛԝүѵΑΒΕΖΗΙΚΜΝΟΡΤΥΧοναιυρκτχγϳͿՕՏՍՈօսոհցզյ"

// foreign refuses letters that pass for Latin ones: beside those, and a name of nothing else.
func foreign(name string) string {
	latin, other, disguised := false, rune(0), true
	for _, r := range name {
		switch {
		case unicode.Is(unicode.Latin, r):
			latin = true
		case !unicode.IsLetter(r) || unicode.In(r, beside...):
			disguised = disguised && !unicode.IsLetter(r)
		default:
			other = r
			disguised = disguised && strings.ContainsRune(lookalikes, r)
		}
	}
	switch {
	case other == 0:
		return ""
	case latin:
		return fmt.Sprintf("holds %U beside Latin letters, which is of another alphabet and may pass for one of them; write it in one alphabet", other)
	case disguised:
		return fmt.Sprintf("holds %U and no letter that does not pass for a Latin one; write it in Latin letters", other)
	}
	return ""
}
