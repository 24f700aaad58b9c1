package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// signer signs the JWTs of an issuer whose keys are in a file.
type signer struct {
	t   *testing.T
	key *ecdsa.PrivateKey
}

func newSigner(t *testing.T, folder string) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: "ES256", Use: "sig"}}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "keys.json"), set, 0o600))
	return &signer{t, key}
}

func (s *signer) sign(alg jose.SignatureAlgorithm, key any, claims map[string]any) string {
	s.t.Helper()
	j, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, nil)
	require.NoError(s.t, err)
	body, err := json.Marshal(claims)
	require.NoError(s.t, err)
	signed, err := j.Sign(body)
	require.NoError(s.t, err)
	text, err := signed.CompactSerialize()
	require.NoError(s.t, err)
	return text
}

func (s *signer) token(change func(claims map[string]any)) string {
	claims := map[string]any{"iss": "https://login.example", "aud": "govnode", "sub": "repo:acme/bot", "jti": "one", "exp": time.Now().Add(time.Hour).Unix(), "team": "a"}
	if change != nil {
		change(claims)
	}
	return s.sign(jose.ES256, s.key, claims)
}

const identityText = `
certificates:
  - {match: worker-*, namespace: team, roles: [agent, orchestrator], agents: [bot-*]}
  - {match: ops, namespace: $cluster, roles: [operator]}
issuers:
  - issuer: https://login.example
    audience: govnode
    jwks: keys.json
    subjects:
      - {match: "repo:acme/*", claims: {team: a}, namespace: team, roles: [agent], policies: [p]}
      - {match: amy, namespace: team, roles: [approver]}
`

func newAuthenticator(t *testing.T, ids *Identities) (*Authenticator, *storage.Memory) {
	t.Helper()
	store := storage.NewMemory(nil)
	a, err := New(Config{
		Store: store, Required: true, Identities: ids, Now: time.Now,
		Refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"reason"}),
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		a.Close()
		require.NoError(t, store.Close())
	})
	return a, store
}

func bearer(token string) http.Header { return http.Header{AuthorizationHeader: {"Bearer " + token}} }

