package sim

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A network joins hosts by connections that are memory and time. A socket would
// do neither: who waits for one keeps the virtual clock from going on.
//
// It behaves as TCP does over a network that loses packets. What is sent over a
// direction that is held arrives when it is let go, and nobody is told anything
// meanwhile; a host that vanished answers nothing, and one that is back resets
// what it does not know.
type network struct {
	mu        sync.Mutex
	rng       *rand.Rand
	listeners map[string]*listener // by address
	hosts     map[string]*presence
	links     map[link]*condition
	conns     map[*conn]bool // one end of each
	changed   chan struct{}  // closed, and replaced, when anything was held or let go
}

// A link is one direction between two hosts.
type link struct{ from, to string }

// A condition is that of a link.
type condition struct {
	held  int           // how many faults hold it
	delay time.Duration // on top of the usual
}

// A presence says whether a host is there.
type presence struct {
	run      int  // raised whenever it ends
	vanished bool // without a word; else whoever asks is refused
}

const (
	usualDelay = 300 * time.Microsecond
	// sendBuffer is what may be under way on a connection, which breaks with more:
	// whoever waited in a write may hold a lock, and who waits for a lock keeps
	// the virtual clock from going on.
	sendBuffer = 16 << 20
)

func newNetwork(rng *rand.Rand) *network {
	return &network{
		rng: rng, listeners: map[string]*listener{}, hosts: map[string]*presence{}, links: map[link]*condition{},
		conns: map[*conn]bool{}, changed: make(chan struct{}),
	}
}

func hostOf(address string) string {
	host, _, _ := strings.Cut(address, ":")
	return host
}

func (w *network) host(name string) *presence {
	p := w.hosts[name]
	if p == nil {
		p = &presence{}
		w.hosts[name] = p
	}
	return p
}

func (w *network) link(l link) *condition {
	c := w.links[l]
	if c == nil {
		c = &condition{}
		w.links[l] = c
	}
	return c
}

// listen opens an address.
func (w *network) listen(address string) net.Listener {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := &listener{network: w, address: addr(address), conns: make(chan net.Conn, 64), closed: make(chan struct{})}
	w.listeners[address] = l
	w.host(hostOf(address)).vanished = false
	return l
}

// dialer returns how a host opens connections, until it ends.
func (w *network) dialer(from string) func(ctx context.Context, to string) (net.Conn, error) {
	w.mu.Lock()
	run := w.host(from).run
	w.mu.Unlock()
	return func(ctx context.Context, to string) (net.Conn, error) {
		c, err := w.dial(ctx, from, run, to)
		if err != nil {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: addr(to), Err: err}
		}
		return c, nil
	}
}

func (w *network) dial(ctx context.Context, from string, run int, to string) (net.Conn, error) {
	there, back := link{from, hostOf(to)}, link{hostOf(to), from}
	for {
		w.mu.Lock()
		l, changed := w.listeners[to], w.changed
		silent := w.link(there).held > 0 || w.link(back).held > 0 || w.host(there.to).vanished
		delay := usualDelay + w.link(there).delay + w.link(back).delay
		ended := w.host(from).run != run
		w.mu.Unlock()
		if ended {
			return nil, net.ErrClosed
		}
		if !silent {
			if err := pause(ctx, delay); err != nil {
				return nil, err
			}
			if l == nil {
				return nil, syscall.ECONNREFUSED
			}
			return w.connect(l, from, run)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-changed:
		}
	}
}

// connect makes the two ends of a connection.
func (w *network) connect(l *listener, from string, run int) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	to := hostOf(string(l.address))
	if w.listeners[string(l.address)] != l || w.host(from).run != run {
		return nil, syscall.ECONNREFUSED
	}
	there, back := newStream(w, link{from, to}), newStream(w, link{to, from})
	near := &conn{network: w, in: back, out: there, local: addr(from), remote: l.address, host: w.host(from), run: run}
	far := &conn{network: w, in: there, out: back, local: l.address, remote: addr(from), host: w.host(to), run: w.host(to).run}
	near.peer, far.peer = far, near
	select {
	case l.conns <- far:
	default:
		return nil, syscall.ECONNREFUSED
	}
	w.conns[near] = true
	return near, nil
}

