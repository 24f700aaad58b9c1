package ids

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"example.com/govnode/session/wire"
)

// The parts that a backend stores apart from the head of a record: it appends to
// them, and cuts off at their beginning what is forgotten.

// A PartChange says what becomes of one part of a record's ids. Whole, Bytes
// replace it, and if there are none it is removed. Else Bytes are appended, then
// the first Drop bytes are cut off.
type PartChange struct {
	Part  int
	Whole bool
	Bytes []byte
	Drop  int
}

// Known reports whether a part was loaded, or stands here with all others.
func (m *Set) Known(part int) bool { return m.parts == nil || m.parts.known&(1<<part) != 0 }

// Has reports whether a part that stands on its own has ids.
func (m *Set) Has(part int) bool {
	if m.parts == nil {
		return false
	}
	for i := range m.parts.blocks {
		if m.parts.blocks[i].counts[part] > 0 {
			return true
		}
	}
	return false
}

// mustKnow stops whoever would answer from a part that was not loaded: guessing
// would admit an id twice.
func (p *idParts) mustKnow(part int) {
	if p.known&(1<<part) == 0 {
		panic(fmt.Sprintf("session: part %d of the remembered ids was not loaded", part))
	}
}

// Store returns what is to be stored of the parts for the key of their record,
// and takes it for stored: ids that stood here stand in parts afterwards.
func (m *Set) Store(key string) []PartChange {
	seal := wire.Part.Under(key)
	if m.parts == nil {
		return m.split(seal)
	}
	return m.settle(seal)
}

// split turns ids that stand here into ids whose parts stand on their own.
func (m *Set) split(seal wire.Bound) []PartChange {
	p := &idParts{known: 1<<Parts - 1, blocks: m.blocks()}
	changes := make([]PartChange, Parts)
	for i := range changes {
		changes[i] = PartChange{Part: i, Whole: true}
	}
	for i := range m.Len() {
		r := m.at(i)
		part := r.ID.part()
		p.loaded[part] = append(p.loaded[part], *r)
		changes[part].Bytes = r.appendEntry(seal, changes[part].Bytes)
	}
	m.chunks, m.index, m.parts = nil, nil, p
	return changes
}

// settle puts what was added among what is loaded, and takes away what was
// forgotten.
func (m *Set) settle(seal wire.Bound) (changes []PartChange) {
	p := *m.parts
	m.parts = &p
	var bytes [Parts][]byte
	for i := range p.added {
		r := &p.added[i]
		part := r.ID.part()
		bytes[part] = r.appendEntry(seal, bytes[part])
		if p.known&(1<<part) != 0 {
			p.loaded[part] = append(slices.Clip(p.loaded[part]), *r)
		}
	}
	for part, dropped := range p.dropped {
		if bytes[part] == nil && dropped == 0 {
			continue
		}
		changes = append(changes, PartChange{Part: part, Bytes: bytes[part], Drop: int(dropped) * partEntryLen})
		if p.known&(1<<part) != 0 {
			p.loaded[part] = p.loaded[part][dropped:]
		}
	}
	p.added, p.dropped = nil, [Parts]uint16{}
	return changes
}

// AppendHead appends how many ids there were ever, the newest time that is
// forgotten, and the blocks of what is remembered: all that
// is to be known of parts that are not loaded.
func (m *Set) AppendHead(b []byte) []byte {
	b = binary.AppendUvarint(b, m.n)
	b = binary.AppendUvarint(b, m.forgot)
	for i := range (m.Len() + blockLen - 1) / blockLen {
		b = binary.AppendUvarint(b, m.parts.blocks[i].newest)
		b = append(b, m.parts.blocks[i].counts[:]...)
	}
	return b
}

