package alone

import (
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What a token that is bound reaches.

// everything are the roles of those who work in a namespace.
var everything = []v1.Role{
	v1.Role_ROLE_AGENT, v1.Role_ROLE_ORCHESTRATOR, v1.Role_ROLE_APPROVER, v1.Role_ROLE_POLICY_AUTHOR, v1.Role_ROLE_AUDITOR, v1.Role_ROLE_OPERATOR,
}

// secretOf is the hash of a secret.
func secretOf(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

// scoped binds a token to an agent and a policy: what is of others is not there for it, in
// lists and events either, and it makes no token that reaches further.
func scoped(s *script) {
	x := s.scope()
	defer x.leave()
	if s.over {
		return
	}
	in, out, bound, all, calls := x.in, x.out, x.bound, x.all, x.calls
	// What is out of its scope is answered like what does not exist.
	for what, ask := range map[string]func(ctx context.Context, n *node, of, id string) (any, error){
		"get the session": func(ctx context.Context, n *node, of, _ string) (any, error) {
			return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: of})
		},
		"close the session": func(ctx context.Context, n *node, of, _ string) (any, error) {
			return n.sessions.CloseSession(ctx, &v1.CloseSessionRequest{SessionId: of})
		},
		"begin a call": func(ctx context.Context, n *node, of, id string) (any, error) {
			return n.calls.BeginCall(ctx, &v1.BeginCallRequest{SessionId: of, CallId: id, Tool: "one"})
		},
		"end the call": func(ctx context.Context, n *node, of, _ string) (any, error) {
			return n.calls.EndCall(ctx, &v1.EndCallRequest{SessionId: of, CallId: calls[of], Status: v1.Status_STATUS_SUCCEEDED})
		},
		"cancel the call": func(ctx context.Context, n *node, of, _ string) (any, error) {
			return n.calls.CancelCall(ctx, &v1.CancelCallRequest{SessionId: of, CallId: calls[of]})
		},
		"stop the session": func(ctx context.Context, n *node, of, id string) (any, error) {
			return n.sessions.Signal(ctx, &v1.SignalRequest{Target: &v1.SignalRequest_SessionId{SessionId: of}, Signal: "STOP", RequestId: id, Client: s.own})
		},
		"explain the decision": func(ctx context.Context, n *node, of, _ string) (any, error) {
			return n.explains.Explain(ctx, &v1.ExplainRequest{DecisionId: x.decisions[of]})
		},
		"get the approval": func(ctx context.Context, n *node, of, _ string) (any, error) {
			return n.approvals.Get(ctx, &v1.ApprovalServiceGetRequest{Id: x.approvals[of]})
		},
		"decide the approval": func(ctx context.Context, n *node, of, id string) (any, error) {
			return n.approvals.Decide(ctx, &v1.ApprovalServiceDecideRequest{Id: x.approvals[of], Decision: v1.Vote_VOTE_APPROVE, RequestId: id, Client: s.own})
		},
		"cancel the approval": func(ctx context.Context, n *node, of, id string) (any, error) {
			return n.approvals.Cancel(ctx, &v1.ApprovalServiceCancelRequest{Id: x.approvals[of], RequestId: id, Client: s.own})
		},
	} {
		x.hidden(what, ask)
	}
	agentOf := func(y interface{ GetAgentId() string }) string { return y.GetAgentId() }
	x.listed("list sessions", 1, func(ctx context.Context, n *node, token string) ([]string, string, error) {
		res, err := n.sessions.ListSessions(ctx, &v1.ListSessionsRequest{PageSize: 1000, PageToken: token})
		return namesOf(res.GetSessions(), func(y *v1.Session) string { return agentOf(y) }), res.GetNextPageToken(), err
	})
	x.listed("list approvals", 1, func(ctx context.Context, n *node, token string) ([]string, string, error) {
		res, err := n.approvals.List(ctx, &v1.ApprovalServiceListRequest{PageSize: 1000, PageToken: token})
		return namesOf(res.GetApprovals(), func(y *v1.Approval) string { return agentOf(y) }), res.GetNextPageToken(), err
	})
	x.listed("list signals", 1, func(ctx context.Context, n *node, token string) ([]string, string, error) {
		res, err := n.sessions.ListSignals(ctx, &v1.ListSignalsRequest{PageSize: 1000, PageToken: token})
		return namesOf(res.GetSignals(), func(y *v1.Signal) string { return agentOf(y) }), res.GetNextPageToken(), err
	})
	// Neither has it events of others.
	at := s.nodes[s.rng.IntN(len(s.nodes))]
	ctx, stop := context.WithTimeout(s.ctx, time.Second)
	defer stop()
	if stream, err := at.events.Follow(bound.as(ctx), &v1.FollowRequest{FromOldest: true, Cluster: s.rng.IntN(2) == 0}); err == nil {
		for s.last = "follow"; stream.Receive(); {
			e := stream.Msg().Event
			s.wrong(e != nil && e.AgentId != in, "it is told of another agent: %v", e)
		}
		_ = stream.Close()
	}
	opens := func(id, agent string, policy *v1.PolicyRef) func(context.Context, *node) (any, error) {
		return func(ctx context.Context, n *node) (any, error) {
			return n.sessions.CreateSession(ctx, &v1.CreateSessionRequest{SessionId: id, AgentId: agent, Policy: policy})
		}
	}
	ref := func(name string) *v1.PolicyRef { return &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: name}} }
	x.forbidden("open a session of another agent", opens(s.own+"-1", out, ref(s.own)))
	x.forbidden("open a session of another policy", opens(s.own+"-2", in, ref(out)))
	x.forbidden("open a session by a digest", opens(s.own+"-3", in, &v1.PolicyRef{Ref: &v1.PolicyRef_Digest{Digest: x.digests[s.own]}}))
	x.forbidden("put another policy", func(ctx context.Context, n *node) (any, error) {
		return n.policies.PutPolicy(ctx, &v1.PutPolicyRequest{Yaml: "name: " + out + "\nmax_tool_calls: 1\n", RequestId: s.id(), Client: s.own})
	})
	x.forbidden("deny a subject", func(ctx context.Context, n *node) (any, error) {
		return n.access.DenySubject(ctx, &v1.DenySubjectRequest{Subject: "jwt:" + s.own, RequestId: s.id(), Client: s.own})
	})
	x.forbidden("allow a subject", func(ctx context.Context, n *node) (any, error) {
		return n.access.AllowSubject(ctx, &v1.AllowSubjectRequest{Subject: "jwt:" + s.own, RequestId: s.id(), Client: s.own})
	})
	x.forbidden("list chains", func(ctx context.Context, n *node) (any, error) {
		return n.access.ListChains(ctx, &v1.ListChainsRequest{})
	})
	x.forbidden("revoke a token that is bound to nothing", func(ctx context.Context, n *node) (any, error) {
		return n.access.RevokeToken(ctx, &v1.RevokeTokenRequest{TokenId: all.id, RequestId: s.id(), Client: s.own})
	})
	makes := func(agents, policies []string) func(context.Context, *node) (any, error) {
		req := &v1.CreateTokenRequest{
			RequestId: s.id(), Client: s.own, TokenId: Prefix + strings.ToLower(s.id()), SecretSha256: secretOf(s.id()), Roles: everything[:1], Agents: agents, Policies: policies,
			ExpiresIn: durationpb.New(time.Hour),
		}
		return func(ctx context.Context, n *node) (any, error) { return n.access.CreateToken(ctx, req) }
	}
	policies := []string{s.own}
	for what, wider := range map[string][2][]string{
		"all agents": {nil, policies}, "all policies": {{in}, nil}, "one agent more": {{in, out}, policies}, "one policy more": {{in}, {s.own, out}},
		"more agents": {{s.own + "-*"}, policies}, "more policies": {{in}, {s.own + "*"}},
	} {
		x.forbidden("make a token of "+what, makes(wider[0], wider[1]))
	}
	done(s, "open a session of its own", func(ctx context.Context, n *node) (any, error) {
		return opens(s.own+"-4", in, ref(s.own))(bound.as(ctx), n)
	})
	narrow := &v1.CreateTokenRequest{
		RequestId: s.id(), Client: s.own, TokenId: Prefix + strings.ToLower(s.id()), SecretSha256: secretOf(s.id()), Roles: everything[:1], Agents: []string{in}, Policies: policies, ExpiresIn: durationpb.New(time.Hour),
	}
	made, ok := done(s, "make a token that is bound to no more", func(ctx context.Context, n *node) (*v1.CreateTokenResponse, error) {
		return n.access.CreateToken(bound.as(ctx), narrow)
	})
	s.wrong(ok && made.Token.GetCreatedBy() != "token:"+bound.id, "who made it is %v", made.GetToken())
	res, ok := done(s, "list tokens with it", func(ctx context.Context, n *node) (*v1.ListTokensResponse, error) {
		return n.access.ListTokens(bound.as(ctx), &v1.ListTokensRequest{})
	})
	if ok {
		ids := namesOf(res.Tokens, func(t *v1.Token) string { return t.TokenId })
		want := []string{bound.id, narrow.TokenId}
		slices.Sort(ids)
		slices.Sort(want)
		s.wrong(!slices.Equal(ids, want) || len(res.Denied) > 0, "it is listed %v and %v, want %v alone", ids, res.Denied, want)
	}
	end := &v1.RevokeTokenRequest{TokenId: narrow.TokenId, RequestId: s.id(), Client: s.own}
	done(s, "revoke what is bound to no more", func(ctx context.Context, n *node) (*v1.RevokeTokenResponse, error) {
		return n.access.RevokeToken(bound.as(ctx), end)
	})
	gone, ok := done(s, "create what was revoked once more", func(ctx context.Context, n *node) (*v1.CreateTokenResponse, error) {
		return n.access.CreateToken(bound.as(ctx), narrow)
	})
	s.wrong(ok && gone.Token != nil, "it was revoked, and the repeat tells of %v", gone.GetToken())
}

