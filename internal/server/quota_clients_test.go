package server_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// A request asks for something in the name of a client, under an id; empty: under none.
type request func(client, id string) error

// reason asks, and returns why it was refused; empty if it was not.
func (r request) reason(t *testing.T, client, id string) string {
	err := r(client, id)
	if err == nil {
		return ""
	}
	return info(t, err).Reason
}

// asked asks people about a call of nobody, and returns the approval's id.
func (n *node) asked(id string) string {
	n.t.Helper()
	res, err := n.approvals.Request(n.ctx(), &v1.ApprovalServiceRequestRequest{Client: "here", RequestId: id, AgentId: "a", Tool: "t"})
	require.NoError(n.t, err)
	return res.Approval.Id
}

func (n *node) clientsUsed() int64 {
	n.t.Helper()
	used, err := n.access.GetQuotas(n.ctx(), &v1.GetQuotasRequest{})
	require.NoError(n.t, err)
	return used.Used.Clients
}

// voting votes on an approval.
func (n *node) voting(approval string, v v1.Vote) request {
	return func(client, id string) error {
		_, err := n.approvals.Decide(n.ctx(), &v1.ApprovalServiceDecideRequest{Client: client, RequestId: id, Id: approval, Approver: "amy", Decision: v})
		return err
	}
}

func (n *node) cancelling(approval string) request {
	return func(client, id string) error {
		_, err := n.approvals.Cancel(n.ctx(), &v1.ApprovalServiceCancelRequest{Client: client, RequestId: id, Id: approval})
		return err
	}
}

func (n *node) signalling(signal string, to any) request {
	return func(client, id string) error {
		_, err := n.sessions.Signal(n.ctx(), signalRequest(signal, to, func(r *v1.SignalRequest) { r.Client, r.RequestId = client, id }))
		return err
	}
}

// Whatever makes the state remember another client is held to the quota of clients, by
// itself and among other operations, also where it has found nothing to end; a client that
// is there goes on.
func TestQuotaOfClients(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.putPool("q", 9)
	n.putRate("r", 9, time.Hour)
	n.putBudget("money", "", "10")
	ctx, hour := n.ctx(), durationpb.New(time.Hour)
	requests := map[string]request{
		"take": func(client, id string) error {
			_, err := n.limits.TakeRate(ctx, &v1.TakeRateRequest{Client: client, RequestId: id, Rate: "r"})
			return err
		},
		"acquire": func(client, id string) error {
			_, err := n.slots.AcquireSlot(ctx, &v1.AcquireSlotRequest{Client: client, SlotId: id, Pool: "q"})
			return err
		},
		"put a rate": func(client, id string) error {
			_, err := n.limits.PutRate(ctx, &v1.PutRateRequest{Client: client, RequestId: id, Rate: "r", Limit: 9, Per: hour})
			return err
		},
		"put a budget": func(client, id string) error {
			_, err := n.limits.PutBudget(ctx, &v1.PutBudgetRequest{Client: client, RequestId: id, Budget: "money", Amount: "10"})
			return err
		},
		"adjust a budget": func(client, id string) error {
			_, err := n.limits.AdjustBudget(ctx, &v1.AdjustBudgetRequest{Client: client, RequestId: id, Budget: "money", By: "1"})
			return err
		},
		"set": func(client, id string) error {
			_, err := n.counters.Set(ctx, &v1.SetRequest{Client: client, RequestId: id, Key: "k", Value: "v"})
			return err
		},
		"increment": func(client, id string) error {
			_, err := n.counters.Increment(ctx, &v1.IncrementRequest{Client: client, RequestId: id, Key: "n"})
			return err
		},
		"delete": func(client, id string) error {
			_, err := n.counters.Delete(ctx, &v1.DeleteRequest{Client: client, RequestId: id, Key: "absent"})
			return err
		},
		"append": func(client, id string) error {
			_, err := n.counters.Append(ctx, &v1.AppendRequest{Client: client, RequestId: id, Key: "l", Items: []string{"i"}, Ttl: hour})
			return err
		},
		"delete a list": func(client, id string) error {
			_, err := n.counters.DeleteList(ctx, &v1.DeleteListRequest{Client: client, RequestId: id, Key: "absent"})
			return err
		},
		"put a hash": func(client, id string) error {
			_, err := n.policies.PutHash(ctx, &v1.PutHashRequest{Client: client, RequestId: id, Tool: "t", Hash: hashOfATool})
			return err
		},
		"continue":                    n.signalling("CONTINUE", agent("a")),
		"vote for":                    n.voting(n.asked("for"), v1.Vote_VOTE_APPROVE),
		"vote against what is denied": n.voting(n.asked("against"), v1.Vote_VOTE_DENY),
		"cancel what is cancelled":    n.cancelling(n.asked("cancelled")),
		"put a standing approval": func(client, id string) error {
			_, err := n.approvals.PutStanding(ctx, &v1.PutStandingRequest{Client: client, RequestId: id, Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: "a", Tool: "t", Expiry: hour})
			return err
		},
		"create a token": func(client, id string) error {
			_, err := n.access.CreateToken(ctx, &v1.CreateTokenRequest{Client: client, RequestId: id, TokenId: id, SecretSha256: append(make([]byte, 31), 1), Roles: []v1.Role{v1.Role_ROLE_AGENT}})
			return err
		},
		"allow a subject": func(client, id string) error {
			_, err := n.access.AllowSubject(ctx, &v1.AllowSubjectRequest{Client: client, RequestId: id, Subject: "cert:a"})
			return err
		},
		"repair ids": func(client, id string) error {
			_, err := n.cluster.RepairIDs(ctx, &v1.RepairIDsRequest{Client: client, RequestId: id})
			return err
		},
	}
	i := 1000
	id := func() string { i++; return fmt.Sprint("id", i) }
	for name, ask := range requests {
		require.Empty(t, ask.reason(t, "here", id()), name)
	}
	before := n.clientsUsed()
	n.putQuotas("default", session.Quotas{Clients: before})
	for name, ask := range requests {
		require.Equal(t, fault.ReasonQuotaExceeded, ask.reason(t, "new-"+id(), id()), name)
		require.Empty(t, ask.reason(t, "here", id()), name)
	}
	out, err := n.calls.BatchCalls(ctx, &v1.BatchCallsRequest{Operations: []*v1.Operation{
		{Op: &v1.Operation_Take{Take: &v1.TakeRateRequest{Client: "new", RequestId: id(), Rate: "r"}}},
		{Op: &v1.Operation_Take{Take: &v1.TakeRateRequest{Client: "here", RequestId: id(), Rate: "r"}}},
	}})
	require.NoError(t, err)
	require.Equal(t, fault.ReasonQuotaExceeded, out.Results[0].GetError().GetReason())
	require.Nil(t, out.Results[1].GetError())
	// Nobody is remembered for what has no id.
	for _, name := range []string{"set", "delete", "append", "delete a list", "continue"} {
		require.Empty(t, requests[name].reason(t, "new-"+id(), ""), name)
	}
	require.Equal(t, before, n.clientsUsed(), "nobody was added")
}

