package client_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	"example.com/govnode/internal/server"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/storage"
)

type exchangeStream = connect.BidiStream[govnodev1.ExchangeRequest, govnodev1.ExchangeResponse]

// A streamer answers Exchange as its field says, and everything else as its
// node does.
type streamer struct {
	*node
	exchange func(context.Context, *exchangeStream) error
}

func (s *streamer) Exchange(ctx context.Context, stream *exchangeStream) error {
	return s.exchange(ctx, stream)
}

func (s *streamer) handler() http.Handler { return handlerOf(s) }

// reading is a stream that begins with a message, and whose others go to each,
// which is handed their operations until the stream ends.
func reading(first *govnodev1.ExchangeResponse, each func(context.Context, *exchangeStream, []*govnodev1.Operation) error) func(context.Context, *exchangeStream) error {
	return func(ctx context.Context, stream *exchangeStream) error {
		if err := stream.Send(first); err != nil {
			return err
		}
		for {
			m, err := stream.Receive()
			if err != nil {
				return nil
			}
			if err := each(ctx, stream, m.GetFrames()); err != nil {
				return err
			}
		}
	}
}

// A host listens on a port of its own, and notes which methods it was asked.
type host struct {
	*httptest.Server
	mu   sync.Mutex
	sent []string
}

func (h *host) count(method string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.sent {
		if m == method {
			n++
		}
	}
	return n
}

func listen(t *testing.T, handler http.Handler, protocols ...func(*http.Protocols)) *host {
	t.Helper()
	h := &host{}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.sent = append(h.sent, r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
		h.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	h.Config.Protocols = new(http.Protocols)
	h.Config.Protocols.SetHTTP1(true)
	h.Config.Protocols.SetUnencryptedHTTP2(true)
	for _, p := range protocols {
		p(h.Config.Protocols)
	}
	h.Start()
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return h
}

func streaming(t *testing.T, addresses []string, change ...func(*client.Config)) *client.Client {
	t.Helper()
	cfg := client.Config{Addresses: addresses, Name: "test", Random: func() float64 { return 0.1 }}
	over(&cfg)
	for _, f := range change {
		f(&cfg)
	}
	c, err := client.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// real is a server on a memory store, on a port.
func real(t *testing.T) (*host, *server.Server) {
	t.Helper()
	store := storage.NewMemory(nil)
	s, err := server.New(server.Config{Store: store, Node: "a"})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, store.Close())
	})
	return listen(t, s.Handler()), s
}

// released answers every frame as the end of a call.
func released(frames []*govnodev1.Operation) (answers []*govnodev1.OperationResult) {
	for _, f := range frames {
		answers = append(answers, &govnodev1.OperationResult{Tag: f.GetTag(), Result: &govnodev1.OperationResult_End{
			End: &govnodev1.EndCallResponse{Outcome: govnodev1.Outcome_OUTCOME_ENDED},
		}})
	}
	return answers
}

func admitted(tag uint64) *govnodev1.OperationResult {
	return &govnodev1.OperationResult{Tag: tag, Result: &govnodev1.OperationResult_Begin{
		Begin: &govnodev1.BeginCallResponse{
			Outcome: govnodev1.Outcome_OUTCOME_ADMITTED,
			Grants:  []*govnodev1.Grant{{Pool: "policy/p", Token: 3, Ttl: durationpb.New(time.Minute)}},
		},
	}}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 5*time.Second, 2*time.Millisecond, what)
}

