package transport

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"example.com/govnode/internal/pki"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/proto/govnode/node/v1/nodev1connect"
)

// An http.RoundTripper may not change the request that it is given.
func TestTheClusterIsNamedInEveryRequest(t *testing.T) {
	var named string
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { named = r.Header.Get(clusterHeader) }))
	defer s.Close()
	inner := &http.Transport{}
	defer inner.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
	require.NoError(t, err)
	res, err := clusterTransport{inner, func() string { return "mine" }}.RoundTrip(r)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, "mine", named)
	require.Empty(t, r.Header)
}

// A node that has started answers the members of its cluster. Who has no cluster, or
// is no member, may say who it is and ask to be one, and so may everybody of a node
// that has no cluster.
func TestWhoMayAskForWhat(t *testing.T) {
	const (
		hello = nodev1connect.NodeServiceHelloProcedure
		join  = nodev1connect.NodeServiceJoinProcedure
		term  = nodev1connect.NodeServiceTermProcedure

		foreign, early, stranger = "this node belongs to cluster", "this node has not been admitted yet", "node stranger is no member"
	)
	ca := newCA(t, "govnode")
	for _, c := range []struct {
		what, cluster, own string
		caller             string // "": without TLS
		starting           bool
		refused            string
	}{
		{term, "mine", "mine", "", false, ""},
		{term, "other", "mine", "", false, foreign},
		{term, "", "mine", "", false, foreign},
		{term, "other", "", "", false, foreign},
		{hello, "mine", "mine", "", false, ""},
		{hello, "other", "mine", "", false, foreign},
		{hello, "", "mine", "", false, ""},
		{hello, "other", "", "", false, ""},
		{join, "other", "mine", "", false, foreign},
		{join, "", "mine", "", false, ""},
		{join, "other", "", "", false, ""},
		{hello, "mine", "mine", "", true, ""},
		{join, "mine", "mine", "", true, early},
		{term, "mine", "mine", "", true, early},
		{term, "mine", "mine", "b", false, ""},
		{term, "mine", "mine", "stranger", false, stranger},
		{hello, "mine", "mine", "stranger", false, ""},
		{join, "mine", "mine", "stranger", false, ""},
	} {
		p := &Port{cfg: Config{
			Logger: slog.New(slog.DiscardHandler), Cluster: func() string { return c.own },
			Strange: func(node string) bool { return node != "b" },
		}}
		srv := NewServer(nodev1connect.UnimplementedNodeServiceHandler{}, p, func() bool { return !c.starting })
		r := httptest.NewRequest(http.MethodPost, c.what, strings.NewReader(""))
		r.Header.Set("Content-Type", "application/proto")
		r.Header.Set(clusterHeader, c.cluster)
		if c.caller != "" {
			cert, err := pki.Issue(ca, pki.Node, c.caller, []string{"somewhere.else"}, time.Now(), time.Hour)
			require.NoError(t, err)
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert.Certificate}}
		}
		w := httptest.NewRecorder()
		srv.Handler.ServeHTTP(w, r)
		if c.refused == "" {
			require.Equal(t, http.StatusNotImplemented, w.Code, "%+v: %s", c, w.Body)
			require.Empty(t, w.Header().Get(outcomeHeader))
			continue
		}
		require.Contains(t, w.Body.String(), c.refused, "%+v", c)
		require.Equal(t, outcomeNotApplied, w.Header().Get(outcomeHeader))
	}
}

// To each node there is one connection, for requests of up to 12 MiB. It is closed when
// nobody needs it any more.
func TestOneConnectionToEachNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		a := newTestPort(l, "mine")
		srv := NewServer(&callers{}, a, func() bool { return true })
		go func() { _ = srv.Serve(a.HTTP()) }()
		b := Listen(newPipes(), Config{Address: "pipe:2", Dial: l.dial, Logger: slog.New(slog.DiscardHandler), Cluster: func() string { return "mine" }})
		peers := NewPeers(b)
		for range 2 {
			_, err := peers.At("pipe:1").Term(t.Context(), &nodev1.TermRequest{})
			require.NoError(t, err)
		}
		r := &nodev1.JoinRequest{Address: strings.Repeat("x", 12<<20-5)}
		require.Equal(t, 12<<20, proto.Size(r))
		_, err := peers.At("pipe:1").Join(t.Context(), r)
		require.Equal(t, connect.CodeUnimplemented, connect.CodeOf(err), "it got there: %v", err)
		r.Address += "x"
		_, err = peers.At("pipe:1").Join(t.Context(), r)
		require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))

		held := func(p *Port) int {
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.conns)
		}
		require.Equal(t, 1, held(a))
		require.Equal(t, 1, held(b))
		peers.Close()
		require.Zero(t, held(a))
		require.Zero(t, held(b))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		require.NoError(t, srv.Close())
	})
}

// A node from which nothing comes any more is given up after three seconds, and nobody
// knows what it has done.
func TestASilentNodeIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		p := Listen(newPipes(), Config{Address: "pipe:2", Dial: l.dial, Logger: slog.New(slog.DiscardHandler), Cluster: func() string { return "mine" }})
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = io.Copy(io.Discard, c)
			}
		}()
		start := time.Now()
		_, err := NewPeers(p).At("pipe:1").Term(t.Context(), &nodev1.TermRequest{})
		require.Error(t, err)
		require.NotErrorIs(t, err, ErrUnreached)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.NoError(t, p.Close())
	})
}

// Each address has one client. Those of long ago are forgotten.
func TestAddressesAreForgotten(t *testing.T) {
	peers := NewPeers(&Port{})
	first := peers.At("node:0")
	for i := range 63 {
		require.NotSame(t, first, peers.At(fmt.Sprintf("node:%d", i+1)))
	}
	require.Same(t, first, peers.At("node:0"))
	peers.At("node:64")
	require.NotSame(t, first, peers.At("node:0"))
	require.Len(t, peers.known, 2)
}