// A namespace that remembers as many clients as it may is stopped by whoever may do that,
// and so ends what is open or was allowed, and what is held; and it is given more.
func TestEndsOfANamespaceWithoutRoomForClients(t *testing.T) {
	n := start(t)
	n.putPool("q", 9)
	ctx := n.ctx()
	_, err := n.slots.AcquireSlot(ctx, &v1.AcquireSlotRequest{Client: "here", SlotId: "s", Pool: "q"})
	require.NoError(t, err)
	standing, err := n.approvals.PutStanding(ctx, &v1.PutStandingRequest{Client: "here", Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: "a", Tool: "t", Expiry: durationpb.New(time.Hour)})
	require.NoError(t, err)
	requests := map[string]request{
		"stop":         n.signalling("STOP", nil),
		"kill":         n.signalling("KILL", agent("a")),
		"vote against": n.voting(n.asked("against"), v1.Vote_VOTE_DENY),
		"cancel":       n.cancelling(n.asked("cancelled")),
		"delete a standing approval": func(client, id string) error {
			_, err := n.approvals.DeleteStanding(ctx, &v1.DeleteStandingRequest{Client: client, RequestId: id, Id: standing.Standing.Id})
			return err
		},
		"release by force": func(client, id string) error {
			_, err := n.slots.ForceRelease(ctx, &v1.ForceReleaseRequest{Client: client, RequestId: id, Pool: "q", SlotId: "s", HolderClient: "here"})
			return err
		},
		"deny a subject": func(client, id string) error {
			_, err := n.access.DenySubject(ctx, &v1.DenySubjectRequest{Client: client, RequestId: id, Subject: "cert:a"})
			return err
		},
		"revoke a token": func(client, id string) error {
			_, err := n.access.RevokeToken(ctx, &v1.RevokeTokenRequest{Client: client, RequestId: id, TokenId: "abcd"})
			return err
		},
		"put quotas": func(client, id string) error {
			_, err := n.access.PutQuotas(ctx, &v1.PutQuotasRequest{Client: client, RequestId: id, Namespace: "default", Quotas: &v1.Quotas{Clients: 1}})
			return err
		},
	}
	n.putQuotas("default", session.Quotas{Clients: 1})
	i := 0
	for name, ask := range requests {
		i++
		require.Empty(t, ask.reason(t, fmt.Sprint("new", i), fmt.Sprint("id", i)), name)
	}
}
