package value

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func parse(t testing.TB, json string) Value {
	t.Helper()
	v, err := Parse([]byte(json))
	require.NoError(t, err, "%s", json)
	return v
}

func TestAccessors(t *testing.T) {
	v := parse(t, `{"b": true, "s": "héllo", "l": [1, null], "m": {}, "n": null}`)
	require.Equal(t, Map, v.Kind())
	require.Equal(t, 5, v.Len())

	b, ok := v.Get("b")
	require.True(t, ok)
	got, ok := b.AsBool()
	require.True(t, got && ok)
	_, ok = b.AsString()
	require.False(t, ok, "a bool is no string")

	s, _ := v.Get("s")
	text, ok := s.AsString()
	require.True(t, ok)
	require.Equal(t, "héllo", text)
	require.Equal(t, 5, s.Len(), "code points")
	text, ok = s.Text()
	require.True(t, ok && text == "héllo" && s.Is(String) && !s.Is(Bool))
	_, ok = b.Text()
	require.False(t, ok, "a bool is no string")

	l, _ := v.Get("l")
	require.Equal(t, List, l.Kind())
	require.True(t, Equal(OfInt(1), l.Index(0)))
	require.Equal(t, Null, l.Index(1).Kind())
	require.Equal(t, Null, l.Index(2).Kind(), "beyond the end")
	require.Equal(t, Null, l.Index(-1).Kind())
	require.Equal(t, Null, v.Index(0).Kind(), "a map has no items by number")

	n, ok := v.Get("n")
	require.True(t, ok, "a key that holds null is there")
	require.Equal(t, Null, n.Kind())
	_, ok = v.Get("absent")
	require.False(t, ok)
	_, ok = l.Get("b")
	require.False(t, ok, "a list has no keys")
	require.Equal(t, Value{}, n, "the zero value is null")
}

func TestOrderIsKept(t *testing.T) {
	v := parse(t, `{"z": 1, "a": 2, "m": 3}`)
	var keys []string
	for key, item := range v.All() {
		keys = append(keys, key+item.Repr())
	}
	require.Equal(t, []string{"z1", "a2", "m3"}, keys)
	require.Equal(t, `{"z":1,"a":2,"m":3}`, v.JSON())
	require.Equal(t, `{'z': 1, 'a': 2, 'm': 3}`, v.Repr())
	for range v.All() {
		break
	}
	for range parse(t, "[1, 2]").Items() {
		break
	}
	require.Empty(t, slices.Collect(v.Items()), "a map has no items")
	require.Len(t, slices.Collect(parse(t, "[1, 2]").Items()), 2)
	for range parse(t, "[1]").All() {
		t.Fatal("a list has no entries")
	}
}

// Beyond a handful of keys a map has an index; it must not change anything.
func TestMapsOfAnySize(t *testing.T) {
	for _, size := range []int{0, 1, linearKeys - 1, linearKeys, linearKeys + 1, 100} {
		var pairs []Pair
		for i := range size {
			pairs = append(pairs, Pair{fmt.Sprint("k", i), OfInt(int64(i))})
		}
		made := OfMap(pairs...)
		grown := OfMap()
		for _, p := range pairs {
			grown = grown.With(p.Key, p.Value)
		}
		for _, v := range []Value{made, grown, parse(t, made.JSON())} {
			require.Equal(t, size, v.Len())
			for i := range size {
				got, ok := v.Get(fmt.Sprint("k", i))
				require.True(t, ok)
				require.True(t, Equal(OfInt(int64(i)), got))
			}
			_, ok := v.Get("k")
			require.False(t, ok)
			require.Equal(t, made.JSON(), v.JSON())
		}
		twice := OfMap(append(slices.Clone(pairs), pairs...)...)
		require.Equal(t, made.JSON(), twice.JSON(), "a key given twice stays one")
	}
	require.Equal(t, `{"a":3,"b":2}`, OfMap(Pair{"a", OfInt(1)}, Pair{"b", OfInt(2)}, Pair{"a", OfInt(3)}).JSON())
}

func TestWithLeavesTheOriginal(t *testing.T) {
	for _, size := range []int{2, linearKeys, 2 * linearKeys} {
		v := OfMap()
		for i := range size {
			v = v.With(fmt.Sprint(i), OfInt(int64(i)))
		}
		before := v.JSON()
		replaced := v.With("1", OfString("new"))
		added := v.With("x", OfBool(true))
		addedOther := v.With("y", OfBool(false))
		require.Equal(t, before, v.JSON())
		require.Equal(t, strings.Replace(before, `"1":1`, `"1":"new"`, 1), replaced.JSON(), "in its place")
		require.Equal(t, strings.TrimSuffix(before, "}")+`,"x":true}`, added.JSON(), "at the end")
		require.Equal(t, strings.TrimSuffix(before, "}")+`,"y":false}`, addedOther.JSON(), "two copies share nothing that they write to")
	}
	require.Equal(t, `{"a":1}`, Value{}.With("a", OfInt(1)).JSON(), "null counts as an empty map")
	require.Equal(t, `[1]`, OfList(OfInt(1)).With("a", OfInt(1)).JSON(), "a list gains no key")
}

