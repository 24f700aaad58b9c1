package docs

import (
	"fmt"
	"regexp"
	"strings"
)

// A block is what stands between two fences of a document.
type block struct {
	line  int // of its fence
	lang  string
	words map[string]string // behind the language; "" for a word without a value
	text  string
}

func (b block) has(word string) bool { _, ok := b.words[word]; return ok }

var (
	fence = regexp.MustCompile("^(```+)\\s*(\\S*)\\s*(.*)$")
	word  = regexp.MustCompile(`([a-z]+)(?:=(?:"([^"]*)"|(\S*)))?\s*`)
)

// known are the languages, and the words that each may have.
var known = map[string]string{
	"sh": "exit terminal until file norun reason", "go": "file", "yaml": "alerts file", "json": "output file",
	"text": "output picture", "redis": "norun reason", "cedar": "file", "rego": "file", "python": "file",
	"ini": "file norun reason", "conf": "file norun reason",
}

// blocks cuts a document into its blocks and the prose around them, in which
// the blocks are empty lines.
func blocks(document string) (list []block, prose string, err error) {
	var open *block
	end := ""
	var rest []string
	for i, line := range strings.Split(document, "\n") {
		switch m := fence.FindStringSubmatch(strings.TrimPrefix(line, "   ")); {
		case open != nil && strings.TrimSpace(line) == end:
			list = append(list, *open)
			open = nil
			line = ""
		case open != nil:
			open.text += line + "\n"
			line = ""
		case m != nil:
			b := block{line: i + 1, lang: m[2], words: map[string]string{}}
			for _, w := range word.FindAllStringSubmatch(m[3], -1) {
				b.words[w[1]] = w[2] + w[3]
			}
			if err := b.check(m[3]); err != nil {
				return nil, "", fmt.Errorf("line %d: %w", b.line, err)
			}
			open, end, line = &b, m[1], ""
		}
		rest = append(rest, line)
	}
	if open != nil {
		return nil, "", fmt.Errorf("line %d: the block has no end", open.line)
	}
	return list, strings.Join(rest, "\n"), nil
}

// check finds blocks that nothing would run.
func (b block) check(words string) error {
	allowed, ok := known[b.lang]
	if !ok {
		return fmt.Errorf("a block of %q is run by nothing; package docs says what a block may be", b.lang)
	}
	if left := strings.TrimSpace(word.ReplaceAllString(words, "")); left != "" {
		return fmt.Errorf("%q is no word behind a fence", left)
	}
	for w := range b.words {
		if !strings.Contains(" "+allowed+" ", " "+w+" ") {
			return fmt.Errorf("a block of %s cannot be %q", b.lang, w)
		}
	}
	switch {
	case b.has("norun"):
		if b.words["reason"] == "" {
			return fmt.Errorf("a block that is not run needs a reason")
		}
	case b.lang == "text" && len(b.words) == 0:
		return fmt.Errorf("a block of text is output or a picture")
	case strings.Contains(" cedar rego python ini conf ", " "+b.lang+" ") && b.words["file"] == "":
		return fmt.Errorf("a block of %s needs file=NAME, or nothing runs it", b.lang)
	}
	return nil
}
