package server_test

import (
	"crypto/sha256"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
)

// A token that is bound makes none that is bound to less.
func TestScopeOfTokensThatAreMade(t *testing.T) {
	n := startTeam(t)
	c := n.as(n.token("team", "bound", []v1.Role{v1.Role_ROLE_OPERATOR}, agents("bot-*", "x"), policies("p*"))).access
	sum := sha256.Sum256([]byte(secret))
	for id, x := range map[string]struct {
		agents, policies []string
		field            string
	}{
		"noagents":   {nil, []string{"p"}, "agents"},
		"nopolicies": {[]string{"x"}, nil, "policies"},
		"everybody":  {[]string{"*"}, []string{"p"}, "agents"},
		"onemore":    {[]string{"x", "other"}, []string{"p"}, "agents"},
		"wildcard":   {[]string{"bot-*"}, []string{"?*"}, "policies"},
		"escaped":    {[]string{`bot-\*`}, []string{"p"}, "agents"},
		"same":       {[]string{"bot-*", "x"}, []string{"p*"}, ""},
		"fewer":      {[]string{"bot-7"}, []string{"pq"}, ""},
	} {
		_, err := c.CreateToken(t.Context(), &v1.CreateTokenRequest{Client: "c", TokenId: id, SecretSha256: sum[:], Roles: worker, Agents: x.agents, Policies: x.policies})
		if x.field == "" {
			require.NoError(t, err, id)
		} else {
			requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, x.field)
		}
	}
}

// An operator who is bound revokes no token that reaches further than his own, and says of
// nobody who has no token whether he is kept out.
func TestScopeOfWhatIsRevoked(t *testing.T) {
	n := startTeam(t)
	in := func(environment string) func(*session.Token) {
		return func(t *session.Token) { t.Environment = environment }
	}
	of := func(id string, more ...func(*session.Token)) govnodev1connect.AccessServiceClient {
		return n.as(n.token("team", id, []v1.Role{v1.Role_ROLE_OPERATOR}, more...)).access
	}
	all, bound, staging := of("opall"), of("opbound", agents("bot-*", "x"), policies("p*")), of("opstaging", in("staging"))
	revoke := func(c govnodev1connect.AccessServiceClient, id string) (bool, error) {
		res, err := c.RevokeToken(t.Context(), &v1.RevokeTokenRequest{Client: "c", TokenId: id})
		return res.GetRevoked(), err
	}
	for id, x := range map[string]struct {
		by     govnodev1connect.AccessServiceClient
		of     []func(*session.Token)
		beyond string
	}{
		"everything":  {bound, nil, "agents"},
		"allagents":   {bound, []func(*session.Token){policies("p")}, "agents"},
		"allpolicies": {bound, []func(*session.Token){agents("x")}, "policies"},
		"onemore":     {bound, []func(*session.Token){agents("x", "other"), policies("p")}, "agents"},
		"same":        {bound, []func(*session.Token){agents("bot-*", "x"), policies("p*")}, ""},
		"fewer":       {bound, []func(*session.Token){agents("bot-7"), policies("pq")}, ""},
		"anywhere":    {staging, nil, "environment"},
		"elsewhere":   {staging, []func(*session.Token){in("production")}, "environment"},
		"here":        {staging, []func(*session.Token){in("staging"), agents("x")}, ""},
	} {
		n.token("team", id, worker, x.of...)
		gone, err := revoke(x.by, id)
		if x.beyond == "" {
			require.NoError(t, err, id)
			require.True(t, gone, id)
			continue
		}
		requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, x.beyond)
		gone, err = revoke(all, id)
		require.NoError(t, err, id)
		require.True(t, gone, "%s is still there", id)
	}
	listed := func(c govnodev1connect.AccessServiceClient) (ids []string, denied int) {
		res, err := c.ListTokens(t.Context(), &v1.ListTokensRequest{})
		require.NoError(t, err)
		for _, t := range res.Tokens {
			ids = append(ids, t.TokenId)
		}
		return ids, len(res.Denied)
	}
	gone, err := revoke(bound, "absent")
	require.NoError(t, err)
	require.False(t, gone)

	sum := sha256.Sum256([]byte(secret))
	for _, environment := range []string{"", "production"} {
		_, err := staging.CreateToken(t.Context(), &v1.CreateTokenRequest{Client: "c", TokenId: "made", SecretSha256: sum[:], Roles: worker, Environment: environment})
		requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "environment")
	}
	_, err = staging.CreateToken(t.Context(), &v1.CreateTokenRequest{Client: "c", TokenId: "made", SecretSha256: sum[:], Roles: worker, Environment: "staging"})
	require.NoError(t, err)

	_, err = all.DenySubject(t.Context(), &v1.DenySubjectRequest{Client: "c", Subject: "cert:w"})
	require.NoError(t, err)
	n.token("team", "within", worker, agents("bot-7"), policies("pq"))
	for c, own := range map[govnodev1connect.AccessServiceClient][]string{bound: {"opbound", "within"}, staging: {"made", "opstaging"}} {
		ids, denied := listed(c)
		require.Equal(t, own, ids, "it is told of those alone that it may end")
		require.Zero(t, denied)
	}
	ids, denied := listed(all)
	require.Equal(t, []string{"author", "made", "opall", "opbound", "opstaging", "within"}, ids)
	require.Equal(t, 1, denied)
	for _, c := range []govnodev1connect.AccessServiceClient{bound, staging} {
		_, err = c.DenySubject(t.Context(), &v1.DenySubjectRequest{Client: "c", Subject: "cert:other"})
		requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "bound to nothing")
		_, err = c.AllowSubject(t.Context(), &v1.AllowSubjectRequest{Client: "c", Subject: "cert:w"})
		requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "bound to nothing")
	}
	allowed, err := all.AllowSubject(t.Context(), &v1.AllowSubjectRequest{Client: "c", Subject: "cert:w"})
	require.NoError(t, err)
	require.True(t, allowed.Allowed)
}

