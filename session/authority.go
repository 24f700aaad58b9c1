package session

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Who may do what. The state machine knows no secret and judges nobody: nodes do
// that, by the record of the namespace. What it knows is the epoch of that record,
// which every change raises, so that what was judged by an older one is judged anew.

// ClusterNamespace is the reserved namespace of those who run the cluster. It has a
// record of who may do what and no other objects.
const ClusterNamespace = "$cluster"

// An Authority is who asked for a command, and by which epoch of its namespace that
// was judged. It is a premise: where the epoch has moved the answer is StaleAccess,
// and nothing is counted, written or remembered.
type Authority struct {
	Principal Principal
	Epoch     uint64
	// Behalf says that the node asks for itself, to keep or to give up what the
	// principal waits for: then the epoch is not looked at.
	Behalf bool
	// Audited is the digest of what the node that asks will write of the command in its
	// audit; zero where it keeps no chain. See Chain.
	Audited Digest
}

// A Principal is a hash of whom a caller is known as; zero is nobody.
type Principal [8]byte

// PrincipalOf is the hash of a principal's name.
func PrincipalOf(ns, name string) (p Principal) {
	sum := sha256.Sum256([]byte(ns + "\x00" + name))
	copy(p[:], sum[:])
	return p
}

// Authorized is what commands embed that callers ask for.
type Authorized struct {
	// Auth is nil where nobody is asked who they are, and of what a node asks for
	// itself.
	Auth *Authority
}

// Authority returns who asked for the command; nil if that is not known.
func (a *Authorized) Authority() *Authority { return a.Auth }

// Authorize says who asked for the command, before it is proposed.
func (a *Authorized) Authorize(by *Authority) { a.Auth = by }

func (a *Authorized) principal() Principal {
	if a.Auth == nil {
		return Principal{}
	}
	return a.Auth.Principal
}

func (*Tick) Authority() *Authority    { return nil }
func (*Restore) Authority() *Authority { return nil }

// Footprint lists the records that applying the command may read or write: what it
// touches itself, and what it was judged by.
func Footprint(c Command) []Key {
	keys := c.Touches()
	if a := c.Authority(); a != nil && !a.Behalf {
		keys = append(keys, AccessKey(c.Namespace()))
	}
	return keys
}

// Namespace implements Command.
func (c *Open) Namespace() string           { return c.NS }
func (c *Begin) Namespace() string          { return c.NS }
func (c *End) Namespace() string            { return c.NS }
func (c *Cancel) Namespace() string         { return c.NS }
func (c *Close) Namespace() string          { return c.NS }
func (c *Acquire) Namespace() string        { return c.NS }
func (c *Renew) Namespace() string          { return c.NS }
func (c *Release) Namespace() string        { return c.NS }
func (c *ForceRelease) Namespace() string   { return c.NS }
func (c *PutPool) Namespace() string        { return c.NS }
func (c *DeletePool) Namespace() string     { return c.NS }
func (c *PutPolicy) Namespace() string      { return c.NS }
func (c *DeletePolicy) Namespace() string   { return c.NS }
func (c *Set) Namespace() string            { return c.NS }
func (c *Delete) Namespace() string         { return c.NS }
func (c *Increment) Namespace() string      { return c.NS }
func (c *PutHash) Namespace() string        { return c.NS }
func (c *Repair) Namespace() string         { return c.NS }
func (c *Signal) Namespace() string         { return c.NS }
func (c *Swept) Namespace() string          { return c.NS }
func (c *Ask) Namespace() string            { return c.NS }
func (c *Decide) Namespace() string         { return c.NS }
func (c *CancelApproval) Namespace() string { return c.NS }
func (c *PutBudget) Namespace() string      { return c.NS }
func (c *AdjustBudget) Namespace() string   { return c.NS }
func (c *DeleteBudget) Namespace() string   { return c.NS }
func (c *Append) Namespace() string         { return c.NS }
func (c *DeleteList) Namespace() string     { return c.NS }
func (c *PutRate) Namespace() string        { return c.NS }
func (c *DeleteRate) Namespace() string     { return c.NS }
func (c *TakeRate) Namespace() string       { return c.NS }
func (c *PutStanding) Namespace() string    { return c.NS }
func (c *DeleteStanding) Namespace() string { return c.NS }
func (c *PutToken) Namespace() string       { return c.NS }
func (c *RevokeToken) Namespace() string    { return c.NS }
func (c *Deny) Namespace() string           { return c.NS }
func (c *Allow) Namespace() string          { return c.NS }
func (c *PutQuotas) Namespace() string      { return c.NS }
func (c *KeepKey) Namespace() string        { return c.NS }
func (c *UseToken) Namespace() string       { return c.NS }
func (*Tick) Namespace() string             { return "" }
func (*Restore) Namespace() string          { return "" }

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

