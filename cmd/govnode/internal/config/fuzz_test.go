package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A file of settings is read, or refused with a reason; each setting has a name.
func FuzzFileSettings(f *testing.F) {
	f.Add([]byte("listen: 127.0.0.1:7070\nbackend: raft\n"))
	f.Add([]byte("a: [1, 2]\nb: &x 3\nc: *x\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		settings, err := fileSettings(b)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		for _, s := range settings {
			require.NotEmpty(t, s.key)
		}
	})
}
