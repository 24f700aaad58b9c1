package pattern

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// rewriter turns an expression of Python's re module into one of a dialect with
// the same matches. It goes from left to right once; groups nest on a stack
// because flags end with the group that set them.
type rewriter struct {
	to     dialect
	in     string // what is still to be read
	out    strings.Builder
	flags  reFlags
	outer  []reFlags      // flags of the enclosing groups
	groups int            // capturing groups opened so far
	names  map[string]int // numbers of the named ones
	// started says that something other than flags for all of the expression has
	// been read.
	started bool
	ranges  int // ranges of all classes, the better part of what an expression costs
}

// dialect is what a regular expression in Python's syntax is rewritten to.
type dialect uint8

const (
	dialectRE2          dialect = iota // Go's regexp
	dialectBacktracking                // regexp2, the syntax of .NET
)

// needsBacktracking is the error for what RE2 cannot run but the backtracking
// engine can.
type needsBacktracking struct{ feature string }

func (e needsBacktracking) Error() string {
	return e.feature + " needs a backtracking engine; rewrite the pattern, or mark it with engine: backtracking"
}

// reFlags are the inline flags that the rewriter has to know. The others pass.
type reFlags struct{ ignoreCase, multiline, ascii, verbose bool }

// rewrite returns the expression of the dialect that matches what expr matches
// in Python. It refuses what Python refuses and the dialect would read as
// something else; all other syntax errors are left to the dialect's parser.
func rewrite(expr string, to dialect, ignoreCase bool) (string, int, error) {
	if !utf8.ValidString(expr) {
		return "", 0, fmt.Errorf("the pattern is not valid UTF-8")
	}
	r := &rewriter{to: to, in: expr}
	if r.flags.ignoreCase = ignoreCase; ignoreCase {
		r.out.WriteString("(?i)")
	}
	for r.in != "" {
		if err := r.step(); err != nil {
			return "", 0, err
		}
	}
	if len(r.outer) > 0 {
		return "", 0, fmt.Errorf("missing ), unterminated group")
	}
	return r.out.String(), r.ranges, nil
}

// next takes one character off the input.
func (r *rewriter) next() rune {
	c, size := utf8.DecodeRuneInString(r.in)
	r.in = r.in[size:]
	return c
}

// accept takes prefix off the input if it is there.
func (r *rewriter) accept(prefix string) bool {
	rest, ok := strings.CutPrefix(r.in, prefix)
	r.in = rest
	return ok
}

func (r *rewriter) step() error {
	if r.flags.verbose && r.skipLayout() {
		return nil
	}
	started := r.started
	r.started = true
	switch c := r.next(); c {
	case '\\':
		return r.escape()
	case '[':
		return r.class()
	case '(':
		return r.open(started)
	case ')':
		return r.close()
	case '{':
		return r.count()
	case '$':
		r.dollar()
	case '*', '+', '?':
		r.out.WriteRune(c)
		return r.greed()
	case '.', '^', '|':
		r.out.WriteRune(c)
	default:
		r.literal(c)
	}
	return nil
}

// skipLayout drops white space and comments of the verbose mode.
func (r *rewriter) skipLayout() bool {
	rest := strings.TrimLeft(r.in, " \t\n\r\v\f")
	if strings.HasPrefix(rest, "#") {
		_, rest, _ = strings.Cut(rest, "\n")
	}
	skipped := len(rest) < len(r.in)
	r.in = rest
	return skipped
}

// literal writes a character that stands for itself.
func (r *rewriter) literal(c rune) {
	if orbit := extraOrbit(c); orbit != nil && r.flags.ignoreCase {
		r.out.WriteString("(?-i:[" + string(orbit) + "])")
		return
	}
	r.out.WriteString(regexp.QuoteMeta(string(c)))
}

// dollar: Python's $ also matches before a newline that ends the text. RE2 has
// no such anchor, but may match the newline along, which a search cannot tell.
func (r *rewriter) dollar() {
	if r.to == dialectRE2 && !r.flags.multiline {
		r.out.WriteString(`(?:\n?\z)`)
		return
	}
	r.out.WriteByte('$')
}

// greed reads what may follow a quantifier.
func (r *rewriter) greed() error {
	if r.accept("?") {
		r.out.WriteByte('?')
	} else if strings.HasPrefix(r.in, "+") {
		return fmt.Errorf("possessive quantifiers are not supported; write an atomic group (?>...) and mark the pattern with engine: backtracking")
	}
	return nil
}

var countForm = regexp.MustCompile(`^(\d*)(,?)(\d*)\}`)

// count reads {n}, {n,}, {n,m} or Python's {,m}. Any other brace is literal.
func (r *rewriter) count() error {
	m := countForm.FindStringSubmatch(r.in)
	if m == nil || m[0] == "}" {
		r.literal('{')
		return nil
	}
	r.in = r.in[len(m[0]):]
	if m[1] == "" {
		m[1] = "0"
	}
	low, errLow := strconv.Atoi(m[1])
	high, errHigh := strconv.Atoi("0" + m[3])
	switch {
	case errLow != nil || errHigh != nil:
		return fmt.Errorf("the repetition number in {%s is too large", m[0])
	case m[3] != "" && high < low:
		return fmt.Errorf("min repeat greater than max repeat in {%s", m[0])
	}
	fmt.Fprintf(&r.out, "{%s%s%s}", m[1], m[2], m[3])
	return r.greed()
}

