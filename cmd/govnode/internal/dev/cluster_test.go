package dev

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The lines of dev tell which node is where, also after a restart, however they
// are cut.
func TestClusterHears(t *testing.T) {
	c := &Cluster{ready: make(chan struct{})}
	for _, part := range []string{"node node2 api=127.0.0.1:2 pid=22\nnode no", "de1 api=127.0.0.1:1 pid=11\n", "read", "y\n\nTry it\n", "node node1 api=127.0.0.1:1 pid=12\n"} {
		n, err := c.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	<-c.ready
	require.Equal(t, []Node{{"node1", "127.0.0.1:1", 12, 2}, {"node2", "127.0.0.1:2", 22, 1}}, c.List())
	require.Equal(t, []string{"127.0.0.1:1", "127.0.0.1:2"}, c.Addresses())
	_, known := c.Node("node3")
	require.False(t, known)
}
