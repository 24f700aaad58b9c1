package server

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/members"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// peerTimeout bounds one question to the other nodes.
const peerTimeout = 3 * time.Second

// A teller tells of the decisions of its node, and asks other nodes for theirs. It
// answers govnode.v1.DecisionService and EventService.
type teller struct {
	node    string
	now     func() time.Time
	log     *slog.Logger
	journal *journal
	cluster members.Cluster // nil where the store has no members
	client  *http.Client    // how the API of other nodes is reached
	cut     prometheus.Counter
	drained <-chan struct{} // closed when the node drains
}

// newPeerClient is how a node reaches the API of others. There is one
// connection for each request under way, so that a follower that reads slowly
// holds up nobody else.
func newPeerClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: 10 * time.Second,
	}}
}

// peers returns the other nodes whose API can be asked; none where the store
// has no members.
func (s *teller) peers(ctx context.Context) ([]members.Peer, error) {
	if s.cluster == nil {
		return nil, nil
	}
	status, err := s.cluster.Status(ctx)
	if err != nil {
		return nil, err
	}
	var peers []members.Peer
	for _, p := range status.Peers {
		if p.Node != s.node && p.APIAddress != "" {
			peers = append(peers, p)
		}
	}
	return peers, nil
}

func (s *teller) peerDecisions(ctx context.Context, p members.Peer) govnodev1connect.DecisionServiceClient {
	return govnodev1connect.NewDecisionServiceClient(s.client, "http://"+p.APIAddress, inNamespace(input.Namespace(ctx)))
}

func (s *teller) peerEvents(ctx context.Context, p members.Peer) govnodev1connect.EventServiceClient {
	return govnodev1connect.NewEventServiceClient(s.client, "http://"+p.APIAddress, inNamespace(input.Namespace(ctx)))
}

// inNamespace sends requests in a namespace.
func inNamespace(ns string) connect.ClientOption {
	return connect.WithInterceptors(namespaceHeader(ns))
}

type namespaceHeader string

// WrapUnary implements connect.Interceptor.
func (ns namespaceHeader) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		req.Header().Set(input.NamespaceHeader, string(ns))
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (ns namespaceHeader) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set(input.NamespaceHeader, string(ns))
		return conn
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (namespaceHeader) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
