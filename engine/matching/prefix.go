package matching

import (
	"encoding/binary"
	"slices"
	"strings"

	"example.com/govnode/engine/pattern"
)

// prefixes finds the rules whose literal a text begins with. The literals are
// sorted; between one that the text begins with and the text itself lie only
// literals that begin with it too. So the last one that is not behind the text
// leads to all of them, by way of those it begins with.
type prefixes struct {
	list   []prefix
	firsts [4]uint64 // bit per byte: whether a literal begins with it
}

type prefix struct {
	text    string
	head    uint64       // of the text
	rules   []prefixRule // by rank
	shorter int32        // the longest other literal that it begins with, or -1
}

type prefixRule struct {
	rank   int32
	search *pattern.Searcher
}

// add is called with rising ranks.
func (p *prefixes) add(search *pattern.Searcher, rank int32) {
	text := search.Prefix()
	i, found := slices.BinarySearchFunc(p.list, text, func(f prefix, text string) int { return strings.Compare(f.text, text) })
	if !found {
		p.list = slices.Insert(p.list, i, prefix{text: text, head: head(text)})
	}
	p.list[i].rules = append(p.list[i].rules, prefixRule{rank, search})
}

// seal links the literals when all are added.
func (p *prefixes) seal() {
	for i := range p.list {
		f := &p.list[i]
		f.shorter = int32(i) - 1
		for f.shorter >= 0 && !strings.HasPrefix(f.text, p.list[f.shorter].text) {
			f.shorter = p.list[f.shorter].shorter
		}
		p.firsts[f.text[0]>>6] |= 1 << (f.text[0] & 63)
	}
}

// mayBegin is false for a text that begins with none of the literals, none of
// which is empty.
func (p *prefixes) mayBegin(text string) bool {
	return text != "" && p.firsts[text[0]>>6]>>(text[0]&63)&1 != 0
}

// longest returns the place of the longest literal that text begins with, or
// -1. All others follow through shorter.
func (p *prefixes) longest(text string) int32 {
	at := head(text)
	lo, hi := 0, len(p.list) // list[:lo] is not behind text, list[hi:] is
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if f := &p.list[mid]; f.head < at || f.head == at && f.text <= text {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	n := int32(lo - 1)
	for n >= 0 && !p.list[n].begins(text, at) {
		n = p.list[n].shorter
	}
	return n
}

// begins reports whether text, with its head, begins with the literal, which is
// not behind it. So a literal that is longer than the text is not taken for the
// zeros behind that.
func (f *prefix) begins(text string, at uint64) bool {
	if len(f.text) > 8 {
		return strings.HasPrefix(text, f.text)
	}
	return (at^f.head)>>((8-len(f.text))*8) == 0
}

// head returns the first eight bytes of a text as a number, zeros behind a
// shorter one. Texts are in the order of their heads, unless these are equal.
func head(text string) (h uint64) {
	if len(text) >= 8 {
		return binary.BigEndian.Uint64([]byte(text[:8]))
	}
	for i := range len(text) {
		h |= uint64(text[i]) << (56 - 8*i)
	}
	return h
}

// try tests the rules before rank best whose literal text begins with, and
// returns the first that matches or fails, else what it was given.
func (p *prefixes) try(e Evaluation, text string, best int32, err error) (int32, error) {
	for n := p.longest(text); n >= 0; n = p.list[n].shorter {
		for _, r := range p.list[n].rules {
			if r.rank >= best {
				break
			}
			if hit, failed := e.finds(r.search, text); hit || failed != nil {
				best, err = r.rank, failed
				break
			}
		}
	}
	return best, err
}

// direct is try for a text that is not long, of which no search can fail. Bytes
// that are no UTF-8 stand for U+FFFD, which no literal may hold.
func (p *prefixes) direct(text string, best int32) int32 {
	for n := p.longest(text); n >= 0; n = p.list[n].shorter {
		for i := range p.list[n].rules {
			r := &p.list[n].rules[i]
			if r.rank >= best {
				break
			}
			if r.search.MatchAfter(text) {
				best = r.rank
				break
			}
		}
	}
	return best
}
