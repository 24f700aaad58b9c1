package access

import (
	"bytes"
	"context"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"go.yaml.in/yaml/v3"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Identities map certificates and JWTs to principals. They stand in a file, the same on
// all nodes, and do not change while a node runs.
type Identities struct {
	certificates []grant
	issuers      map[string]*issuer
	now          func() time.Time
}

// A grant is what a subject may do whose name has a pattern.
type grant struct {
	Match     string            `yaml:"match"`  // pattern of the name of a certificate, or of the subject of a JWT
	Claims    map[string]string `yaml:"claims"` // that a JWT must have, beside
	Namespace string            `yaml:"namespace"`
	Roles     []string          `yaml:"roles"`
	Agents    []string          `yaml:"agents"`
	Policies  []string          `yaml:"policies"`

	roles session.Roles
}

type issuer struct {
	Name     string  `yaml:"name"` // stands before its subjects, which those of another may be like
	Issuer   string  `yaml:"issuer"`
	Audience string  `yaml:"audience"`
	JWKS     string  `yaml:"jwks"` // file or URL of its keys; found by the issuer's discovery document if empty
	Subjects []grant `yaml:"subjects"`

	mu   sync.Mutex
	keys *discovery // the latest; nil before the first
}

type identityFile struct {
	Certificates []grant   `yaml:"certificates"`
	Issuers      []*issuer `yaml:"issuers"`
}

var issuerName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// maxIdentities bounds the file.
const maxIdentities = 1 << 20

// LoadIdentities reads a file of identities.
func LoadIdentities(file string) (*Identities, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxIdentities+1))
	if err == nil && len(text) > maxIdentities {
		err = fmt.Errorf("has more than %d bytes", maxIdentities)
	}
	var ids *Identities
	if err == nil {
		ids, err = ParseIdentities(text, filepath.Dir(file))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return ids, nil
}

// ParseIdentities reads what such a file holds; files of keys stand beside it.
func ParseIdentities(text []byte, folder string) (*Identities, error) {
	var file identityFile
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	ids := &Identities{certificates: file.Certificates, issuers: map[string]*issuer{}, now: time.Now}
	for i := range ids.certificates {
		if err := ids.certificates[i].check(); err != nil {
			return nil, fmt.Errorf("certificates[%d]: %w", i, err)
		}
		if len(ids.certificates[i].Claims) > 0 {
			return nil, fmt.Errorf("certificates[%d].claims: a certificate has none; leave them out", i)
		}
	}
	names := map[string]bool{}
	for i, x := range file.Issuers {
		at := fmt.Sprintf("issuers[%d]", i)
		switch {
		case x == nil || !strings.HasPrefix(x.Issuer, "https://"):
			return nil, fmt.Errorf("%s.issuer: must be the https URL that stands in its tokens as iss", at)
		case x.Audience == "":
			return nil, fmt.Errorf("%s.audience: is missing; say which aud of tokens is meant for this service", at)
		case ids.issuers[x.Issuer] != nil:
			return nil, fmt.Errorf("%s.issuer: %s stands twice", at, x.Issuer)
		case x.Name == "" && len(file.Issuers) > 1:
			return nil, fmt.Errorf("%s.name: is missing; where there are several issuers each needs one, since two may have the same subject", at)
		case x.Name != "" && !issuerName.MatchString(x.Name):
			return nil, fmt.Errorf("%s.name: %q must be 1 to 32 of a-z, 0-9 and -", at, x.Name)
		case names[x.Name]:
			return nil, fmt.Errorf("%s.name: %s stands twice", at, x.Name)
		case len(x.Subjects) == 0:
			return nil, fmt.Errorf("%s.subjects: is missing; say who may do what", at)
		}
		for j := range x.Subjects {
			if err := x.Subjects[j].check(); err != nil {
				return nil, fmt.Errorf("%s.subjects[%d]: %w", at, j, err)
			}
		}
		if err := x.open(folder); err != nil {
			return nil, fmt.Errorf("%s.jwks: %w", at, err)
		}
		ids.issuers[x.Issuer], names[x.Name] = x, true
	}
	return ids, nil
}

