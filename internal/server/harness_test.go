package server_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/internal/audit"
	"example.com/govnode/internal/server"
	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A node is a Server on a memory store behind a real HTTP listener, and a
// client of each of its services.
type node struct {
	t      testing.TB
	url    string
	server *server.Server
	store  storage.Store
	audit  *lines
	http   *http.Client
	clients
}

type clients struct {
	sessions  govnodev1connect.SessionServiceClient
	calls     govnodev1connect.CallServiceClient
	slots     govnodev1connect.SlotServiceClient
	approvals govnodev1connect.ApprovalServiceClient
	limits    govnodev1connect.LimitServiceClient
	policies  govnodev1connect.PolicyServiceClient
	counters  govnodev1connect.CounterServiceClient
	events    govnodev1connect.EventServiceClient
	explains  govnodev1connect.DecisionServiceClient
	cluster   govnodev1connect.ClusterServiceClient
	access    govnodev1connect.AccessServiceClient
}

func clientsOf(h *http.Client, url string, opts ...connect.ClientOption) clients {
	return clients{
		sessions:  govnodev1connect.NewSessionServiceClient(h, url, opts...),
		calls:     govnodev1connect.NewCallServiceClient(h, url, opts...),
		slots:     govnodev1connect.NewSlotServiceClient(h, url, opts...),
		approvals: govnodev1connect.NewApprovalServiceClient(h, url, opts...),
		limits:    govnodev1connect.NewLimitServiceClient(h, url, opts...),
		policies:  govnodev1connect.NewPolicyServiceClient(h, url, opts...),
		counters:  govnodev1connect.NewCounterServiceClient(h, url, opts...),
		events:    govnodev1connect.NewEventServiceClient(h, url, opts...),
		explains:  govnodev1connect.NewDecisionServiceClient(h, url, opts...),
		cluster:   govnodev1connect.NewClusterServiceClient(h, url, opts...),
		access:    govnodev1connect.NewAccessServiceClient(h, url, opts...),
	}
}

func start(t testing.TB, change ...func(*server.Config)) *node {
	t.Helper()
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return startOn(t, store, change...)
}

func startOn(t testing.TB, store storage.Store, change ...func(*server.Config)) *node {
	t.Helper()
	log := &lines{}
	cfg := server.Config{Store: store, Node: "n1", Version: "test", Audit: log}
	for _, c := range change {
		c(&cfg)
	}
	if _, whole := store.(*storage.Memory); whole && cfg.Audit == io.Writer(log) { // most tests are of the chains as well
		cfg.AuditChain = chains.join(t, store, log)
	}
	s, err := server.New(cfg)
	require.NoError(t, err)
	if cfg.AuditChain != nil { // the key of digests is a change of the state, which tests compare
		eventually(t, "there is a key", func() bool {
			found, err := store.Get(t.Context(), session.AccessKey(session.ClusterNamespace), storage.Nearby)
			x, _ := found.Record.(*session.Access)
			return err == nil && x != nil && x.Key != session.Digest{}
		})
	}
	h := httptest.NewUnstartedServer(s.Handler())
	h.Config.Protocols = new(http.Protocols)
	h.Config.Protocols.SetHTTP1(true)
	h.Config.Protocols.SetUnencryptedHTTP2(true)
	h.Start()
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		h.CloseClientConnections()
		h.Close()
	})
	plain := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	return &node{t: t, url: h.URL, server: s, store: store, audit: log, http: plain, clients: clientsOf(plain, h.URL)}
}

// h2 is a client that speaks HTTP/2 without TLS, as gRPC does.
func (n *node) h2(opts ...connect.ClientOption) clients {
	return clientsOf(n.h2Client(), n.url, opts...)
}

func (n *node) h2Client() *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: p}}
}

