package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/internal/pki"
	"example.com/govnode/proto/govnode/node/v1/nodev1connect"
)

// How nodes speak HTTP to each other: the connections to others, and the server
// of this one.

const (
	// clusterHeader names the cluster in every request, and nodeHeader the member for
	// whom it is, where one is known at the address.
	clusterHeader = "Govnode-Cluster"
	nodeHeader    = "Govnode-Node"
	// MaxMessage bounds one message between nodes: a batch of commands, or one
	// command with a policy tree of at most 1 MiB in it, or one answer with a
	// whole session in it, whose calls all wait at as many rates as they may.
	MaxMessage = 12 << 20
	// pingAfter is how long a connection may be silent before the other side is
	// asked whether it is there, and pingWait how long it may take to answer.
	pingAfter, pingWait = time.Second, 2 * time.Second
	// A stream that is not read fills its own room and no more: the connection
	// has room for others beside it.
	streamRoom, connectionRoom = 1 << 20, 16 << 20
)

// Peers opens and keeps the HTTP connections to other nodes.
type Peers struct {
	scheme string
	client *http.Client

	mu    sync.Mutex
	known map[string]nodev1connect.NodeServiceClient
}

// http2 is HTTP/2 alone, over TLS where the port has it.
func (p *Port) http2() *http.Protocols {
	only := new(http.Protocols)
	only.SetUnencryptedHTTP2(p.secure == nil)
	only.SetHTTP2(p.secure != nil)
	return only
}

// NewPeers returns those that a node reaches through its port.
func NewPeers(p *Port) *Peers {
	dial := func(ctx context.Context, _, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, DialTimeout)
		defer cancel()
		conn, err := p.open(ctx, address, httpProtocol)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnreached, err)
		}
		return conn, nil
	}
	t := &http.Transport{
		DialContext: dial, DialTLSContext: dial,
		Protocols:          p.http2(),
		HTTP2:              &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingWait},
		DisableCompression: true,
	}
	scheme := "http://"
	if p.secure != nil {
		scheme = "https://"
	}
	return &Peers{scheme: scheme, client: &http.Client{Transport: memberTransport{t, p.cfg.Cluster, p.nameAt}}, known: map[string]nodev1connect.NodeServiceClient{}}
}

// memberTransport names the cluster and the member in every request.
type memberTransport struct {
	*http.Transport
	cluster func() string
	nameAt  func(address string) string
}

// RoundTrip implements http.RoundTripper, which may not change the request that
// it is given.
func (t memberTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(clusterHeader, t.cluster())
	if node := t.nameAt(r.URL.Host); node != "" {
		r.Header.Set(nodeHeader, node)
	}
	return t.Transport.RoundTrip(r)
}

// At returns the client of the node at an address.
func (p *Peers) At(address string) nodev1connect.NodeServiceClient {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.known[address]
	if !ok {
		if len(p.known) >= 64 { // addresses that nodes had in the past
			clear(p.known)
		}
		c = nodev1connect.NewNodeServiceClient(p.client, p.scheme+address, connect.WithReadMaxBytes(MaxMessage), connect.WithSendMaxBytes(MaxMessage),
			// Batches are small and the network is near: packing them costs
			// more time than it saves.
			connect.WithAcceptCompression("gzip", nil, nil))
		p.known[address] = c
	}
	return c
}

// Close ends the connections that nobody uses.
func (p *Peers) Close() { p.client.CloseIdleConnections() }

// NewServer returns the server of what nodes say to each other. Requests that
// name another cluster or another member are refused, and all but Hello until the
// node has started.
func NewServer(svc nodev1connect.NodeServiceHandler, p *Port, started func() bool) *http.Server {
	path, h := nodev1connect.NewNodeServiceHandler(svc, connect.WithReadMaxBytes(MaxMessage), connect.WithSendMaxBytes(MaxMessage),
		connect.WithCompression("gzip", nil, nil))
	mux := http.NewServeMux()
	mux.Handle(path, onlyCluster(onlyMembers(onlyMeant(onlyStarted(h, started), p), p.cfg.Strange), p.cfg.Cluster))
	return &http.Server{
		Handler:   withCaller(mux),
		Protocols: p.http2(),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 256, SendPingTimeout: pingAfter, PingTimeout: pingWait,
			MaxReceiveBufferPerStream: streamRoom, MaxReceiveBufferPerConnection: connectionRoom,
		},
		ReadHeaderTimeout: decideIn,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(p.cfg.Logger.Handler(), slog.LevelDebug),
	}
}

