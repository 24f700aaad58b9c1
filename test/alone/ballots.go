package alone

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Who may vote, and how often.

// A bearer is who shows a token that the script has made.
type bearer struct {
	id, token string
	as        func(context.Context) context.Context
}

// bearer makes a token of the namespace in which the script is, for an hour.
func (s *script) bearer(t *v1.CreateTokenRequest) *bearer {
	who, _ := done(s, "ask who it is", func(ctx context.Context, n *node) (*v1.WhoAmIResponse, error) {
		return n.access.WhoAmI(ctx, &v1.WhoAmIRequest{})
	})
	text := s.id()
	secret := sha256.Sum256([]byte(text))
	t.RequestId, t.Client, t.TokenId, t.SecretSha256 = s.id(), s.own, Prefix+strings.ToLower(s.id()), secret[:]
	if t.ExpiresIn == nil {
		t.ExpiresIn = durationpb.New(time.Hour)
	}
	done(s, "create a token", func(ctx context.Context, n *node) (*v1.CreateTokenResponse, error) {
		return n.access.CreateToken(ctx, t)
	})
	token := fmt.Sprintf("gn_%s.%s.%s", who.GetNamespace(), t.TokenId, text)
	return &bearer{id: t.TokenId, token: token, as: func(ctx context.Context) context.Context {
		ctx, info := connect.NewClientContext(ctx)
		info.RequestHeader().Set("Authorization", "Bearer "+token)
		return ctx
	}}
}

// leave ends tokens as well as that goes, also where the script has ended early.
func (s *script) leave(all ...*bearer) {
	for _, b := range all {
		ctx, cancel := context.WithTimeout(s.outer, time.Second)
		_, _ = s.nodes[s.rng.IntN(len(s.nodes))].access.RevokeToken(ctx, &v1.RevokeTokenRequest{RequestId: s.id(), Client: s.own, TokenId: b.id})
		cancel()
	}
}

// ballots has those vote who may not, or have: who asks, in letters large and small, and who
// has voted, under his name as it was and as it may be written.
func ballots(s *script) {
	agent := s.own + "-Anna"
	if !s.policy("max_tool_calls: 100\nrequire_human_approval: true\napproval: {required: 2, denials: 2, timeout: 10m, max_pending: 8}\n") {
		return
	}
	create := &v1.CreateSessionRequest{SessionId: s.own, AgentId: agent, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}}
	if _, ok := done(s, "create a session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
		return n.sessions.CreateSession(ctx, create)
	}); !ok {
		return
	}
	all := []v1.Role{v1.Role_ROLE_AGENT, v1.Role_ROLE_ORCHESTRATOR, v1.Role_ROLE_APPROVER}
	asker, other := s.bearer(&v1.CreateTokenRequest{Roles: all}), s.bearer(&v1.CreateTokenRequest{Roles: all[2:]})
	if s.over {
		return
	}
	plain := func(ctx context.Context) context.Context { return ctx }
	// asks asks people, by a call or without one, and returns which approval it is.
	asks := func(as func(context.Context) context.Context) string {
		if s.rng.IntN(2) == 0 {
			req := &v1.ApprovalServiceRequestRequest{AgentId: agent, Tool: "tool", Timeout: durationpb.New(10 * time.Minute), Required: 2, Denials: 2, RequestId: s.id(), Client: s.own}
			res, _ := done(s, "request an approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceRequestResponse, error) {
				return n.approvals.Request(as(ctx), req)
			})
			return res.GetApproval().GetId()
		}
		call := s.call("one")
		res, ok := done(s, "begin one", func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) {
			return n.calls.BeginCall(as(ctx), call)
		})
		if ok {
			s.outcome(res, v1.Outcome_OUTCOME_APPROVAL_REQUIRED)
		}
		return res.GetApproval().GetId()
	}
	vote := func(as func(context.Context) context.Context, id, name string, decision v1.Vote) (*v1.Approval, string) {
		req := &v1.ApprovalServiceDecideRequest{Id: id, Decision: decision, Approver: name, RequestId: s.id(), Client: s.own}
		res, reason, _ := told(s, fmt.Sprintf("%v of %q", decision, name), func(ctx context.Context, n *node) (*v1.ApprovalServiceDecideResponse, error) {
			return n.approvals.Decide(as(ctx), req)
		})
		return res.GetApproval(), reason
	}
	votes := []v1.Vote{v1.Vote_VOTE_APPROVE, v1.Vote_VOTE_DENY}
	// may is what a vote has to be: refused, or one of those that stand.
	may := func(as func(context.Context) context.Context, id, name string, decision v1.Vote, want string, voters ...string) {
		got, reason := vote(as, id, name, decision)
		s.wrong(!s.over && reason != want, "the vote is refused as %q, want %q: it came to %v", reason, want, got)
		res, ok := done(s, "get the approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceGetResponse, error) {
			return n.approvals.Get(ctx, &v1.ApprovalServiceGetRequest{Id: id})
		})
		if !ok {
			return
		}
		var stand []string
		for _, b := range res.Approval.Ballots {
			stand = append(stand, b.Approver)
		}
		s.wrong(!slices.Equal(stand, voters), "those have voted: %v, want %v", stand, voters)
		s.wrong(len(voters) < 2 && res.Approval.State != v1.ApprovalState_APPROVAL_STATE_PENDING, "it is decided by %v: %v", voters, res.Approval)
	}
	if !s.known { // names are only names, and one name in letters large and small
		id := asks(plain)
		for _, name := range []string{agent, strings.ToLower(agent), strings.ToUpper(agent)} {
			may(plain, id, name, votes[s.rng.IntN(2)], "SELF_APPROVAL")
		}
		for _, name := range []string{"", "timeout", "Timeout"} {
			may(plain, id, name, votes[s.rng.IntN(2)], "INVALID_FIELD")
		}
		d := s.rng.IntN(2)
		may(plain, id, "Carol", votes[d], "", "carol")
		for _, name := range []string{"carol", "CAROL", "Carol"} {
			may(plain, id, name, votes[d], "", "carol")
			may(plain, id, name, votes[1-d], "ALREADY_VOTED", "carol")
		}
		may(plain, id, strings.ToLower(agent), votes[d], "SELF_APPROVAL", "carol")
		may(plain, id, agent+"-2", votes[d], "", "carol", strings.ToLower(agent+"-2"))
	}
	// The vote is that of the token, whomever it names.
	id, is := asks(asker.as), "token:"+other.id
	for _, decision := range votes {
		may(asker.as, id, "", decision, "SELF_APPROVAL")
		may(asker.as, id, "token:"+asker.id, decision, "SELF_APPROVAL")
		may(asker.as, id, is, decision, "PERMISSION_DENIED")
		may(other.as, id, "carol", decision, "PERMISSION_DENIED")
	}
	d := s.rng.IntN(2)
	may(other.as, id, "", votes[d], "", is)
	may(other.as, id, is, votes[d], "", is)
	may(other.as, id, "", votes[1-d], "ALREADY_VOTED", is)
	may(asker.as, id, "", votes[d], "SELF_APPROVAL", is)
	for _, b := range []*bearer{asker, other} {
		revoke := &v1.RevokeTokenRequest{RequestId: s.id(), Client: s.own, TokenId: b.id}
		done(s, "revoke the token", func(ctx context.Context, n *node) (*v1.RevokeTokenResponse, error) {
			return n.access.RevokeToken(ctx, revoke)
		})
	}
}
