package session

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
)

const (
	// MaxRemembered is how many finished ids a session or a client remembers,
	// at least; see IDs.
	MaxRemembered = 1024
	chunkLen      = 8
	// ForgottenParts is into how many parts ids are divided by their hash. What
	// is forgotten is noted for each part apart, so that a backend may keep
	// the parts as records of their own and load only the one it needs.
	ForgottenParts = 16
	indexFrom      = 32 // ids; fewer are searched one by one
)

// A Remembered is an id that was finished, and how. 40 bytes.
type Remembered struct {
	ID      [16]byte // of the id: SHA-256, cut
	Content Fingerprint
	Value   uint64 // what the answer needs beside the code: status, token, number
	meta    uint64 // time of the id in ms (44 bits), code (6), rule (14)
}

func (r *Remembered) Time() uint64 { return r.meta >> 20 }
func (r *Remembered) Code() Code   { return Code(r.meta >> 14 & 63) }
func (r *Remembered) Rule() uint16 { return uint16(r.meta & (1<<14 - 1)) }
func (r *Remembered) part() int    { return partOf(r.ID) }

func remembered(id string, content Fingerprint, code Code, rule uint16, value uint64) Remembered {
	return Remembered{
		ID: hashID(id), Content: content, Value: value,
		meta: IDTime(id)<<20 | uint64(code)<<14 | uint64(rule)&(1<<14-1),
	}
}

func hashID(id string) (h [16]byte) {
	sum := sha256.Sum256([]byte(id))
	copy(h[:], sum[:])
	return h
}

// IDs remembers the last 1,024 finished ids of one maker, and how new an id
// must be to be surely unknown. Versions of a record share chunks: an append
// writes behind what older versions see.
//
// Ids are numbered modulo 2^32, and a maker may finish more than that: numbers
// are compared by their distance from the first that is remembered, or from n.
type IDs struct {
	chunks  []*[chunkLen]Remembered
	n       uint32 // ids ever finished: the number of the next one
	dropped uint32 // chunks dropped
	forgot  *[ForgottenParts]uint64
	index   *idIndex
	apart   *apart // set if the ids stand in parts of their own; chunks has none then
}

// Len returns how many ids are remembered.
func (m *IDs) Len() int { return int(m.n - m.first()) }

// first is the number of the oldest id that is remembered.
func (m *IDs) first() uint32 { return m.dropped * chunkLen }

func (m *IDs) at(seq uint32) *Remembered {
	i := seq - m.first()
	return &m.chunks[i/chunkLen][i%chunkLen]
}

// find returns what is remembered of the id, or nil.
func (m *IDs) find(id string) *Remembered {
	if m.Len() == 0 {
		return nil
	}
	h := hashID(id)
	if m.apart != nil {
		return m.findApart(h)
	}
	if m.index != nil {
		return m.index.find(m, h)
	}
	for seq := m.first(); seq != m.n; seq++ {
		if r := m.at(seq); r.ID == h {
			return r
		}
	}
	return nil
}

// detach returns IDs that share nothing that an append writes, for a reader
// that settles a published record on its own.
func (m *IDs) detach() IDs {
	d := *m
	d.index = nil
	if m.apart != nil {
		a := *m.apart
		a.added = slices.Clip(a.added)
		d.apart = &a
		return d
	}
	// Only what is remembered of the last chunk is read: a newer version may be
	// writing behind it.
	if n := m.n % chunkLen; n != 0 {
		last := new([chunkLen]Remembered)
		copy(last[:n], m.chunks[len(m.chunks)-1][:n])
		d.chunks = slices.Clone(m.chunks)
		d.chunks[len(d.chunks)-1] = last
	} else {
		d.chunks = slices.Clip(m.chunks)
	}
	return d
}

// newerThan returns the time that a new id must be newer than to be surely
// unknown: the newest that was forgotten of its part.
func (m *IDs) newerThan(id string) uint64 {
	if m.apart != nil && m.Len() > 0 {
		return m.forgotApart(partOf(hashID(id)))
	}
	if m.forgot == nil {
		return 0
	}
	return m.forgot[partOf(hashID(id))]
}