// hold makes directions lose what is sent over them, until release is called.
func (w *network) hold(links ...link) (release func()) {
	w.change(func() {
		for _, l := range links {
			w.link(l).held++
		}
	})
	return func() {
		w.change(func() {
			for _, l := range links {
				w.link(l).held--
			}
		})
	}
}

// slow adds to the delay of directions, until release is called.
func (w *network) slow(by time.Duration, links ...link) (release func()) {
	w.change(func() {
		for _, l := range links {
			w.link(l).delay += by
		}
	})
	return func() {
		w.change(func() {
			for _, l := range links {
				w.link(l).delay -= by
			}
		})
	}
}

// change changes conditions and wakes whoever waits for one.
func (w *network) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
	for c := range w.conns {
		c.in.wake()
		c.out.wake()
	}
}

// end takes a host away: with a word to whoever is connected, or without.
func (w *network) end(host string, vanish bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.host(host)
	p.run++
	p.vanished = vanish
	for a, l := range w.listeners {
		if hostOf(a) == host {
			delete(w.listeners, a)
			l.close()
		}
	}
	for c := range w.conns {
		for _, own := range []*conn{c, c.peer} {
			if hostOf(string(own.local)) != host {
				continue
			}
			own.in.fail(net.ErrClosed)
			own.out.fail(net.ErrClosed)
			if !vanish {
				// The word may be lost on its way, as anything may.
				if own.out.state.held == 0 {
					delete(w.conns, c)
					own.peer.reset()
				}
			}
		}
	}
}

// reset breaks all connections from one host to another, and loses what is
// under way on them.
func (w *network) reset(a, b string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		if l := c.out.link; l == (link{a, b}) || l == (link{b, a}) {
			delete(w.conns, c)
			c.reset()
			c.peer.reset()
		}
	}
}

// disowns reports whether the host at the other end of a connection would say
// that it does not know it: it ended meanwhile, and is there again. w.mu is held.
func (w *network) disowns(c *conn) bool {
	p := c.peer.host
	return p.run != c.peer.run && !p.vanished && c.out.state.held == 0 && c.in.state.held == 0
}

// forget drops a connection that is over. w.mu is held.
func (w *network) forget(c *conn) {
	delete(w.conns, c)
	delete(w.conns, c.peer)
}

type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

type listener struct {
	network *network
	address addr
	conns   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) close() { l.once.Do(func() { close(l.closed) }) }

func (l *listener) Close() error {
	l.network.mu.Lock()
	if l.network.listeners[string(l.address)] == l {
		delete(l.network.listeners, string(l.address))
	}
	l.network.mu.Unlock()
	l.close()
	return nil
}

func (l *listener) Addr() net.Addr { return l.address }

// A conn is one end of a connection.
type conn struct {
	network       *network
	in, out       *stream
	local, remote addr
	host          *presence // at this end
	run           int       // of it
	peer          *conn
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) Read(b []byte) (int, error) { return c.in.read(b) }

func (c *conn) Write(b []byte) (int, error) {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	if c.network.disowns(c) {
		c.reset()
		c.network.forget(c)
	}
	return c.out.write(b)
}

func (c *conn) Close() error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	c.out.ended, c.in.abandoned = true, true
	c.in.chunks = nil
	c.in.wake()
	c.out.wake()
	if c.peer.out.ended {
		c.network.forget(c)
	}
	return nil
}

// reset breaks this end. The lock of the network is held.
func (c *conn) reset() {
	c.in.fail(syscall.ECONNRESET)
	c.out.fail(syscall.ECONNRESET)
}

func (c *conn) SetDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readBy, t)
	c.out.setDeadline(&c.out.writeBy, t)
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readBy, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writeBy, t)
	return nil
}

