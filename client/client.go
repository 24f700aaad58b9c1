package client

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/client/internal/ids"
	"example.com/govnode/client/internal/wire"
)

// A Client talks to one cluster. It is safe for concurrent use.
type Client struct {
	cfg    Config
	ids    *ids.Source
	bucket *bucket
	routes *routes
	leases *leases
	shown  credentials

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // goroutines of this client; none is added once closed
	late   []error        // of what was cleaned up while it closed

	shut    chan struct{} // closed when Close is over
	shutErr error         // what came of it; before that nobody reads it
}

const (
	defaultTimeout        = 10 * time.Second
	defaultAttemptTimeout = 5 * time.Second
	defaultNamespace      = "default"
	maxNamespace          = 64 // bytes
	dialTimeout           = time.Second
	// How long Close, Release and what is cleaned up behind a caller that has
	// gone away may take.
	farewell = 5 * time.Second
)

// A Config says which service to talk to, and how. Only Addresses must be set.
// FromEnvironment makes one of what the environment says.
type Config struct {
	// Addresses of one or more nodes, host:port or a URL. The others of the
	// cluster are learned from them. Must be set.
	Addresses []string
	// TLS says by whom nodes are known that are reached by https, and which
	// certificate they are shown; LoadTLS makes one. With it an address without a
	// scheme is https. Without it, https trusts the authorities of this system. It
	// cannot be given beside HTTPClient, which has its own.
	TLS *tls.Config
	// Namespace that everything is in. If empty that of Token, else "default".
	Namespace string
	// Token by which the service knows the caller, where it asks: gn_ and so on, or
	// a JWT. It is sent with every request and shown nowhere.
	Token string
	// TokenSource returns the token instead, for one that is drawn anew before it
	// expires. It is asked for each request that is no part of a stream, so it should
	// keep what it has. It is called on a goroutine of the client's, once for all requests
	// of that time; where it takes longer than 10 s it is called again beside that.
	TokenSource func() (string, error)
	// Name under which the service remembers what this process asks for, and
	// shows what it holds. Drawn once per process if empty; it must not be
	// that of another process.
	Name string

	// Timeout bounds an operation whose context ends later, on top of the time
	// it waits for a slot. 10 s if 0.
	Timeout time.Duration
	// AttemptTimeout is how long one node may take to answer, on top of the
	// time it waits for a slot, before another one is asked. 5 s if 0.
	AttemptTimeout time.Duration
	// Budget bounds what is sent again.
	Budget Budget

	// HTTPClient sends the requests. If nil, one that keeps connections of
	// HTTP/1.1 alive, and one of HTTP/2 for streams.
	HTTPClient connect.HTTPClient
	// DisableExchange sends each request by itself. Otherwise calls that are
	// under way at once share a stream, which is several times as fast, and go
	// by themselves only where no stream can be had.
	DisableExchange bool
	// Logger is told about leases that are at risk or lost. slog.Default() if
	// nil.
	Logger *slog.Logger
	// OnLost is called, on a goroutine of its own, for each lease that is lost.
	OnLost func(Loss)

	// Now is the clock: its monotonic part measures leases, its wall part goes
	// into ids. time.Now if nil.
	Now func() time.Time
	// Random returns a number in [0, 1), for pauses. math/rand/v2 if nil.
	Random func() float64
	// Entropy is the random part of ids. crypto/rand if nil.
	Entropy io.Reader

	streams connect.HTTPClient // for what goes over streams
	wire    wire.Wire          // on which it goes; fast if nil
}

func (c *Config) validate() error {
	if len(c.Addresses) == 0 {
		return errors.New("client: Addresses: empty: name at least one node, for instance 127.0.0.1:7070")
	}
	for i, a := range c.Addresses {
		if err := checkAddress(a); err != nil {
			return fmt.Errorf("client: Addresses[%d]: %w", i, err)
		}
	}
	if err := c.checkToken(); err != nil {
		return err
	}
	if c.Namespace == "" && c.TokenSource == nil {
		c.Namespace = defaultNamespace
	}
	if err := ids.Check("Namespace", c.Namespace); err != nil {
		return err
	}
	if n := len(c.Namespace); n > maxNamespace {
		return fmt.Errorf("client: Namespace: %d bytes are more than %d: shorten it", n, maxNamespace)
	}
	if c.Name == "" {
		c.Name = ids.ProcessName()
	}
	if err := ids.Check("Name", c.Name); err != nil {
		return err
	}
	if c.Timeout < 0 || c.AttemptTimeout < 0 {
		return errors.New("client: Timeout, AttemptTimeout: must not be negative")
	}
	if c.TLS != nil && c.HTTPClient != nil {
		return errors.New("client: TLS: is not used with HTTPClient: leave one of them out, and give the client its own")
	}
	if c.Budget.Ratio < 0 || c.Budget.Burst < 0 || c.Budget.PerSecond < 0 {
		return errors.New("client: Budget: Ratio, Burst and PerSecond must not be negative")
	}
	setDefaults(c)
	return nil
}