// Whoever has an environment puts the rulesets of no other, and no signature of one: by the
// API itself as little as by the paths of Edictum.
func TestScopeOfRulesets(t *testing.T) {
	n := startTeam(t)
	roles := []v1.Role{v1.Role_ROLE_POLICY_AUTHOR, v1.Role_ROLE_AGENT}
	staging := n.as(n.token("team", "staging", roles, func(t *session.Token) { t.Environment = "staging" }))
	anywhere := n.as(n.token("team", "anywhere", roles))
	text := strings.Join(policy(), "\n") + "\n"
	for name, beyond := range map[string]bool{
		"edictum/staging/guard": false, "q": false,
		"edictum/production/guard": true, "edictum/staging-2/guard": true, "edictum/guard": true,
	} {
		_, own := staging.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: name, Yaml: text})
		put, err := anywhere.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: name, Yaml: text})
		require.NoError(t, err, name)
		_, err = staging.policies.DeletePolicy(t.Context(), &v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Digest{Digest: put.Digest}, Client: "c"})
		requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "digest")
		_, deleted := staging.policies.DeletePolicy(t.Context(), &v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Name{Name: name}, Client: "c"})
		for _, err := range []error{own, deleted} {
			if beyond {
				requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, name)
			} else {
				require.NoError(t, err, name)
			}
		}
	}
	for key, beyond := range map[string]bool{
		"edictum/signature/staging/guard": false, "edictum/assignment/x": false, "k": false,
		"edictum/signature/production/guard": true, "edictum/signature/staging-2/guard": true,
	} {
		_, err := anywhere.counters.Set(t.Context(), &v1.SetRequest{Key: key, Value: "v", Client: "c"})
		require.NoError(t, err, key)
		_, set := staging.counters.Set(t.Context(), &v1.SetRequest{Key: key, Value: "w", Client: "c"})
		_, deleted := staging.counters.Delete(t.Context(), &v1.DeleteRequest{Key: key, Client: "c"})
		for _, err := range []error{set, deleted} {
			if beyond {
				requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "staging")
			} else {
				require.NoError(t, err, key)
			}
		}
	}
}
