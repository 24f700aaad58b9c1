package wire

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// A mark tells in which generation the record was set aside; what is damaged of it is no
// mark any more.
func TestMarkOf(t *testing.T) {
	const stamp = Stamp("0123456789abcdef")
	for _, want := range []uint32{0, 1, 1<<24 - 1, math.MaxUint32} {
		generation, yes := IsAside(MarkOf(stamp, want))
		require.True(t, yes)
		require.Equal(t, want, generation)
		_, err := DecodeValue("ktest/k", MarkOf(stamp, want))
		require.ErrorIs(t, err, ErrAside)
	}
	generation, yes := IsAside(string(stamp) + AsideMark)
	require.True(t, yes)
	require.Zero(t, generation, "it tells none")
	for _, v := range []string{"", string(stamp), string(stamp) + "asid", string(stamp) + "asidE1", string(stamp) + "aside1x", string(stamp) + "aside-1", string(stamp) + "aside4294967296"} {
		_, yes := IsAside(v)
		require.False(t, yes, v)
	}
}
