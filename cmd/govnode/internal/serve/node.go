package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"example.com/govnode/cluster"
	"example.com/govnode/cmd/govnode/internal/address"
	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/policy"
	"example.com/govnode/cmd/govnode/internal/version"
	"example.com/govnode/internal/edictum"
	"example.com/govnode/internal/lobby"
	"example.com/govnode/internal/pki"
	"example.com/govnode/internal/server"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A node is what serve runs: an order of commands and the API on top of it.
type node struct {
	lobby  *lobby.Lobby
	server *server.Server
	sdks   *edictum.Handler // for SDKs of Edictum; nil without keys
	store  storage.Store
	member *cluster.Node               // the store, where it is that of a cluster
	ready  func(context.Context) error // of the store; nil where a cluster says it, or nothing can be wrong
	drain  func(context.Context) error // of the store; nil where it has nothing to hand over
	audit  func() error
}

// openNode builds a node from the bottom up: folder, audit, order, API.
func openNode(ctx context.Context, c *config.Config, secure *pki.Source, api net.Addr, log *slog.Logger, stdout io.Writer) (*node, error) {
	if c.Data != "" {
		if err := os.MkdirAll(c.Data, 0o700); err != nil {
			return nil, fmt.Errorf("data: cannot make the folder: %w; give another one with --data", err)
		}
	}
	audit, closeAudit, err := newAudit(c, stdout)
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), version.Metric())
	n := &node{audit: closeAudit}
	if n.lobby, err = newLobby(c, secure != nil, registry, log); err != nil {
		return nil, errors.Join(err, closeAudit())
	}
	members, err := n.openStore(ctx, c, secure, api, log, registry)
	if err != nil {
		return nil, errors.Join(err, closeAudit())
	}
	log = log.With("node", c.Node) // the store says that by itself
	var identities *server.Identities
	if c.Identities != "" {
		if identities, err = server.LoadIdentities(c.Identities); err != nil {
			return nil, errors.Join(fmt.Errorf("identities: %w", err), n.store.Close(), closeAudit())
		}
	}
	chain, err := auditChain(c)
	if err != nil {
		return nil, errors.Join(err, n.store.Close(), closeAudit())
	}
	n.server, err = server.New(server.Config{
		Store: n.store, Cluster: members, Ready: n.ready,
		Node: c.Node, Backend: c.Backend, Version: version.Of().Version,
		Logger: log, Registry: registry,
		Audit: audit, AuditChain: chain, AuditRequired: c.AuditMode == config.AuditRequired, AuditTimeout: c.AuditTimeout,
		Certificate: certificateOf(secure), StateDigest: n.digests(),
		DiskFree: diskFree(c), DiskReserve: uint64(c.DiskReserve),
		Authority: authority(secure), Authentication: c.Auth == config.AuthTokens, Identities: identities, Loopback: loopback(c), SessionPace: sessionPace(c),
		Engine: policy.Engine(log), RequestTimeout: c.RequestTimeout, Reflection: c.Reflection, StrictNamespaces: c.StrictNamespaces,
		LeaderPatience: cluster.Patience(c.Heartbeat, c.Election), PeerTLS: peerDialer(secure, n.member),
	})
	if err != nil {
		return nil, errors.Join(err, n.store.Close(), closeAudit())
	}
	var keys *edictum.Keys
	if c.EdictumKeys != "" {
		keys, err = edictum.LoadKeys(c.EdictumKeys)
	} else if c.Auth != config.AuthTokens {
		return n, nil
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("edictum-keys: %w", err), n.end(ctx, nil))
	}
	n.sdks = edictum.New(n.server.Handler(), keys, log)
	n.sdks.Enter = n.server.Follower
	return n, nil
}

// handshakes of one address are begun in a second, for each processor: some hundredths of it.
const handshakes = 50

// sessions of one namespace are begun in a second, for each processor: more of them would
// take a part of it that other tenants notice.
const sessions = 100

// sessionPace is how many sessions one tenant may begin in a second; any number where
// nobody is asked who he is, and so all are one.
func sessionPace(c *config.Config) int {
	if c.Auth != config.AuthTokens {
		return 0
	}
	return sessions * runtime.GOMAXPROCS(0)
}

