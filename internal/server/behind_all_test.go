package server_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A verdict on any fact is reached at a node that is behind as it is at one that is not:
// each fact is learned for itself, and one of a tool is not that of another.
func TestAVerdictOnEachFactThatMoved(t *testing.T) {
	rule := func(field string, from int) string {
		return fmt.Sprintf("{name: %q, condition: {field: %s, operator: gte, value: %d}, action: deny, message: %q}", field, field, from, field)
	}
	for name, tt := range map[string]struct {
		rules []string
		moved func(n *node)
		want  string // the rule that denies
	}{
		"calls":    {[]string{rule("call_count", 2)}, nil, "call_count"},
		"attempts": {[]string{rule("attempts", 2)}, nil, "attempts"},
		"tokens": {[]string{rule("tokens_used", 150)}, func(n *node) {
			n.begin("s", "one", func(r *v1.BeginCallRequest) { r.Tokens = 200 })
		}, "tokens_used"},
		"slots":          {[]string{rule("active_slots", 2)}, nil, "active_slots"},
		"a tool":         {[]string{rule("tool_calls.t", 2), rule("tool_calls.u", 1)}, nil, "tool_calls.t"},
		"another tool":   {[]string{rule("tool_calls.t", 1), rule("tool_calls.u", 2)}, tools("u"), "tool_calls.u"},
		"the time":       {[]string{rule("elapsed_seconds", 60)}, func(*node) {}, "elapsed_seconds"},
		"of several one": {[]string{rule("tokens_used", 1000), rule("attempts", 2), rule("call_count", 1000)}, nil, "attempts"},
	} {
		t.Run(name, func(t *testing.T) {
			var now atomic.Int64
			now.Store(int64(time.Second))
			store := storage.NewMemory(func() time.Duration { return time.Duration(now.Load()) })
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			b := &behind{Store: store}
			n, late := startOn(t, store), startOn(t, b)
			n.putPolicy("name: p", "rules: ["+strings.Join(tt.rules, ", ")+"]")
			n.session("s")
			b.freeze(t)
			require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, late.begin("s", "before", func(r *v1.BeginCallRequest) { r.Tool = "other" }).Outcome)
			n.end("s", "before")
			n.session("t")
			if tt.moved == nil {
				tt.moved = tools("t")
			}
			b.freeze(t)
			now.Add(int64(2 * time.Minute))
			tt.moved(n)
			res := late.begin("s", "c")
			require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, res.Outcome, res.Reason)
			require.Equal(t, tt.want, res.Reason)
		})
	}
}

// tools begins two calls of a tool.
func tools(tool string) func(*node) {
	return func(n *node) {
		for _, id := range []string{"one", "two"} {
			n.begin("s", id, func(r *v1.BeginCallRequest) { r.Tool = tool })
		}
	}
}

