package server_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// What is held against the first element of a list is held against each.
func TestABoundHoldsForEachElement(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	n.putPool("gpu", 1)
	n.putRate("r", 5, time.Second)
	n.putBudget("b", "", "10")
	for field, ask := range map[string]func() error{
		"pools[1].pool": func() error {
			_, err := n.calls.BeginCall(t.Context(), beginRequest("s", "c", func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: "gpu"}, {Pool: "a b"}} }))
			return err
		},
		"pools[1].weight": func() error {
			_, err := n.calls.BeginCall(t.Context(), beginRequest("s", "c", func(r *v1.BeginCallRequest) {
				r.Pools = []*v1.Want{{Pool: "gpu"}, {Pool: "other", Weight: -1}}
			}))
			return err
		},
		"rates[1].cost": func() error {
			_, err := n.calls.BeginCall(t.Context(), beginRequest("s", "c", func(r *v1.BeginCallRequest) {
				r.Rates = []*v1.RateWant{{Rate: "r"}, {Rate: "q", Cost: -1}}
			}))
			return err
		},
		"budgets[1].amount": func() error {
			_, err := n.calls.BeginCall(t.Context(), beginRequest("s", "c", charged("b", "1", "c", "-1")))
			return err
		},
		"spent[1].amount": func() error {
			_, err := n.calls.EndCall(t.Context(), &v1.EndCallRequest{SessionId: "s", CallId: "c", Status: v1.Status_STATUS_FAILED, Spent: costs("b", "1", "c", "-1")})
			return err
		},
		"slots[1].slotId": func() error {
			_, err := n.slots.RenewSlots(t.Context(), renewOf("gpu", "one", "a b"))
			return err
		},
		"slots[1].pool": func() error {
			_, err := n.slots.RenewSlots(t.Context(), &v1.RenewSlotsRequest{Slots: []*v1.SlotRef{{Pool: "gpu", SlotId: "x"}, {SlotId: "y"}}})
			return err
		},
		"keys[1]": func() error {
			_, err := n.counters.BatchGet(t.Context(), &v1.BatchGetRequest{Keys: []string{"k", ""}})
			return err
		},
		"items[1]": func() error {
			_, err := n.counters.Append(t.Context(), &v1.AppendRequest{Key: "l", Items: []string{"x", strings.Repeat("x", int(input.Caps.Item.Max)+1)}, Ttl: durationpb.New(time.Hour)})
			return err
		},
	} {
		err := ask()
		require.Error(t, err, field)
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "%s: %v", field, err)
		require.Equal(t, field, info(t, err).Metadata["field"], "%v", err)
	}
	require.Zero(t, n.getSession("s").Attempts)
}

// All whom one STOP keeps out, or one approval, go on when that is over.
func TestAllWhoAreKeptOutGoOn(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	for round, to := range []any{"s", agent("a"), named("p"), nil} {
		n.signal("STOP", to)
		var all sync.WaitGroup
		outcomes := make([]v1.Outcome, 4)
		for i := range outcomes {
			all.Go(func() {
				res, err := n.calls.BeginCall(t.Context(), beginRequest("s", fmt.Sprint("c", round, "-", i), waiting(time.Minute)))
				if err == nil {
					outcomes[i] = res.Outcome
					_, _ = n.calls.EndCall(t.Context(), &v1.EndCallRequest{SessionId: "s", CallId: fmt.Sprint("c", round, "-", i), Status: v1.Status_STATUS_SUCCEEDED})
				}
			})
		}
		eventually(t, "all wait", func() bool { return n.metric("gov_stopped_requests") == 4 })
		n.signal("CONTINUE", to)
		all.Wait()
		for _, o := range outcomes {
			require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, o)
		}
	}
}

