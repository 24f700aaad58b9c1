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

// The cluster and the member at the address, if one is known, are named in every request. An
// http.RoundTripper may not change the request that it is given.
func TestTheMemberIsNamedInEveryRequest(t *testing.T) {
	var named http.Header
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { named = r.Header }))
	defer s.Close()
	inner := &http.Transport{}
	defer inner.CloseIdleConnections()
	here := s.Listener.Addr().String()
	for address, node := range map[string]string{here: "a", "elsewhere:1": ""} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
		require.NoError(t, err)
		nameAt := func(at string) string { return map[string]string{address: "a"}[at] }
		res, err := memberTransport{inner, func() string { return "mine" }, nameAt}.RoundTrip(r)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, "mine", named.Get(clusterHeader))
		require.Equal(t, node, named.Get(nodeHeader))
		require.Empty(t, r.Header)
	}
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
		another                  = "this is node a, and not c"
	)
	ca := newCA(t, "govnode")
	for _, c := range []struct {
		what, cluster, own string
		caller             string // "": without TLS
		starting           bool
		meant              string
		refused            string
	}{
		{term, "mine", "mine", "", false, "", ""},
		{term, "other", "mine", "", false, "", foreign},
		{term, "", "mine", "", false, "", foreign},
		{term, "other", "", "", false, "", foreign},
		{hello, "mine", "mine", "", false, "", ""},
		{hello, "other", "mine", "", false, "", foreign},
		{hello, "", "mine", "", false, "", ""},
		{hello, "other", "", "", false, "", ""},
		{join, "other", "mine", "", false, "", foreign},
		{join, "", "mine", "", false, "", ""},
		{join, "other", "", "", false, "", ""},
		{hello, "mine", "mine", "", true, "", ""},
		{join, "mine", "mine", "", true, "", early},
		{term, "mine", "mine", "", true, "", early},
		{term, "mine", "mine", "b", false, "", ""},
		{term, "mine", "mine", "stranger", false, "", stranger},
		{hello, "mine", "mine", "stranger", false, "", ""},
		{join, "mine", "mine", "stranger", false, "", ""},
		{term, "mine", "mine", "", false, "a", ""},
		{term, "mine", "mine", "", false, "c", another},
		{term, "mine", "mine", "b", false, "c", another},
		{hello, "mine", "mine", "", false, "c", ""},
		{join, "mine", "mine", "", false, "c", ""},
	} {
		p := &Port{cfg: Config{
			Node: "a", Logger: slog.New(slog.DiscardHandler), Cluster: func() string { return c.own },
			Strange: func(node string) bool { return node != "b" },
		}}
		srv := NewServer(nodev1connect.UnimplementedNodeServiceHandler{}, p, func() bool { return !c.starting })
		r := httptest.NewRequest(http.MethodPost, c.what, strings.NewReader(""))
		r.Header.Set("Content-Type", "application/proto")
		r.Header.Set(clusterHeader, c.cluster)
		r.Header.Set(nodeHeader, c.meant)
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

// A connection that leads to the wrong node ends with the first answer: the next one may
// lead to the right one, once the name does.
func TestAConnectionToTheWrongNodeEnds(t *testing.T) {
	for _, c := range []struct {
		cluster, node string
		code          connect.Code // of the answer to Term
		ends          bool
	}{
		{"mine", "a", 0, false}, {"mine", "", 0, false},
		{"mine", "c", connect.CodeUnavailable, true}, {"other", "a", connect.CodePermissionDenied, true},
	} {
		for _, asks := range []string{"Term", "Hello"} {
			synctest.Test(t, func(t *testing.T) {
				l := newPipes()
				a := Listen(l, Config{Node: "a", Address: "pipe:1", Dial: l.dial, Logger: slog.New(slog.DiscardHandler), Cluster: func() string { return "mine" }})
				srv := NewServer(&callers{}, a, func() bool { return true })
				go func() { _ = srv.Serve(a.HTTP()) }()
				b := Listen(newPipes(), Config{
					Node: "b", Address: "pipe:2", Dial: l.dial, Logger: slog.New(slog.DiscardHandler),
					Cluster: func() string { return c.cluster }, NameAt: func(string) string { return c.node },
				})
				peers := NewPeers(b)
				if asks == "Term" {
					_, err := peers.At("pipe:1").Term(t.Context(), &nodev1.TermRequest{})
					require.Equal(t, c.code == 0, err == nil, "%v", err)
					if err != nil {
						require.Equal(t, c.code, connect.CodeOf(err))
					}
				} else {
					_, _ = peers.At("pipe:1").Hello(t.Context(), &nodev1.HelloRequest{})
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				a.mu.Lock()
				require.Equal(t, c.ends, len(a.conns) == 0, "%+v %s", c, asks)
				a.mu.Unlock()
				peers.Close()
				require.NoError(t, a.Close())
				require.NoError(t, b.Close())
				require.NoError(t, srv.Close())
			})
		}
	}
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