// Whatever ends a call that people are asked about, at a node that has not heard of it,
// ends what they are asked; and what they decide there holds.
func TestACallThatIsAskedAboutAtANodeThatIsBehind(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(late *node, id string) error
		want v1.ApprovalState
		then v1.Outcome
	}{
		"CancelCall": {func(late *node, _ string) error {
			res, err := late.calls.CancelCall(late.ctx(), &v1.CancelCallRequest{SessionId: "s", CallId: "c"})
			if err == nil {
				require.Equal(late.t, v1.Outcome_OUTCOME_CANCELLED, res.Outcome)
			}
			return err
		}, v1.ApprovalState_APPROVAL_STATE_CANCELLED, v1.Outcome_OUTCOME_CANCELLED},
		"CloseSession": {func(late *node, _ string) error {
			res, err := late.sessions.CloseSession(late.ctx(), &v1.CloseSessionRequest{SessionId: "s"})
			if err == nil {
				require.EqualValues(late.t, 2, res.Released)
			}
			return err
		}, v1.ApprovalState_APPROVAL_STATE_CANCELLED, v1.Outcome_OUTCOME_SESSION_CLOSED},
		"KILL of the session": {func(late *node, _ string) error {
			res, err := late.sessions.Signal(late.ctx(), signalRequest("KILL", "s"))
			if err == nil {
				require.EqualValues(late.t, 1, res.Closed)
				require.EqualValues(late.t, 2, res.Released)
				require.True(late.t, res.Signal.Swept)
			}
			return err
		}, v1.ApprovalState_APPROVAL_STATE_CANCELLED, v1.Outcome_OUTCOME_SESSION_CLOSED},
		"KILL of the agent": {func(late *node, _ string) error {
			res, err := late.sessions.Signal(late.ctx(), signalRequest("KILL", agent("a")))
			if err == nil {
				require.EqualValues(late.t, 1, res.Closed)
				require.EqualValues(late.t, 2, res.Released)
			}
			return err
		}, v1.ApprovalState_APPROVAL_STATE_CANCELLED, v1.Outcome_OUTCOME_SESSION_CLOSED},
		"Approval.Cancel": {func(late *node, id string) error {
			_, err := late.approvals.Cancel(late.ctx(), &v1.ApprovalServiceCancelRequest{Id: id})
			return err
		}, v1.ApprovalState_APPROVAL_STATE_CANCELLED, v1.Outcome_OUTCOME_APPROVAL_DENIED},
		"Approval.Decide, yes": {func(late *node, id string) error {
			_, err := late.vote(id, "amy", v1.Vote_VOTE_APPROVE)
			return err
		}, v1.ApprovalState_APPROVAL_STATE_APPROVED, v1.Outcome_OUTCOME_ADMITTED},
		"Approval.Decide, no": {func(late *node, id string) error {
			_, err := late.vote(id, "amy", v1.Vote_VOTE_DENY)
			return err
		}, v1.ApprovalState_APPROVAL_STATE_DENIED, v1.Outcome_OUTCOME_APPROVAL_DENIED},
	} {
		// It has seen neither the session nor the call, or the session alone.
		for seen, freeze := range map[string]int{"nothing": 0, "the session": 1, "the call": 2} {
			t.Run(name+"/"+seen, func(t *testing.T) {
				n, late, b := apart(t)
				n.putPolicy("name: p", "rules: [{name: people, condition: {field: tool_name, operator: eq, value: t}, action: ask}]")
				n.putPool("gpu", 3)
				for i, step := range []func(){
					func() {},
					func() { n.session("s") },
				} {
					step()
					if i == freeze {
						b.freeze(t)
					}
				}
				running := n.begin("s", "runs", func(r *v1.BeginCallRequest) { r.Tool, r.Pools = "other", []*v1.Want{{Pool: "gpu"}} })
				require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, running.Outcome, running.Reason)
				asked := n.begin("s", "c", func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: "gpu"}} })
				require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, asked.Outcome, asked.Reason)
				if freeze == 2 {
					b.freeze(t)
				}
				require.NoError(t, tt.do(late, asked.Approval.Id))
				require.Equal(t, tt.want, n.approval(asked.Approval.Id).State)
				again := n.begin("s", "c", func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: "gpu"}} })
				require.Equal(t, tt.then, again.Outcome)
			})
		}
	}
}

// What a namespace owes keeps nobody from what he has, though this node has not heard of
// it.
func TestDebtsAtANodeThatIsBehind(t *testing.T) {
	n, late, b := apart(t)
	n.putPool("gpu", 4)
	require.NoError(t, n.store.Apply(t.Context(), &session.PutQuotas{
		NS: "default", By: session.Maker{Client: "test"}, Quotas: session.Quotas{Operations: 2}})[0].Failure())
	b.freeze(t)
	mine := n.acquire("gpu", "mine")
	n.acquire("gpu", "theirs", func(r *v1.AcquireSlotRequest) { r.Client = "holder" })
	release := func(slot string, token uint64) error {
		_, err := late.slots.ReleaseSlot(t.Context(), &v1.ReleaseSlotRequest{Client: "w", Pool: "gpu", SlotId: slot, Token: token})
		return err
	}
	for i := range 20 {
		_ = release(fmt.Sprint("none", i), 1)
	}
	requireOverQuota(t, release("none", 1), "operations a second")
	renewed, err := late.slots.RenewSlots(t.Context(), &v1.RenewSlotsRequest{Client: "w", Slots: []*v1.SlotRef{
		{Pool: "gpu", SlotId: "mine", Token: mine.Token}}})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_RENEWED, renewed.Results[0].Outcome)
	_, err = late.slots.RenewSlots(t.Context(), renewOf("gpu", "none"))
	requireOverQuota(t, err, "operations a second")
	require.NoError(t, release("mine", mine.Token))
	requireOverQuota(t, release("mine", mine.Token), "operations a second") // a repeat gives nothing back
	freed, err := late.slots.ForceRelease(t.Context(), &v1.ForceReleaseRequest{Pool: "gpu", SlotId: "theirs", HolderClient: "holder"})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_RELEASED, freed.Outcome)
}

