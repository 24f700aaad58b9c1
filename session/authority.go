package session

import (
	"crypto/sha256"

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
