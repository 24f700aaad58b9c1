package pki

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// What a process shows and whom it trusts, read from files that may change.

// Options say what a Source is read from.
type Options struct {
	// Cert and Key are the files of the certificate that is shown and of its
	// key. Without them none is shown.
	Cert, Key string
	// CA is the file of the authorities that may vouch for others. Without one
	// they are those of the system.
	CA string

	// Cluster is that of which others have to be.
	Cluster string
	// Node is the id of the node whose certificate it has to be. "" takes any.
	Node string

	// Logger is told of what was read again and of a certificate that ends.
	// slog.Default() if nil.
	Logger *slog.Logger
	// Now is the time of day; time.Now if nil.
	Now func() time.Time
}

// A Source is the certificate, the key and the authorities of a process. It is
// safe for concurrent use.
type Source struct {
	o      Options
	loaded atomic.Pointer[loaded]

	mu   sync.Mutex // one reading at a time
	told ending     // of the certificate that is shown
}

// loaded is what was read at one time.
type loaded struct {
	cert  *tls.Certificate // nil where none is shown
	cas   []*x509.Certificate
	pool  *x509.CertPool // nil for that of the system
	files [3]stamp
}

// A stamp is by what a file is seen to have changed.
type stamp struct {
	modified time.Time
	size     int64
}

// ending is what was told of the end of a certificate.
type ending int

const (
	endsLater ending = iota
	endsSoon
	hasEnded
)

// warnBefore is how long before its end somebody is told to replace a
// certificate.
const warnBefore = 14 * 24 * time.Hour

// Load reads a Source. An own certificate that has ended is told in the log and is
// no error: others refuse it, and a node that does not start helps nobody.
func Load(o Options) (*Source, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Source{o: o}
	l, err := s.read()
	if err != nil {
		return nil, err
	}
	s.loaded.Store(l)
	s.lookAtEnd()
	return s, nil
}

// read reads the files and checks what they hold.
func (s *Source) read() (*loaded, error) {
	l := &loaded{files: s.stamps()} // before they are read: what changes meanwhile is seen later
	if (s.o.Cert == "") != (s.o.Key == "") {
		return nil, errors.New("a certificate and its key go together: name both files or none")
	}
	if s.o.CA != "" {
		cas, err := readAuthorities(s.o.CA)
		if err != nil {
			return nil, err
		}
		l.cas, l.pool = cas, x509.NewCertPool()
		for _, c := range cas {
			l.pool.AddCert(c)
		}
	}
	if s.o.Cert == "" {
		return l, nil
	}
	var err error
	if l.cert, err = readTLS(s.o.Cert, s.o.Key); err != nil {
		return nil, err
	}
	if s.o.Node != "" {
		err = s.checkOwn(l)
	}
	return l, err
}

// checkOwn refuses a certificate that is not that of this node. One of a public
// authority says nothing of nodes; it can stand where nobody asks others who they
// are.
func (s *Source) checkOwn(l *loaded) error {
	leaf, cert := l.cert.Leaf, s.o.Cert
	who, ok := IdentityOf(leaf)
	switch {
	case !ok && l.pool == nil:
		return nil
	case !ok:
		return fmt.Errorf("the certificate %s does not say whose it is: make one with `govnode tls node %s --hosts ...`", cert, s.o.Node)
	case who.Role != Node:
		return fmt.Errorf("the certificate %s is that of %s, and a node needs one of its own: make it with `govnode tls node %s --hosts ...`", cert, who.words(), s.o.Node)
	case who.Cluster != s.o.Cluster:
		return fmt.Errorf("the certificate %s is of cluster %s, and this node is of cluster %s: give --cluster-name %s, or a certificate of %s", cert, who.Cluster, s.o.Cluster, who.Cluster, s.o.Cluster)
	case who.Name != s.o.Node:
		return fmt.Errorf("the certificate %s is that of node %s, and this is node %s: give --node %s, or make a certificate with `govnode tls node %s --hosts ...`", cert, who.Name, s.o.Node, who.Name, s.o.Node)
	case l.pool == nil:
		return nil
	}
	chains, err := l.vouchers(s.o.Now())
	if err == nil && !vouched(chains, s.o.Cluster) {
		err = errors.New("that authority is another cluster's")
	}
	if err != nil {
		return fmt.Errorf("the certificate %s is not one that the authorities in %s vouch for: %w; name the ca.crt beside whose key it was made", cert, s.o.CA, err)
	}
	return nil
}

