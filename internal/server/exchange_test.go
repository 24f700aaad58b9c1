package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server"
	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A line is one Exchange stream of a test.
type line struct {
	t      testing.TB
	stream *connect.BidiStreamForClientSimple[v1.ExchangeRequest, v1.ExchangeResponse]
	hello  *v1.ExchangeResponse
	cut    context.CancelFunc
}

func (n *node) exchange(opts ...connect.ClientOption) *line {
	n.t.Helper()
	return n.exchangeIn(n.ctx(), opts...)
}

func (n *node) exchangeIn(ctx context.Context, opts ...connect.ClientOption) *line {
	n.t.Helper()
	ctx, cut := context.WithCancel(ctx)
	n.t.Cleanup(cut)
	stream, err := n.h2(opts...).calls.Exchange(ctx)
	require.NoError(n.t, err)
	hello, err := stream.Receive()
	require.NoError(n.t, err)
	return &line{t: n.t, stream: stream, hello: hello, cut: func() {
		cut()
		_ = stream.CloseRequest() // the transport looks at its context again then
	}}
}

func (l *line) send(frames ...*v1.Operation) {
	l.t.Helper()
	require.NoError(l.t, l.stream.Send(&v1.ExchangeRequest{Frames: frames}))
}

// receive gathers answers by tag until there are n, notices included.
func (l *line) receive(n int) map[uint64][]*v1.OperationResult {
	l.t.Helper()
	all := make(map[uint64][]*v1.OperationResult)
	for got := 0; got < n; {
		m, err := l.stream.Receive()
		require.NoError(l.t, err)
		for _, a := range m.Answers {
			all[a.Tag] = append(all[a.Tag], a)
			got++
		}
	}
	return all
}

// one is the answer of one frame.
func (l *line) one() *v1.OperationResult {
	l.t.Helper()
	for _, a := range l.receive(1) {
		return a[0]
	}
	return nil
}

func beginFrame(tag uint64, session, call string, change ...func(*v1.BeginCallRequest)) *v1.Operation {
	return &v1.Operation{Tag: tag, Op: &v1.Operation_Begin{Begin: beginRequest(session, call, change...)}}
}

func endFrame(tag uint64, session, call string) *v1.Operation {
	return &v1.Operation{Tag: tag, Op: &v1.Operation_End{End: &v1.EndCallRequest{SessionId: session, CallId: call, Status: v1.Status_STATUS_SUCCEEDED}}}
}

func requireAdmitted(t *testing.T, a *v1.OperationResult) {
	t.Helper()
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, a.GetBegin().GetOutcome(), "%v", a)
}

// A gate is a store whose Apply waits until it is opened, and which counts how
// many commands wait at once.
type gate struct {
	storage.Store
	mu       sync.Mutex
	open     chan struct{}
	now, max int
	before   func(session.Command) // called for every command that passes
}

func (g *gate) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	g.mu.Lock()
	g.now += len(cmds)
	g.max = max(g.max, g.now)
	open, before := g.open, g.before
	g.mu.Unlock()
	if open != nil {
		<-open
	}
	g.mu.Lock()
	g.now -= len(cmds)
	g.mu.Unlock()
	for _, c := range cmds {
		if before != nil {
			before(c)
		}
	}
	return g.Store.Apply(ctx, cmds...)
}

func (g *gate) close() (reopen func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	open := make(chan struct{})
	g.open = open
	return sync.OnceFunc(func() {
		g.mu.Lock()
		g.open = nil
		g.mu.Unlock()
		close(open)
	})
}

func (g *gate) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now
}

func gated(t *testing.T, change ...func(*server.Config)) (*node, *gate) {
	t.Helper()
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	g := &gate{Store: store}
	return startOn(t, g, change...), g
}

// roomy is a policy that admits as many calls as a session may have.
var roomy = []string{"name: p", "max_concurrent: 4096", "backpressure_threshold: 4096", "max_tool_calls: 100000", "log_all_calls: false"}

