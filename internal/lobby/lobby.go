package lobby

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config is what a Lobby is made of.
type Config struct {
	// Connections are let in at once at most, and so many are Outside: they have said
	// nothing yet, or wait for their turn. Those cost a file and little else.
	Connections, Outside int
	// Handshakes of one address are begun in a second; four seconds' worth at once. Any
	// number if 0: without TLS there is nothing to them.
	Handshakes int
	// Registry is where metrics are registered.
	Registry prometheus.Registerer

	silence time.Duration // of tests; else that of all
}

const (
	beat       = 50 * time.Millisecond // how often turns are given
	sweepEvery = 10 * time.Second
	silence    = 5 * time.Second  // how long a connection may say nothing at first
	longestOut = 30 * time.Second // and how long it waits at most for its turn behind that
	// strangerShare of all connections may be strangers behind their handshake: one in
	// so many.
	strangerShare = 8
	// roomShare of an address' connections are closed at once to make room, so that
	// who is to go is not looked for each time.
	roomShare = 64
)

// A Lobby is where connections are until they are let in, and which knows them later. It
// is safe for concurrent use.
type Lobby struct {
	cfg     Config
	silence time.Duration
	clock   atomic.Int64 // in beats

	closed, slowed *prometheus.CounterVec

	mu     sync.Mutex
	places map[netip.Addr]*place
	queues map[*place]struct{} // those where somebody waits
	count  [left]int
}

// A place is an address from which connections come.
type place struct {
	conns   map[*conn]struct{}
	waiting []*conn // for their turn; who came last is last
	turns   bucket
	count   [left]int
	wrong   bucket // answers to wrong tokens
	delayed int    // such answers that wait
}

