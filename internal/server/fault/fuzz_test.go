package fault

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What connect wrote of a field that cannot be read is that field again, whatever
// a caller called its keys.
func FuzzParseUnread(f *testing.F) {
	f.Add(`arguments["a: b"].x[3]`, "is no number: 1e")
	f.Add("ttl", "line\nbreak")
	f.Fuzz(func(t *testing.T, field, text string) {
		const prefix = "unmarshal message: "
		_ = ParseUnread(field + text)
		u := ParseUnread(prefix + field + ": " + text)
		if u != nil {
			require.Equal(t, field+": "+text, u.Error())
			require.Equal(t, u, ParseUnread(prefix+u.Error()))
		}
	})
}
