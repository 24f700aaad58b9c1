package external

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A backend that ignores its context delays no decision, and only so many of
// them may be left running.
func TestStuckBackends(t *testing.T) {
	stuck := &stuckBackend{release: make(chan struct{})}
	log := slog.New(slog.DiscardHandler)
	for abandoned.Load() < maxAbandoned {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		_, err := AskBackend(ctx, stuck, BackendInput{}, log)
		require.ErrorIs(t, err, ErrBackendTime)
		cancel()
	}
	_, err := AskBackend(context.Background(), stuck, BackendInput{}, log)
	require.ErrorIs(t, err, errBackendBusy)
	close(stuck.release)
	require.Eventually(t, func() bool { return abandoned.Load() == 0 }, 5*time.Second, time.Millisecond)
}

type stuckBackend struct{ release chan struct{} }

func (b *stuckBackend) Name() string { return "stuck" }

func (b *stuckBackend) Evaluate(context.Context, BackendInput) (BackendDecision, error) {
	<-b.release
	return BackendDecision{}, nil
}

// Whoever fails has not allowed, whatever stands beside the error.
func TestABackendThatAllowsBesideAnError(t *testing.T) {
	d, err := AskBackend(context.Background(), torn{}, BackendInput{}, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "down")
	require.Equal(t, BackendDecision{}, d)
}

type torn struct{}

func (torn) Name() string { return "torn" }

func (torn) Evaluate(context.Context, BackendInput) (BackendDecision, error) {
	return BackendDecision{Allowed: true}, errors.New("down")
}
