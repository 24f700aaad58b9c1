package dev

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/config"
)

// A folder that nobody asked to keep goes away.
func TestTemporaryLayoutIsRemoved(t *testing.T) {
	c, err := settingsOf(t, config.OnDev, nil, "--backend=memory", "--listen=127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, c.Check(config.OnDev))
	l, err := openLayout(c)
	require.NoError(t, err)
	require.DirExists(t, l.folder)
	require.NoError(t, l.close())
	require.NoDirExists(t, l.folder)
}
