package session

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"example.com/govnode/session/wire"
)

// A codec writes one message of log.proto, or reads one. Every message has one
// method that names its fields in the order of their numbers, for both
// directions, so that what is written and what is read cannot differ:
//
//	func (w *Want) fields(f *codec) {
//		f.text(1, &w.Pool)
//		f.int32(2, &w.Weight)
//	}
//
// Written, the fields stand in that order and those that are zero are left out,
// as a deterministic protobuf encoder does it. Read, nothing else is accepted:
// no other order, no field twice, none that is not known, no zero, no number
// that does not fit or has bytes to spare. So what was read is written as the
// same bytes, and nothing that replicas of different versions would understand
// differently gets into the state.
//
// It takes no function values, for they would make each codec escape to the heap.
type codec struct {
	write bool
	b     []byte // what was written, or is read
	// s has the bytes of b if the strings that are read may be parts of it.
	s        string
	pos, end int // of the message being read
	num      protowire.Number
	typ      protowire.Type // of the field at pos; num is 0 at the end
	err      error
	names    *interner
}

// A scope is a message within a message while its fields are visited.
type scope struct {
	absent bool
	begun  bool
	at     int       // written: where its length goes; read: end of the outer message
	under  wire.Kind // what its seal is of; 0 if it has none
}

func reader(b []byte) codec { return codec{b: b, end: len(b)} }

// fail makes everything that is still to be read empty.
func (f *codec) fail(text string) {
	f.failWith(fmt.Errorf("session: cannot decode field %d at byte %d: %s", f.num, f.pos, text))
}

func (f *codec) failWith(err error) {
	if f.err == nil {
		f.err = err
	}
	f.num = 0
}

// visit visits the fields of a message once:
//
//	for m := f.top(); f.visit(&m); {
//		x.fields(f)
//	}
//
// Where it is read, every field has found its method by then, or is not known
// or not in its place.
func (f *codec) visit(m *scope) bool {
	if f.write {
		return f.visitWritten(m)
	}
	if m.absent {
		return false
	}
	if !m.begun {
		m.begun = true
		return true // an empty message is visited too, for its names
	}
	if f.num != 0 {
		f.failWith(fmt.Errorf("%w: field %d, at byte %d, is unknown here or in a wrong place", ErrUnknownKind, f.num, f.pos))
	}
	if m.at >= 0 { // back in the outer message
		f.end = m.at
		if m.under != 0 {
			f.pos += wire.SealLen
		}
		f.next()
	}
	return false
}

func (f *codec) visitWritten(m *scope) bool {
	if m.absent {
		return false
	}
	if !m.begun {
		m.begun = true
		return true
	}
	if m.at < 0 {
		return false
	}
	if m.under != 0 {
		f.b = m.under.Seal(f.b, m.at)
	}
	// One byte was left for the length; most messages need no more.
	n := len(f.b) - m.at
	if more := protowire.SizeVarint(uint64(n)) - 1; more > 0 {
		f.b = slices.Grow(f.b, more)[:len(f.b)+more]
		copy(f.b[m.at+more:], f.b[m.at:m.at+n])
	}
	protowire.AppendVarint(f.b[:m.at-1], uint64(n))
	return false
}

func (f *codec) top() scope {
	if !f.write {
		f.next()
	}
	return scope{at: -1}
}

// optional enters a message that is left out where all of its fields are zero.
func (f *codec) optional(num protowire.Number, present bool) scope {
	m := f.message(num, present)
	if !f.write && !m.absent && f.pos == f.end && f.num == 0 {
		f.fail("an empty message that is to be left out")
	}
	return m
}

// message enters a message within this one, which is written if it is present.
func (f *codec) message(num protowire.Number, present bool) scope {
	if f.write {
		if !present {
			return scope{absent: true}
		}
		f.b = append(protowire.AppendTag(f.b, num, protowire.BytesType), 0)
		return scope{at: len(f.b)}
	}
	if f.num != num {
		return scope{absent: true}
	}
	i, j := f.span()
	if f.err != nil {
		return scope{absent: true}
	}
	m := scope{at: f.end}
	f.pos, f.end = i, j
	f.next()
	return m
}

// sealed enters a message that is always there and has a seal behind it.
func (f *codec) sealed(num protowire.Number, under wire.Kind) scope {
	if f.write {
		m := f.message(num, true)
		m.under = under
		return m
	}
	if f.num != num {
		return scope{absent: true}
	}
	i, j := f.span()
	if f.err != nil {
		return scope{absent: true}
	}
	if _, err := under.Open(f.b[i:j]); err != nil {
		f.failWith(err)
		return scope{absent: true}
	}
	m := scope{at: f.end, under: under}
	f.pos, f.end = i, j-wire.SealLen
	f.next()
	return m
}

// next reads the tag at pos.
func (f *codec) next() {
	if f.pos >= f.end || f.err != nil {
		f.num = 0
		return
	}
	if c := f.b[f.pos]; c < 0x80 && c >= 8 {
		f.num, f.typ = protowire.Number(c>>3), protowire.Type(c&7)
		f.pos++
		return
	}
	num, typ, n := protowire.ConsumeTag(f.b[f.pos:f.end])
	if n < 0 || n != protowire.SizeTag(num) {
		f.fail("not a field of a protobuf message")
		return
	}
	f.num, f.typ = num, typ
	f.pos += n
}

// span returns where the bytes of a length-delimited field begin and end. The
// next field is not read yet.
func (f *codec) span() (i, j int) {
	if f.typ != protowire.BytesType {
		f.fail("wrong wire type")
		return 0, 0
	}
	n, size := protowire.ConsumeVarint(f.b[f.pos:f.end])
	if size < 0 || n > uint64(f.end-f.pos-size) {
		f.fail("truncated")
		return 0, 0
	}
	if size != protowire.SizeVarint(n) {
		f.fail("a length that has bytes to spare")
		return 0, 0
	}
	i = f.pos + size
	return i, i + int(n)
}

// some returns the bytes of a field that is left out where it has none.
func (f *codec) some() []byte {
	b := f.bytesOf()
	if len(b) == 0 && f.err == nil {
		f.fail("an empty field that is to be left out")
	}
	return b
}

// bytesOf returns the bytes of a length-delimited field without copying them,
// and goes on to the next field.
func (f *codec) bytesOf() []byte {
	i, j := f.span()
	if f.err != nil {
		return nil
	}
	f.pos = j
	f.next()
	return f.b[i:j]
}

// elements makes room for the elements of a list that follow each other, and
// returns the indexes of those that are to be visited.
func elements[T any](f *codec, num protowire.Number, v *[]T, most int) (from, to int) {
	if f.write {
		return 0, len(*v)
	}
	if f.num != num || f.err != nil {
		return 0, 0
	}
	from = len(*v)
	n := f.run()
	if n > most-from {
		f.fail(fmt.Sprintf("more than %d elements", most))
		return 0, 0
	}
	*v = slices.Grow(*v, n)[:from+n]
	return from, from + n
}

// run counts the fields with the present number that follow each other. It is
// what lets a list be allocated once, and never for more than is there.
func (f *codec) run() (n int) {
	for at := f.pos; ; {
		size := protowire.ConsumeFieldValue(f.num, f.typ, f.b[at:f.end])
		if size < 0 {
			f.fail("truncated")
			return 0
		}
		n++
		if at += size; at >= f.end {
			return n
		}
		num, typ, size := protowire.ConsumeTag(f.b[at:f.end])
		if size < 0 || num != f.num || typ != f.typ {
			return n // what is wrong here is found when it is read
		}
		at += size
	}
}