// Each kind of what a namespace keeps counts among its bytes.
func TestEachKindCountsAmongTheBytes(t *testing.T) {
	text := strings.Repeat("x", 600)
	for kind, put := range map[string]func(n *node) error{
		"values": func(n *node) error {
			_, err := n.counters.Set(t.Context(), &v1.SetRequest{Key: "k", Value: text})
			return err
		},
		"lists": func(n *node) error {
			_, err := n.counters.Append(t.Context(), &v1.AppendRequest{Key: "k", Items: []string{text}, Ttl: durationpb.New(time.Hour)})
			return err
		},
		"policies": func(n *node) error {
			_, err := n.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Yaml: "name: q\nmax_concurrent: 2\n# " + text + "\n"})
			return err
		},
		"approvals": func(n *node) error {
			_, err := n.approvals.Request(t.Context(), &v1.ApprovalServiceRequestRequest{AgentId: "a", Tool: "t", Message: text})
			return err
		},
		"standing approvals": func(n *node) error {
			_, err := n.approvals.PutStanding(t.Context(), &v1.PutStandingRequest{
				Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: "a", Tool: "t", Expiry: durationpb.New(time.Hour), ArgumentsJson: `{"x": "` + text + `"}`})
			return err
		},
	} {
		t.Run(kind, func(t *testing.T) {
			n := start(t)
			require.NoError(t, put(n))
			require.NoError(t, n.store.Apply(t.Context(), &session.PutQuotas{
				NS: "default", By: session.Maker{Client: "test"}, Quotas: session.Quotas{Bytes: 1000}})[0].Failure())
			other := startOn(t, &behind{Store: n.store}) // it looks at them anew
			_, err := other.counters.Set(t.Context(), &v1.SetRequest{Key: "other", Value: strings.Repeat("y", 5)})
			require.NoError(t, err)
			_, err = other.counters.Set(t.Context(), &v1.SetRequest{Key: "more", Value: strings.Repeat("y", 450)})
			requireOverQuota(t, err, "bytes")
		})
	}
}

// What stands against a session is told of each in a renewal, and of none that is over.
func TestWhatStandsAgainstEachSession(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.signal("STOP", agent("somebody"))
	req := &v1.RenewSlotsRequest{}
	for _, id := range []string{"one", "two", "over"} {
		n.session(id)
		req.Slots = append(req.Slots, &v1.SlotRef{SessionId: id, SlotId: "c", Token: n.begin(id, "c").Grants[0].Token})
	}
	n.signal("STOP", "one")
	n.signal("STOP", "over")
	_, err := n.sessions.CloseSession(t.Context(), &v1.CloseSessionRequest{SessionId: "over"})
	require.NoError(t, err)
	told := func() (names []string) {
		res, err := n.slots.RenewSlots(t.Context(), req)
		require.NoError(t, err)
		for _, r := range res.Results[:2] {
			names = append(names, r.GetSignal().GetSignal()+" "+r.GetSignal().GetSessionId()+r.GetSignal().GetAgentId())
		}
		return names
	}
	require.Equal(t, []string{"STOP one", " "}, told())
	list, err := n.sessions.ListSignals(t.Context(), &v1.ListSignalsRequest{})
	require.NoError(t, err)
	require.Len(t, list.Signals, 2, "a session that is over is stopped no more")
	n.signal("STOP", "two", func(r *v1.SignalRequest) { r.RequestId = "two" })
	require.Equal(t, []string{"STOP one", "STOP two"}, told())
	n.signal("STOP", nil)
	res, err := n.slots.RenewSlots(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, "over", res.Results[2].Signal.GetSessionId(), "what came later is not for it")

	// A session is listed by each of what it may be asked for.
	again := n.putPolicy(policy("# two")...)
	n.signal("CONTINUE", nil)
	n.session("new")
	found, err := n.sessions.ListSessions(t.Context(), &v1.ListSessionsRequest{PolicyDigest: again.Digest})
	require.NoError(t, err)
	require.Len(t, found.Sessions, 1)
	require.Equal(t, "new", found.Sessions[0].SessionId)
	got, err := n.policies.GetPolicy(t.Context(), &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: "p"}})
	require.NoError(t, err)
	require.EqualValues(t, 2, got.Policy.Version)
	closed, err := n.sessions.CloseSession(t.Context(), &v1.CloseSessionRequest{SessionId: "one"})
	require.NoError(t, err)
	require.EqualValues(t, 1, closed.Released)
	closed, err = n.sessions.CloseSession(t.Context(), &v1.CloseSessionRequest{SessionId: "one"})
	require.NoError(t, err)
	require.Zero(t, closed.Released, "they were released before")
}