// newLobby makes what stands before the API. Connections are files, and the node needs
// some for itself.
func newLobby(c *config.Config, secure bool, registry prometheus.Registerer, log *slog.Logger) (*lobby.Lobby, error) {
	most, outside := c.MaxConnections, 2*c.MaxConnections
	if files := openFiles(); files > 0 {
		files -= files / 4
		if most > files-files/4 {
			most = files - files/4
			log.Warn("this process may open too few files for that many connections, and lets fewer in; raise the limit (ulimit -n, LimitNOFILE)", "max-connections", c.MaxConnections, "connections", most)
		}
		outside = min(outside, files-most)
	}
	turns := 0
	if secure {
		turns = handshakes * runtime.GOMAXPROCS(0)
	}
	return lobby.New(lobby.Config{Connections: most, Outside: outside, Handshakes: turns, Registry: registry})
}

// certificateOf returns how the certificate of the node is found; nil if there is none.
func certificateOf(secure *pki.Source) func() *tls.Certificate {
	if secure == nil {
		return nil
	}
	return secure.Certificate
}

// digests returns how the latest digest of the state is found; nil where none is made.
func (n *node) digests() func() (uint64, session.Digest) {
	if n.member == nil {
		return nil
	}
	return n.member.LatestDigest
}

// diskFree tells the room on the disk of the log; nil without one.
func diskFree(c *config.Config) func() (uint64, error) {
	if c.Data == "" || c.Backend != "raft" {
		return nil
	}
	return freeOn(c.Data)
}

// loopback reports whether the API is on a loopback address alone.
func loopback(c *config.Config) bool {
	host, _, err := net.SplitHostPort(c.Listen)
	return err == nil && address.IsLoopback(host)
}

// beside is what a node serves beside its API: the local socket, and the port for those
// who run it.
type beside struct {
	servers []*http.Server
}

func (n *node) beside(c *config.Config, log *slog.Logger) (*beside, error) {
	b := &beside{}
	l, err := listenLocal(c)
	if err != nil {
		return nil, err
	}
	if l != nil {
		b.serve(newLocalServer(n.server.Handler(), log), l)
		log.Info("the local socket is open to this user", "socket", l.Addr().String())
	} else if c.Auth == config.AuthTokens {
		log.Warn("this node has no local socket, so the first token cannot be made here: give it --data or --socket")
	}
	if c.AdminListen != "" {
		l, err := net.Listen("tcp", c.AdminListen)
		if err != nil {
			b.close()
			return nil, fmt.Errorf("admin-listen: %w; give another address", err)
		}
		b.serve(&http.Server{Handler: n.server.AdminHandler(), ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: headerBytes}, l)
		log.Info("metrics and profiles", "admin", l.Addr().String())
	}
	return b, nil
}

func (b *beside) serve(s *http.Server, l net.Listener) {
	b.servers = append(b.servers, s)
	go func() { _ = s.Serve(l) }() // until it is closed
}

// close ends both at once: what is done there can be asked for again.
func (b *beside) close() {
	for _, s := range b.servers {
		_ = s.Close()
	}
}

// handler serves all that the node has a port for.
func (n *node) handler() http.Handler {
	if n.sdks != nil {
		return n.sdks
	}
	return n.server.Handler()
}

// reopen is what SIGHUP asks for: the audit log is opened anew, and keys are read
// again.
func (n *node) reopen(c *config.Config, log *slog.Logger) {
	switch reopened, err := n.server.ReopenAudit(); {
	case err != nil:
		log.Error("the audit log cannot be opened anew and stays the one that it is; see to it that the node may write the file, and send SIGHUP again", "error", err)
	case reopened:
		log.Info("the audit log was opened anew")
	default:
		log.Info("the audit log goes to standard output; there is nothing to open anew")
	}
	if n.sdks == nil || c.EdictumKeys == "" {
		return
	}
	keys, err := edictum.LoadKeys(c.EdictumKeys)
	if err != nil {
		log.Error("the keys of --edictum-keys cannot be read and stay those that they are; mend the file, and send SIGHUP again", "error", err)
		return
	}
	n.sdks.SetKeys(keys)
	log.Info("the keys of --edictum-keys were read again")
}

// end stops a node from the top down. While there is time, those who wait and
// the leadership are handed over first, so that others go on at once.
func (n *node) end(ctx context.Context, s *http.Server) error {
	ctx, stop := context.WithTimeout(ctx, requestsTimeout)
	defer stop()
	waits, cancel := context.WithTimeout(ctx, DrainTimeout/2)
	errs := []error{n.server.Drain(waits)}
	cancel()
	if n.sdks != nil {
		n.sdks.Drain()
	}
	if n.drain != nil {
		errs = append(errs, n.drain(ctx))
	}
	errs = append(errs, endHTTP(ctx, s))
	if n.sdks != nil {
		errs = append(errs, n.sdks.Close())
	}
	return errors.Join(append(errs, n.server.Close(), n.store.Close(), n.audit())...)
}
