package pattern

import (
	"math/bits"
	"regexp/syntax"
	"unicode"
	"unicode/utf8"
)

// classCheck is a condition of the prefilter for what has no literals, such as
// \d{10}: every match holds at least one character of this set. The zero value
// holds always.
type classCheck struct {
	set  charSet
	some bool // whether there is a condition
}

// charSet is a set of characters, exact in ASCII and rough beyond.
type charSet struct {
	ascii [2]uint64
	other bool // any character beyond ASCII
}

func (s *charSet) add(r rune) {
	if r < utf8.RuneSelf {
		s.ascii[r>>6] |= 1 << (r & 63)
	} else {
		s.other = true
	}
}

func (s *charSet) addAll(t charSet) {
	s.ascii[0] |= t.ascii[0]
	s.ascii[1] |= t.ascii[1]
	s.other = s.other || t.other
}

func (s charSet) overlaps(t charSet) bool {
	return s.ascii[0]&t.ascii[0] != 0 || s.ascii[1]&t.ascii[1] != 0 || s.other && t.other
}

// size is smaller for what excludes more texts. Most texts have few characters
// beyond ASCII, or none.
func (s charSet) size() int {
	n := bits.OnesCount64(s.ascii[0]) + bits.OnesCount64(s.ascii[1])
	if s.other {
		n++
	}
	return n
}

// charSetOf returns the characters of a text.
func charSetOf(text string) charSet {
	var s charSet
	for i := range len(text) {
		s.add(rune(text[i])) // a byte beyond ASCII belongs to a character beyond ASCII
	}
	return s
}

// holdsIn reports whether a text of these characters may hold a match.
func (c classCheck) holdsIn(text charSet) bool { return !c.some || c.set.overlaps(text) }

// classCheckOf returns the smallest set that every match has a character of.
func classCheckOf(re *syntax.Regexp) classCheck {
	switch re.Op {
	case syntax.OpLiteral:
		var c classCheck
		for _, same := range orbitOf(re.Rune[0]) {
			c.set.add(same)
		}
		c.some = true
		return c
	case syntax.OpCharClass:
		return classCheck{set: charSetOfRanges(re.Rune), some: true}
	case syntax.OpCapture, syntax.OpPlus:
		return classCheckOf(re.Sub[0])
	case syntax.OpConcat:
		var least classCheck
		for _, sub := range re.Sub {
			if c := classCheckOf(sub); c.some && (!least.some || c.set.size() < least.set.size()) {
				least = c
			}
		}
		return least
	case syntax.OpAlternate:
		all := classCheck{some: true}
		for _, sub := range re.Sub {
			c := classCheckOf(sub)
			if !c.some {
				return classCheck{}
			}
			all.set.addAll(c.set)
		}
		return all
	}
	return classCheck{} // also what matches the empty text
}

func charSetOfRanges(ranges []rune) charSet {
	var s charSet
	for i := 0; i+1 < len(ranges); i += 2 {
		for r := ranges[i]; r <= min(ranges[i+1], unicode.MaxASCII); r++ {
			s.add(r)
		}
		s.other = s.other || ranges[i+1] > unicode.MaxASCII
	}
	return s
}
