package session

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The record of who may do what in a namespace: tokens, denied subjects, quotas.

// Roles is a set of roles, by their numbers in the API.
type Roles uint16

// Has reports whether a role is in the set.
func (r Roles) Has(role int) bool { return r&(1<<role) != 0 }

// A Token is what is known of a token: never its secret.
type Token struct {
	ID          string
	Hash        Digest // SHA-256 of the secret
	Roles       Roles
	Agents      []string // patterns of agent ids; all if there are none
	Policies    []string // patterns of names of policies; all if there are none
	Made        int64    // Unix milliseconds
	Expires     int64    // Unix milliseconds; 0: never
	By          string   // principal
	Label       string
	Environment string // of rulesets; empty: the usual one
	// Node is for which node a token is that lets one join: said when it was made, or
	// by who used it first; empty: any yet.
	Node string
	Used int64 // Unix milliseconds; 0: it was not used yet, or may be used again and again
}

// A DeniedSubject is kept out of the namespace, whatever it shows.
type DeniedSubject struct {
	Subject string
	Reason  string
	At      int64 // Unix milliseconds
}

// Quotas are how much a namespace may have; 0: no quota.
type Quotas struct {
	Sessions, Clients, Pools, Policies, Keys, Bytes int64
	Waiters, Followers, Streams, Operations         int64 // at one node
}

// Access is who may do what in a namespace. The record is immutable, and stays when
// nothing is in it any more, since it holds the epoch.
type Access struct {
	Epoch  uint64
	Tokens []Token         // by id
	Denied []DeniedSubject // by subject
	Quotas Quotas
	// Key is that of the digests of arguments in audits. It keeps them from whoever
	// reads an audit, and not from whoever reads a state. Only that of
	// ClusterNamespace is used.
	Key Digest
}

type (
	// PutToken makes a token known. Those that had expired by Before are dropped
	// with it.
	PutToken struct {
		Authorized
		NS     string
		By     Maker
		Token  Token
		Before int64 // Unix milliseconds
	}

	// RevokeToken ends a token, or all by which a node may join. It is answered with how
	// many there were.
	RevokeToken struct {
		Authorized
		NS   string
		By   Maker
		ID   string
		Node string // of all tokens for that node, used or not; then there is no ID
	}

	// UseToken binds a token that may be used once to the node that uses it. The same
	// node may say so again, since it may not have heard the answer; no other may.
	UseToken struct {
		Authorized
		NS   string
		By   Maker
		ID   string
		Node string
		At   int64 // Unix milliseconds
	}

	// Deny keeps a subject out.
	Deny struct {
		Authorized
		NS     string
		By     Maker
		Denied DeniedSubject
	}

	// Allow takes Deny back.
	Allow struct {
		Authorized
		NS      string
		By      Maker
		Subject string
	}

	// KeepKey sets the key of the digests of arguments, if there is none.
	KeepKey struct {
		Authorized
		NS  string
		By  Maker
		Key Digest
	}

	// PutQuotas sets the quotas of a namespace.
	PutQuotas struct {
		Authorized
		NS     string
		By     Maker
		Quotas Quotas
	}
)

func (c *PutToken) Touches() []Key    { return append(c.By.touches(c.NS), AccessKey(c.NS)) }
func (c *RevokeToken) Touches() []Key { return append(c.By.touches(c.NS), AccessKey(c.NS)) }
func (c *Deny) Touches() []Key        { return append(c.By.touches(c.NS), AccessKey(c.NS)) }
func (c *Allow) Touches() []Key       { return append(c.By.touches(c.NS), AccessKey(c.NS)) }
func (c *UseToken) Touches() []Key    { return append(c.By.touches(c.NS), AccessKey(c.NS)) }
func (c *PutQuotas) Touches() []Key   { return append(c.By.touches(c.NS), AccessKey(c.NS)) }
func (c *KeepKey) Touches() []Key     { return append(c.By.touches(c.NS), AccessKey(c.NS)) }

func (*PutToken) Kind() uint16    { return 36 }
func (*RevokeToken) Kind() uint16 { return 37 }
func (*Deny) Kind() uint16        { return 38 }
func (*Allow) Kind() uint16       { return 39 }
func (*PutQuotas) Kind() uint16   { return 40 }
func (*KeepKey) Kind() uint16     { return 41 }
func (*UseToken) Kind() uint16    { return 42 }

func (c *PutToken) from() (ns string, by Maker)    { return c.NS, c.By }
func (c *RevokeToken) from() (ns string, by Maker) { return c.NS, c.By }
func (c *Deny) from() (ns string, by Maker)        { return c.NS, c.By }
func (c *Allow) from() (ns string, by Maker)       { return c.NS, c.By }
func (c *PutQuotas) from() (ns string, by Maker)   { return c.NS, c.By }
func (c *KeepKey) from() (ns string, by Maker)     { return c.NS, c.By }
func (c *UseToken) from() (ns string, by Maker)    { return c.NS, c.By }

