package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
)

// A backend that stores each record on its own would rewrite 40 KiB of
// remembered ids with every call of a busy maker. What is here lets it store a
// record as a head, which is small, and the ids of its maker as parts, to which
// it only appends. A command looks at the part of its own id alone, see IDOf;
// what else it finishes by the way is appended to parts that were not loaded.
//
// Which ids are remembered is the same as in a whole record: each entry of a
// part has its number, and the head says how many there were ever and how many
// were dropped. What was dropped stays in its part until Pack prunes it, and
// counts as forgotten all the same.

// apart is what is known of ids whose parts are stored on their own.
type apart struct {
	known  uint16 // bit by part: it was loaded
	loaded [ForgottenParts][]partEntry
	added  []Remembered // since the record was loaded: the last of all
	newest uint64       // time among all ids that were ever finished here
}

// A partEntry is an entry of a part.
type partEntry struct {
	seq uint32
	Remembered
}

const (
	partEntryLen = 4 + rememberedLen
	// pruneFrom is how many dropped entries of a part are worth rewriting it:
	// as many as are remembered on average.
	pruneFrom = MaxRemembered / ForgottenParts
)

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
	return k, partOf(hashID(id)), true
}

func (m Maker) id(ns string) (Key, string) { return ClientKey(ns, m.Client), m.Request }

func partOf(hash [16]byte) int { return int(hash[15]) % ForgottenParts }

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
	return m == nil || m.apart == nil || m.apart.known&(1<<part) != 0
}

func (m *IDs) findApart(h [16]byte) *Remembered {
	a, p := m.apart, partOf(h)
	for i := len(a.added) - 1; i >= 0; i-- {
		if r := &a.added[i]; r.ID == h && len(a.added)-i <= m.Len() {
			return r
		}
	}
	a.mustKnow(p)
	for i := range a.loaded[p] {
		if e := &a.loaded[p][i]; e.ID == h && m.remembers(e.seq) {
			return &e.Remembered
		}
	}
	return nil
}

// remembers reports whether an id that was numbered is not dropped yet.
func (m *IDs) remembers(seq uint32) bool { return int(m.n-seq) <= m.Len() }

// mustKnow stops whoever would answer from a part that was not loaded: that is
// a command missing in IDOf, and guessing would admit an id twice.
func (a *apart) mustKnow(part int) {
	if a.known&(1<<part) == 0 {
		panic(fmt.Sprintf("session: part %d of the remembered ids was not loaded", part))
	}
}

// forgotApart returns the newest time that was forgotten of a part: what was
// noted when it was pruned, and what was dropped and still stands in it.
func (m *IDs) forgotApart(part int) (t uint64) {
	a := m.apart
	a.mustKnow(part)
	if m.forgot != nil {
		t = m.forgot[part]
	}
	for i := range a.loaded[part] {
		if e := &a.loaded[part][i]; !m.remembers(e.seq) {
			t = max(t, e.Time())
		}
	}
	for i := range a.added {
		if len(a.added)-i > m.Len() && a.added[i].part() == part {
			t = max(t, a.added[i].Time())
		}
	}
	return t
}

func (m *IDs) addApart(r Remembered) {
	a := *m.apart // versions of a record share what was loaded
	a.added = append(a.added, r)
	a.newest = max(a.newest, r.Time())
	m.apart = &a
	m.n++
	if m.Len() >= MaxRemembered+chunkLen {
		m.dropped++
	}
}

// A PartChange says what becomes of one part of a record's ids: Bytes are
// appended, or replace it if Whole is set; empty and Whole, it is removed.
type PartChange struct {
	Part  int
	Whole bool
	Bytes []byte
}

// Packed is a record as it is stored in a head and parts.
type Packed struct {
	Head  []byte
	Parts []PartChange
	// Next is the record as it is once Head and Parts are stored, for whoever
	// keeps it: the next entry copies it before it writes.
	Next Record
}

