package server_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/internal/server"
	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A reopened session was over, and its id was opened anew by somebody else, which the
// node late has not heard of.
type reopened struct {
	n, late  *node
	old, vip clients // at late, by tokens of the agents before and now
	operator clients // at late, by the token of who runs what the agent before does
	grant    uint64  // of the call that ran before
	edit     int     // calls of edits
}

// reopen opens s1 for the agent old, lets the call c1 run in it, and opens it again for
// the agent vip. Secrets are those that calls bring; empty: none.
func reopen(t *testing.T, policy, first, second string) *reopened {
	var now atomic.Int64
	store := storage.NewMemory(func() time.Duration { return time.Duration(now.Load()) })
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	now.Store(int64(time.Second))
	asks := func(c *server.Config) { c.Authentication = true }
	b := &behind{Store: store}
	r := &reopened{n: startOn(t, &behind{Store: store}, asks), late: startOn(t, b, asks)}
	author := r.n.as(r.n.token("team", "au01", []v1.Role{v1.Role_ROLE_POLICY_AUTHOR}))
	_, err := author.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: "p", Yaml: policy})
	require.NoError(t, err)

	before, after := r.n.token("team", "old1", worker, agents("old")), r.n.token("team", "vip1", worker, agents("vip"))
	bound := r.n.token("team", "op01", []v1.Role{v1.Role_ROLE_OPERATOR, v1.Role_ROLE_ORCHESTRATOR}, agents("old"))
	own := func(secret string) func(*v1.CreateSessionRequest) {
		return func(q *v1.CreateSessionRequest) {
			if secret != "" {
				sum := sha256.Sum256([]byte(secret))
				q.SessionTokenSha256 = sum[:]
			}
		}
	}
	require.NoError(t, open(r.n.as(before), "s1", "old", "p", own(first)))
	res, err := r.n.as(before).calls.BeginCall(t.Context(), r.begin("c1", first))
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
	r.grant = res.Grants[0].Token
	b.freeze(t)
	now.Add(int64(1000 * time.Hour))
	require.NoError(t, open(r.n.as(after), "s1", "vip", "p", own(second)), "it was over for long")
	r.old, r.vip, r.operator = r.late.as(before), r.late.as(after), r.late.as(bound)
	return r
}

func (r *reopened) begin(call, secret string) *v1.BeginCallRequest {
	q := beginRequest("s1", call, tooled("Read", `{"path": "PLAN"}`))
	q.SessionToken = secret
	return q
}

func (r *reopened) end(call, secret string) *v1.EndCallRequest {
	return &v1.EndCallRequest{SessionId: "s1", CallId: call, Output: structpb.NewStringValue("text"), SessionToken: secret}
}

func (r *reopened) renew(call, secret string) *v1.RenewSlotsRequest {
	return &v1.RenewSlotsRequest{Client: "x", Slots: []*v1.SlotRef{{SessionId: "s1", SlotId: call, Token: r.grant, SessionToken: secret}}}
}

// edits is what comes of a call that the workflow lets in once the plan was read.
func (r *reopened) edits(t *testing.T, secret string) v1.Outcome {
	r.edit++
	q := beginRequest("s1", fmt.Sprintf("edit-%d", r.edit), tooled("Edit", `{"path": "x"}`))
	q.SessionToken = secret
	res, err := r.vip.calls.BeginCall(t.Context(), q)
	require.NoError(t, err)
	return res.Outcome
}

// counted is what the session has counted by now.
func (r *reopened) counted(t *testing.T) (attempts uint32, open bool) {
	found, err := r.n.store.Get(t.Context(), session.SessionKey("team", "s1"), storage.Latest)
	require.NoError(t, err)
	x := found.Record.(*session.Session)
	require.Equal(t, "vip", x.Agent.Value())
	return x.Attempts, x.Phase == session.PhaseOpen
}

