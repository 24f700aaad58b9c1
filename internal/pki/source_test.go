package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A folder has the files of one process.
type folder struct{ cert, key, ca string }

func (f folder) write(t *testing.T, p *Pair, cas ...*Pair) folder {
	t.Helper()
	if p != nil {
		require.NoError(t, p.Write(f.cert, f.key, true))
	}
	var text []byte
	for _, c := range cas {
		text = append(text, c.CertPEM()...)
	}
	require.NoError(t, os.WriteFile(f.ca, text, 0o600))
	return f
}

func newFolder(t *testing.T) folder {
	dir := t.TempDir()
	return folder{filepath.Join(dir, "x.crt"), filepath.Join(dir, "x.key"), filepath.Join(dir, "ca.crt")}
}

func (f folder) load(t *testing.T, node string) *Source {
	t.Helper()
	s, err := Load(Options{Cert: f.cert, Key: f.key, CA: f.ca, Cluster: "govnode", Node: node, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return s
}

// shake makes a handshake and says what each end found. The server says one word
// after it, so that a client hears of a refusal.
func shake(t *testing.T, server, client *tls.Config) (state tls.ConnectionState, served, called error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		c := tls.Server(conn, server)
		if err := c.Handshake(); err != nil {
			done <- err
			return
		}
		_, err = c.Write([]byte("x"))
		done <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	c := tls.Client(conn, client)
	if called = c.Handshake(); called == nil {
		_, called = c.Read(make([]byte, 1))
	}
	state = c.ConnectionState()
	_ = conn.Close()
	return state, <-done, called
}

// Who may open a connection to the port of nodes, and what may answer there.
func TestPeers(t *testing.T) {
	ca, foreign := newCA(t, "govnode"), newCA(t, "other")
	both := []*Pair{ca, foreign} // so that it is not the pool that keeps them apart
	a := newFolder(t).write(t, issue(t, ca, Node, "a"), both...).load(t, "a")
	source := func(p *Pair) *Source { return newFolder(t).write(t, p, both...).load(t, "") }

	state, served, called := shake(t, a.PeerServerConfig("p1", "p2"), source(issue(t, ca, Node, "b")).PeerClientConfig("a", "p2"))
	require.NoError(t, served)
	require.NoError(t, called)
	require.Equal(t, "p2", state.NegotiatedProtocol)
	require.EqualValues(t, tls.VersionTLS13, state.Version)
	who, ok := IdentityOf(state.PeerCertificates[0])
	require.True(t, ok)
	require.Equal(t, Identity{"govnode", Node, "a"}, who)

	// The authority of this cluster signs an identity of another, and the other
	// way round.
	across := func(ca *Pair, cluster string) *Pair {
		posing := *ca
		cert := *ca.Certificate
		cert.URIs = newCA(t, cluster).Certificate.URIs
		posing.Certificate = &cert
		return issue(t, &posing, Node, "b")
	}
	expired, err := Issue(ca, Node, "b", []string{"h"}, now.Add(-30*time.Minute), 10*time.Minute)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		pair *Pair
		want string
	}{
		"a client":                         {issue(t, ca, Client, "b"), "only nodes may speak here"},
		"another cluster":                  {issue(t, foreign, Node, "b"), "this is cluster govnode"},
		"a name of another cluster":        {across(ca, "other"), "this is cluster govnode"},
		"this name by another's authority": {across(foreign, "govnode"), "is another cluster's"},
		"expired":                          {expired, "expired"},
		"an authority nobody knows":        {issue(t, newCA(t, "govnode"), Node, "b"), "unknown authority"},
	} {
		_, served, called := shake(t, a.PeerServerConfig("p"), source(c.pair).PeerClientConfig("a", "p"))
		require.ErrorContains(t, served, c.want, name)
		require.Error(t, called, name)

		// And it is nobody who may answer.
		posing := source(c.pair)
		server := posing.base([]string{"p"})
		server.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return posing.loaded.Load().cert, nil }
		_, _, called = shake(t, server, a.PeerClientConfig("", "p"))
		if name == "a client" {
			require.ErrorContains(t, called, "incompatible key usage", name)
		} else {
			require.ErrorContains(t, called, c.want, name)
		}
	}

	_, _, called = shake(t, a.PeerServerConfig("p"), source(issue(t, ca, Node, "b")).PeerClientConfig("c", "p"))
	require.ErrorContains(t, called, "node c was expected there")
	_, served, _ = shake(t, a.PeerServerConfig("p"), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"p"}})
	require.ErrorContains(t, served, "didn't provide a certificate")
	_, served, called = shake(t, a.PeerServerConfig("p"), source(issue(t, ca, Node, "b")).PeerClientConfig("a", "q"))
	require.ErrorContains(t, served, "unsupported application protocols")
	require.Error(t, called)
	old := source(issue(t, ca, Node, "b")).PeerClientConfig("a", "p")
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	_, served, called = shake(t, a.PeerServerConfig("p"), old)
	require.ErrorContains(t, served, "unsupported versions")
	require.Error(t, called)
}

