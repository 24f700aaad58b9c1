package server_test

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// What is told of a call that waits for people, and once they have said yes: no word of a
// refusal is left.
func TestWhatIsToldOfACallThatWaitsForPeople(t *testing.T) {
	n := asking(t, "timeout: 300s")
	stream, err := n.h2().calls.Exchange(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&v1.ExchangeRequest{Frames: []*v1.Operation{
		{Tag: 1, Op: &v1.Operation_Begin{Begin: beginRequest("s", "c", waiting(time.Minute))}}}}))
	next := func() *v1.BeginCallResponse {
		for {
			m, err := stream.Receive()
			require.NoError(t, err)
			if len(m.Answers) > 0 {
				require.NotNil(t, m.Answers[0].GetBegin(), "%v", m)
				return m.Answers[0].GetBegin()
			}
		}
	}
	queued := next()
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, queued.Outcome)
	require.Equal(t, v1.ApprovalState_APPROVAL_STATE_PENDING, queued.Approval.GetState())
	require.NotNil(t, queued.Counters)
	require.NotEmpty(t, queued.DecisionId)
	_, err = n.vote(queued.Approval.Id, "amy", v1.Vote_VOTE_APPROVE)
	require.NoError(t, err)
	res := next()
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
	require.Equal(t, "allow", res.Decision.Action)
	require.True(t, strings.HasPrefix(res.Decision.Reason, "Approved: "), res.Decision.Reason)
	require.Empty(t, res.Decision.PublicMessage)
	require.Empty(t, res.Decision.Category)
	require.Empty(t, res.Reason)
	require.NoError(t, stream.CloseRequest())
}

// A change that is asked for twice under one id is one change in the audit.
func TestARepeatIsNoSecondChangeInTheAudit(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	put := &v1.PutStandingRequest{Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: "a", Tool: "t", Expiry: durationpb.New(time.Hour), RequestId: "put"}
	made, err := n.approvals.PutStanding(t.Context(), put)
	require.NoError(t, err)
	remove := &v1.DeleteStandingRequest{Id: made.Standing.Id, RequestId: "del"}
	for event, ask := range map[string]func() error{
		"standing_put": func() error { _, err := n.approvals.PutStanding(t.Context(), put); return err },
		"pool_put": func() error {
			_, err := n.slots.PutPool(t.Context(), &v1.PutPoolRequest{Pool: "g", Slots: 1, RequestId: "pp"})
			return err
		},
		"rate_put": func() error {
			_, err := n.limits.PutRate(t.Context(), &v1.PutRateRequest{Rate: "r", Limit: 1, Per: durationpb.New(time.Hour), RequestId: "pr"})
			return err
		},
		"budget_put": func() error {
			_, err := n.limits.PutBudget(t.Context(), &v1.PutBudgetRequest{Budget: "b", Amount: "5", RequestId: "pb"})
			return err
		},
		"subject_denied": func() error {
			_, err := n.access.DenySubject(t.Context(), &v1.DenySubjectRequest{Subject: "cert:x", RequestId: "ds"})
			return err
		},
	} {
		require.NoError(t, ask(), event)
		require.NoError(t, ask(), event)
		require.Equal(t, 1, strings.Count(n.audit.text(), `"event_type":"`+event+`"`), event)
	}
	_, err = n.access.DenySubject(t.Context(), &v1.DenySubjectRequest{Subject: "cert:x", RequestId: "again"})
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(n.audit.text(), `"event_type":"subject_denied"`), "it was denied already")
	for range 2 {
		_, err = n.approvals.DeleteStanding(t.Context(), remove)
		require.NoError(t, err)
	}
	require.Equal(t, 1, strings.Count(n.audit.text(), `"event_type":"standing_deleted"`))
}

// What no token and no quota may be is refused, whatever else it says rightly.
func TestWhatTheClusterHasNot(t *testing.T) {
	n := start(t)
	_, err := n.access.PutQuotas(t.Context(), &v1.PutQuotasRequest{Namespace: session.ClusterNamespace, Quotas: &v1.Quotas{Sessions: 1}})
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "has no quotas")
	for field, change := range map[string]func(*v1.CreateTokenRequest){
		"environment": func(r *v1.CreateTokenRequest) { r.Environment = "staging" },
		"agents":      func(r *v1.CreateTokenRequest) { r.Agents = []string{"a"} },
		"policies":    func(r *v1.CreateTokenRequest) { r.Policies = []string{"p"} },
	} {
		req := &v1.CreateTokenRequest{
			TokenId: "join", SecretSha256: make([]byte, 32), Roles: []v1.Role{v1.Role_ROLE_JOINER}, Namespace: session.ClusterNamespace}
		req.SecretSha256[0] = 1
		change(req)
		_, err := n.access.CreateToken(t.Context(), req)
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "%s: %v", field, err)
		require.ErrorContains(t, err, "joiner has no agents, policies or environment")
	}
}

// Evaluate judges a session by all that a call in it would be judged by.
func TestEvaluateKnowsWhatRuns(t *testing.T) {
	n := start(t)
	n.putPolicy("name: p", "rules: [{name: quiet, condition: {field: active_slots, operator: gte, value: 2}, action: deny, message: two run}]")
	n.session("s")
	n.session("other")
	evaluated := func() *v1.Decision {
		res, err := n.policies.Evaluate(t.Context(), &v1.EvaluateRequest{SessionId: "s", Tool: "t"})
		require.NoError(t, err)
		return res.Decision
	}
	n.begin("other", "one")
	require.True(t, evaluated().Allowed)
	n.begin("other", "two")
	require.False(t, evaluated().Allowed)
	require.Equal(t, n.begin("s", "c").Reason, evaluated().Reason)
}

// Who leads is told on a stream when it is news, and not with each answer.
func TestAStreamTellsOnceWhoLeads(t *testing.T) {
	n := start(t, func(c *server.Config) { c.Cluster = changeCluster{&changeStore{Store: c.Store}} })
	stream, err := n.h2().calls.Exchange(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(nil))
	first, err := stream.Receive()
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:1", first.LeaderAddress)
	for tag := range uint64(2) {
		require.NoError(t, stream.Send(&v1.ExchangeRequest{Frames: []*v1.Operation{{Tag: tag + 1, Op: beginFrame(tag+1, "none", "c").Op}}}))
		m, err := stream.Receive()
		require.NoError(t, err)
		for len(m.Answers) == 0 { // it is set apart, since the session is looked for
			require.Empty(t, m.LeaderAddress)
			m, err = stream.Receive()
			require.NoError(t, err)
		}
		require.Empty(t, m.LeaderAddress)
	}
	require.NoError(t, stream.CloseRequest())
}
