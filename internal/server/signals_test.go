package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

func (n *node) signal(name string, to any, change ...func(*v1.SignalRequest)) *v1.SignalResponse {
	n.t.Helper()
	res, err := n.sessions.Signal(n.ctx(), signalRequest(name, to, change...))
	require.NoError(n.t, err)
	return res
}

// signalRequest is for a session if to is its name, for everything if it is nil.
func signalRequest(name string, to any, change ...func(*v1.SignalRequest)) *v1.SignalRequest {
	req := &v1.SignalRequest{Signal: name, Reason: "look", Target: &v1.SignalRequest_Everything{Everything: true}}
	switch to := to.(type) {
	case string:
		req.Target = &v1.SignalRequest_SessionId{SessionId: to}
	case agent:
		req.Target = &v1.SignalRequest_AgentId{AgentId: string(to)}
	case named:
		req.Target = &v1.SignalRequest_PolicyName{PolicyName: string(to)}
	}
	for _, c := range change {
		c(req)
	}
	return req
}

type (
	agent string
	named string
)

// Whoever a STOP is for, its calls are kept out and not counted, and are admitted
// under the same id afterwards. Others go on, and so does what runs.
func TestStop(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	other, err := n.sessions.CreateSession(n.ctx(), &v1.CreateSessionRequest{SessionId: "other", AgentId: "b", Policy: byName("p")})
	require.NoError(t, err)
	require.Nil(t, other.Session.Signal)
	for i, tt := range []struct {
		to   any
		also bool // the other session
	}{{"s", false}, {agent("a"), false}, {named("p"), true}, {nil, true}} {
		call := func(name string) string { return fmt.Sprint(name, i) }
		runs := n.begin("s", call("runs"))
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, runs.Outcome)
		before := n.getSession("s").Attempts
		stop := n.signal("stop", tt.to) // as people type it
		require.Equal(t, "STOP", stop.Signal.Signal)

		kept := n.begin("s", call("c"))
		require.Equal(t, v1.Outcome_OUTCOME_STOPPED, kept.Outcome)
		require.Contains(t, kept.Reason, "look")
		require.False(t, kept.Decision.Allowed)
		require.Equal(t, stop.Signal.Target, kept.Signal.Target)
		require.Equal(t, before, n.getSession("s").Attempts)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", call("runs")).Outcome, "it has its first answer")
		want := v1.Outcome_OUTCOME_ADMITTED
		if tt.also {
			want = v1.Outcome_OUTCOME_STOPPED
		}
		require.Equal(t, want, n.begin("other", call("c")).Outcome)

		renewed, err := n.slots.RenewSlots(n.ctx(), &v1.RenewSlotsRequest{Slots: []*v1.SlotRef{{SessionId: "s", SlotId: call("runs"), Token: runs.Grants[0].Token}}})
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_RENEWED, renewed.Results[0].Outcome)
		require.Equal(t, stop.Signal.Target, renewed.Results[0].Signal.Target)
		require.Equal(t, v1.Outcome_OUTCOME_ENDED, n.end("s", call("runs")).Outcome)

		list, err := n.sessions.ListSignals(n.ctx(), &v1.ListSignalsRequest{})
		require.NoError(t, err)
		require.Len(t, list.Signals, 1)
		require.Equal(t, stop.Signal.Target, list.Signals[0].Target)
		require.NotNil(t, list.Signals[0].Age)

		require.Nil(t, n.signal("CONTINUE", tt.to).Signal)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", call("c")).Outcome)
		n.end("s", call("c"))
		if !tt.also {
			n.end("other", call("c"))
		}
	}
	_, metrics := n.get("/metrics")
	require.Contains(t, metrics, `gov_signals_total{signal="stop"} 4`)
	require.Contains(t, metrics, `gov_signals_total{signal="continue"} 4`)
	require.Equal(t, 8, strings.Count(n.audit.text(), `"event_type":"signal"`))
}

