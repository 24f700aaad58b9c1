package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/quota"
	"example.com/govnode/internal/server/waiting"
	"example.com/govnode/internal/window"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// A stream of operations: how they are read, ordered together and answered.
// What becomes of each stands in exchange_frame.go.

// Bounds of one stream. Beyond them the server stops reading, so that whoever
// sends too much is held up by the transport and costs no more memory.
const (
	// maxUnanswered is how many frames may be without an answer, beside those that
	// wait and those that are set apart.
	maxUnanswered = 1024
	// maxStreamWaits is how many frames may wait for a slot; further ones count
	// among the unanswered.
	maxStreamWaits = 4096
	// maxStreamApart is how many frames may be set apart because it takes long to
	// judge them; further ones are refused.
	maxStreamApart = 4096
	// maxUnansweredBytes bounds the arguments that unanswered frames hold,
	// waiting ones included.
	maxUnansweredBytes = 16 << 20
	// maxOrdered is how many frames are ordered together: as many commands as a
	// store with a log takes in one go.
	maxOrdered = 512
	// maxAnswers bounds the answers of one message.
	maxAnswers = 1024
)

// Exchange answers operations as they come, each by itself and in any order.
// What one message brings is checked and judged on the goroutine that received
// it, and ordered in one go; the next message does not wait for that.
func (s callService) Exchange(ctx context.Context, stream *connect.BidiStream[v1.ExchangeRequest, v1.ExchangeResponse]) error {
	leave, err := s.quotas.Enter(ctx, input.Namespace(ctx), quota.Streams)
	if err != nil {
		return err
	}
	defer leave()
	x := newExchange(ctx, s.Server, stream)
	if err := x.send(&v1.ExchangeResponse{MaxInFlight: maxUnanswered}); err != nil {
		return err
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		x.receive()
	}()
	err = x.answer(ctx)
	x.end()
	if stopReading(ctx) {
		<-received
	}
	return err
}

// readStopper is the key of a function that ends the reading of a request.
type readStopper struct{}

// stoppable lets a handler end its own reading: it may be in the middle of it
// when the node drains, and must not return before.
func stoppable(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == govnodev1connect.CallServiceExchangeProcedure {
			stop := func() bool { return http.NewResponseController(w).SetReadDeadline(time.Now()) == nil }
			r = r.WithContext(context.WithValue(r.Context(), readStopper{}, stop))
		}
		h.ServeHTTP(w, r)
	})
}

// stopReading ends the reading of a request, and reports whether it could.
func stopReading(ctx context.Context) bool {
	stop, ok := ctx.Value(readStopper{}).(func() bool)
	return ok && stop()
}

// An exchange is one stream. One goroutine receives, the handler's sends, and
// one more puts in order what a message brought.
type exchange struct {
	s       *Server
	stream  *connect.BidiStream[v1.ExchangeRequest, v1.ExchangeResponse]
	base    context.Context // of what was received: the end of the stream recalls nothing
	quick   context.Context // the same for what may not take long
	waits   context.Context // of those who wait: ends with the stream
	endWait context.CancelCauseFunc
	methods *exchangeMethods
	leader  string // as the other side was told; only the sender's

	namespace string
	who       atomic.Pointer[access.Principal] // of what comes next

	work  sync.WaitGroup // messages and waits under way
	ready chan struct{}  // capacity 1: the sender has something to do

	mu      sync.Mutex
	window  *window.Window // of frames that are not answered
	told    []uint64       // tags of frames that were set apart, not sent yet
	answers []*frame       // not sent yet
	err     error          // why the stream cannot go on; nil at its regular end
	refused error          // why nothing more is taken; what is under way has its answers first
}

func newExchange(ctx context.Context, s *Server, stream *connect.BidiStream[v1.ExchangeRequest, v1.ExchangeResponse]) *exchange {
	x := &exchange{s: s, stream: stream, methods: s.metrics.exchangeMethods(), ready: make(chan struct{}, 1)}
	x.window = window.New(&x.mu, window.Limits{
		InFlight: maxUnanswered, Waiting: maxStreamWaits, Apart: maxStreamApart, Bytes: maxUnansweredBytes,
		Message: window.Size{Count: maxOrdered},
	})
	lasting := context.WithoutCancel(ctx)
	x.namespace = input.Namespace(ctx)
	x.base = &exchangeContext{Context: lasting, namespace: x.namespace, who: &x.who}
	x.quick = &exchangeContext{Context: lasting, namespace: x.namespace, who: &x.who, quick: true}
	x.waits, x.endWait = context.WithCancelCause(x.base)
	x.who.Store(access.From(ctx))
	return x
}

