package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cluster"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/serve"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// cli runs a command in this process, asks the nodes for JSON and decodes it.
func cli(t *testing.T, into any, args ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := execute(append(args, "-o", "json"), &stdout, &stderr)
	require.Equal(t, terminal.ExitYes, code, "%v: %s", args, stderr.String())
	if into != nil {
		require.NoError(t, json.Unmarshal(stdout.Bytes(), into))
	}
}

type clusterStatus struct {
	Node, Leader, Health string
	Peers                []struct{ Node, Role, APIAddress string }
}

// Three nodes: the leader is killed, the others go on, it comes back; all are
// stopped and started again on the same data, on the same ports, and remember.
func TestThreeNodes(t *testing.T) {
	for _, store := range []string{cluster.LogBoltDB, cluster.LogWAL} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			testThreeNodes(t, store)
		})
	}
}

func testThreeNodes(t *testing.T, store string) {
	folder := filepath.Join(t.TempDir(), "data")
	dev := start(t, "dev", "--data", folder, "--listen", "127.0.0.1:0", "--log-store", store)
	dev.mustAwait(t, `^ready$`, 1)
	nodes := dev.mustAwait(t, nodeLine, 3)
	apis, pids := map[string]string{}, map[string]string{}
	for _, n := range nodes {
		apis[n[1]], pids[n[1]] = n[2], n[3]
	}
	require.Len(t, apis, 3)

	policy := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(policy, []byte("name: p\nmax_concurrent: 5\nbackpressure_threshold: 4\n"), 0o600))
	cli(t, nil, "policy", "put", policy, "--addr", apis["node2"])
	remote := func(node string) remote.Node { return remote.NewNode(http.DefaultClient, apis[node]) }
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	_, err := remote("node3").CreateSession(ctx, &govnodev1.CreateSessionRequest{
		SessionId: "s", AgentId: "a", Policy: &govnodev1.PolicyRef{Ref: &govnodev1.PolicyRef_Name{Name: "p"}},
	})
	require.NoError(t, err)

	var status clusterStatus
	cli(t, &status, "cluster", "status", "--addr", apis["node1"])
	leader := status.Leader
	require.Contains(t, apis, leader)
	var survivors []string
	for name := range apis {
		if name != leader {
			survivors = append(survivors, name)
		}
	}

	killed := time.Now()
	kill9(t, pids[leader])
	cli(t, nil, "session", "close", "s", "--addr", apis[leader]+","+apis[survivors[0]])
	t.Logf("a survivor closed the session %v after its leader was killed", time.Since(killed).Round(time.Millisecond))

	again := dev.mustAwait(t, nodeLine, 4)[3]
	require.Equal(t, []string{leader, apis[leader]}, again[1:3])
	require.NotEqual(t, pids[leader], again[3])
	awaitStatus(t, apis[leader], func(s clusterStatus) bool { return s.Health == "ok" && len(s.Peers) == 3 && s.Leader != "" })

	stopping := time.Now()
	require.NoError(t, dev.stop())
	require.Less(t, time.Since(stopping), serve.DrainTimeout)

	other := map[string]string{cluster.LogBoltDB: cluster.LogWAL, cluster.LogWAL: cluster.LogBoltDB}[store]
	var stdout, stderr bytes.Buffer
	require.Equal(t, terminal.ExitUsage, execute([]string{"dev", "--data", folder, "--log-store", other}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "--log-store "+store+": give the same")

	dev = start(t, "dev", "--data", folder)
	dev.mustAwait(t, `^ready$`, 1)
	for _, n := range dev.mustAwait(t, nodeLine, 3) {
		require.Equal(t, apis[n[1]], n[2])
		var found struct{ Session struct{ State string } }
		cli(t, &found, "session", "get", "s", "--addr", n[2])
		require.Equal(t, "SESSION_STATE_CLOSED", found.Session.State)
	}
	require.NoError(t, dev.stop())
}

// awaitStatus asks a node until it says what is wanted.
func awaitStatus(t *testing.T, api string, want func(clusterStatus) bool) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(longEnough); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var stdout, stderr bytes.Buffer
		execute([]string{"cluster", "status", "--addr", api, "-o", "json"}, &stdout, &stderr)
		var s clusterStatus
		if err := json.Unmarshal(stdout.Bytes(), &s); err == nil && want(s) {
			return
		}
		last = fmt.Sprint(stdout.String(), stderr.String())
	}
	t.Fatalf("the node never said so; last: %s", last)
}