// On a stream a call that is held is told of as queued, and answered later.
func TestHeldOnAStream(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	n.signal("STOP", nil)
	stream, err := n.h2().calls.Exchange(n.ctx())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&v1.ExchangeRequest{Frames: []*v1.Operation{
		{Tag: 1, Op: &v1.Operation_Begin{Begin: beginRequest("s", "c", waiting(time.Minute))}},
		{Tag: 2, Op: &v1.Operation_Begin{Begin: beginRequest("s", "at-once")}},
	}}))
	seen := map[uint64]*v1.BeginCallResponse{}
	receive := func(until func() bool) {
		for !until() {
			m, err := stream.Receive()
			require.NoError(t, err)
			for _, a := range m.Answers {
				seen[a.Tag] = a.GetBegin()
			}
		}
	}
	receive(func() bool { return len(seen) == 2 })
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, seen[1].Outcome)
	require.NotNil(t, seen[1].Signal)
	require.Equal(t, v1.Outcome_OUTCOME_STOPPED, seen[2].Outcome)
	n.signal("CONTINUE", nil)
	receive(func() bool { return seen[1].Outcome == v1.Outcome_OUTCOME_ADMITTED })
	require.NoError(t, stream.CloseRequest())

	// In a batch it has its answer at once.
	n.signal("STOP", nil)
	batch, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{
		{Op: &v1.Operation_Begin{Begin: beginRequest("s", "batched", waiting(time.Minute))}},
	}})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_STOPPED, batch.Results[0].GetBegin().Outcome)
}

// A KILL closes every session of its target, frees every slot, and lets none be
// created, until it is lifted. What was closed stays closed, and says why.
func TestKill(t *testing.T) {
	n := start(t)
	n.putPolicy("name: p", "max_concurrent: 4000", "max_tool_calls: 1000")
	const sessions = 300
	var work sync.WaitGroup
	for i := range sessions {
		work.Go(func() {
			id := fmt.Sprint("s", i)
			n.session(id)
			n.begin(id, "a")
			n.begin(id, "b")
		})
	}
	work.Wait()
	_, err := n.sessions.CreateSession(n.ctx(), &v1.CreateSessionRequest{SessionId: "other", AgentId: "b", Policy: byName("p")})
	require.NoError(t, err)
	n.begin("other", "a")

	kill := n.signal("KILL", agent("a"))
	require.True(t, kill.Signal.Swept)
	require.EqualValues(t, sessions, kill.Closed)
	require.EqualValues(t, 2*sessions, kill.Released)
	p, err := n.slots.GetPool(n.ctx(), &v1.GetPoolRequest{Pool: "policy/p"})
	require.NoError(t, err)
	require.EqualValues(t, 1, p.Pool.InUse, "that of another agent")

	x := n.getSession("s0")
	require.Equal(t, v1.SessionState_SESSION_STATE_CLOSED, x.State)
	require.Equal(t, "killed: look", x.ClosedReason)
	for _, call := range []string{"a", "new"} {
		got := n.begin("s0", call)
		if call == "new" {
			require.Equal(t, v1.Outcome_OUTCOME_SESSION_CLOSED, got.Outcome)
			require.Equal(t, "killed: look", got.Reason)
		}
	}
	end := n.end("s0", "a")
	require.Equal(t, v1.Outcome_OUTCOME_LEASE_LOST, end.Outcome)
	require.Equal(t, "KILL", end.GetSignal().GetSignal())
	require.Contains(t, end.Reason, "killed: look")
	renewed, err := n.slots.RenewSlots(n.ctx(), &v1.RenewSlotsRequest{Slots: []*v1.SlotRef{{SessionId: "s0", SlotId: "b", Token: 1}}})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_LEASE_EXPIRED, renewed.Results[0].Outcome)
	require.Equal(t, "KILL", renewed.Results[0].Signal.Signal)

	create := &v1.CreateSessionRequest{SessionId: "late", AgentId: "a", Policy: byName("p")}
	_, err = n.sessions.CreateSession(n.ctx(), create)
	requireRefused(t, err, connect.CodeFailedPrecondition, "KILLED", "killed: look")
	require.Nil(t, n.signal("CONTINUE", agent("a")).Signal)
	_, err = n.sessions.CreateSession(n.ctx(), create)
	require.NoError(t, err)
	require.Equal(t, v1.SessionState_SESSION_STATE_CLOSED, n.getSession("s0").State)

	one := n.signal("KILL", "late")
	require.EqualValues(t, 1, one.Closed)
	require.Equal(t, "killed: look", n.getSession("late").ClosedReason)
	_, err = n.sessions.Signal(n.ctx(), signalRequest("CONTINUE", "late"))
	requireRefused(t, err, connect.CodeFailedPrecondition, "SESSION_CLOSED", "late")
	require.EqualValues(t, 0, n.signal("KILL", "late").Closed, "once is enough")
	_, metrics := n.get("/metrics")
	require.Contains(t, metrics, "gov_sessions_killed_total 301")
}