func (g *grant) check() error {
	if g.Match == "" {
		return errors.New("match: is missing; say whose names are meant, as * and ? of shells")
	}
	if bad := PatternProblem(g.Match); bad != "" {
		return fmt.Errorf("match: %s", bad)
	}
	if bad := input.NamespaceProblem(g.Namespace); bad != "" && g.Namespace != session.ClusterNamespace {
		return fmt.Errorf("namespace: %s", bad)
	}
	for _, name := range g.Roles {
		n := v1.Role_value["ROLE_"+strings.ReplaceAll(strings.ToUpper(name), "-", "_")]
		if n == 0 {
			return fmt.Errorf("roles: %q is none; use agent, orchestrator, approver, policy-author, auditor or operator", name)
		}
		g.roles |= 1 << n
	}
	if g.roles&joiner != 0 {
		return errors.New("roles: joiner is for tokens alone, which end with their first use; make one with govnode token create --join")
	}
	if g.roles == 0 {
		return errors.New("roles: is missing; say what they may do")
	}
	for _, p := range append(append([]string{}, g.Agents...), g.Policies...) {
		if bad := PatternProblem(p); bad != "" {
			return fmt.Errorf("%q %s", p, bad)
		}
	}
	return nil
}

// principal is who a subject is by this grant.
func (g *grant) principal(kind, name string) Principal {
	return Principal{
		Name: kind + ":" + name, Namespace: g.Namespace, Roles: g.roles, Agents: g.Agents, Policies: g.Policies,
		denials: []string{kind + ":" + name},
	}
}

// OfCertificate is the principal of a client's certificate; nil if it is mapped to none.
func (x *Identities) OfCertificate(name string, expires time.Time) *Principal {
	if x == nil {
		return nil
	}
	for i := range x.certificates {
		if g := &x.certificates[i]; matchesAny([]string{g.Match}, name) {
			p := g.principal("cert", name)
			p.Expires = expires
			return &p
		}
	}
	return nil
}

// config takes every algorithm with a public key, and no other.
func (s *issuer) config() *oidc.Config {
	return &oidc.Config{ClientID: s.Audience, SupportedSigningAlgs: []string{
		oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA,
	}}
}