// A budget is adjusted and deleted however deep it is, at a node that has not seen what
// is above it as at one that has.
func TestDeepBudgetsAtANodeThatIsBehind(t *testing.T) {
	n, late, b := apart(t)
	n.putBudget("org", "", "100")
	b.freeze(t)
	n.putBudget("unit", "org", "100")
	n.putBudget("team", "unit", "100")
	n.putBudget("me", "team", "100")
	for i, at := range []*node{n, late} {
		_, err := at.limits.AdjustBudget(t.Context(), &v1.AdjustBudgetRequest{Budget: "me", By: "2"})
		require.NoError(t, err)
		for _, name := range []string{"org", "unit", "team", "me"} {
			require.Equal(t, fmt.Sprint(2*(i+1)), n.used(name), name)
		}
	}
	_, err := late.limits.DeleteBudget(t.Context(), &v1.DeleteBudgetRequest{Budget: "team"})
	require.Equal(t, "failed_precondition BUDGET_HAS_CHILDREN", saidOf(t, err))
	for _, name := range []string{"me", "team", "unit"} {
		_, err := late.limits.DeleteBudget(t.Context(), &v1.DeleteBudgetRequest{Budget: name})
		require.NoError(t, err)
	}
	org, err := n.limits.GetBudget(t.Context(), &v1.GetBudgetRequest{Budget: "org"})
	require.NoError(t, err)
	require.Zero(t, org.Budget.Children)
}

// A scoped token follows what is of its agents, and sees no other in a queue.
func TestWhatAScopedTokenIsToldOf(t *testing.T) {
	n := startAsking(t)
	author := n.as(n.token("team", "au01", []v1.Role{v1.Role_ROLE_POLICY_AUTHOR}))
	_, err := author.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: "p", Yaml: "max_concurrent: 1\n"})
	require.NoError(t, err)
	all := n.as(n.token("team", "all1", allRoles))
	mine := n.as(n.token("team", "mine", allRoles, agents("a")))
	require.NoError(t, open(all, "sa", "a", "p"))
	require.NoError(t, open(all, "sb", "b", "p"))
	stream, err := mine.events.Follow(t.Context(), &v1.FollowRequest{})
	require.NoError(t, err)
	require.True(t, stream.Receive())
	ctx := t.Context()
	batch, err := all.calls.BatchCalls(ctx, &v1.BatchCallsRequest{Operations: []*v1.Operation{
		{Op: &v1.Operation_Begin{Begin: beginRequest("sb", "holds")}},
		{Op: &v1.Operation_Begin{Begin: beginRequest("sb", "waits", waiting(time.Minute))}},
		{Op: &v1.Operation_Begin{Begin: beginRequest("sa", "waits", waiting(time.Minute))}},
	}})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, batch.Results[2].GetBegin().GetOutcome(), "%v", batch)
	slots, err := mine.slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: "policy/p"})
	require.NoError(t, err)
	require.Empty(t, slots.Slots)
	require.Len(t, slots.Waiters, 1)
	require.Equal(t, "sa", slots.Waiters[0].SessionId)
	require.EqualValues(t, 2, slots.Waiters[0].Position)
	_, err = all.policies.Evaluate(ctx, &v1.EvaluateRequest{SessionId: "sb", Tool: "theirs"})
	require.NoError(t, err)
	_, err = all.policies.Evaluate(ctx, &v1.EvaluateRequest{SessionId: "sa", Tool: "mine"})
	require.NoError(t, err)
	for {
		require.True(t, stream.Receive(), "%v", stream.Err())
		ev := stream.Msg().Event
		if ev == nil {
			continue
		}
		require.Equal(t, "a", ev.AgentId)
		if ev.Tool == "mine" {
			break
		}
	}
	_, err = mine.approvals.PutStanding(ctx, &v1.PutStandingRequest{Scope: v1.StandingScope_STANDING_SCOPE_POLICY, Name: "p", Tool: "t", Expiry: durationpb.New(time.Hour)})
	require.Equal(t, connect.CodePermissionDenied, connect.CodeOf(err), "%v", err)
	before := len(n.audit.all(t))
	_, err = mine.slots.ForceRelease(ctx, &v1.ForceReleaseRequest{SessionId: "sb", SlotId: "holds"})
	require.NoError(t, err)
	lines := n.audit.all(t)[before:]
	require.Len(t, lines, 1)
	require.Contains(t, fmt.Sprint(lines[0]), "sb", "the audit says of whom it was asked")
	still, err := all.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: "sb"})
	require.NoError(t, err)
	require.Len(t, still.Session.OpenCalls, 2)
	for _, c := range still.Session.OpenCalls { // what waits has no grants
		require.Equal(t, c.Waiting, len(c.Grants) == 0, "%v", c)
	}

	env := n.as(n.token("team", "env1", worker, func(t *session.Token) { t.Environment = "staging" }))
	who, err := env.access.WhoAmI(ctx, &v1.WhoAmIRequest{})
	require.NoError(t, err)
	require.Equal(t, "staging", who.Environment)
	require.Equal(t, "team", who.Namespace)
	require.ElementsMatch(t, worker, who.Roles)
	_, err = all.access.DenySubject(ctx, &v1.DenySubjectRequest{Subject: "cert:x", Reason: "left"})
	require.NoError(t, err)
	_, err = all.access.DenySubject(ctx, &v1.DenySubjectRequest{Subject: "cert:y", Reason: "stolen"})
	require.NoError(t, err)
	tokens, err := all.access.ListTokens(ctx, &v1.ListTokensRequest{})
	require.NoError(t, err)
	reasons := map[string]string{}
	for _, d := range tokens.Denied {
		reasons[d.Subject] = d.Reason
		require.NotZero(t, d.DeniedAt)
	}
	require.Equal(t, map[string]string{"cert:x": "left", "cert:y": "stolen"}, reasons)
}