// receive takes messages on until the stream ends, or this end has closed it.
func (x *exchange) receive() {
	for {
		m, err := x.stream.Receive()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			x.close(err)
			return
		}
		if err := x.known(); err != nil {
			x.refuse(err)
			return
		}
		now := time.Now()
		for frames := m.GetFrames(); len(frames) > 0; {
			n := x.place(len(frames))
			if n == 0 {
				return
			}
			x.begin(frames[:n], now)
			frames = frames[n:]
		}
	}
}

// place waits until the stream may have more unanswered frames, and returns for
// how many there is room; 0 when nothing is taken on any more. x.work then
// counts one more.
func (x *exchange) place(frames int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n, err := x.window.Admit(x.base, frames)
	if err == nil {
		x.work.Add(1)
	}
	return n
}

// close ends the taking on of frames. With an error the stream ends at once,
// without one when everything is answered.
func (x *exchange) close(err error) {
	x.mu.Lock()
	x.window.Close(waiting.ErrStreamEnded)
	if x.err == nil {
		x.err = err
	}
	x.mu.Unlock()
	x.wake()
}

func (x *exchange) wake() {
	select {
	case x.ready <- struct{}{}:
	default:
	}
}

// answer sends answers as they come, until the stream has ended. A node that
// drains says so, answers what it has taken on, and ends the stream: whatever
// is not answered then was not taken on.
func (x *exchange) answer(ctx context.Context) error {
	drained := x.s.drained
	guard, stop := x.s.auth.Guard(ctx)
	defer stop()
	revoked := guard.Done()
	if guard == ctx { // nobody is asked
		revoked = nil
	}
	var spare []*frame
	for {
		out := &v1.ExchangeResponse{}
		select {
		case <-x.ready:
		case <-drained:
			drained = nil
			out.GoAway = true
			x.close(nil)
		case <-ctx.Done():
			return fault.GaveUp(ctx)
		case <-revoked:
			if ctx.Err() != nil {
				return fault.GaveUp(ctx)
			}
			revoked = nil
			x.refuse(fault.GaveUp(guard))
		}
		answers, apart, err := x.take(spare)
		if err != nil {
			return err
		}
		out.Apart = apart
		for rest := answers; len(rest) > 0 || out.GoAway || len(out.Apart) > 0; {
			now := rest[:min(len(rest), maxAnswers)]
			rest = rest[len(now):]
			out.Answers = make([]*v1.OperationResult, len(now))
			for i, f := range now {
				out.Answers[i] = &f.result
			}
			if err := x.send(out); err != nil {
				return err
			}
			out = &v1.ExchangeResponse{}
		}
		if x.free(answers) {
			return x.refusal()
		}
		clear(answers)
		spare = answers[:0]
	}
}

// send adds to a message who leads, where that is news.
func (x *exchange) send(m *v1.ExchangeResponse) error {
	if c := x.s.cfg.Cluster; c != nil {
		if leader := c.LeaderAPI(); leader != "" && leader != x.leader {
			x.leader, m.LeaderAddress = leader, leader
		}
	}
	return x.stream.Send(m)
}

// take returns what there is to send, and leaves spare to be filled.
func (x *exchange) take(spare []*frame) (answers []*frame, apart []uint64, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	answers, apart = x.answers, x.told
	x.answers, x.told = spare, nil
	return answers, apart, x.err
}

// free gives the places of what was sent to others, and reports whether that
// was all.
func (x *exchange) free(answers []*frame) (over bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range answers {
		if !f.notice {
			x.window.Leave(f.class, window.Size{Count: 1, Bytes: f.size})
		}
	}
	return x.window.Over()
}

// post hands answers to the sender.
func (x *exchange) post(answers ...*frame) {
	if len(answers) == 0 {
		return
	}
	x.mu.Lock()
	x.answers = append(x.answers, answers...)
	x.mu.Unlock()
	x.wake()
}

// end waits for what the store has not answered yet: it must not outlive the
// handler, and takes no longer than a request does. Those who wait keep their
// places.
func (x *exchange) end() {
	x.close(nil)
	x.endWait(waiting.ErrStreamEnded)
	x.work.Wait()
}

// known looks at who sends: what has changed since the last message holds for this one.
func (x *exchange) known() error {
	p := x.who.Load()
	if p == nil {
		return nil
	}
	next, err := x.s.auth.Nearby(x.base, p)
	if err == nil && next != p {
		x.who.Store(next)
	}
	return err
}

// refuse ends a stream whose sender may not be here any more: who waits is told, what is
// under way has its answers, and nothing more is taken.
func (x *exchange) refuse(why error) {
	x.mu.Lock()
	if x.refused == nil {
		x.refused = why
	}
	x.mu.Unlock()
	x.endWait(why)
	x.close(nil)
}

func (x *exchange) refusal() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.refused
}