// Every frame is answered once, under its tag, however many messages they come
// in, by all protocols that have streams.
func TestExchangeAnswersEveryTag(t *testing.T) {
	for name, opts := range map[string][]connect.ClientOption{"connect": nil, "grpc": {connect.WithGRPC()}, "json": {connect.WithProtoJSON()}} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			n.putPolicy(roomy...)
			n.session("s")
			l := n.exchange(opts...)
			require.EqualValues(t, 1024, l.hello.MaxInFlight)
			for m := range 5 {
				var frames []*v1.Operation
				for i := range 20 {
					frames = append(frames, beginFrame(uint64(1000-m*20-i), "s", fmt.Sprintf("c%d.%d", m, i)))
				}
				l.send(frames...)
			}
			answers := l.receive(100)
			require.Len(t, answers, 100)
			tokens := make(map[uint64]bool)
			for tag, a := range answers {
				require.Len(t, a, 1)
				require.True(t, tag > 900 && tag <= 1000, "%d", tag)
				requireAdmitted(t, a[0])
				tokens[a[0].GetBegin().GetGrants()[0].GetToken()] = true
			}
			require.Len(t, tokens, 100)
			require.NoError(t, l.stream.CloseRequest())
			_, err := l.stream.Receive()
			require.ErrorIs(t, err, io.EOF, "the stream must end when its sender has ended it and everything is answered")
		})
	}
}

// What a frame is answered is what a request of its own is answered.
func TestExchangeSaysWhatUnarySays(t *testing.T) {
	n := start(t)
	n.putPolicy("name: p", "max_concurrent: 2", "backpressure_threshold: 1", "max_tool_calls: 3", "blocked_patterns: [secret]")
	n.putPool("gpu", 1)
	n.session("s")
	l := n.exchange()
	ask := func(op *v1.Operation) *v1.OperationResult { l.send(op); return l.one() }
	begins := map[string]func(*v1.BeginCallRequest){
		"admitted": func(*v1.BeginCallRequest) {},
		"gpu":      func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: "gpu"}} },
		"denied":   func(r *v1.BeginCallRequest) { r.ArgumentsJson = `{"q":"a secret"}` },
		"bad id":   func(r *v1.BeginCallRequest) { r.CallId = "a b" },
		"no pool":  func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: "none"}} },
		"nobody":   func(r *v1.BeginCallRequest) { r.SessionId = "nobody" },
		"no tool":  func(r *v1.BeginCallRequest) { r.Tool = "" },
	}
	for name, change := range begins {
		a := ask(beginFrame(1, "s", name, change, func(r *v1.BeginCallRequest) { r.CallId = "c-" + r.CallId[:2] }))
		res, err := n.calls.BeginCall(n.ctx(), beginRequest("s", name, change, func(r *v1.BeginCallRequest) { r.CallId = "c-" + r.CallId[:2] }))
		if err != nil {
			e := a.GetError()
			require.NotNil(t, e, "%s: %v", name, a)
			var ce *connect.Error
			require.ErrorAs(t, err, &ce)
			require.Equal(t, connect.CodeOf(err).String(), e.Code, name)
			require.Equal(t, info(t, err).Reason, e.Reason, name)
			require.Contains(t, e.Message, ce.Message(), name)
			continue
		}
		got := a.GetBegin()
		require.NotNil(t, got, "%s: %v", name, a)
		for _, r := range []*v1.BeginCallResponse{got, res} { // as of now
			r.Decision.EvaluationTime, r.Counters, r.Pressure, r.Index = nil, nil, nil, 0
			for _, g := range r.Grants {
				g.Ttl = nil
			}
		}
		require.True(t, proto.Equal(res, got), "%s: %v\n%v", name, res, got)
	}
	ended := ask(endFrame(2, "s", "c-ad")).GetEnd()
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, ended.GetOutcome())
	require.Equal(t, v1.Outcome_OUTCOME_ALREADY_ENDED, n.end("s", "c-ad").Outcome)
}

// A frame that is bad is answered with what is wrong with it, and changes
// nothing for its neighbours.
func TestExchangeBadFrame(t *testing.T) {
	n := start(t)
	n.putPolicy(roomy...)
	n.session("s")
	l := n.exchange()
	l.send(
		beginFrame(1, "s", "a"),
		beginFrame(2, "s", "not an id"),
		&v1.Operation{Tag: 3},
		endFrame(4, "s", "never-begun"),
		&v1.Operation{Tag: 5, Timeout: durationpb.New(-time.Second), Op: beginFrame(5, "s", "late").Op},
		&v1.Operation{Tag: 6, Op: &v1.Operation_Release{Release: &v1.ReleaseSlotRequest{Pool: "policy/p", SlotId: "x"}}},
		beginFrame(7, "s", "b"),
	)
	answers := l.receive(7)
	requireAdmitted(t, answers[1][0])
	requireAdmitted(t, answers[7][0])
	for tag, want := range map[uint64][2]string{
		2: {"invalid_argument", "begin.callId"}, 3: {"invalid_argument", "op: is missing"}, 4: {"not_found", "callId"},
		5: {"invalid_argument", "timeout"}, 6: {"invalid_argument", "release.pool"},
	} {
		e := answers[tag][0].GetError()
		require.Equal(t, want[0], e.GetCode(), "%d: %v", tag, e)
		require.Contains(t, e.GetMessage(), want[1])
	}
	require.EqualValues(t, 2, n.getSession("s").Attempts)
}