// escape reads what follows a backslash outside a class.
func (r *rewriter) escape() error {
	if r.in == "" {
		return fmt.Errorf("bad escape (end of pattern)")
	}
	switch c := r.in[0]; {
	case c >= '1' && c <= '9' && !isOctal3(r.in):
		n := r.in[:1]
		if len(r.in) > 1 && isDigit(r.in[1]) {
			n = r.in[:2]
		}
		r.in = r.in[len(n):]
		return r.backreference(n, "backreference \\"+n)
	case strings.IndexByte("AbB", c) >= 0:
		r.in = r.in[1:]
		r.out.WriteString(`\` + string(c))
		return nil
	case c == 'Z' || c == 'z':
		r.in = r.in[1:]
		r.out.WriteString(`\z`)
		return nil
	}
	if class, ok, err := r.escapedClass(); ok || err != nil {
		r.out.WriteString(class)
		return err
	}
	if r.surrogateRange() {
		return nil
	}
	c, err := r.escapedRune()
	if err != nil {
		return err
	}
	r.literal(c)
	return nil
}

func (r *rewriter) backreference(number, feature string) error {
	if r.to == dialectRE2 {
		return needsBacktracking{feature}
	}
	if n, _ := strconv.Atoi(number); n > r.groups {
		return fmt.Errorf("invalid group reference %s", number)
	}
	r.out.WriteString(`\k<` + number + `>`)
	return nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isOctal(c byte) bool { return '0' <= c && c <= '7' }

// isOctal3 reports whether s begins with three octal digits, which Python takes
// for a character and not for a group.
func isOctal3(s string) bool {
	return len(s) >= 3 && isOctal(s[0]) && isOctal(s[1]) && isOctal(s[2])
}

// escapedRune reads an escape that stands for one character, in a class or
// outside, and takes it off the input.
func (r *rewriter) escapedRune() (rune, error) {
	c := r.next()
	switch c {
	case 'a':
		return '\a', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'v':
		return '\v', nil
	case 'x':
		return r.hex('x', 2)
	case 'u':
		return r.hex('u', 4)
	case 'U':
		return r.hex('U', 8)
	}
	switch {
	case '0' <= c && c <= '7':
		return r.octal(c)
	case c < utf8.RuneSelf && (c >= '8' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'):
		return 0, fmt.Errorf("bad escape \\%c", c)
	}
	return c, nil
}

func (r *rewriter) hex(kind byte, width int) (rune, error) {
	if len(r.in) < width {
		return 0, fmt.Errorf("incomplete escape \\%c%s", kind, r.in)
	}
	digits := r.in[:width]
	n, err := strconv.ParseUint(digits, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("incomplete escape \\%c%s", kind, digits)
	}
	r.in = r.in[width:]
	c := rune(min(n, utf8.MaxRune+1))
	if pair := lowSurrogate.FindString(r.in); pair != "" && utf16.IsSurrogate(c) {
		low, _ := strconv.ParseUint(pair[2:], 16, 32)
		if joined := utf16.DecodeRune(c, rune(low)); joined != utf8.RuneError {
			r.in = r.in[len(pair):]
			return joined, nil
		}
	}
	switch {
	case utf16.IsSurrogate(c):
		return 0, fmt.Errorf("\\%c%s is half of a surrogate pair, which no text holds; write the character as \\U and eight digits", kind, digits)
	case !utf8.ValidRune(c):
		return 0, fmt.Errorf("\\%c%s is no Unicode character", kind, digits)
	}
	return c, nil
}

// Characters beyond 16 bits are sometimes written as the two escapes that they
// need in JavaScript, and a range of them as one escape and a class. Python
// takes the halves for characters of their own, which occur in no valid text,
// so that such a pattern would silently guard nothing.
var (
	lowSurrogate    = regexp.MustCompile(`^\\u[dD][c-fC-F][0-9a-fA-F]{2}`)
	surrogateRanges = regexp.MustCompile(`^u([dD][89abAB][0-9a-fA-F]{2})\[\\u([dD][c-fC-F][0-9a-fA-F]{2})-\\u([dD][c-fC-F][0-9a-fA-F]{2})\]`)
)

// surrogateRange reads an escaped high surrogate followed by a range of low ones.
func (r *rewriter) surrogateRange() bool {
	m := surrogateRanges.FindStringSubmatch(r.in)
	if m == nil {
		return false
	}
	var half [3]rune
	for i, digits := range m[1:] {
		n, _ := strconv.ParseUint(digits, 16, 32)
		half[i] = rune(n)
	}
	if half[1] > half[2] {
		return false
	}
	r.in = r.in[len(m[0]):]
	var class strings.Builder
	writeClassRange(&class, utf16.DecodeRune(half[0], half[1]), utf16.DecodeRune(half[0], half[2]))
	r.out.WriteString(r.exactCase("[" + class.String() + "]"))
	return true
}

func (r *rewriter) octal(first rune) (rune, error) {
	n := first - '0'
	for range 2 {
		if r.in == "" || !isOctal(r.in[0]) {
			break
		}
		n = n*8 + rune(r.in[0]-'0')
		r.in = r.in[1:]
	}
	if n > 0o377 {
		return 0, fmt.Errorf("octal escape value \\%o is above \\377", n)
	}
	return n, nil
}
