package authoring

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/document"
	"example.com/govnode/engine/enginetest"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/pattern"
)

// A rule behind one that implies it is unreachable: no context reaches it.
func TestLintNeverInvents(t *testing.T) {
	values := []string{`"a"`, `"ab"`, `1`, `2`, `2.5`, `true`, `["a"]`, `""`, `0`}
	var conds []document.Condition
	for _, op := range []document.Operator{document.OpEq, document.OpNe, document.OpGt, document.OpGte, document.OpLt, document.OpLte, document.OpIn, document.OpNotIn, document.OpContains} {
		for _, target := range []string{`"a"`, `1`, `2`, `["a", 1]`, `["a"]`} {
			if c, err := document.NewCondition("x", op, enginetest.Value(t, target), &pattern.Searches{}); err == nil {
				conds = append(conds, c)
			}
		}
	}
	found := 0
	for _, a := range conds {
		for _, b := range conds {
			if !implies(&a, &b) {
				continue
			}
			found++
			for _, v := range values {
				if ok, err := matching.Holds(&a, enginetest.Value(t, v)); ok && err == nil {
					hit, err := matching.Holds(&b, enginetest.Value(t, v))
					require.True(t, hit || err != nil, "%s %s implies %s %s, but not for %s", a.Operator, a.Value.JSON(), b.Operator, b.Value.JSON(), v)
				}
			}
		}
	}
	require.Greater(t, found, len(conds))
}
