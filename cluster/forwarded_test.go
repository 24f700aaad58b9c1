package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unique"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cluster/transport"
	"example.com/govnode/internal/window"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/proto/govnode/node/v1/nodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// text returns a text of n bytes that no other number has.
func text(i, n int) string { return fmt.Sprintf("%0*d", n, i) }

// largestSession has as much of everything as a session may have.
func largestSession() *session.Session {
	x := &session.Session{
		Agent: unique.Make(text(1, session.MaxID)), Policy: unique.Make(text(2, session.MaxID)), Version: 1<<31 - 1, Phase: session.PhaseExpired,
		Pin:    &session.Pin{Digest: session.Digest{1}, Limits: session.Limits{MaxAttempts: 1<<31 - 1, MaxTokens: 1 << 62, MaxToolCalls: 1<<31 - 1, MaxConcurrent: 4096, Timeout: session.MaxDuration}},
		Opened: session.MaxDuration, IdleTTL: session.MaxIdleTTL, Used: session.MaxDuration,
		Attempts: 1<<32 - 1, Calls: 1<<32 - 1, Executions: 1<<32 - 1, Failures: 1<<32 - 1, Consecutive: 1<<32 - 1,
		Tokens: 1 << 62, Reserved: 1 << 62,
		More: &session.More{Parent: text(3, session.MaxID), Baseline: session.Digest{2}, Drift: 1 << 62},
	}
	for i := range session.MaxToolLimits {
		x.Pin.Limits.PerTool = append(x.Pin.Limits.PerTool, session.ToolLimit{Tool: text(i, session.MaxTool), Max: 1<<32 - 1})
	}
	for i := range session.MaxAttributes {
		x.More.Attributes = append(x.More.Attributes, session.Attr{Name: text(i, session.MaxAttribute/2), Value: text(i, session.MaxAttribute/2)})
	}
	for i := range session.MaxTools {
		x.Tools = append(x.Tools, session.ToolCount{Tool: unique.Make(text(i, session.MaxTool)), Calls: 1<<32 - 1})
	}
	for i := range session.MaxOpen {
		h := session.Held{
			Holder: "s" + text(4, session.MaxID) + " " + text(i, session.MaxID), Started: session.MaxDuration, Deadline: session.MaxDuration, Until: session.MaxDuration,
			Tokens: session.MaxCallTokens, Tool: unique.Make(text(i, session.MaxTool)), Rule: session.MaxRule, Kind: session.Handoff,
		}
		for j := range h.Content {
			h.Content[j] = 255
		}
		for p := range session.MaxPools + 1 {
			h.Pools = append(h.Pools, session.Hold{Pool: unique.Make(text(i*10+p, len("policy/")+session.MaxID)), Token: 1<<64 - 1, Weight: session.MaxSlots})
		}
		for p := range session.MaxRates {
			h.Pools = append(h.Pools, session.Hold{Pool: unique.Make(largestRate(i*10 + p)), Token: 1<<64 - 1, Weight: session.MaxRate})
		}
		h.Gates = &session.HeldGates{}
		x.Open = append(x.Open, h)
	}
	return x
}

func largestRate(i int) string {
	return session.RatePool(session.PolicyRate(text(1, session.MaxID), text(2, session.MaxRateName), text(i, session.MaxID)))
}

// largestAnswer has more in it than any command is answered: a session, all the
// pools of one, and all the calls of one as lapsed.
func largestAnswer() storage.Answer {
	r := session.Result{Code: session.StalePremise, Digest: session.Digest{1}, After: &session.After{Now: session.MaxDuration, Session: largestSession()}}
	for i := range session.MaxOpen*session.MaxPools + 1 {
		r.Pools = append(r.Pools, text(i, len("policy/")+session.MaxID))
	}
	for i := range session.MaxOpen * session.MaxRates {
		r.Pools = append(r.Pools, largestRate(i))
	}
	for i := range session.MaxOpen {
		r.Lapsed = append(r.Lapsed, session.Lapse{Session: text(1, session.MaxID), Call: text(i, session.MaxID), Tool: text(i, session.MaxTool)})
	}
	return storage.Done(r, 1<<64-1)
}

