package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"example.com/govnode/cluster"
	"example.com/govnode/engine"
	"example.com/govnode/engine/cedar"
	"example.com/govnode/engine/opa"
	"example.com/govnode/internal/server"
)

// A host is a machine with a disk, two clocks and, while it is up, a node: what
// the program serve makes of package cluster and package internal/server.
type host struct {
	name    string
	network *network
	disk    *disk
	clock   *clock
	audit   *auditFile
	dir     string // for what a restore needs while it is under way
	log     *slog.Logger
	tune    func(*cluster.Config)

	mu     sync.Mutex
	run    *run // nil while the host is down
	failed []error
	closed sync.WaitGroup // of runs that were ended
}

// A run is one process on a host.
type run struct {
	node    *cluster.Node // nil until it has been admitted
	server  *server.Server
	http    *http.Server
	dial    func(ctx context.Context, address string) (net.Conn, error)
	crashed bool
	ended   atomic.Bool // or about to be: who waited for somebody else's Close would stop the virtual clock
}

func (h *host) raftAddress() string { return h.name + ":7000" }
func (h *host) apiAddress() string  { return h.name + ":8000" }

// up returns the node of a host that is up and admitted, or nil.
func (h *host) up() *cluster.Node {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.run == nil {
		return nil
	}
	return h.run.node
}

func (h *host) down() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.run == nil
}

// An entrance is how a host becomes a member, if it is none.
type entrance struct {
	bootstrap bool
	join      []string
	replace   bool
	nonvoter  bool
}

// start starts a node on a host that is down.
func (h *host) start(e entrance) error {
	r := &run{}
	h.mu.Lock()
	if h.run != nil {
		h.mu.Unlock()
		return fmt.Errorf("%s is up", h.name)
	}
	h.run = r
	// What a process has of its host it has until that ends, and not of the next.
	r.dial = h.network.dialer(h.name)
	cfg := cluster.Config{
		ID: h.name, Address: h.raftAddress(), Listener: h.network.listen(h.raftAddress()), APIAddress: h.apiAddress(),
		Dir: filepath.Join(h.dir, h.name), Bootstrap: e.bootstrap, Join: e.join, Replace: e.replace, Nonvoter: e.nonvoter,
		Dial: r.dial, Clocks: h.clock.read, OpenDisk: h.disk.opener(), Logger: h.log,
		Fatal: func(err error) { h.fatal(r, err) },
	}
	h.mu.Unlock()
	h.log.Info("starts", "host", h.name, "replaces", e.replace)
	h.tune(&cfg)
	node, err := cluster.Open(cfg)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		if h.run == r {
			h.run = nil
			h.network.end(h.name, false)
		}
		return err
	}
	if r.crashed {
		h.closed.Go(func() { _ = node.Close() }) // its disk and network are gone
		return fmt.Errorf("%s has crashed meanwhile", h.name)
	}
	if err := h.serve(r, node); err != nil {
		return errors.Join(err, node.Close())
	}
	r.node = node
	return nil
}

// serve opens the API of a node.
func (h *host) serve(r *run, node *cluster.Node) (err error) {
	dial := func(ctx context.Context, _, address string) (net.Conn, error) { return r.dial(ctx, address) }
	r.server, err = server.New(server.Config{
		Store: node, Cluster: members{node}, Node: h.name, Backend: "raft", Version: "sim", Logger: h.log,
		Audit: h.audit, AuditRequired: true,
		Peers: &http.Client{Transport: &http.Transport{DialContext: dial}},
		// Guardrails have a host of their own, under the address that a policy may name.
		Engine: []engine.Option{
			engine.WithHTTPClient(&http.Client{Transport: &http.Transport{DialContext: dial}}), engine.WithCedar(cedar.Load), engine.WithRego(opa.Load),
		},
	})
	if err != nil {
		return err
	}
	r.http = &http.Server{
		Handler: r.server.Handler(), Protocols: new(http.Protocols), ReadHeaderTimeout: 5 * time.Second,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: 128, SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}
	r.http.Protocols.SetHTTP1(true)
	r.http.Protocols.SetUnencryptedHTTP2(true)
	l := h.network.listen(h.apiAddress())
	h.closed.Go(func() { _ = r.http.Serve(l) }) // returns when the host ends
	return nil
}

