package server_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/lobby"
	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// One port, one handler, four ways to speak to it.
func TestEveryProtocol(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	for name, c := range map[string]clients{
		"connect":      n.clients,
		"connect json": clientsOf(n.http, n.url, connect.WithProtoJSON()),
		"grpc":         n.h2(connect.WithGRPC()),
		"grpc-web":     clientsOf(n.http, n.url, connect.WithGRPCWeb()),
	} {
		t.Run(name, func(t *testing.T) {
			call := strings.ReplaceAll(name, " ", "-")
			res, err := c.calls.BeginCall(n.ctx(), beginRequest("s", call))
			require.NoError(t, err)
			require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
			_, err = c.calls.BeginCall(n.ctx(), beginRequest("nope", call))
			requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", "sessionId")
			_, err = c.calls.BeginCall(n.ctx(), beginRequest("s", call, func(r *v1.BeginCallRequest) { r.Tool = "other" }))
			requireRefused(t, err, connect.CodeInvalidArgument, "ID_REUSED", call)
		})
	}
}

// What curl sends, and what it reads: names in lowerCamelCase, enums by name,
// durations as text, 64-bit numbers as strings.
func TestPlainJSON(t *testing.T) {
	n := furnished(t)
	status, answer := n.post("CallService/BeginCall", `{"sessionId":"s","callId":"j","tool":"t","arguments":{"a":1},"ttl":"1.5s"}`)
	require.Equal(t, http.StatusOK, status, "%v", answer)
	require.Equal(t, "OUTCOME_ADMITTED", answer["outcome"])
	grant := answer["grants"].([]any)[0].(map[string]any)
	require.Equal(t, "policy/p", grant["pool"])
	require.IsType(t, "", grant["token"])
	require.Equal(t, "1.500s", grant["ttl"])

	req, err := http.NewRequest(http.MethodPost, n.url+"/govnode.v1.CallService/BeginCall", strings.NewReader("x"))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "text/plain")
	res, err := n.http.Do(req)
	require.NoError(t, err)
	_ = res.Body.Close()
	require.Equal(t, http.StatusUnsupportedMediaType, res.StatusCode)
	status, _ = n.get("/govnode.v1.CallService/BeginCall")
	require.Equal(t, http.StatusMethodNotAllowed, status)
}

func TestBodyLimits(t *testing.T) {
	n := furnished(t)
	padded := func(size int) string { // one field of two that may be large
		head := `{"sessionId":"s","callId":"big","tool":"t","argumentsJson":"{}"`
		return head + strings.Repeat(" ", size-len(head)-1) + "}"
	}
	status, answer := n.post("CallService/BeginCall", padded(256<<10))
	require.Equal(t, http.StatusOK, status, "%v", answer)
	status, answer = n.post("CallService/BeginCall", padded(256<<10+1))
	require.Equal(t, "resource_exhausted", answer["code"], "%d", status)
	put := func(size int) string {
		head := `{"name":"big","yaml":"max_tokens: 1"`
		return head + strings.Repeat(" ", size-len(head)-1) + "}"
	}
	status, answer = n.post("PolicyService/PutPolicy", put(1<<20+256<<10))
	require.Equal(t, http.StatusOK, status, "%v", answer)
	_, answer = n.post("PolicyService/PutPolicy", put(1<<20+256<<10+1))
	require.Equal(t, "resource_exhausted", answer["code"])
	for method, head := range map[string]string{
		"CallService/EndCall":    `{"sessionId":"s","callId":"big","status":"STATUS_SUCCEEDED"`,
		"PolicyService/Evaluate": `{"policy":{"name":"p"},"tool":"t"`,
	} {
		large := func(size int) string { return head + strings.Repeat(" ", size-len(head)-1) + "}" }
		status, answer = n.post(method, large(1<<20+256<<10))
		require.Equal(t, http.StatusOK, status, "%s: %v", method, answer)
		_, answer = n.post(method, large(1<<20+256<<10+1))
		require.Equal(t, "resource_exhausted", answer["code"], method)
	}

	var bomb bytes.Buffer // ten megabytes in ten kilobytes
	z := gzip.NewWriter(&bomb)
	_, err := z.Write([]byte(padded(10 << 20)))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	_, answer = n.post("CallService/BeginCall", bomb.String(), "Content-Encoding", "gzip")
	require.Equal(t, "resource_exhausted", answer["code"])
	require.Contains(t, answer["message"], "unable to determine message size", "it was unpacked to its end")
	_, answer = n.post("CallService/BeginCall", `{"arguments":`+strings.Repeat(`{"a":`, 20_000)+strings.Repeat("}", 20_000)+"}")
	require.Equal(t, "invalid_argument", answer["code"])
	require.Contains(t, answer["message"], "nested too deeply")
}

