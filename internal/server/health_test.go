package server_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server"
	healthv1 "example.com/govnode/proto/grpc/health/v1"
	"example.com/govnode/proto/grpc/health/v1/healthv1connect"
)

// Watch tells of each change of readiness, and ends when the node drains. Which
// protocol asks makes no difference.
func TestHealthIsWatched(t *testing.T) {
	for name, opts := range map[string][]connect.ClientOption{"connect": nil, "grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()}} {
		t.Run(name, func(t *testing.T) {
			var broken atomic.Bool
			n := start(t, func(c *server.Config) {
				c.Ready = func(context.Context) error {
					if broken.Load() {
						return errors.New("in quarantine")
					}
					return nil
				}
			})
			health := healthv1connect.NewHealthClient(n.h2Client(), n.url, opts...)
			watch := func(service string) *connect.ServerStreamForClient[healthv1.HealthCheckResponse] {
				s, err := health.Watch(n.ctx(), &healthv1.HealthCheckRequest{Service: service})
				require.NoError(t, err)
				t.Cleanup(func() { _ = s.Close() })
				return s
			}
			of, unknown := watch("govnode.v1.CallService"), watch("nobody")
			told := func(s *connect.ServerStreamForClient[healthv1.HealthCheckResponse], want healthv1.HealthCheckResponse_ServingStatus) {
				t.Helper()
				require.True(t, s.Receive(), "%v", s.Err())
				require.Equal(t, want, s.Msg().GetStatus())
			}
			told(of, healthv1.HealthCheckResponse_SERVING)
			told(unknown, healthv1.HealthCheckResponse_SERVICE_UNKNOWN)
			broken.Store(true)
			told(of, healthv1.HealthCheckResponse_NOT_SERVING)
			broken.Store(false)
			told(of, healthv1.HealthCheckResponse_SERVING)
			require.NoError(t, n.server.Drain(n.ctx()))
			told(of, healthv1.HealthCheckResponse_NOT_SERVING)
			require.False(t, of.Receive())
			require.Equal(t, connect.CodeUnavailable, connect.CodeOf(of.Err()), "%v", of.Err())
			require.False(t, unknown.Receive())
		})
	}
}

// Who asks for health shows no token, so little is read of what anybody may send.
func TestHealthReadsLittle(t *testing.T) {
	n := start(t)
	for _, opts := range [][]connect.ClientOption{nil, {connect.WithGRPC()}, {connect.WithSendGzip()}} {
		_, err := healthv1connect.NewHealthClient(n.h2Client(), n.url, opts...).Check(n.ctx(), &healthv1.HealthCheckRequest{Service: strings.Repeat("x", 257<<10)})
		require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err), "%v", err)
	}
}

// A drain that begins while the status is worked out is told of as well.
func TestADrainDuringALookIsWatched(t *testing.T) {
	var n *node
	n = start(t, func(c *server.Config) {
		c.Ready = func(ctx context.Context) error { return n.server.Drain(ctx) }
	})
	s, err := healthv1connect.NewHealthClient(n.h2Client(), n.url, connect.WithGRPC()).Watch(n.ctx(), &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	defer func() { _ = s.Close() }()
	for _, want := range []healthv1.HealthCheckResponse_ServingStatus{healthv1.HealthCheckResponse_SERVING, healthv1.HealthCheckResponse_NOT_SERVING} {
		require.True(t, s.Receive(), "%v", s.Err())
		require.Equal(t, want, s.Msg().GetStatus())
	}
	require.False(t, s.Receive())
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(s.Err()), "%v", s.Err())
}

// The schema can be asked for where that is allowed, and nowhere else.
func TestReflection(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		n := start(t, func(c *server.Config) { c.Reflection = allowed })
		stream := grpcreflect.NewClient(n.h2Client(), n.url, connect.WithGRPC()).NewStream(n.ctx())
		services, err := stream.ListServices()
		if !allowed {
			require.Equal(t, connect.CodeUnimplemented, connect.CodeOf(err), "%v", err)
			continue
		}
		require.NoError(t, err)
		require.Len(t, services, 12)
		for _, s := range services {
			files, err := stream.FileContainingSymbol(s)
			require.NoError(t, err)
			require.NotEmpty(t, files, s)
		}
		_, err = stream.Close()
		require.NoError(t, err)
	}
}