// fatal notes why a node stopped by itself, which none may but one that crashed, and one
// that only has to be started again.
func (h *host) fatal(r *run, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case r.crashed:
	case errors.Is(err, cluster.ErrSuperseded):
		h.closed.Go(func() { h.again(r) })
	default:
		h.failed = append(h.failed, fmt.Errorf("%s at %v: %w", h.name, time.Now().UTC().Format(time.TimeOnly), err))
	}
}

// again starts a node that ended by itself, as what watches over a service does.
func (h *host) again(r *run) {
	h.mu.Lock()
	fell := h.run != r
	h.mu.Unlock()
	if fell {
		return // whoever let it fall starts it
	}
	h.crash(false)
	if err := h.start(entrance{}); err != nil && h.down() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.failed = append(h.failed, fmt.Errorf("%s does not start again: %w", h.name, err))
	}
}

func (h *host) failures() []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed
}

// crash ends the node at once, and with it what it had not written. Who is
// connected hears of it, as of a process that was killed, unless the host
// vanishes.
func (h *host) crash(vanish bool) { h.fall(vanish, h.disk.crash) }

// lose is crash, with the loss of all that is on the disk.
func (h *host) lose(vanish bool) { h.fall(vanish, h.disk.wipe) }

func (h *host) fall(vanish bool, disk func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.run
	if r == nil {
		return
	}
	h.log.Info("falls", "host", h.name, "vanishes", vanish)
	h.run = nil
	r.crashed = true
	disk()
	h.network.end(h.name, vanish)
	h.closed.Go(func() { r.end() }) // what is left of it reaches nothing any more
}

// stop ends the node in order, as the program does that is asked to.
func (h *host) stop() error {
	h.mu.Lock()
	r := h.run
	h.mu.Unlock()
	if r == nil || r.node == nil || !r.ended.CompareAndSwap(false, true) {
		return errors.New("it is not up, or about to end")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	waits, stop := context.WithTimeout(ctx, 5*time.Second)
	_ = r.server.Drain(waits) // whoever waits longer is cut off
	stop()
	_ = r.node.Drain(ctx)    // it is as safe as a crash
	_ = r.http.Shutdown(ctx) // what is under way longer is cut off
	err := r.close()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.run == r { // else it crashed meanwhile
		h.run = nil
		h.network.end(h.name, false)
	}
	return err
}

func (r *run) end() {
	if r.node != nil && r.ended.CompareAndSwap(false, true) {
		_ = r.close()
	}
}

func (r *run) close() error { return errors.Join(r.http.Close(), r.server.Close(), r.node.Close()) }

// members shows a cluster to the API in its own words, as the program does.
type members struct{ *cluster.Node }

// Status implements server.Cluster.
func (m members) Status(ctx context.Context) (server.Status, error) {
	s, err := m.Node.Status(ctx)
	if err != nil {
		return server.Status{}, err
	}
	out := server.Status{Node: s.Node, Leader: s.Leader, Term: s.Term, AppliedIndex: s.AppliedIndex, Health: s.Health, SeenBy: s.SeenBy}
	for _, p := range s.Peers {
		out.Peers = append(out.Peers, server.Peer{
			Node: p.Node, Address: p.Address, APIAddress: p.APIAddress, Role: p.Role,
			Known: p.Known, Up: p.Up, Silent: p.Silent, AtLeast: p.AtLeast, Applied: p.Applied, Lag: p.Lag,
		})
	}
	return out, nil
}

// tempDir is in memory where the system has such a place.
func tempDir() (string, error) {
	dir, err := os.MkdirTemp("/dev/shm", "govnode-sim-*")
	if err != nil {
		return os.MkdirTemp("", "govnode-sim-*")
	}
	return dir, nil
}
