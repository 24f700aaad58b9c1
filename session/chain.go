package session

import (
	"crypto/sha256"
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
)

// The chains of the audit. A node writes down who asked for what and what became of
// it; the state keeps a head over what was written, so that no node's file can be
// changed unseen. A command extends the chain of the record that remembers its id,
// which it writes anyway: there is no record that all commands write.

// A Chain is over the commands that have changed a record, in their order. It is
// immutable.
type Chain struct {
	N          uint64 // of the latest link; the first is 1
	Generation uint32 // of the state when that was added: a restore goes back to fewer links
	Head       Digest
}

// Next returns the chain with one more link: what became of a command, and the digest
// of what the audit says of it. A nil chain has no link yet.
func (c *Chain) Next(generation uint32, code Code, audited Digest) *Chain {
	var was Chain
	if c != nil {
		was = *c
	}
	next := &Chain{N: was.N + 1, Generation: generation}
	var text [128]byte
	b := append(text[:0], "govnode.link.1\x00"...)
	b = append(b, was.Head[:]...)
	b = binary.BigEndian.AppendUint64(b, next.N)
	b = binary.BigEndian.AppendUint32(b, generation)
	b = append(b, byte(code))
	next.Head = sha256.Sum256(append(b, audited[:]...))
	return next
}

// A Fold is a chain that ended with its record: the namespace's goes on from it.
type Fold struct {
	Key   Key   // of the record
	Chain Chain // as it ended
	Into  Chain // the namespace's, with the link that says so
}

// Audited is the digest by which the namespace's chain holds one that ended.
func (f *Fold) Audited() Digest {
	b := append([]byte("govnode.fold.1\x00"), f.Key...)
	b = append(b, 0)
	b = binary.BigEndian.AppendUint64(b, f.Chain.N)
	b = binary.BigEndian.AppendUint32(b, f.Chain.Generation)
	return sha256.Sum256(append(b, f.Chain.Head[:]...))
}

// ChainOf returns the record whose chain a command extends; ok is false of one that
// nobody asks for.
func ChainOf(c Command) (k Key, ok bool) {
	switch c := c.(type) {
	case *Open:
		return SessionKey(c.NS, c.Session), true
	case *Begin:
		return SessionKey(c.NS, c.Session), true
	case *End:
		return SessionKey(c.NS, c.Session), true
	case *Close:
		return SessionKey(c.NS, c.Session), true
	case *Cancel:
		return makerKey(c.NS, c.Client, c.Session), true
	case *Renew:
		return makerKey(c.NS, c.Client, c.Session), true
	case *Acquire:
		return ClientKey(c.NS, c.Client), true
	case *Release:
		return ClientKey(c.NS, c.Client), true
	case *TakeRate:
		return ClientKey(c.NS, c.Client), true
	case request:
		ns, by := c.from()
		if by.Request == "" { // nobody remembers it
			return NamespaceKey(ns), true
		}
		return ClientKey(ns, by.Client), true
	}
	return "", false
}

// ChainOfRecord returns the chain of a record; nil if it has none.
func ChainOfRecord(r Record) *Chain {
	switch x := r.(type) {
	case *Session:
		return x.Chain
	case *Client:
		return x.Chain
	case *Namespace:
		return x.Chain
	}
	return nil
}

// A linking is the chain that the command under way extends, if it writes its record.
type linking struct {
	key     ref
	audited Digest // zero: none
	written bool
}

func (s *State) startLink(c Command) {
	if s.link.key.kind != 0 {
		s.link = linking{}
	}
	a := c.Authority()
	if a == nil || a.Audited == (Digest{}) {
		return
	}
	if k, ok := ChainOf(c); ok {
		s.link.key, s.link.audited = refOf(k), a.Audited
	}
}

// writes notes that a record is written.
func (s *State) writes(k ref) {
	if k == s.link.key {
		s.link.written = true
	}
}

// endLink extends the chain. What changed nothing has no link: what could not be
// answered, repeats, and refusals that count nothing. A request that nobody remembers
// has one if it was carried out.
func (s *State) endLink(r *Result) {
	if s.link.audited == (Digest{}) {
		return
	}
	l := s.link
	s.link = linking{}
	if r.Code.Failure() || !l.written && l.key.kind != KindNamespace {
		return
	}
	switch l.key.kind {
	case KindSession:
		if x, _ := s.lookup(l.key).(*Session); x != nil {
			x = s.ownSession(l.key, x)
			x.Chain = x.Chain.Next(s.generation, r.Code, l.audited)
			r.Chain = x.Chain
		}
	case KindClient:
		if x, _ := s.lookup(l.key).(*Client); x != nil {
			x = s.ownClient(l.key, x)
			x.Chain = x.Chain.Next(s.generation, r.Code, l.audited)
			r.Chain = x.Chain
		}
	case KindNamespace:
		x := s.namespace(l.key.ns)
		x.Chain = x.Chain.Next(s.generation, r.Code, l.audited)
		s.write(l.key, &x)
		r.Chain = x.Chain
	}
}

// fold takes the chain of a record that is dropped into that of its namespace, of which
// ns is the version to be written; it reports whether there was one.
func (s *State) fold(k ref, of *Chain, ns *Namespace) bool {
	if of == nil {
		return false
	}
	f := Fold{Key: Key(k.append(nil)), Chain: *of}
	ns.Chain = ns.Chain.Next(s.generation, Done, f.Audited())
	f.Into = *ns.Chain
	s.folds = append(s.folds, f)
	return true
}

func (f *codec) chain(num protowire.Number, v **Chain) {
	if f.Field() == num && *v == nil {
		*v = new(Chain)
	}
	for m := f.Message(num, *v != nil); f.Visit(&m); {
		(*v).fields(f)
	}
}

func (c *Chain) fields(f *codec) {
	f.Uint64(1, &c.N)
	f.Uint32(2, &c.Generation)
	f.digest(3, &c.Head)
}

func (l *Fold) fields(f *codec) {
	f.Text(1, (*string)(&l.Key))
	for m := f.Optional(2, l.Chain != Chain{}); f.Visit(&m); {
		l.Chain.fields(f)
	}
	for m := f.Optional(3, l.Into != Chain{}); f.Visit(&m); {
		l.Into.fields(f)
	}
}
