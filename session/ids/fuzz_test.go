package ids

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzTime(f *testing.F) {
	f.Add("01ARZ3NDEKTSV4RRFFQ69G5FAV")
	f.Add("018f4d5c-7a1b-7c3d-8e4f-5a6b7c8d9e0f")
	f.Fuzz(func(t *testing.T, id string) {
		require.LessOrEqual(t, Time(id), uint64(MaxTime))
	})
}

// What is read as the head of a record is written again as the same bytes.
func FuzzReadHead(f *testing.F) {
	var m Set
	m.parts = &idParts{}
	f.Add(m.AppendHead(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, rest, ok := ReadHead(b)
		if ok {
			require.Equal(t, b[:len(b)-len(rest)], m.AppendHead(nil))
		}
	})
}
