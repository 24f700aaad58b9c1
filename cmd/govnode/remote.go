package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// namespaceHeader names the namespace of a request.
const namespaceHeader = "Govnode-Namespace"

// cliName is the client in whose name the commands change things: ids of
// requests are remembered with it.
const cliName = "cli"

// dialTimeout is how long an address may leave a connection attempt without an
// answer before the next one is tried.
const dialTimeout = 3 * time.Second

// A remote is the API of one node.
type remote struct {
	sessions  govnodev1connect.SessionServiceClient
	slots     govnodev1connect.SlotServiceClient
	policies  govnodev1connect.PolicyServiceClient
	decisions govnodev1connect.DecisionServiceClient
	events    govnodev1connect.EventServiceClient
	cluster   govnodev1connect.ClusterServiceClient
}

func newRemote(client *http.Client, address string) remote {
	base := "http://" + address
	return remote{
		sessions:  govnodev1connect.NewSessionServiceClient(client, base),
		slots:     govnodev1connect.NewSlotServiceClient(client, base),
		policies:  govnodev1connect.NewPolicyServiceClient(client, base),
		decisions: govnodev1connect.NewDecisionServiceClient(client, base),
		events:    govnodev1connect.NewEventServiceClient(client, base),
		cluster:   govnodev1connect.NewClusterServiceClient(client, base),
	}
}

// ask sends a request to the first node that takes it. A node that is not
// reached, or not able to answer, passes it on to the next address: what
// changes something carries an id, so that it cannot happen twice.
func ask[T any](ctx context.Context, c *Config, send func(context.Context, remote) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	client := newClient(c)
	defer client.CloseIdleConnections()
	var errs []error
	for _, address := range splitList(c.Addr) {
		answer, err := send(ctx, newRemote(client, address))
		if err == nil {
			return answer, nil
		}
		errs = append(errs, explain(address, err))
		if ctx.Err() != nil || isAnswer(err) {
			break
		}
	}
	var none T
	return none, errors.Join(errs...)
}

// newClient makes what reaches nodes in the namespace that is asked for.
func newClient(c *Config) *http.Client {
	return &http.Client{Transport: namespaced{c.Namespace, &http.Transport{
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
	}}}
}

// isAnswer reports whether another node would say the same.
func isAnswer(err error) bool {
	return connect.IsWireError(err) && connect.CodeOf(err) != connect.CodeUnavailable
}

// namespaced adds the namespace to every request.
type namespaced struct {
	namespace string
	next      http.RoundTripper
}

func (n namespaced) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set(namespaceHeader, n.namespace)
	return n.next.RoundTrip(req)
}

// CloseIdleConnections lets http.Client reach the transport.
func (n namespaced) CloseIdleConnections() {
	if t, ok := n.next.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// explain says in one line why there is no answer and what to do.
func explain(address string, err error) error {
	var dial *net.OpError
	var refused *connect.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no node listens on %s: start one with `govnode dev`, or name another with --addr", address)
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("cannot reach %s: %w: name another node with --addr", address, dial.Err)
	case errors.Is(err, context.DeadlineExceeded) || connect.CodeOf(err) == connect.CodeDeadlineExceeded:
		return fmt.Errorf("%s did not answer in time: give it longer with --timeout, or name another node with --addr. It is not known whether a change was made; ask again", address)
	case errors.As(err, &refused) && !connect.IsWireError(err):
		return fmt.Errorf("lost %s before it answered: %w: it is not known whether a change was made; ask again, or name another node with --addr", address, refused.Unwrap())
	case errors.As(err, &refused):
		return fmt.Errorf("%s (%s)", refused.Message(), strings.Join(append([]string{refused.Code().String()}, reasons(refused)...), ", "))
	}
	return err
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

// newRequestID draws the id of one change.
func newRequestID() string { return ulid.Make().String() }

// show prints an answer: as JSON if that is asked for, else as text makes it.
func show(w io.Writer, c *Config, answer proto.Message, text func(io.Writer) error) error {
	if c.Output == "json" {
		return printJSON(w, answer)
	}
	return text(w)
}
