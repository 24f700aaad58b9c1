package client

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client/internal/arguments"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Approvals: what people are asked, what they decide, and what stands (adapter
// contract 15, 16.3).

// Scopes of standing approvals.
const (
	OfSession = govnodev1.StandingScope_STANDING_SCOPE_SESSION
	OfAgent   = govnodev1.StandingScope_STANDING_SCOPE_AGENT
	OfPolicy  = govnodev1.StandingScope_STANDING_SCOPE_POLICY // by the name of the policy
)

// States of an approval.
const (
	ApprovalPending   = govnodev1.ApprovalState_APPROVAL_STATE_PENDING
	ApprovalApproved  = govnodev1.ApprovalState_APPROVAL_STATE_APPROVED // the call may come back for it
	ApprovalUsed      = govnodev1.ApprovalState_APPROVAL_STATE_USED     // the call was admitted
	ApprovalDenied    = govnodev1.ApprovalState_APPROVAL_STATE_DENIED
	ApprovalExpired   = govnodev1.ApprovalState_APPROVAL_STATE_EXPIRED
	ApprovalCancelled = govnodev1.ApprovalState_APPROVAL_STATE_CANCELLED
)

// A Question asks people about something without a call. Agent and Tool must be set.
type Question struct {
	Agent, Tool       string
	Arguments         map[string]any
	ArgumentsJSON     string // the exact text, in place of Arguments
	Message           string
	Session           string        // that it is shown with
	Timeout           time.Duration // 5 minutes if 0
	AllowOnTimeout    bool
	Required, Denials int32 // votes that decide; 1 if 0
}

// A Standing lets calls of a tool pass without asking about each. Scope, Name, Tool
// and Expiry must be set.
type Standing struct {
	Scope         govnodev1.StandingScope // OfSession, OfAgent or OfPolicy
	Name          string
	Tool          string
	ServerLabel   string
	Arguments     map[string]any // for these alone; nil for any
	ArgumentsJSON string         // the exact text, in place of Arguments
	Uses          int32          // 0: no limit
	Expiry        time.Duration  // at most 30 days
}

// RequestApproval asks people about something without a call. The approval comes as
// a message of govnode/v1.
func (c *Client) RequestApproval(ctx context.Context, q Question) (*govnodev1.Approval, error) {
	req := &govnodev1.ApprovalServiceRequestRequest{
		AgentId: q.Agent, Tool: q.Tool, Message: q.Message, SessionId: q.Session, Timeout: optional(q.Timeout),
		Required: q.Required, Denials: q.Denials, Client: c.cfg.Name,
	}
	if q.AllowOnTimeout {
		req.OnTimeout = govnodev1.OnTimeout_ON_TIMEOUT_ALLOW
	}
	var err error
	if req.ArgumentsJson, req.Arguments, err = arguments.Encode("Question.Arguments", q.Arguments, q.ArgumentsJSON); err != nil {
		return nil, err
	}
	orElse(&req.ArgumentsJson, q.ArgumentsJSON)
	res, err := change(ctx, c, "RequestApproval", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.ApprovalServiceRequestResponse, error) {
		return n.approvals.Request(ctx, req)
	})
	return res.GetApproval(), err
}

// GetApproval returns an approval as it stands, in a message of govnode/v1.
func (c *Client) GetApproval(ctx context.Context, id string) (*govnodev1.Approval, error) {
	return c.getApproval(ctx, id, 0)
}

// AwaitApproval waits until an approval is pending no more, or ctx is done, and
// returns it as a message of govnode/v1.
func (c *Client) AwaitApproval(ctx context.Context, id string) (*govnodev1.Approval, error) {
	for {
		a, err := c.getApproval(ctx, id, awaited)
		if err != nil || a.GetState() != ApprovalPending {
			return a, err
		}
	}
}

// awaited is how long one request waits for a decision: little, so that a node that does
// not answer is soon told from one that waits.
const awaited = 2 * time.Second

func (c *Client) getApproval(ctx context.Context, id string, wait time.Duration) (*govnodev1.Approval, error) {
	res, err := readAfter(ctx, c, "GetApproval", wait, func(ctx context.Context, n *node) (*govnodev1.ApprovalServiceGetResponse, error) {
		return n.approvals.Get(ctx, &govnodev1.ApprovalServiceGetRequest{Id: id, Wait: durationpb.New(wait)})
	})
	return res.GetApproval(), err
}

