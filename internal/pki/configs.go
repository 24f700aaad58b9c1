package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"
)

// How connections are secured with what a Source holds.
//
// Tickets, with which a connection would go on where another one ended, are not
// given: whoever is not trusted any more would come back with one, and a handshake
// is cheap.

// ClientAuth says what the API asks of those who call it.
type ClientAuth string

const (
	// AuthNone asks for no certificate.
	AuthNone ClientAuth = "none"
	// AuthOptional takes connections without one, and refuses a bad one.
	AuthOptional ClientAuth = "optional"
	// AuthRequire refuses connections without one.
	AuthRequire ClientAuth = "require"
)

// ServerConfig is that of the API of a node, over HTTP/2 and HTTP/1.1. Of whom a
// certificate is asked has to be of the cluster, node or client.
func (s *Source) ServerConfig(auth ClientAuth) *tls.Config {
	ask := map[ClientAuth]tls.ClientAuthType{
		AuthOptional: tls.VerifyClientCertIfGiven, AuthRequire: tls.RequireAndVerifyClientCert,
	}[auth]
	return s.server(ask, s.ofCluster, "h2", "http/1.1")
}

// PeerServerConfig is that of the port at which nodes reach each other: whoever
// connects has to be a node of the cluster.
func (s *Source) PeerServerConfig(protocols ...string) *tls.Config {
	return s.server(tls.RequireAndVerifyClientCert, s.nodeOfCluster, protocols...)
}

// server is a configuration that is made anew for each connection.
func (s *Source) server(ask tls.ClientAuthType, check func(tls.ConnectionState) error, protocols ...string) *tls.Config {
	// Whoever only looks whether there is a certificate finds one here.
	outer := s.base(protocols)
	outer.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.loaded.Load().cert, nil }
	outer.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		l := s.loaded.Load()
		if l.cert == nil || ask != tls.NoClientCert && l.pool == nil {
			// With no pool everybody for whom an authority of the system vouches
			// would be let in.
			return nil, errors.New("pki: there is no certificate, or no authority to know others by")
		}
		c := s.base(protocols)
		c.Certificates = []tls.Certificate{*l.cert}
		c.ClientAuth, c.ClientCAs, c.VerifyConnection = ask, l.pool, check
		return c, nil
	}
	return outer
}

func (s *Source) base(protocols []string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: protocols, SessionTicketsDisabled: true, Time: s.o.Now}
}

// ofCluster refuses a certificate that is of no node and no client of the cluster.
// That there is one is not asked here.
func (s *Source) ofCluster(c tls.ConnectionState) error {
	if len(c.PeerCertificates) == 0 {
		return nil
	}
	_, err := s.known(c.PeerCertificates[0], c.VerifiedChains)
	return err
}

func (s *Source) nodeOfCluster(c tls.ConnectionState) error {
	if len(c.PeerCertificates) == 0 {
		return errors.New("pki: there is no certificate")
	}
	_, err := s.knownNode(c.PeerCertificates[0], c.VerifiedChains)
	return err
}

// A Stranger is the error about a certificate that an authority vouches for, and
// that is of somebody else than it has to be of.
type Stranger struct{ text string }

// Error implements error.
func (e *Stranger) Error() string { return e.text }

func stranger(format string, args ...any) error { return &Stranger{fmt.Sprintf(format, args...)} }

// known returns who in the cluster a certificate is for.
func (s *Source) known(cert *x509.Certificate, chains [][]*x509.Certificate) (Identity, error) {
	who, ok := IdentityOf(cert)
	switch {
	case !ok:
		return who, stranger("the certificate of %q does not say which node or client of cluster %s it is for", cert.Subject.CommonName, s.o.Cluster)
	case who.Cluster != s.o.Cluster:
		return who, stranger("the certificate is that of %s, and this is cluster %s", who.words(), s.o.Cluster)
	case !vouched(chains, s.o.Cluster):
		return who, stranger("the certificate is that of %s, and the authority that vouches for it is another cluster's", who.words())
	}
	return who, nil
}

// knownNode is known for nodes alone.
func (s *Source) knownNode(cert *x509.Certificate, chains [][]*x509.Certificate) (Identity, error) {
	who, err := s.known(cert, chains)
	if err == nil && who.Role != Node {
		err = stranger("the certificate is that of %s, and only nodes may speak here", who.words())
	}
	return who, err
}

