package serve

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/config"
)

// Where nobody is asked who he is all are one tenant, which nothing holds.
func TestPaceOfSessionsIsForTenants(t *testing.T) {
	require.Positive(t, sessionPace(&config.Config{Auth: config.AuthTokens}))
	require.Zero(t, sessionPace(&config.Config{Auth: config.AuthNone}))
	require.Zero(t, sessionPace(&config.Config{}))
}
