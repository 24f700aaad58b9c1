package tokens

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/quota"
	"example.com/govnode/internal/server/record"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A Service answers govnode.v1.AccessService.
type Service struct {
	Store  *order.Store
	Auth   *access.Authenticator
	Quotas *quota.Quotas
	Now    func() time.Time
	// Authority is the fingerprint of who vouches for this node; nil without TLS.
	Authority func() []byte
	// Changed is told of what this node has put in order.
	Changed func(ctx context.Context, c record.Change)
}

// WhoAmI returns as whom the caller is known.
func (s *Service) WhoAmI(ctx context.Context, _ *v1.WhoAmIRequest) (*v1.WhoAmIResponse, error) {
	p := access.From(ctx)
	if p == nil {
		return &v1.WhoAmIResponse{Principal: access.Anonymous, Namespace: input.Namespace(ctx), Roles: access.ListRoles(^session.Roles(0)), Authentication: s.Auth.Required}, nil
	}
	out := &v1.WhoAmIResponse{
		Principal: p.Name, Namespace: p.Namespace, Roles: access.ListRoles(p.Roles), Agents: p.Agents, Policies: p.Policies, Environment: p.Environment,
		Authentication: s.Auth.Required,
	}
	if !p.Expires.IsZero() {
		out.ExpiresAt = p.Expires.UnixMilli()
	}
	return out, nil
}

// CreateToken makes a token known.
func (s *Service) CreateToken(ctx context.Context, req *v1.CreateTokenRequest) (*v1.CreateTokenResponse, error) {
	f := &input.Fields{}
	now := s.Now()
	t := session.Token{
		ID: req.TokenId, Label: req.Label, Roles: rolesIn(f, req.Roles), Agents: patterns(f, "agents", req.Agents), Policies: patterns(f, "policies", req.Policies),
		Made: now.UnixMilli(), By: nameOf(ctx), Environment: req.Environment,
	}
	if bad := access.TokenIDProblem(req.TokenId); bad != "" {
		f.Refuse("tokenId", "%s", bad)
	}
	if len(req.SecretSha256) != len(t.Hash) {
		f.Refuse("secretSha256", "has %d bytes; it is the SHA-256 of the secret, which has 32", len(req.SecretSha256))
	} else {
		t.Hash = session.Digest(req.SecretSha256)
	}
	f.Text("label", req.Label, input.Caps.Reason)
	f.OptionalID("environment", req.Environment)
	if t.Roles&joiner != 0 {
		joins(f, req, &t, now)
	} else if req.ExpiresIn != nil {
		t.Expires = now.Add(f.Duration("expiresIn", req.ExpiresIn, input.Caps.TokenTTL)).UnixMilli()
	}
	if req.Node != "" && t.Roles&joiner == 0 {
		f.Refuse("node", "is said of tokens with the role joiner, which let a node join; leave it out")
	}
	cmd := &session.PutToken{By: f.Maker(req, s.Now), Token: t, Before: max(now.Add(-keepExpired).UnixMilli(), 0)}
	if cmd.NS = s.namespace(ctx, f, req.Namespace, true); f.Err != nil {
		return nil, f.Err
	}
	if cmd.NS == session.ClusterNamespace && t.Roles&^(1<<int(v1.Role_ROLE_OPERATOR)|1<<int(v1.Role_ROLE_AUDITOR)|joiner) != 0 {
		return nil, fault.Invalid("roles", "are more than a token of %s can have: operator and auditor, or joiner alone; for others give the namespace of those who work in it", session.ClusterNamespace)
	}
	if cmd.NS != session.ClusterNamespace && t.Roles&joiner != 0 {
		return nil, fault.Invalid("roles", "joiner is for tokens of %s: nodes join the cluster, and no namespace of it", session.ClusterNamespace)
	}
	if err := within(access.From(ctx), &t, "makes this one"); err != nil {
		return nil, err
	}
	a, err := s.change(ctx, cmd, func(res *session.Result) error {
		if res.Code == session.IDReused && !s.known(ctx, cmd) {
			return order.RequestFailure(cmd.By)(res)
		}
		if res.Code == session.IDReused {
			return fault.OfResult(res, fmt.Sprintf("tokenId %q", t.ID))
		}
		return order.RequestFailure(cmd.By)(res)
	})
	if err != nil {
		return nil, err
	}
	s.tell(ctx, a, record.Change{Event: "token_created", Name: t.ID, NS: cmd.NS, By: cmd.By, Says: strings.Join(roleNames(t.Roles), ",")})
	out := &v1.CreateTokenResponse{Token: tokenOf(&t), Index: a.Index}
	if a.Result.Repeat { // it was made by another clock, and may have been used or revoked since
		found, err := s.Store.Get(ctx, session.AccessKey(cmd.NS), storage.Latest)
		if err != nil {
			return nil, fault.OfRead(err)
		}
		out.Token = nil
		if x, _ := found.Record.(*session.Access); x != nil {
			if is := x.FindToken(t.ID); is != nil {
				out.Token = tokenOf(is)
			}
		}
	}
	if s.Authority != nil {
		out.AuthoritySha256 = s.Authority()
	}
	return out, nil
}

