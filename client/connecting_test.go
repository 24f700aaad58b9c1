package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
)

// What fails before there is a connection was not done, whatever it is; what fails
// later may have been. Where it is for want of the right certificates it is said what
// to do.
func TestWhatFailsBeforeItIsSent(t *testing.T) {
	trusting := func(s *httptest.Server) *tls.Config {
		pool := x509.NewCertPool()
		pool.AddCert(s.Certificate())
		return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	strangers := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}
	serve := func(t *testing.T, h http.HandlerFunc, secure *tls.Config) *httptest.Server {
		s := httptest.NewUnstartedServer(h)
		s.Config.ErrorLog = quiet()
		if s.TLS = secure; secure != nil {
			s.StartTLS()
		} else {
			s.Start()
		}
		t.Cleanup(s.Close)
		return s
	}
	// listen hands connections to f, and closes them.
	listen := func(t *testing.T, f func(net.Conn)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				f(conn)
				_ = conn.Close()
			}
		}()
		return l.Addr().String()
	}
	through := func(t *testing.T, proxy string) *http.Client {
		u, err := url.Parse(proxy)
		require.NoError(t, err)
		transport := &http.Transport{Proxy: http.ProxyURL(u)}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	cut := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	}

	for name, test := range map[string]struct {
		// set makes what is asked. Whoever is asked may end the asking.
		set  func(t *testing.T, c *client.Config, end func())
		done string // what is said; empty where it may have been done
	}{
		"nobody listens": {func(t *testing.T, c *client.Config, _ func()) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			require.NoError(t, l.Close())
			c.Addresses = []string{l.Addr().String()}
		}, "connection refused"},
		"an authority that is not trusted": {func(t *testing.T, c *client.Config, _ func()) {
			c.Addresses, c.TLS = []string{serve(t, cut, &tls.Config{}).Listener.Addr().String()}, strangers
		}, "name it in GOVNODE_TLS_CA"},
		"another host": {func(t *testing.T, c *client.Config, _ func()) {
			s := serve(t, cut, &tls.Config{})
			_, port, err := net.SplitHostPort(s.Listener.Addr().String())
			require.NoError(t, err)
			c.Addresses, c.TLS = []string{"localhost:" + port}, trusting(s)
		}, "is for another host"},
		"a certificate that has ended": {func(t *testing.T, c *client.Config, _ func()) {
			s := serve(t, cut, &tls.Config{})
			c.Addresses, c.TLS = []string{s.URL}, trusting(s)
			c.TLS.Time = func() time.Time { return s.Certificate().NotAfter.Add(time.Hour) }
		}, "cannot be trusted"},
		"a node without TLS": {func(t *testing.T, c *client.Config, _ func()) {
			c.Addresses, c.TLS = []string{serve(t, cut, nil).Listener.Addr().String()}, strangers
		}, "does not speak TLS"},
		"an older TLS": {func(t *testing.T, c *client.Config, _ func()) {
			s := serve(t, cut, &tls.Config{MaxVersion: tls.VersionTLS12})
			c.Addresses, c.TLS = []string{s.URL}, trusting(s)
			c.TLS.MinVersion = tls.VersionTLS13
		}, "protocol version"},
		"the end of the connection in place of a handshake": {func(t *testing.T, c *client.Config, _ func()) {
			c.Addresses, c.TLS = []string{listen(t, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 9)) })}, strangers
		}, "not done"},
		"no end of a handshake": {func(t *testing.T, c *client.Config, end func()) {
			c.Addresses, c.TLS = []string{listen(t, func(conn net.Conn) {
				_, _ = conn.Read(make([]byte, 9))
				end()
				_, _ = io.Copy(io.Discard, conn)
			})}, strangers
		}, "not done"},
		"a proxy that is not there": {func(t *testing.T, c *client.Config, _ func()) {
			c.Addresses, c.HTTPClient = []string{"http://gov.example"}, through(t, "http://127.0.0.1:1")
		}, "proxyconnect"},
		"a proxy that refuses": {func(t *testing.T, c *client.Config, _ func()) {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, nil)
			c.Addresses, c.HTTPClient = []string{"https://gov.example"}, through(t, s.URL)
		}, "Forbidden"},
		"a transport of somebody else's, with a certificate": {func(t *testing.T, c *client.Config, _ func()) {
			c.HTTPClient = failing(&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}})
		}, "certificate"},
		"a transport of somebody else's, with a proxy": {func(t *testing.T, c *client.Config, _ func()) {
			c.HTTPClient = failing(&net.OpError{Op: "proxyconnect", Net: "tcp", Err: &net.OpError{Op: "dial", Err: errors.New("refused")}})
		}, "proxyconnect"},
		"a transport of somebody else's that reads nothing": {func(t *testing.T, c *client.Config, _ func()) {
			c.HTTPClient = failing(&net.OpError{Op: "read", Net: "tcp", Err: io.EOF})
		}, ""},
		"a transport of somebody else's that does not say": {func(t *testing.T, c *client.Config, _ func()) {
			c.HTTPClient = failing(io.EOF)
		}, ""},
		"the end of the connection in place of an answer": {func(t *testing.T, c *client.Config, _ func()) {
			c.Addresses = []string{serve(t, cut, nil).URL}
		}, ""},
		"that with TLS": {func(t *testing.T, c *client.Config, _ func()) {
			s := serve(t, cut, &tls.Config{})
			c.Addresses, c.TLS = []string{s.URL}, trusting(s)
		}, ""},
		"that with HTTP/2": {func(t *testing.T, c *client.Config, _ func()) {
			s := httptest.NewUnstartedServer(http.HandlerFunc(cut))
			s.EnableHTTP2, s.Config.ErrorLog = true, quiet()
			s.StartTLS()
			t.Cleanup(s.Close)
			c.Addresses, c.HTTPClient = []string{s.URL}, s.Client()
		}, ""},
		"a node that wants a certificate": {func(t *testing.T, c *client.Config, _ func()) {
			// It refuses when the client has made its part of the handshake, and sends.
			s := serve(t, cut, &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13})
			c.Addresses, c.TLS = []string{s.URL}, trusting(s)
		}, ""},
		"no answer": {func(t *testing.T, c *client.Config, end func()) {
			c.Addresses = []string{serve(t, func(_ http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/AcquireSlot") {
					_, _ = io.Copy(io.Discard, r.Body)
					end()
					<-r.Context().Done()
				}
			}, nil).URL}
		}, ""},
	} {
		for _, streams := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", with streams"}[streams], func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				cfg := client.Config{
					Addresses: []string{"gov.example:1"}, DisableExchange: !streams, Logger: slog.New(slog.DiscardHandler),
					Random: func() float64 { cancel(); return 0 }, // asked for after the first attempt
				}
				test.set(t, &cfg, cancel)
				c, err := client.New(cfg)
				require.NoError(t, err)
				defer func() { _ = c.Close() }()
				_, err = c.Acquire(ctx, "gpu", client.SlotID("mine"), client.Wait(client.NoWait))
				if test.done == "" {
					require.ErrorAs(t, err, new(*client.Unknown))
					return
				}
				require.ErrorAs(t, err, new(*client.Unavailable), "%v", err)
				if ctx.Err() != nil && streams && strings.Contains(err.Error(), "not sent") {
					return // ended while it waited for the stream
				}
				require.ErrorContains(t, err, test.done)
			})
		}
	}
}

func quiet() *log.Logger { return slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) }

type failingTransport struct{ err error }

func (f failingTransport) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

func failing(err error) *http.Client { return &http.Client{Transport: failingTransport{err}} }
