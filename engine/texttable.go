package engine

import "encoding/binary"

// A textTable maps texts to ranks. It is built once and then only read, so that
// it can afford to be sparse: a look-up compares one text, seldom two.
type textTable struct {
	lengths uint64     // bit n: there is a text of n bytes; bit 63: of 63 or more
	slots   []textSlot // a power of two of them; nil where texts holds them
	texts   map[string]int32
}

type textSlot struct {
	text        string
	first, last uint64 // its ends
	rank        int32
	used        bool
}

// maxProbes bounds the slots of one look-up. Texts that somebody chose so that
// they fall together stay in the map, whose order of slots nobody knows.
const maxProbes = 8

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
		first, last := ends(text)
		at := textHash(text, first, last)
		for probes := 0; slots[at&uint64(size-1)].used; at++ {
			if probes++; probes == maxProbes {
				return
			}
		}
		slots[at&uint64(size-1)] = textSlot{text: text, first: first, last: last, rank: rank, used: true}
	}
	t.slots, t.texts = slots, nil
}

// mayHold is false for a text that is as long as none of those in the table.
func (t *textTable) mayHold(text string) bool { return t.lengths>>min(len(text), 63)&1 != 0 }

// find returns the rank of a text.
func (t *textTable) find(text string) (rank int32, found bool) {
	if !t.mayHold(text) {
		return 0, false
	}
	if t.slots == nil {
		rank, found = t.texts[text]
		return rank, found
	}
	first, last := ends(text)
	mask := uint64(len(t.slots) - 1)
	for at := textHash(text, first, last); ; at++ {
		s := &t.slots[at&mask]
		switch {
		case !s.used:
			return 0, false
		case s.first == first && s.last == last && len(s.text) == len(text) && (len(text) <= 16 || s.text == text):
			return s.rank, true
		}
	}
}

// ends returns the first and the last bytes of a text, eight of each if it has
// as many. With its length they say all of a text of up to sixteen.
func ends(s string) (first, last uint64) {
	switch n := len(s); {
	case n >= 8:
		return eightBytes(s, 0), eightBytes(s, n-8)
	case n >= 4:
		return fourBytes(s, 0), fourBytes(s, n-4)
	case n > 0:
		return uint64(s[0]) | uint64(s[n/2])<<8, uint64(s[n-1])
	}
	return 0, 0
}

// textHash mixes the length, the ends, and the bytes between them, eight at a
// time; the low bits depend on all of them.
func textHash(s string, first, last uint64) uint64 {
	const odd = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio
	h := (first ^ uint64(len(s))) * odd
	h ^= h >> 32
	for i := 8; i+8 < len(s); i += 8 {
		h = (h ^ eightBytes(s, i)) * odd
		h ^= h >> 32
	}
	h = (h ^ last) * odd
	return h ^ h>>32
}

// eightBytes and fourBytes are one load each; the conversion copies nothing.
func eightBytes(s string, i int) uint64 { return binary.LittleEndian.Uint64([]byte(s[i : i+8])) }

func fourBytes(s string, i int) uint64 { return uint64(binary.LittleEndian.Uint32([]byte(s[i : i+4]))) }
