package server_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server"
	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
)

// following is one stream of events.
type following struct {
	t      testing.TB
	stream *connect.ServerStreamForClient[v1.FollowResponse]
	cursor string
	end    context.CancelFunc
}

// follow opens a stream and takes its first message in.
func (n *node) follow(req *v1.FollowRequest) (*following, *v1.FollowResponse) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.ctx())
	n.t.Cleanup(cancel)
	stream, err := n.events.Follow(ctx, req)
	require.NoError(n.t, err)
	f := &following{t: n.t, stream: stream, end: cancel}
	return f, f.message()
}

func (f *following) message() *v1.FollowResponse {
	f.t.Helper()
	require.True(f.t, f.stream.Receive(), "%v", f.stream.Err())
	m := f.stream.Msg()
	if m.Cursor != "" {
		f.cursor = m.Cursor
	}
	return m
}

// event is the next event, behind messages that only move the cursor.
func (f *following) event() *v1.Event {
	f.t.Helper()
	for {
		if m := f.message(); m.Event != nil {
			return m.Event
		}
	}
}

func (f *following) types(n int) (types []string) {
	f.t.Helper()
	for range n {
		types = append(types, f.event().Type)
	}
	return types
}

// 17.2: an event for each check, for each violation, for each blocked tool call,
// for a checkpoint and for a drift, in the order in which they occur.
func TestFollowTheFiveEvents(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("allowed_tools: [t]", "checkpoint_frequency: 2", "drift_threshold: 0.15")...)
	n.session("s")
	f, first := n.follow(&v1.FollowRequest{})
	require.Nil(t, first.Event)
	require.Nil(t, first.Gap)
	require.NotEmpty(t, first.Cursor)

	n.begin("s", "a")
	n.endWith("s", "a", "one answer")
	denied := n.begin("s", "b", func(r *v1.BeginCallRequest) { r.Tool = "exec" })
	n.begin("s", "m", func(r *v1.BeginCallRequest) {
		r.Kind, r.Tool, r.ContextJson = v1.Kind_KIND_MODEL, "", `{"confidence":0.1}`
	})
	n.begin("s", "c")
	n.endWith("s", "c", "quite another answer, and much longer")

	check := f.event()
	require.Equal(t, "policy_check", check.Type)
	require.Equal(t, []string{"n1", "a", "s", "a", "t"}, []string{check.Node, check.AgentId, check.SessionId, check.CallId, check.Tool})
	require.Len(t, check.DecisionId, 32)
	require.Equal(t, []string{"policy_check", "policy_violation"}, f.types(2))
	blocked := f.event()
	require.Equal(t, "tool_call_blocked", blocked.Type)
	require.Equal(t, denied.Reason, blocked.Reason)
	require.Equal(t, "not_allowed_tool", blocked.Category)
	require.Equal(t, denied.DecisionId, blocked.DecisionId)
	require.Equal(t, []string{"policy_check", "policy_violation", "policy_check"}, f.types(3), "what is no tool call is not blocked as one")
	drift := f.event()
	require.Equal(t, "drift_detected", drift.Type)
	require.Greater(t, drift.Drift.Score, 0.15)
	require.Contains(t, drift.Reason, "exceeds threshold 0.15")
	point := f.event()
	require.Equal(t, "checkpoint_created", point.Type)
	require.Equal(t, "checkpoint-2", point.CheckpointId)
	require.Equal(t, []string{"a", "s", "c", "t"}, []string{point.AgentId, point.SessionId, point.CallId, point.Tool})
}

