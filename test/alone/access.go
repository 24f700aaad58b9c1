package alone

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// tokens makes a token and revokes it, and denies a subject and allows it again.
func tokens(s *script) {
	id := Prefix + strings.ToLower(s.id())
	secret := sha256.Sum256([]byte(s.own))
	subject := "jwt:" + s.own
	listed := func() (token *v1.Token, denied *v1.DeniedSubject) {
		res, ok := done(s, "list tokens", func(ctx context.Context, n *node) (*v1.ListTokensResponse, error) {
			return n.access.ListTokens(ctx, &v1.ListTokensRequest{})
		})
		if !ok {
			return nil, nil
		}
		for _, t := range res.Tokens {
			if t.TokenId == id {
				s.wrong(token != nil, "it is listed twice")
				token = t
			}
		}
		for _, d := range res.Denied {
			if d.Subject == subject {
				s.wrong(denied != nil, "the subject is listed twice")
				denied = d
			}
		}
		return token, denied
	}
	see := func(token, denied bool) {
		t, d := listed()
		s.wrong(token != (t != nil) || denied != (d != nil), "the token is %v and the denied subject %v", t, d)
		s.wrong(t != nil && (t.Label != "label" || !slices.Equal(t.Roles, []v1.Role{v1.Role_ROLE_AGENT}) || !slices.Equal(t.Agents, []string{s.own}) ||
			!slices.Equal(t.Policies, []string{s.own}) || t.ExpiresAt-t.CreatedAt < time.Hour.Milliseconds()/2 || t.ExpiresAt-t.CreatedAt > 2*time.Hour.Milliseconds()), "the token is %v", t)
		s.wrong(d != nil && d.Reason != "why", "the denied subject is %v", d)
	}
	see(false, false)
	create := &v1.CreateTokenRequest{
		RequestId: s.id(), Client: s.own, TokenId: id, SecretSha256: secret[:], Roles: []v1.Role{v1.Role_ROLE_AGENT}, Label: "label",
		Agents: []string{s.own}, Policies: []string{s.own}, ExpiresIn: durationpb.New(time.Hour),
	}
	done(s, "create a token", func(ctx context.Context, n *node) (*v1.CreateTokenResponse, error) {
		return n.access.CreateToken(ctx, create)
	})
	see(true, false)
	deny := &v1.DenySubjectRequest{RequestId: s.id(), Client: s.own, Subject: subject, Reason: "why"}
	done(s, "deny a subject", func(ctx context.Context, n *node) (*v1.DenySubjectResponse, error) {
		return n.access.DenySubject(ctx, deny)
	})
	see(true, true)
	revoke := &v1.RevokeTokenRequest{RequestId: s.id(), Client: s.own, TokenId: id}
	res, ok := done(s, "revoke the token", func(ctx context.Context, n *node) (*v1.RevokeTokenResponse, error) {
		return n.access.RevokeToken(ctx, revoke)
	})
	s.wrong(ok && !res.Revoked, "it was not there")
	see(false, true)
	allow := &v1.AllowSubjectRequest{RequestId: s.id(), Client: s.own, Subject: subject}
	allowed, ok := done(s, "allow the subject", func(ctx context.Context, n *node) (*v1.AllowSubjectResponse, error) {
		return n.access.AllowSubject(ctx, allow)
	})
	s.wrong(ok && !allowed.Allowed, "it was not denied")
	see(false, false)
}

