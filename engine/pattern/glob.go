package pattern

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// glob is a shell pattern as Python's fnmatch reads it, one token per part.
type glob []globToken

type globToken struct {
	op     globOp
	char   rune      // opChar
	ranges [][2]rune // opSet and opNotSet: inclusive ranges; none means the empty set
}

type globOp uint8

const (
	opChar   globOp = iota // the character itself
	opAny                  // ?: any one character, newline and slash too
	opStar                 // *: any number of any characters
	opSet                  // [abc], [a-z]
	opNotSet               // [!abc]
)

// parseGlob cannot fail: what is no complete set is a literal bracket, and
// there is no way to quote a character but a set of one.
func parseGlob(text string) glob {
	var g glob
	pat := []rune(text)
	for i := 0; i < len(pat); {
		c := pat[i]
		i++
		switch c {
		case '*':
			if len(g) == 0 || g[len(g)-1].op != opStar {
				g = append(g, globToken{op: opStar})
			}
		case '?':
			g = append(g, globToken{op: opAny})
		case '[':
			end := setEnd(pat, i)
			if end < 0 {
				g = append(g, globToken{op: opChar, char: '['})
				break
			}
			g = append(g, parseSet(pat[i:end]))
			i = end + 1
		default:
			g = append(g, globToken{op: opChar, char: c})
		}
	}
	return g
}

// setEnd returns where the set that begins at i ends, or -1. A bracket directly
// after the opening one, or after its !, belongs to the set.
func setEnd(pat []rune, i int) int {
	if i < len(pat) && pat[i] == '!' {
		i++
	}
	if i < len(pat) && pat[i] == ']' {
		i++
	}
	if i > len(pat) {
		return -1
	}
	if n := slices.Index(pat[i:], ']'); n >= 0 {
		return i + n
	}
	return -1
}

// parseSet reads what stands between the brackets. A hyphen makes a range of
// its two neighbours unless it stands at either end; a range that runs
// backwards matches nothing, and its hyphen and ends are gone.
func parseSet(set []rune) globToken {
	t := globToken{op: opSet}
	if len(set) > 0 && set[0] == '!' {
		t.op, set = opNotSet, set[1:]
	}
	for i := 0; i < len(set); {
		if i+2 < len(set) && set[i+1] == '-' {
			if set[i] <= set[i+2] {
				t.ranges = append(t.ranges, [2]rune{set[i], set[i+2]})
			}
			i += 3
			continue
		}
		t.ranges = append(t.ranges, [2]rune{set[i], set[i]})
		i++
	}
	return t
}

// Translate returns the RE2 expression that stands for a glob as Python's
// fnmatch.translate gives it: a dot matches newlines too, and only the end is
// anchored. Searched for in a text, it therefore finds every text that ends in
// a match; wrap it in \A(?:...) to match whole texts.
func Translate(glob string) string { return `(?s:` + parseGlob(glob).expression() + `)\z` }

func (g glob) expression() string {
	var out strings.Builder
	for _, t := range g {
		switch t.op {
		case opChar:
			out.WriteString(regexp.QuoteMeta(string(t.char)))
		case opAny:
			out.WriteByte('.')
		case opStar:
			out.WriteString(".*")
		default:
			out.WriteString(t.class())
		}
	}
	return out.String()
}

func (t globToken) class() string {
	switch {
	case len(t.ranges) == 0 && t.op == opSet:
		return nothing
	case len(t.ranges) == 0:
		return "."
	}
	var out strings.Builder
	out.WriteByte('[')
	if t.op == opNotSet {
		out.WriteByte('^')
	}
	for _, r := range t.ranges {
		writeClassRange(&out, r[0], r[1])
	}
	out.WriteByte(']')
	return out.String()
}

// FnMatch reports whether the whole of name matches glob, as Python's
// fnmatch.fnmatchcase does on any system: case-sensitive, * and ? cross
// slashes, [!x] negates, nothing quotes. Time is at most len(name)*len(glob).
func FnMatch(name, glob string) bool { return parseGlob(glob).match(name) }

// match walks both from left to right. After a star it is enough to remember
// the last one: what an earlier star could take more, the last one can as well.
func (g glob) match(name string) bool {
	star, mark := -1, 0 // the token after the last star, and where it was tried last
	i, k := 0, 0
	for i < len(name) {
		r, size := utf8.DecodeRuneInString(name[i:])
		switch {
		case k < len(g) && g[k].op == opStar:
			star, mark = k+1, i
			k++
		case k < len(g) && g[k].matches(r):
			i, k = i+size, k+1
		case star >= 0:
			_, skip := utf8.DecodeRuneInString(name[mark:])
			mark += skip
			i, k = mark, star
		default:
			return false
		}
	}
	for k < len(g) && g[k].op == opStar {
		k++
	}
	return k == len(g)
}

func (t globToken) matches(r rune) bool {
	switch t.op {
	case opChar:
		return r == t.char
	case opAny:
		return true
	}
	in := slices.ContainsFunc(t.ranges, func(x [2]rune) bool { return x[0] <= r && r <= x[1] })
	return in == (t.op == opSet)
}
