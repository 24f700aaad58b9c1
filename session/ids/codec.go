package ids

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"

	"example.com/govnode/session/wire"
)

// Field is the field of a record that has the ids. They are written if there
// ever were any, and if they do not stand in parts of their own.
func (m *Set) Field(f *wire.Coder, num protowire.Number) {
	for s := f.Optional(num, m.parts == nil && (m.n > 0 || m.forgot > 0)); f.Visit(&s); {
		f.Uint64(1, &m.n)
		f.Require(m.n <= 1<<63, "number is out of range")
		f.Uint64(2, &m.forgot)
		m.remembered(f, 3)
	}
}

// rememberedLen is what an id takes in Set.remembered. Its number follows from
// its place.
const rememberedLen = 12 + 8 + 8 + 8

func (m *Set) remembered(f *wire.Coder, num protowire.Number) {
	n := m.Len()
	if f.Writes() {
		if n == 0 {
			return
		}
		room := f.Room(num, n*rememberedLen)
		for i := range n {
			m.at(i).append(room[:i*rememberedLen])
		}
		return
	}
	b := f.View(num)
	if f.Err() != nil || len(b) != n*rememberedLen {
		f.Fail("not the remembered ids that there have to be")
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
