package session

import (
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"example.com/govnode/session/wire"
)

// entryVersion is the format of entries that this build writes and reads.
const entryVersion = 1

// entryCommands is the number of the field of message Entry that is repeated.
const entryCommands = 3

// ErrDamaged is wrapped by the error for bytes that are not those that were
// sealed; see package wire.
var ErrDamaged = wire.ErrDamaged

// ErrUnknownKind is wrapped by the error for an entry, a command or a record of
// a kind or a version that this build does not know. A node that finds one in
// its log stops: to skip it would be to diverge.
var ErrUnknownKind = errors.New("session: unknown kind or version")

// EncodeEntry encodes an entry of the log: log.proto, message Entry, sealed.
func EncodeEntry(at time.Duration, cmds []Command) []byte { return AppendEntry(nil, at, cmds) }

// AppendEntry appends what EncodeEntry returns.
func AppendEntry(dst []byte, at time.Duration, cmds []Command) []byte {
	return wire.Entry.Seal(appendEntry(dst, at, cmds), len(dst))
}

func appendEntry(dst []byte, at time.Duration, cmds []Command) []byte {
	f := codec{write: true, b: dst}
	version := uint32(entryVersion)
	for m := f.top(); f.visit(&m); {
		f.entry(&version, &at, &cmds)
	}
	return f.b
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
	b, err = wire.Entry.Open(b)
	if err != nil {
		return 0, nil, err
	}
	f := reader(b)
	f.s = string(b)
	var version uint32
	for m := f.top(); f.visit(&m); {
		f.entry(&version, &at, &cmds)
	}
	if f.err == nil && version != entryVersion {
		f.err = fmt.Errorf("%w: version %d of an entry", ErrUnknownKind, version)
	}
	if f.err != nil {
		return 0, nil, f.err
	}
	return at, cmds, nil
}

func (f *codec) entry(version *uint32, at *time.Duration, cmds *[]Command) {
	f.uint32(1, version)
	if !f.write && *version > entryVersion {
		f.unknown("version", uint64(*version), "an entry")
	}
	f.duration(2, at)
	for i, n := elements(f, entryCommands, cmds, math.MaxInt); i < n; i++ {
		for m := f.sealed(entryCommands, wire.Command); f.visit(&m); {
			f.command(&(*cmds)[i])
		}
		f.require((*cmds)[i] != nil, "a command of no kind")
	}
}

// unknown fails with ErrUnknownKind.
func (f *codec) unknown(what string, number uint64, of string) {
	f.failWith(fmt.Errorf("%w: %s %d of %s", ErrUnknownKind, what, number, of))
}

// require fails unless what was read is as the state machine relies on.
func (f *codec) require(holds bool, text string) {
	if !holds && !f.write {
		f.fail(text)
	}
}

// EncodeCommand encodes one command, as it goes from one node to another and
// stands in an entry: log.proto, message Command, sealed.
func EncodeCommand(c Command) []byte { return AppendCommand(nil, c) }

// AppendCommand appends what EncodeCommand returns.
func AppendCommand(dst []byte, c Command) []byte {
	f := codec{write: true, b: dst}
	for m := f.top(); f.visit(&m); {
		f.command(&c)
	}
	return wire.Command.Seal(f.b, len(dst))
}

// DecodeCommand decodes one command; see DecodeEntry for its strings and for
// ErrDamaged.
func DecodeCommand(b []byte) (Command, error) {
	b, err := wire.Command.Open(b)
	if err != nil {
		return nil, err
	}
	f := reader(b)
	f.s = string(b)
	var c Command
	for m := f.top(); f.visit(&m); {
		f.command(&c)
	}
	f.require(c != nil, "a command of no kind")
	if f.err != nil {
		return nil, f.err
	}
	return c, nil
}

// command is the one field of message Command: its number is the kind.
func (f *codec) command(c *Command) {
	if f.write {
		kind := protowire.Number((*c).Kind())
		for m := f.message(kind, true); f.visit(&m); {
			f.commandFields(*c)
		}
		return
	}
	for f.num != 0 {
		if *c != nil {
			f.fail("a second kind of command")
			return
		}
		if *c = newCommand(f.num); *c == nil {
			f.unknown("kind", uint64(f.num), "a command")
			return
		}
		for m := f.message(f.num, true); f.visit(&m); {
			f.commandFields(*c)
		}
		trim(*c)
	}
}