func (x *Access) At(time.Duration) Record  { return x }
func (*Access) Due() (time.Duration, bool) { return 0, false }

// FindToken returns the token of that id; nil if there is none.
func (x *Access) FindToken(id string) *Token {
	if x == nil {
		return nil
	}
	if i, there := x.token(id); there {
		return &x.Tokens[i]
	}
	return nil
}

func (x *Access) token(id string) (int, bool) {
	return slices.BinarySearchFunc(x.Tokens, id, func(t Token, id string) int { return strings.Compare(t.ID, id) })
}

// Denies reports whether a subject is kept out.
func (x *Access) Denies(subject string) bool {
	if x == nil {
		return false
	}
	_, there := x.denied(subject)
	return there
}

func (x *Access) denied(subject string) (int, bool) {
	return slices.BinarySearchFunc(x.Denied, subject, func(d DeniedSubject, s string) int { return strings.Compare(d.Subject, s) })
}

// changeAccess raises the epoch of a namespace with a change of its record. A change
// that reports false changes nothing. The epochs of a record that is made anew are those
// of its generation: where what was before is lost, nodes still know principals by the
// epochs that were.
func (s *State) changeAccess(ns string, change func(x *Access) bool) bool {
	k := ref{KindAccess, ns, ""}
	var next Access
	if x, _ := s.lookup(k).(*Access); x != nil {
		next = *x
	}
	if !change(&next) {
		return false
	}
	next.Epoch = max(next.Epoch, uint64(s.generation)<<32) + 1
	s.write(k, &next)
	return true
}

func (s *State) putToken(c *PutToken, r *Result) {
	s.changeAccess(c.NS, func(x *Access) bool {
		kept := make([]Token, 0, len(x.Tokens)+1)
		for i := range x.Tokens {
			if t := &x.Tokens[i]; t.Expires == 0 || t.Expires > c.Before {
				kept = append(kept, *t)
			}
		}
		x.Tokens = kept
		i, there := x.token(c.Token.ID)
		switch {
		case there:
			r.Code = IDReused
			return false
		case len(x.Tokens) >= MaxTokens || x.weight()+c.Token.weight() > MaxTokenBytes:
			r.Code, r.Limit = TooManyTokens, MaxTokens
			return false
		}
		x.Tokens = slices.Insert(x.Tokens, i, c.Token)
		return true
	})
}

// weight is how many bytes the tokens take in the record, and not less.
func (x *Access) weight() (sum int) {
	for i := range x.Tokens {
		sum += x.Tokens[i].weight()
	}
	return sum
}

func (t *Token) weight() int {
	sum := 128 + len(t.ID) + len(t.By) + len(t.Label) + len(t.Environment) + len(t.Node)
	for _, all := range [][]string{t.Agents, t.Policies} {
		for _, p := range all {
			sum += 4 + len(p)
		}
	}
	return sum
}

func (s *State) revokeToken(c *RevokeToken, r *Result) {
	s.changeAccess(c.NS, func(x *Access) bool {
		left := slices.DeleteFunc(slices.Clone(x.Tokens), func(t Token) bool {
			return c.Node == "" && t.ID == c.ID || c.Node != "" && t.Node == c.Node
		})
		r.Value = int64(len(x.Tokens) - len(left))
		if x.Tokens = left; len(left) == 0 {
			x.Tokens = nil
		}
		return r.Value > 0
	})
}

// useToken is decided here and not where the token is looked at: of two nodes that use
// it at once only the log knows the first.
func (s *State) useToken(c *UseToken, r *Result) {
	s.changeAccess(c.NS, func(x *Access) bool {
		i, there := x.token(c.ID)
		if !there || x.Tokens[i].Expires > 0 && x.Tokens[i].Expires <= c.At {
			r.Code = NotFound
			return false
		}
		t := x.Tokens[i]
		switch {
		case t.Node != "" && t.Node != c.Node:
			r.Code = TokenTaken
			return false
		case t.Used > 0:
			return false
		}
		t.Node, t.Used = c.Node, c.At
		x.Tokens = slices.Clone(x.Tokens)
		x.Tokens[i] = t
		r.Value = 1
		return true
	})
}

func (s *State) deny(c *Deny, r *Result) {
	s.changeAccess(c.NS, func(x *Access) bool {
		i, there := x.denied(c.Denied.Subject)
		if !there && len(x.Denied) >= MaxDenied {
			r.Code, r.Limit = TooManyTokens, MaxDenied
			return false
		}
		if there {
			return false
		}
		x.Denied = slices.Insert(slices.Clone(x.Denied), i, c.Denied)
		r.Value = 1
		return true
	})
}