// Pack returns what is to be stored of a record that was unpacked with Unpack
// and then changed by ApplyAll, or of a whole record.
func Pack(r Record) Packed {
	p := Packed{Next: shallow(r)}
	m := idsOf(p.Next)
	if m == nil {
		p.Head = sealHead.seal(appendRecord(append(make([]byte, 0, headSize(r)), headPlain), r), 0)
		return p
	}
	if m.apart == nil {
		p.Parts = m.split()
	} else {
		p.Parts = m.settleAdded()
	}
	p.Head = m.appendHead(append(make([]byte, 0, headSize(r)), headMaker))
	bare := shallow(r)
	*idsOf(bare) = IDs{}
	p.Head = sealHead.seal(appendRecord(p.Head, bare), 0)
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

// split turns whole ids into ids apart.
func (m *IDs) split() []PartChange {
	a := &apart{known: 1<<ForgottenParts - 1, newest: m.newest()}
	changes := make([]PartChange, ForgottenParts)
	for i := range changes {
		changes[i] = PartChange{Part: i, Whole: true}
	}
	for seq := m.first(); seq != m.n; seq++ {
		r := m.at(seq)
		p := r.part()
		a.loaded[p] = append(a.loaded[p], partEntry{seq, *r})
		changes[p].Bytes = appendPartEntry(changes[p].Bytes, seq, r)
	}
	m.chunks, m.index, m.apart = nil, nil, a
	return changes
}

// settleAdded counts what was added among what is loaded, and prunes the parts
// that were added to, if they are loaded and long.
func (m *IDs) settleAdded() (changes []PartChange) {
	a := *m.apart
	m.apart = &a
	first := m.n - uint32(len(a.added))
	var bytes [ForgottenParts][]byte
	for i := range a.added {
		r := &a.added[i]
		p := r.part()
		bytes[p] = appendPartEntry(bytes[p], first+uint32(i), r)
		if a.known&(1<<p) != 0 {
			a.loaded[p] = append(a.loaded[p], partEntry{first + uint32(i), *r})
		}
	}
	a.added = nil
	for p := range bytes {
		if bytes[p] == nil {
			continue
		}
		if n := m.droppedOf(p); n >= pruneFrom {
			changes = append(changes, m.prune(p, n))
		} else {
			changes = append(changes, PartChange{Part: p, Bytes: bytes[p]})
		}
	}
	return changes
}

// droppedOf returns how many entries at the head of a loaded part are dropped.
func (m *IDs) droppedOf(part int) int {
	entries := m.apart.loaded[part]
	return sort.Search(len(entries), func(i int) bool { return m.remembers(entries[i].seq) })
}

// prune rewrites a part without its first n entries, which were dropped, and
// notes what is forgotten with them.
func (m *IDs) prune(part, n int) PartChange {
	forgot := new([ForgottenParts]uint64)
	if m.forgot != nil {
		*forgot = *m.forgot
	}
	entries := m.apart.loaded[part]
	for i := range entries[:n] {
		forgot[part] = max(forgot[part], entries[i].Time())
	}
	m.forgot = forgot
	m.apart.loaded[part] = slices.Clone(entries[n:])
	change := PartChange{Part: part, Whole: true}
	for i := range m.apart.loaded[part] {
		e := &m.apart.loaded[part][i]
		change.Bytes = appendPartEntry(change.Bytes, e.seq, &e.Remembered)
	}
	return change
}

// A head begins with one of these.
const (
	headPlain = 0 // message Record follows
	headMaker = 1 // what is known of the ids follows, then message Record without them
)

func (m *IDs) appendHead(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(m.n))
	b = binary.AppendUvarint(b, uint64(m.dropped))
	b = binary.AppendUvarint(b, m.apart.newest)
	if m.forgot == nil {
		return append(b, 0)
	}
	b = append(b, 1)
	for _, t := range m.forgot {
		b = binary.AppendUvarint(b, t)
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
		if n <= 0 || v > most {
			ok = false
			return 0
		}
		b = b[n:]
		return v
	}
	m.n = uint32(number(1<<32 - 1))
	m.dropped = uint32(number(1<<32 - 1))
	m.apart = &apart{newest: number(1<<44 - 1)}
	if number(1) == 1 {
		m.forgot = new([ForgottenParts]uint64)
		for i := range m.forgot {
			m.forgot[i] = number(1<<44 - 1)
		}
	}
	return b, ok && m.n-m.first() < MaxRemembered+chunkLen
}

