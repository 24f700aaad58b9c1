package engine

import (
	"slices"
	"strings"
)

// prefixes finds the rules whose literal a text begins with. The literals are
// sorted; between one that the text begins with and the text itself lie only
// literals that begin with it too. So the last one that is not behind the text
// leads to all of them, by way of those it begins with.
type prefixes struct {
	texts   []string
	rules   [][]int32 // per text, ascending
	shorter []int32   // per text: the longest other text that it begins with, or -1
	firsts  [4]uint64 // bit per byte: whether a text begins with it
}

// add is called with rising ranks.
func (p *prefixes) add(text string, rule int32) {
	i, found := slices.BinarySearch(p.texts, text)
	if !found {
		p.texts = slices.Insert(p.texts, i, text)
		p.rules = slices.Insert(p.rules, i, nil)
	}
	p.rules[i] = append(p.rules[i], rule)
}

// seal links the texts when all are added.
func (p *prefixes) seal() {
	p.shorter = make([]int32, len(p.texts))
	for i, text := range p.texts {
		n := int32(i) - 1
		for n >= 0 && !strings.HasPrefix(text, p.texts[n]) {
			n = p.shorter[n]
		}
		p.shorter[i] = n
		p.firsts[text[0]>>6] |= 1 << (text[0] & 63)
	}
}

// mayBegin is false for a text that begins with none of the literals, none of
// which is empty.
func (p *prefixes) mayBegin(text string) bool {
	return text != "" && p.firsts[text[0]>>6]>>(text[0]&63)&1 != 0
}

// fewPrefixes is up to how many literals are quicker to try than to search.
const fewPrefixes = 4

// longest returns the place of the longest literal that text begins with, or
// -1. All others follow through shorter.
func (p *prefixes) longest(text string) int32 {
	n := int32(len(p.texts)) - 1
	if n < fewPrefixes {
		for n >= 0 && !strings.HasPrefix(text, p.texts[n]) {
			n--
		}
		return n
	}
	// The last literal that is not behind the text.
	n = -1
	for hi := int32(len(p.texts)); n+1 < hi; {
		if mid := (n + hi) / 2; p.texts[mid] <= text {
			n = mid
		} else {
			hi = mid
		}
	}
	for n >= 0 && !strings.HasPrefix(text, p.texts[n]) {
		n = p.shorter[n]
	}
	return n
}

// try tests the rules before rank best whose literal text begins with, and
// returns the first that matches or fails, else what it was given.
func (p *prefixes) try(e evaluation, text string, rules []*compiledRule, best int32, err error) (int32, error) {
	for n := p.longest(text); n >= 0; n = p.shorter[n] {
		for _, i := range p.rules[n] {
			if i >= best {
				break
			}
			if hit, failed := rules[i].finds(e, text); hit || failed != nil {
				best, err = i, failed
				break
			}
		}
	}
	return best, err
}

// direct is try for a text that is not long, of which no search can fail.
func (p *prefixes) direct(text string, rules []*compiledRule, best int32) int32 {
	for n := p.longest(text); n >= 0; n = p.shorter[n] {
		for _, i := range p.rules[n] {
			if i >= best {
				break
			}
			if rules[i].Condition.search.MatchAfter(text) {
				best = i
				break
			}
		}
	}
	return best
}
