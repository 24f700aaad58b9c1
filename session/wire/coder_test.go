package wire

import (
	"testing"

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
