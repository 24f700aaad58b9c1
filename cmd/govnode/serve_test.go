package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/serve"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// A node that is told to end answers those who wait there at once, so that they
// go on elsewhere, and ends long before it would have to.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	node := start(t, "serve", "--backend", "memory", "--listen", "127.0.0.1:0")
	api := node.mustAwait(t, nodeLine, 1)[0][2]
	r := remote.NewNode(http.DefaultClient, api)
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	_, err := r.PutPool(ctx, &govnodev1.PutPoolRequest{Pool: "gpu", Slots: 1, RequestId: "1"})
	require.NoError(t, err)
	held, err := r.AcquireSlot(ctx, &govnodev1.AcquireSlotRequest{Pool: "gpu", SlotId: "a"})
	require.NoError(t, err)
	require.Equal(t, govnodev1.Outcome_OUTCOME_ADMITTED, held.Outcome)

	waited := make(chan error, 1)
	go func() {
		_, err := r.AcquireSlot(ctx, &govnodev1.AcquireSlotRequest{Pool: "gpu", SlotId: "b", Wait: durationpb.New(longEnough)})
		waited <- err
	}()
	require.Eventually(t, func() bool {
		slots, err := r.ListSlots(ctx, &govnodev1.ListSlotsRequest{Pool: "gpu"})
		return err == nil && len(slots.Waiters) == 1
	}, longEnough, 5*time.Millisecond)

	told := time.Now()
	require.NoError(t, node.stop())
	require.Less(t, time.Since(told), serve.DrainTimeout/2)
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(<-waited))
	require.Contains(t, node.printed(), "msg=ended")
}

// The second signal does not wait for what the first one lets end.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	node := start(t, "serve", "--backend", "memory", "--listen", "127.0.0.1:0")
	api := node.mustAwait(t, nodeLine, 1)[0][2]
	beginWithoutEnd(t, api)

	require.NoError(t, node.cmd.Process.Signal(syscall.SIGTERM))
	node.mustAwait(t, `msg=draining`, 1)
	select {
	case <-node.ended:
		t.Fatal("it did not let the request end")
	case <-time.After(100 * time.Millisecond):
	}
	told := time.Now()
	require.ErrorContains(t, node.stop(), "exit status 1")
	require.Less(t, time.Since(told), serve.DrainTimeout/2)
}

// beginWithoutEnd begins a request whose body never comes, of the kind that may take its
// time. The node asks for the body when it has begun to read it.
func beginWithoutEnd(t *testing.T, api string) {
	t.Helper()
	conn, err := net.Dial("tcp", api)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/connect+json\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n", govnodev1connect.ClusterServiceRestoreProcedure)
	require.NoError(t, err)
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 100 Continue\r\n", line)
}

// A request that outlasts the drain is cut off, and what the node has to write at its end
// is written all the same.
func TestARequestThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	audit := filepath.Join(t.TempDir(), "audit.jsonl")
	node := start(t, "serve", "--backend", "memory", "--listen", "127.0.0.1:0", "--audit", audit, "--audit-chain", "on")
	beginWithoutEnd(t, node.mustAwait(t, nodeLine, 1)[0][2])
	anchors := func() int {
		written, _ := os.ReadFile(audit)
		return strings.Count(string(written), `"event_type":"anchor"`)
	}
	require.Eventually(t, func() bool { return anchors() == 1 }, longEnough, 5*time.Millisecond)
	told := time.Now()
	require.ErrorContains(t, node.stop(), "exit status 1")
	require.Less(t, time.Since(told), serve.DrainTimeout)
	require.Contains(t, node.printed(), "requests were still under way")
	require.Equal(t, 2, anchors(), "the last one is written at the end")
}

// A node that nobody admits can be ended all the same.
func TestEndWhileJoining(t *testing.T) {
	t.Parallel()
	node := start(t, "serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--raft-listen", "127.0.0.1:0", "--join", "127.0.0.1:1")
	node.mustAwait(t, `msg=starting`, 1)
	told := time.Now()
	require.ErrorContains(t, node.stop(), "exit status 1")
	require.Less(t, time.Since(told), serve.DrainTimeout/2)
	require.Contains(t, node.printed(), "ended before it was a member of its cluster")
}

