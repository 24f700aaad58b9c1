package session

import (
	"encoding/binary"
	"unique"

	"google.golang.org/protobuf/encoding/protowire"
)

// ids are written if there ever were any, and if they do not stand in parts of
// their own: see Pack.
func (f *codec) ids(num protowire.Number, m *IDs) {
	for s := f.optional(num, m.parts == nil && (m.n > 0 || m.forgot > 0)); f.visit(&s); {
		unsigned(f, 1, &m.n, 1<<63)
		f.uint64(2, &m.forgot)
		f.remembered(3, m)
	}
}

// rememberedLen is what an id takes in IDs.remembered. Its number follows from
// its place.
const rememberedLen = 12 + 8 + 8 + 8

func (f *codec) remembered(num protowire.Number, m *IDs) {
	n := m.Len()
	if f.write {
		if n == 0 {
			return
		}
		f.b = protowire.AppendTag(f.b, num, protowire.BytesType)
		f.b = protowire.AppendVarint(f.b, uint64(n*rememberedLen))
		for i := range n {
			f.b = m.at(i).append(f.b)
		}
		return
	}
	var b []byte
	if f.num == num {
		b = f.some()
	}
	if f.err != nil || len(b) != n*rememberedLen {
		f.fail("not the remembered ids that there have to be")
		return
	}
	if n == 0 {
		return // some were forgotten, and nothing was finished since
	}
	// One array for all chunks: it is given up as a whole once 1,024 more ids
	// were finished.
	chunks := make([][chunkLen]Remembered, (n+chunkLen-1)/chunkLen)
	m.chunks = make([]*[chunkLen]Remembered, len(chunks))
	for i := range chunks {
		m.chunks[i] = &chunks[i]
	}
	for i := range n {
		r := m.at(i)
		r.read(b[i*rememberedLen:])
		r.seq = uint32(m.first()) + uint32(i)
	}
}

func (r *Remembered) append(b []byte) []byte {
	b = append(b, r.ID[:]...)
	b = append(b, r.Content[:]...)
	b = binary.LittleEndian.AppendUint64(b, r.Value)
	return binary.LittleEndian.AppendUint64(b, r.meta)
}

func (r *Remembered) read(b []byte) {
	copy(r.ID[:], b)
	copy(r.Content[:], b[12:])
	r.Value = binary.LittleEndian.Uint64(b[20:])
	r.meta = binary.LittleEndian.Uint64(b[28:])
}

// An interner keeps one copy of what many records name: names, and pins by
// digest and limits. The nil interner only looks names up. It is bounded, for
// names come from clients; beyond the bound it costs time and changes nothing.
type interner struct {
	names map[string]unique.Handle[string]
	pins  map[string]*Pin
	empty unique.Handle[string]
}

const maxInterned = 1 << 16

func newInterner() *interner {
	return &interner{names: map[string]unique.Handle[string]{}, pins: map[string]*Pin{}, empty: unique.Make("")}
}

func (t *interner) handle(b []byte) unique.Handle[string] {
	if t == nil {
		return unique.Make(string(b))
	}
	if len(b) == 0 {
		return t.empty
	}
	if h, ok := t.names[string(b)]; ok {
		return h
	}
	h := unique.Make(string(b))
	if len(t.names) < maxInterned {
		t.names[h.Value()] = h
	}
	return h
}

func (t *interner) pin(b []byte) *Pin {
	if t == nil {
		return nil
	}
	return t.pins[string(b)]
}

func (t *interner) keep(b []byte, p *Pin) {
	if t != nil && len(t.pins) < maxInterned {
		t.pins[string(b)] = p
	}
}