// What a text holds twice is counted twice, and a denial is of the session's agent.
func TestFindingsAreCounted(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("blocked_patterns: [forbidden]")...)
	n.session("s")
	res, err := n.policies.Scan(t.Context(), &v1.ScanRequest{SessionId: "s", Kind: v1.ScanKind_SCAN_KIND_OUTPUT, Text: "jane@example.org and john@example.org"})
	require.NoError(t, err)
	require.EqualValues(t, 2, res.Findings[0].Count)
	_, err = n.policies.Scan(t.Context(), &v1.ScanRequest{SessionId: "s", Kind: v1.ScanKind_SCAN_KIND_OUTPUT, Text: "forbidden"})
	require.NoError(t, err)
	all := n.audit.all(t)
	require.Equal(t, "a", all[len(all)-1]["agent_id"])
}

// Times in answers are left, not read off the clock.
func TestTimesOfAnswersAreLeft(t *testing.T) {
	var now atomic.Int64
	now.Store(int64(50 * time.Hour))
	store := storage.NewMemory(func() time.Duration { return time.Duration(now.Load()) })
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store)
	n.putPolicy("name: p", "max_concurrent: 1", "require_human_approval: true", "approval: {timeout: 300s, on_timeout: deny}")
	n.session("s")
	n.putRate("r", 1, time.Hour)
	taken, err := n.limits.TakeRate(t.Context(), &v1.TakeRateRequest{Rate: "r", RequestId: "one"})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, taken.Outcome)
	asked := n.begin("s", "c")
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, asked.Outcome)
	now.Add(int64(time.Minute))
	require.Equal(t, 59*time.Minute, n.rate("r").FreeIn.AsDuration())
	list, err := n.limits.ListRates(t.Context(), &v1.ListRatesRequest{})
	require.NoError(t, err)
	require.Equal(t, 59*time.Minute, list.Rates[0].FreeIn.AsDuration())
	a := n.approval(asked.Approval.Id)
	require.Equal(t, time.Minute, a.Age.AsDuration())
	require.Equal(t, 4*time.Minute, a.ExpiresIn.AsDuration())
	require.False(t, a.ByTimeout)
	x := n.getSession("s")
	require.Equal(t, time.Minute, x.Age.AsDuration())
	require.Equal(t, time.Minute, x.OpenCalls[0].Age.AsDuration())
	n.putPool("gpu", 1)
	n.acquire("gpu", "held", func(r *v1.AcquireSlotRequest) { r.Ttl = durationpb.New(time.Hour) })
	now.Add(int64(10 * time.Minute))
	slots, err := n.slots.ListSlots(t.Context(), &v1.ListSlotsRequest{Pool: "gpu"})
	require.NoError(t, err)
	require.Equal(t, 10*time.Minute, slots.Slots[0].Age.AsDuration())
	require.Equal(t, 50*time.Minute, slots.Slots[0].Ttl.AsDuration())
	a = n.approval(asked.Approval.Id)
	require.Equal(t, v1.ApprovalState_APPROVAL_STATE_EXPIRED, a.State)
	require.Nil(t, a.ExpiresIn)
}