func TestListKeepsNoReference(t *testing.T) {
	items := []Value{OfInt(1)}
	v := OfList(items...)
	items[0] = OfInt(2)
	require.Equal(t, "[1]", v.JSON())
}

func TestTextIsAlwaysValid(t *testing.T) {
	v := OfMap(Pair{"k\xff", OfString("a\xc3")}).With("w\xfe", OfString("\xed\xa0\x80"))
	require.Equal(t, "{'k\uFFFD': 'a\uFFFD', 'w\uFFFD': '\uFFFD'}", v.Repr())
	_, err := Parse([]byte(v.JSON()))
	require.NoError(t, err)
}

func TestLeaves(t *testing.T) {
	v := parse(t, `{"a": ["x", 1, {"b": "y", "c": null}], "d": "z", "e": true}`)
	var all []string
	v.Leaves(func(s string) bool { all = append(all, s); return true })
	require.Equal(t, []string{"a", "x", "b", "y", "c", "d", "z", "e"}, all)
	for stop := range all {
		var some []string
		v.Leaves(func(s string) bool { some = append(some, s); return len(some) <= stop })
		require.Equal(t, all[:stop+1], some)
	}
}

func TestNumbers(t *testing.T) {
	cases := []struct{ text, repr, json string }{
		{"0", "0", "0"},
		{"-0", "0", "-0"},
		{"1.10", "1.1", "1.10"},
		{"1E2", "100.0", "1E2"},
		{"1e16", "1e+16", "1e16"},
		{"123456789012345678", "123456789012345678", "123456789012345678"},
		{"9223372036854775807", "9223372036854775807", "9223372036854775807"},
		{"9223372036854775808", "9223372036854775808", "9223372036854775808"},
		{"-9223372036854775809", "-9223372036854775809", "-9223372036854775809"},
		{"1e-400", "0.0", "1e-400"},
		{"0.1", "0.1", "0.1"},
	}
	for _, c := range cases {
		v, err := OfNumber(c.text)
		require.NoError(t, err, c.text)
		require.Equal(t, c.repr, v.Repr(), c.text)
		require.Equal(t, c.json, v.JSON(), c.text)
		require.Equal(t, v, parse(t, c.text))
	}
	for _, text := range []string{"", "-", "+1", "01", "-01", "1.", ".5", "1e", "1e+", "0x1", "1_0", "NaN", "inf", " 1", "1 ", "1e1.5", "--1", "1a"} {
		_, err := OfNumber(text)
		require.Error(t, err, "%q", text)
		require.Contains(t, err.Error(), "no number in JSON syntax")
	}
	_, err := OfNumber("1e400")
	require.ErrorContains(t, err, "too large for a double")
	_, err = OfNumber("-" + strings.Repeat("9", maxNumber))
	require.NoError(t, err)
	_, err = OfNumber(strings.Repeat("9", maxNumber+1))
	require.ErrorContains(t, err, "4301 characters")
	_, err = OfNumber("-" + strings.Repeat("9", maxNumber+1) + "x")
	require.Less(t, len(err.Error()), 100, "an error does not repeat all of the input")
}

func TestMadeNumbers(t *testing.T) {
	require.Equal(t, "-5", OfInt(-5).JSON())
	require.Equal(t, "2.0", OfFloat(2).JSON())
	require.Equal(t, "2.0", OfFloat(2).Repr())
	require.Equal(t, "-0.0", OfFloat(math.Copysign(0, -1)).Repr())
	require.Equal(t, "nan", OfFloat(math.NaN()).Repr())
	require.Equal(t, "inf", OfFloat(math.Inf(1)).Repr())
	require.Equal(t, "-inf", OfFloat(math.Inf(-1)).Repr())
	require.Equal(t, "null", OfFloat(math.Inf(-1)).JSON())
	require.False(t, Equal(OfFloat(math.NaN()), OfFloat(math.NaN())))
	_, err := Compare(OfFloat(math.NaN()), OfInt(1))
	require.ErrorIs(t, err, ErrType, "a NaN has no place in an order")
	_, err = Compare(OfInt(1), OfFloat(math.NaN()))
	require.ErrorIs(t, err, ErrType)
	for _, inf := range []float64{math.Inf(1), math.Inf(-1)} {
		c, err := Compare(parse(t, "1"+strings.Repeat("0", 400)), OfFloat(inf))
		require.NoError(t, err)
		require.Equal(t, math.Signbit(inf), c > 0)
	}
}

