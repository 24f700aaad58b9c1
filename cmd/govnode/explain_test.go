package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/terminal"
)

// Nodes that share a Redis have names of their own without being given any. The
// record of a decision is kept by the one that made it, which the others do not
// know of: explain says so, and asks all that it is given.
func TestExplainOverRedis(t *testing.T) {
	t.Parallel()
	url := startRedis(t)
	serve := func() (name, api string) {
		node := start(t, "serve", "--backend", "redis", "--redis", url, "--listen", "127.0.0.1:0")
		line := node.mustAwait(t, nodeLine, 1)[0]
		return line[1], line[2]
	}
	one, at := serve()
	other, elsewhere := serve()
	require.NotEqual(t, one, other)
	denied := caller(t, elsewhere)("c1", "write").DecisionId

	var out, stderr bytes.Buffer
	require.Equal(t, terminal.ExitNo, execute([]string{"explain", denied, "--addr", at}, &out, &stderr))
	require.Contains(t, stderr.String(), "is kept by "+one)
	require.Contains(t, stderr.String(), "another may have it: name all of them with --addr")
	require.Empty(t, out.String())

	require.Equal(t, terminal.ExitYes, execute([]string{"explain", denied, "--addr", at + "," + elsewhere}, &out, &stderr), stderr.String())
	require.Regexp(t, `(?m)^NODE +`+other+`$`, out.String())

	stderr.Reset()
	require.Equal(t, terminal.ExitNo, execute([]string{"explain", "nothing", "--addr", at + "," + elsewhere}, &out, &stderr))
	require.Contains(t, stderr.String(), "is kept by "+one)
	require.Contains(t, stderr.String(), "is kept by "+other)
}