// An event occurs once, however often the call is repeated; a call that waited
// was checked once.
func TestEventsOfRepeatsAndWaits(t *testing.T) {
	n := start(t)
	n.putPolicy("name: p", "max_concurrent: 1", "backpressure_threshold: 1")
	n.session("s")
	f, _ := n.follow(&v1.FollowRequest{})
	for range 3 {
		n.begin("s", "a")
	}
	done := make(chan *v1.BeginCallResponse)
	go func() {
		res, _ := n.calls.BeginCall(n.ctx(), beginRequest("s", "w", waiting(time.Minute)))
		done <- res
	}()
	eventually(t, "it waits", func() bool { return len(n.waitingIn("policy/p")) == 1 })
	n.end("s", "a")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, (<-done).Outcome)
	// In a batch the place in the queue is an answer, and asking again another.
	queued := func() v1.Outcome {
		res, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{
			{Op: &v1.Operation_Begin{Begin: beginRequest("s", "batch", waiting(time.Minute))}}}})
		require.NoError(t, err)
		return res.Results[0].GetBegin().GetOutcome()
	}
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, queued())
	n.end("s", "w")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, queued())
	n.begin("s", "last")
	late, _ := n.follow(&v1.FollowRequest{FromOldest: true}) // gets all of it at once
	for _, f := range []*following{f, late} {
		for _, call := range []string{"a", "w", "batch", "last"} {
			ev := f.event()
			require.Equal(t, "policy_check", ev.Type)
			require.Equal(t, call, ev.CallId)
			require.False(t, ev.Repeat)
		}
	}
}

// What comes once a call is over blocks nothing, and is no other decision: at the node that
// made the first one, and at one that has not.
func TestARepeatOfACallThatIsOverIsNoDecision(t *testing.T) {
	n, other, _ := pair(t)
	ended, lost := n.begin("s", "ended"), n.begin("s", "lost")
	n.end("s", "ended")
	_, err := n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	for _, at := range []*node{n, other} {
		require.Equal(t, v1.Outcome_OUTCOME_ALREADY_ENDED, at.begin("s", "ended").Outcome)
		require.Equal(t, v1.Outcome_OUTCOME_LEASE_LOST, at.begin("s", "lost").Outcome)
		require.Equal(t, 2, strings.Count(at.audit.text(), `"repeat":true`), "it was answered")
		at.begin("s", "late")
	}
	for _, res := range []*v1.BeginCallResponse{ended, lost} {
		for _, at := range []*node{n, other} {
			rec := at.explain(res.DecisionId)
			require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, rec.Outcome)
			require.True(t, rec.Decision.Allowed)
		}
		own, err := other.explains.Explain(n.ctx(), &v1.ExplainRequest{DecisionId: res.DecisionId, Local: true})
		require.NoError(t, err)
		require.True(t, own.Record.Repeat, "that is all it knows")
	}
	f, _ := n.follow(&v1.FollowRequest{FromOldest: true})
	for _, call := range []string{"ended", "lost", "late"} {
		require.Equal(t, []string{"policy_check", call}, ofCall(f.event()))
	}
	f, _ = other.follow(&v1.FollowRequest{FromOldest: true})
	require.Equal(t, []string{"policy_check", "late"}, ofCall(f.event()))
}

func ofCall(ev *v1.Event) []string { return []string{ev.Type, ev.CallId} }

func TestFollowSelects(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("allowed_tools: [t]")...)
	n.session("s")
	n.session("o")
	f, _ := n.follow(&v1.FollowRequest{SessionId: "s", AgentId: "a", Types: []string{"policy_violation"}})
	elsewhere, _ := n.follow(&v1.FollowRequest{AgentId: "nobody", FromOldest: true})
	for i := range 3 {
		for _, s := range []string{"o", "s"} {
			n.begin(s, fmt.Sprintf("ok%d", i))
			n.end(s, fmt.Sprintf("ok%d", i))
			n.begin(s, fmt.Sprintf("bad%d", i), func(r *v1.BeginCallRequest) { r.Tool = "exec" })
		}
	}
	for i := range 3 {
		ev := f.event()
		require.Equal(t, "policy_violation", ev.Type)
		require.Equal(t, fmt.Sprintf("bad%d", i), ev.CallId)
		require.Equal(t, "s", ev.SessionId)
	}
	require.NoError(t, n.server.Close())
	require.False(t, elsewhere.stream.Receive(), "%v", elsewhere.stream.Msg())
	requireRefused(t, elsewhere.stream.Err(), connect.CodeUnavailable, "NOT_APPLIED", "shutting down")
}

