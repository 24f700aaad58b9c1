package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// The tests here run in virtual time, without HTTP between.

func withServer(t *testing.T, test func(t *testing.T, s *Server)) {
	synctest.Test(t, func(t *testing.T) {
		store := storage.NewMemory(nil)
		s, err := New(Config{Store: store})
		require.NoError(t, err)
		_, err = policyService{s, s.policies}.PutPolicy(t.Context(), &v1.PutPolicyRequest{Yaml: "name: p\nmax_concurrent: 1\nbackpressure_threshold: 1\ntimeout_seconds: 5000\n"})
		require.NoError(t, err)
		_, err = sessionService{s}.CreateSession(t.Context(), &v1.CreateSessionRequest{
			SessionId: "s", AgentId: "a", Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: "p"}}})
		require.NoError(t, err)
		test(t, s)
		require.NoError(t, s.Close())
		require.NoError(t, store.Close())
	})
}

func (s *Server) try(t *testing.T, call string, wait time.Duration, ttl time.Duration) (*v1.BeginCallResponse, error) {
	return callService{Server: s}.BeginCall(t.Context(), &v1.BeginCallRequest{
		SessionId: "s", CallId: call, Tool: "t", Wait: durationpb.New(wait), Ttl: durationpb.New(ttl)})
}

func (s *Server) finish(t *testing.T, call string) {
	t.Helper()
	_, err := callService{Server: s}.EndCall(t.Context(), &v1.EndCallRequest{SessionId: "s", CallId: call, Status: v1.Status_STATUS_SUCCEEDED})
	require.NoError(t, err)
}

// A ticket lapses after ten seconds; the node renews those of its callers.
func TestWaitersAreRenewed(t *testing.T) {
	withServer(t, func(t *testing.T, s *Server) {
		_, err := s.try(t, "held", 0, time.Hour)
		require.NoError(t, err)
		time.AfterFunc(9*time.Minute+time.Millisecond, func() { s.finish(t, "held") })
		begun := time.Now()
		res, err := s.try(t, "c", 10*time.Minute, time.Minute)
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
		require.InDelta(t, 540.001, time.Since(begun).Seconds(), 0.001, "it is told at once, not when next looked at")
	})
}

// The slot of a holder that is gone comes to the waiter when its lease ends.
func TestALapsedLeaseIsHandedOn(t *testing.T) {
	withServer(t, func(t *testing.T, s *Server) {
		_, err := s.try(t, "dead", 0, 5*time.Second)
		require.NoError(t, err)
		begun := time.Now()
		res, err := s.try(t, "c", time.Minute, time.Minute)
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
		require.Less(t, time.Since(begun), 7*time.Second, "the lease of 5 s and two seconds at most")
	})
}

func TestAWaitEndsWhenItsTimeIsOver(t *testing.T) {
	withServer(t, func(t *testing.T, s *Server) {
		_, err := s.try(t, "held", 0, time.Hour)
		require.NoError(t, err)
		begun := time.Now()
		const length = 30*time.Second + 130*time.Millisecond // between two looks at the pool
		res, err := s.try(t, "c", length, time.Minute)
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_WAIT_TIMEOUT, res.Outcome)
		require.InDelta(t, length.Seconds(), time.Since(begun).Seconds(), 0.01)
	})
}

// waiters counts those in the queue of the policy's pool.
func (s *Server) waiters(t *testing.T) int {
	t.Helper()
	found, err := s.changes.Get(t.Context(), session.PoolKey("default", "policy/p"), storage.Nearby)
	require.NoError(t, err)
	return len(found.Record.(*session.Pool).Queue)
}

// ask begins the call c with a wait of a minute, until ctx is done.
func (s *Server) ask(ctx context.Context) (*v1.BeginCallResponse, error) {
	return callService{Server: s}.BeginCall(ctx, &v1.BeginCallRequest{SessionId: "s", CallId: "c", Tool: "t", Wait: durationpb.New(time.Minute)})
}

// A caller that goes, or whose own deadline comes first, leaves the queue.
func TestACallerThatGoesLeavesTheQueue(t *testing.T) {
	for code, leave := range map[connect.Code]func(context.Context) (context.Context, context.CancelFunc){
		connect.CodeCanceled: func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel
		},
		connect.CodeDeadlineExceeded: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		},
	} {
		withServer(t, func(t *testing.T, s *Server) {
			_, err := s.try(t, "held", 0, time.Hour)
			require.NoError(t, err)
			ctx, cancel := leave(t.Context())
			defer cancel()
			_, err = s.ask(ctx)
			require.Equal(t, code, connect.CodeOf(err))
			require.Equal(t, 1, s.waiters(t))
			time.Sleep(5 * time.Second) // longer than it is left alone
			require.Zero(t, s.waiters(t))
			res, err := s.ask(t.Context())
			require.NoError(t, err)
			require.Equal(t, v1.Outcome_OUTCOME_CANCELLED, res.Outcome)
		})
	}
}