// open prepares the verification of an issuer's tokens. Without a file or a URL of its
// keys the discovery document is asked for with the first token.
func (s *issuer) open(folder string) error {
	config := s.config()
	switch {
	case s.JWKS == "":
		return nil
	case strings.HasPrefix(s.JWKS, "https://"):
		s.keys = known(oidc.NewVerifier(s.Issuer, oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), s.client()), s.JWKS), config))
		return nil
	}
	file := s.JWKS
	if !filepath.IsAbs(file) {
		file = filepath.Join(folder, file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(text, &set); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	var keys []crypto.PublicKey
	for _, k := range set.Keys {
		if !k.IsPublic() {
			return fmt.Errorf("%s: holds a private key; give public ones alone", file)
		}
		keys = append(keys, k.Key)
	}
	if len(keys) == 0 {
		return fmt.Errorf("%s: holds no key", file)
	}
	s.keys = known(oidc.NewVerifier(s.Issuer, &oidc.StaticKeySet{PublicKeys: keys}, config))
	return nil
}

const (
	// issuerIn is how long an issuer may take for an answer: who waits for it can do
	// nothing else, and nobody but the issuer can end that.
	issuerIn = 5 * time.Second
	// keysEvery is how often its keys are asked for at most. A JWT that names a key
	// which is not known is a question to the issuer, and anybody can send one.
	keysEvery = time.Second
)

// client is how an issuer is asked.
func (s *issuer) client() *http.Client {
	return &http.Client{Timeout: issuerIn, Transport: &paced{asked: map[string]asked{}}}
}

// A paced transport asks for the same URL only so often.
type paced struct {
	mu    sync.Mutex
	asked map[string]asked
}

type asked struct {
	at   time.Time
	good bool // there was an answer
}

// errFresh is why what has come just now is not asked for.
var errFresh = errors.New("it has answered just now")

// RoundTrip implements http.RoundTripper.
func (p *paced) RoundTrip(r *http.Request) (*http.Response, error) {
	url, now := r.URL.String(), time.Now()
	p.mu.Lock()
	last, before := p.asked[url]
	soon := before && now.Sub(last.at) < keysEvery
	if !soon {
		p.asked[url] = asked{at: now}
	}
	p.mu.Unlock()
	switch {
	case soon && last.good:
		return nil, errFresh
	case soon:
		return nil, errors.New("it was asked just now")
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && res.StatusCode == http.StatusOK {
		err = tellsOfKeys(res)
	}
	p.mu.Lock()
	p.asked[url] = asked{now, err == nil && res.StatusCode == http.StatusOK}
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return res, nil
}

// maxKeys bounds what an issuer says.
const maxKeys = 1 << 20

// tellsOfKeys reads an answer and reports what is wrong with one that has no key, nor says
// where they are: it would take the place of those that are known, and nobody would be let
// in, though it is an error of the issuer that it has said with status 200.
func tellsOfKeys(res *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(res.Body, maxKeys+1))
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return err
	}
	if len(text) > maxKeys {
		return fmt.Errorf("it has answered more than %d bytes", maxKeys)
	}
	res.Body = io.NopCloser(bytes.NewReader(text))
	var answer struct {
		Where string `json:"jwks_uri"`
		jose.JSONWebKeySet
	}
	if json.Unmarshal(text, &answer) == nil && answer.Where == "" && len(answer.Keys) == 0 {
		return errors.New("it has answered without a key")
	}
	return nil // what cannot be read is refused by who asked
}

// discoverEvery is for how long an issuer is not asked that did not answer.
const discoverEvery = 5 * time.Second

// A discovery asks an issuer what its keys are, once for all who wait for that. It is
// nobody's request: however long the issuer takes, each waits for as long as he likes.
type discovery struct {
	done     chan struct{} // closed behind the rest
	verifier *oidc.IDTokenVerifier
	err      error
	ended    time.Time
}

// known is the end of a discovery of which nobody needs to be asked.
func known(v *oidc.IDTokenVerifier) *discovery {
	d := &discovery{done: make(chan struct{}), verifier: v}
	close(d.done)
	return d
}

// spent reports whether it was in vain, so long ago that another one may be.
func (d *discovery) spent() bool {
	select {
	case <-d.done:
		return d.err != nil && time.Since(d.ended) > discoverEvery
	default:
		return false
	}
}

func (s *issuer) discover(d *discovery) {
	p, err := oidc.NewProvider(oidc.ClientContext(context.Background(), s.client()), s.Issuer)
	if err == nil {
		d.verifier = p.Verifier(s.config())
	}
	d.err, d.ended = err, time.Now()
	close(d.done)
}

func (s *issuer) verify(ctx context.Context, raw string) (*oidc.IDToken, error) {
	s.mu.Lock()
	if s.keys == nil || s.keys.spent() {
		s.keys = &discovery{done: make(chan struct{})}
		go s.discover(s.keys)
	}
	d := s.keys
	s.mu.Unlock()
	select {
	case <-d.done:
	case <-ctx.Done():
		return nil, fault.OfRead(context.Cause(ctx))
	}
	if d.err != nil {
		return nil, fault.NotApplied("the issuer " + s.Issuer + " does not say what its keys are: " + d.err.Error())
	}
	t, err := d.verifier.Verify(ctx, raw)
	if err != nil && strings.HasSuffix(err.Error(), errFresh.Error()) { // since the verifier looked at what it has
		t, err = d.verifier.Verify(ctx, raw)
	}
	if why, ok := unfetched(err); ok {
		return nil, fault.NotApplied("the keys of the issuer " + s.Issuer + " are not there: " + why)
	}
	return t, err
}

