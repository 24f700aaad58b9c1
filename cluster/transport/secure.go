package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"example.com/govnode/internal/pki"
)

// The port with TLS: what is another node is proven by its certificate.

// secured is kind with TLS: it makes the handshake, which says what the connection
// is and whose. Others are accepted meanwhile.
func (p *Port) secured(conn net.Conn) (chan net.Conn, net.Conn, error) {
	c, node, who, err := p.shake(conn)
	p.spoke(conn)
	if err != nil {
		return nil, conn, err
	}
	to := p.http
	if c.ConnectionState().NegotiatedProtocol == raftProtocol {
		if err := p.isMember(conn, c, node, who); err != nil {
			return nil, conn, err
		}
		to = p.raft
	}
	return to, c, conn.SetDeadline(time.Time{})
}

// shake makes the handshake of a connection that somebody else has opened, and
// returns the node whose certificate was shown and, of a connection of Raft's, what
// it says of itself.
func (p *Port) shake(conn net.Conn) (c *tls.Conn, node, who string, err error) {
	if err := conn.SetDeadline(time.Now().Add(decideIn)); err != nil {
		return nil, "", "", err
	}
	c = tls.Server(conn, p.secure)
	if err := c.Handshake(); err != nil {
		p.complain("a connection of another node was refused", conn.RemoteAddr().String(), err)
		return nil, "", "", err
	}
	state := c.ConnectionState()
	id, _ := pki.IdentityOf(state.PeerCertificates[0]) // the handshake has seen to it that it is one
	switch state.NegotiatedProtocol {
	case httpProtocol:
		return c, id.Name, "", nil
	case raftProtocol:
		var length [1]byte
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return nil, "", "", err
		}
		who, err := readName(c, length[0])
		return c, id.Name, who, err
	}
	return nil, "", "", errors.New("the handshake did not say which protocol follows")
}

// isMember is sameCluster with TLS: what a node says of itself has to be what its
// certificate says.
//
// A node that missed a change of members must listen to those whom it does not know
// yet, or it would never hear of them. So who is no member is refused only while
// this node hears from a leader, and with that of every change.
func (p *Port) isMember(conn net.Conn, c *tls.Conn, node, who string) error {
	if from := opener(who); from != node {
		return p.stranger(c, fmt.Errorf("the certificate is that of node %s, and it speaks for %q", node, from))
	}
	if err := p.sameCluster(c, who); err != nil {
		return err
	}
	if t, ok := conn.(*tracked); ok {
		p.mu.Lock()
		t.node = node
		p.mu.Unlock()
	}
	if p.cfg.Strange != nil && p.cfg.Strange(node) {
		return p.stranger(c, fmt.Errorf("node %s is no member of this cluster; it has to join, or was removed", node))
	}
	return nil
}

// DropStrangers ends the connections of Raft's that were opened by nodes which are
// known to be no members any more. It does nothing without TLS.
func (p *Port) DropStrangers() {
	if p.secure == nil || p.cfg.Strange == nil {
		return
	}
	p.mu.Lock()
	of := map[string][]*tracked{}
	for c := range p.conns {
		if t := c.(*tracked); t.node != "" {
			of[t.node] = append(of[t.node], t)
		}
	}
	p.mu.Unlock()
	for node, conns := range of {
		if !p.cfg.Strange(node) {
			continue
		}
		for _, t := range conns {
			p.refuse(t, fmt.Errorf("node %s is no member of this cluster any more", node))
		}
	}
}

// stranger tells of a connection that is refused for who opened it.
func (p *Port) stranger(c net.Conn, err error) error {
	p.complain("a connection of another node was refused", c.RemoteAddr().String(), err)
	return err
}

// opener is the node that has opened a connection of Raft's, by what it says.
func opener(who string) string {
	_, names, _ := strings.Cut(who, " ")
	from, _, _ := strings.Cut(names, " ")
	return from
}

// secureTo makes the handshake of a connection that this node has opened.
func (p *Port) secureTo(ctx context.Context, conn net.Conn, address, protocol string) (net.Conn, error) {
	meant := ""
	if p.cfg.Meant != nil {
		meant = p.cfg.Meant(address)
	}
	c := tls.Client(conn, p.cfg.TLS.PeerClientConfig(meant, protocol))
	err := c.HandshakeContext(ctx)
	if err == nil && c.ConnectionState().NegotiatedProtocol != protocol {
		err = fmt.Errorf("there is no %s at %s: it is not the Raft port of a node with TLS", protocol, address)
	}
	if err != nil {
		p.complain("another node cannot be spoken to", address, err)
		_ = conn.Close() // the handshake may have closed it
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return c, nil
}

const (
	// complainEvery is how often the same is told of the same address: Raft tries
	// again many times a second.
	complainEvery = time.Minute
	// complaintsMax bounds what is remembered of that.
	complaintsMax = 256
)

// complaints are what was told lately.
type complaints struct {
	mu   sync.Mutex
	told map[string]time.Time
}

// fresh reports whether that was not told lately, and notes that it is told now.
func (c *complaints) fresh(what string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last, ok := c.told[what]; ok && now.Sub(last) < complainEvery {
		return false
	}
	if c.told == nil || len(c.told) >= complaintsMax {
		c.told = make(map[string]time.Time)
	}
	c.told[what] = now
	return true
}

// complain tells of a handshake that failed for what the other end is, which
// somebody has to mend. That one was cut off is nothing to tell.
func (p *Port) complain(what, address string, err error) {
	if isCut(err) {
		return
	}
	var plain tls.RecordHeaderError
	var unknown *tls.CertificateVerificationError
	if errors.As(err, &plain) {
		err = errors.New("it does not speak TLS: start it with --tls-cert, --tls-key and --tls-ca")
	} else if errors.As(err, &unknown) {
		err = fmt.Errorf("%w; the certificates of all nodes have to be of one authority", err)
	}
	host, _, _ := net.SplitHostPort(address)
	if p.complaints.fresh(what+host+err.Error(), time.Now()) {
		p.cfg.Logger.Warn(what, "address", address, "error", err)
	}
}

// isCut reports whether an error is that of a connection, and not of what was said
// on it.
func isCut(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op != "remote error" && op.Op != "local error" // so crypto/tls calls its alerts
	}
	var slow net.Error
	return errors.As(err, &slow) && slow.Timeout() ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, context.Canceled)
}