// Of 2,000 frames no more than 1,024 are ever on their way: the rest is not
// even read.
func TestExchangeStopsReading(t *testing.T) {
	n, g := gated(t)
	n.putPolicy(roomy...)
	for i := range 4 {
		n.session(fmt.Sprint("s", i))
	}
	l := n.exchange()
	open := g.close()
	defer open()
	for i := range 2000 {
		l.send(beginFrame(uint64(i), fmt.Sprint("s", i%4), fmt.Sprint("c", i)))
	}
	eventually(t, "what may be on its way is", func() bool { return g.waiting() == 1024 })
	other := n.exchange()
	require.Never(t, func() bool { return g.waiting() > 1024 }, 50*time.Millisecond, 5*time.Millisecond)
	require.NotNil(t, other.hello, "other streams are not held up")
	open()
	require.Len(t, l.receive(2000), 2000)
	require.Equal(t, 1024, g.max)
}

// One message may hold more frames than may be on their way at once.
func TestExchangeLargeMessage(t *testing.T) {
	n, g := gated(t)
	n.putPolicy(roomy...)
	frames := make([]*v1.Operation, 1500)
	for i := range frames {
		frames[i] = endFrame(uint64(i), "s", "never-begun")
	}
	n.session("s")
	l := n.exchange()
	l.send(frames...)
	require.Len(t, l.receive(1500), 1500)
	require.LessOrEqual(t, g.max, 1024)
}

// A call that waits is said to be queued first, and answered when its slot has
// come. It is one decision in the audit.
func TestExchangeQueuedThenAdmitted(t *testing.T) {
	n := start(t)
	n.putPolicy("name: p", "max_concurrent: 1", "backpressure_threshold: 1")
	n.session("s")
	l := n.exchange()
	l.send(beginFrame(1, "s", "a"), beginFrame(2, "s", "b", waiting(time.Minute)), beginFrame(3, "s", "c"))
	answers := l.receive(3)
	requireAdmitted(t, answers[1][0])
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, answers[2][0].GetBegin().GetOutcome())
	require.EqualValues(t, 1, answers[2][0].GetBegin().GetQueue().GetPosition())
	require.Equal(t, "policy/p", answers[2][0].GetBegin().GetQueue().GetPool())
	require.Equal(t, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT, answers[3][0].GetBegin().GetOutcome())
	l.send(endFrame(4, "s", "a"))
	answers = l.receive(2)
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, answers[4][0].GetEnd().GetOutcome())
	requireAdmitted(t, answers[2][0])
	var decisions int
	for _, line := range n.audit.all(t) {
		if line["call_id"] == "b" {
			decisions++
			require.Equal(t, "admitted", line["outcome"])
		}
	}
	require.Equal(t, 1, decisions)
}

// A frame's own timeout ends its wait, and with it its place.
func TestExchangeTimeoutEndsAWait(t *testing.T) {
	n := start(t)
	n.putPolicy("name: p", "max_concurrent: 1", "backpressure_threshold: 1")
	n.session("s")
	n.begin("s", "a")
	l := n.exchange()
	op := beginFrame(1, "s", "b", waiting(time.Minute))
	op.Timeout = durationpb.New(20 * time.Millisecond)
	l.send(op)
	a := l.receive(2)[1]
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, a[0].GetBegin().GetOutcome())
	require.Equal(t, "deadline_exceeded", a[1].GetError().GetCode())
	require.Equal(t, "OUTCOME_UNKNOWN", a[1].GetError().GetReason())
}

