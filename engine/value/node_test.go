package value

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"
)

// A map is the same however it was made, small or large.
func TestMapsOfEverySize(t *testing.T) {
	for n := range 2*linearKeys + 2 {
		var pairs []Pair
		grown := OfMap()
		fields := map[string]*structpb.Value{}
		var json strings.Builder
		for i := range n {
			key := fmt.Sprintf("k%02d", i)
			pairs = append(pairs, Pair{key, OfInt(int64(i))})
			grown = grown.With(key, OfInt(int64(i)))
			fields[key] = structpb.NewNumberValue(float64(i))
			fmt.Fprintf(&json, `,%q:%d`, key, i)
		}
		want := "{" + strings.TrimPrefix(json.String(), ",") + "}"
		parsed, err := Parse([]byte(want))
		require.NoError(t, err)
		for name, v := range map[string]Value{"pairs": OfMap(pairs...), "grown": grown, "parsed": parsed, "struct": FromStruct(&structpb.Struct{Fields: fields})} {
			require.Equal(t, want, v.JSON(), name)
			require.Equal(t, n, v.Len(), name)
			require.True(t, Equal(v, parsed), name)
			for i := range n {
				x, _ := v.Find(fmt.Sprintf("k%02d", i)).Int()
				require.Equal(t, int64(i), x, "%s: %d of %d", name, i, n)
			}
			require.Nil(t, v.Find("k"), name)
			if n == 0 {
				continue
			}
			// Another value in one place leaves the first map as it was.
			last := fmt.Sprintf("k%02d", n-1)
			other := v.With(last, OfString("x"))
			s, _ := other.Find(last).AsString()
			require.Equal(t, "x", s, name)
			require.Equal(t, want, v.JSON(), name)
			require.Equal(t, n, other.Len(), name)
		}
	}
}

// Growing two maps from one shares nothing that either writes to.
func TestMapsGrowApart(t *testing.T) {
	base := OfMap(Pair{"a", OfInt(1)}, Pair{"b", OfInt(2)}, Pair{"c", OfInt(3)}) // with room for one more
	x, y := base.With("x", OfInt(4)), base.With("y", OfInt(5))
	require.Equal(t, `{"a":1,"b":2,"c":3}`, base.JSON())
	require.Equal(t, `{"a":1,"b":2,"c":3,"x":4}`, x.JSON())
	require.Equal(t, `{"a":1,"b":2,"c":3,"y":5}`, y.JSON())
}

func TestSmallMapIsOneAllocation(t *testing.T) {
	var v Value
	for n := 1; n <= 4; n++ {
		pairs := []Pair{{"a", OfInt(1)}, {"b", OfInt(2)}, {"c", OfInt(3)}, {"d", OfInt(4)}}[:n]
		require.Equal(t, 1.0, testing.AllocsPerRun(100, func() { v = OfMap(pairs...) }), "%d pairs", n)
	}
	require.Equal(t, 4, v.Len())
}

// Text leaves what is UTF-8 as it is, wherever a byte beyond ASCII stands.
func TestText(t *testing.T) {
	for n := range 40 {
		plain := strings.Repeat("a", n)
		require.True(t, isASCII(plain))
		require.Equal(t, plain, Text(plain))
		for i := range n {
			for _, odd := range []string{"é", "\xff", "\xc3", "\uFFFD"} {
				s := plain[:i] + odd + plain[i+1:]
				require.False(t, isASCII(s), "%q", s)
				require.Equal(t, strings.ToValidUTF8(s, "\uFFFD"), Text(s), "%q", s)
				require.True(t, utf8.ValidString(Text(s)))
			}
		}
	}
}
