package value

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
)

// Values from a google.protobuf.Struct and back.

// structInteger is where a double of a google.protobuf.Struct stops being
// printed as an integer. It is the bound of JavaScript's Number.toString; above
// it every double is integral and 300 digits would stand for 5 characters sent.
const structInteger = 1e21

// FromStruct returns the tree of a google.protobuf.Struct, which holds numbers
// as doubles and has no order: an integral double below 1e21 becomes an
// integer, and keys are sorted. A nil Struct is an empty map.
func FromStruct(s *structpb.Struct) Value {
	fields := s.GetFields()
	n := newMap(len(fields))
	for key, p := range fields {
		n.pairs = append(n.pairs, Pair{key, fromProto(p)})
	}
	slices.SortFunc(n.pairs, func(a, b Pair) int { return strings.Compare(a.Key, b.Key) })
	n.indexPairs()
	return Value{kind: Map, node: n}
}

func fromProto(p *structpb.Value) Value {
	switch k := p.GetKind().(type) {
	case *structpb.Value_BoolValue:
		return OfBool(k.BoolValue)
	case *structpb.Value_NumberValue:
		return ofDouble(k.NumberValue)
	case *structpb.Value_StringValue:
		return OfString(k.StringValue)
	case *structpb.Value_StructValue:
		return FromStruct(k.StructValue)
	case *structpb.Value_ListValue:
		values := k.ListValue.GetValues()
		items := make([]Value, len(values))
		for i, p := range values {
			items[i] = fromProto(p)
		}
		return listOf(items)
	default:
		return Value{}
	}
}

func ofDouble(f float64) Value {
	switch {
	case f != math.Trunc(f) || math.Abs(f) >= structInteger: // also NaN and infinities
		return OfFloat(f)
	case f >= -1<<63 && f < 1<<63:
		return OfInt(int64(f))
	default:
		b, _ := big.NewFloat(f).Int(nil)
		return ofBig(b)
	}
}

// Struct returns the map v as a google.protobuf.Struct. It is an error if v is no
// map, or if an integer in it is no double: another integer in its place may
// be the number of another thing. Fractions become the nearest doubles.
func (v Value) Struct() (*structpb.Struct, error) {
	if v.kind != Map {
		return nil, fmt.Errorf("a google.protobuf.Struct is a map, not a %s", v.kind)
	}
	s := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(v.node.pairs))}
	for key, item := range v.All() {
		p, err := item.toProto()
		if err != nil {
			return nil, fmt.Errorf("%q: %w", key, err)
		}
		s.Fields[key] = p
	}
	return s, nil
}

var errNoDouble = errors.New("a google.protobuf.Struct holds finite doubles only")

func (v Value) toProto() (*structpb.Value, error) {
	switch v.kind {
	case Null:
		return structpb.NewNullValue(), nil
	case Bool:
		return structpb.NewBoolValue(v.bits == 1), nil
	case String:
		return structpb.NewStringValue(v.text), nil
	case Number:
		f, _ := v.AsFloat()
		if math.IsInf(f, 0) || math.IsNaN(f) {
			return nil, errNoDouble
		}
		if v.IsInteger() && !Equal(OfFloat(f), v) {
			return nil, fmt.Errorf("the integer %s is no double; a string could hold it", v.JSON())
		}
		return structpb.NewNumberValue(f), nil
	case List:
		l := &structpb.ListValue{Values: make([]*structpb.Value, len(v.node.items))}
		for i, item := range v.node.items {
			p, err := item.toProto()
			if err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
			l.Values[i] = p
		}
		return structpb.NewListValue(l), nil
	default:
		s, err := v.Struct()
		if err != nil {
			return nil, err
		}
		return structpb.NewStructValue(s), nil
	}
}
