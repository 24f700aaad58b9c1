package difflib

import "slices"

// matcher finds the matching blocks of two texts. Its steps follow CPython's
// Lib/difflib.py, where the same names occur: chain_b, find_longest_match and
// get_matching_blocks. Only the sum of the block sizes is kept.
type matcher struct {
	a, b   []rune
	places []int32   // the places in a whose characters can start a match, rising
	inB    [][]int32 // for each of them: where that character stands in b, rising
	before []int32   // length of the match that ends at b[j-1], for the place before; 0 outside a call
	row    []int32   // the same for the current place
	steps  int       // work done so far, see maxSteps
}

func newMatcher(a, b []rune) *matcher {
	where := make(map[rune][]int32)
	for j, c := range b {
		where[c] = append(where[c], int32(j))
	}
	if n := len(b); n >= 200 { // autojunk
		for c, places := range where {
			if len(places) > n/100+1 {
				delete(where, c)
			}
		}
	}
	m := &matcher{a: a, b: b, before: make([]int32, len(b)+1), row: make([]int32, len(b)+1)}
	for i, c := range a {
		if inB, ok := where[c]; ok {
			m.places = append(m.places, int32(i))
			m.inB = append(m.inB, inB)
		}
	}
	return m
}

// span is a part of a and the part of b that it is compared with.
type span struct{ alo, ahi, blo, bhi int }

// matched returns how many characters all matching blocks have together.
func (m *matcher) matched() int {
	total := 0
	todo := []span{{0, len(m.a), 0, len(m.b)}}
	for len(todo) > 0 && m.steps <= maxSteps {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		i, j, size := m.longest(s)
		if size == 0 {
			continue
		}
		total += size
		if s.alo < i && s.blo < j {
			todo = append(todo, span{s.alo, i, s.blo, j})
		}
		if i+size < s.ahi && j+size < s.bhi {
			todo = append(todo, span{i + size, s.ahi, j + size, s.bhi})
		}
	}
	return total
}

// longest finds the longest block within s: of several the one that starts
// first in a, and of those the first in b. Popular characters only lengthen a
// block that others have begun.
func (m *matcher) longest(s span) (besti, bestj, size int) {
	besti, bestj = s.alo, s.blo
	var last []int32 // the places of m.before that are set, less one
	n, _ := slices.BinarySearch(m.places, int32(s.alo))
	for ; n < len(m.places) && int(m.places[n]) < s.ahi; n++ {
		i := int(m.places[n])
		if n > 0 && int(m.places[n-1]) != i-1 {
			last = m.forget(last)
		}
		inB := within(m.inB[n], s.blo, s.bhi)
		for _, j := range inB {
			k := int(m.before[j]) + 1
			m.row[j+1] = int32(k)
			if k > size {
				besti, bestj, size = i-k+1, int(j)-k+1, k
			}
		}
		m.forget(last)
		m.before, m.row, last = m.row, m.before, inB
		m.steps += len(inB) + 1
	}
	m.forget(last)
	return m.extend(s, besti, bestj, size)
}

// forget clears what m.before holds of the matches that end at these places.
func (m *matcher) forget(last []int32) []int32 {
	for _, j := range last {
		m.before[j+1] = 0
	}
	return nil
}

// extend lengthens a block to both sides, over popular characters too.
func (m *matcher) extend(s span, i, j, size int) (int, int, int) {
	for i > s.alo && j > s.blo && m.a[i-1] == m.b[j-1] {
		i, j, size = i-1, j-1, size+1
	}
	for i+size < s.ahi && j+size < s.bhi && m.a[i+size] == m.b[j+size] {
		size++
	}
	m.steps += size
	return i, j, size
}

// within returns the part of places, which rise, that lies in [lo, hi).
func within(places []int32, lo, hi int) []int32 {
	if len(places) == 0 {
		return nil
	}
	from, _ := slices.BinarySearch(places, int32(lo))
	to, _ := slices.BinarySearch(places[from:], int32(hi))
	return places[from : from+to]
}
