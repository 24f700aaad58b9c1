package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// A backend that stores each record on its own would rewrite 40 KiB of
// remembered ids with every call of a busy maker. What is here lets it store a
// record as a head, which is small, and the ids of its maker as parts: it appends
// to them, and cuts off at their beginning what is forgotten. A command looks at
// the part of its own id alone, see IDOf; what else it finishes by the way is
// appended to parts that were not loaded.

// IDOf returns the part of remembered ids that applying the command looks at,
// and the record whose ids they are; ok is false if it looks at none.
func IDOf(c Command) (k Key, part int, ok bool) {
	var id string
	switch c := c.(type) {
	case *Begin:
		k, id = SessionKey(c.NS, c.Session), c.Call
	case *End:
		k, id = SessionKey(c.NS, c.Session), c.Call
	case *Cancel:
		k, id = makerKey(c.NS, c.Client, c.Session), c.Call
	case *Acquire:
		k, id = ClientKey(c.NS, c.Client), c.Slot
	case *Release:
		k, id = ClientKey(c.NS, c.Client), c.Slot
	case *ForceRelease:
		k, id = c.By.id(c.NS)
	case *PutPool:
		k, id = c.By.id(c.NS)
	case *DeletePool:
		k, id = c.By.id(c.NS)
	case *PutPolicy:
		k, id = c.By.id(c.NS)
	case *DeletePolicy:
		k, id = c.By.id(c.NS)
	case *Set:
		k, id = c.By.id(c.NS)
	case *Delete:
		k, id = c.By.id(c.NS)
	case *Increment:
		k, id = c.By.id(c.NS)
	case *PutHash:
		k, id = c.By.id(c.NS)
	case *Repair:
		k, id = c.By.id(c.NS)
	}
	if id == "" {
		return "", 0, false
	}
	return k, hashID(id).part(), true
}

func (m Maker) id(ns string) (Key, string) { return ClientKey(ns, m.Client), m.Request }

// Repeatable reports whether applying the command a second time has no second
// effect: it has an id of its caller's, or asks for what is idempotent.
func Repeatable(c Command) bool {
	switch c.(type) {
	case *Open, *Close, *Renew, *Tick:
		return true
	case *Restore:
		return false
	}
	_, _, ok := IDOf(c)
	return ok
}

// TickKeys returns the keys that a Tick names to settle a record: its own, and
// those of what it may let go of elsewhere.
func TickKeys(k Key, r Record) []Key { return append([]Key{k}, tickNeeds(k, r)...) }

// idsOf returns the ids that a record remembers; nil if it is of a kind that
// remembers none.
func idsOf(r Record) *IDs {
	switch r := r.(type) {
	case *Session:
		return &r.IDs
	case *Client:
		return &r.IDs
	}
	return nil
}

// HasParts reports whether records under the key remember ids in parts.
func HasParts(k Key) bool { return k.Kind() == KindSession || k.Kind() == KindClient }

// shallow returns a copy of a record that belongs to no entry and may be given
// other ids. What they share is not written into, since no entry owns the copy.
func shallow(r Record) Record {
	switch r := r.(type) {
	case *Session:
		c := *r
		c.entry = 0
		return &c
	case *Client:
		c := *r
		c.entry = 0
		return &c
	case *Pool:
		c := *r
		c.entry = 0
		return &c
	}
	return r
}

// PartKnown reports whether the part of a record's ids was loaded; true for
// records that remember none.
func PartKnown(r Record, part int) bool {
	m := idsOf(r)
	return m == nil || m.parts == nil || m.parts.known&(1<<part) != 0
}

// HasIDs reports whether a record whose ids are stored in parts has ids in one of
// them, so that there is something under its name.
func HasIDs(r Record, part int) bool {
	m := idsOf(r)
	if m == nil || m.parts == nil {
		return false
	}
	for i := range m.parts.blocks {
		if m.parts.blocks[i].counts[part] > 0 {
			return true
		}
	}
	return false
}

