package model

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"example.com/govnode/session"
)

// Who may do what: tokens, denied subjects, quotas, and the epoch of them.

type access struct {
	epoch  uint64
	tokens map[string]session.Token
	denied map[string]session.DeniedSubject
	quotas session.Quotas
	key    session.Digest
}

func (s *space) mayDo() *access {
	if s.access == nil {
		s.access = &access{tokens: map[string]session.Token{}, denied: map[string]session.DeniedSubject{}}
	}
	return s.access
}

// raise begins another epoch, above all of the generations before.
func (s *space) raise() { s.access.epoch = max(s.access.epoch, s.Generation<<32) + 1 }

// judgedNow reports whether a command was judged by what holds now.
func (m *Model) judgedNow(c session.Command) bool {
	a := c.Authority()
	return a == nil || a.Behalf || a.Epoch == m.epochOf(c.Namespace())
}

func (m *Model) epochOf(ns string) uint64 {
	if x := m.space(ns).access; x != nil {
		return x.epoch
	}
	return 0
}

func (s *space) putToken(c *session.PutToken, r *session.Result) bool {
	x := s.access
	left := map[string]session.Token{}
	if x != nil {
		for id, t := range x.tokens {
			if t.Expires == 0 || t.Expires > c.Before {
				left[id] = t
			}
		}
	}
	if _, there := left[c.Token.ID]; there {
		r.Code = session.IDReused
		return false
	}
	bytes := weightOf(c.Token)
	for _, t := range left {
		bytes += weightOf(t)
	}
	if len(left) >= 4096 || bytes > 4<<20 {
		r.Code, r.Limit = session.TooManyTokens, 4096
		return false
	}
	left[c.Token.ID] = c.Token
	x = s.mayDo()
	x.tokens = left
	s.raise()
	return true
}

// weightOf is what a token counts for of the room that all tokens of a namespace have.
func weightOf(t session.Token) int {
	n := 128 + len(t.ID) + len(t.By) + len(t.Label) + len(t.Environment) + len(t.Node)
	for _, p := range slices.Concat(t.Agents, t.Policies) {
		n += 4 + len(p)
	}
	return n
}

func (s *space) revokeToken(c *session.RevokeToken, r *session.Result) bool {
	if s.access == nil {
		return true
	}
	for id, t := range s.access.tokens {
		if c.Node == "" && id == c.ID || c.Node != "" && t.Node == c.Node {
			delete(s.access.tokens, id)
			r.Value++
		}
	}
	if r.Value > 0 {
		s.raise()
	}
	return true
}

// useToken gives a token to one node: the first that comes in time.
func (s *space) useToken(c *session.UseToken, r *session.Result) bool {
	var t session.Token
	if s.access != nil {
		t = s.access.tokens[c.ID]
	}
	if t.ID == "" || t.Expires != 0 && c.At >= t.Expires {
		r.Code = session.NotFound
		return false
	}
	if t.Node == "" {
		t.Node = c.Node
	}
	if t.Node != c.Node {
		r.Code = session.TokenTaken
		return false
	}
	if t.Used == 0 {
		t.Used = c.At
		s.access.tokens[c.ID] = t
		s.raise()
		r.Value = 1
	}
	return true
}

func (s *space) deny(c *session.Deny, r *session.Result) bool {
	if s.access != nil {
		if _, there := s.access.denied[c.Denied.Subject]; there {
			return true
		}
		if len(s.access.denied) >= 4096 {
			r.Code, r.Limit = session.TooManyTokens, 4096
			return false
		}
	}
	x := s.mayDo()
	x.denied[c.Denied.Subject] = c.Denied
	s.raise()
	r.Value = 1
	return true
}

func (s *space) allow(c *session.Allow, r *session.Result) bool {
	if s.access != nil {
		if _, there := s.access.denied[c.Subject]; there {
			delete(s.access.denied, c.Subject)
			s.raise()
			r.Value = 1
		}
	}
	return true
}

func (s *space) putQuotas(c *session.PutQuotas) bool {
	if s.access == nil && c.Quotas == (session.Quotas{}) || s.access != nil && s.access.quotas == c.Quotas {
		return true
	}
	x := s.mayDo()
	x.quotas = c.Quotas
	s.raise()
	return true
}

