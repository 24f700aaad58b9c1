package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
)

// What a client shows of itself: a token with every request.

const authorizationHeader = "Authorization"

// credentials sets the headers that every request has.
type credentials struct {
	namespace string                 // empty: that of the token
	static    string                 // Config.Token
	token     func() (string, error) // Config.TokenSource

	mu      sync.Mutex
	drawing *draw // the newest that is under way
}

// errNoToken marks what waited in vain for a token. It says nothing about the node that was
// to be asked.
var errNoToken = errors.New("no token in time")

func (k *credentials) put(ctx context.Context, h http.Header) error {
	if k.namespace != "" {
		h.Set("Govnode-Namespace", k.namespace)
	}
	token := k.static
	var err error
	switch {
	case k.token != nil:
		token, err = k.draw(ctx)
	case token == "":
		return nil
	}
	if err != nil && ctx.Err() != nil {
		return notSent(fmt.Errorf("%w: %w", errNoToken, err))
	}
	if err != nil {
		// Nothing is sent without it, and another node would not know more.
		return connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("client: TokenSource: %w", err))
	}
	h.Set(authorizationHeader, "Bearer "+token)
	return nil
}

// A draw is one call of the source, of which all get the token who ask while it is under way.
type draw struct {
	began time.Time
	done  chan struct{} // closed behind token and err
	token string
	err   error
}

// drawShared is for how long others wait for a draw: behind that the source is asked again,
// beside the call that hangs.
const drawShared = 10 * time.Second

// draw asks the source, which has no context and may hang: nobody waits for it for longer
// than he likes.
func (k *credentials) draw(ctx context.Context) (string, error) {
	k.mu.Lock()
	d := k.drawing
	if d == nil || time.Since(d.began) > drawShared {
		d = &draw{began: time.Now(), done: make(chan struct{})}
		k.drawing = d
		go k.ask(d)
	}
	k.mu.Unlock()
	select {
	case <-d.done:
		return d.token, d.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

func (k *credentials) ask(d *draw) {
	defer func() {
		if p := recover(); p != nil { // on a goroutine of ours nobody else could
			d.err = fmt.Errorf("it panicked: %v", p)
		}
		k.mu.Lock()
		if k.drawing == d {
			k.drawing = nil
		}
		k.mu.Unlock()
		close(d.done)
	}()
	d.token, d.err = k.token()
}

// checkToken holds Token, TokenSource and Namespace to each other. The namespace of an
// opaque token stands in its text, gn_NAMESPACE.ID.SECRET.
func (c *Config) checkToken() error {
	if c.Token != "" && c.TokenSource != nil {
		return errors.New("client: Token: stands beside TokenSource; give one of the two")
	}
	if !tokenText(c.Token) {
		return errors.New("client: Token: has a character in it that no token has; give its text alone")
	}
	ns := tokenNamespace(c.Token)
	switch {
	case ns == "":
		return nil
	case c.Namespace == "":
		c.Namespace = ns
	case c.Namespace != ns:
		return fmt.Errorf("client: Namespace: is %q, and the token is of the namespace %q; leave Namespace out, or use a token of that one", c.Namespace, ns)
	}
	return nil
}

// tokenText reports whether a text has nothing in it that no token has.
func tokenText(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// tokenNamespace is the namespace in the text of an opaque token; empty of others.
func tokenNamespace(token string) string {
	rest, ok := strings.CutPrefix(token, "gn_")
	if !ok {
		return ""
	}
	for range 2 {
		i := strings.LastIndexByte(rest, '.')
		if i < 1 {
			return ""
		}
		rest = rest[:i]
	}
	return rest
}
