package pattern

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// How groups are rewritten, references to them, and flags.

// open reads a group from after its bracket up to its content; started says
// whether something stands before it.
func (r *rewriter) open(started bool) error {
	if !r.accept("?") {
		r.groups++
		r.push("(")
		return nil
	}
	switch {
	case r.accept("#"):
		_, rest, ok := strings.Cut(r.in, ")")
		if !ok {
			return fmt.Errorf("missing ), unterminated comment")
		}
		r.in, r.started = rest, started
		return nil
	case r.accept(":"):
		r.push("(?:")
		return nil
	case r.accept("P="):
		return r.namedReference()
	case r.accept("P<"):
		return r.named()
	case r.accept(">"):
		return r.backtracking("(?>", "atomic group (?>...)")
	case r.accept("="):
		return r.backtracking("(?=", "lookahead (?=...)")
	case r.accept("!"):
		return r.backtracking("(?!", "lookahead (?!...)")
	case r.accept("<="):
		return r.backtracking("(?<=", "lookbehind (?<=...)")
	case r.accept("<!"):
		return r.backtracking("(?<!", "lookbehind (?<!...)")
	case r.accept("<"):
		return r.named() // PCRE's spelling
	case r.accept("("):
		return r.conditional()
	}
	return r.inlineFlags(started)
}

func (r *rewriter) push(text string) {
	r.out.WriteString(text)
	r.outer = append(r.outer, r.flags)
}

func (r *rewriter) close() error {
	if len(r.outer) == 0 {
		return fmt.Errorf("unbalanced parenthesis")
	}
	r.flags = r.outer[len(r.outer)-1]
	r.outer = r.outer[:len(r.outer)-1]
	r.out.WriteByte(')')
	return nil
}

func (r *rewriter) backtracking(text, feature string) error {
	if r.to == dialectRE2 {
		return needsBacktracking{feature}
	}
	r.push(text)
	return nil
}

var groupName = regexp.MustCompile(`^[\pL_][\pL\pN_]*$`)

// named opens a named group. It becomes a numbered one: names may be any
// identifier in Python, and .NET numbers the named groups after all others.
func (r *rewriter) named() error {
	name, rest, ok := strings.Cut(r.in, ">")
	if !ok || !groupName.MatchString(name) {
		return fmt.Errorf("bad character in group name %s", strconv.Quote(name))
	}
	if r.names[name] > 0 {
		return fmt.Errorf("redefinition of group name %q", name)
	}
	r.in = rest
	r.groups++
	if r.names == nil {
		r.names = make(map[string]int)
	}
	r.names[name] = r.groups
	r.push("(")
	return nil
}

func (r *rewriter) namedReference() error {
	name, rest, ok := strings.Cut(r.in, ")")
	n := r.names[name]
	if !ok || n == 0 {
		return fmt.Errorf("unknown group name %q", name)
	}
	r.in = rest
	return r.backreference(strconv.Itoa(n), "backreference (?P="+name+")")
}

// conditional reads (?(1)yes|no) and (?(name)yes|no).
func (r *rewriter) conditional() error {
	group, rest, ok := strings.Cut(r.in, ")")
	n, err := strconv.Atoi(group)
	if err != nil {
		n = r.names[group]
	}
	if !ok || n < 1 || n > r.groups {
		return fmt.Errorf("unknown group %q in a conditional", group)
	}
	r.in = rest
	return r.backtracking("(?("+strconv.Itoa(n)+")", "conditional (?("+group+")...)")
}

// inlineFlags reads (?ims), (?i:...) and (?i-s:...). Unicode is Python's
// default, so u says nothing; a and x are obeyed here and dropped. Flags for all
// of the expression stand at its start, as in Python: further on RE2 would take
// them for what follows alone.
func (r *rewriter) inlineFlags(started bool) error {
	end := strings.IndexAny(r.in, ":)")
	if end < 0 || end == 0 {
		return fmt.Errorf("unknown extension (?%s", firstRune(r.in))
	}
	on, off, negated := strings.Cut(r.in[:end], "-")
	scoped := r.in[end] == ':'
	inner := r.flags
	keep := ""
	for i, c := range on + off {
		set := i < len(on)
		switch c {
		case 'i':
			inner.ignoreCase = set
			keep += flagText("i", set)
		case 's':
			keep += flagText("s", set)
		case 'm':
			inner.multiline = set
			keep += flagText("m", set)
		case 'x':
			inner.verbose = set
		case 'a':
			inner.ascii = set
		case 'u':
			inner.ascii = false
		default:
			return fmt.Errorf("unknown inline flag %q", c)
		}
	}
	if negated && (off == "" || !scoped) {
		return fmt.Errorf("a flag can be turned off for a group only")
	}
	r.in = r.in[end+1:]
	switch {
	case scoped:
		r.push("(?:" + keep)
	case started:
		return fmt.Errorf("global flags not at the start of the expression; write (?%s) before everything else, or (?%s:...) around what it is for", on, on)
	default:
		r.out.WriteString(keep)
		r.started = false
	}
	r.flags = inner
	return nil
}

// flagText sets or clears one flag from here to the end of the group, which
// both dialects understand alike.
func flagText(flag string, set bool) string {
	if set {
		return "(?" + flag + ")"
	}
	return "(?-" + flag + ")"
}

func firstRune(s string) string {
	for _, c := range s {
		return string(c)
	}
	return "end of pattern"
}
