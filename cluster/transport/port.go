package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"example.com/govnode/internal/pki"
)

// The one port of a node, which Raft and HTTP share.

const (
	// maxConns bounds the connections that others hold to the port, and
	// maxUndecided those that have not said yet what they are.
	maxConns     = 512
	maxUndecided = 64
	// decideIn is how long a connection may take to say what it is, and how long
	// one of a member may have to wait for this node to be one.
	decideIn = 5 * time.Second

	// A connection of Raft's begins with raftByte, the length of what follows in
	// one byte, and, with a space between them, the id of the cluster, the name
	// of the node that opens it and that of the member that it takes the other
	// one for. One of HTTP/2 begins with the 'P' of its preface.
	raftByte = 'R'
	httpByte = 'P'

	// With TLS the handshake names the protocol, and the first byte is left out.
	raftProtocol = "govnode-raft"
	httpProtocol = "h2"
)

var errPortClosed = errors.New("cluster: port is closed")

// A Port is the one listener of a node. It hands connections on by their first
// byte: to Raft, as its raft.StreamLayer, or to the HTTP server. What says
// nothing, or rubbish, is closed.
type Port struct {
	cfg      Config
	listener net.Listener
	secure   *tls.Config // of connections that others open; nil without TLS

	raft, http chan net.Conn
	closed     chan struct{}
	serving    sync.WaitGroup

	belongs chan struct{} // closed when there is a cluster
	once    sync.Once     // closes belongs

	mu        sync.Mutex
	conns     map[net.Conn]bool // that are open; true where others opened them
	taken     int               // by others
	undecided []net.Conn        // that have not said what they are, the oldest first

	complaints complaints
}

// A Config says whose a port is, and who belongs to its node.
type Config struct {
	Node    string // its name
	Address string // at which others reach it
	Dial    func(ctx context.Context, address string) (net.Conn, error)
	Logger  *slog.Logger

	Cluster func() string               // id of the cluster; "" if there is none yet
	NameAt  func(address string) string // of a member; "" if there is none. May be nil.
	Shuns   func(node string) bool      // whether that node may not take part. May be nil.
	// Foreign is told of members of another cluster that take this node for
	// theirs. It may be nil.
	Foreign func(cluster string)

	// TLS secures every connection, both ways; nil leaves them as they are. The
	// other end is then a node of the cluster of certificates, whoever it says to
	// be.
	TLS *pki.Source
	// Meant is the member that has to be at an address, "" if any node may be. It
	// is asked with TLS alone, and may be nil.
	Meant func(address string) string
	// Strange says whether a node is known to be no member. It is asked with TLS
	// alone, where names are proven, and may be nil.
	Strange func(node string) bool
}

// An address is host:port as others reach it.
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// Listen returns the port of a node, which serves until it is closed.
func Listen(l net.Listener, cfg Config) *Port {
	p := &Port{
		cfg: cfg, listener: l,
		raft: make(chan net.Conn), http: make(chan net.Conn),
		closed: make(chan struct{}), belongs: make(chan struct{}),
		conns: make(map[net.Conn]bool),
	}
	if cfg.TLS != nil {
		p.secure = cfg.TLS.PeerServerConfig(raftProtocol, httpProtocol)
	}
	if p.cfg.Cluster() != "" {
		p.Admitted()
	}
	p.serving.Add(1)
	go p.serve()
	return p
}

// Admitted lets the port look again at what it waits for: the node belongs to a
// cluster now.
func (p *Port) Admitted() { p.once.Do(func() { close(p.belongs) }) }

// serve accepts connections until the port is closed.
func (p *Port) serve() {
	defer p.serving.Done()
	for wait := time.Duration(0); ; {
		conn, err := p.listener.Accept()
		if err != nil {
			// Out of files, most likely: it passes, and must not be a busy loop.
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			select {
			case <-p.closed:
				return
			case <-time.After(wait):
				p.cfg.Logger.Error("cannot accept a connection", "error", err)
				continue
			}
		}
		wait = 0
		if conn = p.track(conn, true); conn == nil {
			continue
		}
		p.listenTo(conn)
		p.serving.Add(1)
		go func() {
			defer p.serving.Done()
			p.decide(conn)
		}()
	}
}