// The events of another namespace are another's.
func TestFollowKeepsToItsNamespace(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	n.begin("s", "c")
	id := n.begin("s", "d").DecisionId
	status, answer := n.post("DecisionService/Explain", `{"decisionId":"`+id+`"}`, input.NamespaceHeader, "other")
	require.Equal(t, 404, status, "%v", answer)
	status, _ = n.post("DecisionService/Explain", `{"decisionId":"`+id+`"}`)
	require.Equal(t, 200, status)

	other := clientsOf(&http.Client{Transport: inOther{n.http.Transport}}, n.url)
	stream, err := other.events.Follow(n.ctx(), &v1.FollowRequest{FromOldest: true})
	require.NoError(t, err)
	defer func() { _ = stream.Close() }()
	require.True(t, stream.Receive())
	_, err = other.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Yaml: "name: q\nmax_tokens: 5\n"})
	require.NoError(t, err)
	_, err = other.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{Policy: byName("q"), Tool: "theirs"})
	require.NoError(t, err)
	require.True(t, stream.Receive())
	require.Equal(t, "theirs", stream.Msg().Event.GetTool())
	require.True(t, stream.Msg().Event.DryRun)
}

// What a namespace is told of places and of what it has missed is the same,
// whatever others do meanwhile.
func TestFollowTellsNothingOfOthers(t *testing.T) {
	view := func(t *testing.T, others int) (told []string) {
		n := start(t, func(c *server.Config) { c.JournalRecords = 64 })
		n.putPolicy(policy("allowed_tools: [t]")...)
		n.session("s")
		other := clientsOf(&http.Client{Transport: inOther{n.http.Transport}}, n.url)
		_, err := other.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Yaml: "name: q\nmax_tokens: 5\n"})
		require.NoError(t, err)
		noise := func() {
			for range others {
				_, err := other.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{Policy: byName("q"), Tool: "theirs"})
				require.NoError(t, err)
			}
		}
		say := func(m *v1.FollowResponse) {
			cursor := strings.Split(m.Cursor, ":")
			told = append(told, fmt.Sprint(m.Event.GetType(), " ", m.Event.GetCallId(), " ", m.Event.GetSequence(), " at ", cursor[2], " gap ", m.Gap.GetReason(), m.Gap.GetMissed()))
		}
		noise()
		f, first := n.follow(&v1.FollowRequest{})
		say(first)
		here := f.cursor
		for i := range 5 {
			noise()
			n.begin("s", fmt.Sprintf("c%d", i), func(r *v1.BeginCallRequest) { r.Tool = []string{"t", "exec"}[i%2] })
			noise()
		}
		for range 3 + 2*3 {
			say(f.message())
		}
		middle := f.cursor
		f.end()
		for i := range 300 { // more than there is room for
			n.begin("s", fmt.Sprintf("d%d", i))
			n.end("s", fmt.Sprintf("d%d", i))
		}
		// What others do may cost it more of its own events, and it is told how many of these.
		for _, after := range []string{here, middle} {
			f, first := n.follow(&v1.FollowRequest{After: after})
			require.Equal(t, "OVERWRITTEN", first.Gap.GetReason())
			behind, err := strconv.ParseUint(strings.Split(after, ":")[2], 10, 64)
			require.NoError(t, err)
			require.Equal(t, behind+first.Gap.Missed+1, f.event().Sequence)
			f.end()
		}
		_, first = n.follow(&v1.FollowRequest{})
		say(first)
		return told
	}
	alone := view(t, 0)
	require.Equal(t, "  0 at 0 gap 0", alone[0])
	require.Equal(t, "policy_check c0 1 at 1 gap 0", alone[1])
	require.Equal(t, alone, view(t, 7))
}

