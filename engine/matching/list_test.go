package matching

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/enginetest"
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// Finding rules through the index gives the same rule, or the same error, and
// leaves the same premises as trying all of them in turn.
func TestIndexEqualsScan(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	targets := []string{`"a"`, `"b"`, `["a", "c"]`, `3`, `3.5`, `-1`, `10`, `true`, `[1, "a"]`, `{"a": 1}`, `[]`, `"3"`, `"b\ufffd"`}
	numbers := []string{`2`, `3`, `3.5`, `-2.5`, `4` /* extremes: */, `9223372036854775807`, `-9223372036854775808`, `9223372036854775808`, `1e30`, `3.0`}
	expressions := []string{"^a", "^ab", "^ab[a-z_]+$", "^abc$", "^b.*", "^a|c", "^3", "b", "^abc_[0-9]*", "^(ab)c"}
	values := []string{`"ab"`, `"abc"`, `"abc\n"`, `"abc_1"`, `"b"`, `9223372036854775807`, `-3`, `2`, `"a"`, `"c"`, `3`, `3.5`, `4`, `-2`, `true`, `null`, `["a"]`, `{"a": 1}`, `"3"`, `1e30`}
	operators := []document.Operator{document.OpEq, document.OpNe, document.OpGt, document.OpLt, document.OpGte, document.OpLte, document.OpIn, document.OpNotIn, document.OpContains, document.OpMatches}
	fields := []string{"x", "y", "z.w", "tool_name", "call_count"}
	indexed, decided := 0, map[document.Operator]int{}
	for range 3000 {
		fieldsOf := Fields{}
		strict := rng.IntN(3) == 0
		extremes := []int{5, len(numbers)}[rng.IntN(2)] // whether limits are beyond 64 bits
		var rules []*Rule
		for i := range 20 + rng.IntN(60) {
			c := document.Condition{Field: fields[rng.IntN(len(fields))], Operator: operators[rng.IntN(len(operators))], Value: enginetest.Value(t, targets[rng.IntN(len(targets))])}
			if c.Field == "tool_name" { // a field of texts, which no bound refuses
				c.Operator = []document.Operator{document.OpEq, document.OpIn, document.OpMatches, document.OpMatches, document.OpNotIn}[rng.IntN(5)]
			}
			switch {
			case c.Operator == document.OpMatches:
				c.Value = value.OfString(expressions[rng.IntN(len(expressions))])
			case c.Field == "x": // a field of numbers, which are not refused as text is
				c.Value = enginetest.Value(t, numbers[rng.IntN(extremes)])
			}
			var err error
			if c, err = document.NewCondition(c.Field, c.Operator, c.Value, &pattern.Searches{}); err != nil {
				continue
			}
			action := []document.Action{document.Allow, document.Deny}[rng.IntN(2)]
			rules = append(rules, Compile(&document.Rule{Name: fmt.Sprint(i), Condition: c, Action: action, Priority: int64(rng.IntN(3)), Doc: &document.Document{}}, fieldsOf, strict))
		}
		set := NewList(rules)
		scan := &List{Rules: set.Rules}
		indexed += len(set.index.groups)
		ctx := value.OfMap()
		for _, f := range []string{"x", "y", "z", "tool_name"} {
			v := enginetest.Value(t, values[rng.IntN(len(values))])
			switch {
			case rng.IntN(4) == 0:
				continue
			case f == "x" && rng.IntN(3) > 0:
				v = enginetest.Value(t, numbers[rng.IntN(len(numbers))])
			case f == "tool_name" && rng.IntN(3) > 0:
				v = value.OfString([]string{"a", "ab", "abc", "abc_1", "abc_x"}[rng.IntN(5)])
			case f == "z":
				v = value.OfMap(value.Pair{Key: "w", Value: v})
			}
			ctx = ctx.With(f, v)
		}
		in := call.Input{Context: ctx, Facts: &call.Facts{CallCount: rng.Int64N(5)}}
		if rng.IntN(3) == 0 {
			in.Tool = []string{"a", "ab", "abc", "abc_1", "abc\n", "b\xff", "é"}[rng.IntN(7)]
		}
		fast, slow := Begun(&in), Begun(&in)
		got, gotErr := set.First(fast)
		want, wantErr := scan.First(slow)
		require.Equal(t, want, got, "context %s", ctx.JSON())
		require.Equal(t, wantErr, gotErr)
		require.Equal(t, slow.Premises, fast.Premises)
		if want != nil {
			decided[want.Condition.Operator]++
		}
	}
	for _, op := range operators {
		require.Greater(t, decided[op], 5, "%s hardly ever decided", op)
	}
	require.Greater(t, indexed, 1000, "the index was hardly used")
}

// A test of a fact agrees with the comparison of the value that it stands for,
// at and around every limit.
func TestFactTestEqualsCondition(t *testing.T) {
	for _, op := range []document.Operator{document.OpEq, document.OpNe, document.OpGt, document.OpLt, document.OpGte, document.OpLte, document.OpIn, document.OpNotIn} {
		for _, target := range []string{"0", "1", "-3", "2.5", "-0.5", "1e3", "true", "9223372036854775807", "-9223372036854775808", "1e40", "-1e40", "1e-40", `"x"`, "[1, 2, 2.5, true]", "[]", `{"a": 1}`} {
			c, err := document.NewCondition("call_count", op, enginetest.Value(t, target), &pattern.Searches{})
			if err != nil {
				continue
			}
			test := newFactTest(&c)
			for _, x := range []int64{0, 1, 2, 3, 999, 1000, 1001, math.MaxInt64 - 1, math.MaxInt64} {
				want, err := Holds(&c, value.OfInt(x))
				if err != nil {
					require.True(t, test.typeError, "%s %s", op, target)
					continue
				}
				got, lo, hi := test.match(x)
				require.Equal(t, want, got, "%d %s %s", x, op, target)
				require.True(t, lo <= x && x <= hi, "%d %s %s: range %d to %d", x, op, target, lo, hi)
				for _, edge := range []int64{lo, hi} {
					same, err := Holds(&c, value.OfInt(edge))
					require.NoError(t, err)
					require.Equal(t, want, same, "%d is in the range of %d %s %s", edge, x, op, target)
				}
			}
		}
	}
}
