package engine

// A textTable maps texts to ranks. It is built once and then only read, so that
// it can afford to be sparse: a look-up compares one text, seldom two.
type textTable struct {
	lengths uint64     // bit n: there is a text of n bytes; bit 63: of 63 or more
	slots   []textSlot // a power of two of them; nil where texts holds them
	texts   map[string]int32
}

type textSlot struct {
	text string
	rank int32
	used bool
}

// maxProbes bounds the slots of one look-up. Texts that somebody chose so that
// they fall together stay in the map, whose order of slots nobody knows.
const maxProbes = 4

// add gives a text its rank, unless it has one.
func (t *textTable) add(text string, rank int32) {
	if t.texts == nil {
		t.texts = map[string]int32{}
	}
	if _, earlier := t.texts[text]; !earlier {
		t.texts[text] = rank
		t.lengths |= 1 << min(len(text), 63)
	}
}

// seal lays the table out when all texts are added.
func (t *textTable) seal() {
	size := 8
	for size < 4*len(t.texts) {
		size *= 2
	}
	slots := make([]textSlot, size)
	for text, rank := range t.texts {
		at := textHash(text)
		for probes := 0; slots[at&uint64(size-1)].used; at++ {
			if probes++; probes == maxProbes {
				return
			}
		}
		slots[at&uint64(size-1)] = textSlot{text: text, rank: rank, used: true}
	}
	t.slots, t.texts = slots, nil
}

// find returns the rank of a text.
func (t *textTable) find(text string) (rank int32, found bool) {
	if t.lengths>>min(len(text), 63)&1 == 0 {
		return 0, false
	}
	if t.slots == nil {
		rank, found = t.texts[text]
		return rank, found
	}
	mask := uint64(len(t.slots) - 1)
	for at := textHash(text); ; at++ {
		switch s := &t.slots[at&mask]; {
		case !s.used:
			return 0, false
		case s.text == text:
			return s.rank, true
		}
	}
}

// textHash mixes the length and all bytes, eight at a time, the last eight of
// which may overlap with those before; the low bits depend on all of them.
func textHash(s string) uint64 {
	const odd = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio
	n := len(s)
	h := uint64(n) * odd
	switch {
	case n >= 8:
		for i := 0; i+8 < n; i += 8 {
			h = (h ^ eightBytes(s, i)) * odd
			h ^= h >> 32
		}
		h ^= eightBytes(s, n-8)
	case n >= 4:
		h ^= fourBytes(s, 0) | fourBytes(s, n-4)<<32
	case n > 0:
		h ^= uint64(s[0]) | uint64(s[n/2])<<8 | uint64(s[n-1])<<16
	}
	h *= odd
	return h ^ h>>32
}

// eightBytes and fourBytes are one load each.
func eightBytes(s string, i int) uint64 { return fourBytes(s, i) | fourBytes(s, i+4)<<32 }

func fourBytes(s string, i int) uint64 {
	s = s[i : i+4]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24
}
