package durable

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever a disk gives back is taken for what was written, or refused.

func FuzzReadTail(f *testing.F) {
	head := make([]byte, walHead)
	f.Add(head)
	f.Add(append(head, walEntry, 0, 0, 0, 5, 0, 0, 0, 'h', 'e', 'l', 'l', 'o', 0, 0, 0, walCommit, 0, 0, 0, 1, 2, 3, 4))
	f.Add(append(head, walEntry, 0, 1, 0, 0, 0, 0, 0)) // what no frame begins with
	f.Add(append(head, 9, 0, 0, 0, 0, 0, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[:len(b)/walFrame*walFrame] // as written returns it
		tail := readTail(b)
		require.LessOrEqual(t, tail.whole, len(b))
		if tail.whole < len(b) {
			require.NotEmpty(t, tail.why)
			tail.cutShort(b)
		}
	})
}

func FuzzParseNode(f *testing.F) {
	f.Add(make([]byte, 64))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 'k', 'v'})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, used, err := parseNode(b)
		if err == nil {
			require.LessOrEqual(t, used, len(b))
		}
	})
}

func FuzzSealed(f *testing.F) {
	f.Add([]byte("value"))
	f.Add([]byte{}) // which is a value as well
	f.Add(mark{last: 7, sum: 8, sets: 9}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = unseal(b)
		sealed := seal(b)
		value, err := unseal(sealed)
		require.NoError(t, err)
		require.Equal(t, len(b), len(value))
		sealed[len(b)/2] ^= 1
		_, err = unseal(sealed)
		require.ErrorIs(t, err, ErrDamaged)
		if m := decodeMark(b); m != (mark{}) {
			require.Equal(t, b, m.encode())
		}
	})
}
