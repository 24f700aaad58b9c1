package client_test

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// relayed lets a node answer over a stream what it would have answered to
// requests.
func relayed(n *node) *streamer {
	return &streamer{node: n, exchange: reading(&govnodev1.ExchangeResponse{MaxInFlight: 1024}, func(ctx context.Context, stream *exchangeStream, frames []*govnodev1.Operation) error {
		out := &govnodev1.ExchangeResponse{}
		for _, f := range frames {
			r := &govnodev1.OperationResult{Tag: f.GetTag()}
			switch {
			case f.GetBegin() != nil:
				res, _ := n.begin(ctx, f.GetBegin())
				r.Result = &govnodev1.OperationResult_Begin{Begin: res}
			case f.GetEnd() != nil:
				res, _ := n.end(f.GetEnd())
				r.Result = &govnodev1.OperationResult_End{End: res}
			}
			out.Answers = append(out.Answers, r)
		}
		return stream.Send(out)
	})}
}

// Whatever an answer holds is there when it is asked for, over a stream as
// without one, from any goroutine.
func TestAnswersAreWhole(t *testing.T) {
	modified, err := structpb.NewStruct(map[string]any{"query": "x", "deep": map[string]any{"list": []any{1, nil, true}}})
	require.NoError(t, err)
	begun := &govnodev1.BeginCallResponse{
		Outcome: govnodev1.Outcome_OUTCOME_ADMITTED, Reason: "why", DecisionId: "d",
		Decision: &govnodev1.Decision{Allowed: true, MatchedRule: "m", PolicyChain: []string{"a", "b"}, EvaluationTime: durationpb.New(5)},
		Grants: []*govnodev1.Grant{
			{Pool: "policy/p", Token: 3, Ttl: durationpb.New(time.Minute)},
			{Pool: "gpu", Token: 4, Ttl: durationpb.New(40 * time.Second)},
		},
		Pressure: &govnodev1.Pressure{Level: govnodev1.Level_LEVEL_PRESSED, InUse: 3, Limit: 4, AdvisedDelay: durationpb.New(time.Second)},
		Counters: &govnodev1.Counters{Attempts: 9}, RetryAfter: durationpb.New(time.Second), ModifiedArguments: modified, Index: 77,
	}
	ended := &govnodev1.EndCallResponse{
		Outcome: govnodev1.Outcome_OUTCOME_ENDED, Counters: &govnodev1.Counters{Executions: 2}, Drift: &govnodev1.Drift{Score: 0.5}, CheckpointId: "c",
	}
	n := granting(time.Minute)
	var mu sync.Mutex
	refuse := false
	var asked []*govnodev1.BeginCallRequest
	n.begin = func(_ context.Context, r *govnodev1.BeginCallRequest) (*govnodev1.BeginCallResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r)
		res := proto.CloneOf(begun)
		if refuse {
			res.Outcome = govnodev1.Outcome_OUTCOME_CALL_LIMIT
		}
		return res, nil
	}
	n.end = func(*govnodev1.EndCallRequest) (*govnodev1.EndCallResponse, error) { return ended, nil }
	h := listen(t, relayed(n).handler())
	for name, unary := range map[string]bool{"over a stream": false, "by itself": true} {
		t.Run(name, func(t *testing.T) {
			refuse, asked = false, nil
			c := streaming(t, []string{h.URL}, func(c *client.Config) { c.DisableExchange = unary })
			call := client.Call{
				Tool: "t", Arguments: map[string]any{"b": 1, "a": 1.5}, Context: map[string]any{"path": "x"}, Metadata: map[string]string{"k": "v"},
				Pools: []client.Want{{Pool: "gpu", Weight: 2}, {Pool: "cpu"}}, Kind: govnodev1.Kind_KIND_MODEL, TTL: time.Minute, MaxHold: time.Hour,
				Wait: 3 * time.Second, Priority: -4, Tokens: 5, Order: govnodev1.Order_ORDER_PRE_EXECUTE,
			}
			began := time.Now()
			open, err := c.Session("s").Begin(t.Context(), call)
			require.NoError(t, err)
			require.WithinRange(t, open.Deadline(), began.Add(39*time.Second), time.Now().Add(40*time.Second), "the shortest lease counts")
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					if !proto.Equal(begun, open.Begun()) {
						t.Errorf("begun: %v", open.Begun())
					}
				})
			}
			all.Wait()
			require.Equal(t, client.Pressure{InUse: 3, Limit: 4, AdvisedDelay: time.Second}, open.Pressure())
			require.Nil(t, open.Ended())
			require.NoError(t, open.End(t.Context(), client.Succeeded))
			require.True(t, proto.Equal(ended, open.Ended()))

			refuse = true
			_, err = c.Session("s").Begin(t.Context(), call)
			var refused *client.Refused
			require.ErrorAs(t, err, &refused)
			require.Equal(t, govnodev1.Outcome_OUTCOME_CALL_LIMIT, refused.Outcome)
			require.Equal(t, []any{"why", "d", "m", time.Second}, []any{refused.Reason, refused.DecisionID, refused.MatchedRule, refused.RetryAfter})
			require.True(t, proto.Equal(begun.GetDecision(), refused.Decision))
			require.True(t, proto.Equal(begun.GetCounters(), refused.Counters))

			require.Len(t, asked, 2)
			got := proto.CloneOf(asked[0])
			require.InDelta(t, 3, got.GetWait().AsDuration().Seconds(), 0.5)
			got.CallId, got.Wait = "", nil
			require.True(t, proto.Equal(&govnodev1.BeginCallRequest{
				SessionId: "s", Kind: govnodev1.Kind_KIND_MODEL, Tool: "t", ArgumentsJson: `{"a":1.5,"b":1}`, ContextJson: `{"path":"x"}`,
				Metadata: map[string]string{"k": "v"}, Pools: []*govnodev1.Want{{Pool: "gpu", Weight: 2}, {Pool: "cpu"}},
				Ttl: durationpb.New(time.Minute), MaxHold: durationpb.New(time.Hour), Priority: -4, Tokens: 5, Order: govnodev1.Order_ORDER_PRE_EXECUTE,
			}, got), "%v", got)
		})
	}
	require.Equal(t, 1, h.count("Exchange"))
}

