package server_test

import (
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

func TestCreateSessionAgain(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	req := &v1.CreateSessionRequest{
		SessionId: "s", AgentId: "a", Policy: byName("p"), IdleTtl: durationpb.New(time.Hour),
		ParentSessionId: "parent", Attributes: map[string]string{"b": "2", "a": "1"},
	}
	first, err := n.sessions.CreateSession(n.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, "p", first.Session.PolicyName)
	require.EqualValues(t, 1, first.Session.PolicyVersion)
	require.Equal(t, v1.SessionState_SESSION_STATE_OPEN, first.Session.State)
	n.begin("s", "c")

	// Neither a newer version nor the end of the name changes the answer.
	n.putPolicy(policy("max_tokens: 7")...)
	again, err := n.sessions.CreateSession(n.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, first.Session.PolicyDigest, again.Session.PolicyDigest)
	require.EqualValues(t, 1, again.Session.Attempts, "as of now")
	require.Equal(t, req.Attributes, again.Session.Attributes)
	require.Equal(t, "parent", again.Session.ParentSessionId)
	_, err = n.policies.DeletePolicy(n.ctx(), &v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Name{Name: "p"}, RequestId: "d"})
	require.NoError(t, err, "nobody pins the second version")
	again, err = n.sessions.CreateSession(n.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, first.Session.PolicyDigest, again.Session.PolicyDigest)

	got := n.getSession("s")
	require.Equal(t, req.Attributes, got.Attributes)
	require.Equal(t, time.Hour, got.IdleTtl.AsDuration())
	require.InDelta(t, time.Hour.Seconds(), got.IdleLeft.AsDuration().Seconds(), 60)
	require.Len(t, got.OpenCalls, 1)
	require.Equal(t, "t", got.OpenCalls[0].Tool)
	require.Len(t, got.OpenCalls[0].Grants, 1)
}

func TestASessionWithoutAnIDGetsOne(t *testing.T) {
	n := start(t)
	p := n.putPolicy(policy()...)
	res, err := n.sessions.CreateSession(n.ctx(), &v1.CreateSessionRequest{AgentId: "a", Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Digest{Digest: p.Digest}}})
	require.NoError(t, err)
	require.Len(t, res.Session.SessionId, 26)
	got := n.getSession(res.Session.SessionId)
	require.Empty(t, got.PolicyName, "it named a digest")
	require.Equal(t, "policy/p", n.begin(got.SessionId, "c").Grants[0].Pool)
}

// A session decides by the tree it was created under, whatever is put later.
func TestASessionKeepsItsPolicy(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("allowed_tools: [t]")...)
	n.session("old")
	second := n.putPolicy(policy("allowed_tools: [other]")...)
	require.EqualValues(t, 2, second.Version)
	n.session("new")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("old", "c").Outcome)
	denied := n.begin("new", "c")
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, denied.Outcome)
	require.Equal(t, "Tool 't' not in allowed list: ['other']", denied.Reason)
	require.Equal(t, second.Digest, denied.Decision.PolicyDigest)
}

func TestListSessionsInPages(t *testing.T) {
	n := start(t)
	p := n.putPolicy(policy()...)
	for i := range 25 {
		_, err := n.sessions.CreateSession(n.ctx(), &v1.CreateSessionRequest{
			SessionId: fmt.Sprintf("s%02d", i), AgentId: fmt.Sprintf("agent%d", i%2), Policy: byName("p")})
		require.NoError(t, err)
	}
	var ids []string
	token := ""
	for pages := 0; ; pages++ {
		require.Less(t, pages, 10)
		res, err := n.sessions.ListSessions(n.ctx(), &v1.ListSessionsRequest{PageSize: 10, PageToken: token})
		require.NoError(t, err)
		for _, s := range res.Sessions {
			ids = append(ids, s.SessionId)
		}
		if token = res.NextPageToken; token == "" {
			break
		}
	}
	require.Len(t, ids, 25)
	require.IsIncreasing(t, ids)
	res, err := n.sessions.ListSessions(n.ctx(), &v1.ListSessionsRequest{AgentId: "agent1", PolicyDigest: p.Digest})
	require.NoError(t, err)
	require.Len(t, res.Sessions, 12)
	require.Empty(t, res.NextPageToken)
}

