package server_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
)

// asking is a node with a session under a policy that asks about every call.
func asking(t testing.TB, approval string, change ...func(*server.Config)) *node {
	n := start(t, change...)
	n.putPolicy(policy("require_human_approval: true", "approval: {"+approval+"}")...)
	n.session("s")
	return n
}

func (n *node) vote(id, who string, v v1.Vote) (*v1.Approval, error) {
	res, err := n.approvals.Decide(n.ctx(), &v1.ApprovalServiceDecideRequest{Id: id, Approver: who, Decision: v, Reason: "seen by " + who})
	return res.GetApproval(), err
}

func (n *node) approval(id string) *v1.Approval {
	n.t.Helper()
	res, err := n.approvals.Get(n.ctx(), &v1.ApprovalServiceGetRequest{Id: id})
	require.NoError(n.t, err)
	return res.Approval
}

// required begins a call that people are asked about, and returns the approval's id.
func (n *node) required(call string) string {
	n.t.Helper()
	res := n.begin("s", call)
	require.Equal(n.t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, res.Outcome)
	require.Equal(n.t, "ask", res.Decision.Action)
	require.False(n.t, res.Decision.Allowed)
	require.Equal(n.t, v1.ApprovalState_APPROVAL_STATE_PENDING, res.Approval.State)
	require.NotEmpty(n.t, res.Reason)
	return res.Approval.Id
}

// What people decide is what becomes of the call, and what its answers say of it.
func TestDecisionsOfPeople(t *testing.T) {
	n := asking(t, "required: 2, denials: 1, timeout: 300s")
	id := n.required("c")
	require.Equal(t, id, n.getSession("s").OpenCalls[0].ApprovalId)
	_, err := n.vote(id, "A", v1.Vote_VOTE_APPROVE)
	requireRefused(t, err, connect.CodeFailedPrecondition, "SELF_APPROVAL", "the agent that asks")
	a, err := n.vote(id, "Amy", v1.Vote_VOTE_APPROVE)
	require.NoError(t, err)
	require.Equal(t, v1.ApprovalState_APPROVAL_STATE_PENDING, a.State)
	a, err = n.vote(id, "amy", v1.Vote_VOTE_APPROVE)
	require.NoError(t, err)
	require.Len(t, a.Ballots, 1, "the same one twice is one")
	_, err = n.vote(id, "AMY", v1.Vote_VOTE_DENY)
	requireRefused(t, err, connect.CodeFailedPrecondition, "ALREADY_VOTED", "has voted the other way")
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, n.begin("s", "c").Outcome)
	_, err = n.vote(id, "bob", v1.Vote_VOTE_APPROVE)
	require.NoError(t, err)
	_, err = n.vote(id, "carl", v1.Vote_VOTE_DENY)
	requireRefused(t, err, connect.CodeFailedPrecondition, "ALREADY_DECIDED", "is not pending")
	res := n.begin("s", "c")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
	require.True(t, res.Decision.Allowed)
	require.Equal(t, "allow", res.Decision.Action)
	require.Equal(t, "bob", res.Approval.DecidedBy)
	require.EqualValues(t, 1, res.Counters.Attempts)
	again := n.begin("s", "c")
	require.Equal(t, res.Grants[0].Token, again.Grants[0].Token, "it was admitted once")
	require.Equal(t, res.Approval.String(), again.Approval.String(), "by this approval")
	require.Equal(t, 1, strings.Count(n.audit.text(), `"repeat":false,"index":`+fmt.Sprint(res.Index)+`,"approval_id":"`+id))
	require.Contains(t, n.audit.text(), `"repeat":true`)

	id = n.required("d")
	_, err = n.vote(id, "amy", v1.Vote_VOTE_DENY)
	require.NoError(t, err)
	for range 2 {
		res = n.begin("s", "d")
		require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_DENIED, res.Outcome)
		require.Equal(t, "Approval denied", res.Reason)
		require.Equal(t, "seen by amy", res.Approval.DecisionReason)
	}

	id = n.required("e")
	_, err = n.approvals.Cancel(n.ctx(), &v1.ApprovalServiceCancelRequest{Id: id})
	require.NoError(t, err)
	require.Equal(t, "The approval was cancelled", n.begin("s", "e").Reason)
	id = n.required("f")
	cancelled, err := n.calls.CancelCall(n.ctx(), &v1.CancelCallRequest{SessionId: "s", CallId: "f"})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_CANCELLED, cancelled.Outcome)
	require.Equal(t, v1.ApprovalState_APPROVAL_STATE_CANCELLED, n.approval(id).State)
	id = n.required("g")
	_, err = n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	require.Equal(t, v1.ApprovalState_APPROVAL_STATE_CANCELLED, n.approval(id).State)
}