// A node that takes a frame and says nothing has as long as a request, and then
// another one is asked.
func TestSilentStream(t *testing.T) {
	silent := listen(t, (&streamer{node: granting(time.Minute), exchange: func(_ context.Context, stream *exchangeStream) error {
		err := stream.Send(&govnodev1.ExchangeResponse{MaxInFlight: 1024})
		for err == nil {
			_, err = stream.Receive()
		}
		return nil
	}}).handler())
	well := listen(t, relayed(granting(time.Minute)).handler())
	c := streaming(t, []string{silent.URL, well.URL}, func(c *client.Config) { c.AttemptTimeout = 200 * time.Millisecond })
	began := time.Now()
	_, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t", Wait: client.NoWait})
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond)
	require.Less(t, time.Since(began), 5*time.Second)
	require.Equal(t, 1, silent.count("Exchange"))
	require.Equal(t, 1, well.count("Exchange"))
}

// End is sent over a stream although its caller's context is done, and so is
// what was under way when that came.
func TestEndOverAStreamOutlivesItsCaller(t *testing.T) {
	received, answer := make(chan struct{}), make(chan struct{})
	n := granting(time.Minute)
	n.end = func(*govnodev1.EndCallRequest) (*govnodev1.EndCallResponse, error) {
		received <- struct{}{}
		<-answer
		return &govnodev1.EndCallResponse{Outcome: govnodev1.Outcome_OUTCOME_ENDED}, nil
	}
	h := listen(t, relayed(n).handler())
	c := streaming(t, []string{h.URL})
	for _, before := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		open, err := c.Session("s").Begin(ctx, client.Call{Tool: "t"})
		require.NoError(t, err)
		if before {
			cancel()
		}
		result := make(chan error)
		go func() { result <- open.End(ctx, client.Succeeded) }()
		<-received
		cancel()
		answer <- struct{}{}
		require.NoError(t, <-result)
	}
	require.Zero(t, h.count("EndCall"))
}

// Close ends what waits for an answer of a stream.
func TestCloseEndsWhatIsUnderWayOnAStream(t *testing.T) {
	received := make(chan struct{}, 1)
	h := listen(t, (&streamer{node: granting(time.Minute), exchange: func(_ context.Context, stream *exchangeStream) error {
		err := stream.Send(&govnodev1.ExchangeResponse{MaxInFlight: 1024})
		for err == nil {
			if _, err = stream.Receive(); err == nil {
				received <- struct{}{}
			}
		}
		return nil
	}}).handler())
	c := streaming(t, []string{h.URL})
	result := make(chan error)
	go func() {
		_, err := c.Session("s").Begin(t.Context(), client.Call{ID: "mine", Tool: "t", Wait: time.Minute})
		result <- err
	}()
	<-received
	began := time.Now()
	require.NoError(t, c.Close())
	err := <-result
	require.ErrorIs(t, err, client.ErrClosed)
	var unknown *client.Unknown
	require.ErrorAs(t, err, &unknown)
	require.Less(t, time.Since(began), 4*time.Second)
}