// EpochOf returns the epoch of a record; 0 of one that is not there.
func EpochOf(r Record) uint64 {
	if x, _ := r.(*Access); x != nil {
		return x.Epoch
	}
	return 0
}

// staleAccess reports whether a command was judged by another epoch than the present
// one; the answer then says so.
func (s *State) staleAccess(c Command, r *Result) bool {
	a := c.Authority()
	if a == nil || a.Behalf || EpochOf(s.lookup(ref{KindAccess, c.Namespace(), ""})) == a.Epoch {
		return false
	}
	r.Code = StaleAccess
	return true
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
		old := x.Tokens
		x.Tokens = kept
		i, there := x.token(c.Token.ID)
		switch {
		case there:
			r.Code, x.Tokens = IDReused, old
			return false
		case len(x.Tokens) >= MaxTokens || x.weight()+c.Token.weight() > MaxTokenBytes:
			r.Code, r.Limit, x.Tokens = TooManyTokens, MaxTokens, old
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

// authority stands before the field of message Command that is the command, as
// fields do that are of no oneof.
func (f *codec) authority(a **Authority) {
	if f.Field() == authorityField && *a == nil {
		*a = new(Authority)
	}
	for m := f.Message(authorityField, *a != nil); f.Visit(&m); {
		f.Fingerprint(1, (*[8]byte)(&(*a).Principal))
		f.Uint64(2, &(*a).Epoch)
		f.Bool(3, &(*a).Behalf)
		f.digest(4, &(*a).Audited)
	}
}

// authorize says of a command that was read who asked for it.
func (f *codec) authorize(c Command, by *Authority) {
	if by == nil {
		return
	}
	if a, ok := c.(interface{ Authorize(*Authority) }); ok {
		a.Authorize(by)
	} else {
		f.Fail("a command that nobody asks for, with somebody who did")
	}
}

const authorityField protowire.Number = 100

func (c *PutToken) fields(f *codec) {
	f.request(&c.NS, &c.By)
	for m := f.Message(3, true); f.Visit(&m); {
		c.Token.fields(f)
	}
	f.Int64(4, &c.Before)
}

func (t *Token) fields(f *codec) {
	f.Kept(1, &t.ID)
	f.digest(2, &t.Hash)
	f.Uint16(3, (*uint16)(&t.Roles))
	f.keptAll(4, &t.Agents)
	f.keptAll(5, &t.Policies)
	f.Int64(6, &t.Made)
	f.Int64(7, &t.Expires)
	f.Kept(8, &t.By)
	f.Kept(9, &t.Label)
	f.Kept(10, &t.Environment)
	f.Kept(11, &t.Node)
	f.Int64(12, &t.Used)
}

func (c *RevokeToken) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.ID)
	f.Text(4, &c.Node)
}

func (c *UseToken) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.ID)
	f.Kept(4, &c.Node)
	f.Int64(5, &c.At)
}

func (c *Deny) fields(f *codec) {
	f.request(&c.NS, &c.By)
	for m := f.Optional(3, c.Denied != DeniedSubject{}); f.Visit(&m); {
		c.Denied.fields(f)
	}
}

func (d *DeniedSubject) fields(f *codec) {
	f.Kept(1, &d.Subject)
	f.Kept(2, &d.Reason)
	f.Int64(3, &d.At)
}

func (c *Allow) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Subject)
}

func (c *PutQuotas) fields(f *codec) {
	f.request(&c.NS, &c.By)
	for m := f.Optional(3, c.Quotas != Quotas{}); f.Visit(&m); {
		c.Quotas.fields(f)
	}
}

func (c *KeepKey) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.digest(3, &c.Key)
}

func (q *Quotas) fields(f *codec) {
	for i, n := range q.all() {
		f.Int64(protowire.Number(i+1), n)
	}
}

func (x *Access) fields(f *codec) {
	f.Uint64(1, &x.Epoch)
	for i, n := elements(f, 2, &x.Tokens, MaxTokens); i < n; i++ {
		for m := f.Message(2, true); f.Visit(&m); {
			x.Tokens[i].fields(f)
		}
	}
	for i, n := elements(f, 3, &x.Denied, MaxDenied); i < n; i++ {
		for m := f.Message(3, true); f.Visit(&m); {
			x.Denied[i].fields(f)
		}
	}
	for m := f.Optional(4, x.Quotas != Quotas{}); f.Visit(&m); {
		x.Quotas.fields(f)
	}
	f.digest(5, &x.Key)
}
