package client

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// What those who run a service ask of it: to put policies and pools, to list
// slots, to judge a call that nobody makes or a text, and for its status.

// PutPolicy stores a policy of one YAML file, validated and compiled, and lets
// its name point to it. If name is empty it is taken from the document. The
// answer is a message of govnode/v1.
func (c *Client) PutPolicy(ctx context.Context, name, yaml string) (*govnodev1.PutPolicyResponse, error) {
	return c.PutPolicyTree(ctx, &govnodev1.PutPolicyRequest{Name: name, Yaml: yaml})
}

// PutPolicyTree is PutPolicy for a tree of files, by a request of govnode/v1. Client and, if it is empty,
// the id of the request are filled in, in a copy.
func (c *Client) PutPolicyTree(ctx context.Context, req *govnodev1.PutPolicyRequest) (*govnodev1.PutPolicyResponse, error) {
	req = proto.CloneOf(req)
	req.Client = c.cfg.Name
	return change(ctx, c, "PutPolicy", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, req)
	})
}

// GetPolicy returns the policy to which a name points, with its files, as a message
// of govnode/v1.
func (c *Client) GetPolicy(ctx context.Context, name string) (*govnodev1.Policy, error) {
	res, err := read(ctx, c, "GetPolicy", func(ctx context.Context, n *node) (*govnodev1.GetPolicyResponse, error) {
		return n.policies.GetPolicy(ctx, &govnodev1.GetPolicyRequest{Ref: &govnodev1.GetPolicyRequest_Name{Name: name}})
	})
	return res.GetPolicy(), err
}

// ListPolicies returns a page of the policies, without their files, as a message of
// govnode/v1.
func (c *Client) ListPolicies(ctx context.Context, pageSize int32, pageToken string) (*govnodev1.ListPoliciesResponse, error) {
	return read(ctx, c, "ListPolicies", func(ctx context.Context, n *node) (*govnodev1.ListPoliciesResponse, error) {
		return n.policies.ListPolicies(ctx, &govnodev1.ListPoliciesRequest{PageSize: pageSize, PageToken: pageToken})
	})
}

// A Pool says how many slots there are of something.
type Pool struct {
	Name  string
	Slots int32
	// BackpressureThreshold is from how many slots in use on holders are asked
	// to slow down; 0 is never below full.
	BackpressureThreshold int32
	// QueueLimit is how many may wait; 1,024 if 0, NoQueue for none.
	QueueLimit int32
}

// NoQueue is the QueueLimit of a pool that nobody waits for.
const NoQueue = -1

// PutPool makes a pool or changes it. Lowering its slots takes none away. The pool
// as it then is comes as a message of govnode/v1.
func (c *Client) PutPool(ctx context.Context, p Pool) (*govnodev1.Pool, error) {
	if p.Name == "" {
		return nil, errors.New("client: Pool.Name: empty: name the pool")
	}
	req := &govnodev1.PutPoolRequest{Pool: p.Name, Slots: p.Slots, BackpressureThreshold: p.BackpressureThreshold, Client: c.cfg.Name}
	if p.QueueLimit != 0 {
		limit := max(p.QueueLimit, 0)
		req.QueueLimit = &limit
	}
	res, err := change(ctx, c, "PutPool", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.PutPoolResponse, error) {
		return n.slots.PutPool(ctx, req)
	})
	return res.GetPool(), err
}

// ListSlots tells who holds slots of a pool and who waits for them, in a message
// of govnode/v1.
func (c *Client) ListSlots(ctx context.Context, pool string) (*govnodev1.ListSlotsResponse, error) {
	return read(ctx, c, "ListSlots", func(ctx context.Context, n *node) (*govnodev1.ListSlotsResponse, error) {
		return n.slots.ListSlots(ctx, &govnodev1.ListSlotsRequest{Pool: pool})
	})
}

// Evaluate asks what a policy would say, by a request of govnode/v1. Nothing is
// changed or counted.
func (c *Client) Evaluate(ctx context.Context, req *govnodev1.EvaluateRequest) (*govnodev1.EvaluateResponse, error) {
	return read(ctx, c, "Evaluate", func(ctx context.Context, n *node) (*govnodev1.EvaluateResponse, error) {
		return n.policies.Evaluate(ctx, req)
	})
}

// Scan judges a text by a policy, by a request of govnode/v1. Nothing is changed or
// counted.
func (c *Client) Scan(ctx context.Context, req *govnodev1.ScanRequest) (*govnodev1.ScanResponse, error) {
	return read(ctx, c, "Scan", func(ctx context.Context, n *node) (*govnodev1.ScanResponse, error) {
		return n.policies.Scan(ctx, req)
	})
}

// Status tells about the cluster, as the node sees it that is asked, in a message
// of govnode/v1.
func (c *Client) Status(ctx context.Context) (*govnodev1.StatusResponse, error) {
	return read(ctx, c, "Status", func(ctx context.Context, n *node) (*govnodev1.StatusResponse, error) {
		return n.cluster.Status(ctx, &govnodev1.StatusRequest{})
	})
}

// WhoAmI returns as whom the service knows the caller, as a message of govnode/v1.
func (c *Client) WhoAmI(ctx context.Context) (*govnodev1.WhoAmIResponse, error) {
	return read(ctx, c, "WhoAmI", func(ctx context.Context, n *node) (*govnodev1.WhoAmIResponse, error) {
		return n.access.WhoAmI(ctx, &govnodev1.WhoAmIRequest{})
	})
}
