package matching

// A textTable maps texts to ranks. It is built once and then only read.
type textTable struct {
	lengths uint64 // bit n: there is a text of n bytes; bit 63: of 63 or more
	ranks   map[string]int32
}

// add gives a text its rank, unless it has one.
func (t *textTable) add(text string, rank int32) {
	if t.ranks == nil {
		t.ranks = map[string]int32{}
	}
	if _, earlier := t.ranks[text]; !earlier {
		t.ranks[text] = rank
		t.lengths |= 1 << min(len(text), 63)
	}
}

// mayHold is false for a text that is as long as none of those in the table.
func (t *textTable) mayHold(text string) bool { return t.lengths>>min(len(text), 63)&1 != 0 }

// find returns the rank of a text.
func (t *textTable) find(text string) (rank int32, found bool) {
	if !t.mayHold(text) {
		return 0, false
	}
	rank, found = t.ranks[text]
	return rank, found
}
