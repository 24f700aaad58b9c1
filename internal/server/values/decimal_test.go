package values

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/input"
)

func TestDecimals(t *testing.T) {
	for text, millionths := range map[string]int64{
		"0": 0, "-0": 0, "3": 3e6, "3.0": 3e6, "0.5": 5e5, "-0.5": -5e5, "00.50": 5e5, "12.25": 12_250_000, "0.000001": 1,
		"9223372036854.775807": math.MaxInt64, "-9223372036854.775808": math.MinInt64, "-9223372036854.775807": -math.MaxInt64,
	} {
		n, err := input.ParseDecimal(text)
		require.NoError(t, err, text)
		require.Equal(t, millionths, n, text)
	}
	for _, text := range []string{
		"", "-", ".", ".5", "5.", "+1", "1e3", "0x1", "1_000", "1,5", " 1", "1 ", "--1", "NaN", "inf", "1.0000000", "0.0000001",
		"9223372036854.775808", "-9223372036854.775809", "99999999999999999999", "١",
	} {
		_, err := input.ParseDecimal(text)
		require.Error(t, err, text)
	}
	for millionths, text := range map[int64]string{
		0: "0", 1: "0.000001", -1: "-0.000001", 5e5: "0.5", 3e6: "3", 12_250_000: "12.25", -1_000_001: "-1.000001",
		math.MaxInt64: "9223372036854.775807", math.MinInt64: "-9223372036854.775808",
	} {
		require.Equal(t, text, input.FormatDecimal(millionths))
	}
}

// A text becomes a number only if it is the number's own print, so that what
// was set is what is got.
func TestStoredIsPrinted(t *testing.T) {
	for text, number := range map[string]bool{"3": true, "0.5": true, "-7": true, "3.0": false, "03": false, "-0": false, "x": false, "": false, "1e3": false} {
		v := stored(text)
		require.Equal(t, number, v.Number, text)
		require.Equal(t, text, printed(v))
	}
}

// What is printed reads as the same number, and exact arithmetic agrees.
func FuzzDecimal(f *testing.F) {
	f.Add("12.25")
	f.Add("-9223372036854.775808")
	f.Add("000.1")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := input.ParseDecimal(text)
		if err != nil {
			return
		}
		want, ok := new(big.Rat).SetString(text)
		require.True(t, ok, "%q is no number to anybody else", text)
		require.Zero(t, want.Cmp(big.NewRat(n, input.Million)), "%q was read as %d millionths", text, n)
		again, err := input.ParseDecimal(input.FormatDecimal(n))
		require.NoError(t, err)
		require.Equal(t, n, again)
		require.Equal(t, text, printed(stored(text)))
	})
}
