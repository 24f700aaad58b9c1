package lobby

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

var errTimeout = os.ErrDeadlineExceeded

// What a connection may read, in bytes: what belongs to no request comes at a pace.
const (
	pace      = 32 << 10 // a second
	burst     = 64 << 10
	mostSpare = 1 << 20
	ofRequest = 20 << 10 // headers, and what goes with them
	ofBody    = 64       // of each read of a body, beside its bytes twice
	ofAnswer  = 128      // of each write of an answer, beside an eighth of its bytes
	givenUp   = 2 << 10  // what a request costs that is given up, beside what it brought
	refusal   = 40 << 10 // what one costs that is refused because there are too many, likewise
	mostOwed  = 64 << 10 // by refusals: who was refused much at once is heard again soon
)

// State of a connection.
type state int

const (
	outside  state = iota // says nothing yet, or waits for its turn
	stranger              // nobody has shown over it that he may ask
	guest
	left
	nowhere // is new
)

// A conn is a connection of somebody outside.
type conn struct {
	net.Conn
	lobby *Lobby
	at    *place
	since int64 // clock
	state state // guarded by lobby.mu

	first   [1]byte // what greet has read
	pending bool    // it has not been handed on

	welcome  atomic.Bool  // state is guest
	requests atomic.Int64 // under way
	last     atomic.Int64 // clock, when it came or one of them ended
	spare    atomic.Int64 // bytes that may be read without a pause
	filled   time.Time    // when spare was, by time; of the reader
	held     atomic.Bool  // the reader waits for spare
	wake     chan struct{}

	once sync.Once
	gone chan struct{}
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	if c.pending && len(b) > 0 {
		b[0], c.pending = c.first[0], false
		return 1, nil
	}
	if c.spare.Load() < 0 {
		c.hold()
	}
	n, err := c.Conn.Read(b)
	c.spare.Add(-int64(n))
	return n, err
}

// hold waits until more may be read: until time has earned it, or requests have.
func (c *conn) hold() {
	c.held.Store(true)
	defer c.held.Store(false)
	for {
		now := time.Now()
		earned := min(int64(now.Sub(c.filled).Seconds()*pace), burst)
		c.filled = now
		short := -c.spare.Add(earned)
		if short <= 0 {
			return
		}
		t := time.NewTimer(time.Duration(short)*time.Second/pace + time.Microsecond)
		select {
		case <-t.C:
			if c.spare.Load() < 0 {
				c.lobby.slowed.WithLabelValues("frames").Inc()
			}
		case <-c.wake:
		case <-c.gone:
			t.Stop()
			return
		}
		t.Stop()
	}
}

// earn lets so much more be read, and returns how much: nothing where enough may be.
func (c *conn) earn(n int64) int64 {
	if c.spare.Load() >= mostSpare {
		return 0
	}
	c.spare.Add(n)
	if c.held.Load() {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	return n
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.gone)
		c.lobby.mu.Lock()
		c.lobby.forget(c)
		c.lobby.mu.Unlock()
	})
	return c.Conn.Close()
}

type connKey struct{}

// Context marks what is done for a connection: it is http.Server.ConnContext.
func Context(ctx context.Context, raw net.Conn) context.Context {
	if secure, ok := raw.(interface{ NetConn() net.Conn }); ok {
		raw = secure.NetConn()
	}
	if c, ok := raw.(*conn); ok {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

func of(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}

// MaxFrame is what http.HTTP2Config.MaxReadFrameSize has to be: the bytes of a body count
// for its request when somebody reads them, and nobody can before the frame is there.
const MaxFrame = 16 << 10

// Handler counts what requests bring, and which are given up.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := of(r.Context())
		if c == nil {
			next.ServeHTTP(w, r)
			return
		}
		c.requests.Add(1)
		earned := c.earn(ofRequest)
		defer func() {
			if r.Context().Err() != nil {
				c.spare.Add(-earned - givenUp) // no more than it brought: many may be given up at once
			}
			c.last.Store(c.lobby.clock.Load())
			c.requests.Add(-1)
		}()
		if r.Body != http.NoBody {
			r.Body = &body{r.Body, c}
		}
		next.ServeHTTP(&writer{w, c}, r)
	})
}

// A writer is that of an answer. Who reads it sends word of that, and pings: on a stream
// of events nothing else comes.
type writer struct {
	http.ResponseWriter
	of *conn
}

// Write implements http.ResponseWriter.
func (w *writer) Write(p []byte) (int, error) {
	w.of.earn(int64(len(p))/8 + ofAnswer)
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (w *writer) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap is what http.ResponseController asks for.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A body is that of a request.
type body struct {
	io.ReadCloser
	of *conn
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.of.earn(2*int64(n) + ofBody)
	return n, err
}

// Welcome says that a request's sender has shown that he may ask: its connection is a
// stranger's no more.
func Welcome(ctx context.Context) {
	c := of(ctx)
	if c == nil || c.welcome.Load() {
		return
	}
	c.welcome.Store(true)
	c.lobby.mu.Lock()
	defer c.lobby.mu.Unlock()
	if c.state == stranger {
		c.lobby.move(c, guest)
	}
}

// Refused says that a request is refused because its sender asks for too many. A refusal
// costs nearly as much as what it refuses; who goes on is read at a pace.
func Refused(ctx context.Context) {
	c := of(ctx)
	if c == nil {
		return
	}
	const cost = ofRequest + refusal
	left := c.spare.Add(-cost)
	if left < 0 {
		c.lobby.slowed.WithLabelValues("refusals").Inc()
	}
	if left < -mostOwed {
		c.spare.Add(min(cost, -mostOwed-left))
	}
}

// Answers to wrong tokens.
const (
	wrongTokens = 100 // a second go to one address, and twice as many at once
	longestWait = 5 * time.Second
	mostDelayed = 1000 // wait for one address
)

// Wrong says that a request's sender has shown nothing valid. It returns when he may be
// told.
func Wrong(ctx context.Context) {
	c := of(ctx)
	if c == nil {
		return
	}
	l, p := c.lobby, c.at
	l.mu.Lock()
	pause := p.wrong.owe(time.Now(), longestWait)
	if pause > 0 {
		p.delayed++
	}
	many := p.delayed > mostDelayed
	l.mu.Unlock()
	if pause <= 0 {
		return
	}
	defer func() {
		l.mu.Lock()
		p.delayed--
		l.mu.Unlock()
	}()
	l.slowed.WithLabelValues("tokens").Inc()
	if many {
		l.makeRoom([]*conn{c})
		return
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-c.gone:
	}
}
