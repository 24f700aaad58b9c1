package wire

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// The fast encoding writes and reads what the generated code does.

// fill sets fields of a message at random, or all of them; of a oneof the last
// one that is set counts.
func fill(r *rand.Rand, m protoreflect.Message, all bool, depth int) {
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		deep := fd.Kind() == protoreflect.MessageKind && depth == 0
		if deep || !all && r.IntN(2) == 0 {
			continue
		}
		switch {
		case fd.IsMap():
			for range 1 + r.IntN(3) {
				v := m.Mutable(fd).Map().NewValue()
				if fd.MapValue().Kind() == protoreflect.MessageKind {
					fill(r, v.Message(), all, depth-1)
				} else {
					v = scalar(r, fd.MapValue())
				}
				m.Mutable(fd).Map().Set(scalar(r, fd.MapKey()).MapKey(), v)
			}
		case fd.IsList():
			for range 1 + r.IntN(3) {
				list := m.Mutable(fd).List()
				if fd.Kind() == protoreflect.MessageKind {
					fill(r, list.AppendMutable().Message(), all, depth-1)
				} else {
					list.Append(scalar(r, fd))
				}
			}
		case fd.Kind() == protoreflect.MessageKind:
			fill(r, m.Mutable(fd).Message(), all, depth-1)
		case fd.HasPresence() && r.IntN(4) == 0:
			m.Set(fd, fd.Default()) // which says something, too
		default:
			m.Set(fd, scalar(r, fd))
		}
	}
}

// scalar returns a value that is not the zero one.
func scalar(r *rand.Rand, fd protoreflect.FieldDescriptor) protoreflect.Value {
	small := int64(1+r.IntN(200)) * []int64{1, -1, 1 << 20}[r.IntN(3)]
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(1 + r.IntN(3)))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(small))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(small << 20)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(small))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(small) / 3)
	}
	return protoreflect.ValueOfString([]string{"x", "Lisboa, amanhã", "01ARZ3NDEKTSV4RRFFQ69G5FAV", string(make([]byte, 200))}[r.IntN(4)])
}

// What is encoded by hand is what proto.Marshal would have made of it, in every
// field that there is.
func TestEncodesAsProtoDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		all := i == 0 // a field that is added to the message is in this one
		begin, end := &govnodev1.BeginCallRequest{}, &govnodev1.EndCallRequest{}
		fill(r, begin.ProtoReflect(), all, 4)
		fill(r, end.ProtoReflect(), all, 4)
		var b, e encoder
		b.begin(begin)
		e.end(end)
		require.False(t, b.bad || e.bad)
		gotBegin, gotEnd := &govnodev1.BeginCallRequest{}, &govnodev1.EndCallRequest{}
		require.NoError(t, proto.Unmarshal(b.raw, gotBegin))
		require.NoError(t, proto.Unmarshal(e.raw, gotEnd))
		require.True(t, proto.Equal(begin, gotBegin), "%v\n%v", begin, gotBegin)
		require.True(t, proto.Equal(end, gotEnd), "%v\n%v", end, gotEnd)
		require.Len(t, b.raw, proto.Size(begin), "and no longer")
		require.Len(t, e.raw, proto.Size(end))
	}
}

// What proto.Marshal refuses is not encoded by hand either.
func TestEncodesNoInvalidText(t *testing.T) {
	for name, r := range map[string]*govnodev1.BeginCallRequest{
		"session":        {SessionId: "\xff"},
		"tool":           {Tool: "\xff"},
		"pool":           {Pools: []*govnodev1.Want{{Pool: "\xff"}}},
		"metadata key":   {Metadata: map[string]string{"\xff": ""}},
		"metadata value": {Metadata: map[string]string{"": "\xff"}},
	} {
		_, err := proto.Marshal(r)
		require.Error(t, err, name)
		var e encoder
		e.begin(r)
		require.True(t, e.bad, name)
	}
}

// Frames of a packet are the operations that were put in, with their tags and
// with what was left of their time when they were sent.
func TestPacket(t *testing.T) {
	begin := &govnodev1.BeginCallRequest{SessionId: "s", CallId: "c", Tool: "t"}
	var b, e encoder
	b.begin(begin)
	e.end(&govnodev1.EndCallRequest{CallId: "d"})
	var p packet
	p.add(&Parcel{Kind: KindBegin, raw: b.raw}, 300, 2500*time.Millisecond)
	p.add(&Parcel{Kind: KindEnd, raw: e.raw}, 301, time.Millisecond)
	got := &govnodev1.ExchangeRequest{}
	require.NoError(t, proto.Unmarshal(p.raw, got))
	want := &govnodev1.ExchangeRequest{Frames: []*govnodev1.Operation{
		{Tag: 300, Op: &govnodev1.Operation_Begin{Begin: begin}, Timeout: durationpb.New(2500 * time.Millisecond)},
		{Tag: 301, Op: &govnodev1.Operation_End{End: &govnodev1.EndCallRequest{CallId: "d"}}, Timeout: durationpb.New(time.Millisecond)},
	}}
	require.True(t, proto.Equal(want, got), "%v", got)
}

// sameAsPlain holds what fast makes of a message to what plain does.
func sameAsPlain(t *testing.T, b []byte) (ok bool) {
	t.Helper()
	m := &govnodev1.ExchangeResponse{}
	wantErr := proto.Unmarshal(b, m)
	var got Inbox
	err := got.read(b)
	defer got.Free()
	require.Equal(t, wantErr == nil, err == nil, "%x: plain says %v, fast %v", b, wantErr, err)
	if err != nil {
		return false
	}
	want := inboxOf(m)
	require.Equal(t, want.MaxInFlight, got.MaxInFlight)
	require.Equal(t, want.GoAway, got.GoAway)
	require.Equal(t, want.Leader, got.Leader)
	require.True(t, slices.Equal(want.Apart, got.Apart))
	require.Len(t, got.Answers, len(want.Answers))
	for i, w := range want.Answers {
		sameAnswer(t, w, got.Answers[i])
	}
	return true
}