// ReadHead reads what AppendHead appended; of the parts nothing is known. It
// returns what is behind it.
func ReadHead(b []byte) (m Set, rest []byte, ok bool) {
	ok = true
	number := func(most uint64) uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > most || n > 1 && b[n-1] == 0 {
			ok = false
			return 0
		}
		b = b[n:]
		return v
	}
	m.n = number(1 << 63)
	m.forgot = number(math.MaxUint64)
	m.parts = &idParts{}
	for left := m.Len(); left > 0; left -= blockLen {
		k := &m.parts.blocks[(m.Len()-left)/blockLen]
		k.newest = number(MaxTime)
		if len(b) < len(k.counts) {
			return Set{}, nil, false
		}
		b = b[copy(k.counts[:], b):]
		sum := 0
		for _, n := range k.counts {
			sum += int(n)
		}
		ok = ok && sum == min(left, blockLen)
	}
	return m, b, ok
}

// Load makes a part known, which is stored as b for the key of its record. It
// fails unless that is what was stored last: the head says how many ids each part
// has. An error that wraps wire.ErrDamaged tells that a seal does not hold, or
// that it is the part of another record.
func (m *Set) Load(key string, part int, b []byte) error {
	if m.parts == nil || part < 0 || part >= Parts {
		return errors.New("session: a part of ids for a record that has none")
	}
	entries, err := m.readPart(wire.Part.Under(key), b, part)
	if err != nil {
		return fmt.Errorf("session: part %d of the remembered ids: %w", part, err)
	}
	p := *m.parts
	p.known |= 1 << part
	p.loaded[part] = entries
	m.parts = &p
	return nil
}

const partEntryLen = 4 + rememberedLen + wire.SealLen

func (m *Set) readPart(seal wire.Bound, b []byte, part int) ([]Remembered, error) {
	if len(b)%partEntryLen != 0 {
		return nil, fmt.Errorf("%w: %d bytes are not a multiple of %d", wire.ErrDamaged, len(b), partEntryLen)
	}
	var counts [maxBlocks]uint8
	entries := make([]Remembered, len(b)/partEntryLen)
	for i := range entries {
		x, err := seal.Open(b[i*partEntryLen:][:partEntryLen])
		if err != nil {
			return nil, err
		}
		r := &entries[i]
		r.seq = binary.LittleEndian.Uint32(x)
		r.read(x[4:])
		behind := m.behind(r)
		if behind >= m.Len() || r.ID.part() != part || i > 0 && behind <= m.behind(&entries[i-1]) {
			return nil, fmt.Errorf("id %d does not belong there", i)
		}
		counts[behind/blockLen]++
	}
	for i, n := range counts {
		if want := m.parts.blocks[i].counts[part]; n != want {
			return nil, fmt.Errorf("%d ids in block %d, the head says %d", n, i, want)
		}
	}
	return entries, nil
}

func (r *Remembered) appendEntry(seal wire.Bound, b []byte) []byte {
	begin := len(b)
	return seal.Seal(r.append(binary.LittleEndian.AppendUint32(b, r.seq)), begin)
}

// Join returns the ids in one piece, of which all parts are known.
func (m *Set) Join() (Set, error) {
	p := m.parts
	if p == nil {
		return *m, nil
	}
	if p.known != 1<<Parts-1 || len(p.added) > 0 {
		return Set{}, errors.New("session: not all parts of the remembered ids are loaded")
	}
	all := slices.Concat(p.loaded[:]...)
	slices.SortFunc(all, func(a, b Remembered) int { return m.behind(&a) - m.behind(&b) })
	out := Set{n: m.n, forgot: m.forgot}
	out.chunks = make([]*[chunkLen]Remembered, (len(all)+chunkLen-1)/chunkLen)
	for i := range out.chunks {
		out.chunks[i] = new([chunkLen]Remembered)
		copy(out.chunks[i][:], all[i*chunkLen:])
	}
	// The head has counted them, so that one that stands twice is too many.
	for i := range all {
		if m.behind(&all[i]) != i {
			return Set{}, fmt.Errorf("session: the remembered id %d of %d is in no part, or in two", i, m.Len())
		}
	}
	return out, nil
}