// Whoever listens to the world is told what that means at each start.
func TestInsecureIsSaid(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"serve", "--backend", "memory", "--listen", "0.0.0.0:0", "--insecure"},
		{"dev", "--backend", "memory", "--listen", "0.0.0.0:0", "--insecure"},
	} {
		node := start(t, args...)
		node.mustAwait(t, `insecure: whoever can reach`, 1)
		node.mustAwait(t, nodeLine, 1)
		require.NoError(t, node.stop(), fmt.Sprint(args))
	}
}

// A decision is one line of JSON in the node's folder, with the fields of the
// specification and no others.
func TestAuditLine(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	dev := start(t, "dev", "--nodes", "1", "--data", folder, "--listen", "127.0.0.1:0")
	dev.mustAwait(t, `^ready$`, 1)
	api := dev.mustAwait(t, nodeLine, 1)[0][2]
	r := remote.NewNode(http.DefaultClient, api)
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	_, err := r.PutPolicy(ctx, &govnodev1.PutPolicyRequest{Yaml: "name: p\nallowed_tools: [read]\n"})
	require.NoError(t, err)
	_, err = r.CreateSession(ctx, &govnodev1.CreateSessionRequest{
		SessionId: "s", AgentId: "a", Policy: &govnodev1.PolicyRef{Ref: &govnodev1.PolicyRef_Name{Name: "p"}},
	})
	require.NoError(t, err)
	answer, err := govnodev1connect.NewCallServiceClient(http.DefaultClient, "http://"+api).BeginCall(ctx, &govnodev1.BeginCallRequest{SessionId: "s", CallId: "c", Tool: "write"})
	require.NoError(t, err)
	require.Equal(t, govnodev1.Outcome_OUTCOME_DENIED_BY_POLICY, answer.Outcome)
	require.NoError(t, dev.stop())

	content, err := os.ReadFile(filepath.Join(folder, "node1", "audit.jsonl"))
	require.NoError(t, err)
	var line map[string]any
	for text := range strings.Lines(string(content)) {
		line = nil
		require.NoError(t, json.Unmarshal([]byte(text), &line))
	}
	require.NotEmpty(t, line["event_type"])
	require.Equal(t, []any{false, "write", "s", "c", answer.DecisionId}, []any{line["allowed"], line["tool_name"], line["session_id"], line["call_id"], line["decision_id"]})
	for _, added := range []string{"time", "level", "msg"} {
		require.NotContains(t, line, added)
	}
}

// A full is a pipe that takes nothing any more, as one whose reader has stopped.
func full(t *testing.T) *os.File {
	t.Helper()
	reads, writes, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = reads.Close(), writes.Close() })
	raw, err := writes.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Write(func(fd uintptr) bool {
		for err == nil {
			_, err = syscall.Write(int(fd), []byte{'\n'})
		}
		return true
	}))
	require.ErrorIs(t, err, syscall.EAGAIN)
	return writes
}

// A node whose own log hangs serves on, does what it is told, and ends in time.
func TestServeWhoseLogHangs(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	path := filepath.Join(folder, "audit.jsonl")
	node, err := startProcessTo(full(t), folder, "serve", "--backend", "memory", "--listen", "127.0.0.1:0", "--audit", path)
	require.NoError(t, err)
	t.Cleanup(node.kill)
	r := remote.NewNode(http.DefaultClient, node.mustAwait(t, nodeLine, 1)[0][2])
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	for n := range 3 { // each writes to the node's log
		require.NoError(t, os.Rename(path, fmt.Sprint(path, n)))
		require.NoError(t, node.cmd.Process.Signal(syscall.SIGHUP))
		require.Eventually(t, func() bool { _, err := os.Stat(path); return err == nil }, longEnough, time.Millisecond)
		_, err := r.PutPolicy(ctx, &govnodev1.PutPolicyRequest{Yaml: fmt.Sprintf("name: n%d\nmax_tool_calls: 1\n", n)})
		require.NoError(t, err)
	}
	told := time.Now()
	require.NoError(t, node.stop())
	require.Less(t, time.Since(told), serve.DrainTimeout)
}

// Nor does a node wait for its log that has nothing but an error to say.
func TestServeThatCannotSayWhyItEnds(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	node, err := startProcessTo(full(t), t.TempDir(), "serve", "--backend", "memory", "--listen", taken.Addr().String())
	require.NoError(t, err)
	t.Cleanup(node.kill)
	require.ErrorContains(t, node.wait(), "exit status 1")
}
