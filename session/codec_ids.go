package session

import (
	"encoding/binary"
	"unique"

	"google.golang.org/protobuf/encoding/protowire"
)

const rememberedLen = 40 // bytes of an id in IDs.remembered

// ids leaves out how many ids there were ever, which follows from how many are
// remembered and how many chunks were dropped.
func (f *wire) ids(num protowire.Number, m *IDs) {
	if !f.write {
		if f.num != num {
			return
		}
		f.require(m.chunks == nil, "ids a second time")
	}
	// Ids that stand apart are not part of the record: see Pack.
	for s := f.message(num, m.apart == nil && (m.Len() > 0 || m.forgot != nil)); f.visit(&s); {
		f.uint32(1, &m.dropped)
		f.remembered(2, m)
		f.forgot(3, m)
	}
	if !f.write {
		m.n += m.dropped * chunkLen
	}
}

func (f *wire) remembered(num protowire.Number, m *IDs) {
	if f.write {
		if m.Len() == 0 {
			return
		}
		f.b = protowire.AppendTag(f.b, num, protowire.BytesType)
		f.b = protowire.AppendVarint(f.b, uint64(m.Len()*rememberedLen))
		for i := range m.Len() {
			r := &m.chunks[i/chunkLen][i%chunkLen]
			f.b = append(f.b, r.ID[:]...)
			f.b = append(f.b, r.Content[:]...)
			f.b = binary.LittleEndian.AppendUint64(f.b, r.Value)
			f.b = binary.LittleEndian.AppendUint64(f.b, r.meta)
		}
		return
	}
	if f.num != num {
		return
	}
	b := f.bytesOf()
	n := len(b) / rememberedLen
	if len(b)%rememberedLen != 0 || n >= MaxRemembered+chunkLen || m.chunks != nil {
		f.fail("not one list of remembered ids")
		return
	}
	// One array for all chunks: it is given up as a whole once 1,024 more ids
	// were finished.
	chunks := make([][chunkLen]Remembered, (n+chunkLen-1)/chunkLen)
	m.chunks = make([]*[chunkLen]Remembered, len(chunks))
	for i := range chunks {
		m.chunks[i] = &chunks[i]
	}
	for i := range n {
		r := &chunks[i/chunkLen][i%chunkLen]
		x := b[i*rememberedLen:][:rememberedLen]
		copy(r.ID[:], x)
		copy(r.Content[:], x[16:])
		r.Value = binary.LittleEndian.Uint64(x[24:])
		r.meta = binary.LittleEndian.Uint64(x[32:])
	}
	m.n = uint32(n)
}

func (f *wire) forgot(num protowire.Number, m *IDs) {
	if f.write {
		if m.forgot != nil {
			f.putPacked64(num, m.forgot[:])
		}
		return
	}
	if f.num != num {
		return
	}
	b := f.bytesOf()
	if len(b) != 8*ForgottenParts {
		f.fail("not a time for each part")
		return
	}
	m.forgot = new([ForgottenParts]uint64)
	for i := range m.forgot {
		m.forgot[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
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