// granted holds what is said of tokens to how they were made, and one that has expired to
// one that is revoked.
func granted(s *script) {
	who, ok := done(s, "ask who it is", func(ctx context.Context, n *node) (*v1.WhoAmIResponse, error) {
		return n.access.WhoAmI(ctx, &v1.WhoAmIRequest{})
	})
	if !ok {
		return
	}
	staging := s.bearer(&v1.CreateTokenRequest{Roles: everything, Environment: "staging"})
	brief := s.bearer(&v1.CreateTokenRequest{Roles: everything, ExpiresIn: durationpb.New(time.Second)})
	is, ok := done(s, "ask as whom it is known", func(ctx context.Context, n *node) (*v1.WhoAmIResponse, error) {
		return n.access.WhoAmI(staging.as(ctx), &v1.WhoAmIRequest{})
	})
	s.wrong(ok && (is.Principal != "token:"+staging.id || is.Environment != "staging" || len(is.Agents)+len(is.Policies) > 0 || !slices.Equal(is.Roles, everything)), "it is known as %v", is)
	res, ok := done(s, "list tokens", func(ctx context.Context, n *node) (*v1.ListTokensResponse, error) {
		return n.access.ListTokens(ctx, &v1.ListTokensRequest{})
	})
	if !ok {
		return
	}
	expires := int64(0)
	for _, t := range res.Tokens {
		switch t.TokenId {
		case staging.id:
			s.wrong(t.Environment != "staging" || t.CreatedBy != who.Principal || t.UsedAt != 0 || t.Node != "" || t.ExpiresAt != is.GetExpiresAt() || t.ExpiresAt-t.CreatedAt != time.Hour.Milliseconds(), "the token is %v, made by %s", t, who.Principal)
		case brief.id:
			expires = t.ExpiresAt
			s.wrong(t.ExpiresAt-t.CreatedAt != time.Second.Milliseconds(), "the token is %v", t)
		}
	}
	if expires == 0 {
		s.over = true // a node whose clock is far ahead has dropped it
	}
	// A node goes by its own clock, which it tells with the heads of chains.
	clock := func(ctx context.Context, n *node) (int64, error) {
		res, err := n.access.ListChains(ctx, &v1.ListChainsRequest{PageSize: 1})
		return res.GetAt(), err
	}
	for range asks {
		now, in := int64(0), false
		done(s, "show what has expired", func(ctx context.Context, n *node) (any, error) {
			before, err := clock(ctx, n)
			if err != nil {
				return nil, err
			}
			_, err = n.access.ListTokens(brief.as(ctx), &v1.ListTokensRequest{})
			if in = err == nil; !in && connect.CodeOf(err) != connect.CodeUnauthenticated {
				return nil, err
			}
			after, err := clock(ctx, n)
			now = min(before, after) // it may be set back
			return nil, err
		})
		s.wrong(in && now > expires, "it expired %d ms ago, and is answered", now-expires)
		if s.over || now > expires {
			break
		}
		s.pause(400 * time.Millisecond)
	}
	for _, b := range []*bearer{staging, brief} {
		revoke := &v1.RevokeTokenRequest{RequestId: s.id(), Client: s.own, TokenId: b.id}
		done(s, "revoke the token", func(ctx context.Context, n *node) (*v1.RevokeTokenResponse, error) {
			return n.access.RevokeToken(ctx, revoke)
		})
	}
}