func (s *space) keepKey(c *session.KeepKey) bool {
	if x := s.mayDo(); x.key == (session.Digest{}) {
		x.key = c.Key
	}
	return true
}

func (x *access) record() session.Record {
	if x == nil {
		return nil
	}
	r := &session.Access{Epoch: x.epoch, Quotas: x.quotas, Key: x.key}
	for _, id := range slices.Sorted(maps.Keys(x.tokens)) {
		r.Tokens = append(r.Tokens, x.tokens[id])
	}
	for _, subject := range slices.Sorted(maps.Keys(x.denied)) {
		r.Denied = append(r.Denied, x.denied[subject])
	}
	return r
}

// isOf reports whether a slot is a principal's.
func (h *held) isOf(c session.Command) bool {
	by := session.Principal{}
	if a := c.Authority(); a != nil {
		by = a.Principal
	}
	return h.owner == (session.Principal{}) || h.owner == by
}

// authorized returns the command as somebody asks for it whom the node knows, by the
// present epoch as a rule. What was proposed before is not changed.
func (g *Generator) authorized(c session.Command) session.Command {
	if !g.known {
		return c
	}
	d, ok := copied(c).(interface {
		session.Command
		Authorize(*session.Authority)
	})
	if !ok || g.once(20) {
		return c
	}
	a := &session.Authority{Principal: session.Principal{1 + byte(g.r.IntN(8)/7)}, Epoch: g.m.epochOf(c.Namespace())}
	a.Behalf = g.once(30)
	if g.once(40) {
		a.Epoch = max(a.Epoch, 1) - 1
	}
	if !g.once(10) {
		a.Audited = g.digest()
	}
	d.Authorize(a)
	return d
}

// copied returns a copy of a command that shares its lists.
func copied(c session.Command) session.Command {
	from := reflect.ValueOf(c).Elem()
	to := reflect.New(from.Type())
	to.Elem().Set(from)
	return to.Interface().(session.Command)
}

// access changes who may do what.
func (g *Generator) access() session.Command {
	ns, by := g.ns(), g.maker()
	subject, id := pick(g, "cert:a", "jwt:b"), fmt.Sprint("t", g.r.IntN(4))
	switch g.r.IntN(8) {
	case 0, 1:
		return &session.PutToken{NS: ns, By: by, Before: int64(g.r.IntN(10)), Token: session.Token{
			ID: id, Hash: session.Digest{byte(1 + g.r.IntN(200))}, Roles: session.Roles(1 + g.r.IntN(100)), Made: int64(g.n),
			Agents: pick(g, nil, []string{"a*", "b"}), Policies: pick(g, nil, []string{"p?"}),
			Expires: int64(g.r.IntN(12)), By: "token:x", Label: pick(g, "", "label"), Node: pick(g, "", "", "n1"), Environment: pick(g, "", "", "staging"),
		}}
	case 2:
		if g.r.IntN(3) == 0 {
			return &session.RevokeToken{NS: ns, By: by, Node: pick(g, "n1", "n2")}
		}
		return &session.RevokeToken{NS: ns, By: by, ID: id}
	case 3:
		return &session.Deny{NS: ns, By: by, Denied: session.DeniedSubject{Subject: subject, Reason: pick(g, "", "lost"), At: int64(g.n)}}
	case 4, 5:
		return &session.UseToken{NS: ns, By: by, ID: id, Node: pick(g, "n1", "n2"), At: int64(1 + g.r.IntN(12))}
	case 6:
		return &session.Allow{NS: ns, By: by, Subject: subject}
	}
	if g.once(4) {
		return &session.KeepKey{NS: ns, By: by, Key: g.digest()}
	}
	return &session.PutQuotas{NS: ns, By: by, Quotas: g.quotas()}
}

// quotas bounds one thing as a rule, so that the same comes again, and now and then anything.
func (g *Generator) quotas() (q session.Quotas) {
	all := []*int64{&q.Sessions, &q.Clients, &q.Pools, &q.Policies, &q.Keys, &q.Bytes, &q.Waiters, &q.Followers, &q.Streams, &q.Operations}
	if g.once(4) {
		for _, n := range all {
			*n = int64(g.r.IntN(3))
		}
		return q
	}
	*pick(g, all...) = int64(g.r.IntN(3))
	return q
}
