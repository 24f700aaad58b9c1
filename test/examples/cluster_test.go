package examples_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cluster"
	"example.com/govnode/engine"
	"example.com/govnode/engine/opa"
	"example.com/govnode/internal/server"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// A node is one member of the cluster, and clients of its services.
type node struct {
	name     string
	url      string
	store    *cluster.Node
	sessions govnodev1connect.SessionServiceClient
	calls    govnodev1connect.CallServiceClient
	policies govnodev1connect.PolicyServiceClient
	explains govnodev1connect.DecisionServiceClient
	events   govnodev1connect.EventServiceClient
}

// failing is a guardrail that panics for one tool, in the place of the pattern
// of example 21.4 that breaks when it is evaluated: one that is malformed does
// not get past PutPolicy here.
type failing struct{}

func (failing) Name() string { return "failing" }

func (failing) Evaluate(_ context.Context, call engine.GuardrailCall) (engine.GuardrailResult, error) {
	if call.ToolName == "breaks" {
		panic("malformed at evaluation time")
	}
	return engine.GuardrailResult{Decision: engine.GuardrailAllow}, nil
}

// members shows a cluster to its server.
type members struct{ *cluster.Node }

func (m members) Status(ctx context.Context) (server.Status, error) {
	s, err := m.Node.Status(ctx)
	out := server.Status{Node: s.Node, Leader: s.Leader, Term: s.Term, AppliedIndex: s.AppliedIndex, Health: s.Health}
	for _, p := range s.Peers {
		out.Peers = append(out.Peers, server.Peer{Node: p.Node, Address: p.Address, APIAddress: p.APIAddress, Role: p.Role, Lag: p.Lag})
	}
	return out, err
}

// text gathers what nodes log.
type text struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start makes three nodes, each with the OPA backend, and waits until each
// knows how to reach the others.
func start(t *testing.T) (nodes []*node, audit, log *text) {
	t.Helper()
	audit, log = &text{}, &text{}
	var join []string
	for i := range 3 {
		n := open(t, fmt.Sprintf("n%d", i+1), join, audit, log)
		status, err := n.store.Status(t.Context())
		require.NoError(t, err)
		for _, p := range status.Peers {
			if p.Node == n.name {
				join = append(join, p.Address)
			}
		}
		nodes = append(nodes, n)
	}
	require.Eventually(t, func() bool {
		for _, n := range nodes {
			s, err := n.store.Status(t.Context())
			if err != nil || s.Health != "ok" || len(s.Peers) != 3 {
				return false
			}
			for _, p := range s.Peers {
				if p.APIAddress == "" {
					return false
				}
			}
		}
		return true
	}, 6*time.Second, 10*time.Millisecond)
	return nodes, audit, log
}

func open(t *testing.T, name string, join []string, audit, log *text) *node {
	t.Helper()
	h := httptest.NewUnstartedServer(nil)
	h.Config.Protocols = new(http.Protocols)
	h.Config.Protocols.SetHTTP1(true)
	h.Config.Protocols.SetUnencryptedHTTP2(true)
	store, err := cluster.Open(cluster.Config{
		ID: name, BindAddr: "127.0.0.1:0", APIAddress: h.Listener.Addr().String(), Dir: t.TempDir(),
		Bootstrap: len(join) == 0, Join: join, CommitTimeout: 5 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	s, err := server.New(server.Config{
		Store: store, Cluster: members{store}, Node: name, Backend: "raft",
		Audit:  audit,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
		Engine: []engine.Option{engine.WithRego(opa.Load), engine.WithGuardrails(failing{}), engine.WithBudget(2 * time.Second)},
	})
	require.NoError(t, err)
	h.Config.Handler = s.Handler()
	h.Start()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		h.CloseClientConnections()
		h.Close()
		require.NoError(t, store.Close())
	})
	return &node{
		name: name, url: h.URL, store: store,
		sessions: govnodev1connect.NewSessionServiceClient(client, h.URL),
		calls:    govnodev1connect.NewCallServiceClient(client, h.URL),
		policies: govnodev1connect.NewPolicyServiceClient(client, h.URL),
		explains: govnodev1connect.NewDecisionServiceClient(client, h.URL),
		events:   govnodev1connect.NewEventServiceClient(client, h.URL),
	}
}
