package server_test

import (
	"context"
	"fmt"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
)

// A line is one Exchange stream of a test.
type line struct {
	t      *testing.T
	stream *connect.BidiStreamForClientSimple[v1.ExchangeRequest, v1.ExchangeResponse]
	hello  *v1.ExchangeResponse
	cut    context.CancelFunc
}

func (n *node) exchange(opts ...connect.ClientOption) *line {
	n.t.Helper()
	ctx, cut := context.WithCancel(n.ctx())
	stream, err := n.h2(opts...).calls.Exchange(ctx)
	require.NoError(n.t, err)
	hello, err := stream.Receive()
	require.NoError(n.t, err)
	n.t.Cleanup(cut)
	return &line{t: n.t, stream: stream, hello: hello, cut: cut}
}

func (l *line) send(frames ...*v1.Operation) {
	l.t.Helper()
	require.NoError(l.t, l.stream.Send(&v1.ExchangeRequest{Frames: frames}))
}

// receive gathers answers until there are n, notices included.
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

func beginFrame(tag uint64, session, call string, change ...func(*v1.BeginCallRequest)) *v1.Operation {
	return &v1.Operation{Tag: tag, Op: &v1.Operation_Begin{Begin: beginRequest(session, call, change...)}}
}

func endFrame(tag uint64, session, call string) *v1.Operation {
	return &v1.Operation{Tag: tag, Op: &v1.Operation_End{End: &v1.EndCallRequest{SessionId: session, CallId: call, Status: v1.Status_STATUS_SUCCEEDED}}}
}

func TestExchangeBeginsAndEnds(t *testing.T) {
	n := start(t)
	n.putPolicy("name: p", "max_concurrent: 100", "backpressure_threshold: 100", "max_tool_calls: 1000")
	n.session("s")
	l := n.exchange()
	require.EqualValues(t, 1024, l.hello.MaxInFlight)
	var frames []*v1.Operation
	for i := range 50 {
		frames = append(frames, beginFrame(uint64(i+7), "s", fmt.Sprint("c", i)))
	}
	l.send(frames...)
	for tag, a := range l.receive(50) {
		require.Len(t, a, 1)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, a[0].GetBegin().GetOutcome(), "%d", tag)
	}
}