func setDefaults(c *Config) {
	orElse(&c.Timeout, defaultTimeout)
	orElse(&c.AttemptTimeout, defaultAttemptTimeout)
	c.Timeout, c.AttemptTimeout = min(c.Timeout, longest), min(c.AttemptTimeout, longest)
	orElse(&c.Budget.Ratio, 0.1)
	orElse(&c.Budget.Burst, 100)
	orElse(&c.Budget.PerSecond, 1)
	orElse(&c.Logger, slog.Default())
	c.streams = c.HTTPClient
	if c.HTTPClient == nil {
		c.HTTPClient, c.streams = newHTTPClient(c.TLS), newStreamHTTPClient(c.TLS)
	}
	if c.wire == nil {
		c.wire = wire.Fast{}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Random == nil {
		c.Random = mathrand.Float64
	}
	if c.Entropy == nil {
		c.Entropy = rand.Reader
	}
}

func orElse[T comparable](v *T, fallback T) {
	var zero T
	if *v == zero {
		*v = fallback
	}
}

// keepAlive has the kernel find out within 5 s that the machine at the other end
// is gone, which a request that waits for a slot would otherwise not notice.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3}

// newHTTPClient returns a client that keeps as many connections as there are
// requests at once, since each takes one of its own.
func newHTTPClient(secure *tls.Config) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Client{Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAliveConfig: keepAlive}).DialContext,
		MaxIdleConnsPerHost: 1024,
		IdleConnTimeout:     30 * time.Second, // less than the nodes keep them
		TLSHandshakeTimeout: dialTimeout * 2,
		TLSClientConfig:     secure.Clone(), // each transport writes its protocols into its own
		Protocols:           protocols,
	}}
}

// New makes a client. It does not connect: that is left to the first request.
func New(cfg Config) (*Client, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, shut: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.ids = ids.New(cfg.Now, cfg.Entropy)
	c.bucket = newBucket(cfg.Budget, cfg.Now())
	c.shown = credentials{namespace: cfg.Namespace, static: cfg.Token, token: cfg.TokenSource}
	shown := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if err := c.shown.put(ctx, req.Header()); err != nil {
				return nil, err
			}
			return next(ctx, req)
		}
	})
	c.routes = newRoutes(cfg.urls(), watched(cfg.HTTPClient), cfg.Now, connect.WithInterceptors(shown))
	if !cfg.DisableExchange {
		c.routes.wrapAll((&exchanges{c: c}).wrap)
	}
	c.leases = newLeases(c)
	return c, nil
}

// Name returns the name under which the service knows this client.
func (c *Client) Name() string { return c.cfg.Name }

// Leader returns the address of the node that requests go to: the leader's
// where it is known.
func (c *Client) Leader() string { return c.routes.address() }

// Close gives back everything the client holds and ends it. Calls that were
// not ended are ended as cancelled. It takes 5 seconds at most. An error says
// that something was not given back, or that this is not known: it is free when
// its lease has run out. Close says so again, however often it is called.
func (c *Client) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	return c.Shutdown(ctx)
}

// Shutdown is Close, bounded by ctx instead of 5 seconds.
func (c *Client) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		select {
		case <-c.shut:
			return c.shutErr
		case <-ctx.Done():
		}
		select {
		case <-c.shut: // whatever ctx says
			return c.shutErr
		default:
			return fmt.Errorf("client: closing: %w", context.Cause(ctx))
		}
	}
	c.closed = true
	c.mu.Unlock()
	defer close(c.shut)
	c.shutErr = c.shutdown(ctx)
	return c.shutErr
}

func (c *Client) shutdown(ctx context.Context) error {
	c.cancel(ErrClosed) // ends the operations under way, but those that give something back
	err := c.leases.giveBack(ctx)
	done := make(chan struct{})
	go func() {
		c.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		err = errors.Join(append(c.late, err)...) // nobody adds to them any more
	case <-ctx.Done():
		err = errors.Join(err, fmt.Errorf("client: closing: %w", context.Cause(ctx)))
	}
	for _, used := range []connect.HTTPClient{c.cfg.HTTPClient, c.cfg.streams} {
		if h, ok := used.(*http.Client); ok {
			h.CloseIdleConnections()
		}
	}
	return err
}

// enter notes that an operation is under way, for which Close waits; leave must
// be called at its end, if there is no error.
func (c *Client) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.work.Add(1)
	return nil
}

func (c *Client) leave() { c.work.Done() }

// cleanUp runs f behind a caller that does not wait for it, for as long as within,
// and no longer than Close takes. It must be called within an operation. Nobody is
// told of an error but who closes the client meanwhile: what is left lapses with its
// TTL.
func (c *Client) cleanUp(within time.Duration, f func(context.Context) error) {
	c.work.Go(func() {
		ctx, stop := linger(c.ctx, farewell)
		defer stop()
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		if err := f(ctx); err != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.closed {
				c.late = append(c.late, err)
			}
		}
	})
}
