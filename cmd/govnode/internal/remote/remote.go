package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cmd/govnode/internal/address"
	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/internal/pki"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// How commands ask a node, and what they say when it does not answer.

// namespaceHeader names the namespace of a request.
const namespaceHeader = "Govnode-Namespace"

// ClientName is the client in whose name the commands change things: ids of
// requests are remembered with it.
const ClientName = "cli"

// dialTimeout is how long an address may leave a connection attempt without an
// answer before the next one is tried.
const dialTimeout = 3 * time.Second

// A Node is the API of one node.
type Node struct {
	govnodev1connect.SessionServiceClient
	govnodev1connect.SlotServiceClient
	govnodev1connect.LimitServiceClient
	govnodev1connect.PolicyServiceClient
	govnodev1connect.CounterServiceClient
	govnodev1connect.DecisionServiceClient
	govnodev1connect.EventServiceClient
	govnodev1connect.ClusterServiceClient
	// Access says who may do what.
	Access govnodev1connect.AccessServiceClient
	// Approvals is not embedded: it has names that others have.
	Approvals govnodev1connect.ApprovalServiceClient
}

// NewNode reaches the API at an address, which is HOST:PORT or has a scheme.
func NewNode(client *http.Client, address string) Node {
	base := address
	if !strings.Contains(address, "://") {
		base = "http://" + address
	}
	return Node{
		govnodev1connect.NewSessionServiceClient(client, base),
		govnodev1connect.NewSlotServiceClient(client, base),
		govnodev1connect.NewLimitServiceClient(client, base),
		govnodev1connect.NewPolicyServiceClient(client, base),
		govnodev1connect.NewCounterServiceClient(client, base),
		govnodev1connect.NewDecisionServiceClient(client, base),
		govnodev1connect.NewEventServiceClient(client, base),
		govnodev1connect.NewClusterServiceClient(client, base),
		govnodev1connect.NewAccessServiceClient(client, base),
		govnodev1connect.NewApprovalServiceClient(client, base),
	}
}

// A Method is one of the API, such as Node.GetSession.
type Method[Q, A any] = func(Node, context.Context, Q) (A, error)

// Call sends a request as Ask does. One that says how long a node may keep it waiting
// leaves every node that time, beside what there is for an answer.
func Call[Q, A any](ctx context.Context, c *config.Config, method Method[Q, A], req Q) (A, error) {
	how := asking{final: IsAnswer}
	if w, ok := any(req).(interface{ GetWait() *durationpb.Duration }); ok {
		how.wait = w.GetWait().AsDuration()
	}
	return ask(ctx, c, how, func(ctx context.Context, r Node) (A, error) { return method(r, ctx, req) })
}

// Ask sends a request to the first node that takes it. A node that is not
// reached, or not able to answer, passes it on to the next address: what
// changes something carries an id, so that it cannot happen twice.
func Ask[T any](ctx context.Context, c *config.Config, send func(context.Context, Node) (T, error)) (T, error) {
	return AskUntil(ctx, c, IsAnswer, send)
}

// AskUntil is Ask where it is final that says whether an error ends the asking.
func AskUntil[T any](ctx context.Context, c *config.Config, final func(error) bool, send func(context.Context, Node) (T, error)) (T, error) {
	return ask(ctx, c, asking{final: final}, send)
}

// AskOnce is Ask for what carries no id and must not happen twice: no other node is asked
// where one may have done it. So that one has all the time there is.
func AskOnce[T any](ctx context.Context, c *config.Config, send func(context.Context, Node) (T, error)) (T, error) {
	return ask(ctx, c, asking{final: IsAnswer, once: true}, send)
}

// An asking is how several nodes are asked for one thing.
type asking struct {
	final func(error) bool // whether an error ends it
	wait  time.Duration    // how long a node may keep it waiting
	once  bool             // it must not be done twice
}

// share is how long a node may say nothing, of what is left for so many: one that hangs
// leaves the others their time.
func (a *asking) share(left time.Duration, nodes int) time.Duration {
	if nodes == 1 || a.once {
		return left
	}
	wait := min(a.wait, left)
	return wait + (left-wait)/time.Duration(nodes)
}

