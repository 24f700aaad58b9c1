package server

import (
	"context"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/members"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// peerTimeout bounds one question to the other nodes.
const peerTimeout = 3 * time.Second

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
func (s *Server) peers(ctx context.Context) ([]members.Peer, error) {
	if s.cfg.Cluster == nil {
		return nil, nil
	}
	status, err := s.cfg.Cluster.Status(ctx)
	if err != nil {
		return nil, err
	}
	var peers []members.Peer
	for _, p := range status.Peers {
		if p.Node != s.cfg.Node && p.APIAddress != "" {
			peers = append(peers, p)
		}
	}
	return peers, nil
}

func (s *Server) peerDecisions(ctx context.Context, p members.Peer) govnodev1connect.DecisionServiceClient {
	return govnodev1connect.NewDecisionServiceClient(s.cfg.Peers, "http://"+p.APIAddress, inNamespace(input.Namespace(ctx)))
}

func (s *Server) peerEvents(ctx context.Context, p members.Peer) govnodev1connect.EventServiceClient {
	return govnodev1connect.NewEventServiceClient(s.cfg.Peers, "http://"+p.APIAddress, inNamespace(input.Namespace(ctx)))
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
