package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// authority makes one that may vouch for others that vouch; by is nil for itself.
func authority(t *testing.T, by *Pair, name string) *Pair {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(2 * year), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, URIs: []*url.URL{{Scheme: scheme, Host: "govnode"}},
	}
	if by == nil {
		by = &Pair{c, key}
	}
	p, err := sign(c, key, by)
	require.NoError(t, err)
	return p
}

// An authority may vouch by others between it and a node, whose certificates stand behind
// the node's own.
func TestCertificatesBetween(t *testing.T) {
	root := authority(t, nil, "root")
	first := authority(t, root, "first")
	second := authority(t, first, "second")
	load := func(name string, between ...*Pair) (*Source, error) {
		f := newFolder(t).write(t, issue(t, second, Node, name), root)
		text, err := os.ReadFile(f.cert)
		require.NoError(t, err)
		for _, p := range between {
			text = append(text, p.CertPEM()...)
		}
		require.NoError(t, os.WriteFile(f.cert, text, 0o600))
		return Load(Options{Cert: f.cert, Key: f.key, CA: f.ca, Cluster: "govnode", Node: name, Logger: slog.New(slog.DiscardHandler)})
	}
	a, err := load("a", second, first)
	require.NoError(t, err)
	b, err := load("b", first, second)
	require.NoError(t, err)
	for _, between := range [][]*Pair{nil, {first}, {second}} {
		_, err = load("c", between...)
		require.ErrorContains(t, err, "not one that the authorities")
	}
	require.Equal(t, Fingerprint(root.Certificate), a.Authority())
	for _, pair := range [][2]*Source{{a, b}, {b, a}} {
		for _, client := range []*tls.Config{pair[1].PeerClientConfig("", "p"), pair[1].PinnedClientConfig(a.Authority(), "", "p")} {
			_, served, called := shake(t, pair[0].PeerServerConfig("p"), client)
			require.NoError(t, served)
			require.NoError(t, called)
		}
	}
	_, _, called := shake(t, a.PeerServerConfig("p"), b.PinnedClientConfig(Fingerprint(first.Certificate), "", "p"))
	require.Error(t, called, "one between is no authority here")
}

// One of several chains to an authority of the cluster is enough, whichever it is.
func TestOneChainVouches(t *testing.T) {
	ours, others, nameless := newCA(t, "govnode").Certificate, newCA(t, "other").Certificate, &x509.Certificate{}
	leaf := &x509.Certificate{}
	for _, x := range []struct {
		ends []*x509.Certificate
		want bool
	}{
		{nil, false}, {[]*x509.Certificate{others}, false}, {[]*x509.Certificate{ours}, true}, {[]*x509.Certificate{nameless}, true},
		{[]*x509.Certificate{others, ours}, true}, {[]*x509.Certificate{ours, others}, true}, {[]*x509.Certificate{others, others}, false}, {[]*x509.Certificate{others, nameless}, true},
	} {
		var chains [][]*x509.Certificate
		for _, end := range x.ends {
			chains = append(chains, []*x509.Certificate{leaf, end})
		}
		require.Equal(t, x.want, vouched(chains, "govnode"))
	}
	require.False(t, vouched([][]*x509.Certificate{{ours, others}}, "govnode"), "the end counts")
}

// No connection goes on where another one ended: each makes a whole handshake, in which
// certificates are looked at.
func TestNoTickets(t *testing.T) {
	ca := newCA(t, "govnode")
	s := newFolder(t).write(t, issue(t, ca, Node, "a"), ca).load(t, "a")
	for _, server := range []*tls.Config{s.ServerConfig(AuthNone), s.ServerConfig(AuthRequire), s.PeerServerConfig("h2")} {
		c := s.PeerClientConfig("", "h2")
		c.SessionTicketsDisabled, c.ClientSessionCache = false, tls.NewLRUClientSessionCache(4)
		for range 3 {
			state, served, called := shake(t, server, c)
			require.NoError(t, served)
			require.NoError(t, called)
			require.False(t, state.DidResume)
		}
	}
}

// That a certificate ends is told once, and of the next one again.
func TestEndsAreToldOfEachCertificate(t *testing.T) {
	ca := newCA(t, "govnode")
	clock := now
	var log bytes.Buffer
	f := newFolder(t).write(t, issue(t, ca, Node, "a"), ca)
	s, err := Load(Options{Cert: f.cert, Key: f.key, CA: f.ca, Cluster: "govnode", Node: "a", Logger: slog.New(slog.NewTextHandler(&log, nil)), Now: func() time.Time { return clock }})
	require.NoError(t, err)
	told := func(soon, ended int) {
		t.Helper()
		s.lookAtEnd()
		s.lookAtEnd()
		require.Equal(t, []int{soon, ended}, []int{strings.Count(log.String(), "ends soon"), strings.Count(log.String(), "has ended")})
	}
	told(0, 0)
	end := s.Certificate().Leaf.NotAfter
	clock = end.Add(-warnBefore)
	told(0, 0)
	clock = clock.Add(time.Second)
	told(1, 0)
	require.NoError(t, s.Reload())
	told(2, 0)
	clock = end.Add(time.Second)
	told(2, 1)
	later, err := Issue(ca, Node, "a", []string{"h"}, clock, year)
	require.NoError(t, err)
	f.write(t, later, ca)
	require.NoError(t, s.Reload())
	told(2, 1)
	clock = later.Certificate.NotAfter.Add(time.Second)
	told(2, 2)
	require.NoError(t, s.Reload(), "of two that have ended the newer one is as good")
}

// Files and names have bounds.
func TestBoundsOfFilesAndNames(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	for size, ok := range map[int]bool{0: true, 1 << 20: true, 1<<20 + 1: false} {
		require.NoError(t, os.WriteFile(name, make([]byte, size), 0o600))
		_, err := readFile(name)
		require.Equal(t, ok, err == nil, size)
	}
	host := func(n int) string { return (strings.Repeat("a.", 200) + "a")[:n-1] + "b" }
	ca := newCA(t, "govnode")
	for n, ok := range map[int]bool{1: true, 251: true, 253: true, 255: false} {
		_, err := Issue(ca, Node, "a", []string{"good.example", host(n)}, now, year)
		require.Equal(t, ok, err == nil, n)
	}
	for _, bad := range []string{"", "a:1", "a b", "-a", "a-", "a..b", "*.*.a", "http://a"} {
		_, err := Issue(ca, Node, "a", []string{"good.example", bad}, now, year)
		require.Error(t, err, bad)
	}
}
