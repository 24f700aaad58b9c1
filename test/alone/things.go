package alone

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// A thing is what a quota counts in the state.
type thing struct {
	quota, what string
	base        int64 // how much of it there is at first
	each        int64 // how much one is
	again       bool  // it may be put again under another id
	stays       bool  // it counts on when it is dropped
	add, drop   func(ctx context.Context, n *node, name, id string) error
}

func (t *tenant) things() []thing {
	by, hour := t.own, durationpb.New(time.Hour)
	return []thing{
		{"sessions", "a session", 0, 1, true, true, func(ctx context.Context, n *node, name, _ string) error {
			_, err := n.sessions.CreateSession(ctx, &v1.CreateSessionRequest{SessionId: name, AgentId: name, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: by}}})
			return err
		}, func(ctx context.Context, n *node, name, _ string) error {
			_, err := n.sessions.CloseSession(ctx, &v1.CloseSessionRequest{SessionId: name})
			return err
		}},
		{"clients", "a client", 1, 1, true, false, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.slots.AcquireSlot(ctx, &v1.AcquireSlotRequest{Pool: by, SlotId: id, Client: name, Ttl: long})
			return err
		}, nil},
		{"clients", "a client that deletes nothing", 1, 1, true, false, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.counters.Delete(ctx, &v1.DeleteRequest{Key: by + "-none", RequestId: id, Client: name})
			return err
		}, nil},
		{"pools", "a pool", 1, 1, true, false, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.slots.PutPool(ctx, &v1.PutPoolRequest{Pool: name, Slots: 1, RequestId: id, Client: by})
			return err
		}, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.slots.DeletePool(ctx, &v1.DeletePoolRequest{Pool: name, RequestId: id, Client: by})
			return err
		}},
		{"pools", "a rate", 1, 1, true, false, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.limits.PutRate(ctx, &v1.PutRateRequest{Rate: name, Limit: 1, Per: hour, RequestId: id, Client: by})
			return err
		}, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.limits.DeleteRate(ctx, &v1.DeleteRateRequest{Rate: name, RequestId: id, Client: by})
			return err
		}},
		{"policies", "a policy", 1, 1, true, false, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.policies.PutPolicy(ctx, &v1.PutPolicyRequest{Yaml: "name: " + name + "\nmax_tool_calls: 9\n", RequestId: id, Client: by})
			return err
		}, nil},
		{"keys", "a value", 2, 1, true, false, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.counters.Set(ctx, &v1.SetRequest{Key: name, Value: "a", RequestId: id, Client: by})
			return err
		}, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.counters.Delete(ctx, &v1.DeleteRequest{Key: name, RequestId: id, Client: by})
			return err
		}},
		{"keys", "a sum", 2, 1, true, false, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.counters.Increment(ctx, &v1.IncrementRequest{Key: name, Amount: "1", RequestId: id, Client: by})
			return err
		}, nil},
		{"keys", "a list of one item", 2, 2, false, false, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.counters.Append(ctx, &v1.AppendRequest{Key: name, Items: []string{"a"}, Ttl: long, RequestId: id, Client: by})
			return err
		}, nil},
		{"keys", "an item of a list that is there", 2, 1, false, false, func(ctx context.Context, n *node, _, id string) error {
			_, err := n.counters.Append(ctx, &v1.AppendRequest{Key: by, Items: []string{"a"}, Ttl: long, RequestId: id, Client: by})
			return err
		}, nil},
		{"keys", "a budget", 2, 1, true, false, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.limits.PutBudget(ctx, &v1.PutBudgetRequest{Budget: name, Amount: "1", RequestId: id, Client: by})
			return err
		}, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.limits.DeleteBudget(ctx, &v1.DeleteBudgetRequest{Budget: name, RequestId: id, Client: by})
			return err
		}},
		{"keys", "a hash", 2, 1, true, false, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.policies.PutHash(ctx, &v1.PutHashRequest{Tool: name, Hash: strings.Repeat("1", 64), RequestId: id, Client: by})
			return err
		}, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.policies.DeleteHash(ctx, &v1.DeleteHashRequest{Tool: name, RequestId: id, Client: by})
			return err
		}},
		{"keys", "an approval", 2, 1, false, false, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.approvals.Request(ctx, &v1.ApprovalServiceRequestRequest{AgentId: name, Tool: "one", Timeout: hour, RequestId: id, Client: by})
			return err
		}, nil},
		{"keys", "a standing approval", 2, 1, true, false, func(ctx context.Context, n *node, name, id string) error {
			_, err := n.approvals.PutStanding(ctx, &v1.PutStandingRequest{Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: name, Tool: "one", Expiry: hour, RequestId: id, Client: by})
			return err
		}, nil},
	}
}
