package record

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/members"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// A Teller tells of the decisions of its node, and asks other nodes for theirs. It
// answers govnode.v1.DecisionService and EventService.
type Teller struct {
	Node    string
	Now     func() time.Time
	Log     *slog.Logger
	Journal *Journal
	Cluster members.Cluster // nil where the store has no members
	Client  *http.Client    // how the API of other nodes is reached
	Secure  bool            // whether that is over TLS
	Cut     prometheus.Counter
	Drained <-chan struct{} // closed when the node drains
	// Enter counts one more follower of a namespace, until what it returns is called.
	Enter func(ctx context.Context, ns string) (leave func(), err error)
	// Still says why a principal may not be told any more, as far as this node knows. Nil: he may.
	Still func(ctx context.Context, p *access.Principal) error
}

// peerTimeout bounds one question to the other nodes.
const peerTimeout = 3 * time.Second

// NewPeerClient is how a node reaches the API of others. There is one
// connection for each request under way, so that a follower that reads slowly
// holds up nobody else. Where the API is served over TLS, dialTLS opens them; else
// it is nil.
func NewPeerClient(dialTLS func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialTLSContext:      dialTLS,
		MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: 10 * time.Second,
	}}
}

// peers returns the other nodes; none where the store has no members. Where nobody knows
// the API of one, it does not answer.
func (s *Teller) peers(ctx context.Context) ([]members.Peer, error) {
	if s.Cluster == nil {
		return nil, nil
	}
	status, err := s.Cluster.Status(ctx)
	if err != nil {
		return nil, err
	}
	var peers []members.Peer
	for _, p := range status.Peers {
		if p.Node != s.Node {
			peers = append(peers, p)
		}
	}
	return peers, nil
}

// errNowhere is why a node is not asked.
var errNowhere = errors.New("server: nobody knows where the node is")

// base is where the API of a node is.
func (s *Teller) base(p members.Peer) string {
	if s.Secure {
		return "https://" + p.APIAddress
	}
	return "http://" + p.APIAddress
}

func (s *Teller) peerDecisions(ctx context.Context, p members.Peer) govnodev1connect.DecisionServiceClient {
	return govnodev1connect.NewDecisionServiceClient(s.Client, s.base(p), inNameOf(ctx))
}

func (s *Teller) peerEvents(ctx context.Context, p members.Peer) govnodev1connect.EventServiceClient {
	return govnodev1connect.NewEventServiceClient(s.Client, s.base(p), inNameOf(ctx))
}

// inNameOf sends requests in the namespace of a request and with what its caller has
// shown, so that the other node looks at that itself.
func inNameOf(ctx context.Context) connect.ClientOption {
	return connect.WithInterceptors(onward{input.Namespace(ctx), access.Shown(ctx)})
}

type onward struct{ ns, shown string }

func (o onward) put(h http.Header) {
	h.Set(input.NamespaceHeader, o.ns)
	if o.shown != "" {
		h.Set(access.AuthorizationHeader, o.shown)
	}
}

// WrapUnary implements connect.Interceptor.
func (o onward) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		o.put(req.Header())
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (o onward) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		o.put(conn.RequestHeader())
		return conn
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (onward) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