func sameAnswer(t *testing.T, want, got Answer) {
	t.Helper()
	require.Equal(t, want.Tag, got.Tag)
	require.Equal(t, want.Result, got.Result)
	if want.Result.Kind == 0 {
		return
	}
	inner := want.Body.message.ProtoReflect().New().Interface()
	require.NoError(t, proto.Unmarshal(got.Body.raw, inner))
	// NaN is not equal to itself: what is encoded is compared.
	encode := proto.MarshalOptions{Deterministic: true}
	wantRaw, err := encode.Marshal(want.Body.message)
	require.NoError(t, err)
	gotRaw, err := encode.Marshal(inner)
	require.NoError(t, err)
	require.Equal(t, wantRaw, gotRaw)
}

// An Inbox finds in a message what proto.Unmarshal finds, and fault with it where
// that does: for messages as they should be, with unknown fields, with fields
// twice, cut off, and with bytes changed.
func TestReadsAsProtoDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	read, refused := 0, 0
	for i := range 1500 {
		m := &govnodev1.ExchangeResponse{}
		fill(r, m.ProtoReflect(), i == 0, 5)
		m.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), "new"))
		b, err := proto.Marshal(m)
		require.NoError(t, err)
		require.True(t, sameAsPlain(t, b))
		require.True(t, sameAsPlain(t, append(b, b...)), "twice")
		for range 4 {
			c := append([]byte(nil), b...)
			for range 1 + r.IntN(3) {
				c[r.IntN(len(c))] = byte(r.IntN(256))
			}
			if r.IntN(4) == 0 {
				c = c[:r.IntN(len(c))]
			}
			if sameAsPlain(t, c) {
				read++
			} else {
				refused++
			}
		}
	}
	require.Greater(t, read, 500, "the test must have both")
	require.Greater(t, refused, 500)
}

// Of an answer that holds several results the last one counts; those of one
// kind come together.
func TestAnswerWithSeveralResults(t *testing.T) {
	result := func(m *govnodev1.OperationResult) []byte {
		b, err := proto.Marshal(m)
		require.NoError(t, err)
		return b
	}
	grant := func(outcome govnodev1.Outcome, ttl time.Duration) []byte {
		return result(&govnodev1.OperationResult{Result: &govnodev1.OperationResult_Begin{Begin: &govnodev1.BeginCallResponse{
			Outcome: outcome, Grants: []*govnodev1.Grant{{Pool: "p", Token: uint64(ttl), Ttl: durationpb.New(ttl)}},
		}}})
	}
	ended := result(&govnodev1.OperationResult{Tag: 7, Result: &govnodev1.OperationResult_End{End: &govnodev1.EndCallResponse{Reason: "r"}}})
	for name, parts := range map[string][][]byte{
		"begin, begin":      {grant(1, 2*time.Second), grant(0, time.Second)},
		"begin, end":        {grant(1, time.Second), ended},
		"end, begin":        {ended, grant(1, time.Second)},
		"begin, end, begin": {grant(1, time.Second), ended, grant(2, 3*time.Second)},
	} {
		var one, all []byte
		for _, p := range parts {
			one = append(one, p...)
		}
		all = protowire.AppendBytes(protowire.AppendTag(all, fieldAnswers, protowire.BytesType), one)
		require.True(t, sameAsPlain(t, all), name)
	}
}

// A shape also follows descriptors that this API has no example of.
func TestShapeOfPackedNumbers(t *testing.T) {
	m := &descriptorpb.SourceCodeInfo{Location: []*descriptorpb.SourceCodeInfo_Location{{Path: []int32{1, 300, -1}, LeadingComments: proto.String("c")}}}
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	s := shapeOf(m.ProtoReflect().Descriptor())
	r := rand.New(rand.NewPCG(5, 6))
	for range 5000 {
		c := append([]byte(nil), b...)
		c[r.IntN(len(c))] = byte(r.IntN(256))
		c = c[:len(c)-r.IntN(2)]
		require.Equal(t, proto.Unmarshal(c, m.ProtoReflect().New().Interface()) == nil, s.fits(c, deepest), "%x", c)
	}
}

// Messages that are nested without end are refused, and cost no stack.
func TestNestedWithoutEnd(t *testing.T) {
	s := shapeOf((&govnodev1.EndCallRequest{}).ProtoReflect().Descriptor().Fields().ByName("output").Message())
	within := func(field protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), b)
	}
	b := []byte{}
	for range deepest/2 - 1 { // a list in a list
		b = within(6, within(1, b))
	}
	require.True(t, s.fits(b, deepest))
	require.NoError(t, proto.Unmarshal(b, &structpb.Value{}))
	b = within(6, within(1, b))
	require.False(t, s.fits(b, deepest))
}

// A codec of streams takes nothing else.
func TestCodecTakesPacketsAndInboxes(t *testing.T) {
	_, err := packetCodec{}.Marshal(&govnodev1.ExchangeRequest{})
	require.Error(t, err)
	require.Error(t, packetCodec{}.Unmarshal(nil, &govnodev1.ExchangeResponse{}))
	require.True(t, errors.Is(packetCodec{}.Unmarshal([]byte{0xff}, &Inbox{}), errMalformed))
}

func FuzzInbox(f *testing.F) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 20 {
		m := &govnodev1.ExchangeResponse{}
		fill(r, m.ProtoReflect(), false, 4)
		b, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { sameAsPlain(t, b) })
}