// mustKnow stops whoever would answer from a part that was not loaded: that is
// a command missing in IDOf, and guessing would admit an id twice.
func (p *idParts) mustKnow(part int) {
	if p.known&(1<<part) == 0 {
		panic(fmt.Sprintf("session: part %d of the remembered ids was not loaded", part))
	}
}

// A PartChange says what becomes of one part of a record's ids. Whole, Bytes
// replace it, and if there are none it is removed. Else Bytes are appended, then
// the first Drop bytes are cut off.
type PartChange struct {
	Part  int
	Whole bool
	Bytes []byte
	Drop  int
}

// Packed is a record as it is stored in a head and parts.
type Packed struct {
	Head  []byte
	Parts []PartChange
	// Next is the record as it is once Head and Parts are stored, for whoever
	// keeps it: the next entry copies it before it writes.
	Next Record
}

// Pack returns what is to be stored under a key of a record that was unpacked
// with Unpack and then changed by ApplyAll, or of a whole record.
func Pack(k Key, r Record) Packed {
	p := Packed{Next: shallow(r)}
	head := make([]byte, 0, headSize(r))
	m := idsOf(p.Next)
	if m == nil {
		p.Head = sealHead.seal(appendRecord(append(head, headPlain), r), 0)
		return p
	}
	if m.parts == nil {
		p.Parts = m.split(k)
	} else {
		p.Parts = m.settleParts(k)
	}
	bare := shallow(r)
	*idsOf(bare) = IDs{}
	p.Head = sealHead.seal(appendRecord(m.appendHead(append(head, headMaker)), bare), 0)
	return p
}

// headSize is about what the head of a record takes, so that it is not copied
// while it grows.
func headSize(r Record) int {
	const bare, each = 256, 80
	switch r := r.(type) {
	case *Pool:
		return bare + each*(len(r.Leases)+len(r.Queue))
	case *Session:
		return bare + each*(len(r.Open)+len(r.Tools))
	case *Client:
		return bare + each*len(r.Open)
	}
	return bare
}

// split turns ids that stand here into ids whose parts stand on their own.
func (m *IDs) split(k Key) []PartChange {
	seal := sealPart.under(k)
	p := &idParts{known: 1<<ForgottenParts - 1, blocks: m.blocks()}
	changes := make([]PartChange, ForgottenParts)
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

// settleParts puts what was added among what is loaded, and takes away what was
// forgotten.
func (m *IDs) settleParts(k Key) (changes []PartChange) {
	seal := sealPart.under(k)
	p := *m.parts
	m.parts = &p
	var bytes [ForgottenParts][]byte
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
	p.added, p.dropped = nil, [ForgottenParts]uint16{}
	return changes
}

// A head begins with one of these.
const (
	headPlain = 0 // message Record follows
	headMaker = 1 // what is known of the ids follows, then message Record without them
)

// appendHead appends how many ids there were ever, the newest time that is
// forgotten, and the blocks of what is remembered.
func (m *IDs) appendHead(b []byte) []byte {
	b = binary.AppendUvarint(b, m.n)
	b = binary.AppendUvarint(b, m.forgot)
	for i := range (m.Len() + blockLen - 1) / blockLen {
		b = binary.AppendUvarint(b, m.parts.blocks[i].newest)
		b = append(b, m.parts.blocks[i].counts[:]...)
	}
	return b
}

var errHead = errors.New("session: not the head of a record")

// Unpack decodes a head. Of the parts nothing is known; see WithPart. An error
// that wraps ErrDamaged tells that its seal does not hold.
func Unpack(head []byte) (Record, error) {
	head, err := sealHead.open(head)
	if err != nil {
		return nil, err
	}
	if len(head) == 0 || head[0] > headMaker {
		return nil, errHead
	}
	if head[0] == headPlain {
		r, err := decodeRecord(head[1:])
		if err == nil && idsOf(r) != nil {
			return nil, errHead
		}
		return r, err
	}
	var m IDs
	rest, ok := m.readHead(head[1:])
	if !ok {
		return nil, errHead
	}
	r, err := decodeRecord(rest)
	if err != nil {
		return nil, err
	}
	ids := idsOf(r)
	if ids == nil || ids.Len() != 0 {
		return nil, errHead
	}
	*ids = m
	return r, nil
}

func (m *IDs) readHead(b []byte) (rest []byte, ok bool) {
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
		k.newest = number(1<<44 - 1)
		if len(b) < len(k.counts) {
			return nil, false
		}
		b = b[copy(k.counts[:], b):]
		sum := 0
		for _, n := range k.counts {
			sum += int(n)
		}
		ok = ok && sum == min(left, blockLen)
	}
	return b, ok
}

