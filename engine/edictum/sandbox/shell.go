package sandbox

import (
	"slices"
	"strings"

	"example.com/govnode/engine/pattern"
)

// Commands: what they name is looked for as a shell would find it. A command that a
// shell would make more than one of is outside, whatever it names.

// separators begin another command, or text that is known to the shell alone.
var separators = []string{";", "|", "&", "\n", "\r", "`", "$", "<(", ">(", "<<"}

// command looks at a command.
func (l *look) command(c string) {
	if strings.IndexByte(c, 0) >= 0 {
		l.fail("the command holds a NUL")
		return
	}
	for _, s := range separators {
		if strings.Contains(c, s) {
			l.fail("the command holds %q", s)
			return
		}
	}
	words := split(c)
	if len(words) == 0 {
		return
	}
	name := words[0].text
	first := strings.TrimLeft(name, "0123456789")
	if strings.HasPrefix(first, "<") || strings.HasPrefix(first, ">") {
		l.fail("the command begins with a redirection")
		return
	}
	if l.box.commands != nil && !l.box.commands[name] {
		l.fail("command %q is not allowed", name)
		return
	}
	l.hosts(c)
	for _, w := range words {
		all, ok := w.expanded()
		if !ok {
			l.fail("the command holds too much in braces, or a row such as {1..9}")
			return
		}
		if len(all) > 1 {
			all = append(all, w)
		}
		for _, w := range all {
			l.word(w)
			l.hosts(w.text) // without the quotes
		}
	}
}

// word looks for paths in a word of a command: itself, and what stands behind an
// option, an assignment or a redirection.
func (l *look) word(w word) {
	leads := leadsUp(w.text)
	for _, part := range parts(w.text) {
		if beginsPath(part) || leads && l.spend(len(part)) && leadsUp(part) {
			l.path(part)
		}
		if l.outside != "" {
			return
		}
	}
	if w.mayClimb() && len(l.box.within)+len(l.box.notWithin) > 0 {
		l.fail("%q may be a folder above", w.text)
	}
}