// A KILL whose node goes before it is swept is swept by who sees to it: on a store
// of one node that is the next one. Until then CONTINUE is refused.
func TestKillIsSweptByOthers(t *testing.T) {
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store)
	n.putPolicy(policy()...)
	n.session("s")
	n.begin("s", "c")
	require.NoError(t, n.server.Close())

	kill := &session.Signal{NS: "default", By: session.Maker{Client: "c"}, Target: session.Target{Scope: session.Everything}, Signal: session.Kill, Reason: "all"}
	require.NoError(t, store.Apply(t.Context(), kill)[0].Failure())
	require.Len(t, store.Unswept(t.Context()), 1)
	next := startOn(t, store)
	eventually(t, "it is swept", func() bool { return len(store.Unswept(t.Context())) == 0 })
	require.Equal(t, "killed: all", next.getSession("s").ClosedReason)
	require.Nil(t, next.signal("CONTINUE", nil).Signal)
}

// A lateLook is a store at which whoever looks at everything waits while there is something
// to wait for.
type lateLook struct {
	*storage.Memory
	hold   atomic.Pointer[chan struct{}]
	looks  chan struct{} // one who waits
	rounds chan struct{} // one who asks for what is to be swept
}

func (l *lateLook) View(ctx context.Context, ns string, r storage.Read) (storage.View, error) {
	if hold := l.hold.Load(); hold != nil {
		select {
		case l.looks <- struct{}{}:
		default:
		}
		<-*hold
	}
	return l.Memory.View(ctx, ns, r)
}

func (l *lateLook) Unswept(ctx context.Context) []session.Key {
	select {
	case l.rounds <- struct{}{}:
	default:
	}
	return l.Memory.Unswept(ctx)
}

// A node that is late with a KILL which another has swept closes no session that was opened
// behind its CONTINUE.
func TestKillIsSweptLate(t *testing.T) {
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	late := &lateLook{Memory: store, looks: make(chan struct{}, 1), rounds: make(chan struct{})}
	n := startOn(t, late)
	n.putPolicy(policy()...)
	n.session("s")
	hold := make(chan struct{})
	late.hold.Store(&hold)
	kill := &session.Signal{NS: "default", By: session.Maker{Client: "c"}, Target: session.Target{Scope: session.Everything}, Signal: session.Kill, Reason: "all"}
	require.NoError(t, store.Apply(t.Context(), kill)[0].Failure())
	<-late.looks
	other := startOn(t, store)
	eventually(t, "it is swept", func() bool { return len(store.Unswept(t.Context())) == 0 })
	require.Equal(t, "killed: all", other.getSession("s").ClosedReason)
	require.Nil(t, other.signal("CONTINUE", nil).Signal)
	other.session("next")
	late.hold.Store(nil)
	close(hold)
	<-late.rounds // it has done with it
	require.Equal(t, v1.SessionState_SESSION_STATE_OPEN, other.getSession("next").State)
}

