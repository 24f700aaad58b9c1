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
	for _, fd := range messagesIn(m.Descriptor()) {
		if !m.Has(fd) {
			continue
		}
		var wrong *fault.Unread
		at, v := "", m.Get(fd)
		switch {
		case fd.IsList():
			for i := 0; i < v.List().Len() && wrong == nil; i++ {
				if wrong = unknownIn(v.List().Get(i).Message()); wrong != nil {
					at = fmt.Sprintf("[%d]", i)
				}
			}
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, item protoreflect.Value) bool {
				if wrong = unknownIn(item.Message()); wrong != nil {
					at = fmt.Sprintf("[%q]", Clip(k.String(), 40))
				}
				return wrong == nil
			})
		default:
			wrong = unknownIn(v.Message())
		}
		if wrong != nil {
			wrong.Field = join(fd.JSONName()+at, wrong.Field)
			return wrong
		}
	}
	return nil
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

var messages sync.Map // of protoreflect.FullName to []protoreflect.FieldDescriptor

// messagesIn are the fields of a message that hold messages.
func messagesIn(d protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	if all, ok := messages.Load(d.FullName()); ok {
		return all.([]protoreflect.FieldDescriptor)
	}
	var all []protoreflect.FieldDescriptor
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		if fd.IsMap() && fd.MapValue().Message() != nil || !fd.IsMap() && fd.Message() != nil {
			all = append(all, fd)
		}
	}
	messages.Store(d.FullName(), all)
	return all
}
