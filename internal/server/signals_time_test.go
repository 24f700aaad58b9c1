package server

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

func (s *Server) signalAll(t *testing.T, name string) {
	t.Helper()
	_, err := sessionService{s}.Signal(t.Context(), &v1.SignalRequest{Target: &v1.SignalRequest_Everything{Everything: true}, Signal: name})
	require.NoError(t, err)
}

func (s *Server) attempts(t *testing.T) int32 {
	t.Helper()
	res, err := sessionService{s}.GetSession(t.Context(), &v1.GetSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	return res.Session.Attempts
}

// tried is a call that was asked for on a goroutine of its own.
type tried struct {
	res  *v1.BeginCallResponse
	err  error
	over atomic.Bool
}

func (s *Server) tries(t *testing.T, call string, wait time.Duration) *tried {
	x := &tried{}
	go func() {
		x.res, x.err = s.try(t, call, wait, time.Hour)
		x.over.Store(true)
	}()
	synctest.Wait()
	return x
}

func (x *tried) outcome(t *testing.T) v1.Outcome {
	t.Helper()
	synctest.Wait()
	require.True(t, x.over.Load())
	require.NoError(t, x.err)
	return x.res.Outcome
}

// A call that waits while it is stopped goes on by itself, without being asked for
// again; at the end of its wait it is answered. Nothing of it is stored meanwhile.
func TestHeldUntilContinue(t *testing.T) {
	withServer(t, func(t *testing.T, s *Server) {
		s.signalAll(t, "STOP")
		held, late := s.tries(t, "held", 5*time.Minute), s.tries(t, "late", 3*time.Second)
		time.Sleep(3 * time.Second)
		require.Equal(t, v1.Outcome_OUTCOME_STOPPED, late.outcome(t))
		time.Sleep(4 * time.Minute)
		require.False(t, held.over.Load())
		require.Zero(t, s.attempts(t))
		s.signalAll(t, "CONTINUE")
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, held.outcome(t), "at once, by the change")
		require.EqualValues(t, 1, s.attempts(t))
	})
}

// What is left of the wait is for the queue, once the STOP is over.
func TestHeldThenQueued(t *testing.T) {
	withServer(t, func(t *testing.T, s *Server) {
		_, err := s.try(t, "runs", 0, time.Hour)
		require.NoError(t, err)
		s.signalAll(t, "STOP")
		begun := time.Now()
		held := s.tries(t, "held", time.Minute)
		time.Sleep(20 * time.Second)
		s.signalAll(t, "CONTINUE")
		synctest.Wait()
		require.Equal(t, 1, s.waiters(t))
		for !held.over.Load() {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
		require.Equal(t, v1.Outcome_OUTCOME_WAIT_TIMEOUT, held.outcome(t))
		require.InDelta(t, 60, time.Since(begun).Seconds(), 0.5)
	})
}

// What stands in a queue keeps its place under STOP until its turn. Then it gives
// back what it was handed, is held, and comes again as a new attempt.
func TestQueuedThenHeld(t *testing.T) {
	withServer(t, func(t *testing.T, s *Server) {
		_, err := s.try(t, "runs", 0, time.Hour)
		require.NoError(t, err)
		queued := s.tries(t, "queued", 5*time.Minute)
		require.Equal(t, 1, s.waiters(t))
		s.signalAll(t, "STOP")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 1, s.waiters(t), "it keeps its place")
		s.finish(t, "runs")
		synctest.Wait()
		require.Zero(t, s.waiters(t))
		found, err := s.changes.Get(t.Context(), session.PoolKey("default", "policy/p"), storage.Nearby)
		require.NoError(t, err)
		require.Empty(t, found.Record.(*session.Pool).Leases, "what it was handed is given back")
		require.False(t, queued.over.Load())
		require.EqualValues(t, 2, s.attempts(t))
		s.signalAll(t, "CONTINUE")
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, queued.outcome(t))
		require.EqualValues(t, 3, s.attempts(t))
	})
}

// Its time in the queue counts: in all it waits no longer than it asked to.
func TestQueuedThenHeldNoLongerThanAsked(t *testing.T) {
	withServer(t, func(t *testing.T, s *Server) {
		_, err := s.try(t, "runs", 0, time.Hour)
		require.NoError(t, err)
		queued := s.tries(t, "queued", time.Minute)
		s.signalAll(t, "STOP")
		time.Sleep(40 * time.Second)
		s.finish(t, "runs")
		synctest.Wait()
		require.Zero(t, s.waiters(t))
		time.Sleep(19 * time.Second)
		synctest.Wait()
		require.False(t, queued.over.Load())
		time.Sleep(2 * time.Second)
		require.Equal(t, v1.Outcome_OUTCOME_STOPPED, queued.outcome(t))
	})
}

// Who is held while his session is killed is answered.
func TestHeldThenKilled(t *testing.T) {
	withServer(t, func(t *testing.T, s *Server) {
		s.signalAll(t, "STOP")
		held := s.tries(t, "held", time.Minute)
		s.signalAll(t, "KILL")
		require.Equal(t, v1.Outcome_OUTCOME_SESSION_CLOSED, held.outcome(t))
	})
}

// Who goes away is not held any longer, nor is anybody by a node that drains.
func TestHeldNoLonger(t *testing.T) {
	withServer(t, func(t *testing.T, s *Server) {
		s.signalAll(t, "STOP")
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := s.ask(ctx)
			gone <- err
		}()
		held := s.tries(t, "held", time.Minute)
		cancel()
		require.Equal(t, connect.CodeCanceled, connect.CodeOf(<-gone))
		require.NoError(t, s.Drain(t.Context()))
		synctest.Wait()
		require.True(t, held.over.Load())
		require.Equal(t, connect.CodeUnavailable, connect.CodeOf(held.err))
	})
}

// Who is held by a node that is removed from its cluster is told to go elsewhere.
func TestARemovedNodeHoldsNobody(t *testing.T) {
	withServer(t, func(t *testing.T, other *Server) {
		m := &member{Store: other.changes}
		s, err := New(Config{Store: m})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		other.signalAll(t, "STOP")
		time.AfterFunc(10*time.Second, func() { m.gone.Store(true) })
		_, err = s.ask(t.Context())
		require.Equal(t, connect.CodeUnavailable, connect.CodeOf(err))
		require.ErrorContains(t, err, "removed from its cluster, and a STOP keeps the call out")
	})
}
