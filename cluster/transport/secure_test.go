package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/pki"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/proto/govnode/node/v1/nodev1connect"
)

func newCA(t *testing.T, cluster string) *pki.Pair {
	t.Helper()
	ca, err := pki.NewCA(cluster, time.Now())
	require.NoError(t, err)
	return ca
}

// certified is what a process has whose certificate is that of a node or a client,
// and which trusts some authorities.
func certified(t *testing.T, ca *pki.Pair, role pki.Role, name string, trusts ...*pki.Pair) *pki.Source {
	t.Helper()
	var hosts []string
	if role == pki.Node {
		hosts = []string{"somewhere.else"} // nodes are not known by their hosts
	}
	p, err := pki.Issue(ca, role, name, hosts, time.Now(), time.Hour)
	require.NoError(t, err)
	dir := t.TempDir()
	cert, key, cas := filepath.Join(dir, "crt"), filepath.Join(dir, "key"), filepath.Join(dir, "ca")
	require.NoError(t, p.Write(cert, key, false))
	text := ca.CertPEM()
	for _, other := range trusts {
		text = append(text, other.CertPEM()...)
	}
	require.NoError(t, os.WriteFile(cas, text, 0o600))
	s, err := pki.Load(pki.Options{Cert: cert, Key: key, CA: cas, Cluster: "govnode", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return s
}

// A logged is a log that several goroutines write.
type logged struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(b)
}

func (l *logged) awaits(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return strings.Contains(l.out.String(), text)
	}, 10*time.Second, time.Millisecond, text)
}

// newSecurePort is the port of a node on a real address; the log has what it tells
// an operator.
func newSecurePort(t *testing.T, node string, s *pki.Source, change func(*Config)) (*Port, *logged) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	log := new(logged)
	cfg := Config{
		Node: node, Address: l.Addr().String(), Logger: slog.New(slog.NewTextHandler(log, nil)),
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
		Cluster: func() string { return "mine" }, TLS: s,
	}
	if change != nil {
		change(&cfg)
	}
	p := Listen(l, cfg)
	t.Cleanup(func() { _ = p.Close() })
	return p, log
}

func address0(p *Port) raft.ServerAddress { return raft.ServerAddress(p.cfg.Address) }

// Both protocols reach a node through its port, and the handshake tells them apart.
func TestSecuredPort(t *testing.T) {
	ca := newCA(t, "govnode")
	var removed atomic.Bool
	a, _ := newSecurePort(t, "a", certified(t, ca, pki.Node, "a"), func(c *Config) { c.Strange = func(string) bool { return removed.Load() } })
	b, _ := newSecurePort(t, "b", certified(t, ca, pki.Node, "b"), func(c *Config) {
		c.NameAt, c.Meant = func(string) string { return "a" }, func(string) string { return "a" }
	})
	go func() {
		c, err := half{b, b.raft}.Dial(address0(a), time.Second)
		if err == nil {
			_, err = io.WriteString(c, "vote")
		}
		if err != nil {
			t.Error(err)
		}
	}()
	c, err := half{a, a.raft}.Accept()
	require.NoError(t, err)
	text := make([]byte, 4)
	_, err = io.ReadFull(c, text)
	require.NoError(t, err)
	require.Equal(t, "vote", string(text))

	svc := &callers{}
	srv := NewServer(svc, a, func() bool { return true })
	go func() { _ = srv.Serve(a.HTTP()) }()
	defer func() { _ = srv.Close() }()
	peers := NewPeers(b)
	defer peers.Close()
	_, err = peers.At(a.cfg.Address).Term(t.Context(), &nodev1.TermRequest{})
	require.NoError(t, err)
	require.Equal(t, "b", svc.last)

	// Who was removed may ask to come back, and nothing else.
	removed.Store(true)
	_, err = peers.At(a.cfg.Address).Term(t.Context(), &nodev1.TermRequest{})
	require.ErrorContains(t, err, "node b is no member")
	require.True(t, Refused(err.(*connect.Error)))
	_, err = peers.At(a.cfg.Address).Join(t.Context(), &nodev1.JoinRequest{})
	require.Equal(t, connect.CodeUnimplemented, connect.CodeOf(err), "it got there")

	// What it had opened for Raft is ended.
	removed.Store(false)
	a.DropStrangers()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, err = c.Read(text)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "a member keeps its connections")
	removed.Store(true)
	a.DropStrangers()
	_, err = c.Read(text)
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	removed.Store(false)

	go func() { _, _ = half{b, b.raft}.Dial(address0(a), time.Second) }()
	c, err = half{a, a.raft}.Accept()
	require.NoError(t, err)
	require.NoError(t, a.Close())
	_, err = c.Read(text)
	require.Error(t, err, "closing the port closes what it handed on")
}

// callers notes who asks.
type callers struct {
	nodev1connect.UnimplementedNodeServiceHandler
	last string
}

func (c *callers) Term(ctx context.Context, _ *nodev1.TermRequest) (*nodev1.TermResponse, error) {
	c.last = Caller(ctx)
	return &nodev1.TermResponse{}, nil
}

