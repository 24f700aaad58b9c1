package approvals

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/record"
	"example.com/govnode/internal/server/waiting"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/session/approval"
	"example.com/govnode/storage"
)

// A Service answers govnode.v1.ApprovalService (adapter contract 15, 16.3).
type Service struct {
	Store *order.Store
	Now   func() time.Time
	NewID func() string // for an approval whose asker gave it none
	Waits *waiting.Waiters
	// Enter counts one more who waits, until leave is called, or says why there is no room.
	Enter func(ctx context.Context, ns string) (leave func(), err error)
	// Seal makes of what people are shown what is kept, about what they decide, and Open
	// takes that back.
	Seal func(ctx context.Context, ns, about, text string) (string, error)
	Open func(ctx context.Context, ns, kept string) string
	// Rule names a rule of a policy; empty where that cannot be told any more.
	Rule func(ctx context.Context, ns string, policy session.Digest, rule uint16) string
	// Asked and Decided are told of what this node has put in order, and whether that is a
	// repeat, of which another node may have told.
	// Voted is told of a vote that did not decide, Changed of what was made to stand or
	// taken back.
	Voted   func(ctx context.Context, ns, id string, v *session.Decide)
	Changed func(ctx context.Context, c record.Change)
	Asked   func(ctx context.Context, ns, id string, a *session.Approval, client string, repeat bool)
	Decided func(ctx context.Context, ns, id string, a *session.Approval, client string, repeat bool)
}

type byNode struct{}

// ByNode is the context of a request that a node makes by itself, as input.Nodes.
func ByNode(ctx context.Context) context.Context { return context.WithValue(ctx, byNode{}, true) }

// Request asks for an approval without a call.
func (s *Service) Request(ctx context.Context, req *v1.ApprovalServiceRequestRequest) (*v1.ApprovalServiceRequestResponse, error) {
	f := &input.Fields{ByNode: ctx.Value(byNode{}) != nil}
	f.ID("agentId", req.AgentId)
	f.Tool("tool", req.Tool)
	arguments := f.Mapping("arguments", req.Arguments, req.ArgumentsJson)
	refuseArguments(f, arguments, req.Arguments)
	f.Text("message", req.Message, input.Caps.Message)
	f.OptionalID("sessionId", req.SessionId)
	input.Enum(f, "onTimeout", req.OnTimeout, v1.OnTimeout_name)
	cmd := &session.Ask{
		NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Agent: req.AgentId, Session: req.SessionId, Tool: req.Tool, Reason: req.Message,
		Required: uint32(f.Number("required", int64(req.Required), input.Caps.Votes)),
		Denials:  uint32(f.Number("denials", int64(req.Denials), input.Caps.Votes)),
		Timeout:  f.Duration("timeout", req.Timeout, input.Caps.Approval), AllowOnTimeout: req.OnTimeout == v1.OnTimeout_ON_TIMEOUT_ALLOW,
	}
	if f.Err != nil {
		return nil, f.Err
	}
	if who := access.From(ctx); !who.Sees(req.AgentId) {
		return nil, access.Denied("agentId: %q is not in the scope of this token; it asks for %s", req.AgentId, strings.Join(who.Agents, ", "))
	}
	if cmd.By.Request == "" {
		cmd.ID = s.NewID()
	} else {
		cmd.ID = session.RequestedApprovalID(cmd.NS, cmd.By.Client, cmd.By.Request)
	}
	cmd.Request = input.Content(req)
	var err error
	preview, _ := Preview(arguments)
	if cmd.Preview, err = s.Seal(ctx, cmd.NS, cmd.ID, preview); err != nil {
		return nil, err
	}
	cmd.Tool, cmd.Reason = engine.Redact(cmd.Tool), engine.Redact(cmd.Reason)
	a, err := s.Store.Change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	after := a.Result.After
	if after.Approval != nil && a.Result.Value == 1 && a.First() {
		s.Asked(ctx, cmd.NS, cmd.ID, after.Approval, cmd.By.Client, a.Result.Repeat)
	}
	return &v1.ApprovalServiceRequestResponse{Approval: s.after(ctx, cmd.NS, cmd.ID, after), Index: a.Index}, nil
}

