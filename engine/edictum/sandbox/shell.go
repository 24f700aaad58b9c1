package sandbox

import "strings"

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
	words := words(c)
	if len(words) == 0 {
		return
	}
	first := strings.TrimLeft(words[0], "0123456789")
	if strings.HasPrefix(first, "<") || strings.HasPrefix(first, ">") {
		l.fail("the command begins with a redirection")
		return
	}
	if l.box.commands != nil && !l.box.commands[words[0]] {
		l.fail("command %q is not allowed", words[0])
		return
	}
	for _, w := range words {
		l.word(w)
	}
	l.hosts(c)
	for _, w := range words { // without the quotes
		l.hosts(w)
	}
}

// word looks for paths in a word of a command: itself, and what stands behind an
// option, an assignment or a redirection.
func (l *look) word(w string) {
	for _, part := range parts(w) {
		if isPath(part) {
			l.path(part)
		}
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

// isPath reports whether a text in a command names a path: one that is absolute, or
// that leads out of the folder in which the command runs.
func isPath(s string) bool {
	for _, form := range forms(s) {
		switch {
		case strings.HasPrefix(form, "/"), strings.HasPrefix(form, "~"), form == "..",
			strings.HasPrefix(form, "../"), strings.Contains(form, "/../"), strings.HasSuffix(form, "/.."):
			return true
		}
	}
	return false
}

// words splits a command as a shell does that knows quotes and backslashes. With a
// quote that is never closed it is split at blanks.
func words(c string) []string {
	var all []string
	var b strings.Builder
	inWord := false
	for i := 0; i < len(c); i++ {
		switch ch := c[i]; ch {
		case ' ', '\t', '\n', '\r', '\v', '\f':
			if inWord {
				all = append(all, b.String())
				b.Reset()
				inWord = false
			}
		case '\'':
			end := strings.IndexByte(c[i+1:], '\'')
			if end < 0 {
				return strings.Fields(c)
			}
			b.WriteString(c[i+1 : i+1+end])
			i += end + 1
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
				b.WriteByte(c[i])
			}
			if !closed {
				return strings.Fields(c)
			}
		case '\\':
			if i+1 >= len(c) {
				return strings.Fields(c)
			}
			i++
			b.WriteByte(c[i])
			inWord = true
		default:
			b.WriteByte(ch)
			inWord = true
		}
	}
	if inWord {
		all = append(all, b.String())
	}
	return all
}
