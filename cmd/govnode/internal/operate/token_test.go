package operate

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/remote"
)

// A logout says as asked whether there was a token to forget.
func TestLogoutPrintsAsAsked(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	_, err := remote.Remember("127.0.0.1:1", "gn_default.abcd.secret")
	require.NoError(t, err)
	for _, forgotten := range []bool{true, false} {
		var out bytes.Buffer
		cmd := Logout()
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"--addr", "127.0.0.1:1", "-o", "json"})
		require.NoError(t, cmd.Execute())
		var said map[string]any
		require.NoError(t, json.Unmarshal(out.Bytes(), &said), out.String())
		require.Equal(t, map[string]any{"addr": "127.0.0.1:1", "forgotten": forgotten}, said)
	}
}
