package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/proto/govnode/node/v1/nodev1connect"
)

const (
	// clusterHeader names the cluster in every request.
	clusterHeader = "Govnode-Cluster"
	// maxMessage bounds one message between nodes: a batch of commands, or one
	// command with a policy tree of at most 1 MiB in it, or one answer with a
	// whole session in it.
	maxMessage = 4 << 20
	// pingAfter is how long a connection may be silent before the other side is
	// asked whether it is there, and pingWait how long it may take to answer.
	pingAfter, pingWait = time.Second, 2 * time.Second
	// A stream that is not read fills its own room and no more: the connection
	// has room for others beside it.
	streamRoom, connectionRoom = 1 << 20, 16 << 20
)

// peers opens and keeps the HTTP connections to other nodes.
type peers struct {
	client *http.Client

	mu    sync.Mutex
	known map[string]nodev1connect.NodeServiceClient
}

func plainHTTP2() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

func newPeers(p *port) *peers {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			conn, err := p.open(ctx, address)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", errUnreached, err)
			}
			return conn, nil
		},
		Protocols:          plainHTTP2(),
		HTTP2:              &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingWait},
		DisableCompression: true,
	}
	return &peers{client: &http.Client{Transport: clusterTransport{t, p.cluster}}, known: map[string]nodev1connect.NodeServiceClient{}}
}

// clusterTransport names the cluster in every request.
type clusterTransport struct {
	*http.Transport
	cluster func() string
}

// RoundTrip implements http.RoundTripper, which may not change the request that
// it is given.
func (t clusterTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(clusterHeader, t.cluster())
	return t.Transport.RoundTrip(r)
}

// at returns the client of the node at an address.
func (p *peers) at(address string) nodev1connect.NodeServiceClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.known[address]
	if !ok {
		if len(p.known) >= 64 { // addresses that nodes had in the past
			clear(p.known)
		}
		c = nodev1connect.NewNodeServiceClient(p.client, "http://"+address, connect.WithReadMaxBytes(maxMessage), connect.WithSendMaxBytes(maxMessage),
			// Batches are small and the network is near: packing them costs
			// more time than it saves.
			connect.WithAcceptCompression("gzip", nil, nil))
		p.known[address] = c
	}
	return c
}

func (p *peers) close() { p.client.CloseIdleConnections() }

// serveNodes returns the server of what nodes say to each other. Requests that
// name another cluster are refused.
func serveNodes(svc *service, cluster func() string, logger *slog.Logger) *http.Server {
	path, h := nodev1connect.NewNodeServiceHandler(svc, connect.WithReadMaxBytes(maxMessage), connect.WithSendMaxBytes(maxMessage),
		connect.WithCompression("gzip", nil, nil))
	mux := http.NewServeMux()
	mux.Handle(path, onlyCluster(onlyStarted(h, svc.n), cluster))
	return &http.Server{
		Handler:   mux,
		Protocols: plainHTTP2(),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 256, SendPingTimeout: pingAfter, PingTimeout: pingWait,
			MaxReceiveBufferPerStream: streamRoom, MaxReceiveBufferPerConnection: connectionRoom,
		},
		ReadHeaderTimeout: decideIn,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// onlyStarted lets a node that is on its way in say who it is, and no more.
func onlyStarted(h http.Handler, n *Node) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !n.started.Load() && r.URL.Path != nodev1connect.NodeServiceHelloProcedure {
			// Best effort: the caller may be gone.
			_ = refuse.Write(w, r, refusal(connect.CodeUnavailable, errors.New("this node has not been admitted yet")))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// onlyCluster refuses what names another cluster. Hello and Join are open where
// one of the two has none yet.
func onlyCluster(h http.Handler, cluster func() string) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		named := r.Header.Get(clusterHeader)
		open := r.URL.Path == nodev1connect.NodeServiceHelloProcedure || r.URL.Path == nodev1connect.NodeServiceJoinProcedure
		if own := cluster(); named != own && !(open && (named == "" || own == "")) {
			// Best effort: the caller may be gone.
			_ = refuse.Write(w, r, refusal(connect.CodePermissionDenied, fmt.Errorf("this node belongs to cluster %q, not to %q", own, named)))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// errElsewhere reports that a node does not lead: what was asked for was not
// done, and may be asked of another node.
var errElsewhere = errors.New("this node does not lead")

// errUnreached reports that a request did not get as far as a connection.
var errUnreached = errors.New("cannot be reached")

// outcomeHeader stands with the error of a request that did nothing. Nobody but
// the node that was asked can set it: without it the request, or its answer, may
// have been lost on the way.
const (
	outcomeHeader     = "Govnode-Outcome"
	outcomeNotApplied = "not applied"
)

// fieldHeader names the field that is wrong in a request that is refused.
const fieldHeader = "Govnode-Field"

// refusal is the error of a request that did nothing.
func refusal(code connect.Code, err error) *connect.Error {
	e := connect.NewError(code, err)
	e.Meta().Set(outcomeHeader, outcomeNotApplied)
	return e
}

// remote makes the error of a request to another node again, so that callers
// can tell what it means.
func remote(err error) error {
	var e *connect.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code() {
	case connect.CodeFailedPrecondition:
		return errElsewhere
	case connect.CodeInvalidArgument:
		if name := e.Meta().Get(fieldHeader); name != "" {
			return invalidField(name, "%s", strings.TrimPrefix(e.Message(), name+": "))
		}
		return invalid(errors.New(e.Message()))
	}
	return err
}

// sent is remote for a request that changes something: its error has the outcome
// that the other node gave it, or is unknown.
func sent(err error) error {
	var e *connect.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errUnreached):
		return notApplied(err)
	case !errors.As(err, &e):
		return unknown(err)
	case e.Meta().Get(outcomeHeader) != outcomeNotApplied:
		return unknown(errors.New(e.Message()))
	}
	return notApplied(remote(err))
}