// shown makes a token and shows it until it is revoked: it opens what it is for, and
// nothing from then on.
func shown(s *script) {
	if !s.policy("max_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	who := &v1.WhoAmIResponse{}
	whoAmI := func(as func(context.Context) context.Context) bool {
		res, ok := done(s, "ask who it is", func(ctx context.Context, n *node) (*v1.WhoAmIResponse, error) {
			return n.access.WhoAmI(as(ctx), &v1.WhoAmIRequest{})
		})
		who = res
		return ok
	}
	if !whoAmI(func(ctx context.Context) context.Context { return ctx }) {
		return
	}
	id, text := Prefix+strings.ToLower(s.id()), s.id()
	secret := sha256.Sum256([]byte(text))
	text = "gn_" + who.Namespace + "." + id + "." + text
	as := func(ctx context.Context) context.Context {
		ctx, info := connect.NewClientContext(ctx)
		info.RequestHeader().Set("Authorization", "Bearer "+text)
		return ctx
	}
	create := &v1.CreateTokenRequest{
		RequestId: s.id(), Client: s.own, TokenId: id, SecretSha256: secret[:], Roles: []v1.Role{v1.Role_ROLE_AGENT}, Agents: []string{s.own + "*"},
	}
	done(s, "create a token", func(ctx context.Context, n *node) (*v1.CreateTokenResponse, error) {
		return n.access.CreateToken(ctx, create)
	})
	if !whoAmI(as) {
		return
	}
	s.wrong(who.Principal != "token:"+id || !slices.Equal(who.Roles, create.Roles) || !slices.Equal(who.Agents, create.Agents), "it is %v", who)
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 1, RequestId: s.id(), Client: s.own}
	_, reason, ok := told(s, "put a pool with it", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(as(ctx), pool) })
	s.wrong(ok && reason != "PERMISSION_DENIED", "it put a pool, or is refused as %q", reason)
	done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) })
	call := s.call("one")
	begun, ok := done(s, "begin with it", func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) {
		return n.calls.BeginCall(as(ctx), call)
	})
	if !ok {
		return
	}
	s.outcome(begun, v1.Outcome_OUTCOME_ADMITTED)
	take := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long}
	got, ok := done(s, "acquire with it", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
		return n.slots.AcquireSlot(as(ctx), take)
	})
	if !ok {
		return
	}
	same(s, "the outcome", got.Outcome, v1.Outcome_OUTCOME_ADMITTED)
	release := &v1.ReleaseSlotRequest{Pool: s.own, SlotId: take.SlotId, Client: s.own, Token: got.Token}
	given, ok := done(s, "release without it", func(ctx context.Context, n *node) (*v1.ReleaseSlotResponse, error) {
		return n.slots.ReleaseSlot(ctx, release)
	})
	if ok { // the slot is the token's
		same(s, "the outcome", given.Outcome, v1.Outcome_OUTCOME_FENCED)
	}
	revoke := &v1.RevokeTokenRequest{RequestId: s.id(), Client: s.own, TokenId: id}
	done(s, "revoke the token", func(ctx context.Context, n *node) (*v1.RevokeTokenResponse, error) {
		return n.access.RevokeToken(ctx, revoke)
	})
	turned(s, "begin with it", func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) {
		return n.calls.BeginCall(as(ctx), s.call("one"))
	})
	turned(s, "read with it", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
		return n.sessions.GetSession(as(ctx), &v1.GetSessionRequest{SessionId: s.own})
	})
	turned(s, "release with it", func(ctx context.Context, n *node) (*v1.ReleaseSlotResponse, error) {
		return n.slots.ReleaseSlot(as(ctx), release)
	})
	want := &account{tools: map[string]int32{"one": 1}, open: []string{call.CallId}}
	want.Attempts, want.Calls = 1, 1
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
}

// turned asks with what no node knows any more.
func turned[R any](s *script, step string, ask func(context.Context, *node) (R, error)) {
	in := false
	res, reason, ok := told(s, step, func(ctx context.Context, n *node) (R, error) {
		res, err := ask(ctx, n)
		in = err == nil
		if ce := (*connect.Error)(nil); errors.As(err, &ce) && connect.IsWireError(err) && ce.Code() == connect.CodeUnauthenticated {
			return res, nil
		}
		return res, err
	})
	s.wrong(ok && (in || reason != ""), "it was revoked, and is answered %v (%s)", res, reason)
}
