package edictum

import (
	"regexp"
	"strings"

	"example.com/govnode/engine/value"
)

// Messages: texts with places for what was selected.

// A message is one, split at its places.
type message struct {
	text  string
	parts []part // nil where it has no places
}

type part struct {
	text     string // as it stands; with a selector what stands there if it is missing
	selector *selector
}

var place = regexp.MustCompile(`\{[^}]+\}`)

func messageOf(text string) message {
	m := message{text: text}
	last := 0
	for _, at := range place.FindAllStringIndex(text, -1) {
		s := selectorOf(text[at[0]+1 : at[1]-1])
		if s.from == unknown {
			continue
		}
		m.parts = append(m.parts, part{text: text[last:at[0]]}, part{text: text[at[0]:at[1]], selector: &s})
		last = at[1]
	}
	if m.parts != nil {
		m.parts = append(m.parts, part{text: text[last:]})
	}
	return m
}

const (
	mostOfValue = 200
	mostOfText  = 500
	redacted    = "[REDACTED]"
)

// in is the message with what was selected.
func (m message) in(s *scene) string {
	if m.parts == nil {
		return m.text
	}
	var b strings.Builder
	for _, p := range m.parts {
		if p.selector == nil {
			b.WriteString(p.text)
			continue
		}
		v, ok := s.find(*p.selector)
		if !ok {
			b.WriteString(p.text)
			continue
		}
		b.WriteString(shown(v))
	}
	return cut(b.String(), mostOfText)
}

// shown is a value as messages have it.
func shown(v value.Value) string {
	text := v.Str()
	if secretAtStart.MatchString(text) {
		return redacted
	}
	return cut(text, mostOfValue)
}

// cut shortens a text to so many characters, of which the last three are points then.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most-3]) + "..."
}
