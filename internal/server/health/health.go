package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	v1 "example.com/govnode/proto/govnode/v1"
	healthv1 "example.com/govnode/proto/grpc/health/v1"
)

// What probes are told: that the process is alive, whether it should be sent work,
// and the same over gRPC, once or as a stream.

// readyTimeout bounds the checks of /readyz: a probe wants an answer.
const readyTimeout = 2 * time.Second

// Probes answers probes. The gRPC health protocol says of a service that it serves
// while the node is ready.
type Probes struct {
	// Ready returns the check that fails.
	Ready func(context.Context) error
	// Draining reports whether the node has begun to drain, and Drained is closed
	// then.
	Draining func() bool
	Drained  <-chan struct{}

	watchers atomic.Int64
}

// ErrDrain is why a node that drains is not ready.
var ErrDrain = errors.New("draining: the node is shutting down")

// Healthz says that the process answers.
func (*Probes) Healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
}

// Readyz says whether the node should be sent work, and which check fails.
func (p *Probes) Readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err := p.Ready(ctx); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintf(w, "not ready: %v\n", err)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}

// services are those that can be asked for; the empty name stands for the
// node.
var services = func() map[string]bool {
	names := map[string]bool{"": true}
	for _, name := range ServiceNames() {
		names[name] = true
	}
	return names
}()

// ServiceNames are the services of the API in full.
func ServiceNames() (names []string) {
	protoregistry.GlobalFiles.RangeFilesByPackage(v1.File_govnode_v1_common_proto.Package(), func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			names = append(names, string(f.Services().Get(i).FullName()))
		}
		return true
	})
	slices.Sort(names)
	return names
}

// Check implements healthv1connect.HealthHandler.
func (p *Probes) Check(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	if !services[req.Service] {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("there is no service %q", req.Service))
	}
	return &healthv1.HealthCheckResponse{Status: p.status(ctx)}, nil
}

func (p *Probes) status(ctx context.Context) healthv1.HealthCheckResponse_ServingStatus {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if p.Ready(ctx) != nil {
		return healthv1.HealthCheckResponse_NOT_SERVING
	}
	return healthv1.HealthCheckResponse_SERVING
}

const (
	// healthEvery is how often Watch looks.
	healthEvery = time.Second
	// maxWatchers bounds how many watch at once: each asks for a check of its own.
	maxWatchers = 256
)

// Watch implements healthv1connect.HealthHandler. It ends when the node drains,
// after it has said that it does not serve any more.
func (p *Probes) Watch(ctx context.Context, req *healthv1.HealthCheckRequest, stream *connect.ServerStream[healthv1.HealthCheckResponse]) error {
	if p.watchers.Add(1) > maxWatchers {
		p.watchers.Add(-1)
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%d watch the health of this node, which is the most; ask with Check", maxWatchers))
	}
	defer p.watchers.Add(-1)
	t := time.NewTicker(healthEvery)
	defer t.Stop()
	for last := healthv1.HealthCheckResponse_UNKNOWN; ; {
		// Before the status, which then says that it drains: the last word is
		// told before the end.
		ends := p.Draining()
		now := healthv1.HealthCheckResponse_SERVICE_UNKNOWN
		if services[req.Service] {
			now = p.status(ctx)
		}
		if now != last && ctx.Err() == nil {
			if err := stream.Send(&healthv1.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			last = now
		}
		if ends {
			return connect.NewError(connect.CodeUnavailable, ErrDrain)
		}
		select {
		case <-t.C:
		case <-p.Drained:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