func (s *State) allow(c *Allow, r *Result) {
	if s.changeAccess(c.NS, func(x *Access) bool {
		i, there := x.denied(c.Subject)
		if there {
			x.Denied = slices.Delete(slices.Clone(x.Denied), i, i+1)
		}
		if len(x.Denied) == 0 {
			x.Denied = nil
		}
		return there
	}) {
		r.Value = 1
	}
}

func (s *State) putQuotas(c *PutQuotas) {
	s.changeAccess(c.NS, func(x *Access) bool {
		if x.Quotas == c.Quotas {
			return false
		}
		x.Quotas = c.Quotas
		return true
	})
}

// keepKey raises no epoch: what was judged stays judged.
func (s *State) keepKey(c *KeepKey) {
	k := ref{KindAccess, c.NS, ""}
	var next Access
	if x, _ := s.lookup(k).(*Access); x != nil {
		next = *x
	}
	if next.Key == (Digest{}) {
		next.Key = c.Key
		s.write(k, &next)
	}
}

// restoreAccess is what a restore does to a record: no epoch comes back, so that
// nothing that is under way passes for having been judged by it.
func (s *State) restoreAccess(k ref, x *Access) {
	next := *x
	next.Epoch = uint64(s.generation)<<32 + x.Epoch&(1<<32-1)
	s.write(k, &next)
}

// KeepAccess puts who may do what in an older state in the place of what a snapshot
// says: what was revoked since stays revoked. Namespaces that the older state does
// not know are as the snapshot says.
func (s *State) KeepAccess(from *State) {
	for _, k := range from.keys() {
		if k.Kind() == KindAccess {
			s.Put(k, from.Stored(k))
		}
	}
}

func (v *validator) access(ns string, by Maker) {
	if ns != ClusterNamespace {
		v.namespace(ns)
	}
	v.id("By.Client", by.Client)
	v.optional("By.Request", by.Request)
}

func (v *validator) putToken(c *PutToken) {
	v.of = "PutToken"
	v.access(c.NS, c.By)
	t := &c.Token
	v.id("Token.ID", t.ID)
	v.digest("Token.Hash", t.Hash)
	between(v, "Token.Roles", t.Roles, 1, 1<<15-1)
	v.patterns("Token.Agents", t.Agents)
	v.patterns("Token.Policies", t.Policies)
	between(v, "Token.Made", t.Made, 0, maxUnixMilli)
	between(v, "Token.Expires", t.Expires, 0, maxUnixMilli)
	v.text("Token.By", t.By, 0, MaxSubject)
	v.text("Token.Label", t.Label, 0, MaxReason)
	v.optional("Token.Environment", t.Environment)
	v.optional("Token.Node", t.Node)
	between(v, "Token.Used", t.Used, 0, 0)
	between(v, "Before", c.Before, 0, maxUnixMilli)
}

func (v *validator) revokeToken(c *RevokeToken) {
	v.of = "RevokeToken"
	v.access(c.NS, c.By)
	v.optional("Node", c.Node)
	if c.Node == "" {
		v.id("ID", c.ID)
	} else if c.ID != "" {
		v.fail("ID", "stands beside Node; give one of the two")
	}
}

func (v *validator) useToken(c *UseToken) {
	v.of = "UseToken"
	v.access(c.NS, c.By)
	v.id("ID", c.ID)
	v.id("Node", c.Node)
	between(v, "At", c.At, 1, maxUnixMilli)
}

func (v *validator) patterns(field string, all []string) {
	v.count(field, len(all), 0, MaxPatterns)
	for i, p := range all {
		if v.err != nil {
			return
		}
		v.text(fmt.Sprintf("%s[%d]", field, i), p, 1, MaxID)
	}
}

func (v *validator) deny(c *Deny) {
	v.of = "Deny"
	v.access(c.NS, c.By)
	v.text("Denied.Subject", c.Denied.Subject, 1, MaxSubject)
	v.text("Denied.Reason", c.Denied.Reason, 0, MaxReason)
	between(v, "Denied.At", c.Denied.At, 0, maxUnixMilli)
}

func (v *validator) quotas(q *Quotas) {
	for _, n := range q.all() {
		between(v, "Quotas", *n, 0, MaxQuota)
	}
}

func (q *Quotas) all() []*int64 {
	return []*int64{&q.Sessions, &q.Clients, &q.Pools, &q.Policies, &q.Keys, &q.Bytes, &q.Waiters, &q.Followers, &q.Streams, &q.Operations}
}