func TestCloseSession(t *testing.T) {
	n := furnished(t)
	n.begin("s", "d", func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: "gpu"}} })
	res, err := n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	require.EqualValues(t, 3, res.Released, "c held one slot and d two")
	require.Equal(t, v1.SessionState_SESSION_STATE_CLOSED, res.Session.State)
	require.EqualValues(t, 3, res.Session.Executions, "what ran counts as executed")
	res, err = n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	require.Zero(t, res.Released, "a repeat frees nothing")

	after := n.begin("s", "new")
	require.Equal(t, v1.Outcome_OUTCOME_SESSION_CLOSED, after.Outcome)
	require.Contains(t, after.Reason, "closed")
	require.Equal(t, v1.Outcome_OUTCOME_LEASE_LOST, n.begin("s", "d", func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: "gpu"}} }).Outcome)
	_, err = n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: "never", Status: v1.Status_STATUS_FAILED})
	requireRefused(t, err, connect.CodeFailedPrecondition, "SESSION_CLOSED", `callId "never"`)
	require.Equal(t, v1.Outcome_OUTCOME_ALREADY_ENDED, n.end("s", "e").Outcome, "repeats are answered for an hour")
}

func TestNamespacesAreApart(t *testing.T) {
	n := furnished(t)
	status, answer := n.post("SessionService/GetSession", `{"sessionId":"s"}`, "Govnode-Namespace", "other")
	require.Equal(t, 404, status, "%v", answer)
	status, answer = n.post("PolicyService/PutPolicy", `{"yaml":"name: p\nmax_tool_calls: 1\n"}`, "Govnode-Namespace", "other")
	require.Equal(t, 200, status, "%v", answer)
	status, answer = n.post("SessionService/CreateSession", `{"sessionId":"s","agentId":"b","policy":{"name":"p"}}`, "Govnode-Namespace", "other")
	require.Equal(t, 200, status, "%v", answer)
	require.Equal(t, "a", n.getSession("s").AgentId)
	digest := answer["session"].(map[string]any)["policyDigest"]
	evaluate := func(ns string) int {
		status, _ := n.post("PolicyService/Evaluate", fmt.Sprintf(`{"policy":{"digest":%q},"tool":"t"}`, digest), "Govnode-Namespace", ns)
		return status
	}
	require.Equal(t, 200, evaluate("other"))
	require.Equal(t, 404, evaluate("third"), "a digest is no key to the policy of another namespace, compiled or not")
	status, answer = n.post("SessionService/GetSession", `{"sessionId":"s"}`, "Govnode-Namespace", "a/b")
	require.Equal(t, 400, status, "%v", answer)
	require.Contains(t, answer["message"], "Govnode-Namespace: byte 1")
}

// An id older than what its maker still remembers is refused with what a new
// one must be newer than.
func TestStaleID(t *testing.T) {
	n := start(t)
	n.putPool("gpu", 4)
	for i := range 1300 {
		id := fmt.Sprintf("01J00000%02d%016d", i/100, i) // ULIDs of rising time
		res := n.acquire("gpu", id)
		n.release("gpu", id, res.Token)
	}
	_, err := n.slots.AcquireSlot(n.ctx(), &v1.AcquireSlotRequest{Pool: "gpu", SlotId: fmt.Sprintf("01J00000%02d%016d", 0, 99999), Client: "w"})
	requireRefused(t, err, connect.CodeFailedPrecondition, "STALE_ID", "not executed")
	require.NotEmpty(t, info(t, err).Metadata["newerThan"])
	batch, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{
		{Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "gpu", SlotId: fmt.Sprintf("01J00000%02d%016d", 0, 99999), Client: "w"}}}}})
	require.NoError(t, err)
	require.Positive(t, batch.Results[0].GetError().GetNewerThan())
}
