package session

import (
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"example.com/govnode/internal/seeded"
	"example.com/govnode/session/wire"
)

// How entries, commands and results become bytes and back: log.proto says what
// stands where. The fields of commands and of records have files of their own.

// entryVersion is the format of entries that this build writes and reads.
const entryVersion = 2

// The formats of what outlives a process, as this build writes them: entries of
// the log, and snapshots. Version is that of the commands in them.
const (
	EntryFormat    = entryVersion
	SnapshotFormat = snapshotVersion
)

// entryCommands is the number of the field of message Entry that is repeated.
const entryCommands = 3

// ErrDamaged is wrapped by the error for bytes that are not those that were
// sealed; see package wire.
var ErrDamaged = wire.ErrDamaged

// ErrUnknownKind is wrapped by the error for an entry, a command or a record of
// a kind or a version that this build does not know. A node that finds one in
// its log stops: to skip it would be to diverge.
var ErrUnknownKind = wire.ErrUnknownKind

// A codec writes and reads the messages of log.proto that this package knows.
type codec struct {
	wire.Coder
	pins pins  // that are shared; nil if none are
	room *room // for commands that are read; nil if each has its own
}

func (f *codec) digest(num protowire.Number, v *Digest) { f.Digest(num, (*[32]byte)(v)) }

func (f *codec) fingerprint(num protowire.Number, v *Fingerprint) { f.Fingerprint(num, (*[8]byte)(v)) }

// elements makes room for the elements of a list that follow each other, and
// returns the indexes of those that are to be visited. It is no function of
// package wire since a generic one of another package makes codecs escape to the
// heap.
func elements[T any](f *codec, num protowire.Number, v *[]T, most int) (from, to int) {
	if f.Writes() {
		return 0, len(*v)
	}
	from = len(*v)
	to = from + f.Run(num, most-from)
	*v = slices.Grow(*v, to-from)[:to]
	return from, to
}

// keptAll is a list of strings that the state keeps.
func (f *codec) keptAll(num protowire.Number, v *[]string) {
	for i, n := elements(f, num, v, math.MaxInt); i < n; i++ {
		f.KeptElement(num, &(*v)[i])
	}
}

// EncodeEntry encodes an entry of the log: log.proto, message Entry, sealed.
func EncodeEntry(at time.Duration, cmds []Command) []byte { return AppendEntry(nil, at, cmds) }

// AppendEntry appends what EncodeEntry returns.
func AppendEntry(dst []byte, at time.Duration, cmds []Command) []byte {
	return wire.Entry.Seal(appendEntry(dst, at, cmds), len(dst))
}

func appendEntry(dst []byte, at time.Duration, cmds []Command) []byte {
	f := codec{Coder: wire.NewWriter(dst)}
	version := uint32(entryVersion)
	for m := f.Top(); f.Visit(&m); {
		f.entry(&version, &at, &cmds)
	}
	return f.Bytes()
}

// JoinEntry is AppendEntry of commands that were encoded before, by
// EncodeCommand. Their seals stay as they are: one that was damaged on its way
// here is found out when the entry is decoded.
func JoinEntry(dst []byte, at time.Duration, cmds [][]byte) []byte {
	begin := len(dst)
	dst = appendEntry(dst, at, nil)
	for _, c := range cmds {
		dst = protowire.AppendTag(dst, entryCommands, protowire.BytesType)
		dst = protowire.AppendBytes(dst, c)
	}
	return wire.Entry.Seal(dst, begin)
}

// DecodeEntry decodes an entry. Strings that no record keeps are parts of one
// copy of b, so that an entry costs one allocation for all of them: a command
// is gone as soon as it was applied, and what outlives it is copied here (see
// kept), interned, or joined into new strings by the state machine.
//
// Its seal is checked first, and that of each command before the command is
// decoded; an error that wraps ErrDamaged tells that one does not hold.
func DecodeEntry(b []byte) (at time.Duration, cmds []Command, err error) {
	return decodeEntry(b, nil, nil)
}

// decodeEntry decodes an entry, and appends its commands to cmds.
func decodeEntry(b []byte, cmds []Command, room *room) (time.Duration, []Command, error) {
	b, err := wire.Entry.Open(b)
	if err != nil {
		return 0, nil, err
	}
	f := codec{Coder: wire.NewSharingReader(b), room: room}
	var version uint32
	var at time.Duration
	for m := f.Top(); f.Visit(&m); {
		f.entry(&version, &at, &cmds)
	}
	if f.Err() != nil {
		return 0, nil, f.Err()
	}
	return at, cmds, nil
}