// A call that waits goes on by itself once it is decided about, and what is told of
// it is told once.
func TestWaitingForPeople(t *testing.T) {
	n := asking(t, "timeout: 300s")
	wait := func(call string) func() *v1.BeginCallResponse {
		var all sync.WaitGroup
		var res *v1.BeginCallResponse
		var err error
		all.Go(func() {
			res, err = n.calls.BeginCall(n.ctx(), beginRequest("s", call, func(r *v1.BeginCallRequest) { r.Wait = durationpb.New(time.Minute) }))
		})
		return func() *v1.BeginCallResponse {
			all.Wait()
			require.NoError(t, err)
			return res
		}
	}
	pending := func() (id string) {
		eventually(t, "people are asked", func() bool {
			list, err := n.approvals.List(n.ctx(), &v1.ApprovalServiceListRequest{State: v1.ApprovalState_APPROVAL_STATE_PENDING})
			require.NoError(t, err)
			if len(list.Approvals) == 1 {
				id = list.Approvals[0].Id
			}
			return id != ""
		})
		eventually(t, "it is told that they are", func() bool {
			return slices.ContainsFunc(n.audit.all(t), func(l map[string]any) bool { return l["approval_id"] == id })
		})
		return id
	}
	yes := wait("c")
	id := pending()
	_, err := n.vote(id, "amy", v1.Vote_VOTE_APPROVE)
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, yes().Outcome)
	no := wait("d")
	id = pending()
	seen := make(chan error, 1)
	go func() {
		res, err := n.approvals.Get(n.ctx(), &v1.ApprovalServiceGetRequest{Id: id, Wait: durationpb.New(time.Minute)})
		if err == nil && res.Approval.State != v1.ApprovalState_APPROVAL_STATE_DENIED {
			err = fmt.Errorf("it was told as %v", res.Approval.State)
		}
		seen <- err
	}()
	_, err = n.vote(id, "amy", v1.Vote_VOTE_DENY)
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_DENIED, no().Outcome)
	require.NoError(t, <-seen)

	var said []string
	for _, l := range n.audit.all(t) {
		if typ := fmt.Sprint(l["event_type"]); strings.HasPrefix(typ, "approval_") {
			said = append(said, fmt.Sprintf("%s %v %v %v", typ, l["call_id"], l["state"], l["approver"]))
		}
	}
	require.Equal(t, []string{
		"approval_requested c requested ", "approval_decided c approved amy", "approval_requested d requested ", "approval_decided d denied amy",
	}, said)
	_, metrics := n.get("/metrics")
	for _, line := range []string{`gov_approvals_total{state="requested"} 2`, `gov_approvals_total{state="approved"} 1`, `gov_approvals_total{state="denied"} 1`} {
		require.Contains(t, metrics, line)
	}
	require.Contains(t, metrics, "gov_stopped_requests 0")
}

// A call that is approved and waits for room is ended with its approval, and leaves its
// place in the queue of a pool that only its answer names.
func TestAnApprovalIsCancelledWhileItsCallWaitsForRoom(t *testing.T) {
	n := asking(t, "timeout: 300s")
	n.putPool("gpu", 1)
	held, err := n.slots.AcquireSlot(n.ctx(), &v1.AcquireSlotRequest{Pool: "gpu", SlotId: "held"})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, held.Outcome)
	got := make(chan *v1.BeginCallResponse, 1)
	go func() {
		res, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "c", waiting(time.Minute), func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: "gpu"}} }))
		if err != nil {
			t.Error(err)
		}
		got <- res
	}()
	var id string
	eventually(t, "people are asked", func() bool {
		list, err := n.approvals.List(n.ctx(), &v1.ApprovalServiceListRequest{})
		require.NoError(t, err)
		if len(list.Approvals) == 1 {
			id = list.Approvals[0].Id
		}
		return id != ""
	})
	_, err = n.vote(id, "amy", v1.Vote_VOTE_APPROVE)
	require.NoError(t, err)
	waiters := func() int {
		list, err := n.slots.ListSlots(n.ctx(), &v1.ListSlotsRequest{Pool: "gpu"})
		require.NoError(t, err)
		return len(list.Waiters)
	}
	eventually(t, "it waits for room", func() bool { return waiters() == 1 })
	res, err := n.approvals.Cancel(n.ctx(), &v1.ApprovalServiceCancelRequest{Id: id})
	require.NoError(t, err)
	require.Equal(t, v1.ApprovalState_APPROVAL_STATE_CANCELLED, res.Approval.State)
	require.Zero(t, waiters())
	require.Empty(t, n.getSession("s").OpenCalls)
	require.Equal(t, "The approval was cancelled", (<-got).Reason)
}