func TestJWTs(t *testing.T) {
	folder := t.TempDir()
	s := newSigner(t, folder)
	ids, err := ParseIdentities([]byte(identityText), folder)
	require.NoError(t, err)
	a, store := newAuthenticator(t, ids)
	spec := connect.Spec{Procedure: govnodev1connect.AccessServiceWhoAmIProcedure}
	as := func(token string) (*Principal, error) {
		ctx, err := a.Gate(t.Context(), spec, connect.Peer{}, bearer(token))
		if err != nil {
			require.Equal(t, fault.ReasonUnauthenticated, fault.Of(err).Reason, "%v", err)
			return nil, err
		}
		require.Equal(t, "team", input.Namespace(ctx))
		return From(ctx), nil
	}
	good := s.token(nil)
	for range 2 { // the second time it is known
		p, err := as(good)
		require.NoError(t, err)
		require.Equal(t, "jwt:repo:acme/bot", p.Name)
		require.Equal(t, []string{"p"}, p.Policies)
		require.False(t, p.Expires.IsZero())
	}
	p, err := as(s.token(func(c map[string]any) { c["sub"] = "amy"; delete(c, "team"); delete(c, "jti") }))
	require.NoError(t, err)
	require.Equal(t, "jwt:amy", p.Name)

	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	public, err := s.key.PublicKey.Bytes()
	require.NoError(t, err)
	parts := strings.Split(good, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + parts[1] + "."
	for what, token := range map[string]string{
		"another audience":      s.token(func(c map[string]any) { c["aud"] = "other" }),
		"another issuer":        s.token(func(c map[string]any) { c["iss"] = "https://evil.example" }),
		"no issuer":             s.token(func(c map[string]any) { delete(c, "iss") }),
		"expired":               s.token(func(c map[string]any) { c["exp"] = time.Now().Add(-time.Minute).Unix() }),
		"no end":                s.token(func(c map[string]any) { delete(c, "exp") }),
		"nobody's subject":      s.token(func(c map[string]any) { c["sub"] = "repo:evil/bot" }),
		"a missing claim":       s.token(func(c map[string]any) { delete(c, "team") }),
		"another claim":         s.token(func(c map[string]any) { c["team"] = "b" }),
		"another key":           s.sign(jose.ES256, other, map[string]any{"iss": "https://login.example", "aud": "govnode", "sub": "amy", "exp": time.Now().Add(time.Hour).Unix()}),
		"HMAC of the key":       s.sign(jose.HS256, public, map[string]any{"iss": "https://login.example", "aud": "govnode", "sub": "amy", "exp": time.Now().Add(time.Hour).Unix()}),
		"no algorithm":          none,
		"another body":          parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"https://login.example","sub":"amy"}`)) + "." + parts[2],
		"two parts":             parts[0] + "." + parts[1],
		"rubbish":               "a.b.c",
		"longer than it may be": good + strings.Repeat("a", maxJWT),
	} {
		_, err := as(token)
		require.Error(t, err, what)
	}

	deny := func(subject string) {
		res := store.Apply(t.Context(), &session.Deny{NS: "team", By: session.Maker{Client: "t"}, Denied: session.DeniedSubject{Subject: subject}})[0]
		require.NoError(t, res.Failure())
	}
	deny("jti:one")
	_, err = as(good)
	require.Error(t, err)
	_, err = as(s.token(func(c map[string]any) { c["jti"] = "two" }))
	require.NoError(t, err)
	deny("jwt:repo:acme/bot")
	_, err = as(s.token(func(c map[string]any) { c["jti"] = "two" }))
	require.Error(t, err)
}

func TestCertificatesAreIdentities(t *testing.T) {
	folder := t.TempDir()
	newSigner(t, folder)
	ids, err := ParseIdentities([]byte(identityText), folder)
	require.NoError(t, err)
	a, store := newAuthenticator(t, ids)
	as := func(name string, node bool, procedure string, header http.Header) (*Principal, error) {
		ctx, err := a.Gate(a.WithCertificate(t.Context(), name, node, time.Now().Add(time.Hour)), connect.Spec{Procedure: procedure}, connect.Peer{}, header)
		if err != nil {
			return nil, err
		}
		return From(ctx), nil
	}
	begin := govnodev1connect.CallServiceBeginCallProcedure
	p, err := as("worker-7", false, begin, nil)
	require.NoError(t, err)
	require.Equal(t, "cert:worker-7", p.Name)
	require.Equal(t, "team", p.Namespace)
	_, err = as("stranger", false, begin, nil)
	require.Equal(t, fault.ReasonUnauthenticated, fault.Of(err).Reason)
	_, err = as("ops", false, begin, nil)
	require.Equal(t, fault.ReasonForbidden, fault.Of(err).Reason)
	_, err = as("ops", false, govnodev1connect.ClusterServiceAddNodeProcedure, nil)
	require.NoError(t, err)

	// A node asks for what a caller of its own wants to see, and begins no calls.
	p, err = as("n2", true, govnodev1connect.DecisionServiceExplainProcedure, http.Header{input.NamespaceHeader: {"team"}})
	require.NoError(t, err)
	require.Equal(t, "team", p.Namespace)
	_, err = as("n2", true, begin, nil)
	require.Equal(t, fault.ReasonForbidden, fault.Of(err).Reason)

	// What is shown beside a certificate counts, be it good or not.
	_, err = as("worker-7", false, begin, bearer("gn_team.none.a-secret-of-enough-letters-00000"))
	require.Equal(t, fault.ReasonUnauthenticated, fault.Of(err).Reason)

	res := store.Apply(t.Context(), &session.Deny{NS: "team", By: session.Maker{Client: "t"}, Denied: session.DeniedSubject{Subject: "cert:worker-7"}})[0]
	require.NoError(t, res.Failure())
	_, err = as("worker-7", false, begin, nil)
	require.Equal(t, fault.ReasonUnauthenticated, fault.Of(err).Reason)
	_, err = as("worker-8", false, begin, nil)
	require.NoError(t, err)
}

// What is wrong with the file is said by the name of its field.
func TestIdentityFiles(t *testing.T) {
	folder := t.TempDir()
	s := newSigner(t, folder)
	private, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: s.key, KeyID: "k"}}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "private.json"), private, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "empty.json"), []byte(`{"keys":[]}`), 0o600))
	issuer := func(rest string) string {
		return "issuers: [{issuer: https://a.example, audience: x, subjects: [{match: a, namespace: n, roles: [agent]}], " + rest + "}]"
	}
	two := func(first, second string) string {
		one := "{issuer: https://%s.example, audience: x, jwks: keys.json, subjects: [{match: a, namespace: n, roles: [agent]}], %s}"
		return "issuers: [" + fmt.Sprintf(one, "a", first) + ", " + fmt.Sprintf(one, "b", second) + "]"
	}
	for text, want := range map[string]string{
		"certificates: [{match: a, namespace: n}]":                                 "certificates[0]: roles",
		"certificates: [{namespace: n, roles: [agent]}]":                           "certificates[0]: match",
		"certificates: [{match: '[', namespace: n, roles: [agent]}]":               "certificates[0]: match",
		"certificates: [{match: a, namespace: 'a b', roles: [agent]}]":             "certificates[0]: namespace",
		"certificates: [{match: a, namespace: n, roles: [root]}]":                  "certificates[0]: roles: \"root\"",
		"certificates: [{match: a, namespace: $cluster, roles: [joiner]}]":         "joiner is for tokens alone",
		"certificates: [{match: a, namespace: n, roles: [agent], agents: ['[']}]":  "certificates[0]",
		"certificates: [{match: a, namespace: n, roles: [agent], claims: {a: b}}]": "certificates[0].claims",
		"certificates: [{macth: a}]":                                               "macth",
		"issuers: [{issuer: http://a.example, audience: x}]":                       "issuers[0].issuer",
		"issuers: [{issuer: https://a.example}]":                                   "issuers[0].audience",
		"issuers: [{issuer: https://a.example, audience: x}]":                      "issuers[0].subjects",
		"issuers: [null]":            "issuers[0].issuer",
		issuer("jwks: none.json"):    "issuers[0].jwks",
		issuer("jwks: private.json"): "private key",
		issuer("jwks: empty.json"):   "holds no key",
		issuer("jwks: keys.json"):    "",
		"issuers: [{issuer: https://a.example, audience: x, jwks: keys.json, name: A, subjects: [{match: a, namespace: n, roles: [agent]}]}]": "issuers[0].name",
		two("name: a", ""):        "issuers[1].name: is missing",
		two("", "name: a"):        "issuers[0].name: is missing",
		two("name: a", "name: a"): "issuers[1].name: a stands twice",
		two("name: a", "name: b"): "",
		"":                        "",
	} {
		_, err := ParseIdentities([]byte(text), folder)
		if want == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorContains(t, err, want, text)
	}
}

// A subject of one issuer is another than the same one of another issuer.
func TestTwoIssuers(t *testing.T) {
	folder := t.TempDir()
	s := newSigner(t, folder)
	ids, err := ParseIdentities([]byte(`issuers:
  - {name: one, issuer: "https://login.example", audience: govnode, jwks: keys.json, subjects: [{match: amy, namespace: team, roles: [agent]}]}
  - {name: two, issuer: "https://other.example", audience: govnode, jwks: keys.json, subjects: [{match: amy, namespace: team, roles: [approver]}]}
`), folder)
	require.NoError(t, err)
	for issuer, name := range map[string]string{"https://login.example": "jwt:one:amy", "https://other.example": "jwt:two:amy"} {
		p, err := ids.OfJWT(t.Context(), s.token(func(c map[string]any) { c["iss"], c["sub"] = issuer, "amy" }))
		require.NoError(t, err)
		require.Equal(t, name, p.Name)
		require.Contains(t, p.denials, name)
	}
}

// Texts of tokens are taken apart in one way, and what is none is none.
func FuzzSplitToken(f *testing.F) {
	for _, text := range []string{"gn_team.abcd." + strings.Repeat("s", 22), "gn_a.b.abcd." + strings.Repeat("s", 43), "gn_", "gn_..", "gn_.abcd.x", "", "gn_$cluster.abcd." + strings.Repeat("s", 30)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ns, id, secret, ok := splitToken(text)
		if ok {
			require.Equal(t, text, TokenPrefix+ns+"."+id+"."+secret)
			require.Empty(t, TokenIDProblem(id))
			require.NotContains(t, secret, ".")
		}
		_ = sha256.Sum256([]byte(secret))
	})
}

// Who could not be denied is not let in: a subject that is too long for a denial is nobody.
func TestSubjectsThatCannotBeDenied(t *testing.T) {
	folder := t.TempDir()
	s := newSigner(t, folder)
	ids, err := ParseIdentities([]byte(identityText), folder)
	require.NoError(t, err)
	a, _ := newAuthenticator(t, ids)
	for more, known := range map[int]bool{0: true, 1: false} {
		subject := "repo:acme/"
		subject += strings.Repeat("x", session.MaxSubject-len("jwt:"+subject)+more)
		deny := &session.Deny{NS: "team", By: session.Maker{Client: "t"}, Denied: session.DeniedSubject{Subject: "jwt:" + subject}}
		require.Equal(t, known, session.Validate(deny) == nil)
		_, err := a.Gate(t.Context(), connect.Spec{Procedure: govnodev1connect.AccessServiceWhoAmIProcedure}, connect.Peer{},
			bearer(s.token(func(c map[string]any) { c["sub"] = subject })))
		require.Equal(t, known, err == nil, "%v", err)
		if !known {
			require.Equal(t, fault.ReasonUnauthenticated, fault.Of(err).Reason, "%v", err)
		}
	}
}

// Nor is one that no denial can name: none at all, or with characters that are in no text.
func TestSubjectsThatNoDenialNames(t *testing.T) {
	folder := t.TempDir()
	s := newSigner(t, folder)
	ids, err := ParseIdentities([]byte(strings.ReplaceAll(identityText, "match: amy", `match: "*"`)), folder)
	require.NoError(t, err)
	a, _ := newAuthenticator(t, ids)
	for subject, known := range map[string]bool{"amy": true, "": false, "amy\x00": false, "amy\n": false, "amy\u202e": false, "amy\u2028": false} {
		_, err := a.Gate(t.Context(), connect.Spec{Procedure: govnodev1connect.AccessServiceWhoAmIProcedure}, connect.Peer{},
			bearer(s.token(func(c map[string]any) { c["sub"] = subject })))
		require.Equal(t, known, err == nil, "%q: %v", subject, err)
		if !known {
			require.Equal(t, fault.ReasonUnauthenticated, fault.Of(err).Reason, "%q: %v", subject, err)
		}
	}
}
