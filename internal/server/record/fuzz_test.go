package record

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/input"
)

// A cursor that a caller sends is one that Follow could have given, or its field is
// named; what is read is written again as what means the same.
func FuzzCursors(f *testing.F) {
	f.Add("n1:01ARZ3NDEKTSV4RRFFQ69G5FAV:17")
	f.Add("n1:a:1,n2:b:2")
	f.Add("n1:a:-1")
	f.Fuzz(func(t *testing.T, text string) {
		fields := new(input.Fields)
		at := cursorsIn(fields, "after", text)
		if fields.Err != nil {
			require.Nil(t, at)
			require.ErrorContains(t, fields.Err, "after")
			return
		}
		var parts []string
		for node, c := range at {
			parts = append(parts, c.text(node))
		}
		require.Equal(t, at, cursorsIn(fields, "after", strings.Join(parts, ",")))
		require.NoError(t, fields.Err)
	})
}