// An idle stream sends at once. While two messages have no answer, whatever
// else is asked for gathers, and goes together.
func TestCallsCoalesce(t *testing.T) {
	messages := make(chan []*govnodev1.Operation, 100)
	answers := make(chan []*govnodev1.OperationResult)
	s := &streamer{node: granting(time.Minute), exchange: func(_ context.Context, stream *exchangeStream) error {
		if err := stream.Send(&govnodev1.ExchangeResponse{MaxInFlight: 1024}); err != nil {
			return err
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			for {
				m, err := stream.Receive()
				if err != nil {
					return
				}
				messages <- m.GetFrames()
			}
		}()
		for {
			select {
			case a := <-answers:
				if err := stream.Send(&govnodev1.ExchangeResponse{Answers: a}); err != nil {
					return err
				}
			case <-over:
				return nil
			}
		}
	}}
	h := listen(t, s.handler())
	c := streaming(t, []string{h.URL})
	session := c.Session("s")
	var done sync.WaitGroup
	begin := func() {
		done.Go(func() {
			call, err := session.Begin(t.Context(), client.Call{Tool: "t"})
			if err != nil {
				t.Error(err)
				return
			}
			_ = call
		})
	}
	begin()
	first := <-messages
	require.Len(t, first, 1)
	begin()
	second := <-messages
	require.Len(t, second, 1, "a second message goes without an answer to the first")
	var asked atomic.Int64
	for range 100 {
		done.Go(func() {
			asked.Add(1)
			_, err := session.Begin(t.Context(), client.Call{Tool: "t"})
			if err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "they have asked", func() bool { return asked.Load() == 100 })
	require.Never(t, func() bool { return len(messages) > 0 }, 30*time.Millisecond, 5*time.Millisecond, "a third message waits for an answer")
	tags := map[uint64]bool{first[0].GetTag(): true, second[0].GetTag(): true}
	open := []uint64{first[0].GetTag(), second[0].GetTag()} // in the order of the messages
	later := 0
	for len(tags) < 102 { // who was slow to stand in line goes with the next
		answers <- []*govnodev1.OperationResult{admitted(open[0])}
		open = open[1:]
		m := <-messages
		later++
		for i := len(m) - 1; i >= 0; i-- { // in any order
			tags[m[i].GetTag()] = true
			open = append(open, m[i].GetTag())
		}
	}
	require.Less(t, later, 10, "what has gathered goes together")
	var rest []*govnodev1.OperationResult
	for _, tag := range open {
		rest = append(rest, admitted(tag))
	}
	require.Len(t, tags, 102, "each has a tag of its own")
	answers <- rest
	done.Wait()
	require.Zero(t, h.count("BeginCall"))
	require.Equal(t, 1, h.count("Exchange"))
	go func() { // what is given back at the end
		for m := range messages {
			answers <- released(m)
		}
	}()
}

// Many callers against a real server, with their stream cut again and again:
// nothing is lost and nothing counts twice.
func TestStreamsAreCutAndNothingCountsTwice(t *testing.T) {
	h, _ := real(t)
	c := streaming(t, []string{h.URL}, func(c *client.Config) { c.Budget.Burst = 1e6 })
	prepare(t, c, 100)
	const callers, calls = 25, 20
	sessions := make([]*client.OpenSession, callers)
	for i := range sessions {
		var err error
		sessions[i], err = c.CreateSession(t.Context(), client.Session{Agent: "a", Policy: "p"})
		require.NoError(t, err)
	}
	var done sync.WaitGroup
	var ended atomic.Int64
	for _, s := range sessions {
		done.Go(func() {
			for range calls {
				if err := s.Do(t.Context(), client.Call{Tool: "t"}, func(context.Context, *client.OpenCall) error { return nil }); err != nil {
					t.Error(err)
				}
				if ended.Add(1)%100 == 0 {
					h.CloseClientConnections()
				}
			}
		})
	}
	done.Wait()
	for _, s := range sessions {
		got, err := s.Read(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, calls, got.GetExecutions())
		require.EqualValues(t, calls, got.GetAttempts())
		require.Empty(t, got.GetOpenCalls())
	}
	require.Greater(t, h.count("Exchange"), 1, "the test must have cut something")
}

// A caller that goes away is told what may have happened: nothing before its
// request was sent, anything after it.
func TestCallerGoesAway(t *testing.T) {
	received := make(chan int, 10)
	s := &streamer{node: granting(time.Minute), exchange: reading(&govnodev1.ExchangeResponse{MaxInFlight: 1}, func(_ context.Context, _ *exchangeStream, frames []*govnodev1.Operation) error {
		received <- len(frames)
		return nil
	})}
	h := listen(t, s.handler())
	c := streaming(t, []string{h.URL})
	session := c.Session("s")
	type end struct {
		err error
		id  string
	}
	ends := make(chan end, 2)
	ask := func(ctx context.Context, id string) {
		_, err := session.Begin(ctx, client.Call{ID: id, Tool: "t"})
		ends <- end{err, id}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go ask(ctx, "sent")
	require.Equal(t, 1, <-received)
	later, cancelLater := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancelLater()
	go ask(later, "unsent") // the node allows one frame at a time
	e := <-ends
	require.Equal(t, "unsent", e.id)
	var unavailable *client.Unavailable
	require.ErrorAs(t, e.err, &unavailable)
	cancel()
	e = <-ends
	var unknown *client.Unknown
	require.ErrorAs(t, e.err, &unknown)
	require.Equal(t, "sent", unknown.ID)
	require.Empty(t, received, "what nobody waits for any more is not sent")
}

// An error in a frame is what it is as the error of a request.
func TestFrameErrors(t *testing.T) {
	var tries atomic.Int64
	s := &streamer{node: granting(time.Minute)}
	s.exchange = reading(&govnodev1.ExchangeResponse{MaxInFlight: 1024}, func(_ context.Context, stream *exchangeStream, frames []*govnodev1.Operation) error {
		for _, f := range frames {
			a := admitted(f.GetTag())
			e := &govnodev1.OperationError{Code: "unavailable", Reason: "NOT_APPLIED", Message: "later"}
			switch id := f.GetBegin().GetCallId(); {
			case id == "reused":
				e = &govnodev1.OperationError{Code: "invalid_argument", Reason: "ID_REUSED", Message: "callId: was used before"}
			case id == "":
				a, e = released([]*govnodev1.Operation{f})[0], nil
			case tries.Add(1) > 3:
				e = nil
			case tries.Load() == 1:
				e = &govnodev1.OperationError{Code: "failed_precondition", Reason: "STALE_ID", NewerThan: time.Now().Add(time.Hour / 2).UnixMilli()}
			}
			if e != nil {
				a.Result = &govnodev1.OperationResult_Error{Error: e}
			}
			if err := stream.Send(&govnodev1.ExchangeResponse{Answers: []*govnodev1.OperationResult{a}}); err != nil {
				return err
			}
		}
		return nil
	})
	h := listen(t, s.handler())
	c := streaming(t, []string{h.URL})
	_, err := c.Session("s").Begin(t.Context(), client.Call{ID: "reused", Tool: "t"})
	var objection *client.Error
	require.ErrorAs(t, err, &objection)
	require.Equal(t, connect.CodeInvalidArgument, objection.Code)
	require.Equal(t, client.ReasonIDReused, objection.Reason)
	require.Contains(t, err.Error(), "callId: was used before")

	call, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t"})
	require.NoError(t, err)
	require.EqualValues(t, 4, tries.Load())
	id, err := ulid.ParseStrict(call.ID())
	require.NoError(t, err)
	require.True(t, ulid.Time(id.Time()).After(time.Now().Add(20*time.Minute)), "an id newer than what is forgotten")
	require.NoError(t, call.End(t.Context(), client.Succeeded))
	require.Zero(t, h.count("BeginCall"))
}

// Waits go over the stream: the call is admitted when there is room.
func TestWaitsOverAStream(t *testing.T) {
	h, _ := real(t)
	c := streaming(t, []string{h.URL})
	prepare(t, c, 1)
	held, err := c.Acquire(t.Context(), "gpu")
	require.NoError(t, err)
	got := make(chan error, 1)
	go func() {
		s, err := c.Acquire(t.Context(), "gpu", client.Wait(time.Minute))
		if err == nil {
			err = s.Release()
		}
		got <- err
	}()
	eventually(t, "it waits", func() bool {
		l, err := c.ListSlots(t.Context(), "gpu")
		return err == nil && len(l.GetWaiters()) == 1
	})
	require.NoError(t, held.Release())
	require.NoError(t, <-got)
	require.Zero(t, h.count("AcquireSlot")+h.count("ReleaseSlot"))
}

// What is larger than a message may be goes by itself, and hurts no neighbour.
func TestLargeFrameGoesByItself(t *testing.T) {
	h, _ := real(t)
	c := streaming(t, []string{h.URL})
	prepare(t, c, 1)
	session, err := c.CreateSession(t.Context(), client.Session{Agent: "a", Policy: "p"})
	require.NoError(t, err)
	large := fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", 65_000))
	call, err := session.Begin(t.Context(), client.Call{Tool: "t", ArgumentsJSON: large, ContextJSON: large})
	require.NoError(t, err)
	require.NoError(t, call.End(t.Context(), client.Succeeded))
	require.Equal(t, 1, h.count("BeginCall"))
	require.Zero(t, h.count("EndCall"))
}

// Config.DisableExchange means what it says.
func TestDisableExchange(t *testing.T) {
	h, _ := real(t)
	c := streaming(t, []string{h.URL}, func(c *client.Config) { c.DisableExchange = true })
	prepare(t, c, 1)
	s, err := c.Acquire(t.Context(), "gpu")
	require.NoError(t, err)
	require.NoError(t, s.Release())
	require.Zero(t, h.count("Exchange"))
	require.Equal(t, 1, h.count("AcquireSlot"))
}

// A client that is closed leaves no stream behind.
func TestCloseEndsTheStream(t *testing.T) {
	ended := make(chan struct{})
	s := &streamer{node: granting(time.Minute), exchange: func(ctx context.Context, stream *exchangeStream) error {
		if err := stream.Send(&govnodev1.ExchangeResponse{MaxInFlight: 1024}); err != nil {
			return err
		}
		for {
			m, err := stream.Receive()
			if err != nil {
				close(ended)
				return nil
			}
			if err := stream.Send(&govnodev1.ExchangeResponse{Answers: released(m.GetFrames())}); err != nil {
				return err
			}
		}
	}}
	h := listen(t, s.handler())
	c := streaming(t, []string{h.URL})
	_, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t"})
	require.Error(t, err, "an answer that is none of a begin")
	require.NoError(t, c.Close())
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("the stream outlived its client")
	}
}