// However large the answers of a batch are, each of its messages can be sent, and
// those who wait get what is theirs.
func TestAnswersAreSplitBySize(t *testing.T) {
	small, large := storage.Done(session.Result{Value: 1}, 1), largestAnswer()
	middle := storage.Refused(fmt.Errorf("%s", strings.Repeat("x", maxPart/4)))
	for name, c := range map[string]struct {
		answers  []storage.Answer
		messages int
	}{
		"none":                 {nil, 1},
		"small ones":           {[]storage.Answer{small, small, small}, 1},
		"one that is too much": {[]storage.Answer{large}, 1},
		"a large one between":  {[]storage.Answer{small, large, small, small}, 3},
		"many":                 {[]storage.Answer{middle, middle, middle, middle, middle, small, middle}, 2},
		"all large":            {[]storage.Answer{large, large, large, large}, 4},
		"as much as fits":      {[]storage.Answer{middle, middle, middle, middle}, 1},
		"twice as much":        {[]storage.Answer{middle, middle, middle, middle, middle, middle, middle, middle}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newTestForwarder()
			var groups []*group
			for at := 0; at < len(c.answers); { // of one command, and of two
				n := min(1+len(groups)%2, len(c.answers)-at)
				groups = append(groups, sized(make([]int, n)...))
				at += n
			}
			f.underWay(7, groups)
			messages := 0
			require.NoError(t, sendAnswers(7, c.answers, func(r *nodev1.ForwardResponse) error {
				require.Equal(t, 1, f.queue.underWay(), "the batch is under way")
				require.LessOrEqual(t, proto.Size(r), transport.MaxMessage)
				messages++
				f.answer(r)
				return nil
			}))
			require.Equal(t, c.messages, messages)
			require.Zero(t, f.queue.underWay())
			require.Empty(t, f.sent)
			for _, g := range groups {
				<-g.done
				for _, a := range g.answers {
					require.Equal(t, writeAnswer(&c.answers[0]), writeAnswer(&a))
					c.answers = c.answers[1:]
				}
			}
		})
	}
}

// What was answered before the stream broke is known, and only that.
func TestABatchThatBreaksOffAmongItsAnswers(t *testing.T) {
	f := newTestForwarder()
	groups := []*group{sized(1), sized(1, 1), sized(1)}
	f.underWay(1, groups)
	done := writeAnswer(new(storage.Done(session.Result{}, 7)))
	f.answer(&nodev1.ForwardResponse{Batch: 1, Answers: []*nodev1.ForwardAnswer{done}, More: true})
	<-groups[0].done
	f.answer(&nodev1.ForwardResponse{Batch: 1, Answers: []*nodev1.ForwardAnswer{done}, More: true})
	f.end(fmt.Errorf("cut off"))
	var outcomes []storage.Outcome
	for _, g := range groups {
		<-g.done
		for _, a := range g.answers {
			outcomes = append(outcomes, a.Outcome)
		}
	}
	require.Equal(t, []storage.Outcome{storage.Applied, storage.Applied, storage.Unknown, storage.Unknown}, outcomes)
}

// shared opens a session that has many calls under way, and returns the command
// that is answered with all of them.
func shared(t *testing.T, n *testNode) *session.Open {
	apply := func(cmds ...session.Command) {
		for _, a := range n.Apply(within(t, 20*time.Second), cmds...) {
			require.NoError(t, a.Err)
			require.False(t, a.Result.Code.Failure(), a.Result.Code)
		}
	}
	d := session.Digest{1}
	apply(&session.PutPolicy{NS: "n", By: session.Maker{Client: "c", Request: "1"}, Name: "p", Digest: d, Tree: []byte("x"),
		Limits: session.Limits{MaxConcurrent: 4096, MaxAttempts: 1e6, MaxToolCalls: 1e6, Timeout: time.Hour, MaxTokens: 1}})
	open := &session.Open{NS: "n", Session: "shared", Agent: "a", Policy: "p", Digest: d, IdleTTL: time.Hour}
	apply(open)
	var calls []session.Command
	for i := range 300 {
		calls = append(calls, &session.Begin{NS: "n", Session: open.Session, Call: fmt.Sprintf("01ARZ3NDEKTSV4RRFFQ6%06d", i), CallKind: session.Tool, Tool: "t", Digest: d,
			Verdict: session.Verdict{Allow: true}, Pools: []session.Want{{Pool: "policy/p", Weight: 1}}, TTL: time.Hour})
	}
	apply(calls...)
	return open
}

// Many ask through a follower, at once and again, for a session that is there
// already. All get it, though their answers are larger together than a message.
func TestLargeAnswersAreForwarded(t *testing.T) {
	f := newCluster(t, 2, nil).follower()
	open := shared(t, f)
	asked := make([]session.Command, 700)
	for i := range asked {
		asked[i] = open
	}
	for range inFlight + 1 {
		size := 0
		for _, a := range f.Apply(within(t, 20*time.Second), asked...) {
			require.NoError(t, a.Err)
			require.Len(t, a.Result.After.Session.Open, 300)
			size += len(session.EncodeResult(&a.Result))
		}
		require.Greater(t, size, transport.MaxMessage)
	}
	require.Zero(t, f.forwarded())
}

