package serve

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"example.com/govnode/cluster"
	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/internal/pki"
)

// TLS on a node: one certificate for the API, for the Raft port and for what the
// node asks others.

// certificatesEvery is how often the files are looked at.
const certificatesEvery = 10 * time.Second

// openCertificates reads what the node shows and whom it trusts; nil without TLS.
func openCertificates(c *config.Config, log *slog.Logger) (*pki.Source, error) {
	if c.TLSCert == "" {
		return nil, nil
	}
	s, err := pki.Load(pki.Options{
		Cert: c.TLSCert, Key: c.TLSKey, CA: c.TLSCA,
		Cluster: c.ClusterName, Node: c.Node, Logger: log.With("node", c.Node),
	})
	if err != nil {
		return nil, fmt.Errorf("tls-cert, tls-key, tls-ca: %w", err)
	}
	return s, nil
}

// authority is who vouches for this node, for join tokens; nil without TLS.
func authority(s *pki.Source) func() []byte {
	if s == nil {
		return nil
	}
	return s.Authority
}

// peerDialer is how the API of other members is reached; nil without TLS. They are
// known as members and not by their hosts, and have HTTP/1.1 there, as without it.
func peerDialer(s *pki.Source, member *cluster.Node) func(ctx context.Context, network, address string) (net.Conn, error) {
	if s == nil || member == nil {
		return nil
	}
	return s.DialNode(new(net.Dialer).DialContext, member.NodeAt, "http/1.1")
}

// reloadCertificates is what SIGHUP asks for.
func reloadCertificates(s *pki.Source, log *slog.Logger) {
	if s == nil {
		return
	}
	if err := s.Reload(); err != nil {
		log.Error("the files of --tls-cert, --tls-key and --tls-ca cannot be used, and what was read before stays; mend them, and send SIGHUP again", "error", err)
		return
	}
	log.Info("the certificates were read again")
}