func TestCounters(t *testing.T) {
	n := start(t)
	inc := func(key, amount, request string) string {
		t.Helper()
		res, err := n.counters.Increment(n.ctx(), &v1.IncrementRequest{Key: key, Amount: amount, RequestId: request})
		require.NoError(t, err)
		return res.Value
	}
	require.Equal(t, "1", inc("k", "", "r1"), "an absent key starts at 0, an absent amount is 1")
	require.Equal(t, "1.5", inc("k", "0.5", "r2"))
	require.Equal(t, "1.5", inc("k", "0.5", "r2"), "the same request has one effect")
	require.Equal(t, "-0.5", inc("k", "-2", "r3"))

	_, err := n.counters.Set(n.ctx(), &v1.SetRequest{Key: "text", Value: "3.0", RequestId: "s1"})
	require.NoError(t, err)
	got, err := n.counters.Get(n.ctx(), &v1.GetRequest{Key: "text"})
	require.NoError(t, err)
	require.Equal(t, "3.0", got.Value, "a text is kept as it was")
	_, err = n.counters.Set(n.ctx(), &v1.SetRequest{Key: "short", Value: "7", Ttl: durationpb.New(200 * time.Millisecond), RequestId: "s2"})
	require.NoError(t, err)
	require.Equal(t, "8", inc("short", "1", "r4"))
	eventually(t, "its time is over, which Increment did not move", func() bool {
		got, err := n.counters.Get(n.ctx(), &v1.GetRequest{Key: "short"})
		return err == nil && !got.Found
	})

	batch, err := n.counters.BatchGet(n.ctx(), &v1.BatchGetRequest{Keys: []string{"k", "absent", "text"}})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"k": "-0.5", "text": "3.0"}, batch.Values)

	del := &v1.DeleteRequest{Key: "k", RequestId: "d"}
	res, err := n.counters.Delete(n.ctx(), del)
	require.NoError(t, err)
	require.True(t, res.Found)
	res, err = n.counters.Delete(n.ctx(), del)
	require.NoError(t, err)
	require.True(t, res.Found, "a repeat answers as it did the first time")
	gone, err := n.counters.Get(n.ctx(), &v1.GetRequest{Key: "k"})
	require.NoError(t, err)
	require.False(t, gone.Found)
}

// A snapshot brings everything back; leases end, and tokens go on above all
// that were ever given out.
func TestSnapshotAndRestore(t *testing.T) {
	n := furnished(t)
	held := n.acquire("gpu", "slot")
	stream, err := n.cluster.Snapshot(n.ctx(), &v1.SnapshotRequest{})
	require.NoError(t, err)
	var snapshot bytes.Buffer
	for stream.Receive() {
		require.LessOrEqual(t, len(stream.Msg().Chunk), 64<<10)
		snapshot.Write(stream.Msg().Chunk)
	}
	require.NoError(t, stream.Err())
	eventually(t, "it has a line", func() bool { return strings.Contains(n.audit.text(), `"event_type":"snapshot_saved"`) })

	other := start(t)
	chains.leave(other.store)
	other.restore(snapshot.Bytes(), nil)
	require.Contains(t, other.audit.text(), `"event_type":"snapshot_restored"`)
	s := other.getSession("s")
	require.EqualValues(t, 2, s.Attempts)
	require.Empty(t, s.OpenCalls, "leases end")
	require.EqualValues(t, 2, s.Executions)
	require.Equal(t, v1.Outcome_OUTCOME_LEASE_LOST, other.end("s", "c").Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, other.begin("s", "new").Outcome, "under the policy it pinned")
	require.Greater(t, other.acquire("gpu", "later").Token, held.Token)

	for name, bad := range map[string][]byte{"empty": nil, "cut": snapshot.Bytes()[:snapshot.Len()/2], "rubbish": []byte("rubbish")} {
		before := n.everything()
		n.restore(bad, func(err error) {
			requireRefused(t, err, connect.CodeInvalidArgument, "BAD_SNAPSHOT", "nothing was changed")
		})
		require.Equal(t, before, n.everything(), name)
	}
}

