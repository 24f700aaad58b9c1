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
// backwards matches nothing, and its hyphen and ends are gone. What is then the
// first character negates the set if it is !, wherever it stood before: so it
// is in Python, whose steps these are.
func parseSet(set []rune) globToken {
	chunks := rangeChunks(set)
	t := globToken{op: opSet}
	if first := chunks[0]; len(first) > 0 && first[0] == '!' {
		t.op, chunks[0] = opNotSet, first[1:]
	}
	for n, chunk := range chunks {
		if n > 0 {
			if before := chunks[n-1]; len(before) > 0 {
				t.ranges = append(t.ranges, [2]rune{before[len(before)-1], chunk[0]})
				chunk = chunk[1:]
			} else { // directly behind the ! a hyphen means itself
				t.ranges = append(t.ranges, [2]rune{'-', '-'})
			}
		}
		for _, c := range chunk {
			t.ranges = append(t.ranges, [2]rune{c, c})
		}
	}
	return t
}

// rangeChunks splits a set at the hyphens that make ranges, and joins the parts
// of ranges that run backwards, without their ends.
func rangeChunks(set []rune) [][]rune {
	var chunks [][]rune
	from := 1 // where a hyphen can be one of a range
	if set[0] == '!' {
		from = 2
	}
	rest := 0
	for from < len(set) {
		n := slices.Index(set[from:], '-')
		if n < 0 {
			break
		}
		chunks = append(chunks, set[rest:from+n])
		rest, from = from+n+1, from+n+3
	}
	if rest < len(set) {
		chunks = append(chunks, set[rest:])
	} else {
		last := len(chunks) - 1
		chunks[last] = append(slices.Clone(chunks[last]), '-')
	}
	for n := len(chunks) - 1; n > 0; n-- {
		before, chunk := chunks[n-1], chunks[n]
		if before[len(before)-1] > chunk[0] {
			chunks[n-1] = slices.Concat(before[:len(before)-1], chunk[1:])
			chunks = slices.Delete(chunks, n, n+1)
		}
	}
	return chunks
}

// expression is the RE2 expression that stands for a glob as Python's
// fnmatch.translate gives it, without its anchor at the end.
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

// A Name is a glob that is read once, for names that come often.
type Name struct{ glob glob }

// Names reads a glob.
func Names(glob string) Name { return Name{parseGlob(glob)} }

// Match is [FnMatch].
func (n Name) Match(name string) bool { return n.glob.match(name) }

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
