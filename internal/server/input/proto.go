package input

import (
	"fmt"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"example.com/govnode/internal/server/fault"
)

// strictProto is protobuf that refuses what it does not know, as strictJSON does: a
// field of another number or of another type would be a limit that silently is not there.
type strictProto struct{}

// Proto reads and writes protobuf.
func Proto() connect.Codec { return strictProto{} }

func (strictProto) Name() string { return "proto" }

func (strictProto) Marshal(message any) ([]byte, error) {
	return strictProto{}.MarshalAppend(nil, message)
}

// MarshalAppend is what connect asks for where it has a buffer.
func (strictProto) MarshalAppend(to []byte, message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("server: %T is no message", message)
	}
	return proto.MarshalOptions{}.MarshalAppend(to, m)
}

// protoOptions bound how deeply a request is nested, as in JSON.
var protoOptions = proto.UnmarshalOptions{RecursionLimit: jsonDepth}

func (strictProto) Unmarshal(b []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("server: %T is no message", message)
	}
	if err := protoOptions.Unmarshal(b, m); err != nil {
		return unread("request", "is no message in protobuf, or nested too deeply: "+quote(protoWords.ReplaceAllString(err.Error(), "")))
	}
	if wrong := shapeOf(m.ProtoReflect().Descriptor()).unknownIn(b); wrong != nil {
		wrong.Field = orRequest(wrong.Field)
		return wrong
	}
	return nil
}

// A shape is how the fields of a message are written, by their numbers. That of requests
// is read from the bytes, since looking for what a message has kept as unknown costs as
// much as to read it. So nothing is missed that reading drops, as in the entries of maps
// and in what a later field of the same oneof replaces.
type shape []field

// A field of no wire types is none.
type field struct {
	types uint8  // a bit for each in which it may be written
	in    *shape // of the message that it is
	is    protoreflect.FieldDescriptor
}

// shapes are those of requests, by their descriptors.
var shapes sync.Map

func shapeOf(d protoreflect.MessageDescriptor) *shape {
	if known, ok := shapes.Load(d); ok {
		return known.(*shape)
	}
	s := newShape(d, map[protoreflect.FullName]*shape{})
	shapes.Store(d, s)
	return s
}

// newShape makes a shape, and those of the messages in it, which may be in one another.
func newShape(d protoreflect.MessageDescriptor, made map[protoreflect.FullName]*shape) *shape {
	if s := made[d.FullName()]; s != nil {
		return s
	}
	s := &shape{}
	made[d.FullName()] = s
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		f := field{types: 1 << wireTypes[fd.Kind()], is: fd}
		if fd.IsList() && wireTypes[fd.Kind()] != protowire.BytesType { // packed or not
			f.types |= 1 << protowire.BytesType
		}
		if fd.Message() != nil {
			f.in = newShape(fd.Message(), made)
		}
		if n := int(fd.Number()); n >= len(*s) {
			*s = append(*s, make(shape, n+1-len(*s))...)
		}
		(*s)[fd.Number()] = f
	}
	return s
}

var wireTypes = map[protoreflect.Kind]protowire.Type{
	protoreflect.BoolKind: protowire.VarintType, protoreflect.EnumKind: protowire.VarintType,
	protoreflect.Int32Kind: protowire.VarintType, protoreflect.Sint32Kind: protowire.VarintType, protoreflect.Uint32Kind: protowire.VarintType,
	protoreflect.Int64Kind: protowire.VarintType, protoreflect.Sint64Kind: protowire.VarintType, protoreflect.Uint64Kind: protowire.VarintType,
	protoreflect.Fixed32Kind: protowire.Fixed32Type, protoreflect.Sfixed32Kind: protowire.Fixed32Type, protoreflect.FloatKind: protowire.Fixed32Type,
	protoreflect.Fixed64Kind: protowire.Fixed64Type, protoreflect.Sfixed64Kind: protowire.Fixed64Type, protoreflect.DoubleKind: protowire.Fixed64Type,
	protoreflect.StringKind: protowire.BytesType, protoreflect.BytesKind: protowire.BytesType, protoreflect.MessageKind: protowire.BytesType,
	protoreflect.GroupKind: protowire.StartGroupType,
}

// unknownIn returns a field that a message has not, or that is of another type; nil if
// there is none. It makes nothing while there is none: every request comes by here.
func (s *shape) unknownIn(message []byte) *fault.Unread {
	for b := message; len(b) > 0; {
		n, t, size := protowire.ConsumeTag(b)
		if size < 0 {
			return unread("", "is no message in protobuf")
		}
		if int(n) >= len(*s) || (*s)[n].types == 0 {
			return unread("", fmt.Sprintf("has no field with the number %d", n))
		}
		f, held := &(*s)[n], b[size:]
		if f.types>>t&1 == 0 {
			return unread(nameOf(f.is), "is of another type; it must be "+wantedOf(f.is))
		}
		if f.in != nil && t == protowire.BytesType {
			inner, size := protowire.ConsumeBytes(held)
			if size < 0 {
				return unread("", "is no message in protobuf")
			}
			if wrong := f.in.unknownIn(inner); wrong != nil {
				wrong.Field = join(f.at(message[:len(message)-len(b)], inner), wrong.Field)
				return wrong
			}
			b = held[size:]
			continue
		}
		if size = protowire.ConsumeFieldValue(n, t, held); size < 0 {
			return unread("", "is no message in protobuf")
		}
		b = held[size:]
	}
	return nil
}

// at says where a message is that such a field has, behind what was written before.
func (f *field) at(before, inner []byte) string {
	name := nameOf(f.is)
	switch {
	case f.is.IsMap():
		return fmt.Sprintf("%s[%q]", name, Clip(keyOf(inner), 40))
	case f.is.IsList():
		i := 0
		for b := before; len(b) > 0; {
			n, _, size := protowire.ConsumeField(b)
			if n == f.is.Number() {
				i++
			}
			b = b[size:]
		}
		return fmt.Sprintf("%s[%d]", name, i)
	}
	return name
}

// keyOf returns the key of an entry of a map.
func keyOf(entry []byte) (key string) {
	for b := entry; len(b) > 0; {
		n, t, size := protowire.ConsumeField(b)
		if size < 0 {
			break
		}
		if _, _, tag := protowire.ConsumeTag(b); n == 1 && t == protowire.BytesType {
			text, _ := protowire.ConsumeBytes(b[tag:])
			key = string(text)
		}
		b = b[size:]
	}
	return key
}

// nameOf is what a field is called. The two of an entry of a map have no names: they are
// called by their key.
func nameOf(fd protoreflect.FieldDescriptor) string {
	if fd.ContainingMessage().IsMapEntry() {
		return ""
	}
	return fd.JSONName()
}

func wantedOf(fd protoreflect.FieldDescriptor) string {
	switch {
	case fd.IsList():
		return "a list"
	case fd.IsMap():
		return "an object"
	}
	return wanted(fd)
}