func TestAsIntAndAsFloat(t *testing.T) {
	ints := map[string]int64{"7": 7, "-7.0": -7, "1e3": 1000, "9223372036854775807": math.MaxInt64, "-9223372036854775808": math.MinInt64}
	for text, want := range ints {
		got, ok := parse(t, text).AsInt()
		require.True(t, ok, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"1.5", "9223372036854775808", "9.3e18", "true", `"1"`, "null"} {
		_, ok := parse(t, text).AsInt()
		require.False(t, ok, text)
	}
	floats := map[string]float64{"7": 7, "0.25": 0.25, "9007199254740993": 9007199254740992, "100000000000000000000": 1e20}
	for text, want := range floats {
		got, ok := parse(t, text).AsFloat()
		require.True(t, ok, text)
		require.Equal(t, want, got, text)
	}
	_, ok := parse(t, "true").AsFloat()
	require.False(t, ok)
	for text, want := range map[string]bool{"1": true, "1.0": false, "1e2": false, "9223372036854775808": true, "true": false, `"1"`: false} {
		require.Equal(t, want, parse(t, text).IsInteger(), text)
	}
}

func TestKindNames(t *testing.T) {
	var names []string
	for _, json := range []string{"null", "true", "1", `"s"`, "[]", "{}"} {
		names = append(names, parse(t, json).Kind().String())
	}
	require.Equal(t, []string{"null", "bool", "number", "string", "list", "map"}, names)
}

// Equal and Compare are laws over each other, whatever the values are.
func TestComparisonLaws(t *testing.T) {
	var all []Value
	for _, json := range []string{"null", "true", "false", "0", "1", "1.0", "0.5", "9007199254740993", "9007199254740992.0", "1e300",
		"9223372036854775808", "9223372036854775808.0", `""`, `"a"`, `"é"`, "[]", "[1]", "[true, 2]", `["a"]`, "{}", `{"a": 1}`, `{"a": true}`} {
		all = append(all, parse(t, json))
	}
	for _, a := range all {
		require.True(t, Equal(a, a), "%s", a.JSON())
		for _, b := range all {
			require.Equal(t, Equal(a, b), Equal(b, a), "%s == %s", a.JSON(), b.JSON())
			c, err := Compare(a, b)
			d, errBack := Compare(b, a)
			require.Equal(t, err, errBack)
			require.Equal(t, c, -d, "%s < %s", a.JSON(), b.JSON())
			if err == nil {
				require.Equal(t, c == 0, Equal(a, b), "%s == %s", a.JSON(), b.JSON())
			}
		}
	}
}

// Rules are evaluated millions of times: what they do per call must not allocate.
func TestNoAllocations(t *testing.T) {
	small := parse(t, `{"tool": "read_file", "tokens": 4096, "confidence": 0.75, "tags": ["a", "b"], "nested": {"a": 1.5}}`)
	large := small
	for i := range 40 {
		large = large.With(fmt.Sprint("k", i), OfInt(int64(i)))
	}
	name, limit, ratio, tags := OfString("read_file"), OfInt(4096), OfFloat(0.8), parse(t, `["a", "c"]`)
	for _, v := range []Value{small, large} {
		allocs := testing.AllocsPerRun(100, func() {
			tool, _ := v.Get("tool")
			tokens, _ := v.Get("tokens")
			confidence, _ := v.Get("confidence")
			list, _ := v.Get("tags")
			nested, _ := v.Get("nested")
			if !Equal(tool, name) || !Equal(tokens, limit) || Equal(confidence, ratio) || Equal(list, tags) || !Equal(nested, nested) {
				panic("wrong answer")
			}
			c, _ := Compare(tokens, ratio)
			d, _ := Compare(list, tags)
			e, _ := Compare(tool, name)
			if c != 1 || d != -1 || e != 0 {
				panic("wrong order")
			}
		})
		require.Zero(t, allocs)
	}
	buffer := make([]byte, 0, 4096)
	require.Zero(t, testing.AllocsPerRun(100, func() { buffer = large.AppendRepr(buffer[:0]) }))
	require.Zero(t, testing.AllocsPerRun(100, func() { buffer = large.AppendJSON(buffer[:0]) }))
	require.Zero(t, testing.AllocsPerRun(100, func() { large.Leaves(func(string) bool { return true }) }))
}

func BenchmarkGetEqual(b *testing.B) {
	v := parse(b, `{"agent_id": "a", "session": "s", "kind": "tool", "tool_name": "read_file"}`)
	name := OfString("read_file")
	b.ReportAllocs()
	for b.Loop() {
		tool, _ := v.Get("tool_name")
		if !Equal(tool, name) {
			b.Fatal("not equal")
		}
	}
}