// What the API asks of those who call it, and what those ask of it.
func TestAPI(t *testing.T) {
	ca := newCA(t, "govnode")
	a := newFolder(t).write(t, issue(t, ca, Node, "a"), ca).load(t, "a")
	client := func(p *Pair, cas ...*Pair) *tls.Config {
		f := newFolder(t).write(t, p, cas...)
		if p == nil {
			f.cert, f.key = "", ""
		}
		c := f.load(t, "").ClientConfig("h2")
		c.ServerName = "127.0.0.1"
		return c
	}
	agent := issue(t, ca, Client, "agent")
	for auth, withNone := range map[ClientAuth]bool{AuthNone: true, AuthOptional: true, AuthRequire: false} {
		_, served, called := shake(t, a.ServerConfig(auth), client(nil, ca))
		require.Equal(t, withNone, served == nil, auth)
		require.Equal(t, withNone, called == nil, auth)
		_, served, called = shake(t, a.ServerConfig(auth), client(agent, ca))
		require.NoError(t, served, auth)
		require.NoError(t, called, auth)
		_, served, _ = shake(t, a.ServerConfig(auth), client(issue(t, newCA(t, "govnode"), Client, "agent"), ca))
		require.Equal(t, auth == AuthNone, served == nil, auth)
	}
	// Another name of the host, another authority, and a client that poses as a node.
	elsewhere := client(nil, ca)
	elsewhere.ServerName = "example.com"
	_, _, called := shake(t, a.ServerConfig(AuthNone), elsewhere)
	require.ErrorContains(t, called, "example.com")
	_, _, called = shake(t, a.ServerConfig(AuthNone), client(nil, newCA(t, "govnode")))
	require.ErrorContains(t, called, "unknown authority")
	posing := newFolder(t).write(t, agent, ca).load(t, "")
	_, _, called = shake(t, posing.ServerConfig(AuthNone), client(nil, ca))
	require.Error(t, called)
	// Without authorities nobody can be asked who he is.
	alone := newFolder(t).write(t, issue(t, ca, Node, "a"), ca)
	alone.ca = ""
	_, served, _ := shake(t, alone.load(t, "a").ServerConfig(AuthRequire), client(agent, ca))
	require.ErrorContains(t, served, "no authority to know others by")
	_, served, called = shake(t, alone.load(t, "a").ServerConfig(AuthNone), client(agent, ca))
	require.NoError(t, served)
	require.NoError(t, called)
}