// vouched reports whether one of the chains ends at an authority of the cluster:
// one that names it, or that names none.
func vouched(chains [][]*x509.Certificate, cluster string) bool {
	for _, c := range chains {
		if of := clusterOf(c[len(c)-1]); of == "" || of == cluster {
			return true
		}
	}
	return false
}

// PeerClientConfig is that of a connection to another node: what is at the other
// end has to be the node that is expected, or any of the cluster if that is "". It
// is known by its identity and not by its host, which may change.
func (s *Source) PeerClientConfig(expected string, protocols ...string) *tls.Config {
	c := s.base(protocols)
	c.GetClientCertificate = s.shown
	// The check that is left out is the one by the name of the host; all others
	// are made in VerifyConnection, which a connection cannot do without.
	c.InsecureSkipVerify = true
	c.VerifyConnection = func(state tls.ConnectionState) error {
		pool := s.loaded.Load().pool
		if pool == nil {
			return errors.New("pki: there is no authority to know nodes by")
		}
		chains, err := verify(state.PeerCertificates, pool, c)
		if err != nil {
			return err
		}
		who, err := s.knownNode(state.PeerCertificates[0], chains)
		if err == nil && expected != "" && who.Name != expected {
			err = stranger("the certificate is that of %s, and node %s was expected there", who.words(), expected)
		}
		return err
	}
	return c
}

// PinnedClientConfig is PeerClientConfig where none but one authority may vouch for the
// other end, which is known by its fingerprint.
func (s *Source) PinnedClientConfig(authority []byte, expected string, protocols ...string) *tls.Config {
	c := s.PeerClientConfig(expected, protocols...)
	known := c.VerifyConnection
	c.VerifyConnection = func(state tls.ConnectionState) error {
		if err := known(state); err != nil {
			return err
		}
		pool := x509.NewCertPool()
		for _, cert := range s.only(authority) {
			pool.AddCert(cert)
		}
		if _, err := verify(state.PeerCertificates, pool, c); err != nil {
			return stranger("the authority that vouches for the node there is not the one that is asked for: %v", err)
		}
		return nil
	}
	return c
}

// verify is what crypto/tls does with the certificate of a server, but for the
// name of its host.
func verify(certs []*x509.Certificate, pool *x509.CertPool, c *tls.Config) ([][]*x509.Certificate, error) {
	o := x509.VerifyOptions{
		Roots: pool, Intermediates: x509.NewCertPool(), CurrentTime: c.Time(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, cert := range certs[1:] {
		o.Intermediates.AddCert(cert)
	}
	chains, err := certs[0].Verify(o)
	if err != nil {
		return nil, &tls.CertificateVerificationError{UnverifiedCertificates: certs, Err: err}
	}
	return chains, nil
}

// shown is the certificate that is shown to a server that asks for one; an empty
// one is none.
func (s *Source) shown(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if c := s.loaded.Load().cert; c != nil {
		return c, nil
	}
	return new(tls.Certificate), nil
}

// ClientConfig is that of users of the API, who know a node by its host, and trust
// the authorities that were read last when it is made. The certificate that is
// shown is always the one that was read last.
func (s *Source) ClientConfig(protocols ...string) *tls.Config {
	c := s.base(protocols)
	c.RootCAs, c.GetClientCertificate = s.loaded.Load().pool, s.shown
	return c
}

// handshakeIn is how long a node may take for its part of a handshake. One that is
// stopped still has its connections accepted by its system.
const handshakeIn = 5 * time.Second

// DialNode opens connections to nodes as PeerClientConfig has them, for
// http.Transport.DialTLSContext. The node that has to be at an address is what
// meant says; "" if any may be.
func (s *Source) DialNode(dial func(ctx context.Context, network, address string) (net.Conn, error), meant func(address string) string, protocols ...string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return handshake(ctx, conn, address, s.PeerClientConfig(meant(address), protocols...))
	}
}

// DialPinned opens a connection to a node as PinnedClientConfig has it, for HTTP/1.1.
func (s *Source) DialPinned(ctx context.Context, network, address string, authority []byte, node string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return handshake(ctx, conn, address, s.PinnedClientConfig(authority, node, "http/1.1"))
}

// handshake makes that of a client.
func handshake(ctx context.Context, conn net.Conn, address string, config *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeIn)
	defer cancel()
	c := tls.Client(conn, config)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // the handshake may have closed it
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return c, nil
}