const joiner = session.Roles(1) << int(v1.Role_ROLE_JOINER)

// joins reads what is said of a token that lets a node join. It holds for a short time
// in any case: it lies about in scripts and in the memory of machines that are set up.
func joins(f *input.Fields, req *v1.CreateTokenRequest, t *session.Token, now time.Time) {
	if t.Roles != joiner {
		f.Refuse("roles", "joiner stands alone: such a token lets a node join, and does nothing else")
	}
	if len(req.Agents)+len(req.Policies) > 0 || req.Environment != "" {
		f.Refuse("roles", "joiner has no agents, policies or environment; leave them out")
	}
	f.OptionalID("node", req.Node)
	t.Node = req.Node
	t.Expires = now.Add(f.Duration("expiresIn", req.ExpiresIn, input.Caps.JoinTTL)).UnixMilli()
}

// Use binds the token with which a node is to join to that node. It stands in the log
// before the membership is changed: whatever becomes of that, no other node comes in by
// the token, and the same one may ask again.
func (s *Service) Use(ctx context.Context, node string) error {
	p := access.From(ctx)
	cmd := &session.UseToken{
		NS: session.ClusterNamespace, By: session.Maker{Client: "join"}, ID: p.Token(), Node: node, At: max(s.Now().UnixMilli(), 1),
	}
	a, err := s.change(ctx, cmd, func(res *session.Result) error {
		if res.Code == session.NotFound { // it was revoked meanwhile, or has run out
			return access.ErrUnknown()
		}
		return fault.OfResult(res, "token "+cmd.ID)
	})
	if err != nil {
		return err
	}
	if a.Result.Value == 1 {
		s.tell(ctx, a, record.Change{Event: "token_used", Name: cmd.ID, NS: cmd.NS, By: cmd.By, Says: "node " + node})
	}
	return nil
}