// Plain bytes on a port with TLS are told that it is one.
func TestPlainBytes(t *testing.T) {
	ca := newCA(t, "govnode")
	s := newFolder(t).write(t, issue(t, ca, Node, "a"), ca).load(t, "a")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := &http.Server{TLSConfig: s.ServerConfig(AuthOptional), ReadHeaderTimeout: time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	go func() { _ = srv.ServeTLS(l, "", "") }()
	defer func() { _ = srv.Close() }()
	res, err := http.Get("http://" + l.Addr().String())
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	require.Equal(t, http.StatusBadRequest, res.StatusCode)

	// And the same server through the dialer of nodes.
	f := newFolder(t).write(t, issue(t, ca, Node, "b"), ca).load(t, "b")
	dial := func(node string) (net.Conn, error) {
		meant := func(string) string { return node }
		return f.DialNode(new(net.Dialer).DialContext, meant, "http/1.1")(t.Context(), "tcp", l.Addr().String())
	}
	for _, node := range []string{"a", ""} {
		conn, err := dial(node)
		require.NoError(t, err)
		require.Equal(t, "http/1.1", conn.(*tls.Conn).ConnectionState().NegotiatedProtocol)
		require.NoError(t, conn.Close())
	}
	_, err = dial("c")
	require.ErrorContains(t, err, "node c was expected there")
}

// A certificate is replaced while a connection stands, and bad files change
// nothing.
func TestReload(t *testing.T) {
	ca := newCA(t, "govnode")
	f := newFolder(t).write(t, issue(t, ca, Node, "a"), ca)
	s := f.load(t, "a")
	server := s.PeerServerConfig("p")
	b := newFolder(t).write(t, issue(t, ca, Node, "b"), ca).load(t, "b")

	here, there := net.Pipe()
	standing, peer := tls.Server(here, server), tls.Client(there, b.PeerClientConfig("a", "p"))
	go func() { _ = standing.Handshake() }()
	require.NoError(t, peer.Handshake())
	serial := func() string {
		state, served, called := shake(t, server, b.PeerClientConfig("a", "p"))
		require.NoError(t, served)
		require.NoError(t, called)
		return state.PeerCertificates[0].SerialNumber.String()
	}
	first := serial()

	// Bad files, one after another.
	expired, err := Issue(ca, Node, "a", []string{"h"}, now.Add(-30*time.Minute), 10*time.Minute)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		pair *Pair
		ca   *Pair
		want string
	}{
		"expired":           {expired, ca, "has not ended"},
		"another node":      {issue(t, ca, Node, "c"), ca, "is that of node c, and this is node a"},
		"a client":          {issue(t, ca, Client, "a"), ca, "a node needs one of its own"},
		"another cluster":   {issue(t, newCA(t, "other"), Node, "a"), ca, "is of cluster other"},
		"another authority": {issue(t, ca, Node, "a"), newCA(t, "govnode"), "not one that the authorities"},
	} {
		f.write(t, c.pair, c.ca)
		require.ErrorContains(t, s.Reload(), c.want, name)
		require.Equal(t, first, serial(), name)
	}
	f.write(t, issue(t, ca, Node, "a"), ca)
	require.NoError(t, os.WriteFile(f.cert, []byte("rubbish"), 0o600))
	require.Error(t, s.Reload())
	require.NoError(t, os.Remove(f.ca))
	require.Error(t, s.Reload())
	require.Equal(t, first, serial())

	s.Refresh()
	require.Equal(t, first, serial())

	// Good ones, with a new authority beside the old one.
	f.write(t, issue(t, ca, Node, "a"), ca, newCA(t, "govnode"))
	s.Refresh()
	require.NotEqual(t, first, serial())
	go func() { _, _ = io.WriteString(peer, "on") }()
	text := make([]byte, 2)
	_, err = io.ReadFull(standing, text)
	require.NoError(t, err, "the connection stands")
}

// An authority that is taken away is not trusted by the next connection.
func TestAnAuthorityGoes(t *testing.T) {
	old, next := newCA(t, "govnode"), newCA(t, "govnode")
	f := newFolder(t).write(t, issue(t, next, Node, "a"), old, next)
	s := f.load(t, "a")
	b := newFolder(t).write(t, issue(t, old, Node, "b"), old, next).load(t, "b")
	server := s.PeerServerConfig("p")
	_, served, _ := shake(t, server, b.PeerClientConfig("a", "p"))
	require.NoError(t, served)
	f.write(t, nil, next)
	require.NoError(t, s.Reload())
	_, served, _ = shake(t, server, b.PeerClientConfig("a", "p"))
	require.ErrorContains(t, served, "unknown authority")
}

// What changes is found, and what ends is told once.
func TestWatch(t *testing.T) {
	ca := newCA(t, "govnode")
	f := newFolder(t).write(t, issue(t, ca, Node, "a"), ca)
	var mu sync.Mutex
	var log bytes.Buffer
	at := now
	clock := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return at
	}
	s, err := Load(Options{
		Cert: f.cert, Key: f.key, CA: f.ca, Cluster: "govnode", Node: "a", Now: clock,
		Logger: slog.New(slog.NewTextHandler(writer{&mu, &log}, nil)),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Watch(ctx, time.Millisecond)
	}()
	says := func(text string, times int) {
		t.Helper()
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return bytes.Count(log.Bytes(), []byte(text)) == times
		}, 10*time.Second, time.Millisecond, text)
	}
	require.NoError(t, os.WriteFile(f.ca, []byte("rubbish"), 0o600))
	says("cannot be used; what was read before stays", 1)
	longer, err := Issue(ca, Node, "a", []string{"h"}, now, 2*year)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(f.key, 0o644))
	f.write(t, nil, ca)
	says("chmod 600", 1)
	says("the certificates were read again", 0)
	require.NoError(t, os.Chmod(f.key, 0o600)) // which changes neither its length nor its time
	says("the certificates were read again", 1)
	f.write(t, longer, ca)
	require.Eventually(t, func() bool {
		return s.loaded.Load().cert.Leaf.Equal(longer.Certificate) && bytes.Equal(s.loaded.Load().cas[0].Raw, ca.Certificate.Raw)
	}, 10*time.Second, time.Millisecond)

	mu.Lock()
	at = now.Add(2*year - 24*time.Hour)
	mu.Unlock()
	says("level=WARN msg=\"the own certificate ends soon", 1)
	mu.Lock()
	at = now.Add(2*year + time.Hour)
	mu.Unlock()
	says("level=ERROR msg=\"the own certificate has ended", 1)
	cancel()
	<-ended
	says("the own certificate", 2)

	// A node whose certificate has ended starts, and says it.
	_, err = Load(s.o)
	require.NoError(t, err)
	says("level=ERROR msg=\"the own certificate has ended", 2)
}

