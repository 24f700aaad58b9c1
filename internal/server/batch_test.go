package server_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A turnstile is a guardrail that lets nobody through before so many stand in it
// at once, or it is clear that they do not.
type turnstile struct {
	mu       sync.Mutex
	in, most int
	enough   sync.Once // closes open
	open     chan struct{}
}

func (s *turnstile) pass(wanted int) (engine.GuardrailResult, error) {
	s.mu.Lock()
	s.in++
	s.most = max(s.most, s.in)
	if s.in == wanted {
		// A little later, so that whoever else may come in has come.
		s.enough.Do(func() { time.AfterFunc(50*time.Millisecond, func() { close(s.open) }) })
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.in--
		s.mu.Unlock()
	}()
	select {
	case <-s.open:
	case <-time.After(5 * time.Second):
		s.enough.Do(func() { close(s.open) }) // the others do not come
	}
	return engine.GuardrailResult{Decision: engine.GuardrailAllow}, nil
}

// Calls whose guardrail takes its time are judged side by side in a batch,
// though not all at once, and spend in the order in which they stand in it.
func TestBatchIsJudgedSideBySide(t *testing.T) {
	const bound, calls, admitted = 16, 40, 30
	gate := &turnstile{open: make(chan struct{})}
	n := startGuarded(t, func(engine.GuardrailCall) (engine.GuardrailResult, error) { return gate.pass(bound) })
	n.putPolicy("name: p", "max_concurrent: 100", fmt.Sprintf("max_tool_calls: %d", admitted))
	n.session("many")
	req := &v1.BatchCallsRequest{}
	for i := range calls {
		req.Operations = append(req.Operations, beginFrame(uint64(i), "many", fmt.Sprintf("c%d", i)))
	}
	res, err := n.calls.BatchCalls(n.ctx(), req)
	require.NoError(t, err)
	for i, r := range res.Results {
		want := v1.Outcome_OUTCOME_ADMITTED
		if i >= admitted {
			want = v1.Outcome_OUTCOME_CALL_LIMIT
		}
		require.EqualValues(t, i, r.Tag)
		require.Equal(t, want, r.GetBegin().GetOutcome(), "%d: %v", i, r)
	}
	require.Equal(t, bound, gate.most)
}

// staleOnce is a store that says of the first calls that what they took for granted does not
// hold.
type staleOnce struct {
	storage.Store
	said    atomic.Bool
	endless atomic.Bool // it was asked what holds instead, and until no time
}

func (s *staleOnce) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if _, bounded := ctx.Deadline(); !bounded && r == storage.Latest && s.said.Load() {
		s.endless.Store(true)
	}
	return s.Store.Get(ctx, k, r)
}

func (s *staleOnce) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	if _, begins := cmds[0].(*session.Begin); begins && s.said.CompareAndSwap(false, true) {
		return slices.Repeat([]storage.Answer{storage.Done(session.Result{Code: session.StalePremise}, 1)}, len(cmds))
	}
	return s.Store.Apply(ctx, cmds...)
}

// Nor are they judged one after another where they are judged anew, and they keep their order.
func TestBatchIsJudgedAnewSideBySide(t *testing.T) {
	const bound, calls, admitted = 16, 40, 30
	store, gate := &staleOnce{Store: storage.NewMemory(nil)}, &turnstile{open: make(chan struct{})}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store, func(c *server.Config) {
		c.Engine = []engine.Option{engine.WithGuardrails(guard(func(engine.GuardrailCall) (engine.GuardrailResult, error) {
			if store.said.Load() {
				return gate.pass(bound)
			}
			return engine.GuardrailResult{Decision: engine.GuardrailAllow}, nil
		}))}
	})
	n.putPolicy("name: p", "max_concurrent: 100", fmt.Sprintf("max_tool_calls: %d", admitted))
	n.session("many")
	req := &v1.BatchCallsRequest{}
	for i := range calls {
		req.Operations = append(req.Operations, beginFrame(uint64(i), "many", fmt.Sprintf("c%d", i)))
	}
	res, err := n.calls.BatchCalls(n.ctx(), req)
	require.NoError(t, err)
	for i, r := range res.Results {
		require.Equal(t, i < admitted, r.GetBegin().GetOutcome() == v1.Outcome_OUTCOME_ADMITTED, "%d: %v", i, r)
	}
	require.Equal(t, bound, gate.most)
}

// What is judged anew on a stream is judged within the time of its frames: whatever it was
// read under before lasts as long as the stream.
func TestJudgedAnewWithinItsTime(t *testing.T) {
	store := &staleOnce{Store: storage.NewMemory(nil)}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store)
	n.putPolicy(policy()...)
	n.session("s")
	l := n.exchange()
	l.send(beginFrame(1, "s", "c"))
	requireAdmitted(t, l.one())
	require.True(t, store.said.Load())
	require.False(t, store.endless.Load())
}

// far is a store that breaks where it is asked for more than it has at hand.
type far struct{ storage.Store }

func (f far) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if r == storage.Latest {
		panic("the leader is on fire")
	}
	return f.Store.Get(ctx, k, r)
}

// A part that makes the node panic costs its own answer, not the node.
func TestAPanicInABatch(t *testing.T) {
	good := furnished(t)
	n := startOn(t, far{good.store})
	res, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{
		beginFrame(1, "nowhere", "a"), beginFrame(2, "s", "a"), endFrame(3, "nowhere", "a"),
	}})
	require.NoError(t, err)
	requireAdmitted(t, res.Results[1])
	for _, i := range []int{0, 2} {
		require.Equal(t, "OUTCOME_UNKNOWN", res.Results[i].GetError().GetReason())
		require.Contains(t, res.Results[i].GetError().GetMessage(), "the node failed on this request")
	}
}

// A timed store tells how long those who apply something would wait for it.
type timed struct {
	storage.Store
	left chan time.Duration
}

func (s timed) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	at, _ := ctx.Deadline()
	select {
	case s.left <- time.Until(at):
	default: // of the node itself
	}
	return s.Store.Apply(ctx, cmds...)
}

// A batch waits as long as the most patient of its operations, wherever that stands; one
// that names no time waits as long as a request does.
func TestABatchWaitsForTheMostPatient(t *testing.T) {
	n := furnished(t)
	s := timed{n.store, make(chan time.Duration, 1)}
	n = startOn(t, s, func(c *server.Config) { c.RequestTimeout = time.Hour })
	call := 0
	for _, tt := range []struct {
		timeouts []time.Duration // 0: none is named
		want     time.Duration
	}{
		{[]time.Duration{time.Minute}, time.Minute},
		{[]time.Duration{time.Minute, 2 * time.Minute}, 2 * time.Minute},
		{[]time.Duration{2 * time.Minute, time.Minute}, 2 * time.Minute},
		{[]time.Duration{time.Minute, 2 * time.Minute, time.Minute}, 2 * time.Minute},
		{[]time.Duration{time.Minute, 0}, time.Hour},
		{[]time.Duration{0, time.Minute}, time.Hour},
	} {
		req := &v1.BatchCallsRequest{}
		for _, timeout := range tt.timeouts {
			call++
			op := beginFrame(uint64(call), "s", fmt.Sprint("c", call))
			if timeout > 0 {
				op.Timeout = durationpb.New(timeout)
			}
			req.Operations = append(req.Operations, op)
		}
		select {
		case <-s.left: // of what was before
		default:
		}
		_, err := n.calls.BatchCalls(n.ctx(), req)
		require.NoError(t, err)
		require.InDelta(t, tt.want.Seconds(), (<-s.left).Seconds(), 30, "%v", tt.timeouts)
	}
}