// A KILL closes what it was sent for, and not another's session that has the id of one by the
// time that it is closed.
func TestKillOfAnIDThatIsOpenedAnew(t *testing.T) {
	var now atomic.Int64
	store := storage.NewMemory(func() time.Duration { return time.Duration(now.Load()) })
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	now.Store(int64(time.Second))
	g := &gate{Store: store}
	n := startOn(t, g)
	n.putPolicy(policy()...)
	n.session("s")
	var once sync.Once
	g.before = func(c session.Command) {
		if c, closes := c.(*session.Close); closes && c.Killed {
			once.Do(func() {
				now.Add(int64(1000 * time.Hour))
				_, err := n.sessions.CreateSession(n.ctx(), &v1.CreateSessionRequest{SessionId: "s", AgentId: "b", Policy: byName("p")})
				require.NoError(t, err)
			})
		}
	}
	kill := n.signal("KILL", agent("a"))
	require.True(t, kill.Signal.Swept)
	require.Zero(t, kill.Closed)
	require.Equal(t, "b", n.getSession("s").AgentId)
	require.Equal(t, v1.SessionState_SESSION_STATE_OPEN, n.getSession("s").State)
}

// unclosing is a store in which no session can be closed for a while.
type unclosing struct {
	storage.Store
	says atomic.Pointer[storage.Answer] // of what would close one; nil: its store's own
}

func (u *unclosing) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	says := u.says.Load()
	for _, c := range cmds {
		if _, closes := c.(*session.Close); closes && says != nil {
			return slices.Repeat([]storage.Answer{*says}, len(cmds))
		}
	}
	return u.Store.Apply(ctx, cmds...)
}

// A KILL of one session is swept by nobody but who has asked. Where that fails he is told
// that he does not know, and asks again; a KILL of several is swept by others.
func TestKillThatIsNotSwept(t *testing.T) {
	for name, says := range map[string]storage.Answer{
		"not applied": storage.Refused(errors.New("no leader")), "unknown": storage.Lost(errors.New("no answer")),
	} {
		t.Run(name, func(t *testing.T) {
			store := &unclosing{Store: storage.NewMemory(nil)}
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			n := startOn(t, store)
			n.putPolicy(policy()...)
			n.session("s")
			n.begin("s", "c")
			store.says.Store(&says)
			_, err := n.sessions.Signal(n.ctx(), signalRequest("KILL", "s"))
			requireRefused(t, err, connect.CodeUnavailable, fault.ReasonOutcomeUnknown, "")
			require.Equal(t, v1.SessionState_SESSION_STATE_OPEN, n.getSession("s").State)
			require.Equal(t, v1.Outcome_OUTCOME_SESSION_CLOSED, n.begin("s", "d").Outcome, "the KILL stands")
			several := n.signal("KILL", agent("a"))
			require.False(t, several.Signal.Swept)
			require.Zero(t, several.Closed)

			store.says.Store(nil)
			again := n.signal("KILL", "s")
			require.True(t, again.Signal.Swept)
			require.EqualValues(t, 1, again.Closed)
			require.EqualValues(t, 1, again.Released)
			require.Equal(t, v1.SessionState_SESSION_STATE_CLOSED, n.getSession("s").State)
		})
	}
}

// A stuck store is one in which some sessions cannot be closed for a while: what they hold is
// damaged.
type stuck struct {
	storage.Store
	free atomic.Bool
	of   []string
}

func (s *stuck) Apply(ctx context.Context, cmds ...session.Command) (answers []storage.Answer) {
	for _, c := range cmds {
		if c, closes := c.(*session.Close); closes && !s.free.Load() && slices.Contains(s.of, c.Session) {
			answers = append(answers, storage.Refused(errors.New("a record is damaged")))
			continue
		}
		answers = append(answers, s.Store.Apply(ctx, c)...)
	}
	return answers
}