// Who is refused at the port of a node, what is told of it, and that the port goes
// on.
func TestSecuredPortRefuses(t *testing.T) {
	ca, other := newCA(t, "govnode"), newCA(t, "other")
	for name, c := range map[string]struct {
		node  string
		from  *pki.Source
		at    func(*Config) // the port that is called
		tells string
	}{
		"a client": {"b", certified(t, ca, pki.Client, "b"), nil, "only nodes may speak here"},
		"a node of another cluster": {
			"b", certified(t, other, pki.Node, "b", ca), nil, "this is cluster govnode"},
		"a node of an unknown authority": {
			"b", certified(t, newCA(t, "govnode"), pki.Node, "b", ca), nil, "have to be of one authority"},
		"a node under another name": {"b", certified(t, ca, pki.Node, "c"), nil, `that of node c, and it speaks for \"b\"`},
		"who is no member": {
			"b", certified(t, ca, pki.Node, "b"),
			func(c *Config) { c.Strange = func(node string) bool { return node == "b" } }, "node b is no member"},
		"who has no TLS": {"b", nil, nil, "it does not speak TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			a, log := newSecurePort(t, "a", certified(t, ca, pki.Node, "a", other), c.at)
			b, _ := newSecurePort(t, c.node, c.from, nil)
			conn, err := half{b, b.raft}.Dial(address0(a), time.Second)
			if err == nil {
				_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
				_, err = conn.Read(make([]byte, 1))
				require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			}
			require.Error(t, err)
			log.awaits(t, c.tells)

			good, _ := newSecurePort(t, "d", certified(t, ca, pki.Node, "d"), nil)
			go func() { _, _ = half{good, good.raft}.Dial(address0(a), time.Second) }()
			_, err = half{a, a.raft}.Accept()
			require.NoError(t, err)
			a.DropStrangers() // which nobody is where nothing tells
		})
	}
}

// Whoever answers at the address of a member has to be the member.
func TestSecuredDial(t *testing.T) {
	ca := newCA(t, "govnode")
	a, _ := newSecurePort(t, "a", certified(t, ca, pki.Node, "a"), nil)
	b, log := newSecurePort(t, "b", certified(t, ca, pki.Node, "b"), func(c *Config) { c.Meant = func(string) string { return "c" } })
	_, err := half{b, b.raft}.Dial(address0(a), time.Second)
	require.ErrorContains(t, err, "that of node a of cluster govnode, and node c was expected there")
	log.awaits(t, "another node cannot be spoken to")
	_, err = NewPeers(b).At(a.cfg.Address).Term(t.Context(), &nodev1.TermRequest{})
	require.ErrorIs(t, err, ErrUnreached)

	// Something else that has the certificate of a member.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	other := tls.NewListener(l, certified(t, ca, pki.Node, "c").PeerServerConfig())
	defer other.Close()
	go func() {
		if c, err := other.Accept(); err == nil {
			_, _ = c.Read(make([]byte, 1)) // until it is closed
			_ = c.Close()
		}
	}()
	_, err = half{b, b.raft}.Dial(raft.ServerAddress(l.Addr().String()), time.Second)
	require.ErrorContains(t, err, "there is no govnode-raft at "+l.Addr().String())

	// A member that has not been given certificates yet.
	plain, _ := newSecurePort(t, "c", nil, nil)
	_, err = half{b, b.raft}.Dial(address0(plain), time.Second)
	require.Error(t, err)
	_, err = NewPeers(plain).At(a.cfg.Address).Term(t.Context(), &nodev1.TermRequest{})
	require.Error(t, err)
	require.NotEqual(t, connect.CodeUnimplemented, connect.CodeOf(err))
}

// A handshake that does not go on ends after a while, and holds up nobody.
func TestSilentHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newCA(t, "govnode") // at the time that it is in here
		from, to := certified(t, ca, pki.Node, "b"), certified(t, ca, pki.Node, "a")
		l := newPipes()
		cfg := Config{Node: "a", Address: "pipe:1", Dial: l.dial, Logger: slog.New(slog.DiscardHandler), Cluster: func() string { return "mine" }, TLS: to}
		p := Listen(l, cfg)
		start := time.Now()
		silent, err := l.dial(t.Context(), "")
		require.NoError(t, err)
		cfg.Node, cfg.TLS = "b", from
		b := &Port{cfg: cfg, secure: from.PeerServerConfig(), conns: map[net.Conn]bool{}, closed: make(chan struct{})}
		go func() { _, _ = half{b, nil}.Dial("pipe:1", time.Second) }()
		_, err = half{p, p.raft}.Accept()
		require.NoError(t, err)
		require.Zero(t, time.Since(start), "others are accepted meanwhile")
		_, err = silent.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, decideIn, time.Since(start))
		require.NoError(t, p.Close())
	})
}

// The same is told once a minute.
func TestComplaints(t *testing.T) {
	var c complaints
	now := time.Now()
	require.True(t, c.fresh("a", now))
	require.False(t, c.fresh("a", now.Add(complainEvery-1)))
	require.True(t, c.fresh("b", now))
	require.True(t, c.fresh("a", now.Add(complainEvery)))
	for i := range 10 * complaintsMax {
		c.fresh(string(rune(i)), now)
		require.LessOrEqual(t, len(c.told), complaintsMax)
	}
}

// Of a connection that was cut off nothing is told: there is nothing to mend. What
// the other end has refused, or this one, somebody has to mend.
func TestWhatIsOnlyCutOff(t *testing.T) {
	for _, c := range []struct {
		err error
		cut bool
	}{
		{io.EOF, true}, {io.ErrUnexpectedEOF, true}, {io.ErrClosedPipe, true},
		{context.Canceled, true}, {context.DeadlineExceeded, true}, {os.ErrDeadlineExceeded, true},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, true}, {&net.OpError{Op: "write", Err: syscall.EPIPE}, true},
		{&net.OpError{Op: "remote error", Err: tls.AlertError(42)}, false}, {&net.OpError{Op: "local error", Err: tls.AlertError(42)}, false},
		{&net.DNSError{Err: "no such host"}, false}, {errors.New("it is a certificate of node c"), false},
	} {
		require.Equal(t, c.cut, isCut(fmt.Errorf("handshake: %w", c.err)), "%T %[1]v", c.err)
	}
}
