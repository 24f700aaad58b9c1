package wire

import (
	"encoding/binary"
	"testing"
	"unique"

	"github.com/stretchr/testify/require"
)

// What is no field of bytes is said to be none, by whichever method it is read.
func TestWhatIsNoFieldOfBytes(t *testing.T) {
	for text, b := range map[string][]byte{
		"wrong wire type":                  {1 << 3, 1},
		"truncated":                        {1<<3 | 2, 5, 'a'},
		"a length that has bytes to spare": {1<<3 | 2, 0x81, 0, 'a'},
	} {
		for what, read := range map[string]func(f *Coder){
			"Peek": func(f *Coder) { require.Empty(t, f.Peek()) },
			"Skip": func(f *Coder) { f.Skip() },
			"Text": func(f *Coder) { f.Text(1, new(string)) },
			"View": func(f *Coder) { require.Empty(t, f.View(1)) },
		} {
			f := NewReader(b, nil)
			for m := f.Top(); f.Visit(&m); {
				read(&f)
			}
			require.ErrorContains(t, f.Err(), text, what)
		}
	}
}

// How many names are kept is bounded, for they come from clients; beyond the bound they
// are looked up as well.
func TestNamesAreBounded(t *testing.T) {
	names := NewNames()
	for i := range 1<<16 + 1 {
		b := binary.AppendUvarint(nil, uint64(i)+1)
		require.Equal(t, string(b), names.handle(b).Value())
	}
	require.Len(t, names.names, 1<<16)
	require.Equal(t, unique.Make("\x01"), names.handle([]byte{1}))
	require.Equal(t, unique.Make("another"), names.handle([]byte("another")))
	require.Equal(t, unique.Make(""), names.handle(nil))
	require.Equal(t, unique.Make(""), (*Names)(nil).handle(nil))
}