// An id that was over for long is opened under the policy as it is now, at a node that
// takes it for the old one too.
func TestASessionIsOpenedAnewUnderAnotherPolicy(t *testing.T) {
	var now atomic.Int64
	now.Store(int64(time.Second))
	store := storage.NewMemory(func() time.Duration { return time.Duration(now.Load()) })
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	b := &behind{Store: store}
	n, late := startOn(t, &behind{Store: store}), startOn(t, b)
	n.putPolicy(policy("# one")...)
	n.session("s")
	n.begin("s", "c")
	_, err := n.sessions.CloseSession(t.Context(), &v1.CloseSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	b.freeze(t)
	now.Add(int64(1000 * time.Hour))
	second := n.putPolicy(policy("# two")...).Digest
	got := late.session("s")
	require.Equal(t, second, got.PolicyDigest)
	require.Zero(t, got.Attempts)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, late.begin("s", "c").Outcome)
	require.EqualValues(t, 1, n.getSession("s").Attempts)
	killed := late.signal("KILL", "s")
	require.EqualValues(t, 1, killed.Closed)
	require.EqualValues(t, 1, killed.Released)
}

// A read at a node that is behind is of now unless it was asked to be old.
func TestReadsAtANodeThatIsBehind(t *testing.T) {
	n, late, b := apart(t)
	n.putPolicy(policy()...)
	n.session("s")
	set := func(text string) {
		for _, key := range []string{"a", "b"} {
			_, err := n.counters.Set(t.Context(), &v1.SetRequest{Key: key, Value: text})
			require.NoError(t, err)
		}
	}
	set("old")
	b.freeze(t)
	set("new")
	n.signal("STOP", "s")
	_, err := n.slots.PutPool(t.Context(), &v1.PutPoolRequest{Pool: "young", Slots: 2})
	require.NoError(t, err)
	one, err := late.counters.Get(t.Context(), &v1.GetRequest{Key: "a"})
	require.NoError(t, err)
	require.Equal(t, "new", one.Value)
	many, err := late.counters.BatchGet(t.Context(), &v1.BatchGetRequest{Keys: []string{"b"}})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"b": "new"}, many.Values)
	require.Equal(t, one.Version, many.Versions["b"])
	old, err := late.counters.Get(t.Context(), &v1.GetRequest{Key: "a", Consistency: v1.Consistency_CONSISTENCY_STALE})
	require.NoError(t, err)
	require.Equal(t, "old", old.Value)
	got, err := late.sessions.GetSession(t.Context(), &v1.GetSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	require.Equal(t, "STOP", got.Session.GetSignal().GetSignal())
	_, err = late.slots.GetPool(t.Context(), &v1.GetPoolRequest{Pool: "young"})
	require.NoError(t, err)
	_, err = late.slots.GetPool(t.Context(), &v1.GetPoolRequest{Pool: "young", Consistency: v1.Consistency_CONSISTENCY_STALE})
	requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", "young")
	_, err = n.sessions.CloseSession(t.Context(), &v1.CloseSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	_, err = late.policies.Evaluate(t.Context(), &v1.EvaluateRequest{SessionId: "s", Tool: "t"})
	requireRefused(t, err, connect.CodeFailedPrecondition, "SESSION_CLOSED", "s")
}
