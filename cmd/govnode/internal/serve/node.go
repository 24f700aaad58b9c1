package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"example.com/govnode/cluster"
	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/policy"
	"example.com/govnode/cmd/govnode/internal/version"
	"example.com/govnode/internal/server"
	"example.com/govnode/storage"
)

// A node is what serve runs: an order of commands and the API on top of it.
type node struct {
	server *server.Server
	store  storage.Store
	ready  func(context.Context) error // of the store; nil where a cluster says it, or nothing can be wrong
	drain  func(context.Context) error // of the store; nil where it has nothing to hand over
	audit  func() error
}

// openNode builds a node from the bottom up: folder, audit, order, API.
func openNode(ctx context.Context, c *config.Config, api net.Addr, log *slog.Logger, stdout io.Writer) (*node, error) {
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
	members, err := n.openStore(ctx, c, api, log, registry)
	if err != nil {
		return nil, errors.Join(err, closeAudit())
	}
	log = log.With("node", c.Node) // the store says that by itself
	n.server, err = server.New(server.Config{
		Store: n.store, Cluster: members, Ready: n.ready,
		Node: c.Node, Backend: c.Backend, Version: version.Of().Version,
		Logger: log, Registry: registry,
		Audit: audit, AuditRequired: c.AuditMode == config.AuditRequired, AuditTimeout: c.AuditTimeout,
		Engine: policy.Engine(log), RequestTimeout: c.RequestTimeout, Reflection: c.Reflection, StrictNamespaces: c.StrictNamespaces,
		LeaderPatience: cluster.Patience(c.Heartbeat, c.Election),
	})
	if err != nil {
		return nil, errors.Join(err, n.store.Close(), closeAudit())
	}
	return n, nil
}

// end stops a node from the top down. While there is time, those who wait and
// the leadership are handed over first, so that others go on at once.
func (n *node) end(ctx context.Context, s *http.Server) error {
	waits, cancel := context.WithTimeout(ctx, DrainTimeout/2)
	errs := []error{n.server.Drain(waits)}
	cancel()
	if n.drain != nil {
		errs = append(errs, n.drain(ctx))
	}
	return errors.Join(append(errs, endHTTP(ctx, s), n.server.Close(), n.store.Close(), n.audit())...)
}
