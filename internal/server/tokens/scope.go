package tokens

import (
	"context"
	"slices"
	"strings"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// What an operator who is bound may do about others: nothing that reaches beyond what he
// is bound to.

// within refuses a token that is bound to less than who makes or ends it: he could take
// what is not his by making himself another one, and take from others what is theirs. A
// pattern is within those that have it, and a name without wildcards within those that it
// matches.
func within(p *access.Principal, t *session.Token, does string) error {
	if p == nil {
		return nil
	}
	for _, x := range []struct {
		field       string
		other, have []string
		holds       func(name string) bool
	}{{"agents", t.Agents, p.Agents, p.Sees}, {"policies", t.Policies, p.Policies, p.MayPin}} {
		beyond := func(pattern string) bool {
			return !slices.Contains(x.have, pattern) && (strings.ContainsAny(pattern, `*?[\`) || !x.holds(pattern))
		}
		if len(x.have) > 0 && (len(x.other) == 0 || slices.ContainsFunc(x.other, beyond)) {
			return access.Denied("%s: the token that %s is bound to %s, and this one to more; it may have some of these", x.field, does, strings.Join(x.have, ", "))
		}
	}
	if p.Environment != "" && t.Environment != p.Environment {
		return access.Denied("environment: the token that %s is bound to %s, and this one is not", does, p.Environment)
	}
	return nil
}

// mayRevoke refuses to end a token that is not within who ends it. One that is not there
// is nobody's.
func (s *Service) mayRevoke(ctx context.Context, cmd *session.RevokeToken) error {
	p := access.From(ctx)
	if !bound(p) {
		return nil
	}
	found, err := s.Store.Get(ctx, session.AccessKey(cmd.NS), storage.Latest)
	if err != nil {
		return fault.OfRead(err)
	}
	x, _ := found.Record.(*session.Access)
	if t := x.FindToken(cmd.ID); t != nil {
		return within(p, t, "revokes it")
	}
	return nil
}

// ofSubjects refuses who is bound to say which subjects are kept out: what somebody with a
// certificate or a JWT reaches does not stand in the state.
func ofSubjects(ctx context.Context) error {
	if bound(access.From(ctx)) {
		return access.Denied("who has a certificate or a JWT may reach more than this token, which is bound; use a token of an operator that is bound to nothing")
	}
	return nil
}

func bound(p *access.Principal) bool { return p.Bound() || p != nil && p.Environment != "" }
