package wire

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

// Whatever stands in Redis is a record or the clock, or refused.

func FuzzDecodeValue(f *testing.F) {
	f.Add("s/n/one", "")
	f.Add("p/n/pool", "0000000000000000000000000000000000000000")
	f.Fuzz(func(t *testing.T, k, v string) {
		e, _ := DecodeValue(session.Key(k), v)
		require.Equal(t, len(v), e.Size)
	})
}

func FuzzParseClock(f *testing.F) {
	f.Add(ClockText(12345) + " 17")
	f.Add("+000000000000000000 1")
	f.Fuzz(func(t *testing.T, s string) {
		at, _, err := ParseClock(s)
		if err == nil {
			require.Equal(t, s[:19], ClockText(at))
		}
	})
}
