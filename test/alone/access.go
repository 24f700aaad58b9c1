package alone

import (
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"time"

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
