package input

import (
	"fmt"
	"slices"
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
	if wrong := unknownIn(m.ProtoReflect()); wrong != nil {
		wrong.Field = orRequest(wrong.Field)
		return wrong
	}
	return nil
}

// unknownIn returns a field that a message has not, or that is of another type; nil if
// there is none. It makes nothing while there is none: every request comes by here.
func unknownIn(m protoreflect.Message) *fault.Unread {
	if b := m.GetUnknown(); len(b) > 0 {
		n, _, _ := protowire.ConsumeTag(b)
		if fd := m.Descriptor().Fields().ByNumber(n); fd != nil {
			return unread(fd.JSONName(), "is of another type; it must be "+wantedOf(fd))
		}
		return unread("", fmt.Sprintf("has no field with the number %d", n))
	}
	in := messagesIn(m.Descriptor())
	for _, fd := range in.fields {
		if m.Has(fd) {
			if wrong := unknownUnder(m, fd); wrong != nil {
				return wrong
			}
		}
	}
	for _, of := range in.oneofs {
		if fd := m.WhichOneof(of); fd != nil && fd.Message() != nil {
			if wrong := unknownUnder(m, fd); wrong != nil {
				return wrong
			}
		}
	}
	return nil
}

// unknownUnder is unknownIn for what a field holds.
func unknownUnder(m protoreflect.Message, fd protoreflect.FieldDescriptor) *fault.Unread {
	switch {
	case fd.IsList():
		list := m.Get(fd).List()
		for i := range list.Len() {
			if wrong := unknownIn(list.Get(i).Message()); wrong != nil {
				return under(fmt.Sprintf("%s[%d]", fd.JSONName(), i), wrong)
			}
		}
		return nil
	case fd.IsMap():
		return unknownInMap(m, fd)
	}
	return under(fd.JSONName(), unknownIn(m.Get(fd).Message()))
}

func unknownInMap(m protoreflect.Message, fd protoreflect.FieldDescriptor) (wrong *fault.Unread) {
	m.Get(fd).Map().Range(func(k protoreflect.MapKey, item protoreflect.Value) bool {
		if wrong = unknownIn(item.Message()); wrong != nil {
			wrong = under(fmt.Sprintf("%s[%q]", fd.JSONName(), Clip(k.String(), 40)), wrong)
		}
		return wrong == nil
	})
	return wrong
}

// under says where a field is that is wrong, if one is.
func under(at string, wrong *fault.Unread) *fault.Unread {
	if wrong != nil {
		wrong.Field = join(at, wrong.Field)
	}
	return wrong
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

// A shape is where the messages are that a message may hold.
type shape struct {
	fields []protoreflect.FieldDescriptor // of no oneof
	oneofs []protoreflect.OneofDescriptor
}

var shapes sync.Map // of protoreflect.MessageDescriptor to *shape

func messagesIn(d protoreflect.MessageDescriptor) *shape {
	if known, ok := shapes.Load(d); ok {
		return known.(*shape)
	}
	s := &shape{}
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		of := fd.ContainingOneof()
		switch {
		case fd.IsMap() && fd.MapValue().Message() == nil, !fd.IsMap() && fd.Message() == nil:
		case of == nil || of.IsSynthetic():
			s.fields = append(s.fields, fd)
		case !slices.Contains(s.oneofs, of):
			s.oneofs = append(s.oneofs, of)
		}
	}
	shapes.Store(d, s)
	return s
}
