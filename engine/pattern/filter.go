package pattern

// filter tells which patterns of a set can possibly match a text, from one pass
// over it. It may name too many and never too few.
type filter struct {
	literals    *automaton
	triggers    [][]int32    // per literal: the patterns that are looked at when it occurs
	check       []check      // per pattern
	class       []classCheck // per pattern
	untriggered []int32      // patterns that are looked at for every text
}

// check is a condition with its literals numbered. The zero value always holds.
type check struct {
	literal int32 // number of the literal + 1; 0 if subs say more
	all     bool
	subs    []check
}

func newFilter(patterns []*Compiled) *filter {
	f := &filter{check: make([]check, len(patterns)), class: make([]classCheck, len(patterns))}
	t := newTrie()
	for i, c := range patterns {
		f.class[i] = c.class
		if c.needs == nil || !t.fits(c.needs.literals(nil)) {
			f.untriggered = append(f.untriggered, int32(i))
			continue
		}
		f.check[i] = t.check(c.needs)
		for _, literal := range c.needs.trigger() {
			n := t.number(literal)
			for int(n) >= len(f.triggers) {
				f.triggers = append(f.triggers, nil)
			}
			f.triggers[n] = append(f.triggers[n], int32(i))
		}
	}
	f.literals = t.automaton()
	return f
}

// check numbers the literals of a condition.
func (t *trie) check(c *condition) check {
	if c.literal != "" {
		return check{literal: t.number(c.literal) + 1}
	}
	out := check{all: c.all}
	for _, sub := range c.subs {
		out.subs = append(out.subs, t.check(sub))
	}
	return out
}

// scan is the memory of one pass. Marks are round numbers instead of booleans,
// so that nothing has to be cleared between two texts.
type scan struct {
	round   uint32
	literal []uint32 // per literal: the last round it occurred in
	pattern []uint32 // per pattern: the last round it was triggered in
	loose   []byte
	found   []int32
}

func (f *filter) newScan() *scan {
	return &scan{literal: make([]uint32, f.literals.count), pattern: make([]uint32, len(f.check))}
}

// candidates returns the patterns that may match text, in no order. The slice
// is valid until the next call.
func (f *filter) candidates(s *scan, text string) []int32 {
	s.nextRound()
	s.loose = appendLoose(s.loose[:0], text)
	s.found = append(s.found[:0], f.untriggered...)
	f.trigger(s)
	chars := charSetOf(text)
	kept := s.found[:0]
	for _, i := range s.found {
		if f.class[i].holdsIn(chars) && s.holds(&f.check[i]) {
			kept = append(kept, i)
		}
	}
	return kept
}

// trigger marks the literals of the text and finds the patterns they trigger.
func (f *filter) trigger(s *scan) {
	a := f.literals
	state := int32(0)
	for _, b := range s.loose {
		state = a.step(state, b)
		for n := a.ends[state]; n >= 0 && s.literal[n] != s.round; n = a.shorter[n] {
			s.literal[n] = s.round
			if int(n) >= len(f.triggers) {
				continue
			}
			for _, i := range f.triggers[n] {
				if s.pattern[i] != s.round {
					s.pattern[i] = s.round
					s.found = append(s.found, i)
				}
			}
		}
	}
}

// holds reports whether the literals of this round fulfil c.
func (s *scan) holds(c *check) bool {
	if c.literal > 0 {
		return s.literal[c.literal-1] == s.round
	}
	for k := range c.subs {
		if s.holds(&c.subs[k]) != c.all {
			return !c.all
		}
	}
	return c.all || len(c.subs) == 0
}

// nextRound begins a new round, and clears the marks when the numbers run out.
func (s *scan) nextRound() {
	if s.round++; s.round == 0 {
		s.round = 1
		clear(s.literal)
		clear(s.pattern)
	}
}