// refuseArguments refuses arguments about which people cannot decide.
func refuseArguments(f *input.Fields, arguments value.Value, sent *structpb.Struct) {
	if problem := Problem(arguments, sent != nil); problem != "" {
		f.Refuse("arguments", "%s", problem)
	}
}

// Get returns an approval, and waits until it is decided if that is wanted.
func (s *Service) Get(ctx context.Context, req *v1.ApprovalServiceGetRequest) (*v1.ApprovalServiceGetResponse, error) {
	f := &input.Fields{}
	f.ID("id", req.Id)
	wait := f.Duration("wait", req.Wait, input.Caps.Wait)
	read := order.ReadOf(f, req.Consistency)
	if f.Err != nil {
		return nil, f.Err
	}
	ns := input.Namespace(ctx)
	k, until, entered := session.ApprovalKey(ns, req.Id), time.Now().Add(wait), false
	for {
		found, err := s.Store.Get(ctx, k, read)
		if err != nil {
			return nil, fault.OfRead(err)
		}
		a, ok := found.Record.(*session.Approval)
		if !ok || a == nil {
			return nil, missing(req.Id)
		}
		left := time.Until(until)
		if a.State() != approval.Pending || left <= 0 {
			return &v1.ApprovalServiceGetResponse{Approval: s.show(ctx, ns, req.Id, a, found.Now), AppliedIndex: found.Index}, nil
		}
		if !entered {
			leave, err := s.Enter(ctx, ns)
			if err != nil {
				return nil, err
			}
			defer leave()
			entered = true
		}
		if err := s.Waits.Stand(ctx, &waiting.Wait{NS: ns, Length: left, Held: Pending(k)}); err != nil {
			return nil, err
		}
	}
}

// Pending is what somebody waits for who waits for the decision of an approval.
// This node may not have seen it yet.
func Pending(k session.Key) *waiting.Held {
	seen := false
	return &waiting.Held{Key: k, For: "an approval is pending", Stands: func(r session.Record) bool {
		a, _ := r.(*session.Approval)
		if a == nil {
			return !seen
		}
		seen = true
		return a.State() == approval.Pending
	}}
}

// Used returns the approval of that id if a call was admitted by it, of a session that was
// there when people were asked; nil if none was. Whoever may see the call may see it.
func Used(ctx context.Context, store *order.Store, ns, id string, opened time.Duration) (*session.ApprovalCount, error) {
	found, err := store.Reader.Get(ctx, session.ApprovalKey(ns, id), storage.Latest)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	if a, _ := found.Record.(*session.Approval); a != nil && a.State() == approval.Used && a.Asked >= opened {
		return a.Count(id, found.Now), nil
	}
	return nil, nil
}

func missing(id string) error {
	return fault.NotFound("id", "there is no approval %q; one is dropped an hour after it has ended", id)
}

var states = map[v1.ApprovalState]approval.State{
	v1.ApprovalState_APPROVAL_STATE_PENDING:   approval.Pending,
	v1.ApprovalState_APPROVAL_STATE_APPROVED:  approval.Approved,
	v1.ApprovalState_APPROVAL_STATE_USED:      approval.Used,
	v1.ApprovalState_APPROVAL_STATE_DENIED:    approval.Denied,
	v1.ApprovalState_APPROVAL_STATE_EXPIRED:   approval.Expired,
	v1.ApprovalState_APPROVAL_STATE_CANCELLED: approval.Cancelled,
}

// List returns approvals in the order of their ids.
func (s *Service) List(ctx context.Context, req *v1.ApprovalServiceListRequest) (*v1.ApprovalServiceListResponse, error) {
	f := &input.Fields{}
	input.Enum(f, "state", req.State, v1.ApprovalState_name)
	f.OptionalID("sessionId", req.SessionId)
	f.OptionalID("agentId", req.AgentId)
	read := order.ReadOf(f, req.Consistency)
	page := order.PageOf(f, req.PageSize, req.PageToken)
	if f.Err != nil {
		return nil, f.Err
	}
	state, any := states[req.State], req.State == v1.ApprovalState_APPROVAL_STATE_UNSPECIFIED
	entries, next, view, err := s.Store.List(ctx, session.KindApproval, page, read, func(_ session.Key, r session.Record) bool {
		a := r.(*session.Approval)
		return (any || a.State() == state) && (req.SessionId == "" || a.Session == req.SessionId) && (req.AgentId == "" || a.Agent == req.AgentId)
	})
	if err != nil {
		return nil, err
	}
	out := &v1.ApprovalServiceListResponse{NextPageToken: next, AppliedIndex: view.Index}
	for _, e := range entries {
		out.Approvals = append(out.Approvals, s.show(ctx, e.Key.Namespace(), e.Key.Name(), e.Record.(*session.Approval), view.Now))
	}
	return out, nil
}

