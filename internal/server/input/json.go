package input

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/fault"
)

// strictJSON is protojson that refuses what it does not know: a misspelt field
// that is ignored would be a limit or a lease that silently is not there. What
// it writes has all fields, also those that are false, 0 or empty, so that a
// reader need not know what a field that is not there means; only messages and
// optional fields that are not given are left out.
type strictJSON struct{ name string }

// jsonDepth bounds how deeply a request is nested: the arguments, and what
// stands around them. Each level of JSON is two or three of messages.
const jsonDepth = 512

// JSON reads and writes JSON under the name of a type of content.
func JSON(name string) connect.Codec { return strictJSON{name} }

func (c strictJSON) Name() string { return c.name }

func (c strictJSON) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("server: %T is no message", message)
	}
	return protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
}

func (c strictJSON) Unmarshal(b []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("server: %T is no message", message)
	}
	if len(b) == 0 {
		return unread("request", "the body is empty; send a JSON object, {} for none of the fields")
	}
	if err := readJSON(b, m); err != nil {
		return explainJSON(b, m.ProtoReflect().Descriptor(), err)
	}
	return nil
}

func readJSON(b []byte, m proto.Message) error {
	return protojson.UnmarshalOptions{RecursionLimit: jsonDepth}.Unmarshal(b, m)
}

func unread(field, text string) *fault.Unread { return &fault.Unread{Field: field, Text: text} }

// explainJSON says which field it is that protojson did not read, and what it
// must be. It gives protojson each field alone, so that there is one opinion of
// what is right.
func explainJSON(b []byte, d protoreflect.MessageDescriptor, err error) error {
	if strings.Contains(err.Error(), "recursion depth") { // it has no other mark
		return unread("request", "is nested too deeply; put less into one another")
	}
	if !json.Valid(b) {
		var at *json.SyntaxError
		if e := json.Unmarshal(b, new(any)); errors.As(e, &at) {
			return unread("request", fmt.Sprintf("is no JSON: %s at byte %d", quote(at.Error()), at.Offset))
		}
	}
	if found := wrongIn(b, d, ""); found != nil {
		return found
	}
	return unread("request", quote(protoWords.ReplaceAllString(err.Error(), "")))
}

// protoWords stand before what protojson has to say. Its spaces vary on purpose.
var protoWords = regexp.MustCompile(`^proto:\s+(\(line [0-9:]+\):\s+)?`)

// quote shortens what may hold what the caller sent.
func quote(text string) string { return Clip(engine.Redact(text), 200) }

// wrongIn returns the first field of an object that protojson does not read.
func wrongIn(b []byte, d protoreflect.MessageDescriptor, path string) *fault.Unread {
	var object map[string]json.RawMessage
	if json.Unmarshal(b, &object) != nil {
		return unread(orRequest(path), "is "+shown(b)+"; it must be an object")
	}
	for name, raw := range Sorted(object) {
		fd := d.Fields().ByJSONName(name)
		if fd == nil {
			fd = d.Fields().ByTextName(name)
		}
		if fd == nil {
			return unread(orRequest(path), fmt.Sprintf("has no field %q; it may have %s", Clip(engine.Redact(name), 40), namesOf(d)))
		}
		if readsAlone(d, name, raw) {
			continue
		}
		return wrongField(d, fd, name, raw, join(path, fd.JSONName()))
	}
	return nil // each alone is right: two exclude each other, or one is there twice
}

// readsAlone reports whether protojson reads a message with that field alone.
func readsAlone(d protoreflect.MessageDescriptor, name string, raw []byte) bool {
	b := append(strconv.AppendQuote([]byte("{"), name), ':')
	return readJSON(append(append(b, raw...), '}'), dynamicpb.NewMessage(d)) == nil
}

// wrongField says what is wrong with a field, or with what is in it.
func wrongField(d protoreflect.MessageDescriptor, fd protoreflect.FieldDescriptor, name string, raw []byte, path string) *fault.Unread {
	var list []json.RawMessage
	var object map[string]json.RawMessage
	switch {
	case fd.IsList():
		if json.Unmarshal(raw, &list) != nil {
			return unread(path, "is "+shown(raw)+"; it must be a list")
		}
		for i, item := range list {
			if !readsAlone(d, name, slices.Concat([]byte("["), item, []byte("]"))) {
				return wrongValue(fd, item, path+"["+strconv.Itoa(i)+"]")
			}
		}
	case fd.IsMap():
		if json.Unmarshal(raw, &object) != nil {
			return unread(path, "is "+shown(raw)+"; it must be an object")
		}
		for key, item := range Sorted(object) {
			quoted := strconv.Quote(key)
			if !readsAlone(d, name, slices.Concat([]byte("{"), []byte(quoted), []byte(":"), item, []byte("}"))) {
				return wrongValue(fd.MapValue(), item, path+"["+strconv.Quote(Clip(key, 40))+"]")
			}
		}
	}
	return wrongValue(fd, raw, path)
}

// wrongValue says what a value must be, or what is wrong in it.
func wrongValue(fd protoreflect.FieldDescriptor, raw []byte, path string) *fault.Unread {
	if m := fd.Message(); m != nil && m.ParentFile().Package() != "google.protobuf" {
		if found := wrongIn(raw, m, path); found != nil {
			return found
		}
	}
	return unread(path, "is "+shown(raw)+"; it must be "+wanted(fd))
}

// wanted says what the values of a field are in JSON.
func wanted(fd protoreflect.FieldDescriptor) string {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return "a whole number from -2147483648 to 2147483647"
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return "a whole number from 0 to 4294967295"
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return "a whole number from 0 on"
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return "a whole number"
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return "a number"
	case protoreflect.StringKind:
		return "a text"
	case protoreflect.BytesKind:
		return "a text in base64"
	case protoreflect.EnumKind:
		return "one of " + strings.Join(valuesOf(fd.Enum()), ", ")
	}
	switch fd.Message().FullName() {
	case "google.protobuf.Duration":
		return `a duration in seconds, such as "1.5s"`
	case "google.protobuf.Value":
		return "a value of JSON, not nested too deeply"
	}
	return "an object"
}

// valuesOf names the values of an enum that can be meant.
func valuesOf(d protoreflect.EnumDescriptor) (names []string) {
	for i := range d.Values().Len() {
		if v := d.Values().Get(i); v.Number() != 0 {
			names = append(names, string(v.Name()))
		}
	}
	return names
}

func namesOf(d protoreflect.MessageDescriptor) string {
	names := make([]string, d.Fields().Len())
	for i := range names {
		names[i] = d.Fields().Get(i).JSONName()
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// shown says what a value is. A text may be a secret, and what is said of it gets into
// logs of callers.
func shown(raw []byte) string {
	raw = bytes.TrimSpace(raw)
	switch raw[0] {
	case '"':
		return "a text"
	case '{':
		return "an object"
	case '[':
		return "a list"
	}
	return Clip(string(raw), 40)
}

func orRequest(path string) string {
	if path == "" {
		return "request"
	}
	return path
}

func join(path, field string) string {
	if path == "" || field == "" {
		return path + field
	}
	return path + "." + field
}
