package wire

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// How a message is written and read: see Coder. The kinds of fields are in
// fields.go.

// ErrUnknownKind is wrapped by the error for what this build does not know, and
// a later one may.
var ErrUnknownKind = errors.New("session: unknown kind or version")

// A Coder writes one message of log.proto, or reads one. Every message has one
// method that names its fields in the order of their numbers, for both
// directions, so that what is written and what is read cannot differ:
//
//	func (w *Want) fields(f *Coder) {
//		f.Text(1, &w.Pool)
//		f.Int32(2, &w.Weight)
//	}
//
// Written, the fields stand in that order and those that are zero are left out,
// as a deterministic protobuf encoder does it. Read, nothing else is accepted:
// no other order, no field twice, none that is not known, no zero, no number
// that does not fit or has bytes to spare. So what was read is written as the
// same bytes, and nothing that replicas of different versions would understand
// differently gets into the state.
//
// It takes no function values, for they would make each Coder escape to the heap.
type Coder struct {
	write bool
	b     []byte // what was written, or is read
	// s has the bytes of b if the strings that are read may be parts of it.
	s        string
	pos, end int // of the message being read
	num      protowire.Number
	typ      protowire.Type // of the field at pos; num is 0 at the end
	err      error
	names    *Names
}

// NewWriter returns a Coder that appends to dst.
func NewWriter(dst []byte) Coder { return Coder{write: true, b: dst} }

// NewReader returns a Coder that reads b, of which nothing that it reads is part
// but what [Coder.Peek] and [Coder.View] return. It looks names up in names,
// which may be nil.
func NewReader(b []byte, names *Names) Coder { return Coder{b: b, end: len(b), names: names} }

// NewSharingReader returns a Coder that reads b. Strings that are not kept are
// parts of one copy of it.
func NewSharingReader(b []byte) Coder { return Coder{b: b, end: len(b), s: string(b)} }

// Writes reports whether it writes.
func (f *Coder) Writes() bool { return f.write }

// Bytes returns what was written.
func (f *Coder) Bytes() []byte { return f.b }

// Err returns what is wrong with what was read.
func (f *Coder) Err() error { return f.err }

// Field returns the number of the field that is to be read; 0 at the end of a
// message, and where messages are written.
func (f *Coder) Field() protowire.Number { return f.num }

// Pos returns at which byte the field that is to be read has its value.
func (f *Coder) Pos() int { return f.pos }

// A Scope is a message within a message while its fields are visited.
type Scope struct {
	absent bool
	begun  bool
	at     int  // written: where its length goes; read: end of the outer message
	under  Kind // what its seal is of; 0 if it has none
}

// Fail makes everything that is still to be read empty.
func (f *Coder) Fail(text string) {
	f.failWith(fmt.Errorf("session: cannot decode field %d at byte %d: %s", f.num, f.pos, text))
}

func (f *Coder) failWith(err error) {
	if f.err == nil {
		f.err = err
	}
	f.num = 0
}

// Unknown fails with ErrUnknownKind.
func (f *Coder) Unknown(what string, number uint64, of string) {
	f.failWith(fmt.Errorf("%w: %s %d of %s", ErrUnknownKind, what, number, of))
}

// Foreign fails as the function of that name says.
func (f *Coder) Foreign(of string, format, ours uint64) { f.failWith(Foreign(of, format, ours)) }

// Foreign is the error for what stands in another format than the one that this
// build reads; it wraps ErrUnknownKind and says what to do.
func Foreign(of string, format, ours uint64) error {
	if format > ours {
		return fmt.Errorf("%w: %s of format %d was written by a newer build, and this one reads format %d: start that build, or one that is newer still",
			ErrUnknownKind, of, format, ours)
	}
	return fmt.Errorf("%w: %s of format %d was written by an older build, and this one reads format %d alone and converts nothing: go on with that build, or begin with an empty data folder",
		ErrUnknownKind, of, format, ours)
}

// Require fails unless what was read is as its reader relies on.
func (f *Coder) Require(holds bool, text string) {
	if !holds && !f.write {
		f.Fail(text)
	}
}

