package ids

import (
	"crypto/sha256"
	"slices"
)

// The ids that a maker remembers, and how old ones are forgotten: see Set.

const (
	// MaxRemembered is how many finished ids a session or a client remembers,
	// at least; see IDs.
	MaxRemembered = 1024
	// blockLen is how many ids are forgotten at once.
	blockLen  = 128
	maxBlocks = MaxRemembered/blockLen + 1
	chunkLen  = 8
	// Parts is into how many parts ids are divided by their hash, so
	// that a backend may keep the parts apart and load only the one it needs.
	Parts     = 16
	indexFrom = 32 // ids; fewer are searched one by one
)

// A Remembered is an id that was finished, and how. 40 bytes.
type Remembered struct {
	ID      idHash
	seq     uint32 // its number, see Set; the rest of it follows from IDs.n
	Content [8]byte
	Value   uint64 // what the answer needs beside the code: status, token, number
	meta    uint64 // time of the id in ms (44 bits), code (6), rule (14)
}

// An idHash stands for an id: SHA-256, cut. It only has to tell the ids of one
// maker from each other.
type idHash [12]byte

// Time returns the time of the id; see the function Time.
func (r *Remembered) Time() uint64 { return r.meta >> 20 }

// Code returns how it ended, a number of six bits.
func (r *Remembered) Code() uint8 { return uint8(r.meta >> 14 & 63) }

// Rule returns the number that was given with it, of 14 bits.
func (r *Remembered) Rule() uint16 { return uint16(r.meta & (1<<14 - 1)) }

// New returns what is remembered of an id that was finished.
func New(id string, content [8]byte, code uint8, rule uint16, value uint64) Remembered {
	return Remembered{
		ID: hashID(id), Content: content, Value: value,
		meta: Time(id)<<20 | uint64(code)<<14 | uint64(rule)&(1<<14-1),
	}
}

func hashID(id string) (h idHash) {
	sum := sha256.Sum256([]byte(id))
	copy(h[:], sum[:])
	return h
}

// Part returns the part in which an id is remembered.
func Part(id string) int { return hashID(id).part() }

// part is the part in which an id is remembered.
func (h idHash) part() int { return int(h[len(h)-1]) % Parts }

// Forgotten returns a Set that remembers nothing, and has forgotten ids up to
// that time.
func Forgotten(newest uint64) Set { return Set{forgot: newest} }

// Set remembers the last 1,024 finished ids of one maker, at least, and how new
// an id must be to be surely unknown. Ids are numbered in the order in which
// they were finished. How many there were ever decides which are remembered, so
// that a block of ids is forgotten at the same moment by whoever has it here and
// by who has only a summary of it.
//
// All ids stand here in chunks; or they stand in parts of their own, of which
// some were loaded. Versions of a record share chunks: an append writes behind
// what older versions see.
type Set struct {
	n      uint64 // ids ever finished: the number of the next one
	forgot uint64 // newest time among those that are forgotten
	chunks []*[chunkLen]Remembered
	index  *idIndex
	parts  *idParts // set if the parts stand on their own; chunks has none then
}

// idParts is what is known of ids whose parts stand on their own.
type idParts struct {
	known  uint16 // bit by part: it was loaded
	loaded [Parts][]Remembered
	// Since the record was loaded: what was finished, the last of all, and how
	// many of each part were forgotten, its first.
	added   []Remembered
	dropped [Parts]uint16
	blocks  [maxBlocks]block // of what is remembered
}

// A block sums up blockLen ids, of the last block fewer.
type block struct {
	newest uint64       // time
	counts [Parts]uint8 // how many are in each part
}

func (b *block) add(r *Remembered) {
	b.newest = max(b.newest, r.Time())
	b.counts[r.ID.part()]++
}

// firstOf returns the number of the oldest id that is remembered if there were
// n ever.
func firstOf(n uint64) uint64 {
	if n < MaxRemembered {
		return 0
	}
	return (n - MaxRemembered) / blockLen * blockLen
}

func (m *Set) first() uint64 { return firstOf(m.n) }

// Len returns how many ids are remembered.
func (m *Set) Len() int { return int(m.n - m.first()) }

// behind returns how many remembered ids are older than one; not less than Len
// if it is not remembered itself.
func (m *Set) behind(r *Remembered) int { return int(r.seq - uint32(m.first())) }

// at returns the id that a number of others are older than.
func (m *Set) at(behind int) *Remembered { return &m.chunks[behind/chunkLen][behind%chunkLen] }

// Find returns what is remembered of the id, or nil.
func (m *Set) Find(id string) *Remembered {
	if m.n == 0 {
		return nil
	}
	h := hashID(id)
	switch {
	case m.parts != nil:
		return m.findApart(h)
	case m.index != nil:
		return m.index.find(m, h)
	}
	for i := range m.Len() {
		if r := m.at(i); r.ID == h {
			return r
		}
	}
	return nil
}