// EndOf ends the tokens by which a node has joined or may join, before it is removed: else
// it could make itself a member again for as long as they hold. One command ends them all.
func (s *Service) EndOf(ctx context.Context, node string) error {
	found, err := s.Store.Get(ctx, session.AccessKey(session.ClusterNamespace), storage.Latest)
	if err != nil {
		return fault.OfRead(err)
	}
	x, _ := found.Record.(*session.Access)
	if x == nil {
		return nil
	}
	var ids []string
	for i := range x.Tokens {
		if t := &x.Tokens[i]; t.Node == node {
			ids = append(ids, t.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	cmd := &session.RevokeToken{NS: session.ClusterNamespace, By: session.Maker{Client: "join"}, Node: node}
	a, err := s.change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil || a.Result.Value == 0 {
		return err
	}
	for _, id := range ids {
		s.tell(ctx, a, record.Change{Event: "token_revoked", Name: id, NS: cmd.NS, By: cmd.By, Says: "node " + node + " is to be removed"})
	}
	return nil
}

// keepExpired is how long a token that has expired is still listed.
const keepExpired = 24 * time.Hour

// known reports whether a token of that id is there.
func (s *Service) known(ctx context.Context, cmd *session.PutToken) bool {
	found, err := s.Store.Get(ctx, session.AccessKey(cmd.NS), storage.Nearby)
	x, _ := found.Record.(*session.Access)
	return err == nil && x.FindToken(cmd.Token.ID) != nil
}

// ListTokens returns the tokens of a namespace. Who is bound is told of those alone that he
// may make and end, and of no subjects.
func (s *Service) ListTokens(ctx context.Context, req *v1.ListTokensRequest) (*v1.ListTokensResponse, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, req.Consistency)
	ns := s.namespace(ctx, f, req.Namespace, false)
	if f.Err != nil {
		return nil, f.Err
	}
	found, err := s.Store.Get(ctx, session.AccessKey(ns), read)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	out := &v1.ListTokensResponse{AppliedIndex: found.Index, Epoch: session.EpochOf(found.Record)}
	if x, _ := found.Record.(*session.Access); x != nil {
		p := access.From(ctx)
		for i := range x.Tokens {
			if within(p, &x.Tokens[i], "lists it") == nil {
				out.Tokens = append(out.Tokens, tokenOf(&x.Tokens[i]))
			}
		}
		if bound(p) {
			return out, nil
		}
		for _, d := range x.Denied {
			out.Denied = append(out.Denied, &v1.DeniedSubject{Subject: d.Subject, Reason: d.Reason, DeniedAt: d.At})
		}
	}
	return out, nil
}

// chained are the kinds of records that have chains.
var chained = []byte{session.KindSession, session.KindClient} // that of the namespace comes first

// ListChains returns the heads of chains, kind by kind. The page token is the kind and the
// name of the last record that was looked at. They are of a whole namespace: with a part
// of them whoever verifies an audit would accuse it of what he may not see.
func (s *Service) ListChains(ctx context.Context, req *v1.ListChainsRequest) (*v1.ListChainsResponse, error) {
	if access.From(ctx).Bound() {
		return nil, access.Denied("the heads are those of all chains of a namespace, and this token is bound to some agents or policies; use a token of an auditor or an operator that is bound to none")
	}
	f := &input.Fields{}
	page := order.PageOf(f, req.PageSize, "")
	f.Text("pageToken", req.PageToken, input.Bound{Max: input.Caps.CounterKey.Max + 1})
	ns := s.namespace(ctx, f, req.Namespace, false)
	if f.Err != nil {
		return nil, f.Err
	}
	kind, after := chained[0], ""
	if req.PageToken != "" {
		if kind, after = req.PageToken[0], req.PageToken[1:]; !slices.Contains(chained, kind) {
			f.Refuse("pageToken", "%q is none that this method gave", req.PageToken)
			return nil, f.Err
		}
	}
	out := &v1.ListChainsResponse{At: s.Now().UnixMilli()}
	view, err := s.Store.View(ctx, ns, storage.Latest)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	out.AppliedIndex = view.Index
	found, err := s.Store.Get(ctx, session.NamespaceKey(ns), storage.Latest) // over a Redis nothing else is as recent as the view
	if err != nil {
		return nil, fault.OfRead(err)
	}
	out.Generation = found.Generation
	if req.PageToken == "" && session.ChainOfRecord(found.Record) != nil {
		out.Chains = append(out.Chains, chainOf(session.NamespaceKey(ns), found.Record))
	}
	if len(out.Chains) >= page.Size { // a page of one has room for no other
		out.NextPageToken = string(kind)
		return out, nil
	}
	for i := slices.Index(chained, kind); i < len(chained); i++ {
		prefix := session.Prefix(chained[i], ns)
		from := prefix + session.Key(after)
		after = ""
		found, err := view.Find(prefix, from, page.Size-len(out.Chains), func(_ session.Key, r session.Record) bool { return session.ChainOfRecord(r) != nil })
		if err != nil {
			return nil, fault.OfRead(err)
		}
		for _, e := range found {
			out.Chains = append(out.Chains, chainOf(e.Key, e.Record))
		}
		if len(out.Chains) >= page.Size {
			out.NextPageToken = string(chained[i]) + found[len(found)-1].Key.Name()
			return out, nil
		}
	}
	return out, nil
}

func chainOf(k session.Key, r session.Record) *v1.Chain {
	c := session.ChainOfRecord(r)
	return &v1.Chain{Key: string(k), Links: c.N, Generation: c.Generation, Head: c.Head[:]}
}

// RevokeToken ends a token.
func (s *Service) RevokeToken(ctx context.Context, req *v1.RevokeTokenRequest) (*v1.RevokeTokenResponse, error) {
	f := &input.Fields{}
	if bad := access.TokenIDProblem(req.TokenId); bad != "" {
		f.Refuse("tokenId", "%s", bad)
	}
	cmd := &session.RevokeToken{By: f.Maker(req, s.Now), ID: req.TokenId}
	if cmd.NS = s.namespace(ctx, f, req.Namespace, true); f.Err != nil {
		return nil, f.Err
	}
	if err := s.mayRevoke(ctx, cmd); err != nil {
		return nil, err
	}
	a, err := s.change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	if a.Result.Value > 0 {
		s.tell(ctx, a, record.Change{Event: "token_revoked", Name: cmd.ID, NS: cmd.NS, By: cmd.By})
	}
	return &v1.RevokeTokenResponse{Revoked: a.Result.Value == 1, Index: a.Index}, nil
}

// DenySubject keeps a subject out of a namespace.
func (s *Service) DenySubject(ctx context.Context, req *v1.DenySubjectRequest) (*v1.DenySubjectResponse, error) {
	if err := ofSubjects(ctx); err != nil {
		return nil, err
	}
	f := &input.Fields{}
	cmd := &session.Deny{By: f.Maker(req, s.Now), Denied: session.DeniedSubject{Subject: req.Subject, Reason: req.Reason, At: s.Now().UnixMilli()}}
	access.SubjectIn(f, "subject", req.Subject)
	f.Text("reason", req.Reason, input.Caps.Reason)
	if cmd.NS = s.namespace(ctx, f, req.Namespace, true); f.Err != nil {
		return nil, f.Err
	}
	a, err := s.change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	if a.Result.Value > 0 {
		s.tell(ctx, a, record.Change{Event: "subject_denied", Name: req.Subject, NS: cmd.NS, By: cmd.By, Says: req.Reason})
	}
	return &v1.DenySubjectResponse{Index: a.Index}, nil
}

// AllowSubject takes DenySubject back.
func (s *Service) AllowSubject(ctx context.Context, req *v1.AllowSubjectRequest) (*v1.AllowSubjectResponse, error) {
	if err := ofSubjects(ctx); err != nil {
		return nil, err
	}
	f := &input.Fields{}
	cmd := &session.Allow{By: f.Maker(req, s.Now), Subject: req.Subject}
	access.SubjectIn(f, "subject", req.Subject)
	if cmd.NS = s.namespace(ctx, f, req.Namespace, true); f.Err != nil {
		return nil, f.Err
	}
	a, err := s.change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	if a.Result.Value > 0 {
		s.tell(ctx, a, record.Change{Event: "subject_allowed", Name: req.Subject, NS: cmd.NS, By: cmd.By})
	}
	return &v1.AllowSubjectResponse{Allowed: a.Result.Value == 1, Index: a.Index}, nil
}

// PutQuotas sets the quotas of a namespace.
func (s *Service) PutQuotas(ctx context.Context, req *v1.PutQuotasRequest) (*v1.PutQuotasResponse, error) {
	f := &input.Fields{}
	cmd := &session.PutQuotas{By: f.Maker(req, s.Now), Quotas: quotasIn(f, req.Quotas)}
	if req.Namespace == "" {
		f.Refuse("namespace", "is required; say whose quotas these are")
	}
	if cmd.NS = s.namespace(ctx, f, req.Namespace, true); f.Err != nil {
		return nil, f.Err
	}
	if cmd.NS == session.ClusterNamespace {
		return nil, fault.Invalid("namespace", "%s has no quotas", session.ClusterNamespace)
	}
	a, err := s.change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	s.tell(ctx, a, record.Change{Event: "quotas_put", NS: cmd.NS, By: cmd.By})
	return &v1.PutQuotasResponse{Quotas: quotasOf(cmd.Quotas), Index: a.Index}, nil
}

// GetQuotas returns the quotas of a namespace.
func (s *Service) GetQuotas(ctx context.Context, req *v1.GetQuotasRequest) (*v1.GetQuotasResponse, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, req.Consistency)
	ns := s.namespace(ctx, f, req.Namespace, false)
	if f.Err != nil {
		return nil, f.Err
	}
	found, err := s.Store.Get(ctx, session.AccessKey(ns), read)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	out := &v1.GetQuotasResponse{Quotas: &v1.Quotas{}, AppliedIndex: found.Index}
	if x, _ := found.Record.(*session.Access); x != nil {
		out.Quotas = quotasOf(x.Quotas)
	}
	out.Used = quotasOf(s.Quotas.Used(ctx, ns))
	return out, nil
}

// namespace is the one that a request is about. One that is not the caller's is for
// operators of the cluster; they are looked at anew before a change, since its command
// is judged by the epoch of the other namespace alone.
func (s *Service) namespace(ctx context.Context, f *input.Fields, named string, changes bool) string {
	p, own := access.From(ctx), input.Namespace(ctx)
	if f.Err != nil {
		return ""
	}
	switch {
	case named == "" || named == own:
		return own
	case named != session.ClusterNamespace && input.NamespaceProblem(named) != "":
		f.Refuse("namespace", "%s", input.NamespaceProblem(named))
	case p != nil && p.Namespace != session.ClusterNamespace:
		f.Err = access.Denied("namespace: %q is not that of the token; its own operators, and those of the cluster, say who may do what there", named)
	case p != nil && changes:
		_, f.Err = s.Auth.AsOfNow(ctx, p)
	}
	return named
}

func (s *Service) change(ctx context.Context, cmd session.Command, refused func(*session.Result) error) (storage.Answer, error) {
	return s.Store.Change(ctx, cmd, refused)
}

func (s *Service) tell(ctx context.Context, a storage.Answer, c record.Change) {
	if a.First() {
		s.Changed(ctx, c)
	}
}

func nameOf(ctx context.Context) string {
	if p := access.From(ctx); p != nil {
		return p.Name
	}
	return access.Anonymous
}

func rolesIn(f *input.Fields, roles []v1.Role) session.Roles {
	for i, r := range roles {
		if _, ok := v1.Role_name[int32(r)]; !ok || r == v1.Role_ROLE_UNSPECIFIED {
			f.Refuse(fmt.Sprintf("roles[%d]", i), "is no role; use %s", strings.Join(roleNames(^session.Roles(0)), ", "))
			return 0
		}
	}
	if len(roles) == 0 {
		f.Refuse("roles", "is required; use some of %s", strings.Join(roleNames(^session.Roles(0)), ", "))
	}
	return access.RolesOf(roles)
}

func roleNames(set session.Roles) (names []string) {
	for _, r := range access.ListRoles(set) {
		names = append(names, access.RoleName(r))
	}
	return names
}

func patterns(f *input.Fields, field string, all []string) []string {
	f.Count(field, len(all), input.Caps.Patterns)
	for i, p := range all {
		at := fmt.Sprintf("%s[%d]", field, i)
		f.Text(at, p, input.Caps.ID)
		if bad := access.PatternProblem(p); bad != "" {
			f.Refuse(at, "%s", bad)
		}
	}
	return slices.Clone(all)
}

func tokenOf(t *session.Token) *v1.Token {
	return &v1.Token{
		TokenId: t.ID, Label: t.Label, Roles: access.ListRoles(t.Roles), Agents: t.Agents, Policies: t.Policies,
		ExpiresAt: t.Expires, CreatedAt: t.Made, CreatedBy: t.By, Environment: t.Environment, Node: t.Node, UsedAt: t.Used,
	}
}

func quotasIn(f *input.Fields, q *v1.Quotas) session.Quotas {
	n := func(field string, v int64) int64 { return f.Number("quotas."+field, v, input.Caps.Quota) }
	return session.Quotas{
		Sessions: n("sessions", q.GetSessions()), Clients: n("clients", q.GetClients()), Pools: n("pools", q.GetPools()),
		Policies: n("policies", q.GetPolicies()), Keys: n("keys", q.GetKeys()), Bytes: n("bytes", q.GetBytes()), Waiters: n("waiters", q.GetWaiters()),
		Followers: n("followers", q.GetFollowers()), Streams: n("streams", q.GetStreams()), Operations: n("operationsPerSecond", q.GetOperationsPerSecond()),
	}
}

func quotasOf(q session.Quotas) *v1.Quotas {
	return &v1.Quotas{
		Sessions: q.Sessions, Clients: q.Clients, Pools: q.Pools, Policies: q.Policies, Keys: q.Keys, Bytes: q.Bytes,
		Waiters: q.Waiters, Followers: q.Followers, Streams: q.Streams, OperationsPerSecond: q.Operations,
	}
}