// WithPart returns a record like r that knows a part of its ids, which is
// stored as b.
func WithPart(r Record, part int, b []byte) (Record, error) {
	next := shallow(r)
	m := idsOf(next)
	if m == nil || m.apart == nil || part < 0 || part >= ForgottenParts {
		return nil, errors.New("session: a part of ids for a record that has none")
	}
	entries, err := readPart(b, part, m.n)
	if err != nil {
		return nil, err
	}
	a := *m.apart
	a.known |= 1 << part
	a.loaded[part] = entries
	m.apart = &a
	return next, nil
}

func readPart(b []byte, part int, n uint32) ([]partEntry, error) {
	if len(b)%partEntryLen != 0 {
		return nil, fmt.Errorf("session: part %d of remembered ids has %d bytes, not a multiple of %d", part, len(b), partEntryLen)
	}
	entries := make([]partEntry, len(b)/partEntryLen)
	for i := range entries {
		e, x := &entries[i], b[i*partEntryLen:]
		e.seq = binary.LittleEndian.Uint32(x)
		copy(e.ID[:], x[4:])
		copy(e.Content[:], x[20:])
		e.Value = binary.LittleEndian.Uint64(x[28:])
		e.meta = binary.LittleEndian.Uint64(x[36:])
		if n-e.seq-1 >= 1<<31 || e.part() != part || i > 0 && n-e.seq >= n-entries[i-1].seq {
			return nil, fmt.Errorf("session: entry %d of part %d of remembered ids does not belong there", i, part)
		}
	}
	return entries, nil
}

func appendPartEntry(b []byte, seq uint32, r *Remembered) []byte {
	b = binary.LittleEndian.AppendUint32(b, seq)
	b = append(b, r.ID[:]...)
	b = append(b, r.Content[:]...)
	b = binary.LittleEndian.AppendUint64(b, r.Value)
	return binary.LittleEndian.AppendUint64(b, r.meta)
}

// Join returns the whole record of one that knows all its parts, equal to what
// a backend has that stores records whole.
func Join(r Record) (Record, error) {
	whole := shallow(r)
	m := idsOf(whole)
	if m == nil || m.apart == nil {
		return whole, nil
	}
	a := m.apart
	if a.known != 1<<ForgottenParts-1 || len(a.added) > 0 {
		return nil, errors.New("session: not all parts of the remembered ids are loaded")
	}
	out := IDs{dropped: m.dropped, n: m.n}
	if m.dropped > 0 || m.forgot != nil {
		out.forgot = new([ForgottenParts]uint64)
		for p := range out.forgot {
			out.forgot[p] = m.forgotApart(p)
		}
	}
	first := m.first()
	out.chunks = make([]*[chunkLen]Remembered, (m.n-first+chunkLen-1)/chunkLen)
	for i := range out.chunks {
		out.chunks[i] = new([chunkLen]Remembered)
	}
	found := uint32(0)
	for p := range a.loaded {
		for _, e := range a.loaded[p] {
			if m.remembers(e.seq) {
				*out.at(e.seq) = e.Remembered
				found++
			}
		}
	}
	if found != m.n-first {
		return nil, fmt.Errorf("session: %d remembered ids in the parts of a record, its head says %d", found, m.n-first)
	}
	*m = out
	return whole, nil
}

// Belongs reports whether a record is of the kind that its key says.
func Belongs(k Key, r Record) bool { return k.wellFormed() && k[0] == kindOf(r) }

// WellFormed reports whether a key that was read from somewhere has a kind, a
// namespace and a slash.
func WellFormed(k Key) bool { return k.wellFormed() }
