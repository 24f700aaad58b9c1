package server_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
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
	n.begin("s", "c")
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
		"content_hash_put": func() error {
			_, err := n.policies.PutHash(t.Context(), &v1.PutHashRequest{Tool: "t", Hash: strings.Repeat("1", 64), RequestId: "ph"})
			return err
		},
		"slot_force_released": func() error {
			_, err := n.slots.ForceRelease(t.Context(), &v1.ForceReleaseRequest{SessionId: "s", SlotId: "c", RequestId: "fr"})
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
	for range 2 {
		_, err = n.policies.DeleteHash(t.Context(), &v1.DeleteHashRequest{Tool: "t", RequestId: "dh"})
		require.NoError(t, err)
	}
	require.Equal(t, 2, strings.Count(n.audit.text(), `"event_type":"content_hash_put"`), "and the one before")
	for _, id := range []string{"r1", "r2", "r1"} {
		_, err = n.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Yaml: "name: q\nmax_tokens: " + id[1:] + "\n", RequestId: id})
		require.NoError(t, err)
	}
	require.Equal(t, 3, strings.Count(n.audit.text(), `"event_type":"policy_put"`), "the first version is in force no more")
}

// What a node was answered once and had to ask for again is told as well: as a repeat, as
// another node may have been asked for it before.
func TestWhatLostItsAnswerIsTold(t *testing.T) {
	var n *node
	var voted atomic.Bool
	store := losing{Memory: storage.NewMemory(nil), meanwhile: func(cmds []session.Command) {
		if _, votes := cmds[0].(*session.Decide); votes && !voted.Swap(true) { // what was approved is used before its answer is there
			require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c", func(r *v1.BeginCallRequest) { r.Tool = "pay" }).Outcome)
		}
	}}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n = startOn(t, store)
	_, err := n.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: "p", RequestId: "p", Files: []*v1.TextFile{
		{Path: "limits.yaml", Content: strings.Join(policy("drift_threshold: 0.15"), "\n")},
		{Path: "rules.yaml", Content: "name: rules\nrules: [{name: asks, condition: {field: tool_name, operator: eq, value: pay}, action: ask, message: who pays}]"},
	}})
	require.NoError(t, err)
	n.session("s")
	f, _ := n.follow(&v1.FollowRequest{})
	var want []string
	told := func(types ...string) { want = append(want, types...) }
	for _, output := range []string{"one answer", "quite another answer, and much longer"} {
		call := output[:3]
		n.begin("s", call)
		require.Equal(t, v1.Outcome_OUTCOME_ALREADY_ENDED, n.endWith("s", call, output).Outcome)
		told("policy_check")
	}
	told("drift_detected")
	vote := func(id, who string) (*v1.ApprovalServiceDecideResponse, error) {
		return n.approvals.Decide(t.Context(), &v1.ApprovalServiceDecideRequest{Id: id, Approver: who, Decision: v1.Vote_VOTE_APPROVE, RequestId: who})
	}
	pay := n.begin("s", "c", func(r *v1.BeginCallRequest) { r.Tool = "pay" })
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, pay.Outcome)
	told("approval_requested", "policy_check")
	_, err = vote(pay.Approval.Id, "amy")
	require.NoError(t, err)
	asked, err := n.approvals.Request(t.Context(), &v1.ApprovalServiceRequestRequest{AgentId: "a", Tool: "t", Required: 2, RequestId: "ask"})
	require.NoError(t, err)
	_, err = vote(asked.Approval.Id, "bob")
	require.NoError(t, err)
	_, err = n.approvals.Cancel(t.Context(), &v1.ApprovalServiceCancelRequest{Id: asked.Approval.Id, RequestId: "cancel"})
	require.NoError(t, err)
	told("approval_decided approved", "approval_requested", "approval_decided cancelled")
	n.begin("s", "held")
	_, err = n.slots.ForceRelease(t.Context(), &v1.ForceReleaseRequest{SessionId: "s", SlotId: "held", RequestId: "force"})
	require.NoError(t, err)
	told("policy_check")
	_, err = n.sessions.Signal(t.Context(), &v1.SignalRequest{Target: &v1.SignalRequest_AgentId{AgentId: "a"}, Signal: "STOP", RequestId: "stop"})
	require.NoError(t, err)
	told("signal")
	for _, typ := range want {
		ev := f.event()
		typ, state, _ := strings.Cut(typ, " ")
		require.Equal(t, typ, ev.Type)
		require.True(t, state == "" || state == ev.Category, "%v", ev)
		require.True(t, ev.Repeat, typ)
	}
	_, err = n.slots.PutPool(t.Context(), &v1.PutPoolRequest{Pool: "g", Slots: 1, RequestId: "pool"})
	require.NoError(t, err)
	_, err = n.policies.PutHash(t.Context(), &v1.PutHashRequest{Tool: "t", Hash: strings.Repeat("1", 64), RequestId: "hash"})
	require.NoError(t, err)
	_, err = n.approvals.PutStanding(t.Context(), &v1.PutStandingRequest{
		Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: "a", Tool: "t", Expiry: durationpb.New(time.Hour), RequestId: "stand"})
	require.NoError(t, err)
	_, err = n.access.DenySubject(t.Context(), &v1.DenySubjectRequest{Subject: "cert:x", RequestId: "deny"})
	require.NoError(t, err)
	_, err = n.cluster.RepairIDs(t.Context(), &v1.RepairIDsRequest{RequestId: "repair"})
	require.NoError(t, err)
	lines := map[string]int{}
	for _, l := range n.audit.all(t) {
		lines[l["event_type"].(string)]++
	}
	for typ, times := range map[string]int{
		"policy_put": 1, "drift_detected": 1, "approval_requested": 2, "approval_decided": 2, "approval_voted": 1, "signal": 1, "pool_put": 1,
		"slot_force_released": 1, "content_hash_put": 1, "standing_put": 1, "subject_denied": 1, "ids_repaired": 1,
	} {
		require.Equal(t, times, lines[typ], typ)
	}
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