// One session that cannot be closed keeps no other open, of its page and behind it, and the
// KILL is swept once it can.
func TestKillBehindWhatCannotBeClosed(t *testing.T) {
	store := &stuck{Store: storage.NewMemory(nil), of: []string{"s000", "s130"}}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store)
	n.putPolicy(policy()...)
	const all = 140 // more than are closed in one go
	for i := range all {
		n.session(fmt.Sprintf("s%03d", i))
	}
	kill := n.signal("KILL", agent("a"))
	require.False(t, kill.Signal.Swept)
	require.EqualValues(t, all-2, kill.Closed)
	for i := range all {
		id := fmt.Sprintf("s%03d", i)
		require.Equal(t, slices.Contains(store.of, id), n.getSession(id).State == v1.SessionState_SESSION_STATE_OPEN, id)
	}
	store.free.Store(true)
	kill = n.signal("KILL", agent("a"))
	require.True(t, kill.Signal.Swept)
	require.EqualValues(t, 2, kill.Closed)
}

func TestKillUnderWay(t *testing.T) {
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, hidden{store}) // nobody sees to KILLs
	n.putPolicy(policy()...)
	kill := &session.Signal{NS: "default", By: session.Maker{Client: "c"}, Target: session.Target{Scope: session.OfPolicy, Name: "p"}, Signal: session.Kill}
	require.NoError(t, store.Apply(t.Context(), kill)[0].Failure())
	_, err := n.sessions.Signal(n.ctx(), signalRequest("CONTINUE", named("p")))
	requireRefused(t, err, connect.CodeFailedPrecondition, "KILL_UNDER_WAY", "swept")
	require.True(t, n.signal("KILL", named("p")).Signal.Swept, "to ask again sweeps it")
	n.signal("CONTINUE", named("p"))
}

type hidden struct{ storage.Store }

// The same request again has no second effect and says what stands.
func TestSignalAgain(t *testing.T) {
	n := start(t)
	id := func(r *v1.SignalRequest) { r.RequestId = "r" }
	first := n.signal("STOP", agent("a"), id)
	again := n.signal("STOP", agent("a"), id)
	require.Equal(t, first.Signal, again.Signal)
	_, err := n.sessions.Signal(n.ctx(), signalRequest("CONTINUE", agent("a"), id))
	requireRefused(t, err, connect.CodeInvalidArgument, "ID_REUSED", "")
	n.signal("CONTINUE", agent("a"))
	require.Nil(t, n.signal("STOP", agent("a"), id).Signal, "it was carried out, and lifted since")
	require.Equal(t, 2, strings.Count(n.audit.text(), `"event_type":"signal"`))
}

// A signal of another name is an event of the node and nothing else.
func TestCustomSignal(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := n.events.Follow(ctx, &v1.FollowRequest{Types: []string{"signal"}})
	require.NoError(t, err)
	require.True(t, stream.Receive())
	require.Nil(t, n.signal("drain", "s").Signal)
	n.signal("STOP", named("p"))
	require.True(t, stream.Receive())
	ev := stream.Msg().Event
	require.Equal(t, []string{"signal", "drain", "look", "s"}, []string{ev.Type, ev.Category, ev.Reason, ev.SessionId})
	require.True(t, stream.Receive())
	ev = stream.Msg().Event
	require.Equal(t, []string{"signal", "STOP", "look", "p"}, []string{ev.Type, ev.Category, ev.Reason, ev.Policy})
}

