package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/internal/pki"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// How a node becomes a member by a join token: it asks the API of a member itself, and
// is then let in as one that an operator has added.

// enlistEvery is how often the members are asked again.
const enlistEvery = 200 * time.Millisecond

type helloFunc = func(ctx context.Context, address string) (node, api string, err error)

// enlistment is what a node with an empty folder does before it joins; nil without a
// join token. The token is read then and not before: later starts do without.
func enlistment(c *config.Config, secure *pki.Source, raftAddress string, log *slog.Logger) func(context.Context, helloFunc) error {
	if !c.Joins() {
		return nil
	}
	return func(ctx context.Context, hello helloFunc) error {
		text, err := remote.JoinText(c)
		if err != nil {
			return err
		}
		token, err := remote.ParseJoinToken(text)
		if err != nil {
			return err
		}
		if err := fits(&token, secure); err != nil {
			return err
		}
		e := &enlister{config: c, secure: secure, token: token, address: raftAddress}
		for {
			node, err := e.askAll(ctx, hello)
			if err == nil {
				log.Info("a member let this node in by its join token; the token lets no other node in", "node", c.Node, "member", node, "token", token.ID)
				return nil
			}
			if final(err) {
				return err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("no member took it: %w; start the node again with the same token, which is this node's if one has", err)
			case <-time.After(enlistEvery):
			}
		}
	}
}

// fits refuses a token of another cluster before anybody is asked.
func fits(t *remote.JoinToken, secure *pki.Source) error {
	switch {
	case secure == nil && len(t.Authority) > 0:
		return errors.New("the cluster of the token has TLS; give --tls-cert, --tls-key and --tls-ca")
	case secure != nil && len(t.Authority) == 0:
		return errors.New("the cluster of the token has no TLS, and this node has; the token is of another cluster, or was made before TLS was switched on")
	case secure != nil && !secure.Trusts(t.Authority):
		return errors.New("none of the authorities in --tls-ca is the one of the token; it is of another cluster, or the file has to be that of the members")
	}
	return nil
}

// An enlister asks members to let this node in.
type enlister struct {
	config  *config.Config
	secure  *pki.Source
	token   remote.JoinToken
	address string // of this node, for Raft
}

// askAll asks one member after the other until one has answered for good.
func (e *enlister) askAll(ctx context.Context, hello helloFunc) (node string, err error) {
	for _, a := range e.config.Join {
		if a == e.address {
			continue
		}
		var api string
		if node, api, err = hello(ctx, a); err != nil {
			continue
		}
		if err = e.ask(ctx, node, api); err == nil || final(err) {
			return node, err
		}
	}
	if err == nil {
		err = errors.New("--join names nobody but this node")
	}
	return "", err
}

// ask has a member add this node, without a vote: it gets that when it has caught up. It
// may be asked again, and has the same answer.
func (e *enlister) ask(ctx context.Context, node, api string) error {
	ctx, cancel := context.WithTimeout(ctx, e.config.RequestTimeout)
	defer cancel()
	transport, base := new(http.Transport), "http://"+api
	if e.secure != nil {
		base = "https://" + api
		transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return e.secure.DialPinned(ctx, network, address, e.token.Authority, node)
		}
	}
	client := &http.Client{Transport: bearer{e.token.Bearer(), transport}, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // the token goes to this member and nowhere else
	}}
	defer transport.CloseIdleConnections()
	_, err := remote.NewNode(client, base).AddNode(ctx, &govnodev1.AddNodeRequest{Node: e.config.Node, Address: e.address, Nonvoter: true})
	if err != nil {
		return fmt.Errorf("%s at %s: %w", node, api, err)
	}
	return nil
}

// A bearer shows a token with each request.
type bearer struct {
	token string
	next  *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// final reports whether a member has refused, and others would too.
func final(err error) bool {
	if foreign := (*pki.Stranger)(nil); errors.As(err, &foreign) {
		return true
	}
	var e *connect.Error
	if !errors.As(err, &e) || !connect.IsWireError(err) {
		return false
	}
	switch e.Code() {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeUnimplemented:
		return true
	}
	return false
}