// Slots and calls that wait are given up over the stream as well.
func TestExchangeSlots(t *testing.T) {
	n := start(t)
	n.putPolicy("name: p", "max_concurrent: 1", "backpressure_threshold: 1")
	n.putPool("gpu", 1)
	n.session("s")
	l := n.exchange()
	l.send(&v1.Operation{Tag: 1, Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "gpu", SlotId: "x"}}},
		&v1.Operation{Tag: 2, Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "gpu", SlotId: "y", Wait: durationpb.New(time.Minute)}}},
		beginFrame(3, "s", "a"), beginFrame(4, "s", "b", waiting(time.Minute)))
	answers := l.receive(4)
	token := answers[1][0].GetAcquire().GetToken()
	require.NotZero(t, token)
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, answers[2][0].GetAcquire().GetOutcome())
	l.send(
		&v1.Operation{Tag: 5, Op: &v1.Operation_Renew{Renew: &v1.RenewSlotsRequest{Slots: []*v1.SlotRef{{Pool: "gpu", SlotId: "x", Token: token}, {Pool: "gpu", SlotId: "z", Token: 9}}}}},
		&v1.Operation{Tag: 6, Op: &v1.Operation_Release{Release: &v1.ReleaseSlotRequest{Pool: "gpu", SlotId: "x", Token: token}}},
		&v1.Operation{Tag: 7, Op: &v1.Operation_Cancel{Cancel: &v1.CancelCallRequest{SessionId: "s", CallId: "b"}}},
	)
	answers = l.receive(5)
	require.Equal(t, v1.Outcome_OUTCOME_RENEWED, answers[5][0].GetRenew().GetResults()[0].GetOutcome())
	require.Equal(t, v1.Outcome_OUTCOME_LEASE_EXPIRED, answers[5][0].GetRenew().GetResults()[1].GetOutcome())
	require.Equal(t, v1.Outcome_OUTCOME_RELEASED, answers[6][0].GetRelease().GetOutcome())
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, answers[2][0].GetAcquire().GetOutcome())
	require.Equal(t, v1.Outcome_OUTCOME_CANCELLED, answers[7][0].GetCancel().GetOutcome())
	require.Equal(t, v1.Outcome_OUTCOME_CANCELLED, answers[4][0].GetBegin().GetOutcome())
}

// A stream has the namespace of its header.
func TestExchangeNamespace(t *testing.T) {
	n := start(t)
	n.putPolicy(roomy...)
	n.session("s")
	ctx, call := connect.NewClientContext(n.ctx())
	call.RequestHeader().Set(input.NamespaceHeader, "other")
	l := n.exchangeIn(ctx)
	l.send(beginFrame(1, "s", "a"))
	require.Equal(t, "not_found", l.one().GetError().GetCode())
}

// Without HTTP/2 there is no stream, and everything else goes on.
func TestExchangeNeedsHTTP2(t *testing.T) {
	n := start(t)
	n.putPolicy(roomy...)
	n.session("s")
	stream, err := n.calls.Exchange(n.ctx())
	if err == nil {
		_, err = stream.Receive()
	}
	require.Error(t, err)
	require.False(t, errors.Is(err, io.EOF))
	status, _ := n.post("CallService/Exchange", `{}`)
	require.Equal(t, http.StatusHTTPVersionNotSupported, status)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "a").Outcome)
}

// A frame is told that it waits before it is told what came of that, however soon that
// is and however long its message takes.
func TestANoticeComesBeforeTheAnswer(t *testing.T) {
	n := start(t)
	n.putPolicy(roomy...)
	n.session("s")
	n.putPool("gpu", 1)
	ctx, stop := context.WithCancel(n.ctx())
	var others sync.WaitGroup
	defer others.Wait()
	defer stop()
	others.Go(func() { // whoever waits is looked for with every change
		for ctx.Err() == nil {
			n.store.Apply(ctx, &session.Increment{NS: "default", By: session.Maker{Client: "others"}, Key: "k"})
		}
	})
	l := n.exchange()
	for round := range 20 {
		held, next := fmt.Sprint("held", round), fmt.Sprint("next", round)
		token := n.acquire("gpu", held).Token
		frames := []*v1.Operation{
			{Tag: 1, Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "gpu", SlotId: next, Client: "w", Wait: durationpb.New(time.Minute)}}},
			{Tag: 2, Op: &v1.Operation_Release{Release: &v1.ReleaseSlotRequest{Pool: "gpu", SlotId: held, Client: "w", Token: token}}},
		}
		for i := range uint64(400) {
			frames = append(frames, endFrame(3+i, "s", "none"))
		}
		l.send(frames...)
		answers := l.receive(len(frames) + 1)
		require.Equal(t, v1.Outcome_OUTCOME_RELEASED, answers[2][0].GetRelease().GetOutcome(), "%v", answers[2])
		require.Equal(t, v1.Outcome_OUTCOME_QUEUED, answers[1][0].GetAcquire().GetOutcome())
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, answers[1][1].GetAcquire().GetOutcome())
		_, err := n.slots.ReleaseSlot(n.ctx(), &v1.ReleaseSlotRequest{Pool: "gpu", SlotId: next, Client: "w", Token: answers[1][1].GetAcquire().GetToken()})
		require.NoError(t, err)
	}
}
