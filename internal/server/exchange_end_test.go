package server_test

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A stream that is cut in the middle recalls nothing, and the same ids on
// another stream have no second effect.
func TestExchangeCutInTheMiddle(t *testing.T) {
	n, g := gated(t)
	n.putPolicy(roomy...)
	n.session("s")
	frames := make([]*v1.Operation, 50)
	for i := range frames {
		frames[i] = beginFrame(uint64(i), "s", fmt.Sprint("c", i))
	}
	open := g.close()
	defer open()
	first := n.exchange()
	first.send(frames...)
	eventually(t, "they are on their way", func() bool { return g.waiting() == 50 })
	first.cut()
	second := n.exchange()
	second.send(frames...)
	eventually(t, "they are on their way again", func() bool { return g.waiting() == 100 })
	open()
	for _, a := range second.receive(50) {
		requireAdmitted(t, a[0])
	}
	got := n.getSession("s")
	require.EqualValues(t, 50, got.Attempts)
	require.EqualValues(t, 50, got.Calls)
	require.Len(t, got.OpenCalls, 50)
	pool, err := n.slots.GetPool(n.ctx(), &v1.GetPoolRequest{Pool: "policy/p"})
	require.NoError(t, err)
	require.EqualValues(t, 50, pool.Pool.InUse)
}

// One who waits over a stream that ends keeps the place for whoever asks for
// the same id over another.
func TestExchangeKeepsThePlace(t *testing.T) {
	n := start(t)
	n.putPolicy("name: p", "max_concurrent: 1", "backpressure_threshold: 1")
	n.session("s")
	n.begin("s", "held")
	first, other := n.exchange(), n.exchange()
	first.send(beginFrame(1, "s", "early", waiting(time.Minute)))
	require.EqualValues(t, 1, first.one().GetBegin().GetQueue().GetPosition())
	other.send(beginFrame(1, "s", "later", waiting(time.Minute)))
	require.EqualValues(t, 2, other.one().GetBegin().GetQueue().GetPosition())
	first.cut()
	eventually(t, "nobody waits over it any more", func() bool {
		println(int(n.metric("gov_waiting_requests")))
		return n.metric("gov_waiting_requests") == 1
	})
	again := n.exchange()
	again.send(beginFrame(9, "s", "early", waiting(time.Minute)))
	require.EqualValues(t, 1, again.one().GetBegin().GetQueue().GetPosition())
	n.end("s", "held")
	requireAdmitted(t, again.one())
	waiters := n.waitingIn("policy/p")
	require.Len(t, waiters, 1)
	require.Equal(t, "later", waiters[0].SlotId)
}

// A node that drains says so, answers what it has taken on, tells those who
// wait to go on elsewhere, and ends the stream.
func TestExchangeDrains(t *testing.T) {
	n, g := gated(t)
	n.putPolicy("name: p", "max_concurrent: 2", "backpressure_threshold: 2")
	n.session("s")
	l := n.exchange()
	l.send(beginFrame(1, "s", "a"), beginFrame(2, "s", "b"), beginFrame(3, "s", "c", waiting(time.Minute)))
	l.receive(3)
	open := g.close()
	defer open()
	l.send(endFrame(4, "s", "b"))
	eventually(t, "it is on its way", func() bool { return g.waiting() >= 1 })
	drained := make(chan error, 1)
	go func() { drained <- n.server.Drain(n.ctx()) }()
	m, err := l.stream.Receive()
	require.NoError(t, err)
	for !m.GoAway {
		m, err = l.stream.Receive()
		require.NoError(t, err)
	}
	open()
	answers := make(map[uint64]*v1.OperationResult)
	for err == nil {
		for _, a := range m.Answers {
			answers[a.Tag] = a
		}
		m, err = l.stream.Receive()
	}
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, answers[4].GetEnd().GetOutcome(), "what was taken on is answered")
	require.Equal(t, "unavailable", answers[3].GetError().GetCode())
	require.Equal(t, "OUTCOME_UNKNOWN", answers[3].GetError().GetReason())
	require.NoError(t, <-drained)

	late := n.exchange()
	m, err = late.stream.Receive()
	require.NoError(t, err)
	require.True(t, m.GoAway, "a new stream is told at once")
}

// unfound is a store whose reads of what is not there nearby take until they
// are let go.
type unfound struct {
	storage.Store
	latest chan struct{}
}

func (u *unfound) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if r == storage.Latest && k == session.SessionKey("default", "nobody") {
		<-u.latest
	}
	return u.Store.Get(ctx, k, r)
}

// A frame that needs more than this node has holds up nobody, neither in its
// message nor behind it.
func TestExchangeSlowFrame(t *testing.T) {
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	u := &unfound{Store: store, latest: make(chan struct{})}
	n := startOn(t, u)
	n.putPolicy(roomy...)
	n.session("s")
	l := n.exchange()
	l.send(beginFrame(1, "nobody", "a"), beginFrame(2, "s", "b"))
	requireAdmitted(t, l.receive(1)[2][0])
	l.send(beginFrame(3, "s", "c"))
	requireAdmitted(t, l.receive(1)[3][0])
	close(u.latest)
	require.Equal(t, "not_found", l.receive(1)[1][0].GetError().GetCode())
}

// What panics on the way costs its own answer; the stream and the node go on.
func TestExchangeSurvivesAPanic(t *testing.T) {
	n, g := gated(t)
	n.putPolicy(roomy...)
	n.session("s")
	g.before = func(c session.Command) {
		if b, ok := c.(*session.Begin); ok && b.Call == "bad" {
			panic("as the test wants it")
		}
	}
	l := n.exchange()
	l.send(beginFrame(1, "s", "bad"))
	e := l.one().GetError()
	require.Equal(t, "internal", e.GetCode())
	require.Equal(t, "OUTCOME_UNKNOWN", e.GetReason())
	l.send(beginFrame(2, "s", "good"))
	requireAdmitted(t, l.one())
	require.EqualValues(t, 1, n.metric("gov_handler_panics_total"))
}

// Frames are counted under the method of their operation.
func TestExchangeMetrics(t *testing.T) {
	n := start(t)
	n.putPolicy(roomy...)
	n.session("s")
	l := n.exchange()
	l.send(beginFrame(1, "s", "a"), beginFrame(2, "s", "b"), beginFrame(3, "s", "no id"))
	l.receive(3)
	require.EqualValues(t, 2, n.metric(`gov_requests_total{code="ok",method="BeginCall",service="CallService"}`))
	require.EqualValues(t, 1, n.metric(`gov_requests_total{code="invalid_argument",method="BeginCall",service="CallService"}`))
	require.EqualValues(t, 3, n.metric(`gov_request_duration_seconds_count{method="BeginCall",service="CallService"}`))
	require.EqualValues(t, 2, n.metric(`gov_call_outcomes_total{outcome="admitted"}`))
}

// metric is the value of one series of the node's metrics, 0 if it is absent.
func (n *node) metric(series string) float64 {
	n.t.Helper()
	_, text := n.get("/metrics")
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			v, err := strconv.ParseFloat(rest, 64)
			require.NoError(n.t, err)
			return v
		}
	}
	return 0
}
