package terminal

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"plain é 漢": "plain é 漢",
		"\x1b[2Jx":  `\x1b[2Jx`,
		"a\tb\nc":   `a\tb\nc`,
		"\u202e":    `\u202e`,
	} {
		require.Equal(t, want, Printable(text))
	}
	require.Equal(t, `one; two \x1b`, OneLine("one\r\ntwo \x1b\n"))
}
