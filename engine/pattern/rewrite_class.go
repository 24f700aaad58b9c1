package pattern

import (
	"errors"
	"fmt"
	"strings"
)

// How classes of characters are rewritten, and the escapes that stand for one.

// escapedClass reads \d, \D, \w, \W, \s, \S, \p and \P outside a class and
// returns a class of the dialect; ok is false if the input begins with none.
func (r *rewriter) escapedClass() (class string, ok bool, err error) {
	set, ok, err := r.classEscape()
	if !ok || err != nil {
		return "", ok, err
	}
	if set.negated {
		return r.exactCase("[^" + set.inside + "]"), true, nil
	}
	return r.exactCase("[" + set.inside + "]"), true, nil
}

// exactCase returns a class whose members are complete as they are: the dialect
// shall not fold it, because Python does not fold \w, and because folding a
// wide class costs the parser milliseconds.
func (r *rewriter) exactCase(class string) string {
	if r.flags.ignoreCase {
		return "(?-i:" + class + ")"
	}
	return class
}

// escapedSet is the escape of a set of characters.
type escapedSet struct {
	inside  string // its members as the inside of a class
	negated bool   // whether the escape means all others
	others  string // then all others as the inside of a class
}

// classEscape reads one off the input; ok is false if there is none.
func (r *rewriter) classEscape() (set escapedSet, ok bool, err error) {
	if r.in == "" {
		return escapedSet{}, false, nil
	}
	switch c := r.in[0]; c {
	case 'd', 'D', 'w', 'W', 's', 'S':
		r.in = r.in[1:]
		named := namedSets()[setKey{c | 0x20, r.flags.ascii, r.to}]
		r.ranges += named.ranges
		return escapedSet{named.inside, c < 'a', named.others}, true, nil
	case 'p', 'P':
		inside, err := r.property()
		return escapedSet{inside: inside}, err == nil, err
	}
	return escapedSet{}, false, nil
}

// property reads \pL or \p{Greek}, which Python lacks, but PCRE and both
// dialects have.
func (r *rewriter) property() (string, error) {
	end := 2
	if strings.HasPrefix(r.in[1:], "{") {
		end = strings.IndexByte(r.in, '}') + 1
	}
	if end == 0 || end > len(r.in) {
		return "", fmt.Errorf("incomplete escape \\%s", r.in)
	}
	inside := `\` + r.in[:end]
	r.in = r.in[end:]
	r.ranges += wideRanges
	return inside, nil
}

// class reads a character class from after its bracket.
func (r *rewriter) class() error {
	c := classReader{rewriter: r}
	if r.accept("^") {
		c.negated = true
	}
	for first := true; ; first = false {
		if r.in == "" {
			return errUnterminatedSet
		}
		if !first && r.accept("]") {
			break
		}
		if err := c.item(); err != nil {
			return err
		}
	}
	r.out.WriteString(c.text())
	return nil
}

var (
	errUnterminatedSet = errors.New("unterminated character set")
	errBadRange        = errors.New("bad character range in a set")
)

// classReader gathers the members of one class.
type classReader struct {
	*rewriter
	negated bool
	runes   runeSet         // characters and ranges that stand there themselves
	sets    strings.Builder // escaped sets, as the inside of a class
}

// text returns the class in the dialect, its members folded if need be.
func (c *classReader) text() string {
	if c.flags.ignoreCase {
		c.runes = c.runes.folded()
	}
	var out strings.Builder
	out.WriteByte('[')
	if c.negated {
		out.WriteByte('^')
	}
	for _, x := range c.runes.merged() {
		writeClassRange(&out, x[0], x[1])
		c.ranges++
	}
	out.WriteString(c.sets.String())
	out.WriteByte(']')
	return c.exactCase(out.String())
}

// item reads one character, range or escaped set.
func (c *classReader) item() error {
	low, isSet, err := c.atom()
	if err != nil {
		return err
	}
	if !strings.HasPrefix(c.in, "-") || strings.HasPrefix(c.in, "-]") || c.in == "-" {
		if !isSet {
			c.runes = append(c.runes, [2]rune{low, low})
		}
		return nil
	}
	c.in = c.in[1:]
	high, highIsSet, err := c.atom()
	if err != nil {
		return err
	}
	if isSet || highIsSet || low > high {
		return errBadRange
	}
	c.runes = append(c.runes, [2]rune{low, high})
	return nil
}

// atom reads one character, which it returns, or one set, which it keeps.
func (c *classReader) atom() (r rune, isSet bool, err error) {
	if name := posixClass(c.in); name != "" {
		c.in = c.in[len(name):]
		c.runes = append(c.runes, rangesOf("["+name+"]")...)
		return 0, true, nil
	}
	if r = c.next(); r != '\\' {
		return r, false, nil
	}
	if c.in == "" {
		return 0, false, errUnterminatedSet
	}
	set, ok, err := c.classEscape()
	switch {
	case err != nil:
		return 0, false, err
	case ok && set.negated:
		c.sets.WriteString(set.others)
		return 0, true, nil
	case ok:
		c.sets.WriteString(set.inside)
		return 0, true, nil
	case c.accept("b"):
		return '\b', false, nil
	}
	r, err = c.escapedRune()
	return r, false, err
}

// posixClass returns the POSIX class that s begins with, such as [:alpha:].
// Python has none and reads a set of the letters, which nobody who writes one
// can want; the specification asks for PCRE, which has them.
func posixClass(s string) string {
	if !strings.HasPrefix(s, "[:") {
		return ""
	}
	end := 2 + strings.Index(s[2:], ":]")
	if end < 2 {
		return ""
	}
	switch strings.TrimPrefix(s[2:end], "^") {
	case "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word", "xdigit":
		return s[:end+2]
	}
	return ""
}