// Decide is the vote of an approver.
func (s *Service) Decide(ctx context.Context, req *v1.ApprovalServiceDecideRequest) (*v1.ApprovalServiceDecideResponse, error) {
	f := &input.Fields{}
	f.ID("id", req.Id)
	who := access.From(ctx)
	approver := req.Approver
	if who == nil {
		f.ID("approver", approver)
	} else if approver == "" { // one vote each: it is theirs as whom the service knows them
		approver = who.Name
	}
	input.Enum(f, "decision", req.Decision, v1.Vote_name)
	if req.Decision == v1.Vote_VOTE_UNSPECIFIED {
		f.Refuse("decision", "is required; say VOTE_APPROVE or VOTE_DENY")
	}
	if strings.EqualFold(approver, "timeout") {
		f.Refuse("approver", "is what is said where nobody decided; give the name of a person")
	}
	f.Text("reason", req.Reason, input.Caps.Message)
	cmd := session.Decide{
		NS: input.Namespace(ctx), By: f.Maker(req, s.Now), ID: req.Id, Approver: strings.ToLower(approver),
		Approve: req.Decision == v1.Vote_VOTE_APPROVE, Reason: engine.Redact(req.Reason),
	}
	if req.RequestDigest != "" {
		cmd.Request = f.DigestOf("requestDigest", req.RequestDigest, "nothing; take it from the approval as it was shown")
	}
	if f.Err != nil {
		return nil, f.Err
	}
	if who != nil && approver != who.Name {
		return nil, access.Denied("approver: the vote is that of %s, as whom you are known; leave approver out", who.Name)
	}
	var err error
	if cmd.ID, err = s.shown(ctx, cmd.NS, cmd.ID); err != nil {
		return nil, err
	}
	a, err := s.Store.ChangeOn(ctx, func(stale *session.Result) (session.Command, error) {
		next := cmd
		var err error
		next.Session, next.Call, err = s.of(ctx, cmd.NS, cmd.ID, stale)
		return &next, err
	}, s.refused(req.Id, cmd.By))
	if err != nil {
		return nil, err
	}
	after := a.Result.After
	if a.Result.Value == 1 && a.First() && after.Approval != nil {
		s.Decided(ctx, cmd.NS, cmd.ID, after.Approval, cmd.By.Client, a.Result.Repeat)
	} else if a.First() && after.Approval != nil {
		voted := cmd
		voted.Session, voted.Call = after.Approval.Session, after.Approval.Call
		s.Voted(ctx, cmd.NS, cmd.ID, &voted)
	}
	return &v1.ApprovalServiceDecideResponse{Approval: s.after(ctx, cmd.NS, cmd.ID, after), Index: a.Index}, nil
}

// of finds the call of an approval: as this node has seen it, or as an answer says
// that it is. One that is not seen here is left to the state machine.
func (s *Service) of(ctx context.Context, ns, id string, stale *session.Result) (sess, call string, err error) {
	if stale != nil && len(stale.Names) == 2 {
		sess, call = stale.Names[0], stale.Names[1]
	} else {
		found, err := s.Store.Get(ctx, session.ApprovalKey(ns, id), storage.Nearby)
		if err != nil {
			return "", "", fault.OfRead(err)
		}
		if a, _ := found.Record.(*session.Approval); a != nil {
			sess, call = a.Session, a.Call
		}
	}
	if call == "" {
		sess = "" // it is only shown with a session
	}
	return sess, call, nil
}

