package difflib

// automaton is the suffix automaton (Blumer and others, 1985) of a part of b:
// from its start, a text leads along transitions exactly if it occurs there. It
// finds the longest match in time linear in both texts, where the matcher's own
// way costs one step for every pair of equal characters. Popular characters
// break b into pieces that no match crosses.
type automaton struct {
	states []state
	edges  []edge
	start  []int32 // transitions of state 0, which has many: by character; 0 is none
	steps  int     // work done, in transitions looked at
}

type state struct {
	length int32 // of the longest text that leads here
	suffix int32 // the state of the longest suffix that leads elsewhere
	end    int32 // where in b the texts that lead here end first
	edges  int32 // list of transitions, 0 ends it
}

type edge struct{ char, to, next int32 }

// newAutomaton returns one for texts over so many characters.
func newAutomaton(characters int) *automaton {
	return &automaton{start: make([]int32, characters), states: []state{{suffix: -1}}, edges: []edge{{}}}
}

// build makes it the automaton of the pieces of b that lie at these places,
// which rise; neighbours are one piece.
func (a *automaton) build(b, places []int32) {
	for e := a.states[0].edges; e != 0; e = a.edges[e].next {
		a.start[a.edges[e].char] = 0
	}
	a.states = append(a.states[:0], state{suffix: -1})
	a.edges = append(a.edges[:0], edge{})
	last := int32(0)
	for n, j := range places {
		if n > 0 && places[n-1] != j-1 {
			last = 0
		}
		last = a.extend(last, b[j], j)
	}
}

// extend adds the character at b[j] behind the texts that lead to last.
func (a *automaton) extend(last, char, j int32) int32 {
	if q := a.next(last, char); q != 0 { // known from an earlier piece
		if a.states[q].length == a.states[last].length+1 {
			return q
		}
		return a.split(last, char, q)
	}
	added := a.add(state{length: a.states[last].length + 1, end: j})
	p := last
	for p >= 0 && a.next(p, char) == 0 {
		a.connect(p, char, added)
		p = a.states[p].suffix
	}
	if p >= 0 {
		q := a.next(p, char)
		if a.states[q].length != a.states[p].length+1 {
			q = a.split(p, char, q)
		}
		a.states[added].suffix = q
	}
	return added
}

// split makes a state of its own for the shorter texts that lead to q, those
// that come from p, because from now on they end in more places than the rest.
func (a *automaton) split(p, char, q int32) int32 {
	clone := a.add(state{length: a.states[p].length + 1, suffix: a.states[q].suffix, end: a.states[q].end})
	for e := a.states[q].edges; e != 0; e = a.edges[e].next {
		a.steps++
		a.connect(clone, a.edges[e].char, a.edges[e].to)
	}
	for p >= 0 && a.next(p, char) == q {
		a.redirect(p, char, clone)
		p = a.states[p].suffix
	}
	a.states[q].suffix = clone
	return clone
}

func (a *automaton) add(s state) int32 {
	a.states = append(a.states, s)
	return int32(len(a.states) - 1)
}

func (a *automaton) connect(from, char, to int32) {
	if from == 0 {
		a.start[char] = to // and into the list, for build to clear it again
	}
	a.edges = append(a.edges, edge{char, to, a.states[from].edges})
	a.states[from].edges = int32(len(a.edges) - 1)
}

// next returns where char leads from a state, or 0.
func (a *automaton) next(from, char int32) int32 {
	a.steps++
	if from == 0 {
		return a.start[char]
	}
	for e := a.states[from].edges; e != 0; e = a.edges[e].next {
		if a.edges[e].char == char {
			return a.edges[e].to
		}
		a.steps++
	}
	return 0
}

func (a *automaton) redirect(from, char, to int32) {
	if from == 0 {
		a.start[char] = to
		return
	}
	for e := a.states[from].edges; e != 0; e = a.edges[e].next {
		if a.edges[e].char == char {
			a.edges[e].to = to
			return
		}
	}
}

// longest returns the longest text of neighbours among these places of a that
// occurs in the automaton's part of b: of several the first in a, and its first
// place in b.
func (a *automaton) longest(text, places []int32) (besti, bestj, size int) {
	at, length := int32(0), int32(0)
	for n, i := range places {
		if n > 0 && places[n-1] != i-1 {
			at, length = 0, 0
		}
		to := a.next(at, text[i])
		for to == 0 && at != 0 {
			at = a.states[at].suffix
			length = a.states[at].length
			to = a.next(at, text[i])
		}
		if to == 0 {
			continue // at and length are 0
		}
		at, length = to, length+1
		if int(length) > size {
			size = int(length)
			besti, bestj = int(i)-size+1, int(a.states[at].end)-size+1
		}
	}
	return besti, bestj, size
}