// post sends JSON as curl would, and returns the status and the answer.
func (n *node) post(method, body string, headers ...string) (int, map[string]any) {
	n.t.Helper()
	req, err := http.NewRequest(http.MethodPost, n.url+"/govnode.v1."+method, strings.NewReader(body))
	require.NoError(n.t, err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := n.http.Do(req)
	require.NoError(n.t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(n.t, err)
	answer := map[string]any{}
	if len(raw) > 0 {
		require.NoError(n.t, json.Unmarshal(raw, &answer), "%s", raw)
	}
	if res.StatusCode != http.StatusOK {
		require.Equal(n.t, reasonIn(answer), res.Header.Get(fault.ReasonHeader), "%s", raw)
	}
	return res.StatusCode, answer
}

func (n *node) get(path string) (int, string) {
	n.t.Helper()
	res, err := n.http.Get(n.url + path)
	require.NoError(n.t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(n.t, err)
	return res.StatusCode, string(raw)
}

// putPolicy stores a GovernancePolicy given as YAML lines.
func (n *node) putPolicy(lines ...string) *v1.PutPolicyResponse {
	n.t.Helper()
	res, err := n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Yaml: strings.Join(lines, "\n") + "\n"})
	require.NoError(n.t, err)
	return res
}

// session starts a session of the agent a under the newest p.
func (n *node) session(id string) *v1.Session {
	n.t.Helper()
	res, err := n.sessions.CreateSession(n.ctx(), &v1.CreateSessionRequest{SessionId: id, AgentId: "a", Policy: byName("p")})
	require.NoError(n.t, err)
	return res.Session
}

func (n *node) getSession(id string) *v1.Session {
	n.t.Helper()
	res, err := n.sessions.GetSession(n.ctx(), &v1.GetSessionRequest{SessionId: id})
	require.NoError(n.t, err)
	return res.Session
}

func (n *node) begin(session, call string, change ...func(*v1.BeginCallRequest)) *v1.BeginCallResponse {
	n.t.Helper()
	res, err := n.calls.BeginCall(n.ctx(), beginRequest(session, call, change...))
	require.NoError(n.t, err)
	return res
}

func beginRequest(session, call string, change ...func(*v1.BeginCallRequest)) *v1.BeginCallRequest {
	req := &v1.BeginCallRequest{SessionId: session, CallId: call, Tool: "t"}
	for _, c := range change {
		c(req)
	}
	return req
}

const maxWait = 10 * time.Minute

func waiting(d time.Duration) func(*v1.BeginCallRequest) {
	return func(r *v1.BeginCallRequest) { r.Wait = durationpb.New(d) }
}

func (n *node) end(session, call string) *v1.EndCallResponse {
	n.t.Helper()
	res, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: session, CallId: call, Status: v1.Status_STATUS_SUCCEEDED})
	require.NoError(n.t, err)
	return res
}

// endWith ends a call with a text as its output.
func (n *node) endWith(session, call, output string) *v1.EndCallResponse {
	n.t.Helper()
	res, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{
		SessionId: session, CallId: call, Status: v1.Status_STATUS_SUCCEEDED, Output: structpb.NewStringValue(output),
	})
	require.NoError(n.t, err)
	return res
}

func (n *node) ctx() context.Context { return n.t.Context() }

func byName(name string) *v1.PolicyRef { return &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: name}} }

// policy is the YAML of a policy named p with the lines added.
func policy(lines ...string) []string {
	return append([]string{"name: p", "max_concurrent: 5", "backpressure_threshold: 5", "max_tool_calls: 1000"}, lines...)
}

// info is the google.rpc.ErrorInfo of an error.
func info(t testing.TB, err error) *errdetails.ErrorInfo {
	t.Helper()
	var ce *connect.Error
	require.ErrorAs(t, err, &ce)
	for _, d := range ce.Details() {
		m, e := d.Value()
		require.NoError(t, e)
		if i, ok := m.(*errdetails.ErrorInfo); ok {
			return i
		}
	}
	t.Fatalf("no ErrorInfo in %v", err)
	return nil
}

// retryDelay is when an error says that the request may be sent again; nil if it does not.
func retryDelay(t testing.TB, err error) *durationpb.Duration {
	t.Helper()
	var ce *connect.Error
	require.ErrorAs(t, err, &ce)
	for _, d := range ce.Details() {
		m, err := d.Value()
		require.NoError(t, err)
		if r, ok := m.(*errdetails.RetryInfo); ok {
			return r.GetRetryDelay()
		}
	}
	return nil
}

