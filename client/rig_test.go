package client_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// A fault is what happens to one request on its way.
type fault int

const (
	none        fault = iota
	refuseDial        // no connection comes about
	dropRequest       // the connection breaks before the node has read it
	dropAnswer        // the connection breaks after the node has acted
	badGateway        // something in between answers 503
	hang              // no answer until the caller gives up
	breakLater        // the connection breaks after a second, if there is no answer before
	delay             // the answer is a second under way
)

// A wire carries requests to handlers in this process, by host, and breaks what
// it is told to break. It opens no sockets, so that it works in virtual time.
type wire struct {
	hosts map[string]http.Handler
	fault func(host, method string) fault // nil: none

	mu   sync.Mutex
	sent []string // "host method" of each request that was dialled
}

// on breaks the requests of some methods.
func on(f fault, methods ...string) func(host, method string) fault {
	return func(_, method string) fault {
		if slices.Contains(methods, method) {
			return f
		}
		return none
	}
}

// while breaks all requests as long as it is told to.
func while(broken *atomic.Bool, f fault) func(host, method string) fault {
	return func(string, string) fault {
		if broken.Load() {
			return f
		}
		return none
	}
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	method := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	w.mu.Lock()
	w.sent = append(w.sent, r.URL.Host+" "+method)
	fault := w.fault
	w.mu.Unlock()
	f := none
	if fault != nil {
		f = fault(r.URL.Host, method)
	}
	h := w.hosts[r.URL.Host]
	if h == nil || f == refuseDial {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	switch f {
	case dropRequest:
		return nil, io.ErrUnexpectedEOF
	case badGateway:
		rec := httptest.NewRecorder()
		http.Error(rec, "no healthy upstream", http.StatusServiceUnavailable)
		return rec.Result(), nil
	case hang:
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	}
	if f == breakLater {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		r = r.WithContext(ctx)
	}
	rec := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.ServeHTTP(rec, r)
	}()
	select {
	case <-done:
	case <-r.Context().Done():
		<-done // a handler ends with its request
		if f == breakLater {
			return nil, io.ErrUnexpectedEOF
		}
		return nil, context.Cause(r.Context())
	}
	switch f {
	case dropAnswer:
		return nil, io.ErrUnexpectedEOF
	case delay:
		time.Sleep(time.Second) // of virtual time
	}
	return rec.Result(), nil
}

// count returns how often a method was sent, to any host.
func (w *wire) count(method string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sent {
		if strings.HasSuffix(s, " "+method) {
			n++
		}
	}
	return n
}

// A node answers as its fields say; what has no field is unimplemented.
type node struct {
	govnodev1connect.UnimplementedCallServiceHandler
	govnodev1connect.UnimplementedClusterServiceHandler
	govnodev1connect.UnimplementedSessionServiceHandler
	govnodev1connect.UnimplementedSlotServiceHandler

	status  func() (*govnodev1.StatusResponse, error)
	session func(*govnodev1.GetSessionRequest) (*govnodev1.GetSessionResponse, error)
	acquire func(context.Context, *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error)
	renew   func(context.Context, *govnodev1.RenewSlotsRequest) (*govnodev1.RenewSlotsResponse, error)
	release func(*govnodev1.ReleaseSlotRequest) (*govnodev1.ReleaseSlotResponse, error)
	begin   func(context.Context, *govnodev1.BeginCallRequest) (*govnodev1.BeginCallResponse, error)
	end     func(*govnodev1.EndCallRequest) (*govnodev1.EndCallResponse, error)
	cancel  func(*govnodev1.CancelCallRequest) (*govnodev1.CancelCallResponse, error)
	batch   func(*govnodev1.BatchCallsRequest) (*govnodev1.BatchCallsResponse, error)
	put     func(*govnodev1.PutPoolRequest) (*govnodev1.PutPoolResponse, error)
}

func (n *node) Status(context.Context, *govnodev1.StatusRequest) (*govnodev1.StatusResponse, error) {
	if n.status == nil {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("no leader"))
	}
	return n.status()
}

func (n *node) GetSession(_ context.Context, r *govnodev1.GetSessionRequest) (*govnodev1.GetSessionResponse, error) {
	return n.session(r)
}

func (n *node) AcquireSlot(ctx context.Context, r *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
	return n.acquire(ctx, r)
}

func (n *node) RenewSlots(ctx context.Context, r *govnodev1.RenewSlotsRequest) (*govnodev1.RenewSlotsResponse, error) {
	return n.renew(ctx, r)
}

func (n *node) ReleaseSlot(_ context.Context, r *govnodev1.ReleaseSlotRequest) (*govnodev1.ReleaseSlotResponse, error) {
	return n.release(r)
}

func (n *node) BeginCall(ctx context.Context, r *govnodev1.BeginCallRequest) (*govnodev1.BeginCallResponse, error) {
	return n.begin(ctx, r)
}

func (n *node) EndCall(_ context.Context, r *govnodev1.EndCallRequest) (*govnodev1.EndCallResponse, error) {
	return n.end(r)
}

