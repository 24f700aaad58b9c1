package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

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

// healthChecker answers the gRPC health protocol: a service serves while the
// node is ready.
type healthChecker struct{ *Server }

var services = map[string]bool{
	"":                                  true,
	govnodev1connect.SessionServiceName: true,
	govnodev1connect.CallServiceName:    true,
	govnodev1connect.SlotServiceName:    true,
	govnodev1connect.PolicyServiceName:  true,
	govnodev1connect.CounterServiceName: true,
	govnodev1connect.ClusterServiceName: true,
}

// Check implements grpchealth.Checker.
func (h healthChecker) Check(ctx context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if !services[req.Service] {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("there is no service %q", req.Service))
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if h.ready(ctx) != nil {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}

// promLog passes what the metrics page cannot show to the log.
type promLog struct{ log *slog.Logger }

func (l promLog) Println(v ...any) { l.log.Error("metrics", slog.String("error", fmt.Sprint(v...))) }
