package access

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// Anonymous is who calls where nobody is asked.
const Anonymous = "anonymous"

// subjectKinds begin the names of subjects that can be denied.
var subjectKinds = []string{"cert", "jwt", "jti"}

// SubjectIn checks the name of a subject that is to be denied.
func SubjectIn(f *input.Fields, field, subject string) {
	f.Text(field, subject, input.Caps.Subject)
	kind, name, _ := strings.Cut(subject, ":")
	if !slices.Contains(subjectKinds, kind) || name == "" {
		f.Refuse(field, "is no subject that can be denied; give cert:NAME, jwt:SUBJECT or jti:ID. A token is revoked with RevokeToken")
	}
}

// A Principal is a caller as the node knows him. It is immutable.
type Principal struct {
	Name        string // token:ID, cert:NAME, jwt:SUBJECT, local:UID, node:ID
	Namespace   string
	Roles       session.Roles
	Agents      []string  // patterns; all if there are none
	Policies    []string  // patterns; all if there are none
	Environment string    // of rulesets
	Expires     time.Time // zero: never
	Node        string    // that he may let join, with a token for that; empty: any yet

	token     string         // id of the token; empty of others
	hash      session.Digest // of its secret
	denials   []string       // subjects whose denial keeps him out
	record    session.Record // of his namespace, by which he was judged
	authority *session.Authority
}

// String is the name of a principal; empty where nobody is asked.
func (p *Principal) String() string {
	if p == nil {
		return ""
	}
	return p.Name
}

// judgedBy is the principal under a record of its namespace.
func (p Principal) judgedBy(record session.Record) *Principal {
	p.record = record
	p.authority = &session.Authority{Principal: session.PrincipalOf(p.Namespace, p.Name), Epoch: session.EpochOf(record)}
	return &p
}

// always reports whether no record keeps him out: he has no token, no name that can be
// denied, and no end.
func (p *Principal) always() bool {
	return p.token == "" && len(p.denials) == 0 && p.Expires.IsZero()
}

// mayTheSame reports whether two principals of one name may do the same, so that what
// was checked of one holds for the other.
func (p *Principal) mayTheSame(o *Principal) bool {
	return p.Roles == o.Roles && p.Environment == o.Environment && slices.Equal(p.Agents, o.Agents) && slices.Equal(p.Policies, o.Policies)
}

// Authority is what a command in a namespace carries of him: nil where he is not
// judged by that namespace, and of nobody.
func (p *Principal) Authority(ns string) *session.Authority {
	if p == nil || p.Namespace != ns {
		return nil
	}
	return p.authority
}

// Behalf is what commands carry by which a node keeps what he waits for, or gives it
// up.
func (p *Principal) Behalf() *session.Authority {
	return &session.Authority{Principal: p.authority.Principal, Behalf: true}
}

// Expired reports whether what he showed holds no more.
func (p *Principal) Expired(now time.Time) bool {
	return p != nil && !p.Expires.IsZero() && !now.Before(p.Expires)
}

// Scoped reports whether he sees a part of his namespace alone.
func (p *Principal) Scoped() bool { return p != nil && len(p.Agents) > 0 }

// Bound reports whether what he may do is bound to some agents or policies.
func (p *Principal) Bound() bool { return p != nil && len(p.Agents)+len(p.Policies) > 0 }

// Sees reports whether what is an agent's is there for him.
func (p *Principal) Sees(agent string) bool {
	return p == nil || len(p.Agents) == 0 || matchesAny(p.Agents, agent)
}

// MayPin reports whether he may open sessions under a policy. One that is named by
// its digest has no name that could be held to his patterns.
func (p *Principal) MayPin(policy string) bool {
	return p == nil || len(p.Policies) == 0 || policy != "" && matchesAny(p.Policies, policy)
}

// What Edictum has of an environment is named so, with the environment and a slash behind it.
const (
	Rulesets   = "edictum/"           // policies
	Signatures = "edictum/signature/" // keys of values
)

// InEnvironment reports whether what has a name is of no other environment than the one
// that he is bound to.
func (p *Principal) InEnvironment(prefix, name string) bool {
	of, is := strings.CutPrefix(name, prefix)
	return p == nil || p.Environment == "" || !is || strings.HasPrefix(of, p.Environment+"/")
}

// joiner is the whole set of roles of a token that lets a node join.
const joiner = session.Roles(1) << int(v1.Role_ROLE_JOINER)

// Joins reports whether he has a token that lets one node join and does nothing else.
func (p *Principal) Joins() bool { return p != nil && p.Roles == joiner }

// Token is the id of the token that he has shown; empty if that was none.
func (p *Principal) Token() string { return p.token }

// Is reports whether he has one of some roles.
func (p *Principal) Is(roles ...v1.Role) bool {
	return p == nil || slices.ContainsFunc(roles, func(r v1.Role) bool { return p.Roles.Has(int(r)) })
}

// matchesAny holds a name to patterns of shells. None matches a slash by * in them,
// but names have those rarely, and who writes team/* means it.
func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}

// PatternProblem says what is wrong with a pattern, or nothing.
func PatternProblem(pattern string) string {
	if _, err := path.Match(pattern, ""); err != nil {
		return "is no pattern; use * and ? and [a-z], and \\ before one that is meant as it stands"
	}
	return ""
}

// Visible reports whether a record is there for a principal. What is not is answered
// like what is absent.
func (p *Principal) Visible(r session.Record) bool {
	if !p.Scoped() {
		return true
	}
	switch x := r.(type) {
	case *session.Session:
		return x == nil || p.Sees(x.Agent.Value())
	case *session.Approval:
		return x == nil || p.Sees(x.Agent)
	case *session.Standing:
		return x == nil || x.Of.Scope != session.OfAgent || p.Sees(x.Of.Name)
	}
	return true
}

type principalKey struct{}

// Key is under which a context has its principal, for contexts that stand in front.
type Key = principalKey

// With gives a context a principal.
func With(ctx context.Context, p *Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// From returns the principal of a request; nil where nobody is asked.
func From(ctx context.Context) *Principal {
	p, _ := ctx.Value(principalKey{}).(*Principal)
	return p
}

// RolesOf makes a set of the roles of a message.
func RolesOf(roles []v1.Role) (set session.Roles) {
	for _, r := range roles {
		set |= 1 << r
	}
	return set
}

// ListRoles lists a set, by their numbers.
func ListRoles(set session.Roles) (roles []v1.Role) {
	for n := range v1.Role_name {
		if n > 0 && set.Has(int(n)) {
			roles = append(roles, v1.Role(n))
		}
	}
	slices.Sort(roles)
	return roles
}

// Authorize has a command carry who asked for it. A command that nobody can ask for is
// left as it is.
func Authorize(p *Principal, cmd session.Command) {
	if p == nil {
		return
	}
	if c, ok := cmd.(interface{ Authorize(*session.Authority) }); ok {
		c.Authorize(p.Authority(cmd.Namespace()))
	}
}
