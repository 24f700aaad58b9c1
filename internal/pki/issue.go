package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"regexp"
	"time"
)

// How certificates are made.

const (
	// authorityFor is how long the certificate of an authority is valid.
	authorityFor = 10 * 365 * 24 * time.Hour
	// backdated is how long ago a new certificate began, for machines whose
	// clocks are behind.
	backdated = time.Hour
)

// A Pair is a certificate with its key.
type Pair struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
}

// NewCA draws the authority of a cluster: ECDSA on P-256, valid for ten years.
func NewCA(cluster string, now time.Time) (*Pair, error) {
	if err := CheckCluster(cluster); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "govnode CA of " + cluster, Organization: []string{cluster}},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(authorityFor),
		URIs:                  []*url.URL{{Scheme: scheme, Host: cluster}},
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true, // it vouches for nobody who vouches
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return sign(t, key, &Pair{t, key})
}

// Cluster returns the cluster of an authority.
func (p *Pair) Cluster() string { return clusterOf(p.Certificate) }

// Issue makes the certificate of a node or of a client, in the cluster of the
// authority. The hosts are names and IP addresses under which a node is reached;
// a client has none.
func Issue(ca *Pair, role Role, name string, hosts []string, now time.Time, validity time.Duration) (*Pair, error) {
	who := Identity{ca.Cluster(), role, name}
	if !ca.Certificate.IsCA || who.Cluster == "" {
		return nil, errors.New("the certificate is not that of an authority that names a cluster: make one with `govnode tls init`")
	}
	if err := who.check(); err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		Subject:   pkix.Name{CommonName: name, Organization: []string{who.Cluster}},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(validity),
		URIs:                  []*url.URL{who.uri()},
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	switch {
	case validity <= 0:
		return nil, fmt.Errorf("a certificate cannot be valid for %v: give it a time", validity)
	case t.NotAfter.After(ca.Certificate.NotAfter):
		return nil, fmt.Errorf("it would outlive the authority, whose certificate ends on %s: give it a shorter time, or make a new authority", day(ca.Certificate.NotAfter))
	case role == Client && len(hosts) > 0:
		return nil, errors.New("a client is not called, and has no hosts: leave them out")
	case role == Node && len(hosts) == 0:
		return nil, errors.New("a node needs the names or addresses of its host, by which clients know that it is the one: give at least one")
	}
	if role == Node {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if len(h) <= 253 && hostName.MatchString(h) {
			t.DNSNames = append(t.DNSNames, h)
		} else {
			return nil, fmt.Errorf("%q is neither the name of a host nor an IP address; give it without a port", h)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return sign(t, key, ca)
}

var hostName = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*$`)

// sign makes the certificate of a key.
func sign(t *x509.Certificate, key *ecdsa.PrivateKey, ca *Pair) (*Pair, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	t.SerialNumber = serial.Add(serial, big.NewInt(1)) // which must not be 0
	raw, err := x509.CreateCertificate(rand.Reader, t, ca.Certificate, &key.PublicKey, ca.Key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, err
	}
	return &Pair{cert, key}, nil
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }
