package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/dev"
)

// needRedis returns the redis-server of this machine, or skips the test.
func needRedis(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		const advice = "there is no redis-server; install it with: sudo apt-get install -y redis-server"
		if os.Getenv("GOVNODE_REQUIRE_REDIS") != "" {
			t.Fatal(advice)
		}
		t.Skip(advice)
	}
	return program
}

// startRedis runs a Redis that keeps what it acknowledges, and returns its URL.
func startRedis(t *testing.T) string {
	t.Helper()
	needRedis(t)
	address, err := dev.FreePorts("127.0.0.1:0", 1)
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	runRedis(t, address, "--port", port, "--requirepass", "secret")
	return "redis://:secret@" + address + "/0"
}

// Two nodes over one Redis: what one was told the other knows, also after all
// of them were started again.
func TestDevOnRedis(t *testing.T) {
	t.Parallel()
	url := startRedis(t)
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(policy, []byte("name: p\nmax_tool_calls: 5\n"), 0o600))
	for round := range 2 {
		dev := start(t, "dev", "--backend", "redis", "--redis", url, "--nodes", "2", "--listen", "127.0.0.1:0")
		dev.mustAwait(t, `^ready$`, 1)
		nodes := dev.mustAwait(t, nodeLine, 2)
		if round == 0 {
			cli(t, nil, "policy", "put", policy, "--addr", nodes[0][2])
		}
		for _, node := range nodes {
			var policies struct{ Policies []struct{ Name string } }
			cli(t, &policies, "policy", "list", "--addr", node[2])
			require.Len(t, policies.Policies, 1)
			require.Equal(t, "p", policies.Policies[0].Name)
		}
		// A password is no business of whoever lists processes.
		args, err := os.ReadFile("/proc/" + nodes[0][3] + "/cmdline")
		if err == nil {
			require.NotContains(t, string(args), "secret")
		}
		require.NoError(t, dev.stop())
	}
}