// callerKey is where the name of the node that asks stands in a context.
type callerKey struct{}

// withCaller notes who asks, as the certificate of the connection has it.
func withCaller(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			who, _ := pki.IdentityOf(r.TLS.PeerCertificates[0]) // the handshake has seen to it that it is one
			r = r.WithContext(context.WithValue(r.Context(), callerKey{}, who.Name))
		}
		h.ServeHTTP(w, r)
	})
}

// Caller returns the name of the node that asks, as its certificate proves it; ""
// without TLS, where nothing does.
func Caller(ctx context.Context) string {
	name, _ := ctx.Value(callerKey{}).(string)
	return name
}

// onlyStarted lets a node that is on its way in say who it is, and no more.
func onlyStarted(h http.Handler, started func() bool) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !started() && r.URL.Path != nodev1connect.NodeServiceHelloProcedure {
			// Best effort: the caller may be gone.
			_ = refuse.Write(w, r, Refusal(connect.CodeUnavailable, errors.New("this node has not been admitted yet")))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// onlyMembers refuses what is asked by a node that is known to be no member, where
// certificates tell who asks. Who wants to be one may say so.
func onlyMembers(h http.Handler, strange func(node string) bool) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who := Caller(r.Context()); who != "" && strange != nil && !open(r) && strange(who) {
			// Best effort: the caller may be gone.
			_ = refuse.Write(w, r, Refusal(connect.CodePermissionDenied, fmt.Errorf("node %s is no member of this cluster", who)))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// onlyMeant refuses what is for another member. Who this is says Hello, and Join is for
// whoever leads, of whom a node on its way in may know an address from before. The
// connection ends in any case: the next one may lead to whom it is for.
func onlyMeant(h http.Handler, p *Port) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := p.isMeant(r.Header.Get(nodeHeader))
		if err != nil {
			w.Header().Set("Connection", "close")
			if !open(r) {
				// Best effort: the caller may be gone.
				_ = refuse.Write(w, r, Refusal(connect.CodeUnavailable, err))
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

// open reports whether a request may come from who is no member yet.
func open(r *http.Request) bool {
	return r.URL.Path == nodev1connect.NodeServiceHelloProcedure || r.URL.Path == nodev1connect.NodeServiceJoinProcedure
}

// onlyCluster refuses what names another cluster. Hello and Join are open where
// one of the two has none yet.
func onlyCluster(h http.Handler, cluster func() string) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		named := r.Header.Get(clusterHeader)
		if own := cluster(); named != own && !(open(r) && (named == "" || own == "")) {
			w.Header().Set("Connection", "close") // as in onlyMeant
			// Best effort: the caller may be gone.
			_ = refuse.Write(w, r, Refusal(connect.CodePermissionDenied, fmt.Errorf("this node belongs to cluster %q, not to %q", own, named)))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// ErrUnreached reports that a request did not get as far as a connection.
var ErrUnreached = errors.New("cannot be reached")

// outcomeHeader stands with the error of a request that did nothing. Nobody but
// the node that was asked can set it: without it the request, or its answer, may
// have been lost on the way.
const (
	outcomeHeader     = "Govnode-Outcome"
	outcomeNotApplied = "not applied"
)

// Refusal is the error of a request that did nothing.
func Refusal(code connect.Code, err error) *connect.Error {
	e := connect.NewError(code, err)
	e.Meta().Set(outcomeHeader, outcomeNotApplied)
	return e
}

// Refused reports whether an error is a refusal.
func Refused(e *connect.Error) bool { return e.Meta().Get(outcomeHeader) == outcomeNotApplied }
