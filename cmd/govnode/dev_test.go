package main

import (
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/dev"
)

const nodeLine = `^node (\S+) api=(\S+) pid=(\d+)$`

// kill9 kills a process that somebody else has started.
func kill9(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(n, syscall.SIGKILL))
}

// gone reports whether nobody listens on an address any more within a time.
func gone(address string, within time.Duration) bool {
	for deadline := time.Now().Add(within); time.Now().Before(deadline); {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return true
		}
		_ = conn.Close()
		time.Sleep(5 * time.Millisecond) // between two looks
	}
	return false
}

// A node that dies is started again with the same name and port.
func TestDevRestartsANode(t *testing.T) {
	t.Parallel()
	p := start(t, "dev", "--backend", "memory", "--listen", "127.0.0.1:0")
	p.mustAwait(t, `^ready$`, 1)
	node := p.mustAwait(t, nodeLine, 1)[0]
	killed := time.Now()
	kill9(t, node[3])
	again := p.mustAwait(t, nodeLine, 2)[1]
	require.GreaterOrEqual(t, time.Since(killed), dev.RestartAfter)
	require.Equal(t, node[1:3], again[1:3])
	require.NotEqual(t, node[3], again[3])
	require.NoError(t, p.stop())
	require.Equal(t, 1, strings.Count(p.printed(), "\nready\n"))
}

// With --restart=false it stays dead, and dev ends with its last node.
func TestDevWithoutRestart(t *testing.T) {
	t.Parallel()
	dev := start(t, "dev", "--backend", "memory", "--listen", "127.0.0.1:0", "--restart=false")
	dev.mustAwait(t, `^ready$`, 1)
	kill9(t, dev.mustAwait(t, nodeLine, 1)[0][3])
	require.ErrorContains(t, dev.wait(), "exit status 1")
	require.Contains(t, dev.printed(), "every node has ended")
	require.Len(t, dev.mustAwait(t, nodeLine, 1), 1)
}

// Nodes do not outlive dev, however it dies.
func TestNodesEndWithDev(t *testing.T) {
	t.Parallel()
	if signal.Ignored(syscall.SIGHUP) {
		// As nohup has it, and dev would have it from here. What is waited for
		// is not handed on.
		hangups := make(chan os.Signal, 1)
		signal.Notify(hangups, syscall.SIGHUP)
		t.Cleanup(func() { signal.Stop(hangups) })
	}
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			dev := start(t, "dev", "--backend", "memory", "--listen", "127.0.0.1:0")
			dev.mustAwait(t, `^ready$`, 1)
			api := dev.mustAwait(t, nodeLine, 1)[0][2]
			require.NoError(t, dev.cmd.Process.Signal(sig))
			_ = dev.wait()
			require.True(t, gone(api, time.Second), "a node is still there")
		})
	}
}

// On systems where the kernel does not see to it, the end of standard input
// does.
func TestNodeEndsWithItsInput(t *testing.T) {
	t.Parallel()
	node := start(t, "serve", "--backend", "memory", "--listen", "127.0.0.1:0", "--end-with-stdin")
	api := node.mustAwait(t, nodeLine, 1)[0][2]
	require.False(t, gone(api, 50*time.Millisecond))
	require.NoError(t, node.stdin.Close())
	require.ErrorContains(t, node.wait(), "exit status 1")
	require.True(t, gone(api, time.Second))
}

// A node whose setup is wrong ends dev, which says why.
func TestDevSaysWhyANodeCannotStart(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "node1"), nil, 0o600)) // where its folder has to be
	dev := start(t, "dev", "--nodes", "1", "--listen", "127.0.0.1:0", "--data", folder)
	require.ErrorContains(t, dev.wait(), "exit status 1")
	require.Contains(t, dev.printed(), "node1 ended before it was ready")
	require.Contains(t, dev.printed(), "data: cannot make the folder")
}

func TestTemporaryFolderIsRemoved(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	dev := start(t, "dev", "--backend", "memory", "--listen", "127.0.0.1:0", "--data", folder)
	dev.mustAwait(t, `^ready$`, 1)
	require.NoError(t, dev.stop())
	require.FileExists(t, filepath.Join(folder, "node1.log"))
}