func requireRefused(t *testing.T, err error, code connect.Code, reason, text string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code, connect.CodeOf(err), "%v", err)
	require.Equal(t, reason, info(t, err).Reason, "%v", err)
	require.Contains(t, err.Error(), text)
}

// lines gathers what is written, line by line.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bare(l.buf.String())
}

// all returns every line as a JSON object.
func (l *lines) all(t testing.TB) []map[string]any {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []map[string]any
	for line := range strings.Lines(bare(l.buf.String())) {
		m := map[string]any{}
		require.NoError(t, json.Unmarshal([]byte(line), &m), "%s", line)
		out = append(out, m)
	}
	return out
}

var (
	changeLine = regexp.MustCompile(`(?m)^\{[^\n]*"event_type":"(change|chain_ended|anchor)"[^\n]*\n`)
	seal       = regexp.MustCompile(`(?m),"node":"[^"]*","seq":\d+,"sha256":"[0-9a-f]*"\}$`)
)

// bare is the log without what chains add to it.
func bare(text string) string {
	return seal.ReplaceAllString(changeLine.ReplaceAllString(text, ""), "}")
}

// chains are the logs of the nodes of each store, which are verified when a test ends.
var chains = chained{of: map[storage.Store][]*lines{}}

type chained struct {
	mu sync.Mutex
	of map[storage.Store][]*lines
}

func (c *chained) join(t testing.TB, store storage.Store, l *lines) *audit.Tail {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.of[store]) == 0 {
		t.Cleanup(func() { c.verify(t, store) }) // behind those of the nodes
	}
	c.of[store] = append(c.of[store], l)
	return &audit.Tail{Node: fmt.Sprint("n", len(c.of[store]))}
}

func (c *chained) verify(t testing.TB, store storage.Store) {
	c.mu.Lock()
	all := c.of[store]
	delete(c.of, store)
	c.mu.Unlock()
	if t.Failed() || len(all) == 0 {
		return
	}
	report, err := audit.Verify(files(all...), audit.Against{Heads: headsOf(t, store)})
	require.NoError(t, err)
	require.Empty(t, report.Problems)
}

// leave is for stores into which something comes that no node was asked for.
func (c *chained) leave(store storage.Store) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of[store] = nil
}

func files(all ...*lines) (files []audit.File) {
	for i, l := range all {
		l.mu.Lock()
		files = append(files, audit.File{Name: fmt.Sprint("n", i+1), Text: strings.NewReader(l.buf.String())})
		l.mu.Unlock()
	}
	return files
}

func headsOf(t testing.TB, store storage.Store) *audit.Heads {
	view, err := store.View(context.Background(), "", storage.Latest)
	if err != nil {
		return nil // it is closed, or broken on purpose
	}
	found, err := view.Find("", "", 1<<20, func(_ session.Key, r session.Record) bool { return session.ChainOfRecord(r) != nil })
	require.NoError(t, err)
	heads := &audit.Heads{At: time.Now()}
	for _, e := range found {
		c := session.ChainOfRecord(e.Record)
		heads.Links = append(heads.Links, audit.Link{Chain: e.Key, N: c.N, Generation: c.Generation, Head: hex.EncodeToString(c.Head[:])})
	}
	return heads
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 5*time.Second, 2*time.Millisecond, what)
}

func (n *node) putRate(name string, limit int32, per time.Duration) {
	n.t.Helper()
	_, err := n.limits.PutRate(n.ctx(), &v1.PutRateRequest{Rate: name, Limit: limit, Per: durationpb.New(per), RequestId: "put-" + name})
	require.NoError(n.t, err)
}

func (n *node) rate(name string) *v1.Rate {
	n.t.Helper()
	res, err := n.limits.GetRate(n.ctx(), &v1.GetRateRequest{Rate: name})
	require.NoError(n.t, err)
	return res.Rate
}
