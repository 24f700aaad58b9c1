package engine

import (
	"strings"
	"unicode/utf8"

	"example.com/govnode/engine/value"
)

// decideDirectly is the short way of Decide for the most common policies and
// calls: a flat list whose rules are all found through the index, by what a call
// says in so many words, and beside them no more than a threshold of confidence.
// There is no state to keep then, and ten rules take a third of the time. It reports false, and has written nothing,
// where the call has to be judged the long way; where it decides, the long way
// would decide the same.
func (p *Policy) decideDirectly(in *Input, d *Decision) bool {
	if len(p.answers) == 0 || in.Explain || in.CheckLimits {
		return false
	}
	best := p.docs.flatSet.index.direct(in, int32(len(p.answers)-1))
	if best < 0 {
		return false
	}
	answer := &p.answers[best]
	if answer.Allowed && (in.Context.Find("confidence") != nil || in.ContentHash != nil && in.hashed()) {
		return false
	}
	*d = *answer
	return true
}

// hashed reports whether a hash is registered for the tool of a call, or may be.
func (in *Input) hashed() bool {
	if in.Tool == "" {
		return true // the context may name one
	}
	_, known := in.ContentHash(in.Tool)
	return known
}

// linkDirect prepares decideDirectly for the policies that it is for, once
// everything else is known of them.
func (p *Policy) linkDirect() {
	set := p.docs.flatSet
	if len(p.docs.folders) > 0 || p.docs.resolver != nil || len(p.backends) > 0 || p.guardrails != nil || p.hashes != nil ||
		!p.unchecked || p.docs.strict && len(set.docs) == 0 || set.denials != nil || !set.index.complete() {
		return
	}
	p.answers = make([]Decision, len(set.rules)+1)
	for i, r := range set.rules {
		decideByRule(set, r, &p.answers[i])
	}
	set.decideByDefault(&p.answers[len(set.rules)])
}

// complete reports whether the index finds every rule, each by a field that a
// call states itself.
func (x *ruleIndex) complete() bool {
	for i := range x.groups {
		if f := x.groups[i].field; f.segments != nil || f.root != contextField && f.root != toolNameField {
			return false
		}
	}
	return len(x.rest) == 0
}

// direct is first without an evaluation, for an index that is complete. It
// returns undecided where that takes one.
func (x *ruleIndex) direct(in *Input, best int32) int32 {
	for i := range x.groups {
		if best = x.groups[i].direct(in, best); best < 0 {
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
func (g *indexGroup) direct(in *Input, best int32) int32 {
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
