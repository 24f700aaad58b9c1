package nearest

import (
	"fmt"
	"strings"

	"github.com/agnivade/levenshtein"
)

// Of returns the word that is nearest to one that is unknown. Of several it is
// one that begins with the same letter, which is seldom the wrong one, and the
// first in alphabetical order. It is empty if none is near: if more than a
// third of the longer one, rounded up, would have to change, or more than two
// letters of one that begins otherwise: blocked_tools is no misspelt
// allowed_tools.
func Of(unknown string, words []string) string {
	if len(unknown) > longest {
		return ""
	}
	unknown = strings.ToLower(unknown)
	best, least := "", 0
	for _, w := range words {
		d := levenshtein.ComputeDistance(unknown, strings.ToLower(w))
		if long := max(len(unknown), len(w)); d > (long+2)/3 || d >= long || d > 2 && !sameStart(unknown, w) {
			continue
		}
		if best == "" || d < least || d == least && before(unknown, w, best) {
			best, least = w, d
		}
	}
	return best
}

// longest bounds what is compared: no word that anybody knows is longer, and the
// time it takes grows with the square.
const longest = 64

func before(unknown, a, b string) bool {
	if begins := sameStart(unknown, a); begins != sameStart(unknown, b) {
		return begins
	}
	return a < b
}

func sameStart(a, b string) bool { return strings.EqualFold(a[:1], b[:1]) }

// Hint is " (did you mean WORD?)" for the nearest word, with what stands before
// each such word where it is written, as -- before a flag. It is empty if none
// is near.
func Hint(unknown, before string, words []string) string {
	w := Of(unknown, words)
	if w == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s%s?)", before, w)
}
