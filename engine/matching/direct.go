package matching

import (
	"strings"
	"unicode/utf8"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/value"
)

// How a list is searched without an evaluation, where what a call says itself
// is enough.

// Complete reports whether the index finds every rule, each by a field that a
// call states itself.
func (l *List) Complete() bool {
	for i := range l.index.groups {
		if f := l.index.groups[i].field; f.segments != nil || f.root != contextField && f.root != toolNameField {
			return false
		}
	}
	return len(l.index.rest) == 0
}

// Direct is first without an evaluation, for a list that is complete: it returns
// the place of the first rule that matches, the number of rules where none does,
// and undecided where that takes an evaluation.
func (l *List) Direct(in *call.Input) int32 {
	best := int32(len(l.Rules))
	for i := range l.index.groups {
		if best = l.index.groups[i].direct(in, best); best < 0 {
			break
		}
	}
	return best
}

// undecided stands in for a rank.
const undecided = -1

// direct returns the first rule that a call satisfies in the field of the group,
// or best where that is not before it.
//
// Bytes that are no UTF-8 stand for U+FFFD, which takes up to three times their
// room. They need to be looked for only where there is a constant or a literal
// that holds this character; an expression reads them so by itself.
func (g *indexGroup) direct(in *call.Input, best int32) int32 {
	text := ""
	if g.isTool {
		text = in.Tool
	}
	if text == "" {
		v := in.Context.Find(g.name)
		if v == nil {
			return g.directOther(v, best)
		}
		if x, ok := v.Int(); ok && g.idleFrom <= x && x <= g.idleTo {
			return best // as most calls do
		}
		var ok bool
		if text, ok = v.Text(); !ok {
			return g.directOther(v, best)
		}
	}
	if g.replaced {
		text = value.Text(text)
	}
	if g.ordered || len(text) >= longText/3 {
		return undecided
	}
	if g.byValue.mayHold(text) {
		if rank, found := g.byValue.find(text); found && rank < best {
			best = rank
		}
	}
	if g.prefix.mayBegin(text) {
		best = g.prefix.direct(text, best)
	}
	return best
}

// directOther is direct for what is no text, or for nothing.
func (g *indexGroup) directOther(v *value.Value, best int32) int32 {
	switch {
	case v == nil || v.Is(value.Null):
		if g.strict {
			return undecided
		}
		return best
	case v.Is(value.Number) && len(g.prefix.list) == 0:
		return g.firstNumber(v, best)
	}
	return undecided
}

// replaced reports whether a text may be what became of bytes that are no UTF-8.
func replaced(text string) bool { return strings.ContainsRune(text, utf8.RuneError) }
