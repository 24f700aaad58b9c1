package session

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unique"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"example.com/govnode/limiter"
	"example.com/govnode/session/approval"
	"example.com/govnode/session/ids"
	"example.com/govnode/session/wire"
)

// The oracle of the encoding is generated code: toProto copies a value into the
// message of log.proto field by field, by name. It fails where a field of one
// side has no field of the other, so that nothing can be forgotten.
func toProto(t testing.TB, from reflect.Value, m protoreflect.Message) {
	t.Helper()
	fields := map[string]reflect.Value{}
	gather(from, m.Descriptor(), fields)
	list := m.Descriptor().Fields()
	for i := range list.Len() {
		fd := list.Get(i)
		name := strings.ReplaceAll(string(fd.Name()), "_", "")
		v, ok := fields[name]
		require.True(t, ok, "%s has a field %s, %s has none", m.Descriptor().FullName(), fd.Name(), from.Type())
		delete(fields, name)
		setField(t, m, fd, v)
	}
	for name := range fields {
		require.Fail(t, "not encoded", "%s.%s", from.Type(), name)
	}
}

// gather collects the exported fields of a struct, and those of structs in it
// that have no message of their own.
func gather(from reflect.Value, d protoreflect.MessageDescriptor, into map[string]reflect.Value) {
	for i := range from.NumField() {
		f := from.Type().Field(i)
		if !f.IsExported() || f.Type == reflect.TypeFor[Authorized]() { // which stands beside the command
			continue
		}
		name := strings.ToLower(f.Name)
		if f.Name == "CallKind" {
			name = "kind"
		}
		if f.Type.Kind() == reflect.Struct && (f.Anonymous || f.Type == reflect.TypeFor[Verdict]()) {
			gather(from.Field(i), d, into)
			continue
		}
		into[name] = from.Field(i)
	}
}

func setField(t testing.TB, m protoreflect.Message, fd protoreflect.FieldDescriptor, v reflect.Value) {
	if finished, ok := v.Interface().(ids.Set); ok {
		// Its bytes are tested in package ids.
		f := wire.NewWriter(nil)
		for s := f.Top(); f.Visit(&s); {
			finished.Field(&f, fd.Number())
		}
		require.NoError(t, proto.UnmarshalOptions{Merge: true}.Unmarshal(f.Bytes(), m.Interface()))
		return
	}
	if fd.IsList() {
		list := m.Mutable(fd).List()
		for i := range v.Len() {
			if fd.Kind() == protoreflect.MessageKind {
				toProto(t, v.Index(i), list.AppendMutable().Message())
			} else {
				list.Append(scalar(t, fd, v.Index(i)))
			}
		}
		return
	}
	if fd.Kind() != protoreflect.MessageKind {
		if x := scalar(t, fd, v); x.IsValid() {
			m.Set(fd, x)
		}
		return
	}
	if v.Kind() == reflect.Pointer {
		if !v.IsNil() {
			toProto(t, v.Elem(), m.Mutable(fd).Message())
		}
	} else if !v.Comparable() || !v.IsZero() { // see codec.limits
		toProto(t, v, m.Mutable(fd).Message())
	}
}

func scalar(t testing.TB, fd protoreflect.FieldDescriptor, v reflect.Value) protoreflect.Value {
	switch x := v.Interface().(type) {
	case Digest:
		if x == (Digest{}) {
			return protoreflect.Value{}
		}
		return protoreflect.ValueOfBytes(x[:])
	case Principal:
		return scalar(t, fd, reflect.ValueOf(Fingerprint(x)))
	case Fingerprint:
		var n uint64
		for i, b := range x {
			n |= uint64(b) << (8 * i)
		}
		return protoreflect.ValueOfUint64(n)
	case unique.Handle[string]:
		return protoreflect.ValueOfString(x.Value())
	case []byte:
		return protoreflect.ValueOfBytes(x)
	}
	switch fd.Kind() {
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(v.Uint()))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(v.Bool())
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(v.String())
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(v.Uint()))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(v.Uint())
	case protoreflect.Int32Kind, protoreflect.Sint32Kind:
		return protoreflect.ValueOfInt32(int32(v.Int()))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind:
		return protoreflect.ValueOfInt64(v.Int())
	}
	require.Fail(t, "no conversion", "%s", fd.FullName())
	return protoreflect.Value{}
}

// oneof returns the message whose only oneof holds v, by the name of its type.
func oneof(t testing.TB, v any, m proto.Message) proto.Message {
	t.Helper()
	from := reflect.ValueOf(v).Elem()
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if fd := fields.Get(i); string(fd.Message().Name()) == from.Type().Name() {
			toProto(t, from, m.ProtoReflect().Mutable(fd).Message())
			if c, ok := v.(Command); ok && c.Authority() != nil {
				toProto(t, reflect.ValueOf(c.Authority()).Elem(), m.ProtoReflect().Mutable(fields.ByName("authority")).Message())
			}
			return m
		}
	}
	require.Fail(t, "no message", "%T", v)
	return nil
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	if b == nil {
		b = []byte{}
	}
	return b
}