// Approvals are those that a list is of; a field that is 0 leaves out none.
type Approvals struct {
	State          govnodev1.ApprovalState
	Session, Agent string
}

// ListApprovals returns one page of approvals, in messages of govnode/v1.
func (c *Client) ListApprovals(ctx context.Context, of Approvals, pageSize int32, pageToken string) (*govnodev1.ApprovalServiceListResponse, error) {
	return read(ctx, c, "ListApprovals", func(ctx context.Context, n *node) (*govnodev1.ApprovalServiceListResponse, error) {
		return n.approvals.List(ctx, &govnodev1.ApprovalServiceListRequest{
			State: of.State, SessionId: of.Session, AgentId: of.Agent, PageSize: pageSize, PageToken: pageToken,
		})
	})
}

// A Vote is that of an approver, who may not be the agent that asks. Approver
// may be left out where the client has a token: the vote is that of its holder. With
// RequestDigest, that of the approval which the approver has seen, it
// counts for nothing else that the id may have come to stand for.
type Vote struct {
	Approver, Reason string
	RequestDigest    string
}

// Approve votes for an approval. The approval as it then is comes as a message of
// govnode/v1.
func (c *Client) Approve(ctx context.Context, id string, v Vote) (*govnodev1.Approval, error) {
	return c.decide(ctx, id, govnodev1.Vote_VOTE_APPROVE, v)
}

// Deny votes against an approval. The approval as it then is comes as a message of
// govnode/v1.
func (c *Client) Deny(ctx context.Context, id string, v Vote) (*govnodev1.Approval, error) {
	return c.decide(ctx, id, govnodev1.Vote_VOTE_DENY, v)
}

func (c *Client) decide(ctx context.Context, id string, vote govnodev1.Vote, v Vote) (*govnodev1.Approval, error) {
	req := &govnodev1.ApprovalServiceDecideRequest{
		Id: id, Decision: vote, Approver: v.Approver, Reason: v.Reason, RequestDigest: v.RequestDigest, Client: c.cfg.Name,
	}
	res, err := change(ctx, c, "Decide", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.ApprovalServiceDecideResponse, error) {
		return n.approvals.Decide(ctx, req)
	})
	return res.GetApproval(), err
}

// CancelApproval ends an approval, and the call that waits for it.
func (c *Client) CancelApproval(ctx context.Context, id string) error {
	req := &govnodev1.ApprovalServiceCancelRequest{Id: id, Client: c.cfg.Name}
	_, err := change(ctx, c, "CancelApproval", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.ApprovalServiceCancelResponse, error) {
		return n.approvals.Cancel(ctx, req)
	})
	return err
}

// PutStanding makes a standing approval, and returns its id.
func (c *Client) PutStanding(ctx context.Context, s Standing) (id string, err error) {
	req := &govnodev1.PutStandingRequest{
		Scope: s.Scope, Name: s.Name, Tool: s.Tool, ServerLabel: s.ServerLabel, Uses: s.Uses, Expiry: optional(s.Expiry), Client: c.cfg.Name,
	}
	if req.ArgumentsJson, req.Arguments, err = arguments.Encode("Standing.Arguments", s.Arguments, s.ArgumentsJSON); err != nil {
		return "", err
	}
	orElse(&req.ArgumentsJson, s.ArgumentsJSON)
	res, err := change(ctx, c, "PutStanding", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.PutStandingResponse, error) {
		return n.approvals.PutStanding(ctx, req)
	})
	return res.GetStanding().GetId(), err
}

// ListStanding returns one page of the standing approvals, in messages of govnode/v1.
func (c *Client) ListStanding(ctx context.Context, pageSize int32, pageToken string) (*govnodev1.ListStandingResponse, error) {
	return read(ctx, c, "ListStanding", func(ctx context.Context, n *node) (*govnodev1.ListStandingResponse, error) {
		return n.approvals.ListStanding(ctx, &govnodev1.ListStandingRequest{PageSize: pageSize, PageToken: pageToken})
	})
}

// DeleteStanding takes a standing approval back.
func (c *Client) DeleteStanding(ctx context.Context, id string) error {
	req := &govnodev1.DeleteStandingRequest{Id: id, Client: c.cfg.Name}
	_, err := change(ctx, c, "DeleteStanding", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.DeleteStandingResponse, error) {
		return n.approvals.DeleteStanding(ctx, req)
	})
	return err
}