// A slot that is handed to a caller that is gone is free for the next one
// before its claim runs out.
func TestASlotHandedToNobodyGoesOn(t *testing.T) {
	withServer(t, func(t *testing.T, s *Server) {
		_, err := s.try(t, "held", 0, time.Hour)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = s.ask(ctx)
		require.Error(t, err)
		s.finish(t, "held")
		begun := time.Now()
		res, err := s.try(t, "next", time.Minute, time.Minute)
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
		require.Less(t, time.Since(begun), 2*time.Second)
	})
}

// A caller that was cut off and asks again with the same id keeps its place,
// at another node and at the same, however late its leaving is noticed.
func TestAskingAgainKeepsThePlace(t *testing.T) {
	for _, elsewhere := range []bool{true, false} {
		withServer(t, func(t *testing.T, s *Server) {
			other := s
			if elsewhere {
				var err error
				other, err = New(Config{Store: s.changes})
				require.NoError(t, err)
				defer func() { require.NoError(t, other.Close()) }()
			}
			_, err := s.try(t, "held", 0, time.Hour)
			require.NoError(t, err)
			ctx, cut := context.WithCancel(t.Context())
			lost := make(chan error)
			go func() {
				_, err := s.ask(ctx)
				lost <- err
			}()
			synctest.Wait()
			time.AfterFunc(20*time.Second, func() { s.finish(t, "held") })
			time.AfterFunc(time.Second, cut) // which is noticed after the second request
			go func() { <-lost }()
			res, err := other.ask(t.Context())
			require.NoError(t, err)
			require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
			require.EqualValues(t, 2, res.Counters.Attempts)
		})
	}
}

// Two calls six seconds apart, under a timeout of five, nothing between.
func TestSessionTimeout(t *testing.T) {
	withServer(t, func(t *testing.T, s *Server) {
		_, err := policyService{s, s.policies}.PutPolicy(t.Context(), &v1.PutPolicyRequest{Yaml: "name: short\ntimeout_seconds: 5\n"})
		require.NoError(t, err)
		_, err = sessionService{s}.CreateSession(t.Context(), &v1.CreateSessionRequest{
			SessionId: "x", AgentId: "a", Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: "short"}}})
		require.NoError(t, err)
		ask := func(call string) *v1.BeginCallResponse {
			res, err := callService{Server: s}.BeginCall(t.Context(), &v1.BeginCallRequest{SessionId: "x", CallId: call, Tool: "t"})
			require.NoError(t, err)
			return res
		}
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, ask("one").Outcome)
		time.Sleep(6 * time.Second) // virtual
		late := ask("two")
		require.Equal(t, v1.Outcome_OUTCOME_SESSION_TIMEOUT, late.Outcome)
		require.Equal(t, "Timeout exceeded (5s): elapsed 6.0s", late.Reason)
		time.Sleep(time.Second)
		require.Equal(t, late.Reason, ask("two").Reason, "the refusal of an id reads as it did the first time")
	})
}

// A late end of a call that lapsed says so and moves nothing.
func TestALateEnd(t *testing.T) {
	withServer(t, func(t *testing.T, s *Server) {
		_, err := s.try(t, "slow", 0, time.Second)
		require.NoError(t, err)
		time.Sleep(3 * time.Second)
		end := &v1.EndCallRequest{SessionId: "s", CallId: "slow", Status: v1.Status_STATUS_FAILED}
		res, err := callService{Server: s}.EndCall(t.Context(), end)
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_LEASE_LOST, res.Outcome)
		require.EqualValues(t, 1, res.Counters.Executions, "settled as unknown, counted as executed")
		require.Zero(t, res.Counters.Failures)
	})
}

// stuck is a store that orders nothing.
type stuck struct {
	storage.Store
	answer storage.Answer
}

func (s *stuck) Apply(_ context.Context, cmds ...session.Command) []storage.Answer {
	answers := make([]storage.Answer, len(cmds))
	for i := range answers {
		answers[i] = s.answer
	}
	return answers
}

// What a store says instead of an answer reaches the caller with its reason.
func TestAStoreWithoutAnAnswer(t *testing.T) {
	for _, c := range []struct {
		answer storage.Answer
		code   connect.Code
		reason string
	}{
		{storage.Refused(errors.New("why")), connect.CodeUnavailable, "NOT_APPLIED"},
		{storage.Lost(errors.New("why")), connect.CodeUnavailable, "OUTCOME_UNKNOWN"},
		{storage.Answer{}, connect.CodeUnavailable, "OUTCOME_UNKNOWN"},
		{storage.Lost(storage.ErrInvalid), connect.CodeUnavailable, "OUTCOME_UNKNOWN"},
		{storage.Refused(context.DeadlineExceeded), connect.CodeUnavailable, "NOT_APPLIED"},
		{storage.Refused(storage.ErrInvalid), connect.CodeInvalidArgument, "INVALID_FIELD"},
	} {
		withServer(t, func(t *testing.T, s *Server) {
			s.changes = &stuck{s.changes, c.answer}
			_, err := s.try(t, "c", 0, time.Minute)
			require.Equal(t, c.code, connect.CodeOf(err))
			reason := fault.Of(err).Reason
			require.Equal(t, c.reason, reason)
		})
	}
}
