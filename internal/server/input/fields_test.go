package input

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An id is of the bytes that its rule names, and of no others.
func TestIDBytes(t *testing.T) {
	for c := range 256 {
		allowed := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c < 128 && strings.ContainsRune("._:@/-", rune(c))
		f := &Fields{}
		f.ID("id", "a"+string([]byte{byte(c)}))
		if allowed {
			require.NoError(t, f.Err, "%q", c)
		} else {
			require.ErrorContains(t, f.Err, "byte 1 is not allowed", "%q", c)
		}
	}
}