func (m *IDs) add(r Remembered) {
	if m.apart != nil {
		m.addApart(r)
		return
	}
	if m.n%chunkLen == 0 {
		m.chunks = append(m.chunks, new([chunkLen]Remembered))
	}
	*m.at(m.n) = r
	if m.index != nil {
		m.index.add(m, m.n, r.ID)
	} else if m.Len() >= indexFrom {
		m.index = newIndex(m)
		m.index.insert(m.n, r.ID)
	}
	m.n++
	if m.Len() >= MaxRemembered+chunkLen {
		m.forgetOldest()
	}
}

func (m *IDs) forgetOldest() {
	forgot := new([ForgottenParts]uint64)
	if m.forgot != nil {
		*forgot = *m.forgot
	}
	for i := range m.chunks[0] {
		r := &m.chunks[0][i]
		forgot[r.part()] = max(forgot[r.part()], r.Time())
	}
	m.forgot = forgot
	m.chunks = m.chunks[1:]
	m.dropped++
}

// newest returns the newest time among all ids that were ever finished here:
// what must be raised when the whole maker is dropped.
func (m *IDs) newest() (t uint64) {
	if m.apart != nil {
		return m.apart.newest
	}
	for seq := m.first(); seq != m.n; seq++ {
		t = max(t, m.at(seq).Time())
	}
	if m.forgot != nil {
		for _, f := range m.forgot {
			t = max(t, f)
		}
	}
	return t
}

// An idIndex finds ids by hash. It is derived, kept by the newest version of a
// record alone, and rebuilt when it has filled with what is no longer there.
type idIndex struct {
	slots []uint16 // seq modulo indexModulus, plus 1; 0 is empty
	free  int      // inserts until it is rebuilt
}

// indexModulus divides 2^32 and is far more than what is remembered.
const indexModulus = 1 << 15

func newIndex(m *IDs) *idIndex {
	size := 64
	for size < 2*m.Len()+2*chunkLen {
		size *= 2
	}
	x := &idIndex{slots: make([]uint16, size), free: size * 3 / 4}
	for seq := m.first(); seq != m.n; seq++ {
		x.insert(seq, m.at(seq).ID)
	}
	return x
}

func (x *idIndex) insert(seq uint32, h [16]byte) {
	mask := uint32(len(x.slots) - 1)
	i := binary.LittleEndian.Uint32(h[:]) & mask
	for x.slots[i] != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = uint16(seq%indexModulus + 1)
	x.free--
}

func (x *idIndex) add(m *IDs, seq uint32, h [16]byte) {
	if x.free <= 0 {
		*x = *newIndex(m) // without seq, which comes next
	}
	x.insert(seq, h)
}

func (x *idIndex) find(m *IDs, h [16]byte) *Remembered {
	mask := uint32(len(x.slots) - 1)
	first := m.first()
	for i := binary.LittleEndian.Uint32(h[:]) & mask; x.slots[i] != 0; i = (i + 1) & mask {
		// The one number in the window that is equal modulo indexModulus.
		behind := (uint32(x.slots[i]) - 1 - first) % indexModulus
		if behind < m.n-first {
			if r := m.at(first + behind); r.ID == h {
				return r
			}
		}
	}
	return nil
}

// IDTime returns the time in an id, in Unix milliseconds, if it is a ULID or a
// UUIDv7; else 0.
func IDTime(id string) uint64 {
	switch len(id) {
	case 26:
		var t uint64
		for i := 0; i < 26; i++ {
			c := id[i]
			if c >= 'a' && c <= 'z' {
				c -= 'a' - 'A'
			}
			d := strings.IndexByte("0123456789ABCDEFGHJKMNPQRSTVWXYZ", c)
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
			d := strings.IndexByte("0123456789abcdef", c|0x20)
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

// cutTime keeps a time within the 44 bits it is remembered in (the year 2527).
func cutTime(t uint64) uint64 { return min(t, 1<<44-1) }
