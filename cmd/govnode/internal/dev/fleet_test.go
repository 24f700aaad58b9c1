package dev

import (
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/config"
)

// What dev tells a node is what the node understands, and nothing else.
func TestNodeArgs(t *testing.T) {
	c, err := settingsOf(t, config.OnDev, nil, "--data=d", "--log-level=warn", "--max-connections=7", "--request-timeout=3s")
	require.NoError(t, err)
	places, err := placesFrom("d", "127.0.0.1:7070", 3)
	require.NoError(t, err)
	f := &fleet{layout: &layout{places: places}, config: c}
	for i, p := range places {
		node, err := settingsOf(t, config.OnServe, nil, f.nodeArgs(i)...)
		require.NoError(t, err)
		require.NoError(t, node.Check(config.OnServe))
		require.Equal(t, p.name, node.Node)
		require.Equal(t, p.api, node.Listen)
		require.Equal(t, p.raft, node.RaftListen)
		require.Equal(t, p.data, node.Data)
		require.Equal(t, i == 0, node.Bootstrap)
		require.Len(t, node.Join, 2)
		require.NotContains(t, node.Join, p.raft)
		require.Equal(t, []any{"warn", 7, 3 * time.Second}, []any{node.LogLevel, node.MaxConnections, node.RequestTimeout})
	}
	c.Backend = "memory"
	node, err := settingsOf(t, config.OnServe, nil, f.nodeArgs(0)...)
	require.NoError(t, err)
	require.NoError(t, node.Check(config.OnServe))
	require.Empty(t, node.Data)
	c.Backend, c.Redis = "redis", "redis://127.0.0.1:1"
	node, err = settingsOf(t, config.OnServe, map[string]string{"GOVNODE_REDIS": c.Redis}, f.nodeArgs(1)...)
	require.NoError(t, err)
	require.NoError(t, node.Check(config.OnServe))
	require.Equal(t, []string{"node2", places[1].data, c.Redis}, []string{node.Node, node.Data, node.Redis})
}

// settingsOf are what a command of a scope has of its arguments and its
// environment.
func settingsOf(t *testing.T, on config.Scope, env map[string]string, args ...string) (*config.Config, error) {
	t.Helper()
	cmd := &cobra.Command{Use: "test"}
	c := config.Bind(cmd, on)
	require.NoError(t, cmd.ParseFlags(args))
	err := c.Load(cmd.Flags(), func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	})
	return c, err
}