func (p *Port) refuse(conn net.Conn, err error) {
	p.cfg.Logger.Debug("connection refused", "from", conn.RemoteAddr(), "error", err)
	_ = conn.Close() // nobody is left to be told
}

// listenTo gives a connection a place among those that have not said what they
// are. Where there is none the oldest has to go: a member speaks at once, so it
// is the one that has been silent for longest that is none.
func (p *Port) listenTo(conn net.Conn) {
	p.mu.Lock()
	var oldest net.Conn
	if len(p.undecided) == maxUndecided {
		oldest = p.undecided[0]
		p.undecided = slices.Delete(p.undecided, 0, 1)
	}
	p.undecided = append(p.undecided, conn)
	p.mu.Unlock()
	if oldest != nil {
		p.refuse(oldest, errors.New("others came, and this one has not said yet what it is"))
	}
}

// spoke gives back the place of a connection among the undecided.
func (p *Port) spoke(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.undecided, conn); i >= 0 {
		p.undecided = slices.Delete(p.undecided, i, i+1)
	}
}

// decide reads what a connection is and hands it on.
func (p *Port) decide(conn net.Conn) {
	to, conn, err := p.kind(conn)
	if err != nil {
		p.refuse(conn, err)
		return
	}
	select {
	case to <- conn:
	case <-p.closed:
		_ = conn.Close() // as above
	}
}

// kind reads what a connection is, and returns where it goes.
func (p *Port) kind(conn net.Conn) (chan net.Conn, net.Conn, error) {
	if p.secure != nil {
		return p.secured(conn)
	}
	first, id, err := p.prologue(conn)
	p.spoke(conn)
	to := p.http
	switch {
	case err != nil:
		return nil, conn, err
	case first == httpByte:
		conn = &unread{Conn: conn, first: []byte{first}}
	default:
		if err := p.sameCluster(conn, id); err != nil {
			return nil, conn, err
		}
		to = p.raft
	}
	return to, conn, conn.SetDeadline(time.Time{})
}

// prologue reads the first byte of a connection and, of one of Raft's, the id of
// the cluster that follows.
func (p *Port) prologue(conn net.Conn) (first byte, id string, err error) {
	if err := conn.SetDeadline(time.Now().Add(decideIn)); err != nil {
		return 0, "", err
	}
	var b [2]byte
	if _, err := io.ReadFull(conn, b[:1]); err != nil {
		return 0, "", err
	}
	switch b[0] {
	case httpByte:
		return httpByte, "", nil
	case raftByte:
		if _, err := io.ReadFull(conn, b[1:]); err != nil {
			return 0, "", err
		}
		name, err := readName(conn, b[1])
		return raftByte, name, err
	}
	return 0, "", fmt.Errorf("unknown protocol %#x", b[0])
}

// readName reads what a connection of Raft's begins with, behind its length.
func readName(conn net.Conn, length byte) (string, error) {
	name := make([]byte, length)
	_, err := io.ReadFull(conn, name)
	return string(name), err
}

// sameCluster returns nil if the node at the other end is a member of this one's
// cluster, and takes this one for what it is.
// The leader of a cluster talks to a new member from the moment that it is one,
// which is before the member has heard of it: such a connection waits.
func (p *Port) sameCluster(conn net.Conn, who string) error {
	id, names, _ := strings.Cut(who, " ")
	from, to, _ := strings.Cut(names, " ")
	late := time.NewTimer(decideIn)
	defer late.Stop()
	select {
	case <-p.belongs:
	case <-p.closed:
		return errPortClosed
	case <-late.C:
		return fmt.Errorf("a node of cluster %q takes this node for a member, which has not been admitted to a cluster yet", id)
	}
	if own := p.cfg.Cluster(); own != id {
		if to != "" && to == p.cfg.Node && p.cfg.Foreign != nil {
			p.cfg.Foreign(id)
		}
		p.cfg.Logger.Warn("a node of another cluster takes this node for a member", "from", conn.RemoteAddr(), "cluster", id, "own", own)
		return errors.New("node of another cluster")
	}
	if err := p.isMeant(to); err != nil {
		p.complain("another node was led here by mistake", conn.RemoteAddr().String(), err)
		return err
	}
	if p.cfg.Shuns != nil && p.cfg.Shuns(from) {
		return fmt.Errorf("the data folder of %s is not that of the member", from)
	}
	return nil
}