// Who had a session does nothing in the one that has its id now, at no node: by its
// secret as little as by the scope of its token.
func TestWhoHadASessionThatIsOpenedAnew(t *testing.T) {
	for name, secrets := range map[string][2]string{"by secrets": {"first", "second"}, "by scope": {}} {
		t.Run(name, func(t *testing.T) {
			r := reopen(t, flowOfP, secrets[0], secrets[1])
			for _, call := range []string{"c1", "c2"} {
				_, err := r.old.calls.BeginCall(t.Context(), r.begin(call, secrets[0]))
				requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "s1")
				_, err = r.old.calls.EndCall(t.Context(), r.end(call, secrets[0]))
				requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "s1")
				_, err = r.old.calls.CancelCall(t.Context(), &v1.CancelCallRequest{SessionId: "s1", CallId: call, SessionToken: secrets[0]})
				requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "s1")
				renewed, err := r.old.slots.RenewSlots(t.Context(), r.renew(call, secrets[0]))
				require.NoError(t, err)
				require.Equal(t, v1.Outcome_OUTCOME_LEASE_EXPIRED, renewed.Results[0].Outcome)
			}
			// Nor is a text judged there by what the session before had pinned.
			_, err := r.old.policies.Scan(t.Context(), &v1.ScanRequest{SessionId: "s1", Kind: v1.ScanKind_SCAN_KIND_OUTPUT, Text: "x"})
			requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "s1")
			_, err = r.operator.sessions.CloseSession(t.Context(), &v1.CloseSessionRequest{SessionId: "s1"})
			requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "s1")
			_, err = r.operator.sessions.Signal(t.Context(), &v1.SignalRequest{Client: "op", Target: &v1.SignalRequest_SessionId{SessionId: "s1"}, Signal: "KILL"})
			requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "s1")
			attempts, open := r.counted(t)
			require.Zero(t, attempts)
			require.True(t, open)

			// Who has it now is not in the way of what the node has not heard of.
			res, err := r.vip.calls.BeginCall(t.Context(), r.begin("c1", secrets[1]))
			require.NoError(t, err)
			require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
			r.grant = res.Grants[0].Token
			renewed, err := r.vip.slots.RenewSlots(t.Context(), r.renew("c1", secrets[1]))
			require.NoError(t, err)
			require.Equal(t, v1.Outcome_OUTCOME_RENEWED, renewed.Results[0].Outcome)
			many := r.renew("c1", secrets[1])
			many.Slots = append([]*v1.SlotRef{{Pool: "none", SlotId: "x"}}, many.Slots...)
			renewed, err = r.vip.slots.RenewSlots(t.Context(), many)
			require.NoError(t, err)
			require.Equal(t, v1.Outcome_OUTCOME_RENEWED, renewed.Results[1].Outcome, "each slot by its own secret")
			_, err = r.old.calls.EndCall(t.Context(), r.end("c1", secrets[0]))
			requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, "s1")
			require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, r.edits(t, secrets[1]), "nothing that was read before counts")
			ended, err := r.vip.calls.EndCall(t.Context(), r.end("c1", secrets[1]))
			require.NoError(t, err)
			require.Equal(t, v1.Outcome_OUTCOME_ENDED, ended.Outcome)
			require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, r.edits(t, secrets[1]))
		})
	}
}

// A call in a session that was opened anew is no repeat of the one that had its id before:
// who made it is told why it was decided so, and who follows that it was.
func TestDecisionInASessionThatIsOpenedAnew(t *testing.T) {
	r := reopen(t, flowOfP, "first", "second")
	vip := r.n.as("gn_team.vip1." + secret)
	begun, err := vip.calls.BeginCall(t.Context(), r.begin("c1", "second"))
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, begun.Outcome)
	explained, err := vip.explains.Explain(t.Context(), &v1.ExplainRequest{DecisionId: begun.DecisionId})
	require.NoError(t, err)
	require.Equal(t, "vip", explained.Record.AgentId)
	require.False(t, explained.Record.Repeat)
	again, err := vip.calls.BeginCall(t.Context(), r.begin("c1", "second"))
	require.NoError(t, err)
	require.Equal(t, begun.DecisionId, again.DecisionId)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := vip.events.Follow(ctx, &v1.FollowRequest{FromOldest: true, Types: []string{"policy_check"}})
	require.NoError(t, err)
	var told *v1.Event
	for told == nil && events.Receive() {
		told = events.Msg().Event
	}
	require.NoError(t, events.Err())
	require.Equal(t, "vip", told.AgentId)
	require.EqualValues(t, 2, told.Sequence, "one of the agent before, and one")
}

// What a node makes of an output for the session that was does not end in the one that has
// its id now: where that looks for no drift, no output is kept.
func TestOutputOfACallInASessionThatIsOpenedAnew(t *testing.T) {
	var now atomic.Int64
	store := storage.NewMemory(func() time.Duration { return time.Duration(now.Load()) })
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	now.Store(int64(time.Second))
	b := &behind{Store: store}
	n, late := startOn(t, &behind{Store: store}), startOn(t, b)
	for name, lines := range map[string][]string{"looks": policy("drift_threshold: 0.15"), "plain": policy("drift_threshold: 0.0")} {
		_, err := n.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: name, Yaml: strings.Join(lines, "\n") + "\n"})
		require.NoError(t, err)
	}
	require.NoError(t, open(n.clients, "s1", "a", "looks"))
	b.freeze(t)
	now.Add(int64(1000 * time.Hour))
	require.NoError(t, open(n.clients, "s1", "a", "plain"))
	n.begin("s1", "c1")
	res, err := late.calls.EndCall(t.Context(), &v1.EndCallRequest{SessionId: "s1", CallId: "c1", Output: structpb.NewStringValue("text")})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, res.Outcome)
	require.Nil(t, res.Drift)
	found, err := store.Get(t.Context(), session.BaselineKey("default", "s1"), storage.Latest)
	require.NoError(t, err)
	require.Nil(t, found.Record)
}
