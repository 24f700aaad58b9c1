package session

import (
	"errors"

	"example.com/govnode/session/ids"
	"example.com/govnode/session/wire"
)

// A backend that stores each record on its own would rewrite 40 KiB of
// remembered ids with every call of a busy maker. What is here lets it store a
// record as a head, which is small, and the ids of its maker as parts: it appends
// to them, and cuts off at their beginning what is forgotten. A command looks at
// the part of its own id alone, see IDOf; what else it finishes by the way is
// appended to parts that were not loaded.

// ForgottenParts is into how many parts remembered ids are divided.
const ForgottenParts = ids.Parts

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
	case *TakeRate:
		k, id = ClientKey(c.NS, c.Client), c.ID
	case *Release:
		k, id = ClientKey(c.NS, c.Client), c.Slot
	case request:
		ns, by := c.from()
		k, id = ClientKey(ns, by.Client), by.Request
	}
	if id == "" {
		return "", 0, false
	}
	return k, ids.Part(id), true
}

// Repeatable reports whether applying the command a second time has no second
// effect: it has an id of its caller's, or asks for what is idempotent.
func Repeatable(c Command) bool {
	switch c.(type) {
	case *Open, *Close, *Renew, *Tick, *Swept:
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
func idsOf(r Record) *ids.Set {
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
	case *Budget:
		c := *r
		c.entry = 0
		return &c
	case *Approval:
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
	return m == nil || m.Known(part)
}

// HasIDs reports whether a record whose ids are stored in parts has ids in one of
// them, so that there is something under its name.
func HasIDs(r Record, part int) bool {
	m := idsOf(r)
	return m != nil && m.Has(part)
}

// Packed is a record as it is stored in a head and parts.
type Packed struct {
	Head  []byte
	Parts []ids.PartChange
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
		p.Head = wire.Head.Seal(appendRecord(append(head, headPlain), r), 0)
		return p
	}
	p.Parts = m.Store(string(k))
	bare := shallow(r)
	*idsOf(bare) = ids.Set{}
	p.Head = wire.Head.Seal(appendRecord(m.AppendHead(append(head, headMaker)), bare), 0)
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

// A head begins with one of these.
const (
	headPlain = 0 // message Record follows
	headMaker = 1 // what is known of the ids follows, then message Record without them
)

var errHead = errors.New("session: not the head of a record")

// Unpack decodes a head. Of the parts nothing is known; see WithPart. An error
// that wraps ErrDamaged tells that its seal does not hold.
func Unpack(head []byte) (Record, error) {
	head, err := wire.Head.Open(head)
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
	m, rest, ok := ids.ReadHead(head[1:])
	if !ok {
		return nil, errHead
	}
	r, err := decodeRecord(rest)
	if err != nil {
		return nil, err
	}
	inside := idsOf(r)
	if inside == nil || inside.Len() != 0 {
		return nil, errHead
	}
	*inside = m
	return r, nil
}

// WithPart returns a record like r that knows a part of its ids, which is
// stored for its key as b. It fails unless that is what was stored last: the head
// says how many ids each part has. An error that wraps ErrDamaged tells that a
// seal does not hold, or that it is the part of another record.
func WithPart(k Key, r Record, part int, b []byte) (Record, error) {
	next := shallow(r)
	m := idsOf(next)
	if m == nil {
		return nil, errors.New("session: a part of ids for a record that has none")
	}
	if err := m.Load(string(k), part, b); err != nil {
		return nil, err
	}
	return next, nil
}

// Join returns the whole record of one that knows all its parts, equal to what
// a backend has that stores records whole.
func Join(r Record) (Record, error) {
	whole := shallow(r)
	if m := idsOf(whole); m != nil {
		joined, err := m.Join()
		if err != nil {
			return nil, err
		}
		*m = joined
	}
	return whole, nil
}

// Belongs reports whether a record is of the kind that its key says.
func Belongs(k Key, r Record) bool {
	if !k.wellFormed() || k[0] != kindOf(r) {
		return false
	}
	if k[0] != KindList {
		return true
	}
	_, head := ofList(k.Name())
	_, isHead := r.(*List)
	return head == isHead
}

// WellFormed reports whether a key that was read from somewhere has a kind, a
// namespace and a slash.
func WellFormed(k Key) bool { return k.wellFormed() }