// unfetched reports whether a JWT was not verified because there were no keys to do that
// with. The verifier says what was wrong by its texts alone. Where the keys have come just
// now and none of them fits, it is the JWT that is wrong.
func unfetched(err error) (why string, ok bool) {
	if err == nil || strings.HasSuffix(err.Error(), errFresh.Error()) {
		return "", false
	}
	return strings.CutPrefix(err.Error(), "failed to verify signature: fetching keys ")
}

// OfJWT is the principal of a JWT.
func (x *Identities) OfJWT(ctx context.Context, raw string) (*Principal, error) {
	s := x.issuers[issuerOf(raw)]
	if s == nil {
		return nil, ErrUnknown()
	}
	t, err := s.verify(ctx, raw)
	var said *fault.Error
	switch {
	case errors.As(err, &said):
		return nil, said
	case err != nil:
		return nil, ErrUnknown() // which of it is wrong is nobody's business
	}
	var claims map[string]any
	if err := t.Claims(&claims); err != nil {
		return nil, ErrUnknown()
	}
	for i := range s.Subjects {
		g := &s.Subjects[i]
		if !matchesAny([]string{g.Match}, t.Subject) || !g.claimed(claims) {
			continue
		}
		p := g.principal(strings.TrimSuffix("jwt:"+s.Name, ":"), t.Subject)
		p.Expires = t.Expiry
		f := &input.Fields{}
		if SubjectIn(f, "sub", p.Name); f.Err != nil || t.Subject == "" { // who cannot be denied is not let in
			return nil, ErrUnknown()
		}
		if id, ok := claims["jti"].(string); ok && id != "" {
			p.denials = append(p.denials, "jti:"+id)
		}
		return &p, nil
	}
	return nil, ErrUnknown()
}

func (g *grant) claimed(claims map[string]any) bool {
	for name, want := range g.Claims {
		if have, ok := claims[name].(string); !ok || have != want {
			return false
		}
	}
	return true
}

// issuerOf is what a JWT says of its issuer, before anything of it is verified.
func issuerOf(raw string) string {
	parts := strings.Split(raw, ".")
	if len(parts) != 3 {
		return ""
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(text, &claims) != nil {
		return ""
	}
	return claims.Issuer
}

// maxJWT is how long a JWT may be: headers of a request have 16 KiB together.
const maxJWT = 12 << 10

// jwt finds the principal of a JWT, and keeps it until it expires or its namespace's
// record changes.
func (a *Authenticator) jwt(ctx context.Context, text string, sum [32]byte) (*Principal, error) {
	if a.Identities == nil || len(text) > maxJWT {
		return nil, ErrUnknown()
	}
	p, err := a.Identities.OfJWT(ctx, text)
	if err != nil {
		return nil, err
	}
	found, err := a.Store.Get(ctx, session.AccessKey(p.Namespace), storage.Nearby)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	if p, err = a.under(p, found.Record); err != nil {
		return nil, err
	}
	a.keep(sum, p)
	return p, nil
}

// WithCertificate marks a request by the certificate of its connection: of a client, or
// of another node, which asks for what a caller of its own wants to see.
func (a *Authenticator) WithCertificate(ctx context.Context, name string, node bool, expires time.Time) context.Context {
	if node {
		return context.WithValue(ctx, channelKey{}, &Principal{Name: "node:" + name, Roles: 1 << auditorRole, Expires: expires})
	}
	if p := a.Identities.OfCertificate(name, expires); p != nil {
		return context.WithValue(ctx, channelKey{}, p)
	}
	return ctx
}
