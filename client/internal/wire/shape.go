package wire

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A shape is what must be right in a message of one type for proto.Unmarshal to
// read it. It follows the type's descriptor, fields that are added later
// included, and finds fault where proto.Unmarshal does, so that what is decoded
// when somebody asks for it cannot turn out to be malformed by then.
type shape struct {
	fields []shapeField // by number
}

// deepest is how deeply messages may be nested: well below what proto.Unmarshal
// allows, so that it reads whatever fits.
const deepest = protowire.DefaultRecursionLimit / 2

// A shapeField is a field whose value is a run of bytes. Others are well-formed
// whenever their wire format is.
type shapeField struct {
	text     bool   // which must be UTF-8
	message  *shape // of what is inside; nil for a scalar
	packable bool   // many numbers may stand in it
	wire     protowire.Type
}

func shapeOf(d protoreflect.MessageDescriptor) *shape {
	return shapeWithin(d, make(map[protoreflect.FullName]*shape))
}

// shapeWithin knows the shapes that were made before, since types may contain
// themselves.
func shapeWithin(d protoreflect.MessageDescriptor, made map[protoreflect.FullName]*shape) *shape {
	if s := made[d.FullName()]; s != nil {
		return s
	}
	s := &shape{}
	made[d.FullName()] = s
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		for len(s.fields) <= int(fd.Number()) {
			s.fields = append(s.fields, shapeField{})
		}
		f := &s.fields[fd.Number()]
		switch kind := fd.Kind(); kind {
		case protoreflect.MessageKind:
			f.message = shapeWithin(fd.Message(), made)
		case protoreflect.StringKind:
			f.text = fd.Syntax() == protoreflect.Proto3
		case protoreflect.BytesKind:
		default:
			f.packable, f.wire = fd.IsList(), wireOf(kind)
		}
	}
	return s
}

func wireOf(kind protoreflect.Kind) protowire.Type {
	switch kind {
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	}
	return protowire.VarintType
}

// fits reports whether a message is well-formed.
func (s *shape) fits(b []byte, depth int) bool {
	if depth == 0 {
		return false
	}
	for len(b) > 0 {
		field, wire, n := tagOf(b)
		if n < 0 || field > protowire.MaxValidNumber {
			return false
		}
		b = b[n:]
		if wire != protowire.BytesType || int(field) >= len(s.fields) {
			if n = protowire.ConsumeFieldValue(field, wire, b); n < 0 {
				return false
			}
			b = b[n:]
			continue
		}
		v, n := bytesOf(b)
		if n < 0 || !s.fields[field].fits(v, depth) {
			return false
		}
		b = b[n:]
	}
	return true
}

func (f *shapeField) fits(b []byte, depth int) bool {
	switch {
	case f.message != nil:
		return f.message.fits(b, depth-1)
	case f.text:
		return utf8.Valid(b)
	case f.packable:
		for len(b) > 0 {
			n := protowire.ConsumeFieldValue(1, f.wire, b)
			if n < 0 {
				return false
			}
			b = b[n:]
		}
	}
	return true
}

// A fieldValue is a field of a message and its value.
type fieldValue struct {
	field  protowire.Number
	wire   protowire.Type
	number uint64 // of a varint
	bytes  []byte // of what has a length
}

func (v *fieldValue) is(field protowire.Number, wire protowire.Type) bool {
	return v.field == field && v.wire == wire
}

// nextField takes the first field off a message that is well-formed.
func nextField(b []byte) (v fieldValue, rest []byte) {
	field, wire, n := tagOf(b)
	v.field, v.wire = field, wire
	b = b[n:]
	switch wire {
	case protowire.VarintType:
		v.number, n = protowire.ConsumeVarint(b)
	case protowire.BytesType:
		v.bytes, n = bytesOf(b)
	default:
		n = protowire.ConsumeFieldValue(field, wire, b)
	}
	return v, b[n:]
}

// tagOf is protowire.ConsumeTag, for what is not empty, and bytesOf is
// protowire.ConsumeBytes. Nearly all tags and lengths are of one byte.
func tagOf(b []byte) (protowire.Number, protowire.Type, int) {
	if 1<<3 <= b[0] && b[0] < 1<<7 {
		return protowire.Number(b[0] >> 3), protowire.Type(b[0] & 7), 1
	}
	return protowire.ConsumeTag(b)
}

func bytesOf(b []byte) ([]byte, int) {
	if len(b) > 0 && b[0] < 1<<7 && int(b[0]) < len(b) {
		n := 1 + int(b[0])
		return b[1:n], n
	}
	return protowire.ConsumeBytes(b)
}
