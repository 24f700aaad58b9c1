package processes

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Secured is what a cluster has whose nodes speak TLS, ask everybody for a token and
// chain their audits.
type Secured struct {
	// Folder has ca/ca.crt and ca/ca.key, and for each node NAME/node-NAME.crt and .key.
	Folder string
	// Roots vouch for the nodes.
	Roots *x509.CertPool

	program string
	sockets string // a folder with a short name, since the path of a socket is short

	mu    sync.Mutex
	token string // an operator's of the cluster
}

// ClusterName is the name of secured clusters in their certificates.
const ClusterName = "example"

// Secure makes the nodes, none of which has been started yet, speak TLS, ask for
// tokens and chain their audits. What it makes is below folder. HTTP then trusts them
// and shows an operator's token of the cluster where a request has none.
func (c *Cluster) Secure(folder string) error {
	s := &Secured{Folder: folder, program: c.Nodes[0].program}
	var err error
	if s.sockets, err = os.MkdirTemp("", "gov"); err != nil {
		return wrap("the folder of sockets", err)
	}
	if _, err := s.Run("tls", "init", "--cluster", ClusterName, "--out", filepath.Join(folder, "ca")); err != nil {
		return err
	}
	pem, err := os.ReadFile(s.Authority())
	if err != nil {
		return wrap("the authority", err)
	}
	s.Roots = x509.NewCertPool()
	if !s.Roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("processes: %s has no certificate", s.Authority())
	}
	for _, n := range c.Nodes {
		host, _, err := net.SplitHostPort(n.API)
		if err != nil {
			return wrap(n.Name, err)
		}
		if n.secured, err = s.Certify(n.Name, host); err != nil {
			return err
		}
		n.Socket = filepath.Join(s.sockets, n.Name)
		n.secured = append(n.secured, "--auth", "tokens", "--socket", n.Socket)
	}
	c.Secured = s
	c.HTTP.Transport = &bearer{s, c.HTTP.Transport}
	c.HTTP.Transport.(*bearer).to.(*http.Transport).TLSClientConfig = s.TLS()
	return nil
}

// Authority is the path of the certificate of those who vouch for the nodes.
func (s *Secured) Authority() string { return filepath.Join(s.Folder, "ca", "ca.crt") }

// TLS is what a client without a certificate needs to reach the nodes.
func (s *Secured) TLS() *tls.Config {
	return &tls.Config{RootCAs: s.Roots, MinVersion: tls.VersionTLS13}
}

// Certify makes the certificate of a node at a host, and returns the flags of serve
// that name it.
func (s *Secured) Certify(node, host string) (flags []string, err error) {
	out := filepath.Join(s.Folder, node)
	if _, err := s.Run("tls", "node", node, "--hosts", host, "--ca-dir", filepath.Join(s.Folder, "ca"), "--out", out); err != nil {
		return nil, err
	}
	file := filepath.Join(out, "node-"+node)
	return []string{"--cluster-name", ClusterName, "--tls-cert", file + ".crt", "--tls-key", file + ".key", "--tls-ca", s.Authority()}, nil
}

// Run runs a command of the program to its end and returns what it printed on
// standard output, without the last line's end.
func (s *Secured) Run(args ...string) (string, error) {
	cmd := exec.Command(s.program, args...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("processes: govnode %s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// Ask is Run for a command that answers with its exit code too: 1 is an answer.
func (s *Secured) Ask(args ...string) (string, error) {
	cmd := exec.Command(s.program, args...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 && said.Len() == 0 {
		err = nil
	}
	if err != nil {
		return "", fmt.Errorf("processes: govnode %s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	return string(out), nil
}

// NewToken makes a token over the socket of a node, as the first one is made: with
// roles separated by commas, and more flags of token create.
func (s *Secured) NewToken(n *Node, namespace, roles string, more ...string) (string, error) {
	args := append([]string{"token", "create", "--socket", n.Socket, "--namespace", namespace, "--role", roles}, more...)
	var err error
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		var token string
		if token, err = s.Run(args...); err == nil || time.Now().After(end) {
			return token, err
		}
	}
}

// TokenID is the public part of a token's text, which names it.
func TokenID(token string) string {
	parts := strings.Split(token, ".")
	return parts[max(0, len(parts)-2)]
}

// operator returns the operator's token, which it makes once a node can.
func (s *Secured) operator(nodes []*Node) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token != "" {
		return nil
	}
	err := errors.New("processes: no node runs")
	for _, n := range nodes {
		if !n.Runs() {
			continue
		}
		var token string
		if token, err = s.Run("token", "create", "--socket", n.Socket, "--namespace", "$cluster", "--role", "operator,auditor"); err == nil {
			s.token = token
			return nil
		}
	}
	return err
}

// Operator is the text of the operator's token of the cluster; "" before Found has
// made it.
func (s *Secured) Operator() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token
}

// With is what HTTP is for a holder of another token than the operator's; HTTP itself
// where nobody is asked for one.
func (c *Cluster) With(token string) *http.Client {
	if c.Secured == nil {
		return c.HTTP
	}
	return &http.Client{Timeout: c.HTTP.Timeout, Transport: Holding(token, c.HTTP.Transport)}
}

// Holding shows a token with all requests.
func Holding(token string, to http.RoundTripper) http.RoundTripper { return &holder{token, to} }

type holder struct {
	token string
	to    http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (h *holder) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+h.token)
	return h.to.RoundTrip(r)
}

// CloseIdleConnections is what http.Client asks for.
func (h *holder) CloseIdleConnections() {
	if to, ok := h.to.(interface{ CloseIdleConnections() }); ok {
		to.CloseIdleConnections()
	}
}

// A bearer shows the operator's token with requests that have none.
type bearer struct {
	of *Secured
	to http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b *bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if token := b.of.Operator(); token != "" && r.Header.Get("Authorization") == "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return b.to.RoundTrip(r)
}

// CloseIdleConnections is what http.Client asks for.
func (b *bearer) CloseIdleConnections() { b.to.(*http.Transport).CloseIdleConnections() }
