package input

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
)

// A raw message is written field by field.
type raw []byte

func (r raw) message(n protowire.Number, in raw) raw {
	return protowire.AppendBytes(protowire.AppendTag(r, n, protowire.BytesType), in)
}

func (r raw) text(n protowire.Number, text string) raw { return r.message(n, raw(text)) }

func (r raw) number(n protowire.Number, v uint64) raw {
	return protowire.AppendVarint(protowire.AppendTag(r, n, protowire.VarintType), v)
}

// What reading would drop without a word is refused: the value of an entry of a map in
// another type, a third field beside key and value, what a later field of the same oneof
// replaces, a group.
func TestNothingIsDropped(t *testing.T) {
	for _, tt := range []struct {
		name, field, text string
		to                proto.Message
		sent              raw
	}{
		{"value of an entry", `metadata["k"]`, "is of another type; it must be a text", &v1.BeginCallRequest{}, raw{}.message(16, raw{}.text(1, "k").number(2, 5))},
		{"value before its key", `metadata["k"]`, "is of another type; it must be a text", &v1.BeginCallRequest{}, raw{}.message(16, raw{}.number(2, 5).text(1, "k"))},
		{"beside key and value", `metadata["k"]`, "has no field with the number 3", &v1.BeginCallRequest{}, raw{}.message(16, raw{}.text(1, "k").text(2, "v").number(3, 5))},
		{"second of a list", "pools[1]", "has no field with the number 9", &v1.BeginCallRequest{}, raw{}.message(7, raw{}.text(1, "a")).text(1, "s").message(7, raw{}.number(9, 1))},
		{"deep in the arguments", `arguments.fields["a"].listValue.values[1].structValue.fields["b"]`, "has no field with the number 9", &v1.BeginCallRequest{},
			raw{}.message(5, structOf("a", raw{}.message(6, raw{}.message(1, raw{}.number(4, 1)).message(1, raw{}.message(5, structOf("b", raw{}.number(9, 1)))))))},
		{"replaced in its oneof", "begin", "has no field with the number 99", &v1.Operation{}, raw{}.message(2, raw{}.number(99, 1)).message(3, raw{}.text(1, "s"))},
		{"a group", "pools", "is of another type; it must be a list", &v1.BeginCallRequest{},
			protowire.AppendTag(protowire.AppendTag(nil, 7, protowire.StartGroupType), 7, protowire.EndGroupType)},
		{"at the top", "request", "has no field with the number 536870911", &v1.BeginCallRequest{}, raw{}.number(536870911, 1)},
	} {
		err := strictProto{}.Unmarshal(tt.sent, tt.to)
		var wrong *fault.Unread
		require.ErrorAs(t, err, &wrong, tt.name)
		require.Equal(t, tt.field, wrong.Field, tt.name)
		require.Equal(t, tt.text, wrong.Text, tt.name)
	}
}

// structOf is a Struct with one field.
func structOf(key string, v raw) raw { return raw{}.message(1, raw{}.text(1, key).message(2, v)) }

func call() *v1.BeginCallRequest {
	arguments, err := structpb.NewStruct(map[string]any{"a": []any{1.5, "x", true, nil, map[string]any{"b": ""}}})
	if err != nil {
		panic(err)
	}
	return &v1.BeginCallRequest{
		SessionId: "s", CallId: "c", Tool: "t", Kind: v1.Kind_KIND_TOOL, Ttl: durationpb.New(1500), Tokens: 7,
		Pools: []*v1.Want{{Pool: "p", Weight: 2}, {}}, Arguments: arguments, Metadata: map[string]string{"k": "v", "": ""},
	}
}

// What is known is let in.
func TestWhatIsKnownIsLetIn(t *testing.T) {
	b, err := proto.Marshal(&v1.Operation{Tag: 1, Op: &v1.Operation_Begin{Begin: call()}})
	require.NoError(t, err)
	got := &v1.Operation{}
	require.NoError(t, strictProto{}.Unmarshal(b, got))
	require.True(t, proto.Equal(call(), got.GetBegin()))
}

// What is let in has kept nothing unknown, whatever was sent.
func FuzzStrictProto(f *testing.F) {
	b, err := proto.Marshal(&v1.BatchCallsRequest{Operations: []*v1.Operation{{Tag: 1, Op: &v1.Operation_Begin{Begin: call()}}}})
	require.NoError(f, err)
	f.Add(b)
	f.Add([]byte(raw{}.message(1, raw{}.message(2, raw{}.number(99, 1)).message(3, raw{}.text(1, "s")))))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &v1.BatchCallsRequest{}
		if (strictProto{}).Unmarshal(b, m) == nil {
			require.False(t, keepsUnknown(m.ProtoReflect()))
		}
	})
}

func keepsUnknown(m protoreflect.Message) (kept bool) {
	kept = len(m.GetUnknown()) > 0
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap() && fd.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, item protoreflect.Value) bool {
				kept = kept || keepsUnknown(item.Message())
				return true
			})
		case fd.IsMap() || fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				kept = kept || keepsUnknown(v.List().Get(i).Message())
			}
		default:
			kept = kept || keepsUnknown(v.Message())
		}
		return true
	})
	return kept
}

// What a frame of a stream costs to be read: by protobuf alone, and so that what it does
// not know is refused.
func BenchmarkProto(b *testing.B) {
	frame := &v1.BatchCallsRequest{}
	for range 32 {
		frame.Operations = append(frame.Operations,
			&v1.Operation{Tag: 1, Op: &v1.Operation_Begin{Begin: &v1.BeginCallRequest{SessionId: "bench-0001", CallId: "01J0000000000000000000000", Tool: "search", Pools: []*v1.Want{{Pool: "p"}}, Ttl: durationpb.New(30e9)}}},
			&v1.Operation{Tag: 2, Op: &v1.Operation_End{End: &v1.EndCallRequest{SessionId: "bench-0001", CallId: "01J0000000000000000000000", Status: v1.Status_STATUS_SUCCEEDED}}})
	}
	sent, err := proto.Marshal(frame)
	require.NoError(b, err)
	for name, read := range map[string]func([]byte, *v1.BatchCallsRequest) error{
		"alone":  func(b []byte, m *v1.BatchCallsRequest) error { return proto.Unmarshal(b, m) },
		"strict": func(b []byte, m *v1.BatchCallsRequest) error { return strictProto{}.Unmarshal(b, m) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := read(sent, &v1.BatchCallsRequest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