type writer struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (w writer) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}

// What a node must not start with.
func TestLoadRefuses(t *testing.T) {
	ca := newCA(t, "govnode")
	f := newFolder(t).write(t, issue(t, ca, Node, "a"), ca)
	load := func(change func(*Options)) error {
		o := Options{Cert: f.cert, Key: f.key, CA: f.ca, Cluster: "govnode", Node: "a", Logger: slog.New(slog.DiscardHandler)}
		change(&o)
		_, err := Load(o)
		return err
	}
	require.NoError(t, load(func(*Options) {}))
	require.ErrorContains(t, load(func(o *Options) { o.Key = "" }), "go together")
	require.ErrorContains(t, load(func(o *Options) { o.Node = "b" }), "is that of node a, and this is node b")
	require.ErrorContains(t, load(func(o *Options) { o.Cluster = "other" }), "give --cluster-name govnode")
	require.ErrorContains(t, load(func(o *Options) { o.CA = o.Key }), "PRIVATE KEY")
	require.ErrorContains(t, load(func(o *Options) { o.CA += ".gone" }), "no such file")
	require.NoError(t, os.Chmod(f.key, 0o644))
	require.ErrorContains(t, load(func(*Options) {}), "chmod 600")
	require.NoError(t, os.Chmod(f.key, 0o600))

	// One of a public authority names no node.
	plain := *ca.Certificate
	plain.URIs = nil
	public := *ca
	public.Certificate = &plain
	leaf := &x509.Certificate{NotBefore: now.Add(-time.Hour), NotAfter: now.Add(year), DNSNames: []string{"h"}}
	p, err := sign(leaf, newKey(t), &public)
	require.NoError(t, err)
	f.write(t, p, ca)
	require.ErrorContains(t, load(func(*Options) {}), "does not say whose it is")
	require.NoError(t, load(func(o *Options) { o.CA = "" }))
}

// A connection that is pinned to an authority is made to a node for whom that one
// vouches, whoever else is trusted; and a node knows who vouches for it.
func TestPinnedToAnAuthority(t *testing.T) {
	ca, next := newCA(t, "govnode"), newCA(t, "govnode")
	load := func(p *Pair, cas ...*Pair) *Source { return newFolder(t).write(t, p, cas...).load(t, "") }
	a, b := load(issue(t, ca, Node, "a"), ca, next), load(issue(t, next, Node, "b"), ca, next)
	require.Equal(t, Fingerprint(ca.Certificate), a.Authority())
	require.Equal(t, Fingerprint(next.Certificate), b.Authority())
	require.NotEqual(t, a.Authority(), b.Authority())
	require.True(t, a.Trusts(b.Authority()))
	require.False(t, load(issue(t, ca, Node, "c"), ca).Trusts(b.Authority()))

	joins := load(issue(t, ca, Node, "c"), ca, next)
	_, _, called := shake(t, a.ServerConfig(AuthNone), joins.PinnedClientConfig(a.Authority(), "a", "http/1.1"))
	require.NoError(t, called)
	var foreign *Stranger
	_, _, called = shake(t, b.ServerConfig(AuthNone), joins.PinnedClientConfig(a.Authority(), "b", "http/1.1"))
	require.ErrorAs(t, called, &foreign)
	require.ErrorContains(t, called, "is not the one that is asked for")
	_, _, called = shake(t, a.ServerConfig(AuthNone), joins.PinnedClientConfig(a.Authority(), "b", "http/1.1"))
	require.ErrorContains(t, called, "node b was expected there")
	_, _, called = shake(t, a.ServerConfig(AuthNone), joins.PinnedClientConfig(nil, "a", "http/1.1"))
	require.Error(t, called, "nobody is asked for")
}
