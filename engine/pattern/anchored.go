package pattern

import (
	"regexp/syntax"
	"strings"
)

// anchored is an expression of the most common form for names: the beginning of
// the text, a literal, perhaps characters of one ASCII class, perhaps the end.
// Reading it off directly takes a tenth of what the regular expression does.
type anchored struct {
	prefix  string
	class   *[256]bool // of bytes, ASCII alone; nil: none follow the literal
	atLeast int        // how many of the class must follow
	end     bool       // nothing may come after
	newline bool       // but one line feed, as Python's $ allows
}

// anchoredOf returns the direct form of an expression, given its simplified
// tree; nil if it has none. Where only the beginning is a literal, prefix says
// so nevertheless.
func anchoredOf(re *syntax.Regexp) (prefix string, a *anchored) {
	if re.Op != syntax.OpConcat || re.Sub[0].Op != syntax.OpBeginText || re.Sub[1].Op != syntax.OpLiteral || re.Sub[1].Flags&syntax.FoldCase != 0 {
		return "", nil
	}
	a = &anchored{prefix: string(re.Sub[1].Rune)}
	rest := re.Sub[2:]
	if len(rest) > 0 && a.takeClass(rest[0]) {
		rest = rest[1:]
	}
	if len(rest) == 2 && isLineFeedOrNone(rest[0]) && rest[1].Op == syntax.OpEndText {
		a.newline, rest = true, rest[1:]
	}
	switch {
	case len(rest) == 0:
		return a.prefix, a
	case len(rest) == 1 && rest[0].Op == syntax.OpEndText:
		a.end = true
		return a.prefix, a
	}
	return a.prefix, nil
}

// takeClass accepts an ASCII class at least once or any number of times.
func (a *anchored) takeClass(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpPlus:
		a.atLeast = 1
	case syntax.OpStar:
	default:
		return false
	}
	class := re.Sub[0]
	if class.Op != syntax.OpCharClass || len(class.Rune) == 0 || class.Rune[len(class.Rune)-1] > 127 {
		a.atLeast = 0
		return false
	}
	a.class = new([256]bool)
	for i := 0; i < len(class.Rune); i += 2 {
		for r := class.Rune[i]; r <= class.Rune[i+1]; r++ {
			a.class[r] = true
		}
	}
	return true
}

func isLineFeedOrNone(re *syntax.Regexp) bool {
	return re.Op == syntax.OpQuest && re.Sub[0].Op == syntax.OpLiteral && string(re.Sub[0].Rune) == "\n"
}

func (a *anchored) match(text string) bool {
	rest, ok := strings.CutPrefix(text, a.prefix)
	return ok && a.matchRest(rest)
}

// matchRest is match for what follows the literal.
func (a *anchored) matchRest(rest string) bool {
	if class := a.class; class != nil {
		n := 0
		for n < len(rest) && class[rest[n]] {
			n++
		}
		if n < a.atLeast {
			return false
		}
		// Taking fewer would leave a character of the class, which is neither
		// the end nor, unless it is the last, a line feed before it.
		rest = rest[n:]
	}
	return !a.end || rest == "" || a.newline && rest == "\n"
}
