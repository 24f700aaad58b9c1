package pattern

import (
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
)

// condition is what the literals of a text must fulfil for an expression to
// have a match in it. Nil holds for every text.
type condition struct {
	literal string       // must occur, in its loose form; "" if subs say more
	all     bool         // whether all subs must hold, or any of them
	subs    []*condition // at least two
}

const (
	maxExact    = 64  // texts that a part of an expression is spelled out to
	maxLiteral  = 12  // bytes of a literal; a longer one is cut, which only weakens the filter
	maxClass    = 12  // characters of a class that is spelled out
	maxLiterals = 256 // literals of one pattern
)

// conditionOf returns the condition of an expression, given its simplified tree.
func conditionOf(re *syntax.Regexp) *condition {
	c := needsOf(re).condition()
	if len(c.literals(nil)) > maxLiterals {
		return anyLiteral(c.trigger())
	}
	return c
}

// needs describes what all matches of an expression have in common.
type needs struct {
	exact []string   // all texts it can match, in their loose form, if they are few
	holds *condition // what else is known if exact is nil
}

func (n needs) condition() *condition {
	if n.exact != nil {
		return anyLiteral(n.exact)
	}
	return n.holds
}

// anyLiteral is the condition that one of these texts occurs. Those that
// contain another one say nothing more, and with an empty one nothing is said.
func anyLiteral(texts []string) *condition {
	cut := make([]string, len(texts))
	for i, s := range texts {
		cut[i] = s[:min(len(s), maxLiteral)]
	}
	slices.SortStableFunc(cut, func(a, b string) int { return len(a) - len(b) })
	var kept []*condition
	for _, s := range cut {
		if s == "" {
			return nil
		}
		if !slices.ContainsFunc(kept, func(k *condition) bool { return strings.Contains(s, k.literal) }) {
			kept = append(kept, &condition{literal: s})
		}
	}
	return joined(false, kept)
}

// allOf and anyOf combine conditions; nil says nothing.
func allOf(subs ...*condition) *condition {
	return joined(true, slices.DeleteFunc(subs, func(c *condition) bool { return c == nil }))
}

func anyOf(subs ...*condition) *condition {
	if slices.Contains(subs, nil) {
		return nil
	}
	return joined(false, subs)
}

func joined(all bool, subs []*condition) *condition {
	switch len(subs) {
	case 0:
		return nil
	case 1:
		return subs[0]
	}
	return &condition{all: all, subs: subs}
}

// literals appends all literals of the condition.
func (c *condition) literals(to []string) []string {
	if c == nil {
		return to
	}
	if c.literal != "" {
		return append(to, c.literal)
	}
	for _, sub := range c.subs {
		to = sub.literals(to)
	}
	return to
}

// trigger returns literals of which one must occur: all of the subs where any
// may hold, and the best choice where all must.
func (c *condition) trigger() []string {
	switch {
	case c == nil:
		return nil
	case c.literal != "":
		return []string{c.literal}
	}
	var chosen []string
	for _, sub := range c.subs {
		t := sub.trigger()
		switch {
		case !c.all:
			chosen = append(chosen, t...)
		case chosen == nil || worth(t) > worth(chosen):
			chosen = t
		}
	}
	return chosen
}

// worth is greater for a choice of literals that fewer texts have: long ones
// are rare, and every further one makes it a little more likely that one occurs.
func worth(literals []string) int {
	shortest := maxLiteral
	for _, s := range literals {
		shortest = min(shortest, len(s))
	}
	return 100*shortest - len(literals)
}

func needsOf(re *syntax.Regexp) needs {
	switch re.Op {
	case syntax.OpLiteral:
		return needs{exact: []string{loose(string(re.Rune))}}
	case syntax.OpCharClass:
		return needs{exact: classTexts(re.Rune)}
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText,
		syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return needs{exact: []string{""}}
	case syntax.OpCapture:
		return needsOf(re.Sub[0])
	case syntax.OpConcat:
		return concatNeeds(re.Sub)
	case syntax.OpAlternate:
		return alternateNeeds(re.Sub)
	case syntax.OpQuest:
		if sub := needsOf(re.Sub[0]); sub.exact != nil {
			return needs{exact: union(sub.exact, []string{""})}
		}
	case syntax.OpStar:
		if isSpaceClass(re.Sub[0]) {
			return needs{exact: []string{"", " "}}
		}
	case syntax.OpPlus:
		if isSpaceClass(re.Sub[0]) {
			return needs{exact: []string{" "}}
		}
		return needs{holds: needsOf(re.Sub[0]).condition()}
	}
	return needs{} // any character, nothing, the star of something
}

func loose(s string) string { return string(appendLoose(nil, s)) }

// isSpaceClass reports whether re matches single characters of white space,
// runs of which are one space in the loose form.
func isSpaceClass(re *syntax.Regexp) bool {
	return re.Op == syntax.OpCharClass && slices.Equal(classTexts(re.Rune), []string{" "})
}

// digitRanges are the ranges of \d, which are too many to be looked at each time.
var digitRanges = sync.OnceValue(func() []rune {
	var ranges []rune
	for _, x := range rangesOf("[" + classDigit + "]") {
		ranges = append(ranges, x[0], x[1])
	}
	return ranges
})

// classTexts returns the loose forms of the characters of a class, or nil if
// they are many.
func classTexts(ranges []rune) []string {
	if slices.Equal(ranges, digitRanges()) {
		return []string{"0"}
	}
	var texts []string
	for i := 0; i+1 < len(ranges); i += 2 {
		if ranges[i+1]-ranges[i] > 2*maxClass {
			return nil
		}
		for r := ranges[i]; r <= ranges[i+1]; r++ {
			texts = union(texts, []string{loose(string(r))})
		}
		if len(texts) > maxClass {
			return nil
		}
	}
	return texts
}

// concatNeeds spells out neighbours together as long as the texts are few, and
// begins anew where they are not.
func concatNeeds(subs []*syntax.Regexp) needs {
	var holds []*condition
	run := []string{""}
	exact := true
	for _, re := range subs {
		n := needsOf(re)
		if n.exact != nil && len(run)*len(n.exact) <= maxExact {
			run = product(run, n.exact)
			continue
		}
		exact = false
		holds = append(holds, anyLiteral(run), n.holds)
		run = []string{""}
		if n.exact != nil {
			run = n.exact
		}
	}
	if exact {
		return needs{exact: run}
	}
	return needs{holds: allOf(append(holds, anyLiteral(run))...)}
}

func alternateNeeds(subs []*syntax.Regexp) needs {
	var exact []string
	allExact := true
	var holds []*condition
	for _, re := range subs {
		n := needsOf(re)
		allExact = allExact && n.exact != nil
		exact = union(exact, n.exact)
		holds = append(holds, n.condition())
	}
	if allExact && len(exact) <= 4*maxExact {
		return needs{exact: exact}
	}
	return needs{holds: anyOf(holds...)}
}

func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func product(a, b []string) []string {
	var out []string
	for _, x := range a {
		for _, y := range b {
			// Appending also joins a space at the seam with another one.
			out = union(out, []string{string(appendLoose([]byte(x), y))})
		}
	}
	return out
}