// What stands answers before anybody is asked; a signal that stands keeps a call
// out, and its approval with it.
func TestStandingApprovalsAndSignals(t *testing.T) {
	n := asking(t, "timeout: 300s")
	_, err := n.approvals.PutStanding(n.ctx(), &v1.PutStandingRequest{
		Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: "a", Tool: "t", ArgumentsJson: `{"b":1,"a":2}`, Uses: 1, Expiry: durationpb.New(time.Hour)})
	require.NoError(t, err)
	list, err := n.approvals.ListStanding(n.ctx(), &v1.ListStandingRequest{})
	require.NoError(t, err)
	require.Len(t, list.Standings, 1)
	require.JSONEq(t, `{"a":2,"b":1}`, list.Standings[0].GetArguments())
	with := func(arguments string) func(*v1.BeginCallRequest) {
		return func(r *v1.BeginCallRequest) { r.ArgumentsJson = arguments }
	}
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, n.begin("s", "other", with(`{"a":2,"b":1.0}`)).Outcome, "a number that is written otherwise")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c", with(`{"a": 2, "b": 1}`)).Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, n.begin("s", "d", with(`{"a":2,"b":1}`)).Outcome, "its one use is spent")

	id := n.required("e")
	_, err = n.vote(id, "amy", v1.Vote_VOTE_APPROVE)
	require.NoError(t, err)
	n.signal("STOP", agent("a"))
	require.Equal(t, v1.Outcome_OUTCOME_STOPPED, n.begin("s", "e").Outcome)
	require.Equal(t, v1.ApprovalState_APPROVAL_STATE_APPROVED, n.approval(id).State)
	n.signal("CONTINUE", agent("a"))
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "e").Outcome)
	id = n.required("f")
	n.signal("KILL", "s")
	require.Equal(t, v1.ApprovalState_APPROVAL_STATE_CANCELLED, n.approval(id).State)
	require.Equal(t, v1.Outcome_OUTCOME_SESSION_CLOSED, n.begin("s", "f").Outcome)
}

// What a guardrail has made of the arguments is what people agree to: if it makes
// something else of them afterwards the call has ended.
func TestPeopleAgreeToModifiedArguments(t *testing.T) {
	made := `{"path":"/tmp/a"}`
	n := asking(t, "timeout: 300s", func(c *server.Config) {
		c.Engine = append(c.Engine, engine.WithGuardrails(guard(func(engine.GuardrailCall) (engine.GuardrailResult, error) {
			args, err := value.Parse([]byte(made))
			return engine.GuardrailResult{Decision: engine.GuardrailModify, ModifiedArgs: &args}, err
		})))
	})
	id := n.required("c")
	require.Equal(t, made, n.approval(id).Arguments)
	_, err := n.vote(id, "amy", v1.Vote_VOTE_APPROVE)
	require.NoError(t, err)
	res := n.begin("s", "c")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
	require.Equal(t, "/tmp/a", res.ModifiedArguments.Fields["path"].GetStringValue())

	id = n.required("d")
	_, err = n.vote(id, "amy", v1.Vote_VOTE_APPROVE)
	require.NoError(t, err)
	made = `{"path":"/etc"}`
	res = n.begin("s", "d")
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_DENIED, res.Outcome)
	require.Contains(t, res.Reason, "other arguments")
}

// A call that is kept out is judged by what holds when it goes on, as it would be if
// it was sent again then; and what is kept out is waited for no longer than was asked.
func TestWhatIsKeptOutIsJudgedAgain(t *testing.T) {
	var no atomic.Bool
	n := startGuarded(t, func(engine.GuardrailCall) (engine.GuardrailResult, error) {
		if no.Load() {
			return engine.GuardrailResult{Decision: engine.GuardrailDeny, Reason: "not any more"}, nil
		}
		return engine.GuardrailResult{Decision: engine.GuardrailAllow}, nil
	})
	n.signal("STOP", agent("a"))
	said := make(chan *v1.BeginCallResponse, 1)
	go func() {
		res, _ := n.calls.BeginCall(n.ctx(), beginRequest("s", "c", func(r *v1.BeginCallRequest) { r.Wait = durationpb.New(time.Minute) }))
		said <- res
	}()
	eventually(t, "it is kept out", func() bool {
		_, metrics := n.get("/metrics")
		return strings.Contains(metrics, "gov_stopped_requests 1")
	})
	no.Store(true)
	n.signal("CONTINUE", agent("a"))
	res := <-said
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, res.GetOutcome())
	require.Contains(t, res.Reason, "not any more")
}