func (s *Service) refused(id string, by session.Maker) func(*session.Result) error {
	return func(res *session.Result) error {
		switch res.Code {
		case session.NotFound:
			return missing(id)
		case session.AlreadyVoted, session.AlreadyDecided, session.SelfApproval:
			return fault.OfResult(res, fmt.Sprintf("id %q", id))
		case session.Invalid:
			return fault.Invalid("requestDigest", "is not of what approval %q is for; show it again, and decide on that", id)
		}
		return order.RequestFailure(by)(res)
	}
}

// shown returns the id of an approval: one of nobody where it is not there for the caller.
// That is ordered all the same, so that the id of the request is answered as ever, and it
// takes as long.
func (s *Service) shown(ctx context.Context, ns, id string) (string, error) {
	hidden, err := s.Store.Hidden(ctx, session.ApprovalKey(ns, id))
	if hidden {
		id = s.NewID()
	}
	return id, err
}

// Cancel ends an approval, and the call that waits for it.
func (s *Service) Cancel(ctx context.Context, req *v1.ApprovalServiceCancelRequest) (*v1.ApprovalServiceCancelResponse, error) {
	f := &input.Fields{}
	f.ID("id", req.Id)
	cmd := session.CancelApproval{NS: input.Namespace(ctx), By: f.Maker(req, s.Now), ID: req.Id}
	if f.Err != nil {
		return nil, f.Err
	}
	var err error
	if cmd.ID, err = s.shown(ctx, cmd.NS, cmd.ID); err != nil {
		return nil, err
	}
	a, err := s.Store.ChangeOn(ctx, func(stale *session.Result) (session.Command, error) {
		var err error
		if stale == nil || len(stale.Names) > 0 {
			cmd.Session, cmd.Call, err = s.of(ctx, cmd.NS, cmd.ID, stale)
		}
		if stale != nil {
			cmd.Pools = stale.Pools
		}
		next := cmd // the one before it may still be on its way
		return &next, err
	}, s.refused(req.Id, cmd.By))
	if err != nil {
		return nil, err
	}
	after := a.Result.After
	if a.Result.Value == 1 && a.First() && after.Approval != nil {
		s.Decided(ctx, cmd.NS, cmd.ID, after.Approval, cmd.By.Client, a.Result.Repeat)
	}
	return &v1.ApprovalServiceCancelResponse{Approval: s.after(ctx, cmd.NS, cmd.ID, after), Index: a.Index}, nil
}

// after shows what an answer brought; nil if it was dropped since.
func (s *Service) after(ctx context.Context, ns, id string, after *session.After) *v1.Approval {
	if after == nil || after.Approval == nil {
		return nil
	}
	return s.show(ctx, ns, id, after.Approval, after.Now)
}

func (s *Service) show(ctx context.Context, ns, id string, a *session.Approval, now time.Duration) *v1.Approval {
	out := &v1.Approval{
		Id: id, State: words.ApprovalStates[a.State()], AgentId: a.Agent, SessionId: a.Session, CallId: a.Call, Tool: a.Tool,
		Arguments: s.Open(ctx, ns, a.Preview), Reason: a.Reason, RequestDigest: a.Request.String(), Required: int32(a.Required), Denials: int32(a.Denials),
		OnTimeout: v1.OnTimeout_ON_TIMEOUT_DENY, Age: durationpb.New(max(now-a.Asked, 0)), ByTimeout: a.ByTimeout(),
		Timeout: durationpb.New(a.Timeout), Kind: words.CallKinds[a.Kind], ServerLabel: a.Server,
	}
	if a.Policy != (session.Digest{}) {
		out.PolicyDigest, out.Rule = a.Policy.String(), s.Rule(ctx, ns, a.Policy, a.Rule)
	}
	if a.AllowOnTimeout {
		out.OnTimeout = v1.OnTimeout_ON_TIMEOUT_ALLOW
	}
	if a.Open() {
		out.ExpiresIn = durationpb.New(max(a.Deadline-now, 0))
	}
	for i := range a.Votes {
		v := &a.Votes[i]
		b := &v1.Ballot{Approver: v.Approver, Vote: v1.Vote_VOTE_DENY, Reason: v.Reason, Age: durationpb.New(max(now-v.At, 0))}
		if v.Approve {
			b.Vote = v1.Vote_VOTE_APPROVE
		}
		out.Ballots = append(out.Ballots, b)
	}
	return out
}