// A stream on which something malformed comes is no stream: what was sent on it
// is sent again by itself.
func TestMalformedMessageEndsTheStream(t *testing.T) {
	n := granting(time.Minute)
	answer := &govnodev1.ExchangeResponse{Answers: []*govnodev1.OperationResult{{Tag: 1, Result: &govnodev1.OperationResult_Begin{Begin: &govnodev1.BeginCallResponse{
		Outcome: govnodev1.Outcome_OUTCOME_ADMITTED, Decision: &govnodev1.Decision{Reason: "reason"},
		Grants: []*govnodev1.Grant{{Token: 1, Ttl: durationpb.New(time.Minute)}},
	}}}}}
	good, err := proto.Marshal(answer)
	require.NoError(t, err)
	bad := append([]byte(nil), good...)
	for i := range bad[:len(bad)-6] {
		if string(bad[i:i+6]) == "reason" {
			bad[i] = 0xff // deep inside, a text that is not UTF-8
		}
	}
	require.NotEqual(t, good, bad)
	for name, message := range map[string][]byte{"well-formed": good, "malformed": bad} {
		mux := http.NewServeMux()
		mux.Handle("/", n.handler())
		mux.HandleFunc("/govnode.v1.CallService/Exchange", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/connect+proto")
			hello, _ := proto.Marshal(&govnodev1.ExchangeResponse{MaxInFlight: 1024})
			for _, m := range [][]byte{hello, message} {
				_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...))
				_ = http.NewResponseController(w).Flush()
				head := make([]byte, 5)
				if _, err := io.ReadFull(r.Body, head); err != nil {
					return
				}
				_, _ = io.CopyN(io.Discard, r.Body, int64(binary.BigEndian.Uint32(head[1:])))
			}
			<-r.Context().Done()
		})
		h := listen(t, mux)
		c := streaming(t, []string{h.URL})
		_, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t"})
		require.NoError(t, err)
		if name == "malformed" {
			eventually(t, "the stream is over", func() bool { return h.count("BeginCall")+h.count("Exchange") > 1 })
		} else {
			require.Zero(t, h.count("BeginCall"))
		}
	}
}

// An answer to something else than was asked, or to nothing, neither admits nor
// refuses: nobody knows what has become of the request.
func TestAnswerToSomethingElse(t *testing.T) {
	for name, answer := range map[string]*govnodev1.OperationResult{
		"to something else": {Result: &govnodev1.OperationResult_End{End: &govnodev1.EndCallResponse{Outcome: govnodev1.Outcome_OUTCOME_ADMITTED}}},
		"to nothing":        {},
	} {
		t.Run(name, func(t *testing.T) {
			h := listen(t, (&streamer{node: granting(time.Minute), exchange: func(_ context.Context, stream *exchangeStream) error {
				err := stream.Send(&govnodev1.ExchangeResponse{MaxInFlight: 1024})
				for err == nil {
					var m *govnodev1.ExchangeRequest
					if m, err = stream.Receive(); err == nil {
						answer.Tag = m.GetFrames()[0].GetTag()
						err = stream.Send(&govnodev1.ExchangeResponse{Answers: []*govnodev1.OperationResult{answer}})
					}
				}
				return nil
			}}).handler())
			c := streaming(t, []string{h.URL})
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, err := c.Session("s").Begin(ctx, client.Call{Tool: "t", ID: "mine"})
			require.ErrorAs(t, err, new(*client.Unknown))
		})
	}
}

// That nothing was used is told over a stream as well: what was reserved is free again.
func TestATokenThatWasNotUsed(t *testing.T) {
	h, _ := real(t)
	c := streaming(t, []string{h.URL})
	prepare(t, c, 1)
	s, err := c.CreateSession(t.Context(), client.Session{Agent: "x", Policy: "p"})
	require.NoError(t, err)
	open, err := s.Begin(t.Context(), client.Call{Kind: client.KindModel, Tokens: 50})
	require.NoError(t, err)
	require.NoError(t, open.End(t.Context(), client.Failed, client.UsedTokens(0)))
	require.Zero(t, open.Ended().GetCounters().GetTokensUsed())
}

// Who lets his attempts last for ever has said nothing of the time of any operation, which the
// service would refuse.
func TestAttemptsForEver(t *testing.T) {
	h, _ := real(t)
	c := streaming(t, []string{h.URL}, func(c *client.Config) { c.Timeout, c.AttemptTimeout = math.MaxInt64, math.MaxInt64 })
	prepare(t, c, 1)
	s, err := c.CreateSession(t.Context(), client.Session{Agent: "x", Policy: "p"})
	require.NoError(t, err)
	open, err := s.Begin(t.Context(), client.Call{Tool: "t"})
	require.NoError(t, err)
	require.NoError(t, open.End(t.Context(), client.Succeeded))
	slot, err := c.Acquire(t.Context(), "gpu", client.Wait(10*time.Minute))
	require.NoError(t, err)
	require.NoError(t, slot.Release())
}
