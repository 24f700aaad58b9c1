package pattern

import (
	"unicode/utf8"

	"example.com/govnode/engine/value"
)

// Forms are the texts of one call that patterns are searched in: (a) the
// arguments as Python's repr prints them, (b) every key and every string by
// itself, as it is and with disguises removed, and (c) compact JSON. They are
// made when first needed and kept. A Forms serves one call; it is not safe for
// concurrent use.
type Forms struct {
	value  value.Value
	text   string
	isText bool
	texts  bool // leaves are read as texts
	pieces []piece
	slow   allowance
}

// form says which of the texts a piece is; it decides how globs are read.
type form uint8

const (
	formRepr form = iota
	formLeaf
	formJSON
)

// piece is one text, and what several patterns want to know about it.
type piece struct {
	text   string
	form   form
	folded []byte // see foldedText
}

// FormsOf returns the forms of a call's arguments.
func FormsOf(v value.Value) *Forms { return &Forms{value: v} }

// FormsOfTexts are those of what holds texts and is no call of a tool: in each of them
// a glob is anchored at its end alone.
func FormsOfTexts(v value.Value) *Forms { return &Forms{value: v, texts: true} }

// FormsOfText returns the forms of a plain text, such as a model's output: the
// text itself, as form (a) and as the only leaf. It has no JSON.
func FormsOfText(s string) *Forms { return &Forms{text: s, isText: true} }

func (f *Forms) all() []piece {
	if f.pieces != nil {
		return f.pieces
	}
	if f.isText {
		f.pieces = append(f.pieces, piece{text: f.text, form: formRepr})
		f.addLeaf(f.text)
		return f.pieces
	}
	f.pieces = append(f.pieces,
		piece{text: f.value.Repr(), form: formRepr},
		piece{text: f.value.JSON(), form: formJSON})
	seen := make(map[string]bool)
	f.value.Leaves(func(s string) bool {
		if !seen[s] {
			seen[s] = true
			f.addLeaf(s)
		}
		return true
	})
	return f.pieces
}

// addLeaf adds a string, and what it is without disguises if that differs. An
// ASCII text has none but upper case, which no pattern minds.
func (f *Forms) addLeaf(s string) {
	form := formLeaf
	if f.texts {
		form = formRepr
	}
	f.pieces = append(f.pieces, piece{text: s, form: form})
	if isASCII(s) {
		return
	}
	if plain := normalize(s); plain != s {
		f.pieces = append(f.pieces, piece{text: plain, form: form})
	}
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// foldedText returns the text folded as substrings are compared.
func (p *piece) foldedText() []byte {
	if p.folded == nil {
		p.folded = appendFolded(make([]byte, 0, len(p.text)), p.text)
	}
	return p.folded
}

// Hit is a pattern that was found.
type Hit struct {
	Index int // which pattern, by its place in the set
	// Limited says that the backtracking engine ran into its limits, so that
	// the pattern was not found but must be taken as found.
	Limited bool
}

// indexes returns the places of the patterns that were hit.
func indexes(hits []Hit) []int {
	var out []int
	for _, h := range hits {
		out = append(out, h.Index)
	}
	return out
}