// A filler fills structs with random values, a third of them zero.
type filler struct{ *rand.Rand }

func newFiller(seed uint64) filler { return filler{rand.New(rand.NewPCG(seed, 7))} }

func (f filler) fill(v reflect.Value) {
	if f.IntN(3) == 0 && v.Kind() != reflect.Struct && v.Type() != reflect.TypeFor[*Pin]() {
		if _, ok := v.Interface().(unique.Handle[string]); !ok {
			return
		}
	}
	switch v.Interface().(type) {
	case unique.Handle[string]:
		v.Set(reflect.ValueOf(unique.Make(f.text())))
		return
	case ids.Set:
		v.Set(reflect.ValueOf(f.ids()))
		return
	case CallKind:
		v.SetUint(f.Uint64N(uint64(Sampling) + 1))
		return
	case Status:
		v.SetUint(f.Uint64N(uint64(Cancelled) + 1))
		return
	case Fact:
		v.SetUint(f.Uint64N(uint64(FactElapsed) + 1))
		return
	case Phase:
		v.SetUint(f.Uint64N(uint64(PhaseExpired) + 1))
		return
	case SignalKind:
		v.SetUint(f.Uint64N(uint64(Kill) + 1))
		return
	case Scope:
		v.SetUint(f.Uint64N(uint64(OfSession) + 1))
		return
	case approval.State:
		v.SetUint(f.Uint64N(uint64(approval.Cancelled) + 1))
		return
	case Refusal:
		v.SetUint(f.Uint64N(uint64(RefusedOtherThing) + 1))
		return
	case Code:
		v.SetUint(f.Uint64N(uint64(numCodes)))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				f.fill(v.Field(i))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case reflect.Slice:
		n := 1 + f.IntN(5)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			f.fill(v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).SetUint(f.Uint64N(256))
		}
	case reflect.String:
		v.SetString(f.text())
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		n := []int64{1, -1, 127, 128, 1 << 20, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64, f.Int64()}
		v.SetInt(n[f.IntN(len(n))]) // cut to the size of the field
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(f.Uint64() >> f.IntN(64))
	}
}

func (f filler) text() string {
	return strings.Repeat("ä1:", f.IntN(60)/(1+f.IntN(20)))
}

func (f filler) ids() ids.Set {
	var m ids.Set
	n := []int{0, 1, 7, 8, 9, 40, ids.MaxRemembered + 200}[f.IntN(7)]
	if f.IntN(3) == 0 {
		m = ids.Forgotten(f.Uint64() >> 20)
	}
	for range n {
		m.Add(ids.New(fmt.Sprint(f.Uint64()), [8]byte{}, uint8(f.UintN(uint(numCodes))), uint16(f.UintN(MaxRule)), f.Uint64()))
	}
	return m.Detach() // without what is derived, and never in the bytes
}

// allCommands returns one empty command of each kind.
func allCommands() (all []Command) {
	for kind := protowire.Number(1); kind <= Version; kind++ {
		if c := newCommand(kind); c != nil {
			trim(c)
			all = append(all, c)
		}
	}
	return all
}

// kinds is how many kinds of commands there are.
var kinds = len(allCommands())

// randomCommand returns a command of the i-th kind.
func randomCommand(f filler, i int) Command {
	c := allCommands()[i]
	f.fill(reflect.ValueOf(c).Elem())
	return c
}

func allRecords() (all []Record) {
	for n := range len(letters) {
		if r := newRecord(protowire.Number(n + 1)); r != nil {
			all = append(all, r)
		}
	}
	return all
}

// keyOf returns a key under which a record may stand.
func keyOf(r Record, name string) Key {
	switch r.(type) {
	case *List:
		return ListKey("ns", name)
	case *ListItem:
		return ListItemKey("ns", name, 0)
	}
	return key(kindOf(r), "ns", name)
}

// randomRecord returns a record that a state may hold.
func randomRecord(f filler, number int) Record {
	r := allRecords()[number]
	f.fill(reflect.ValueOf(r).Elem())
	switch r := r.(type) {
	case *Client:
		for i := range r.Open {
			r.Open[i].Pools = []Hold{{Pool: unique.Make("p"), Token: f.Uint64(), Weight: 1}}
		}
	case *Pool:
		r.Last = 1 << 40
		for i := range r.Leases {
			r.Leases[i].Token = uint64(1+i) << 30
			r.Leases[i].Weight = 1 + f.Int32N(MaxSlots)
			if r.Leases[i].Place = nil; r.Leases[i].Claim {
				r.Leases[i].Place = new(limiter.Place)
				f.fill(reflect.ValueOf(r.Leases[i].Place).Elem())
			}
		}
		for i := range r.Queue {
			r.Queue[i].Weight = 1 + f.Int32N(MaxSlots)
		}
		r.Index()
	}
	return r
}
