package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
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

// healthz says that the process answers.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
}

// readyz says whether the node should be sent work, and which check fails.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err := s.ready(ctx); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintf(w, "not ready: %v\n", err)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}

var errDrain = errors.New("draining: the node is shutting down")

// ready returns the check that fails.
func (s *Server) ready(ctx context.Context) error {
	if s.draining.Load() {
		return errDrain
	}
	if trouble := s.audit.log.failing(); s.cfg.AuditRequired && trouble != nil {
		return fmt.Errorf("audit: the log cannot be written and is required: %w", trouble)
	}
	if s.cfg.Cluster != nil {
		return s.cfg.Cluster.Ready(ctx)
	}
	if s.cfg.Ready != nil {
		return s.cfg.Ready(ctx)
	}
	return nil
}

// healthService answers the gRPC health protocol: a service serves while the
// node is ready.
type healthService struct{ *Server }

// healthServices are those that can be asked for; the empty name stands for the
// node.
var healthServices = func() map[string]bool {
	names := map[string]bool{"": true}
	for _, name := range serviceNames() {
		names[name] = true
	}
	return names
}()

// serviceNames are the services of the API in full.
func serviceNames() (names []string) {
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
func (h healthService) Check(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	if !healthServices[req.Service] {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("there is no service %q", req.Service))
	}
	return &healthv1.HealthCheckResponse{Status: h.status(ctx)}, nil
}

func (h healthService) status(ctx context.Context) healthv1.HealthCheckResponse_ServingStatus {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if h.ready(ctx) != nil {
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
func (h healthService) Watch(ctx context.Context, req *healthv1.HealthCheckRequest, stream *connect.ServerStream[healthv1.HealthCheckResponse]) error {
	if h.watchers.Add(1) > maxWatchers {
		h.watchers.Add(-1)
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%d watch the health of this node, which is the most; ask with Check", maxWatchers))
	}
	defer h.watchers.Add(-1)
	t := time.NewTicker(healthEvery)
	defer t.Stop()
	for last := healthv1.HealthCheckResponse_UNKNOWN; ; {
		// Before the status, which then says that it drains: the last word is
		// told before the end.
		ends := h.draining.Load()
		now := healthv1.HealthCheckResponse_SERVICE_UNKNOWN
		if healthServices[req.Service] {
			now = h.status(ctx)
		}
		if now != last && ctx.Err() == nil {
			if err := stream.Send(&healthv1.HealthCheckResponse{Status: now}); err != nil {
				return err
			}
			last = now
		}
		if ends {
			return connect.NewError(connect.CodeUnavailable, errDrain)
		}
		select {
		case <-t.C:
		case <-h.drained:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// promLog passes what the metrics page cannot show to the log.
type promLog struct{ log *slog.Logger }

func (l promLog) Println(v ...any) { l.log.Error("metrics", slog.String("error", fmt.Sprint(v...))) }