// People decide on what they have seen, and see it as it is.
func TestWhatPeopleSee(t *testing.T) {
	n := asking(t, "timeout: 300s")
	res := n.begin("s", "c", func(r *v1.BeginCallRequest) {
		r.ArgumentsJson, r.ServerLabel = `{"path":"/tmp/\u202e\u0000\ud83d\ude00/a"}`, "files"
	})
	a := n.approval(res.Approval.Id)
	require.Equal(t, `{"path":"/tmp/\u202e\u0000😀/a"}`, a.Arguments)
	require.Equal(t, "tool", a.Kind)
	require.Equal(t, "files", a.ServerLabel)
	decide := func(id, digest string) error {
		_, err := n.approvals.Decide(n.ctx(), &v1.ApprovalServiceDecideRequest{Id: id, Approver: "amy", Decision: v1.Vote_VOTE_APPROVE, RequestDigest: digest})
		return err
	}
	requireRefused(t, decide(a.Id, "sha256:12"), connect.CodeInvalidArgument, "INVALID_FIELD", "requestDigest")
	requireRefused(t, decide(a.Id, "sha256:"+strings.Repeat("0", 64)), connect.CodeInvalidArgument, "INVALID_FIELD", "requestDigest: is of nothing")
	requireRefused(t, decide(a.Id, "sha256:"+strings.Repeat("1", 64)), connect.CodeInvalidArgument, "INVALID_FIELD", "requestDigest: is not of what")
	require.Equal(t, v1.ApprovalState_APPROVAL_STATE_PENDING, n.approval(a.Id).State)
	require.NoError(t, decide(a.Id, a.RequestDigest))
	require.Equal(t, v1.ApprovalState_APPROVAL_STATE_APPROVED, n.approval(a.Id).State)

	// Without a call all that is asked is what they agree to, not the arguments alone.
	digests := map[string]bool{}
	for _, tool := range []string{"ls", "rm"} {
		res, err := n.approvals.Request(n.ctx(), &v1.ApprovalServiceRequestRequest{AgentId: "a", Tool: tool, ArgumentsJson: `{"d":"/"}`})
		require.NoError(t, err)
		digests[res.Approval.RequestDigest] = true
	}
	require.Len(t, digests, 2)
}

// A list has what was asked for: of a state, of a session, of an agent.
func TestListsOfApprovals(t *testing.T) {
	n := asking(t, "timeout: 300s")
	of := map[string]string{n.required("c"): "c"}
	denied := n.required("d")
	of[denied] = "d"
	_, err := n.vote(denied, "amy", v1.Vote_VOTE_DENY)
	require.NoError(t, err)
	res, err := n.approvals.Request(n.ctx(), &v1.ApprovalServiceRequestRequest{AgentId: "b", SessionId: "other", Tool: "t"})
	require.NoError(t, err)
	of[res.Approval.Id] = "asked"
	for _, tt := range []struct {
		req  *v1.ApprovalServiceListRequest
		want []string
	}{
		{&v1.ApprovalServiceListRequest{}, []string{"c", "d", "asked"}},
		{&v1.ApprovalServiceListRequest{State: v1.ApprovalState_APPROVAL_STATE_PENDING}, []string{"c", "asked"}},
		{&v1.ApprovalServiceListRequest{State: v1.ApprovalState_APPROVAL_STATE_DENIED}, []string{"d"}},
		{&v1.ApprovalServiceListRequest{AgentId: "a"}, []string{"c", "d"}},
		{&v1.ApprovalServiceListRequest{AgentId: "b"}, []string{"asked"}},
		{&v1.ApprovalServiceListRequest{SessionId: "s"}, []string{"c", "d"}},
		{&v1.ApprovalServiceListRequest{SessionId: "other"}, []string{"asked"}},
		{&v1.ApprovalServiceListRequest{SessionId: "other", AgentId: "a"}, nil},
	} {
		list, err := n.approvals.List(n.ctx(), tt.req)
		require.NoError(t, err)
		var got []string
		for _, a := range list.Approvals {
			got = append(got, of[a.Id])
		}
		require.ElementsMatch(t, tt.want, got, tt.req)
	}
}