func (m *Set) findApart(h idHash) *Remembered {
	m.parts.mustKnow(h.part())
	for _, list := range [][]Remembered{m.parts.added, m.parts.loaded[h.part()]} {
		for i := range list {
			if r := &list[i]; r.ID == h && m.behind(r) < m.Len() {
				return r
			}
		}
	}
	return nil
}

// NewerThan returns the time that a new id must be newer than to be surely
// unknown.
func (m *Set) NewerThan() uint64 { return m.forgot }

// Newest returns the newest time among all ids that were ever finished here:
// what must be raised when the whole maker is dropped.
func (m *Set) Newest() uint64 {
	t := m.forgot
	for _, b := range m.blocks() {
		t = max(t, b.newest)
	}
	return t
}

// blocks sums up what is remembered.
func (m *Set) blocks() (all [maxBlocks]block) {
	if m.parts != nil {
		return m.parts.blocks
	}
	for i := range m.Len() {
		all[i/blockLen].add(m.at(i))
	}
	return all
}

// Add remembers an id, and forgets the oldest block if that makes one too many.
func (m *Set) Add(r Remembered) {
	r.seq = uint32(m.n)
	if m.parts != nil {
		p := *m.parts // versions of a record share what was loaded
		p.added = append(p.added, r)
		p.blocks[m.Len()/blockLen].add(&r)
		m.parts = &p
	} else {
		m.addHere(r)
	}
	first := m.first()
	m.n++
	if m.first() != first {
		m.forgetBlock()
	}
}

func (m *Set) addHere(r Remembered) {
	n := m.Len()
	if n%chunkLen == 0 {
		m.chunks = append(m.chunks, new([chunkLen]Remembered))
	}
	*m.at(n) = r
	if m.index != nil {
		m.index.add(m, &r)
	} else if n >= indexFrom {
		m.index = newIndex(m)
		m.index.insert(&r)
	}
}

// forgetBlock forgets the block that is the first no more.
func (m *Set) forgetBlock() {
	if p := m.parts; p != nil { // Add's own copy
		m.forgot = max(m.forgot, p.blocks[0].newest)
		for i, n := range p.blocks[0].counts {
			p.dropped[i] += uint16(n)
		}
		copy(p.blocks[:], p.blocks[1:])
		p.blocks[maxBlocks-1] = block{}
		return
	}
	for i := range blockLen {
		m.forgot = max(m.forgot, m.at(i).Time())
	}
	m.chunks = m.chunks[blockLen/chunkLen:]
}

// Detach returns Set that share nothing that an append writes, for a reader
// that settles a published record on its own.
func (m *Set) Detach() Set {
	d := *m
	d.index = nil
	if m.parts != nil {
		p := *m.parts
		p.added = slices.Clip(p.added)
		d.parts = &p
		return d
	}
	// Only what is remembered of the last chunk is read: a newer version may be
	// writing behind it.
	if n := m.Len() % chunkLen; n != 0 {
		last := new([chunkLen]Remembered)
		copy(last[:n], m.chunks[len(m.chunks)-1][:n])
		d.chunks = slices.Clone(m.chunks)
		d.chunks[len(d.chunks)-1] = last
	} else {
		d.chunks = slices.Clip(m.chunks)
	}
	return d
}

// The values of the digits of a ULID and of a UUID, whether letters are small or large; -1
// for all other bytes. Three nodes look at each id twice.
var (
	crockford = digits("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
	hex       = digits("0123456789ABCDEF")
)

func digits(all string) (values [256]int8) {
	for i := range values {
		values[i] = -1
	}
	for i := range all {
		values[all[i]] = int8(i)
		if c := all[i]; c >= 'A' {
			values[c|0x20] = int8(i)
		}
	}
	return values
}

// Time returns the time in an id, in Unix milliseconds, if it is a ULID or a
// UUIDv7; else 0.
func Time(id string) uint64 {
	switch len(id) {
	case 26:
		var t uint64
		for i := 0; i < 26; i++ {
			d := crockford[id[i]]
			if d < 0 || i == 0 && d > 7 {
				return 0
			}
			if i < 10 {
				t = t<<5 | uint64(d)
			}
		}
		return cutTime(t)
	case 36:
		if id[14] != '7' || id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' {
			return 0
		}
		var t uint64
		for i, c := range []byte(id) {
			d := hex[c]
			if i == 8 || i == 13 || i == 18 || i == 23 {
				continue
			}
			if d < 0 {
				return 0
			}
			if i < 13 {
				t = t<<4 | uint64(d)
			}
		}
		return cutTime(t)
	}
	return 0
}

// MaxTime stands for all times that do not fit in the 44 bits in which one is
// remembered: those of the year 2527 and later.
const MaxTime = 1<<44 - 1

func cutTime(t uint64) uint64 { return min(t, MaxTime) }