// EncodeResult encodes a result, as it goes from one node to another:
// log.proto, message Result, sealed.
func EncodeResult(r *Result) []byte { return AppendResult(nil, r) }

// AppendResult appends what EncodeResult returns.
func AppendResult(dst []byte, r *Result) []byte {
	f := codec{write: true, b: dst}
	for m := f.top(); f.visit(&m); {
		r.fields(&f)
	}
	return wire.Result.Seal(f.b, len(dst))
}

// DecodeResult decodes a result. Its strings are parts of one copy of b. An
// error that wraps ErrDamaged tells that its seal does not hold.
func DecodeResult(b []byte) (Result, error) {
	b, err := wire.Result.Open(b)
	if err != nil {
		return Result{}, err
	}
	f := reader(b)
	f.s = string(b)
	var r Result
	for m := f.top(); f.visit(&m); {
		r.fields(&f)
	}
	if r.After != nil && r.After.Session != nil {
		f.settle(r.After.Session)
	}
	if f.err != nil {
		return Result{}, f.err
	}
	return r, nil
}

func (r *Result) fields(f *codec) {
	unsigned(f, 1, &r.Code, uint64(numCodes-1))
	f.bool(2, &r.Repeat)
	f.uint16(3, &r.Rule)
	for i, n := elements(f, 4, &r.Grants, math.MaxInt); i < n; i++ {
		for m := f.message(4, true); f.visit(&m); {
			r.Grants[i].fields(f)
		}
	}
	for m := f.optional(5, r.Pressure != Pressure{}); f.visit(&m); {
		r.Pressure.fields(f)
	}
	for m := f.optional(6, r.Counters != Counters{}); f.visit(&m); {
		r.Counters.fields(f)
	}
	for m := f.optional(7, r.Queue != Place{}); f.visit(&m); {
		r.Queue.fields(f)
	}
	f.duration(8, &r.RetryAfter)
	f.sint64(9, &r.Limit)
	f.duration(10, &r.Elapsed)
	f.sint64(11, &r.Value)
	f.uint32(12, &r.Checkpoint)
	f.uint64(13, &r.NewerThan)
	f.bool(14, &r.Released)
	f.digest(15, &r.Digest)
	f.texts(16, &r.Pools)
	f.texts(17, &r.Names)
	f.facts(18, &r.Facts)
	for i, n := elements(f, 19, &r.Lapsed, math.MaxInt); i < n; i++ {
		for m := f.message(19, true); f.visit(&m); {
			r.Lapsed[i].fields(f)
		}
	}
	if !f.write && f.num == 20 && r.After == nil {
		r.After = new(After)
	}
	for m := f.message(20, r.After != nil); f.visit(&m); {
		r.After.fields(f)
	}
}

func (a *After) fields(f *codec) {
	f.duration(1, &a.Now)
	if !f.write && f.num == 2 && a.Session == nil {
		a.Session = new(Session)
	}
	for m := f.message(2, a.Session != nil); f.visit(&m); {
		a.Session.fields(f)
	}
	if !f.write && f.num == 3 && a.Pool == nil {
		a.Pool = new(PoolCounts)
	}
	for m := f.message(3, a.Pool != nil); f.visit(&m); {
		a.Pool.fields(f)
	}
}

func (p *PoolCounts) fields(f *codec) {
	f.int32(1, &p.Slots)
	f.int32(2, &p.Threshold)
	f.int32(3, &p.MaxQueue)
	f.int32(4, &p.InUse)
	f.int32(5, &p.Waiting)
	f.uint64(6, &p.Last)
}

func (g *Grant) fields(f *codec) {
	f.text(1, &g.Pool)
	f.uint64(2, &g.Token)
	f.duration(3, &g.TTL)
}

func (p *Pressure) fields(f *codec) {
	f.int32(1, &p.InUse)
	f.int32(2, &p.Limit)
	f.int32(3, &p.Threshold)
}

func (c *Counters) fields(f *codec) {
	f.uint32(1, &c.Attempts)
	f.uint32(2, &c.Calls)
	f.uint32(3, &c.Executions)
	f.uint32(4, &c.Failures)
	f.uint32(5, &c.Consecutive)
	f.sint64(6, &c.Tokens)
}

func (p *Place) fields(f *codec) {
	f.text(1, &p.Pool)
	f.int32(2, &p.Position)
}

func (l *Lapse) fields(f *codec) {
	f.text(1, &l.Session)
	f.text(2, &l.Call)
	f.text(3, &l.Tool)
}
