package sdk_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/edictum-ai/edictum-go/server"
	"github.com/stretchr/testify/require"
)

const agentKey, operatorKey = "key-of-an-agent", "key-of-an-operator"

// nodes are three that run, with their addresses and processes.
type nodes struct {
	t    *testing.T
	urls []string
	pids []int
}

var line = regexp.MustCompile(`api=(127\.0\.0\.1:\d+) pid=(\d+)`)

// start runs three nodes of the program that GOVNODE_BINARY names.
func start(t *testing.T) *nodes {
	t.Helper()
	binary := os.Getenv("GOVNODE_BINARY")
	if binary == "" {
		t.Skip("GOVNODE_BINARY names no program: run make test-edictum-go")
	}
	keys := filepath.Join(t.TempDir(), "keys.json")
	hash := func(key string) string {
		sum := sha256.Sum256([]byte(key))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	raw, err := json.Marshal(map[string]any{"keys": []map[string]string{
		{"name": "agent", "role": "agent", "hash": hash(agentKey)}, {"name": "operator", "role": "operator", "hash": hash(operatorKey)},
	}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(keys, raw, 0o600))
	cmd := exec.Command(binary, "dev", "--nodes", "3", "--listen", "127.0.0.1:0", "--edictum-keys", keys)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	n := &nodes{t: t}
	said := bufio.NewScanner(out)
	for said.Scan() {
		if m := line.FindStringSubmatch(said.Text()); m != nil {
			pid, err := strconv.Atoi(m[2])
			require.NoError(t, err)
			n.urls, n.pids = append(n.urls, "http://"+m[1]), append(n.pids, pid)
		}
		if said.Text() == "ready" {
			break
		}
	}
	require.Len(t, n.urls, 3)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return n
}

// client is one of the SDK's at a node.
func (n *nodes) client(node int) *server.Client {
	n.t.Helper()
	c, err := server.NewClient(server.ClientConfig{BaseURL: n.urls[node], APIKey: agentKey, AgentID: "writer", AllowInsecure: true})
	require.NoError(n.t, err)
	return c
}

// operator asks with the key of an operator.
func (n *nodes) operator(node int, method, path string, body any) map[string]any {
	n.t.Helper()
	raw, err := json.Marshal(body)
	require.NoError(n.t, err)
	req, err := http.NewRequest(method, n.urls[node]+path, bytes.NewReader(raw))
	require.NoError(n.t, err)
	req.Header.Set("Authorization", "Bearer "+operatorKey)
	res, err := http.DefaultClient.Do(req)
	require.NoError(n.t, err)
	defer func() { _ = res.Body.Close() }()
	require.Less(n.t, res.StatusCode, 300, "%s", path)
	out := map[string]any{}
	require.NoError(n.t, json.NewDecoder(res.Body).Decode(&out))
	return out
}

// leader is the place of the node that leads; dev starts a node that was killed again.
func (n *nodes) leader() int {
	n.t.Helper()
	for {
		for i, url := range n.urls {
			res, err := http.Post(url+"/govnode.v1.ClusterService/Status", "application/json", bytes.NewReader([]byte("{}")))
			if err != nil {
				continue
			}
			var s struct{ Node, Leader string }
			err = json.NewDecoder(res.Body).Decode(&s)
			_ = res.Body.Close()
			if err == nil && s.Leader != "" && s.Leader == s.Node {
				return i
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func unique(name string) string { return fmt.Sprintf("%s-%d", name, time.Now().UnixNano()) }