// vouchers are the chains from the own certificate to authorities, as others will find
// them, apart from an end of it that has come.
func (l *loaded) vouchers(at time.Time) ([][]*x509.Certificate, error) {
	leaf := l.cert.Leaf
	if at.After(leaf.NotAfter) {
		at = leaf.NotAfter
	}
	return leaf.Verify(x509.VerifyOptions{
		Roots: l.pool, Intermediates: between(l.cert), CurrentTime: at,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

func between(c *tls.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, raw := range c.Certificate[1:] {
		if cert, err := x509.ParseCertificate(raw); err == nil { // one that cannot be read leads nowhere
			pool.AddCert(cert)
		}
	}
	return pool
}

// Certificate returns the certificate that is shown; nil if there is none.
func (s *Source) Certificate() *tls.Certificate { return s.loaded.Load().cert }

// Identity returns who the certificate that is shown is for.
func (s *Source) Identity() (Identity, bool) {
	c := s.loaded.Load().cert
	if c == nil {
		return Identity{}, false
	}
	return IdentityOf(c.Leaf)
}

// Fingerprint is that of a certificate: the SHA-256 of its DER.
func Fingerprint(cert *x509.Certificate) []byte {
	sum := sha256.Sum256(cert.Raw)
	return sum[:]
}

// Authority returns the fingerprint of the authority that vouches for the certificate
// that is shown; nil where none of those in the file does.
func (s *Source) Authority() []byte {
	l := s.loaded.Load()
	if l.cert == nil || l.pool == nil {
		return nil
	}
	chains, err := l.vouchers(s.o.Now())
	if err != nil {
		return nil
	}
	return Fingerprint(chains[0][len(chains[0])-1])
}

// Trusts reports whether the authority of a fingerprint is in the file.
func (s *Source) Trusts(authority []byte) bool { return len(s.only(authority)) > 0 }

// only returns the authorities of a fingerprint.
func (s *Source) only(authority []byte) (all []*x509.Certificate) {
	for _, c := range s.loaded.Load().cas {
		if bytes.Equal(Fingerprint(c), authority) {
			all = append(all, c)
		}
	}
	return all
}

// HasCA reports whether there are authorities other than those of the system.
func (s *Source) HasCA() bool { return s.o.CA != "" }

// Reload reads the files again. The error says what is wrong with them; then
// everything stays as it was.
func (s *Source) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := s.read()
	if err == nil && l.cert != nil && s.o.Now().After(l.cert.Leaf.NotAfter) && !s.o.Now().After(s.loaded.Load().cert.Leaf.NotAfter) {
		err = fmt.Errorf("the certificate %s ended on %s, and the one that is used has not ended", s.o.Cert, day(l.cert.Leaf.NotAfter))
	}
	if err != nil {
		return err
	}
	s.loaded.Store(l)
	s.told = endsLater
	s.endLocked()
	return nil
}

// Watch looks at the files again and again until the context ends, reads them when
// they changed, and tells in time of a certificate that ends.
func (s *Source) Watch(ctx context.Context, every time.Duration) {
	seen, failed := s.loaded.Load().files, ""
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := s.stamps()
		switch again := now != seen || failed != ""; { // what was wrong may be another's right to read them, or the time
		case now == s.loaded.Load().files:
			failed = ""
		case again:
			err := s.Reload()
			if err == nil {
				failed = ""
				s.o.Logger.Info("the certificates were read again", "expires", s.expires())
			} else if text := err.Error(); now != seen || text != failed {
				failed = text
				s.o.Logger.Error("the files of certificates changed and cannot be used; what was read before stays, and they are tried again", "error", err)
			}
		}
		seen = now
		s.lookAtEnd()
	}
}

// Refresh reads the files again if they have changed, for who has nobody to Watch.
func (s *Source) Refresh() {
	if s.stamps() == s.loaded.Load().files {
		return
	}
	if err := s.Reload(); err != nil {
		s.o.Logger.Error("the files of certificates changed and cannot be used; what was read before stays", "error", err)
	}
}

func (s *Source) stamps() (all [3]stamp) {
	for i, name := range []string{s.o.Cert, s.o.Key, s.o.CA} {
		if name == "" {
			continue
		}
		if info, err := os.Stat(name); err == nil { // one that is gone is a change
			all[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return all
}

func (s *Source) expires() string {
	if c := s.loaded.Load().cert; c != nil {
		return day(c.Leaf.NotAfter)
	}
	return ""
}

// lookAtEnd tells that the certificate ends soon, or that it has, once each.
func (s *Source) lookAtEnd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked()
}

func (s *Source) endLocked() {
	c := s.loaded.Load().cert
	if c == nil {
		return
	}
	now, end := s.o.Now(), c.Leaf.NotAfter
	switch {
	case now.After(end) && s.told < hasEnded:
		s.told = hasEnded
		s.o.Logger.Error("the own certificate has ended, and others refuse it: replace its files, which a node reads again by itself", "file", s.o.Cert, "ended", day(end))
	case now.Add(warnBefore).After(end) && s.told < endsSoon:
		s.told = endsSoon
		s.o.Logger.Warn("the own certificate ends soon: replace its files in time, which a node reads again by itself", "file", s.o.Cert, "ends", day(end))
	}
}
