package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// startRedis runs a Redis that keeps what it acknowledges, and returns its URL.
func startRedis(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		const advice = "there is no redis-server: apt-get install redis-server"
		if os.Getenv("GOVNODE_REQUIRE_REDIS") != "" {
			t.Fatal(advice)
		}
		t.Skip(advice)
	}
	first, err := freePorts("127.0.0.1:0", 1)
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(first)
	require.NoError(t, err)
	cmd := exec.Command(program, "--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(),
		"--appendonly", "yes", "--appendfsync", "always", "--save", "", "--requirepass", "secret")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", first)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, longEnough, 10*time.Millisecond)
	return fmt.Sprintf("redis://:secret@127.0.0.1:%s/0", port)
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
