package matching

import (
	"testing"
	"time"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// FuzzCondition holds that no pair of values panics an operator, that not_in is
// the negation of in, and that ordering is one.
func FuzzCondition(f *testing.F) {
	for _, target := range []string{`1`, `"a"`, `["a", 1]`, `{"a": 1}`, `null`, `true`, `1e400`, `"("`, `[[[]]]`} {
		for _, v := range []string{`1.0`, `"abc"`, `["a"]`, `{"b": {}}`, `null`} {
			f.Add(target, v, "x.y")
		}
	}
	operators := []document.Operator{document.OpEq, document.OpNe, document.OpGt, document.OpLt, document.OpGte, document.OpLte, document.OpIn, document.OpNotIn, document.OpContains, document.OpMatches}
	f.Fuzz(func(t *testing.T, target, v, field string) {
		defer time.AfterFunc(20*time.Second, func() { panic("evaluating takes too long") }).Stop()
		want, err := value.Parse([]byte(target))
		if err != nil {
			return
		}
		have, err := value.Parse([]byte(v))
		if err != nil {
			return
		}
		outcome := map[document.Operator]bool{}
		for _, op := range operators {
			c, err := document.NewCondition(field, op, want, &pattern.Searches{})
			if err != nil {
				continue
			}
			if hit, err := Holds(&c, have); err == nil {
				outcome[op] = hit
			}
			rule := Compile(&document.Rule{Name: "r", Condition: c, Action: document.Deny, Doc: &document.Document{}}, Fields{}, false)
			_, _ = rule.Matches(Begun(&call.Input{Context: value.OfMap(value.Pair{Key: field, Value: have}), Facts: &call.Facts{}}))
		}
		for _, pair := range [][2]document.Operator{{document.OpEq, document.OpNe}, {document.OpIn, document.OpNotIn}, {document.OpGt, document.OpLte}, {document.OpLt, document.OpGte}} {
			a, okA := outcome[pair[0]]
			b, okB := outcome[pair[1]]
			if okA != okB || okA && a == b {
				t.Fatalf("%s is %t (%t) and %s is %t (%t) for %s and %s", pair[0], a, okA, pair[1], b, okB, v, target)
			}
		}
	})
}