func (f *codec) entry(version *uint32, at *time.Duration, cmds *[]Command) {
	f.Uint32(1, version)
	if *version != entryVersion && !f.Writes() { // what follows has another meaning
		f.Foreign("an entry", uint64(*version), entryVersion)
	}
	f.Duration(2, at)
	for i, n := elements(f, entryCommands, cmds, math.MaxInt); i < n; i++ {
		for m := f.Sealed(entryCommands, wire.Command); f.Visit(&m); {
			f.command(&(*cmds)[i])
		}
		f.Require((*cmds)[i] != nil, "a command of no kind")
	}
}

// EncodeCommand encodes one command, as it goes from one node to another and
// stands in an entry: log.proto, message Command, sealed.
func EncodeCommand(c Command) []byte { return AppendCommand(nil, c) }

// AppendCommand appends what EncodeCommand returns.
func AppendCommand(dst []byte, c Command) []byte {
	f := codec{Coder: wire.NewWriter(dst)}
	for m := f.Top(); f.Visit(&m); {
		f.command(&c)
	}
	return wire.Command.Seal(f.Bytes(), len(dst))
}

// DecodeCommand decodes one command; see DecodeEntry for its strings and for
// ErrDamaged.
func DecodeCommand(b []byte) (Command, error) {
	b, err := wire.Command.Open(b)
	if err != nil {
		return nil, err
	}
	f := codec{Coder: wire.NewSharingReader(b)}
	var c Command
	for m := f.Top(); f.Visit(&m); {
		f.command(&c)
	}
	f.Require(c != nil, "a command of no kind")
	if f.Err() != nil {
		return nil, f.Err()
	}
	return c, nil
}

// command is the one field of message Command: its number is the kind.
func (f *codec) command(c *Command) {
	if f.Writes() {
		kind, by := protowire.Number((*c).Kind()), (*c).Authority()
		f.authority(&by)
		for m := f.Message(kind, true); f.Visit(&m); {
			f.commandFields(*c)
		}
		return
	}
	var by *Authority
	f.authority(&by)
	for f.Field() != 0 {
		if *c != nil {
			f.Fail("a second kind of command")
			return
		}
		if *c = f.newCommand(f.Field()); *c == nil && seeded.On(seeded.SkipUnknown) {
			*c = new(Tick) // of nothing
			f.Skip()
			continue
		}
		if *c == nil {
			f.Unknown("kind", uint64(f.Field()), "a command")
			return
		}
		for m := f.Message(f.Field(), true); f.Visit(&m); {
			f.commandFields(*c)
		}
		trim(*c)
		f.authorize(*c, by)
	}
}

// EncodeResult encodes a result, as it goes from one node to another:
// log.proto, message Result, sealed.
func EncodeResult(r *Result) []byte { return AppendResult(make([]byte, 0, resultSize), r) }

// resultSize is what most results take.
const resultSize = 96

// AppendResult appends what EncodeResult returns.
func AppendResult(dst []byte, r *Result) []byte {
	f := codec{Coder: wire.NewWriter(dst)}
	for m := f.Top(); f.Visit(&m); {
		r.fields(&f)
	}
	return wire.Result.Seal(f.Bytes(), len(dst))
}

// DecodeResult decodes a result. Its strings are parts of one copy of b. An
// error that wraps ErrDamaged tells that its seal does not hold.
func DecodeResult(b []byte) (Result, error) {
	b, err := wire.Result.Open(b)
	if err != nil {
		return Result{}, err
	}
	f := codec{Coder: wire.NewSharingReader(b)}
	var r Result
	for m := f.Top(); f.Visit(&m); {
		r.fields(&f)
	}
	if r.After != nil && r.After.Session != nil {
		f.settle(r.After.Session)
	}
	if f.Err() != nil {
		return Result{}, f.Err()
	}
	return r, nil
}