// ask asks one node after the other.
func ask[T any](ctx context.Context, c *config.Config, how asking, send func(context.Context, Node) (T, error)) (none T, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout+how.wait)
	defer cancel()
	client, err := NewClient(c)
	if err != nil {
		return none, err
	}
	defer client.CloseIdleConnections()
	addresses := Addresses(c)
	var errs []error
	open := false // whether one of them may have done it
	for i, address := range addresses {
		end, _ := ctx.Deadline()
		answer, sent, err := heard(ctx, how.share(time.Until(end), len(addresses)-i), func(ctx context.Context) (T, error) {
			return send(ctx, NewNode(client, address))
		})
		if err == nil {
			return answer, nil
		}
		open = open || sent && mayBeDone(address, err)
		errs = append(errs, Explain(address, err))
		if ctx.Err() != nil || how.final(err) || how.once && open {
			break
		}
	}
	if open {
		return none, &Unknown{errors.Join(errs...), "ask again"}
	}
	return none, errors.Join(errs...)
}

var (
	// errSilent says that a node has said nothing for as long as it may.
	errSilent = fmt.Errorf("no word of an answer: %w", context.DeadlineExceeded)
	// errUnreached says that there was no connection by then.
	errUnreached = errors.New("no connection in time")
)

// heard sends, and gives a node up that says nothing for so long. One whose answer has
// begun has all the time that there is: a snapshot comes in pieces. It reports whether
// something can have been sent.
func heard[T any](ctx context.Context, patience time.Duration, send func(context.Context) (T, error)) (answer T, sent bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(patience, func() { cancel(errSilent) })
	defer silent.Stop()
	var connected atomic.Bool
	answer, err = send(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:              func(httptrace.GotConnInfo) { connected.Store(true) },
		GotFirstResponseByte: func() { silent.Stop() },
	}))
	sent = connected.Load()
	switch late := ctx.Err() != nil; {
	case err == nil:
	case late && !sent && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		err = errUnreached
	case errors.Is(context.Cause(ctx), errSilent):
		err = errSilent
	}
	return answer, sent, err
}

// Addresses are the nodes that a command asks, as its settings name them: with
// https where they say so, or say by whom nodes are known. The local socket has one.
func Addresses(c *config.Config) []string {
	if c.Socket != "" {
		return []string{"localhost"}
	}
	list := address.Split(c.Addr)
	if c.TLSCA == "" && c.TLSCert == "" {
		return list
	}
	for i, a := range list {
		if !strings.Contains(a, "://") {
			list[i] = "https://" + a
		}
	}
	return list
}

// NewClient makes what reaches nodes in the namespace that is asked for.
func NewClient(c *config.Config) (*http.Client, error) {
	if _, err := Token(c); err != nil {
		return nil, err // before a node is asked: it has nothing to do with this
	}
	certificates, err := pki.Load(pki.Options{Cert: c.TLSCert, Key: c.TLSKey, CA: c.TLSCA})
	if err != nil {
		return nil, terminal.Unusable(fmt.Errorf("tls-cert, tls-key, tls-ca: %w", err))
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	dial := dialer.DialContext
	if c.Socket != "" {
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", c.Socket)
		}
	}
	return &http.Client{Transport: caller{c, &http.Transport{
		DialContext:         dial,
		TLSClientConfig:     certificates.ClientConfig("http/1.1"),
		TLSHandshakeTimeout: dialTimeout,
	}}}, nil
}

// IsAnswer reports whether another node would say the same.
func IsAnswer(err error) bool {
	return connect.IsWireError(err) && connect.CodeOf(err) != connect.CodeUnavailable
}

