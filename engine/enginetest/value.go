package enginetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/value"
)

// Value reads JSON; an empty text is null.
func Value(tb testing.TB, json string) value.Value {
	tb.Helper()
	if json == "" {
		return value.Value{}
	}
	v, err := value.Parse([]byte(json))
	require.NoError(tb, err)
	return v
}
