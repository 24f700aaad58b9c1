package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What was said in a request stands in the answers about it, each value at its place.
func TestAnswersSayWhatWasAsked(t *testing.T) {
	n := asking(t, "required: 2, denials: 3, timeout: 300s")
	asked := n.begin("s", "c", func(r *v1.BeginCallRequest) { r.ServerLabel = "mcp" })
	_, err := n.vote(asked.Approval.Id, "amy", v1.Vote_VOTE_DENY)
	require.NoError(t, err)
	_, err = n.vote(asked.Approval.Id, "bob", v1.Vote_VOTE_APPROVE)
	require.NoError(t, err)
	a := n.approval(asked.Approval.Id)
	require.EqualValues(t, 2, a.Required)
	require.EqualValues(t, 3, a.Denials)
	require.Equal(t, "mcp", a.ServerLabel)
	require.Equal(t, v1.OnTimeout_ON_TIMEOUT_DENY, a.OnTimeout)
	require.Len(t, a.Ballots, 2)
	for _, b := range a.Ballots {
		require.Equal(t, "seen by "+b.Approver, b.Reason)
		require.Equal(t, b.Approver == "bob", b.Vote == v1.Vote_VOTE_APPROVE)
	}

	made, err := n.approvals.PutStanding(t.Context(), &v1.PutStandingRequest{
		Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: "a", Tool: "t", ServerLabel: "mcp", Uses: 3, Expiry: durationpb.New(time.Hour)})
	require.NoError(t, err)
	require.Equal(t, "mcp", made.Standing.ServerLabel)
	require.EqualValues(t, 3, made.Standing.Uses)

	req := &v1.CreateSessionRequest{SessionId: "child", AgentId: "a", Policy: byName("p"), ParentSessionId: "s", Attributes: map[string]string{"k": "v", "l": "w"}}
	created, err := n.sessions.CreateSession(t.Context(), req)
	require.NoError(t, err)
	for _, x := range []*v1.Session{created.Session, n.getSession("child")} {
		require.Equal(t, req.Attributes, x.Attributes)
		require.Equal(t, "s", x.ParentSessionId)
	}

	n.putPool("gpu", 2)
	held := n.acquire("gpu", "held", func(r *v1.AcquireSlotRequest) { r.Weight, r.Ttl = 2, durationpb.New(time.Hour) })
	require.Equal(t, time.Hour, held.Ttl.AsDuration())
	_, err = n.calls.BatchCalls(t.Context(), &v1.BatchCallsRequest{Operations: []*v1.Operation{{Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{
		Pool: "gpu", SlotId: "waits", Weight: 2, Priority: 4, Label: "l", Wait: durationpb.New(time.Minute)}}}}})
	require.NoError(t, err)
	waiters := n.waitingIn("gpu")
	require.Len(t, waiters, 1)
	require.EqualValues(t, 2, waiters[0].Weight)
	require.EqualValues(t, 4, waiters[0].Priority)
	require.Equal(t, "l", waiters[0].Label)
	require.LessOrEqual(t, waiters[0].WaitLeft.AsDuration(), time.Minute)
}