func TestSignalFields(t *testing.T) {
	n := start(t)
	for body, field := range map[string]string{
		`{"signal": "STOP"}`:                      "sessionId",
		`{"signal": "STOP", "everything": false}`: "sessionId",
		`{"everything": true}`:                    "signal",
		`{"everything": true, "signal": "` + strings.Repeat("x", 129) + `"}`:                   "signal",
		`{"everything": true, "signal": "STOP", "reason": "` + strings.Repeat("x", 257) + `"}`: "reason",
		`{"everything": true, "signal": "STOP", "reason": "a\nb"}`:                             "reason",
		`{"agentId": "a b", "signal": "STOP"}`:                                                 "agentId",
		`{"policyName": "", "signal": "STOP"}`:                                                 "policyName",
		`{"sessionId": "` + strings.Repeat("x", 129) + `", "signal": "STOP"}`:                  "sessionId",
		`{"everything": true, "signal": "STOP", "client": "a b"}`:                              "client",
		`{"everything": true, "signal": "STOP", "requestId": "a b"}`:                           "requestId",
	} {
		status, answer := n.post("SessionService/Signal", body)
		require.Equal(t, http.StatusBadRequest, status, body)
		require.True(t, strings.HasPrefix(answer["message"].(string), field+": "), "%s: %v", body, answer)
	}
	for _, body := range []string{
		`{"everything": true, "signal": "STOP", "reason": "` + strings.Repeat("x", 256) + `"}`,
		`{"everything": true, "signal": "` + strings.Repeat("x", 128) + `"}`,
		`{"everything": true, "signal": "continue"}`,
	} {
		status, answer := n.post("SessionService/Signal", body)
		require.Equal(t, http.StatusOK, status, "%v", answer)
	}
	_, err := n.sessions.Signal(n.ctx(), signalRequest("STOP", "nobody"))
	requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", "nobody")
}

// As many signals stand as may, and one more is refused until one is lifted.
func TestTooManySignals(t *testing.T) {
	n := start(t)
	for i := range session.MaxSignals {
		n.signal("STOP", agent(fmt.Sprint("a", i)))
	}
	_, err := n.sessions.Signal(n.ctx(), signalRequest("STOP", agent("more")))
	requireRefused(t, err, connect.CodeResourceExhausted, "TOO_MANY_SIGNALS", "256")
	n.signal("KILL", agent("a0")) // in the place of its STOP
	n.signal("CONTINUE", agent("a1"))
	n.signal("STOP", agent("more"))
	list, err := n.sessions.ListSignals(n.ctx(), &v1.ListSignalsRequest{})
	require.NoError(t, err)
	require.Len(t, list.Signals, session.MaxSignals)
}

// Sessions that are stopped by themselves are listed in pages.
func TestListSignalsInPages(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	for i := range 5 {
		n.session(fmt.Sprint("s", i))
		if i != 2 {
			n.signal("STOP", fmt.Sprint("s", i))
		}
	}
	n.signal("STOP", agent("x"))
	var got []string
	for token := ""; ; {
		res, err := n.sessions.ListSignals(n.ctx(), &v1.ListSignalsRequest{PageSize: 2, PageToken: token})
		require.NoError(t, err)
		for _, s := range res.Signals {
			got = append(got, s.GetAgentId()+s.GetSessionId())
		}
		if token = res.NextPageToken; token == "" {
			break
		}
	}
	require.Equal(t, []string{"x", "s0", "s1", "s3", "s4"}, got)
}

// Of many calls that are under way while a STOP is sent none is admitted that began
// behind its answer.
func TestStopUnderLoad(t *testing.T) {
	n := start(t)
	n.putPolicy("name: p", "max_concurrent: 4000", "max_tool_calls: 100000", "max_attempts: 100000")
	n.session("s")
	var stood, broken atomic.Bool
	var admitted atomic.Int64
	underWay := make(chan struct{})
	var work sync.WaitGroup
	for caller := range 40 {
		work.Go(func() {
			for i := range 25 {
				behind := stood.Load()
				res, err := n.calls.BeginCall(n.ctx(), beginRequest("s", fmt.Sprint("c", caller, "-", i)))
				if err != nil || behind && res.Outcome != v1.Outcome_OUTCOME_STOPPED {
					broken.Store(true)
				}
				if err == nil && res.Outcome == v1.Outcome_OUTCOME_ADMITTED && admitted.Add(1) == 100 {
					close(underWay)
				}
			}
		})
	}
	<-underWay
	n.signal("STOP", nil)
	stood.Store(true)
	work.Wait()
	require.False(t, broken.Load())
	require.EqualValues(t, admitted.Load(), n.getSession("s").Attempts)
}