func (n *node) CancelCall(ctx context.Context, r *govnodev1.CancelCallRequest) (*govnodev1.CancelCallResponse, error) {
	if n.cancel == nil {
		return n.UnimplementedCallServiceHandler.CancelCall(ctx, r)
	}
	return n.cancel(r)
}

func (n *node) BatchCalls(_ context.Context, r *govnodev1.BatchCallsRequest) (*govnodev1.BatchCallsResponse, error) {
	return n.batch(r)
}

func (n *node) PutPool(_ context.Context, r *govnodev1.PutPoolRequest) (*govnodev1.PutPoolResponse, error) {
	return n.put(r)
}

func (n *node) handler() http.Handler { return handlerOf(n) }

// handlerOf serves all that the client asks of a node.
func handlerOf(n interface {
	govnodev1connect.CallServiceHandler
	govnodev1connect.ClusterServiceHandler
	govnodev1connect.SessionServiceHandler
	govnodev1connect.SlotServiceHandler
}) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(govnodev1connect.NewCallServiceHandler(n))
	mux.Handle(govnodev1connect.NewClusterServiceHandler(n))
	mux.Handle(govnodev1connect.NewSessionServiceHandler(n))
	mux.Handle(govnodev1connect.NewSlotServiceHandler(n))
	return mux
}

// granting answers every request for a slot with one, every renewal with another
// full TTL, and every release.
func granting(ttl time.Duration) *node {
	n := &node{}
	n.acquire = func(_ context.Context, r *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
		return &govnodev1.AcquireSlotResponse{Outcome: govnodev1.Outcome_OUTCOME_ADMITTED, Token: 7, Ttl: durationpb.New(ttl)}, nil
	}
	n.renew = func(_ context.Context, r *govnodev1.RenewSlotsRequest) (*govnodev1.RenewSlotsResponse, error) {
		res := &govnodev1.RenewSlotsResponse{}
		for _, s := range r.GetSlots() {
			res.Results = append(res.Results, &govnodev1.SlotRenewal{Slot: s, Outcome: govnodev1.Outcome_OUTCOME_RENEWED, Ttl: r.GetTtl()})
		}
		return res, nil
	}
	n.release = func(*govnodev1.ReleaseSlotRequest) (*govnodev1.ReleaseSlotResponse, error) {
		return &govnodev1.ReleaseSlotResponse{Outcome: govnodev1.Outcome_OUTCOME_RELEASED}, nil
	}
	n.begin = func(_ context.Context, r *govnodev1.BeginCallRequest) (*govnodev1.BeginCallResponse, error) {
		return &govnodev1.BeginCallResponse{
			Outcome: govnodev1.Outcome_OUTCOME_ADMITTED,
			Grants:  []*govnodev1.Grant{{Pool: "policy/p", Token: 3, Ttl: durationpb.New(ttl)}},
		}, nil
	}
	n.end = func(*govnodev1.EndCallRequest) (*govnodev1.EndCallResponse, error) {
		return &govnodev1.EndCallResponse{Outcome: govnodev1.Outcome_OUTCOME_ENDED}, nil
	}
	n.batch = func(r *govnodev1.BatchCallsRequest) (*govnodev1.BatchCallsResponse, error) {
		return allGivenBack(r), nil
	}
	return n
}

// allGivenBack answers what Close sends.
func allGivenBack(r *govnodev1.BatchCallsRequest) *govnodev1.BatchCallsResponse {
	res := &govnodev1.BatchCallsResponse{}
	for _, op := range r.GetOperations() {
		res.Results = append(res.Results, givenBack(op))
	}
	return res
}

func givenBack(op *govnodev1.Operation) *govnodev1.OperationResult {
	if op.GetEnd() != nil {
		return &govnodev1.OperationResult{Tag: op.GetTag(), Result: &govnodev1.OperationResult_End{End: &govnodev1.EndCallResponse{Outcome: govnodev1.Outcome_OUTCOME_ENDED}}}
	}
	return &govnodev1.OperationResult{Tag: op.GetTag(), Result: &govnodev1.OperationResult_Release{Release: &govnodev1.ReleaseSlotResponse{Outcome: govnodev1.Outcome_OUTCOME_RELEASED}}}
}

// objection is an error as a node makes it, with what it says beside the reason.
func objection(code connect.Code, reason string, meta map[string]string, more ...proto.Message) error {
	err := connect.NewError(code, errors.New("as the test wants it"))
	for _, m := range append([]proto.Message{&errdetails.ErrorInfo{Reason: reason, Domain: "govnode", Metadata: meta}}, more...) {
		detail, e := connect.NewErrorDetail(m)
		if e != nil {
			panic(e)
		}
		err.AddDetail(detail)
	}
	return err
}

// connected returns a client of the wire's hosts, in the order given.
func connected(t *testing.T, w *wire, hosts []string, change ...func(*client.Config)) *client.Client {
	t.Helper()
	cfg := client.Config{
		Addresses: hosts, HTTPClient: &http.Client{Transport: w}, Name: "test",
		Logger: slog.New(slog.DiscardHandler), Random: func() float64 { return 0.5 },
		DisableExchange: true, // the wire has no streams
	}
	for _, f := range change {
		f(&cfg)
	}
	c, err := client.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}