// Visit visits the fields of a message once:
//
//	for m := f.Top(); f.Visit(&m); {
//		x.fields(f)
//	}
//
// Where it is read, every field has found its method by then, or is not known
// or not in its place.
func (f *Coder) Visit(m *Scope) bool {
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
			f.pos += SealLen
		}
		f.next()
	}
	return false
}

func (f *Coder) visitWritten(m *Scope) bool {
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

// Top enters the message that is written or read as a whole.
func (f *Coder) Top() Scope {
	if !f.write {
		f.next()
	}
	return Scope{at: -1}
}

// Optional enters a message that is left out where all of its fields are zero.
func (f *Coder) Optional(num protowire.Number, present bool) Scope {
	m := f.Message(num, present)
	if !f.write && !m.absent && f.pos == f.end && f.num == 0 {
		f.Fail("an empty message that is to be left out")
	}
	return m
}

// Message enters a message within this one, which is written if it is present.
func (f *Coder) Message(num protowire.Number, present bool) Scope {
	if f.write {
		if !present {
			return Scope{absent: true}
		}
		f.b = append(protowire.AppendTag(f.b, num, protowire.BytesType), 0)
		return Scope{at: len(f.b)}
	}
	if f.num != num {
		return Scope{absent: true}
	}
	i, j := f.span()
	if f.err != nil {
		return Scope{absent: true}
	}
	m := Scope{at: f.end}
	f.pos, f.end = i, j
	f.next()
	return m
}

// Sealed enters a message that is always there and has a seal behind it.
func (f *Coder) Sealed(num protowire.Number, under Kind) Scope {
	if f.write {
		m := f.Message(num, true)
		m.under = under
		return m
	}
	if f.num != num {
		return Scope{absent: true}
	}
	i, j := f.span()
	if f.err != nil {
		return Scope{absent: true}
	}
	if _, err := under.Open(f.b[i:j]); err != nil {
		f.failWith(err)
		return Scope{absent: true}
	}
	m := Scope{at: f.end, under: under}
	f.pos, f.end = i, j-SealLen
	f.next()
	return m
}

// next reads the tag at pos.
func (f *Coder) next() {
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
		f.Fail("not a field of a protobuf message")
		return
	}
	f.num, f.typ = num, typ
	f.pos += n
}

// span returns where the bytes of a length-delimited field begin and end. The
// next field is not read yet.
func (f *Coder) span() (i, j int) {
	if f.typ != protowire.BytesType {
		f.Fail("wrong wire type")
		return 0, 0
	}
	n, size := protowire.ConsumeVarint(f.b[f.pos:f.end])
	if size < 0 || n > uint64(f.end-f.pos-size) {
		f.Fail("truncated")
		return 0, 0
	}
	if size != protowire.SizeVarint(n) {
		f.Fail("a length that has bytes to spare")
		return 0, 0
	}
	i = f.pos + size
	return i, i + int(n)
}

// Peek returns the bytes of the length-delimited field that is to be read, and
// stays before it.
func (f *Coder) Peek() []byte {
	i, j := f.span()
	return f.b[i:j]
}

// Skip goes on to the field behind a length-delimited one.
func (f *Coder) Skip() { f.bytesOf() }

// some returns the bytes of a field that is left out where it has none.
func (f *Coder) some() []byte {
	b := f.bytesOf()
	if len(b) == 0 && f.err == nil {
		f.Fail("an empty field that is to be left out")
	}
	return b
}

// bytesOf returns the bytes of a length-delimited field without copying them,
// and goes on to the next field.
func (f *Coder) bytesOf() []byte {
	i, j := f.span()
	if f.err != nil {
		return nil
	}
	f.pos = j
	f.next()
	return f.b[i:j]
}

// Run returns how many fields with that number follow each other, which is how
// many elements a list has that is read. It is what lets a list be allocated
// once, and never for more than is there.
func (f *Coder) Run(num protowire.Number, most int) int {
	if f.num != num || f.err != nil {
		return 0
	}
	n := f.run()
	if n > most {
		f.Fail(fmt.Sprintf("more than %d elements", most))
		return 0
	}
	return n
}

// run counts the fields with the present number that follow each other.
func (f *Coder) run() (n int) {
	for at := f.pos; ; {
		size := protowire.ConsumeFieldValue(f.num, f.typ, f.b[at:f.end])
		if size < 0 {
			f.Fail("truncated")
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