// isMeant returns nil if this node is the one that the other end takes it for, "" being
// any. Answers count as those of the member that was asked: where its name or address
// leads here, one node would be two of a majority.
func (p *Port) isMeant(node string) error {
	if node == "" || node == p.cfg.Node {
		return nil
	}
	return fmt.Errorf("this is node %s, and not %s: look at what the name and the address of %[2]s lead to", p.cfg.Node, node)
}

// nameAt returns the name of the member at an address; "" if none is known.
func (p *Port) nameAt(address string) string {
	if p.cfg.NameAt == nil {
		return ""
	}
	return p.cfg.NameAt(address)
}

// unread is a connection of which something was read that belongs to what
// follows.
type unread struct {
	net.Conn
	first []byte
}

func (u *unread) Read(b []byte) (int, error) {
	if len(u.first) > 0 {
		n := copy(b, u.first)
		u.first = u.first[n:]
		return n, nil
	}
	return u.Conn.Read(b)
}

// tracked is a connection that the port closes when it is closed itself.
type tracked struct {
	net.Conn
	port *Port
	once sync.Once
	node string // that opened it for Raft, as its certificate has it; guarded by port.mu
}

func (t *tracked) Close() error {
	t.once.Do(func() { t.port.untrack(t) })
	return t.Conn.Close()
}

// track returns nil where the port is closed or full.
func (p *Port) track(conn net.Conn, taken bool) net.Conn {
	t := &tracked{Conn: conn, port: p}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil || taken && p.taken >= maxConns {
		p.refuse(conn, fmt.Errorf("closed, or more than %d connections", maxConns))
		return nil
	}
	p.conns[t] = taken
	if taken {
		p.taken++
	}
	return t
}

func (p *Port) untrack(t *tracked) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns[t] {
		p.taken--
	}
	delete(p.conns, t)
}

// open opens a connection to another node. The protocol is named with TLS alone.
func (p *Port) open(ctx context.Context, address, protocol string) (net.Conn, error) {
	conn, err := p.cfg.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	if conn = p.track(conn, false); conn == nil {
		return nil, errPortClosed
	}
	if p.secure != nil {
		return p.secureTo(ctx, conn, address, protocol)
	}
	return conn, nil
}

// Close ends everything: the listener and each connection, to or from others.
func (p *Port) Close() error {
	p.mu.Lock()
	conns := p.conns
	p.conns = nil
	p.mu.Unlock()
	if conns == nil {
		return nil
	}
	close(p.closed)
	err := p.listener.Close()
	for c := range conns {
		_ = c.(*tracked).Conn.Close() // whoever uses it is told
	}
	p.serving.Wait()
	return err
}

// HTTP is what the HTTP server listens to.
func (p *Port) HTTP() net.Listener { return half{p, p.http} }

// A half is the part of a port that one protocol sees: a net.Listener, and for
// Raft a raft.StreamLayer.
type half struct {
	*Port
	conns chan net.Conn
}

func (h half) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close does nothing: the port is closed as a whole.
func (half) Close() error { return nil }

func (h half) Addr() net.Addr { return address(h.cfg.Address) }

// Dial implements raft.StreamLayer.
func (h half) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	member := h.nameAt(string(to))
	if h.cfg.Shuns != nil && h.cfg.Shuns(member) {
		return nil, fmt.Errorf("cluster: the data folder of %s is not that of the member", member)
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(timeout, DialTimeout))
	defer cancel()
	conn, err := h.open(ctx, string(to), raftProtocol)
	if err != nil {
		return nil, err
	}
	who := h.cfg.Cluster() + " " + h.cfg.Node + " " + member
	first := []byte{raftByte, byte(len(who))}
	if h.secure != nil {
		first = first[1:] // the handshake has said that it is Raft's
	}
	if _, err := conn.Write(append(first, who...)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// DialTimeout bounds opening a connection; nodes are near each other.
const DialTimeout = time.Second
