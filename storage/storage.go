package storage

import (
	"context"
	"io"
	"time"

	"example.com/govnode/session"
)

// A Store puts commands in one total order. Its methods are safe for
// concurrent use.
type Store interface {
	// Apply orders the commands, each with an answer of its own. They keep
	// their order among each other, and other commands may come between them.
	// The answers are the caller's to keep.
	Apply(ctx context.Context, cmds ...session.Command) []Answer
	// Get returns a record as it stands; nil if it is absent or has lapsed. Its
	// error, and those of other reads, is a *ReadError.
	Get(ctx context.Context, k session.Key, r Read) (Found, error)
	// View returns the state of a namespace, for listing; that of all if it is empty.
	View(ctx context.Context, ns string, r Read) (View, error)
	// OnLapse has the store tell of the calls whose lease it finds to have run
	// out, whether a command finds them or its own housekeeping does: each once,
	// at the node that gave the entry its place in which it was found, and before
	// that answers the entry. One that never learns what became of the entry
	// tells nobody. There is one tell, which must not wait; nil ends it.
	OnLapse(tell func([]session.Lapse))
	// OnFold likewise has it tell of the chains of the audit that have ended with
	// their records.
	OnFold(tell func([]session.Fold))
	// Changed is sent to after records have changed, at least once after the
	// latest change. It has one receiver.
	Changed() <-chan struct{}
	// Save writes a snapshot of the whole state.
	Save(ctx context.Context, w io.Writer) error
	// Restore replaces the whole state by that of a snapshot: leases and
	// waits end, tokens go on above all that were ever given out. Its error is
	// a *Failure.
	Restore(ctx context.Context, r io.Reader) error
	// DataID names the data of a namespace: all nodes that work on it say the
	// same, and those of other data something else. It is known at a node once
	// that has answered a command of the namespace, or has found something
	// there, and stays known; before it may be empty. To ask for it makes nothing.
	DataID(ns string) string
	Close() error
}

// Read says what a read may see.
type Read int

const (
	// Nearby is this node's own state, which may be behind.
	Nearby Read = iota
	// Latest reflects every change acknowledged before the read began.
	Latest
)

// A View is the state of a namespace, or of all, at one instant. It is immutable and
// safe for concurrent use. What it has of namespaces that were not asked for means
// nothing.
type View struct {
	Now   time.Duration // log time
	Index uint64
	// Find returns, in the order of keys, at most limit records after a key
	// that have the prefix and that keep accepts.
	Find func(prefix, after session.Key, limit int, keep func(session.Key, session.Record) bool) ([]session.Entry, error)
}

// A Gatherer is a Store without an index by which to tell whether something
// changed between two reads, or whose time moves without one. It reads many
// records of one namespace at once.
type Gatherer interface {
	// GetAll returns records as they all stood at one instant, which reflects
	// every change acknowledged before the call. They may come without the ids that
	// they remember: whether one was finished is asked by Get.
	GetAll(ctx context.Context, keys ...session.Key) ([]Found, error)
}

// A Counting store knows how much there is in a namespace.
type Counting interface {
	// Count returns it as this node has seen it, which may be some seconds old. It
	// costs little, so that it can be asked for each time that something is added.
	Count(ctx context.Context, ns string) (session.Tally, error)
}

// A Sweeping store knows where KILLs are not swept. With a leader it is that one
// that says so, and others say nothing.
type Sweeping interface {
	// Unswept returns the keys of the records of signals in which a KILL stands
	// that has not closed all its sessions, as far as this node has seen.
	Unswept(ctx context.Context) []session.Key
}

// A Handing store can claim a slot in the same place of the order in which it is
// handed to somebody who waits. Others are told of it by Changed, and claim later.
type Handing interface {
	// ClaimBy has the store ask who of this node claims what a pool has handed
	// out; see session.Pool. It is asked while commands are put in order, so it
	// must not wait, and may be asked more than once about the same pool.
	ClaimBy(func(k session.Key, p *session.Pool) []Claim)
}

// A Claim is the command of somebody whose turn has come. Answered is called once
// if it was applied, and must not wait; if it is not called the slot is still to
// be claimed, or another one has claimed it.
type Claim struct {
	Command  session.Command
	Answered func(Answer)
}

// Found is a record, and when it was looked at.
type Found struct {
	Record session.Record
	Now    time.Duration // log time
	Index  uint64
	// Generation is that at which the state of the record's namespace stands. A restore
	// raises it, and on Redis also a loss that was noticed.
	Generation uint32
}

// One applies one command. Its error is a *Failure.
func One(ctx context.Context, s Store, cmd session.Command) (session.Result, uint64, error) {
	a := s.Apply(ctx, cmd)[0]
	return a.Result, a.Index, a.Failure()
}