// New makes a Lobby.
func New(cfg Config) (*Lobby, error) {
	l := &Lobby{
		cfg: cfg, silence: cmp.Or(cfg.silence, silence), places: map[netip.Addr]*place{}, queues: map[*place]struct{}{},
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gov_connections_closed_total", Help: "Connections to the API that the node closed because of what they did, or to make room."}, []string{"reason"}),
		slowed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gov_connections_slowed_total", Help: "How often the node let a connection wait because of a flood."}, []string{"reason"}),
	}
	for _, reason := range []string{"silent", "crowded"} {
		l.closed.WithLabelValues(reason)
	}
	for _, reason := range []string{"handshakes", "frames", "refusals", "tokens"} {
		l.slowed.WithLabelValues(reason)
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gov_connections", Help: "Open connections to the API."}, func() float64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		return float64(l.count[outside] + l.count[stranger] + l.count[guest])
	})
	for _, c := range []prometheus.Collector{open, l.closed, l.slowed} {
		if err := cfg.Registry.Register(c); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Over returns the listener of those who are let in. Closing it closes the other, and
// those who wait.
func (l *Lobby) Over(inner net.Listener) net.Listener {
	x := &listener{Listener: inner, lobby: l, ready: make(chan *conn), failed: make(chan error, 1), done: make(chan struct{})}
	go x.accept()
	go x.turns()
	return x
}

type listener struct {
	net.Listener
	lobby  *Lobby
	ready  chan *conn
	failed chan error
	done   chan struct{}
	once   sync.Once
}

// Accept implements net.Listener.
func (x *listener) Accept() (net.Conn, error) {
	select {
	case c := <-x.ready:
		return c, nil
	case err := <-x.failed:
		return nil, err
	case <-x.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (x *listener) Close() error {
	x.once.Do(func() { close(x.done) })
	return x.Listener.Close()
}

func (x *listener) accept() {
	for {
		c, err := x.Listener.Accept()
		var short interface{ Temporary() bool }
		switch {
		case err == nil:
			go x.greet(x.lobby.enter(c))
		case errors.As(err, &short) && short.Temporary(): // no file is left for it
			time.Sleep(beat)
		default:
			x.failed <- err
			return
		}
	}
}

// greet waits for the first byte of a connection, and lets it in or to the end of those
// who wait.
func (x *listener) greet(c *conn) {
	_ = c.Conn.SetReadDeadline(time.Now().Add(x.lobby.silence))
	n, err := c.Conn.Read(c.first[:])
	if n == 0 {
		if errors.Is(err, errTimeout) {
			x.lobby.closed.WithLabelValues("silent").Inc()
		}
		_ = c.Close()
		return
	}
	_ = c.Conn.SetReadDeadline(time.Time{})
	if c.pending = true; x.lobby.turn(c) {
		x.letIn(c)
		return
	}
	select {
	case <-x.done: // who gives turns may have looked for those who wait before
		_ = c.Close()
	default:
	}
}

func (x *listener) letIn(c *conn) {
	select {
	case x.ready <- c:
	case <-x.done:
		_ = c.Close()
	}
}

// turns gives turns to those who wait, until the listener is closed.
func (x *listener) turns() {
	t := time.NewTicker(beat)
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-x.done:
			for _, c := range x.lobby.waiting() {
				_ = c.Close()
			}
			return
		case <-t.C:
		}
		x.lobby.clock.Add(1)
		next, late := x.lobby.next(n%int(sweepEvery/beat) == 0)
		for _, c := range late {
			x.lobby.closed.WithLabelValues("silent").Inc()
			_ = c.Close()
		}
		for _, c := range next {
			x.letIn(c)
		}
	}
}

// enter registers a connection.
func (l *Lobby) enter(raw net.Conn) *conn {
	c := &conn{Conn: raw, lobby: l, state: nowhere, gone: make(chan struct{}), wake: make(chan struct{}, 1), since: l.clock.Load(), filled: time.Now()}
	c.spare.Store(burst)
	c.last.Store(c.since)
	at := addressOf(raw)
	l.mu.Lock()
	p := l.places[at]
	if p == nil {
		p = &place{conns: map[*conn]struct{}{}, turns: newBucket(l.cfg.Handshakes, 4*l.cfg.Handshakes), wrong: newBucket(wrongTokens, 2*wrongTokens)}
		l.places[at] = p
	}
	c.at = p
	var leave []*conn
	if l.count[outside] >= l.cfg.Outside {
		leave = l.crowded(p, outside)
	}
	p.conns[c] = struct{}{}
	l.move(c, outside)
	l.mu.Unlock()
	l.makeRoom(leave)
	return c
}

// move counts a connection under another state; l.mu is held.
func (l *Lobby) move(c *conn, to state) {
	for _, count := range []*[left]int{&l.count, &c.at.count} {
		if c.state != nowhere {
			count[c.state]--
		}
		if to != left {
			count[to]++
		}
	}
	c.state = to
}

// addressOf is what stands for all connections from somewhere.
func addressOf(c net.Conn) netip.Addr {
	at, _ := netip.ParseAddrPort(c.RemoteAddr().String()) // none is an address as well
	a := at.Addr().Unmap().WithZone("")
	if a.Is6() {
		wide, _ := a.Prefix(64)
		return wide.Addr()
	}
	return a
}

// turn reports whether a connection may go on now. Else it waits.
func (l *Lobby) turn(c *conn) bool {
	l.mu.Lock()
	p := c.at
	if l.cfg.Handshakes > 0 && !p.turns.take(time.Now()) {
		p.waiting = append(p.waiting, c)
		l.queues[p] = struct{}{}
		l.mu.Unlock()
		l.slowed.WithLabelValues("handshakes").Inc()
		return false
	}
	leave, ok := l.inner(c)
	l.mu.Unlock()
	l.makeRoom(leave)
	return ok
}

// inner makes a connection a stranger behind its turn, and returns those who make room.
// It reports false where there is none, or it was closed meanwhile; l.mu is held.
func (l *Lobby) inner(c *conn) (leave []*conn, ok bool) {
	if c.state != outside {
		return nil, false
	}
	if l.count[stranger] >= max(1, l.cfg.Connections/strangerShare) {
		leave = l.crowded(c.at, stranger)
	} else if l.count[stranger]+l.count[guest] >= l.cfg.Connections {
		if leave = l.crowded(c.at, guest); len(leave) == 0 {
			return []*conn{c}, false
		}
	}
	l.move(c, stranger)
	return leave, true
}

// next takes those whose turn it is from those who wait, and those who have waited too
// long. It forgets places now and then.
func (l *Lobby) next(sweep bool) (next, late []*conn) {
	now := time.Now()
	l.mu.Lock()
	var leave []*conn
	for p := range l.queues { // order-free: each has turns of its own
		for len(p.waiting) > 0 && l.clock.Load()-p.waiting[0].since > int64(longestOut/beat) {
			if p.waiting[0].state == outside {
				late = append(late, p.waiting[0])
			}
			p.waiting = p.waiting[1:]
		}
		for len(p.waiting) > 0 && p.turns.take(now) {
			c := p.waiting[len(p.waiting)-1]
			p.waiting = p.waiting[:len(p.waiting)-1]
			others, ok := l.inner(c)
			if leave = append(leave, others...); ok {
				next = append(next, c)
			}
		}
		if len(p.waiting) == 0 {
			p.waiting = nil
			delete(l.queues, p)
		}
	}
	if sweep {
		for at, p := range l.places { // order-free: each by itself
			if len(p.conns) == 0 && p.delayed == 0 && p.turns.full(now) && p.wrong.full(now) {
				delete(l.places, at)
			}
		}
	}
	l.mu.Unlock()
	l.makeRoom(leave)
	return next, late
}

// waiting returns all who wait.
func (l *Lobby) waiting() (all []*conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.queues { // order-free: all of them go
		all = append(all, p.waiting...)
	}
	return all
}

// crowded returns who has to go for another of an address: some of the address with
// most connections of a state, or of the others where that has none that may go. For a guest a
// stranger goes first. Who has a request under way goes only for an address that has fewer.
// l.mu is held.
func (l *Lobby) crowded(newcomer *place, s state) []*conn {
	among := func(c state) bool { return c == s || s == guest && c == stranger }
	var most *place
	for _, p := range l.places { // order-free: which of two with as many does not matter
		if most == nil || p.has(s) > most.has(s) {
			most = p
		}
	}
	type rank struct {
		*conn
		busy int
		last int64
	}
	var ranks []rank
	look := func(p *place) {
		for c := range p.conns { // order-free: they are sorted below
			r := rank{conn: c, last: c.last.Load()}
			if c.state == guest {
				r.busy = 1
				if c.requests.Load() > 0 {
					r.busy = 2
				}
			}
			if among(c.state) && (r.busy < 2 || p.has(guest) > newcomer.has(guest)+1) {
				ranks = append(ranks, r)
			}
		}
	}
	if look(most); len(ranks) == 0 {
		for _, p := range l.places { // order-free: likewise
			look(p)
		}
	}
	slices.SortFunc(ranks, func(a, b rank) int { return cmp.Or(cmp.Compare(a.busy, b.busy), cmp.Compare(a.last, b.last)) })
	var leave []*conn
	for _, r := range ranks[:min(len(ranks), 1+len(ranks)/roomShare)] {
		leave = append(leave, r.conn)
	}
	for _, c := range leave {
		l.forget(c)
	}
	return leave
}

// has is how many connections of a state there are; guests with strangers.
func (p *place) has(s state) int {
	if s == guest {
		return p.count[guest] + p.count[stranger]
	}
	return p.count[s]
}

func (l *Lobby) makeRoom(leave []*conn) {
	for _, c := range leave {
		l.closed.WithLabelValues("crowded").Inc()
		_ = c.Close()
	}
}

// forget counts a connection no more; l.mu is held.
func (l *Lobby) forget(c *conn) {
	if c.state != left {
		l.move(c, left)
		delete(c.at.conns, c)
	}
}

// A bucket has so many tokens a second, and keeps some for later.
type bucket struct {
	rate, most, tokens float64
	filled             time.Time
}

func newBucket(rate, most int) bucket {
	return bucket{rate: float64(rate), most: float64(most), tokens: float64(most), filled: time.Now()}
}

func (b *bucket) fill(now time.Time) {
	b.tokens = min(b.most, b.tokens+b.rate*now.Sub(b.filled).Seconds())
	b.filled = now
}

// take takes a token that is there.
func (b *bucket) take(now time.Time) bool {
	if b.fill(now); b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// owe takes a token that may not be there yet, and returns how long that takes; longest
// at most.
func (b *bucket) owe(now time.Time, longest time.Duration) time.Duration {
	b.fill(now)
	b.tokens = max(b.tokens-1, -b.rate*longest.Seconds())
	return time.Duration(max(0, -b.tokens) / b.rate * float64(time.Second))
}

func (b *bucket) full(now time.Time) bool {
	b.fill(now)
	return b.tokens >= b.most
}