func (n *node) restore(snapshot []byte, refused func(error)) {
	n.t.Helper()
	up, err := n.cluster.Restore(n.ctx())
	require.NoError(n.t, err)
	for chunk := range slices.Chunk(snapshot, 50_000) {
		if err := up.Send(&v1.RestoreRequest{Chunk: chunk}); err == io.EOF {
			break
		}
	}
	_, err = up.CloseAndReceive()
	if refused != nil {
		refused(err)
		return
	}
	require.NoError(n.t, err)
}

// members is a cluster that says what it was asked.
type members struct {
	asked []string
	ready error
}

func (m *members) Status(context.Context) (server.Status, error) {
	return server.Status{Node: "n1", Leader: "n2", Term: 3, AppliedIndex: 42, Health: "ok", Peers: []server.Peer{
		{Node: "n1", Address: "127.0.0.1:7080", Role: "voter", APIAddress: "127.0.0.1:7070"},
		{Node: "n2", Address: "127.0.0.1:7081", Role: "leader", APIAddress: "127.0.0.1:7071", Lag: 0}}}, nil
}

func (m *members) AddNode(_ context.Context, node, address string, nonvoter bool) error {
	m.asked = append(m.asked, fmt.Sprint("add ", node, " ", address, " ", nonvoter))
	return nil
}

func (m *members) RemoveNode(_ context.Context, node string, force bool) error {
	m.asked = append(m.asked, fmt.Sprint("remove ", node, " ", force))
	return nil
}

func (m *members) TransferLeadership(_ context.Context, node string) error {
	m.asked = append(m.asked, "transfer "+node)
	return nil
}

func (m *members) Ready(context.Context) error { return m.ready }
func (m *members) LeaderAPI() string           { return "127.0.0.1:7071" }

func (m *members) AdmitForwarded(func(session.Command) bool) {}

func TestClusterService(t *testing.T) {
	m := &members{}
	n := start(t, func(c *server.Config) { c.Cluster, c.Backend = m, "raft" })
	status, err := n.cluster.Status(n.ctx(), &v1.StatusRequest{})
	require.NoError(t, err)
	require.Equal(t, "n2", status.Leader)
	require.Equal(t, "raft", status.Backend)
	require.Equal(t, "test", status.Version)
	require.EqualValues(t, 42, status.AppliedIndex)
	require.Equal(t, "127.0.0.1:7071", status.Peers[1].ApiAddress)
	_, err = n.cluster.AddNode(n.ctx(), &v1.AddNodeRequest{Node: "n3", Address: "127.0.0.1:7082", Nonvoter: true})
	require.NoError(t, err)
	_, err = n.cluster.RemoveNode(n.ctx(), &v1.RemoveNodeRequest{Node: "n3", Force: true})
	require.NoError(t, err)
	moved, err := n.cluster.TransferLeadership(n.ctx(), &v1.TransferLeadershipRequest{Node: "n2"})
	require.NoError(t, err)
	require.Contains(t, n.audit.text(), `"event_type":"leadership_transferred"`)
	require.Equal(t, "n2", moved.Leader)
	require.Equal(t, []string{"add n3 127.0.0.1:7082 true", "remove n3 true", "transfer n2"}, m.asked)
	for _, to := range []string{"n3", ""} {
		moved, err = n.cluster.TransferLeadership(n.ctx(), &v1.TransferLeadershipRequest{Node: to})
		require.NoError(t, err)
		require.Empty(t, moved.Leader, "n2 led before, and this node has heard of nobody else yet")
	}

	for _, node := range []string{"n3", ""} { // an answer and an error
		res, err := n.http.Post(n.url+"/govnode.v1.ClusterService/RemoveNode", "application/json", strings.NewReader(fmt.Sprintf(`{"node":%q}`, node)))
		require.NoError(t, err)
		_ = res.Body.Close()
		require.Equal(t, "127.0.0.1:7071", res.Header.Get(server.LeaderHeader))
	}
	code, _ := n.get("/readyz")
	require.Equal(t, http.StatusOK, code)
	m.ready = fmt.Errorf("leader: there is none")
	code, body := n.get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "leader: there is none")
}