// parts are the texts in a word that a program could take for a path.
func parts(w string) []string {
	all := []string{w}
	for i := range len(w) {
		switch w[i] {
		case '=', '<', '>', ':', ',', '@', '(', '[', '{', '"', '\'':
			all = append(all, w[i+1:])
		}
	}
	if strings.HasPrefix(w, "-") {
		if i := strings.IndexAny(w, `/~\`); i > 0 { // -f/etc/x
			all = append(all, w[i:])
		}
	}
	return all
}

// leadsUp reports whether a text in a command has a part that leads up behind another.
func leadsUp(s string) bool {
	return slices.ContainsFunc(forms(s), func(form string) bool { return strings.Contains(form, "/../") || strings.HasSuffix(form, "/..") })
}

// beginsPath reports whether a text in a command begins as a path does that is absolute,
// or that leads out of the folder in which the command runs.
func beginsPath(s string) bool {
	if s == "" || strings.IndexByte(`/~.%\`, s[0]) < 0 {
		return false
	}
	const enough = len("%252e%252e%252f") // the longest way to write ../
	short := s[:min(len(s), enough+1)]
	return slices.ContainsFunc(forms(short), func(form string) bool {
		return strings.HasPrefix(form, "/") || strings.HasPrefix(form, "~") || form == ".." || strings.HasPrefix(form, "../")
	})
}

// A word is one of a command, as a program gets it, and as a shell sees it that makes
// more of it: shape is as long as text, and has a blank for each letter that is quoted and
// would mean something to the shell if it were not.
type word struct{ text, shape string }

func (w word) from(i int) word { return word{w.text[i:], w.shape[i:]} }
func (w word) upTo(i int) word { return word{w.text[:i], w.shape[:i]} }
func (w word) and(o word) word { return word{w.text + o.text, w.shape + o.shape} }

// mayClimb reports whether a shell may find the folder above by a pattern: a part that
// begins with a point, as such parts have to, and for which two points are one. A part may
// stand behind a redirection; and of a class such as [[:punct:]] anything is taken to be one.
func (w word) mayClimb() bool {
	for _, part := range strings.FieldsFunc(w.shape, func(r rune) bool { return strings.ContainsRune("/<>&", r) }) {
		if !strings.HasPrefix(part, ".") || !strings.ContainsAny(part, "*?[") {
			continue
		}
		classes := strings.Contains(part, "[:") || strings.Contains(part, "[=") || strings.Contains(part, "[.")
		if classes || pattern.FnMatch("..", strings.ReplaceAll(part, "[^", "[!")) {
			return true
		}
	}
	return false
}

// mostExpanded bounds the words that braces may make of one.
const mostExpanded = 64

// expanded are the words that some shells make of one with braces: of a.{b,c} two. It is
// not ok where they are too many, or a row.
func (w word) expanded() (all []word, ok bool) {
	todo := []word{w}
	most := min(mostExpanded, 1+1<<18/(len(w.text)+1))
	if strings.Count(w.shape, "{") > mostExpanded {
		return nil, false
	}
	for len(todo) > 0 {
		w := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		before, choices, behind := w.braces()
		if choices == nil {
			all = append(all, w)
			continue
		}
		for _, c := range choices {
			if c.text == row {
				return nil, false
			}
			todo = append(todo, before.and(c).and(behind))
		}
		if len(todo)+len(all) > most {
			return nil, false
		}
	}
	return all, true
}

// row stands for the choices of a row, which are not spelled out.
const row = "\x00"

// braces finds the first pair of braces that leaves a choice; choices is nil without one.
func (w word) braces() (before word, choices []word, behind word) {
	for i := range len(w.shape) {
		if w.shape[i] != '{' {
			continue
		}
		depth, from := 1, i+1
		for k := i + 1; k < len(w.shape) && depth > 0; k++ {
			switch w.shape[k] {
			case '{':
				depth++
			case ',':
				if depth == 1 {
					choices, from = append(choices, w.upTo(k).from(from)), k+1
				}
			case '}':
				if depth--; depth > 0 {
					continue
				}
				last := w.upTo(k).from(from)
				if choices == nil && strings.Contains(last.shape, "..") {
					choices = []word{{row, row}}
				} else if choices != nil {
					choices = append(choices, last)
				}
				if choices != nil {
					return w.upTo(i), choices, w.from(k + 1)
				}
			}
		}
		choices = nil
	}
	return word{}, nil, word{}
}

// split splits a command as a shell does that knows quotes and backslashes. With a
// quote that is never closed it is split at blanks.
func split(c string) []word {
	var all []word
	var text, shape strings.Builder
	inWord := false
	add := func(ch byte, quoted bool) {
		text.WriteByte(ch)
		if quoted && strings.IndexByte("*?[]{},", ch) >= 0 {
			ch = ' '
		}
		shape.WriteByte(ch)
		inWord = true
	}
	end := func() {
		if inWord {
			all = append(all, word{text.String(), shape.String()})
			text.Reset()
			shape.Reset()
			inWord = false
		}
	}
	for i := 0; i < len(c); i++ {
		switch ch := c[i]; ch {
		case ' ', '\t', '\n', '\r', '\v', '\f':
			end()
		case '\'':
			n := strings.IndexByte(c[i+1:], '\'')
			if n < 0 {
				return atBlanks(c)
			}
			for _, q := range []byte(c[i+1 : i+1+n]) {
				add(q, true)
			}
			i += n + 1
			inWord = true
		case '"':
			inWord = true
			closed := false
			for i++; i < len(c); i++ {
				if c[i] == '"' {
					closed = true
					break
				}
				if c[i] == '\\' && i+1 < len(c) && strings.IndexByte("\\\"$`\n", c[i+1]) >= 0 {
					i++
				}
				add(c[i], true)
			}
			if !closed {
				return atBlanks(c)
			}
		case '\\':
			if i+1 >= len(c) {
				return atBlanks(c)
			}
			i++
			add(c[i], true)
		default:
			add(ch, false)
		}
	}
	end()
	return all
}

func atBlanks(c string) (all []word) {
	for _, f := range strings.Fields(c) {
		all = append(all, word{f, f})
	}
	return all
}
