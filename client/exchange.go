package client

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"example.com/govnode/client/internal/wire"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// The streams of a client: one line to each node that calls go to, opened when it
// is needed and given up where it fails.

const (
	// helloTimeout is how long a node may take to answer a new stream. Something
	// in between that does not pass streams on may never answer.
	helloTimeout = time.Second
	// youngLink is how long a stream has to last not to count as a failure.
	youngLink = 10 * time.Second
	// linkFailures is how many failures in a row end the attempts for a while;
	// a node that has no streams at all counts as that many at once.
	linkFailures = 3
	// linkRetry is how long the attempts then rest. It doubles.
	linkRetry     = 5 * time.Second
	linkRetryMost = 5 * time.Minute
	streamPing    = 5 * time.Second
	// streamFrame lets the answers of a message come in one frame of HTTP/2, or
	// in few, and so in few system calls.
	streamFrame = 256 << 10 // bytes
)

// errUnary says that there is no stream to a node, so that a request must go by
// itself.
var errUnary = errors.New("client: no stream")

// newStreamHTTPClient returns a client that speaks HTTP/2 alone, without TLS
// too. A connection whose other end is gone is noticed by its pings.
func newStreamHTTPClient(secure *tls.Config) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAliveConfig: keepAlive}).DialContext,
		IdleConnTimeout:     30 * time.Second,
		TLSHandshakeTimeout: dialTimeout * 2,
		TLSClientConfig:     secure.Clone(),
		DisableCompression:  true,
		Protocols:           protocols,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: streamPing, PingTimeout: streamPing, MaxReadFrameSize: streamFrame},
	}}
}

// exchanges are the streams of a client: one, to the node that it asks, and
// those to other nodes on which something has not been answered yet.
type exchanges struct {
	c *Client

	mu      sync.Mutex
	current *link
}

// wrap lets what can go over a stream to a node go there.
func (x *exchanges) wrap(n *node) {
	n.line = &line{c: x.c, node: n, all: x}
}

// took notes that a stream has come up. The one to another node is finished: it
// would stand idle.
func (x *exchanges) took(k *link) {
	x.mu.Lock()
	last := x.current
	x.current = k
	x.mu.Unlock()
	if last != nil {
		last.retire()
	}
}

// A line is the way to one node: a stream where there is one, which is opened
// for the first who asks.
type line struct {
	c    *Client
	node *node
	all  *exchanges

	mu       sync.Mutex
	link     *link
	opening  *opening
	failures int
	rests    time.Time // no stream is tried before
}

// An opening is an attempt to get a stream, which many may wait for.
type opening struct {
	done chan struct{}
	link *link
	err  error // why there is none; errUnary where the node may be well
}

// ready returns the stream to the node. Where streams have failed before nobody
// waits for the next attempt: errUnary says to do without.
func (l *line) ready(e *errand) (*link, error) {
	l.mu.Lock()
	if k := l.link; k != nil {
		l.mu.Unlock()
		return k, nil
	}
	if l.opening == nil {
		if l.c.cfg.Now().Before(l.rests) {
			l.mu.Unlock()
			return nil, errUnary
		}
		if l.c.enter() != nil {
			l.mu.Unlock()
			return nil, errUnary // the client is closing: what is left to do is done without streams
		}
		l.opening = &opening{done: make(chan struct{})}
		go l.open(l.opening)
	}
	o, wait := l.opening, l.failures < linkFailures
	l.mu.Unlock()
	if !wait {
		return nil, errUnary
	}
	ctx, cancel := e.attemptContext()
	defer cancel()
	select {
	case <-o.done:
		return o.link, o.err
	case <-ctx.Done():
		return nil, notSent(context.Cause(ctx))
	}
}

// open gets a stream and serves it until it ends.
func (l *line) open(o *opening) {
	defer l.c.leave()
	k, err := l.dial()
	l.mu.Lock()
	l.opening = nil
	switch {
	case err == nil:
		l.link, o.link = k, k
	case l.c.ctx.Err() != nil:
		o.err = errUnary
	case nobodyThere(err):
		o.err = &breach{error: err} // the node is not there: another one should be asked
	default:
		o.err = errUnary
		l.failed(linkFailures)
	}
	close(o.done)
	l.mu.Unlock()
	if k == nil {
		return
	}
	l.all.took(k)
	up := l.c.cfg.Now()
	k.serve()
	l.lost(k)
	l.mu.Lock()
	if l.c.cfg.Now().Sub(up) < youngLink && !k.well() {
		l.failed(1)
	} else {
		l.failures = 0
	}
	l.mu.Unlock()
}

// failed counts failures, and lets the attempts rest where there were too many.
// l.mu must be held.
func (l *line) failed(n int) {
	l.failures += n
	if over := l.failures - linkFailures; over >= 0 {
		l.rests = l.c.cfg.Now().Add(min(linkRetry<<min(over, 10), linkRetryMost))
	}
}

// lost lets the next who asks open another stream.
func (l *line) lost(k *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.link == k {
		l.link = nil
	}
}

// dial opens a stream and waits for the node's first word.
func (l *line) dial() (*link, error) {
	ctx, cancel := context.WithCancelCause(l.c.ctx)
	late := time.AfterFunc(helloTimeout, func() { cancel(errNoHello) })
	stream := l.c.cfg.wire.Open(ctx, l.c.cfg.streams, l.node.address+govnodev1connect.CallServiceExchangeProcedure)
	// The transport looks at the context again when the request's body has ended.
	context.AfterFunc(ctx, func() { _ = stream.CloseRequest() })
	err := l.c.shown.put(ctx, stream.RequestHeader())
	if err == nil {
		err = stream.Send()
	}
	if err == nil || errors.Is(err, errEOF) {
		var hello *wire.Inbox
		if hello, err = stream.Receive(); err == nil && late.Stop() {
			return newLink(ctx, cancel, l, stream, hello), nil
		}
	}
	late.Stop()
	if err == nil {
		err = errNoHello // its timer has run out, and may not have cancelled yet
	}
	cancel(err)
	return nil, err
}

var errNoHello = errors.New("the node did not answer a new stream in time")

// wrapAll has the nodes wrapped that are known, and those that will be.
func (r *routes) wrapAll(wrap func(*node)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrap = wrap
	for _, n := range r.nodes {
		wrap(n)
	}
}

// leads notes which node leads, as another one has said. One that is not known
// is asked for with the members.
func (r *routes) leads(address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	switch l := r.nodes[withScheme(r.scheme, address)]; {
	case l == nil:
		r.checkAt = now
	case !now.Before(l.shunned):
		r.current = l
	}
}