// An answer that cannot be sent ends the stream, also where the connection is
// sound and the other side goes on asking: it would wait for good.
func TestAnAnswerThatCannotBeSentEndsItsStream(t *testing.T) {
	l := newCluster(t, 1, nil).leader()
	path, h := nodev1connect.NewNodeServiceHandler(&service{l.Node}, connect.WithSendMaxBytes(100), connect.WithCompression("gzip", nil, nil))
	mux := http.NewServeMux()
	mux.Handle(path, h)
	server := httptest.NewUnstartedServer(mux)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server.Config.Protocols = protocols
	server.Start()
	t.Cleanup(server.Close)
	client := nodev1connect.NewNodeServiceClient(&http.Client{Transport: &http.Transport{Protocols: protocols}}, server.URL)
	before := streams()
	stream, err := client.Forward(within(t, 20*time.Second))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&nodev1.ForwardRequest{}))
	_, err = stream.Receive()
	require.NoError(t, err)
	require.NoError(t, stream.Send(&nodev1.ForwardRequest{Batch: 1, Commands: make([]*nodev1.ForwardedCommand, 20)}))
	_, err = stream.Receive()
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err), "%v", err)
	require.Eventually(t, func() bool { return streams() <= before }, 10*time.Second, time.Millisecond)
}

// A command that is passed on waits for as long as its caller does, and for ten minutes at
// most, whatever another node says.
func TestHowLongAForwardedCommandWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for left, want := range map[time.Duration]time.Duration{
			-time.Second: -time.Second, time.Second: time.Second,
			10 * time.Minute: 10 * time.Minute, 10*time.Minute + 1: 10 * time.Minute, 1000 * time.Hour: 10 * time.Minute,
		} {
			g := decodeBatch(&nodev1.ForwardRequest{Commands: []*nodev1.ForwardedCommand{{Command: session.EncodeCommand(increment("r")), Left: durationpb.New(left)}}})
			require.Equal(t, want, time.Until(g.commands[0].until), left)
		}
	})
}

// Four batches of a follower wait for their answers, and the others are not read until those
// are there. A follower that has nothing more to ask ends its stream in order.
func TestBatchesThatWaitAreBounded(t *testing.T) {
	var disks gates
	c := newCluster(t, 2, disks.use)
	leader, f := c.leader(), c.follower()
	ctx, cancel := context.WithCancel(within(t, time.Minute))
	stream, err := f.peers.At(leader.Address()).Forward(ctx)
	require.NoError(t, err)
	context.AfterFunc(ctx, func() { _ = stream.CloseRequest() })
	defer cancel()
	require.NoError(t, stream.Send(&nodev1.ForwardRequest{}))
	_, err = stream.Receive()
	require.NoError(t, err)
	sent := uint64(0)
	send := func() {
		sent++
		require.NoError(t, stream.Send(&nodev1.ForwardRequest{Batch: sent, Commands: []*nodev1.ForwardedCommand{
			{Command: session.EncodeCommand(increment(fmt.Sprint(sent))), Left: durationpb.New(time.Minute)},
		}}))
	}
	answered := func() {
		t.Helper()
		r, err := stream.Receive()
		require.NoError(t, err)
		require.Len(t, r.GetAnswers(), 1)
		a := readAnswer(r.GetAnswers()[0])
		require.NoError(t, a.Err)
	}
	for range 3 {
		send()
		answered()
	}
	l := leader.leading.Load()
	require.Eventually(t, func() bool { return l.queue.underWay() == 0 }, 10*time.Second, time.Millisecond)
	open := disks.of(leader).shut()
	defer open()
	for range 10 {
		send()
	}
	require.Eventually(t, func() bool { return goroutines("cluster.(*service).Forward(", "window.(*Window).Admit(") == 1 }, 10*time.Second, time.Millisecond)
	l.queue.mu.Lock()
	_, line := l.queue.window.Line()
	waiting := line.Count + l.queue.window.Count(window.InFlight)
	l.queue.mu.Unlock()
	require.Equal(t, 4, waiting)
	open()
	for range 10 {
		answered()
	}
	require.NoError(t, stream.CloseRequest())
	_, err = stream.Receive()
	require.ErrorIs(t, err, io.EOF)
}

// A leader that drains takes nothing that is passed on to it, and no part of a batch: it may
// be asked of the next one, all of it. Who was refused opens another stream.
func TestADrainingLeaderTakesNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, nil)
	leader, f := c.leader(), c.follower()
	leader.draining.Store(true)
	a := f.Apply(within(t, 50*time.Millisecond), increment("1"))[0]
	require.Equal(t, storage.NotApplied, a.Outcome, "%v", a.Err)
	leader.draining.Store(false)
	_, _, err := storage.One(within(t, 10*time.Second), f, increment("2"))
	require.NoError(t, err)

	f.Node.mu.Lock()
	stream := f.forward
	f.Node.mu.Unlock()
	leader.draining.Store(true)
	g := newGroup([]pending{
		{raw: session.EncodeCommand(increment("3")), until: time.Now().Add(time.Minute)},
		{raw: []byte("rubbish"), until: time.Now().Add(time.Minute)},
	})
	require.NoError(t, stream.queue.add(g))
	<-g.done
	for _, a := range g.answers {
		require.Equal(t, storage.NotApplied, a.Outcome)
		require.ErrorIs(t, a.Err, errElsewhere)
	}
	leader.draining.Store(false)
	require.EqualValues(t, 1, count(t, leader, storage.Latest))
}