// A namespace that makes very many decisions pushes out nobody who has made few, and
// a cursor of one namespace is none of another's.
func TestJournalIsShared(t *testing.T) {
	n := start(t, func(c *server.Config) { c.JournalRecords = 64 })
	n.putPolicy(policy()...)
	n.session("s")
	f, _ := n.follow(&v1.FollowRequest{})
	id := n.begin("s", "c").DecisionId
	other := clientsOf(&http.Client{Transport: inOther{n.http.Transport}}, n.url)
	_, err := other.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Yaml: "name: q\nmax_tokens: 5\n"})
	require.NoError(t, err)
	for range 300 {
		_, err = other.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{Policy: byName("q"), Tool: "theirs"})
		require.NoError(t, err)
	}
	require.Equal(t, "c", n.explain(id).CallId)
	require.Equal(t, "c", f.event().CallId)

	stream, err := other.events.Follow(n.ctx(), &v1.FollowRequest{After: f.cursor})
	require.NoError(t, err)
	defer func() { _ = stream.Close() }()
	require.True(t, stream.Receive())
	require.Equal(t, "RESTARTED", stream.Msg().Gap.GetReason())
}

// inOther sends requests to the namespace other.
type inOther struct{ http.RoundTripper }

func (o inOther) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(input.NamespaceHeader, "other")
	return o.RoundTripper.RoundTrip(r)
}

// A follower that comes back goes on where it was; what is gone by then is told.
func TestFollowAgain(t *testing.T) {
	n := start(t, func(c *server.Config) { c.JournalRecords = 4 })
	n.putPolicy(policy("allowed_tools: [t]", "checkpoint_frequency: 1000")...)
	n.session("s")
	f, _ := n.follow(&v1.FollowRequest{})
	n.begin("s", "a", func(r *v1.BeginCallRequest) { r.Tool = "exec" })
	require.Equal(t, "policy_check", f.event().Type)
	middle := f.cursor
	f.end()

	f, first := n.follow(&v1.FollowRequest{After: middle})
	require.Nil(t, first.Gap)
	require.Equal(t, []string{"policy_violation", "tool_call_blocked"}, f.types(2), "in the middle of a decision")
	here := f.cursor
	f.end()

	for i := range 10 {
		n.begin("s", fmt.Sprintf("c%d", i))
		n.end("s", fmt.Sprintf("c%d", i))
	}
	f, first = n.follow(&v1.FollowRequest{After: here})
	require.Equal(t, "OVERWRITTEN", first.Gap.GetReason())
	require.EqualValues(t, 6, first.Gap.GetMissed())
	require.Equal(t, "n1", first.Gap.GetNode())
	require.Equal(t, "c6", f.event().CallId)

	words := strings.Split(here, ":")
	f, first = n.follow(&v1.FollowRequest{After: words[0] + ":another-life:" + words[2]})
	require.Equal(t, "RESTARTED", first.Gap.GetReason())
	require.Equal(t, "c6", f.event().CallId, "all that there is by now is new to it")

	_, first = n.follow(&v1.FollowRequest{After: words[0] + ":" + words[1] + ":1000000"})
	require.Equal(t, "RESTARTED", first.Gap.GetReason(), "a place that was never reached is of another life")
}

func TestBadFollowers(t *testing.T) {
	n := start(t)
	for name, c := range map[string]struct {
		req  *v1.FollowRequest
		text string
	}{
		"a type that is none":        {&v1.FollowRequest{Types: []string{"policy_check", "nope"}}, "types[1]: is no type of event"},
		"no cursor":                  {&v1.FollowRequest{After: "here"}, "after: is no cursor"},
		"a cursor without a number":  {&v1.FollowRequest{After: "n1:boot:x"}, "after: is no cursor"},
		"a cursor of another node":   {&v1.FollowRequest{After: "n2:boot:1"}, "after: is a cursor of another node, and this is n1"},
		"a cursor and a beginning":   {&v1.FollowRequest{After: "n1:boot:1", FromOldest: true}, "fromOldest: is given beside after"},
		"a session that is no id":    {&v1.FollowRequest{SessionId: "a b"}, "sessionId: byte 1"},
		"an agent that is no id":     {&v1.FollowRequest{AgentId: long}, "agentId: has 129 bytes"},
		"a negative place in events": {&v1.FollowRequest{After: "n1:boot:-1"}, "after: is no cursor"},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := n.events.Follow(n.ctx(), c.req)
			if err == nil {
				require.False(t, stream.Receive())
				err = stream.Err()
			}
			requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", c.text)
		})
	}
	require.Zero(t, n.metric("gov_followers"))
}