// A caller says with every request who asks, and in which namespace.
type caller struct {
	config *config.Config
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (n caller) RoundTrip(req *http.Request) (*http.Response, error) {
	c := n.config
	token, err := Token(c)
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	// A token has its namespace, and so have those on the local socket; who may do what
	// in another one is asked for in the request itself.
	known := token != "" || c.Socket != ""
	if !known || c.Given("namespace") && !strings.Contains(req.URL.Path, govnodev1connect.AccessServiceName) {
		req.Header.Set(namespaceHeader, c.Namespace)
	}
	return n.next.RoundTrip(req)
}

// CloseIdleConnections lets http.Client reach the transport.
func (n caller) CloseIdleConnections() {
	if t, ok := n.next.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// Explain says in one line why there is no answer and what to do.
func Explain(address string, err error) error {
	var dial *net.OpError
	var refused *connect.Error
	if secured := explainTLS(address, err); secured != nil {
		return secured
	}
	switch {
	case errors.Is(err, errUnreached):
		return fmt.Errorf("cannot reach %s in time: give it longer with --timeout, or name another node with --addr", address)
	case errors.As(err, &dial) && dial.Net == "unix":
		return fmt.Errorf("no node listens on the socket %s: %w: it is in the data folder of a node that runs with --auth tokens, and open to its own user", dial.Addr, dial.Err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no node listens on %s: start one with `govnode dev`, or name another with --addr", address)
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("cannot reach %s: %w: name another node with --addr", address, dial.Err)
	case errors.Is(err, context.DeadlineExceeded) || connect.CodeOf(err) == connect.CodeDeadlineExceeded:
		return fmt.Errorf("%s did not answer in time: give it longer with --timeout, or name another node with --addr", address)
	case errors.As(err, &refused) && !connect.IsWireError(err) && strings.HasPrefix(address, "https://"):
		// Who is refused for his certificate has made his part of the handshake by
		// then, and his request may meet the end of the connection before the reason.
		return fmt.Errorf("lost %s before it answered: %w: it may want a certificate of its cluster, give one with --tls-cert and --tls-key. Else name another node with --addr", address, refused.Unwrap())
	case errors.As(err, &refused) && !connect.IsWireError(err):
		return fmt.Errorf("lost %s before it answered: %w: name another node with --addr", address, refused.Unwrap())
	case errors.As(err, &refused) && refused.Code() == connect.CodeUnauthenticated:
		return fmt.Errorf("%s: log in with `govnode login`, or set GOVNODE_TOKEN; the first token of a cluster is made with `govnode token create --socket DATA/govnode.sock`", refused.Message())
	case errors.As(err, &refused):
		return fmt.Errorf("%s (%s)", saidBy(refused), strings.Join(append([]string{refused.Code().String()}, reasons(refused)...), ", "))
	}
	return err
}

// saidBy is what a node says in an error, without its advice for those who choose their
// ids themselves: how somebody at a command line asks again is said with the outcome.
func saidBy(err *connect.Error) string {
	if slices.Contains(reasons(err), reasonOutcomeUnknown) {
		return strings.TrimPrefix(strings.Replace(err.Message(), "; send it again with the same id", "", 1), "it is not known whether this was applied: ")
	}
	return strings.Replace(err.Message(), "send it again with the same id", "ask again", 1)
}

// explainTLS is Explain for what certificates and the lack of them lead to, nil if
// it is something else.
func explainTLS(address string, err error) error {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var bad *tls.CertificateVerificationError
	var alert *net.OpError
	bare := strings.TrimPrefix(address, "https://")
	switch {
	case errors.As(err, &unknown):
		return fmt.Errorf("the certificate of %s is signed by somebody who is not trusted here: name the ca.crt of the cluster with --tls-ca", address)
	case errors.As(err, &host):
		return fmt.Errorf("the certificate of %s is for another host (%w): name the node as its certificate does, or make that with all its --hosts", address, host)
	case errors.As(err, &bad):
		return fmt.Errorf("the certificate of %s cannot be trusted: %w", address, bad.Err)
	case errors.Is(err, http.ErrSchemeMismatch) || strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%s does not speak TLS: leave --tls-ca and --tls-cert out, or write http://%s", address, bare)
	case errors.As(err, &alert) && alert.Op == "remote error":
		return fmt.Errorf("%s refused the connection (%w): it may want a certificate of its cluster, give one with --tls-cert and --tls-key", address, alert.Err)
	case connect.CodeOf(err) == connect.CodeInternal && strings.Contains(err.Error(), "400 Bad Request") && !strings.HasPrefix(address, "https://"):
		return fmt.Errorf("%s does not answer as a node without TLS does: if it has TLS, name the ca.crt of the cluster with --tls-ca (%w)", address, err)
	}
	return nil
}

// reasons are the machine-readable reasons in an error, such as POLICY_PINNED.
func reasons(err *connect.Error) []string {
	var list []string
	for _, d := range err.Details() {
		message, decodeErr := d.Value()
		if decodeErr != nil {
			continue // a detail of a newer version
		}
		if info, ok := message.(*errdetails.ErrorInfo); ok {
			list = append(list, info.Reason)
		}
	}
	return list
}