// WithPart returns a record like r that knows a part of its ids, which is
// stored for its key as b. It fails unless that is what was stored last: the head
// says how many ids each part has. An error that wraps ErrDamaged tells that a
// seal does not hold, or that it is the part of another record.
func WithPart(k Key, r Record, part int, b []byte) (Record, error) {
	next := shallow(r)
	m := idsOf(next)
	if m == nil || m.parts == nil || part < 0 || part >= ForgottenParts {
		return nil, errors.New("session: a part of ids for a record that has none")
	}
	entries, err := m.readPart(k, b, part)
	if err != nil {
		return nil, fmt.Errorf("session: part %d of the remembered ids: %w", part, err)
	}
	p := *m.parts
	p.known |= 1 << part
	p.loaded[part] = entries
	m.parts = &p
	return next, nil
}

const partEntryLen = 4 + rememberedLen + sealLen

func (m *IDs) readPart(k Key, b []byte, part int) ([]Remembered, error) {
	if len(b)%partEntryLen != 0 {
		return nil, fmt.Errorf("%w: %d bytes are not a multiple of %d", ErrDamaged, len(b), partEntryLen)
	}
	seal := sealPart.under(k)
	var counts [maxBlocks]uint8
	entries := make([]Remembered, len(b)/partEntryLen)
	for i := range entries {
		x, err := seal.open(b[i*partEntryLen:][:partEntryLen])
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

func (r *Remembered) appendEntry(seal bound, b []byte) []byte {
	begin := len(b)
	return seal.seal(r.append(binary.LittleEndian.AppendUint32(b, r.seq)), begin)
}

// Join returns the whole record of one that knows all its parts, equal to what
// a backend has that stores records whole.
func Join(r Record) (Record, error) {
	whole := shallow(r)
	m := idsOf(whole)
	if m == nil || m.parts == nil {
		return whole, nil
	}
	p := m.parts
	if p.known != 1<<ForgottenParts-1 || len(p.added) > 0 {
		return nil, errors.New("session: not all parts of the remembered ids are loaded")
	}
	all := slices.Concat(p.loaded[:]...)
	slices.SortFunc(all, func(a, b Remembered) int { return m.behind(&a) - m.behind(&b) })
	out := IDs{n: m.n, forgot: m.forgot}
	out.chunks = make([]*[chunkLen]Remembered, (len(all)+chunkLen-1)/chunkLen)
	for i := range out.chunks {
		out.chunks[i] = new([chunkLen]Remembered)
		copy(out.chunks[i][:], all[i*chunkLen:])
	}
	// The head has counted them, so that one that stands twice is too many.
	for i := range all {
		if m.behind(&all[i]) != i {
			return nil, fmt.Errorf("session: the remembered id %d of %d is in no part, or in two", i, m.Len())
		}
	}
	*m = out
	return whole, nil
}

// Belongs reports whether a record is of the kind that its key says.
func Belongs(k Key, r Record) bool { return k.wellFormed() && k[0] == kindOf(r) }

// WellFormed reports whether a key that was read from somewhere has a kind, a
// namespace and a slash.
func WellFormed(k Key) bool { return k.wellFormed() }
