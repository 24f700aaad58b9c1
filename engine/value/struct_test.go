package value

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestFromStruct(t *testing.T) {
	s := &structpb.Struct{}
	require.NoError(t, protojson.Unmarshal([]byte(`{
		"z": 1, "a": 1.0, "half": 0.5, "neg": -0.0, "big": 1700000000000000000, "huge": 1e20, "beyond": 1e21, "tiny": 1e-7,
		"t": true, "n": null, "s": "é", "l": [1, {"y": 1, "x": 2}], "m": {"b": [], "a": {}}}`), s))
	v := FromStruct(s)
	require.Equal(t, `{"a":1,"beyond":1e+21,"big":1700000000000000000,"half":0.5,"huge":100000000000000000000,`+
		`"l":[1,{"x":2,"y":1}],"m":{"a":{},"b":[]},"n":null,"neg":0,"s":"é","t":true,"tiny":1e-07,"z":1}`, v.JSON())
	require.True(t, mustGet(t, v, "huge").IsInteger())

	require.Equal(t, "{}", FromStruct(nil).JSON())
	require.Equal(t, "{}", FromStruct(&structpb.Struct{}).JSON())
	odd := FromStruct(&structpb.Struct{Fields: map[string]*structpb.Value{
		"nil": nil, "unset": {}, "nan": structpb.NewNumberValue(math.NaN()), "inf": structpb.NewNumberValue(math.Inf(-1))}})
	require.Equal(t, `{'inf': -inf, 'nan': nan, 'nil': None, 'unset': None}`, odd.Repr())
}

func mustGet(t *testing.T, v Value, key string) Value {
	t.Helper()
	w, ok := v.Get(key)
	require.True(t, ok, key)
	return w
}

func TestStruct(t *testing.T) {
	v := parse(t, `{"z": 1, "a": [true, null, "x", {"k": 0.5}], "big": 9007199254740992, "huge": 147573952589676412928}`)
	s, err := v.Struct()
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"z": 1.0, "a": []any{true, nil, "x", map[string]any{"k": 0.5}}, "big": 9007199254740992.0, "huge": 147573952589676412928.0,
	}, s.AsMap())

	again, err := FromStruct(s).Struct()
	require.NoError(t, err)
	require.Equal(t, s.AsMap(), again.AsMap())
}

func TestStructRefuses(t *testing.T) {
	for _, json := range []string{"null", "[]", `"s"`, "1", "true"} {
		_, err := parse(t, json).Struct()
		require.ErrorContains(t, err, "is a map, not a "+parse(t, json).Kind().String())
	}
	tooLarge, err := OfNumber("1" + strings.Repeat("0", 400))
	require.NoError(t, err)
	_, err = OfMap(Pair{"a", OfList(OfInt(1), OfMap(Pair{"b", tooLarge}))}).Struct()
	require.EqualError(t, err, `"a": [1]: "b": a google.protobuf.Struct holds finite doubles only`)
	for _, n := range []string{"9007199254740993", "-9007199254740993", "12345678901234567", "147573952589676412929"} {
		_, err = parse(t, `{"id": `+n+`}`).Struct()
		require.EqualError(t, err, `"id": the integer `+n+` is no double; a string could hold it`)
	}
	_, err = OfMap(Pair{"a", OfFloat(math.NaN())}).Struct()
	require.Error(t, err)
}
