package arguments

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/engine/value"
)

// anything returns a value of one of the types that structpb.NewValue takes.
func anything(r *rand.Rand, depth int) any {
	n := 22
	if depth == 0 {
		n = 20
	}
	switch i := r.IntN(n); i {
	case 0:
		return nil
	case 1:
		return r.IntN(2) == 0
	case 2:
		return r.IntN(1<<53) - 1<<52
	case 3:
		return []any{int8(-5), int16(-300), int32(-70_000), int64(-1 << 53), uint(7), uint8(8), uint16(9), uint32(1 << 31), uint64(1 << 53)}[r.IntN(9)]
	case 4:
		return float32(r.NormFloat64())
	case 5:
		return []byte(sampleTexts[r.IntN(len(sampleTexts))])
	case 6:
		return []json.Number{"12", "-7", "1.5", "1e3", "0.00001", "-0"}[r.IntN(6)]
	case 7, 8, 9, 10:
		return float64(r.IntN(1_000_000)-500_000) / 64
	case 11, 12:
		return r.NormFloat64() * math.Pow(10, float64(r.IntN(60)-30))
	case 13:
		return math.Copysign([]float64{0, 1e-4, 9.999e-5, 1e15, 1e16, 1e20, 1e21, 1e22, 123456789012345678, math.MaxFloat64, math.SmallestNonzeroFloat64}[r.IntN(11)], r.NormFloat64())
	case 20:
		m := map[string]any{}
		for range r.IntN(20) {
			m[fmt.Sprint(sampleTexts[r.IntN(len(sampleTexts))], r.IntN(30))] = anything(r, depth-1)
		}
		return m
	case 21:
		list := make([]any, r.IntN(4))
		for i := range list {
			list[i] = anything(r, depth-1)
		}
		return list
	}
	return sampleTexts[r.IntN(len(sampleTexts))]
}

var sampleTexts = []string{"", "weather in Lisbon", "amanhã", "<script>&", `"\`, "\x00\x1f\n\t\x7f", "\u2028\u2029", "😀"}

// A policy sees the same in the text of a map as it would in its Struct: the
// same values, written the same way, in the same order.
func TestArgumentsAsText(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		m := map[string]any{"a": anything(r, 3), "b": anything(r, 3), sampleTexts[r.IntN(len(sampleTexts))]: anything(r, 3)}
		text, s, err := Encode("Call.Arguments", m, "")
		require.NoError(t, err)
		require.Nil(t, s)
		want, err := structpb.NewStruct(m)
		require.NoError(t, err)
		require.Equal(t, value.FromStruct(want).JSON(), text)
		parsed, err := value.Parse([]byte(text))
		require.NoError(t, err)
		require.Equal(t, value.FromStruct(want).JSON(), parsed.JSON())
		again, _, _ := Encode("Call.Arguments", m, "")
		require.Equal(t, text, again, "a repeat must have the same content")
	}
}

// Integers keep the digits that a double has no room for.
func TestArgumentsKeepDigits(t *testing.T) {
	text, _, err := Encode("Call.Arguments", map[string]any{
		"a": int64(math.MaxInt64), "b": uint64(math.MaxUint64), "c": json.Number("-9223372036854775808"),
	}, "")
	require.NoError(t, err)
	require.Equal(t, `{"a":9223372036854775807,"b":18446744073709551615,"c":-9223372036854775808}`, text)
}

// What JSON has no words for goes as it went before there was a text, and is
// objected to by the same.
func TestArgumentsThatAreNoText(t *testing.T) {
	nested := map[string]any{}
	for range mostNested - 1 {
		nested = map[string]any{"in": nested}
	}
	deep, _, err := Encode("Call.Arguments", nested, "")
	require.NoError(t, err)
	_, err = value.Parse([]byte(deep))
	require.NoError(t, err, "as deep as the service takes it")
	nested = map[string]any{"in": nested}
	for name, m := range map[string]map[string]any{
		"NaN":         {"a": math.NaN()},
		"infinity":    {"a": []any{math.Inf(-1)}},
		"too deep":    nested,
		"NaN as text": {"a": json.Number("NaN")},
	} {
		text, s, err := Encode("Call.Arguments", m, "")
		require.NoError(t, err, name)
		require.Empty(t, text, name)
		require.NotNil(t, s, name)
	}
	for name, m := range map[string]map[string]any{
		"a key that is not UTF-8":  {"\xff": 1},
		"a text that is not UTF-8": {"a": "é\xff"},
		"a type":                   {"a": struct{}{}},
		"a pointer":                {"a": new(int)},
		"a list of a type":         {"a": []string{"x"}},
		"inside":                   {"a": map[string]any{"b": []any{make(chan int)}}},
		"no number":                {"a": json.Number("one")},
		"a number too large":       {"a": json.Number("1e999")},
	} {
		_, want := structpb.NewStruct(m)
		require.Error(t, want, name)
		_, _, err := Encode("Call.Context", m, "")
		require.EqualError(t, err, "client: Call.Context: "+want.Error(), name)
	}
	text, s, err := Encode("Call.Arguments", nil, "")
	require.NoError(t, err)
	require.Empty(t, text)
	require.Nil(t, s)
	_, s, err = Encode("Call.Arguments", map[string]any{"a": 1}, `{}`)
	require.NoError(t, err)
	require.NotNil(t, s, "beside a text it is for the service to refuse")
	text, _, err = Encode("Call.Arguments", map[string]any{}, "")
	require.NoError(t, err)
	require.Equal(t, "{}", text)
}