func TestStatusOfOneNode(t *testing.T) {
	n := furnished(t)
	status, err := n.cluster.Status(n.ctx(), &v1.StatusRequest{})
	require.NoError(t, err)
	require.Equal(t, "n1", status.Node)
	require.Equal(t, "n1", status.Leader)
	require.Equal(t, "memory", status.Backend)
	require.Positive(t, status.AppliedIndex)
}

func TestHealth(t *testing.T) {
	n := start(t)
	for _, path := range []string{"/healthz", "/readyz"} {
		code, body := n.get(path)
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, "ok\n", body)
	}
	for service, want := range map[string]string{"": "SERVING", "govnode.v1.CallService": "SERVING"} {
		status, answer := n.postRaw("/grpc.health.v1.Health/Check", fmt.Sprintf(`{"service":%q}`, service))
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, answer, want)
	}
	status, _ := n.postRaw("/grpc.health.v1.Health/Check", `{"service":"other"}`)
	require.Equal(t, http.StatusNotFound, status)
	require.NoError(t, n.server.Drain(n.ctx()))
	_, answer := n.postRaw("/grpc.health.v1.Health/Check", `{}`)
	require.Contains(t, answer, "NOT_SERVING")
}

func (n *node) postRaw(path, body string) (int, string) {
	n.t.Helper()
	res, err := n.http.Post(n.url+path, "application/json", strings.NewReader(body))
	require.NoError(n.t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(n.t, err)
	return res.StatusCode, string(raw)
}

// The page of metrics and the document that is their contract name the same.
func TestMetricsAreDocumented(t *testing.T) {
	registry := prometheus.NewRegistry()
	n := start(t, func(c *server.Config) { c.Registry = registry })
	n.putPolicy(policy()...)
	n.session("s")
	n.begin("s", "c")
	n.end("s", "c")
	n.putPool("gpu", 1)
	n.acquire("gpu", "a")
	n.putRate("llm", 1, time.Second)
	_, err := n.limits.TakeRate(n.ctx(), &v1.TakeRateRequest{Rate: "llm", RequestId: "t"})
	require.NoError(t, err)
	_, err = n.policies.Scan(n.ctx(), &v1.ScanRequest{SessionId: "s", Kind: v1.ScanKind_SCAN_KIND_INPUT})
	require.NoError(t, err)
	code, page := n.get("/metrics")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, page, `gov_call_outcomes_total{outcome="admitted"} 1`)
	require.Contains(t, page, `gov_requests_total{code="ok",method="BeginCall",service="CallService"} 1`)
	require.NotContains(t, page, `"s"`, "never a label per session")

	_, err = lobby.New(lobby.Config{Connections: 1, Outside: 1, Registry: registry}) // what stands before the server
	require.NoError(t, err)
	families, err := registry.Gather()
	require.NoError(t, err)
	var shown []string
	for _, f := range families {
		shown = append(shown, f.GetName())
	}
	raw, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	var documented []string
	section, _, _ := strings.Cut(string(raw), "## Raft")
	for _, m := range regexp.MustCompile("(?m)^\\| `(gov_[a-z_]+)`").FindAllStringSubmatch(section, -1) {
		documented = append(documented, m[1])
	}
	slices.Sort(shown)
	slices.Sort(documented)
	require.Equal(t, shown, documented)
}
