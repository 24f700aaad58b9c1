package serve

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/config"
)

// The files of TLS are read at the start, and an error names the setting.
func TestRedisTLSFiles(t *testing.T) {
	dir := t.TempDir()
	none := filepath.Join(dir, "none")
	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte("hello"), 0o600))
	for wrong, c := range map[string]*config.Config{
		"redis-tls-ca: open":       {RedisTLSCA: none},
		"redis-tls-ca: " + text:    {RedisTLSCA: text},
		"redis-tls-cert, redis-tl": {RedisTLSCert: none, RedisTLSKey: text},
	} {
		_, err := redisTLS(c)
		require.ErrorContains(t, err, wrong)
	}
	secure, err := redisTLS(&config.Config{})
	require.NoError(t, err)
	require.Nil(t, secure, "the URL says it")
	secure, err = redisTLS(&config.Config{RedisTLS: true})
	require.NoError(t, err)
	require.NotNil(t, secure)
}