// Those that stand are listed by whom they are for. None is made for a session that
// is closed.
func TestListsOfStandingApprovals(t *testing.T) {
	n := asking(t, "timeout: 300s")
	const session, agent = v1.StandingScope_STANDING_SCOPE_SESSION, v1.StandingScope_STANDING_SCOPE_AGENT
	put := func(scope v1.StandingScope, name, tool string) error {
		_, err := n.approvals.PutStanding(n.ctx(), &v1.PutStandingRequest{Scope: scope, Name: name, Tool: tool, Expiry: durationpb.New(time.Hour)})
		return err
	}
	require.NoError(t, put(session, "s", "one"))
	require.NoError(t, put(agent, "s", "two"))
	require.NoError(t, put(agent, "b", "three"))
	for _, tt := range []struct {
		req  *v1.ListStandingRequest
		want []string
	}{
		{&v1.ListStandingRequest{}, []string{"one", "two", "three"}},
		{&v1.ListStandingRequest{Scope: agent}, []string{"two", "three"}},
		{&v1.ListStandingRequest{Name: "s"}, []string{"one", "two"}},
		{&v1.ListStandingRequest{Scope: session, Name: "s"}, []string{"one"}},
		{&v1.ListStandingRequest{Scope: session, Name: "b"}, nil},
	} {
		list, err := n.approvals.ListStanding(n.ctx(), tt.req)
		require.NoError(t, err)
		var got []string
		for _, a := range list.Standings {
			got = append(got, a.Tool)
		}
		require.ElementsMatch(t, tt.want, got, tt.req)
	}
	_, err := n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	requireRefused(t, put(session, "s", "four"), connect.CodeNotFound, "NOT_FOUND", "no open session")
}

// A request that is sent again is answered by what stands then.
func TestStandingSentAgain(t *testing.T) {
	n := asking(t, "timeout: 300s")
	req := &v1.PutStandingRequest{
		Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: "a", Tool: "t", Uses: 2, Expiry: durationpb.New(time.Hour), RequestId: "r",
	}
	put := func() *v1.Standing {
		res, err := n.approvals.PutStanding(n.ctx(), req)
		require.NoError(t, err)
		return res.Standing
	}
	_, err := n.approvals.PutStanding(n.ctx(), &v1.PutStandingRequest{
		Scope: v1.StandingScope_STANDING_SCOPE_SESSION, Name: "later", Tool: "t", Expiry: durationpb.New(time.Hour)})
	requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", "open it first")
	require.EqualValues(t, 2, put().Uses)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c").Outcome)
	require.EqualValues(t, 1, put().Uses)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "d").Outcome)
	require.Nil(t, put())
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, n.begin("s", "e").Outcome)

	// So is one for a session that has come to its end meanwhile.
	req.Scope, req.Name, req.RequestId, req.Uses = v1.StandingScope_STANDING_SCOPE_SESSION, "s", "of-s", 0
	require.NotNil(t, put())
	_, err = n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	put()
	req.RequestId = "another"
	_, err = n.approvals.PutStanding(n.ctx(), req)
	requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", "open it first")
}

// Whoever chooses the arguments does not choose which of them people see: all names
// are shown, and what cannot be shown is not asked about. A number that was rounded
// on its way is not either.
func TestPeopleSeeAllArguments(t *testing.T) {
	n := asking(t, "timeout: 300s")
	ask := func(call, arguments string, exact bool) (*v1.BeginCallResponse, error) {
		return n.calls.BeginCall(n.ctx(), beginRequest("s", call, func(r *v1.BeginCallRequest) {
			if exact {
				r.ArgumentsJson = arguments
			} else {
				r.Arguments = new(structpb.Struct)
				require.NoError(t, protojson.Unmarshal([]byte(arguments), r.Arguments))
			}
		}))
	}
	res, err := ask("long", `{"a_note":"`+strings.Repeat("x", 6000)+`","z_amount":1000000}`, true)
	require.NoError(t, err)
	require.Equal(t, `{"a_note":"`+strings.Repeat("x", 1024)+`… (6000 bytes)","z_amount":1000000}`, n.approval(res.Approval.Id).Arguments)

	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, `"key%d":%d,`, i, i)
	}
	_, err = ask("many", `{`+many.String()+`"z":1}`, true)
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "arguments: are too many for people to be shown")

	const large = `{"to":[{"account":9007199254740993}]}`
	_, err = ask("rounded", large, false)
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "arguments: have the number 9007199254740992, which may have been another")
	res, err = ask("exact", large, true)
	require.NoError(t, err)
	require.Equal(t, large, n.approval(res.Approval.Id).Arguments)
	require.EqualValues(t, 2, n.getSession("s").Attempts, "what is refused is no attempt")
}