func (r *Result) fields(f *codec) {
	f.Uint8(1, (*uint8)(&r.Code), uint8(numCodes-1))
	f.Bool(2, &r.Repeat)
	f.Uint16(3, &r.Rule)
	for i, n := elements(f, 4, &r.Grants, math.MaxInt); i < n; i++ {
		for m := f.Message(4, true); f.Visit(&m); {
			r.Grants[i].fields(f)
		}
	}
	for m := f.Optional(5, r.Pressure != Pressure{}); f.Visit(&m); {
		r.Pressure.fields(f)
	}
	for m := f.Optional(6, r.Counters != Counters{}); f.Visit(&m); {
		r.Counters.fields(f)
	}
	for m := f.Optional(7, r.Queue != Place{}); f.Visit(&m); {
		r.Queue.fields(f)
	}
	f.Duration(8, &r.RetryAfter)
	f.Sint64(9, &r.Limit)
	f.Duration(10, &r.Elapsed)
	f.Sint64(11, &r.Value)
	f.Uint32(12, &r.Checkpoint)
	f.Uint64(13, &r.NewerThan)
	f.Bool(14, &r.Released)
	f.digest(15, &r.Digest)
	f.Texts(16, &r.Pools)
	f.Texts(17, &r.Names)
	f.Sint64s(18, &r.Facts)
	for i, n := elements(f, 19, &r.Lapsed, math.MaxInt); i < n; i++ {
		for m := f.Message(19, true); f.Visit(&m); {
			r.Lapsed[i].fields(f)
		}
	}
	if f.Field() == 20 && r.After == nil {
		r.After = new(After)
	}
	for m := f.Message(20, r.After != nil); f.Visit(&m); {
		r.After.fields(f)
	}
	if f.Field() == 21 && r.Signal == nil {
		r.Signal = new(Halt)
	}
	for m := f.Message(21, r.Signal != nil); f.Visit(&m); {
		r.Signal.fields(f)
	}
	if f.Field() == 22 && r.Approval == nil {
		r.Approval = new(ApprovalCount)
	}
	for m := f.Message(22, r.Approval != nil); f.Visit(&m); {
		r.Approval.fields(f)
	}
	for i, n := elements(f, 23, &r.Budgets, math.MaxInt); i < n; i++ {
		for m := f.Message(23, true); f.Visit(&m); {
			r.Budgets[i].fields(f)
		}
	}
	f.Texts(24, &r.Rates)
	f.Text(25, &r.Version)
	f.chain(26, &r.Chain)
	for i, n := elements(f, 27, &r.Folds, math.MaxInt); i < n; i++ {
		for m := f.Message(27, true); f.Visit(&m); {
			r.Folds[i].fields(f)
		}
	}
}

func (a *After) fields(f *codec) {
	f.Duration(1, &a.Now)
	if f.Field() == 2 && a.Session == nil {
		a.Session = new(Session)
	}
	for m := f.Message(2, a.Session != nil); f.Visit(&m); {
		a.Session.fields(f)
	}
	if f.Field() == 3 && a.Pool == nil {
		a.Pool = new(PoolCounts)
	}
	for m := f.Message(3, a.Pool != nil); f.Visit(&m); {
		a.Pool.fields(f)
	}
	if f.Field() == 4 && a.Approval == nil {
		a.Approval = new(Approval)
	}
	for m := f.Message(4, a.Approval != nil); f.Visit(&m); {
		a.Approval.fields(f)
	}
	if f.Field() == 5 && a.Standing == nil {
		a.Standing = new(Standing)
	}
	for m := f.Message(5, a.Standing != nil); f.Visit(&m); {
		a.Standing.fields(f)
	}
}

func (p *PoolCounts) fields(f *codec) {
	f.Int32(1, &p.Slots)
	f.Int32(2, &p.Threshold)
	f.Int32(3, &p.MaxQueue)
	f.Int32(4, &p.InUse)
	f.Int32(5, &p.Waiting)
	f.Uint64(6, &p.Last)
	f.Duration(7, &p.Per)
	f.Duration(8, &p.Free)
}

func (g *Grant) fields(f *codec) {
	f.Text(1, &g.Pool)
	f.Uint64(2, &g.Token)
	f.Duration(3, &g.TTL)
}

func (p *Pressure) fields(f *codec) {
	f.Int32(1, &p.InUse)
	f.Int32(2, &p.Limit)
	f.Int32(3, &p.Threshold)
}

func (c *Counters) fields(f *codec) {
	f.Uint32(1, &c.Attempts)
	f.Uint32(2, &c.Calls)
	f.Uint32(3, &c.Executions)
	f.Uint32(4, &c.Failures)
	f.Uint32(5, &c.Consecutive)
	f.Sint64(6, &c.Tokens)
}

func (p *Place) fields(f *codec) {
	f.Text(1, &p.Pool)
	f.Int32(2, &p.Position)
}

func (l *Lapse) fields(f *codec) {
	f.Text(1, &l.Session)
	f.Text(2, &l.Call)
	f.Text(3, &l.Tool)
	f.Text(4, &l.NS)
}