// A stream is one direction of a connection. The lock of the network is that of
// all streams.
type stream struct {
	network *network
	link    link
	state   *condition // of the link

	waits           bool          // somebody reads, and there is nothing yet
	woken           chan struct{} // one look more for who reads
	timer           *time.Timer   // likewise, at a time
	fires           time.Time     // the timer; zero if it does not
	chunks          []chunk
	size            int
	last            time.Time // when the latest chunk arrives
	err             error     // of both ends from now on
	ended           bool      // by who writes: nothing follows
	abandoned       bool      // by who reads
	readBy, writeBy time.Time
}

type chunk struct {
	at time.Time
	b  []byte
}

func newStream(w *network, l link) *stream {
	s := &stream{network: w, link: l, state: w.link(l), woken: make(chan struct{}, 1), timer: time.NewTimer(0)}
	s.timer.Stop()
	return s
}

func (s *stream) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

func (s *stream) fail(err error) {
	if s.err == nil {
		s.err = err
	}
	s.chunks, s.size = nil, 0
	s.wake()
}

func (s *stream) setDeadline(which *time.Time, t time.Time) {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	*which = t
	s.wake()
}

// wait waits for a change, or until a time if it is not zero. A connection has one
// reader at a time.
func (s *stream) wait(until time.Time) {
	if !until.IsZero() {
		s.alarm(until)
	}
	s.waits = true
	s.network.mu.Unlock()
	fired := false
	select {
	case <-s.woken:
	case <-s.timer.C:
		fired = true
	}
	s.network.mu.Lock()
	if s.waits = false; fired {
		s.fires = time.Time{}
	}
}

// alarm wakes who reads at a time, or before.
func (s *stream) alarm(at time.Time) {
	if s.fires.IsZero() || at.Before(s.fires) {
		s.fires = at
		s.timer.Reset(max(time.Until(at), 0))
	}
}

func due(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

func soonest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func (s *stream) read(b []byte) (int, error) {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	for {
		var next time.Time
		switch {
		case s.abandoned:
			return 0, net.ErrClosed
		case due(s.readBy):
			return 0, os.ErrDeadlineExceeded
		case s.err != nil:
			return 0, s.err
		case s.state.held > 0:
		case len(s.chunks) > 0 && due(s.chunks[0].at):
			n := copy(b, s.chunks[0].b)
			if s.chunks[0].b = s.chunks[0].b[n:]; len(s.chunks[0].b) == 0 {
				s.chunks = s.chunks[1:]
			}
			s.size -= n
			return n, nil
		case len(s.chunks) > 0:
			next = s.chunks[0].at
		case s.ended:
			return 0, io.EOF
		}
		s.wait(soonest(s.readBy, next))
	}
}

// write never waits. The lock of the network is held.
func (s *stream) write(b []byte) (int, error) {
	switch {
	case s.ended:
		return 0, net.ErrClosed
	case due(s.writeBy):
		return 0, os.ErrDeadlineExceeded
	case s.err != nil:
		return 0, s.err
	case s.abandoned && s.state.held == 0:
		return 0, syscall.EPIPE
	case s.size > sendBuffer:
		return 0, syscall.ETIMEDOUT
	}
	delay := usualDelay + s.state.delay + time.Duration(s.network.rng.Int64N(int64(usualDelay)))
	at := time.Now().Add(delay)
	if at.Before(s.last) {
		at = s.last
	}
	s.last = at
	s.chunks = append(s.chunks, chunk{at, append([]byte(nil), b...)})
	s.size += len(b)
	if s.waits && len(s.chunks) == 1 {
		s.alarm(at)
	}
	return len(b), nil
}

// pause sleeps until ctx is done at the latest.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func links(a string, others []string, there, back bool) (all []link) {
	for _, b := range others {
		if b == a {
			continue
		}
		if there {
			all = append(all, link{a, b})
		}
		if back {
			all = append(all, link{b, a})
		}
	}
	return all
}

func (l link) String() string { return fmt.Sprintf("%s>%s", l.from, l.to) }