// Who let what pass can be told afterwards: each vote, what was made to stand and
// taken back, and the call that was let in by it.
func TestTheTrailOfApprovals(t *testing.T) {
	n := asking(t, "required: 2, timeout: 300s")
	id := n.required("c")
	for _, who := range []string{"amy", "amy", "bob", "bob"} { // each is sent again, under its id
		_, err := n.approvals.Decide(n.ctx(), &v1.ApprovalServiceDecideRequest{
			Id: id, Approver: who, Decision: v1.Vote_VOTE_APPROVE, Reason: "seen", RequestId: who, Client: "ui"})
		require.NoError(t, err)
	}
	first := n.begin("s", "c")
	require.Equal(t, "Approved: Tool 't' requires human approval per governance policy", first.Decision.Reason)
	require.Equal(t, first.Decision.Reason, n.begin("s", "c").Decision.Reason)
	put, err := n.approvals.PutStanding(n.ctx(), &v1.PutStandingRequest{
		Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: "a", Tool: "t", Uses: 3, Expiry: durationpb.New(time.Hour), Client: "ui"})
	require.NoError(t, err)
	n.begin("s", "d")
	_, err = n.approvals.DeleteStanding(n.ctx(), &v1.DeleteStandingRequest{Id: put.Standing.Id})
	require.NoError(t, err)

	var said []string
	for _, l := range n.audit.all(t) {
		switch typ := fmt.Sprint(l["event_type"]); {
		case strings.HasPrefix(typ, "approval_"), strings.HasPrefix(typ, "standing_"), l["approval_id"] != nil && l["repeat"] != true:
			said = append(said, fmt.Sprintf("%s allowed=%v by=%v %v%v", typ, l["allowed"], l["approver"], l["name"] == put.Standing.Id, l["approval_id"] == id))
		}
	}
	require.Equal(t, []string{
		"approval_requested allowed=false by= falsetrue",
		"policy_check allowed=false by= falsetrue",
		"approval_voted allowed=false by=amy falsetrue",
		"approval_decided allowed=true by=bob falsetrue",
		"policy_check allowed=true by=bob falsetrue",
		"standing_put allowed=true by=<nil> truefalse",
		"standing_deleted allowed=true by=<nil> truefalse",
	}, said)

	stream, err := n.h2().events.Follow(n.ctx(), &v1.FollowRequest{FromOldest: true, Types: []string{"approval_requested", "approval_decided"}})
	require.NoError(t, err)
	var told []string
	for len(told) < 2 && stream.Receive() {
		if e := stream.Msg().Event; e != nil {
			require.Equal(t, id, e.ApprovalId)
			told = append(told, e.Type+" "+e.Approver)
		}
	}
	require.NoError(t, stream.Close())
	require.Equal(t, []string{"approval_requested ", "approval_decided bob"}, told)
	_, err = n.vote(id, "Timeout", v1.Vote_VOTE_APPROVE)
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "approver: is what is said where nobody decided")
}

// What is sent again under its id is told once: a trail that held it twice
// would tell of a second request, and of a second decision.
func TestTheTrailOfRequestsAndWithdrawals(t *testing.T) {
	n := asking(t, "timeout: 300s")
	var id string
	for range 2 {
		asked, err := n.approvals.Request(n.ctx(), &v1.ApprovalServiceRequestRequest{
			Tool: "t", AgentId: "a", Message: "may it run?", RequestId: "r", Client: "ui"})
		require.NoError(t, err)
		id = asked.Approval.Id
	}
	for range 2 {
		_, err := n.approvals.Cancel(n.ctx(), &v1.ApprovalServiceCancelRequest{Id: id, RequestId: "w", Client: "ui"})
		require.NoError(t, err)
	}
	var said []string
	for _, l := range n.audit.all(t) {
		if l["approval_id"] == id {
			said = append(said, fmt.Sprint(l["event_type"]))
		}
	}
	require.Equal(t, []string{"approval_requested", "approval_decided"}, said)
}
