package value

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/internal/oracle"
)

func TestOracleRepr(t *testing.T) {
	type vector struct{ JSON, Repr, Str, Compact string }
	for _, c := range oracle.Cases(t, "repr", func(c vector) string { return c.Str + c.JSON + c.Compact }) {
		v, err := Parse([]byte(c.JSON))
		require.NoError(t, err, "%s", c.JSON)
		require.Equal(t, c.Repr, v.Repr(), "%s", c.JSON)
		require.Equal(t, c.Str, v.Str(), "%s", c.JSON)
		again, err := Parse([]byte(v.JSON()))
		require.NoError(t, err, "%s", v.JSON())
		require.Equal(t, v, again, "%s", c.JSON)
		compact, err := Parse([]byte(c.Compact))
		require.NoError(t, err)
		require.True(t, Equal(v, compact), "%s", c.JSON)
	}
}

func TestOracleCompare(t *testing.T) {
	type vector struct {
		A, B  string
		Equal bool
		Order *int
	}
	for _, c := range oracle.Cases(t, "compare", func(vector) string { return "" }) {
		a, err := Parse([]byte(c.A))
		require.NoError(t, err, "%s", c.A)
		b, err := Parse([]byte(c.B))
		require.NoError(t, err, "%s", c.B)
		require.Equal(t, c.Equal, Equal(a, b), "%s == %s", c.A, c.B)
		order, err := Compare(a, b)
		if c.Order == nil {
			require.True(t, errors.Is(err, ErrType), "%s < %s has no answer", c.A, c.B)
			continue
		}
		require.NoError(t, err, "%s < %s", c.A, c.B)
		require.Equal(t, *c.Order, order, "%s < %s", c.A, c.B)
	}
}
