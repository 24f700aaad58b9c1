package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A testCluster is some nodes in this process, over TCP on the loopback.
type testCluster struct {
	t     *testing.T
	net   *network
	mu    sync.Mutex
	nodes []*testNode
}

type testNode struct {
	*Node
	cfg   Config // to open it again
	fatal chan error
}

// A network decides which nodes reach each other.
type network struct {
	mu    sync.Mutex
	cut   map[string]bool // addresses that nobody reaches and that reach nobody
	conns map[net.Conn][2]string
}

// dial is the Config.Dial of the node at an address.
func (w *network) dial(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", to)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.cut[from] || w.cut[to] {
			return nil, errors.Join(fmt.Errorf("%s does not reach %s", from, to), c.Close())
		}
		w.conns[c] = [2]string{from, to}
		return c, nil
	}
}

// isolate cuts a node off, or lets it back in.
func (w *network) isolate(address string, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[address] = cut
	for c, ends := range w.conns {
		if cut && (ends[0] == address || ends[1] == address) {
			_ = c.Close() // it may be closed already
			delete(w.conns, c)
		}
	}
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	var l net.Listener
	require.Eventually(t, func() bool {
		var err error
		l, err = net.Listen("tcp", address)
		return err == nil
	}, 5*time.Second, 10*time.Millisecond, "listen on %s", address)
	return l
}

func newCluster(t *testing.T, size int, change func(*Config)) *testCluster {
	t.Helper()
	c := &testCluster{t: t, net: &network{cut: map[string]bool{}, conns: map[net.Conn][2]string{}}}
	for i := range size {
		c.add(fmt.Sprintf("n%d", i+1), change)
	}
	c.waitReady()
	return c
}

// add opens a node that joins the others.
func (c *testCluster) add(id string, change func(*Config)) *testNode {
	c.t.Helper()
	cfg := c.config(id)
	if change != nil {
		change(&cfg)
	}
	n, err := c.open(cfg)
	require.NoError(c.t, err)
	return n
}

// onEachStore runs a test with each of what may keep the log.
func onEachStore(t *testing.T, test func(t *testing.T, use func(*Config))) {
	for _, store := range []string{LogBoltDB, LogWAL} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			test(t, func(c *Config) { c.LogStore = store })
		})
	}
}

func (c *testCluster) config(id string) Config {
	l := listen(c.t, "127.0.0.1:0")
	address := l.Addr().String()
	cfg := Config{
		ID: id, Listener: l, Address: address, Dir: tempDir(c.t), APIAddress: "api-of-" + id,
		CommitTimeout: 5 * time.Millisecond, Dial: c.net.dial(address), Logger: testLogger(),
		segment: 16 << 10, // so that it takes more than one
	}
	for _, n := range c.nodes {
		cfg.Join = append(cfg.Join, n.Address())
	}
	cfg.Bootstrap = len(c.nodes) == 0
	return cfg
}

// tempDir is in memory where the system has such a place: no test here pulls
// the plug, and flushing to a disk that others use takes most of the time.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "cluster-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func testLogger() *slog.Logger {
	if os.Getenv("CLUSTER_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (c *testCluster) open(cfg Config) (*testNode, error) {
	n := &testNode{cfg: cfg, fatal: make(chan error, 1)}
	if cfg.Fatal == nil {
		cfg.Fatal = func(err error) { n.fatal <- err }
	}
	node, err := Open(cfg)
	if err != nil {
		return nil, err
	}
	n.Node = node
	// Here, behind the cleanup of its folder: the last cleanup runs first, and who
	// still runs goes on writing there. Some tests leave nodes that cannot be closed
	// in order.
	c.t.Cleanup(func() { _ = node.Close() })
	c.mu.Lock()
	c.nodes = append(c.nodes, n)
	c.mu.Unlock()
	return n, nil
}

// Address is that of the node's Raft port.
func (n *testNode) Address() string { return n.Node.cfg.Address }

// restart opens a node that was closed, on the same directory and address.
func (c *testCluster) restart(n *testNode) *testNode {
	c.t.Helper()
	cfg := n.cfg
	cfg.Listener = listen(c.t, cfg.Address)
	c.forget(n)
	again, err := c.open(cfg)
	require.NoError(c.t, err)
	return again
}

func (c *testCluster) forget(n *testNode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.nodes {
		if c.nodes[i] == n {
			c.nodes = append(c.nodes[:i], c.nodes[i+1:]...)
			return
		}
	}
}

func (c *testCluster) waitReady() {
	c.t.Helper()
	for _, n := range c.nodes {
		n.waitReady(c.t)
	}
}

// waitReady waits longer than Raft pauses before it tries a member again that it
// has not reached for a while, which is up to 10 s.
func (n *testNode) waitReady(t *testing.T) {
	t.Helper()
	var last atomic.Value
	ready := func() bool {
		err := n.Ready(t.Context())
		last.Store(fmt.Sprint(err))
		return err == nil
	}
	if !assert.Eventually(t, ready, 30*time.Second, 5*time.Millisecond) {
		t.Fatalf("%s: %v", n.cfg.ID, last.Load())
	}
}

// leader returns the node that leads, waiting for one; not one of without.
func (c *testCluster) leader(without ...*testNode) *testNode {
	c.t.Helper()
	var leader *testNode
	require.Eventually(c.t, func() bool {
		for _, n := range c.nodes {
			if n.Leader() && !contains(without, n) {
				leader = n
				return true
			}
		}
		return false
	}, 15*time.Second, time.Millisecond, "no leader")
	return leader
}

// follower returns a node that does not lead; not one of without.
func (c *testCluster) follower(without ...*testNode) *testNode {
	c.t.Helper()
	leader := c.leader()
	for _, n := range c.nodes {
		if n != leader && !contains(without, n) {
			return n
		}
	}
	c.t.Fatal("no follower")
	return nil
}

func contains(nodes []*testNode, n *testNode) bool {
	for _, m := range nodes {
		if m == n {
			return true
		}
	}
	return false
}

func increment(request string) *session.Increment {
	return &session.Increment{NS: "default", By: session.Maker{Client: "c", Request: request}, Key: "k", Amount: 1_000_000}
}

// count returns the counter of increment as a read sees it.
func count(t *testing.T, s storage.Store, r storage.Read) int64 {
	t.Helper()
	f, err := s.Get(t.Context(), session.CounterKey("default", "k"), r)
	require.NoError(t, err)
	if f.Record == nil {
		return 0
	}
	return f.Record.(*session.Counter).Value.N / 1_000_000
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
