package session

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"example.com/govnode/limiter"
	"example.com/govnode/session/wire"
)

// EncodeRecord encodes a record: log.proto, message Record, sealed. Equal
// records have equal bytes; what is derived from others, or is of this process
// alone, is left out.
func EncodeRecord(r Record) []byte { return AppendRecord(nil, r) }

// AppendRecord appends what EncodeRecord returns.
func AppendRecord(dst []byte, r Record) []byte {
	return wire.Record.Seal(appendRecord(dst, r), len(dst))
}

// appendRecord is AppendRecord without the seal, for what has one of its own.
func appendRecord(dst []byte, r Record) []byte {
	f := codec{write: true, b: dst}
	for m := f.top(); f.visit(&m); {
		f.record(&r)
	}
	return f.b
}

// DecodeRecord decodes a record, of which nothing is part of b. An error that
// wraps ErrDamaged tells that its seal does not hold.
func DecodeRecord(b []byte) (Record, error) {
	b, err := wire.Record.Open(b)
	if err != nil {
		return nil, err
	}
	return decodeRecord(b)
}

func decodeRecord(b []byte) (Record, error) {
	f := reader(b)
	var r Record
	for m := f.top(); f.visit(&m); {
		f.record(&r)
	}
	f.require(r != nil, "a record of no kind")
	if f.err != nil {
		return nil, f.err
	}
	return r, nil
}

// record is the one field of message Record.
func (f *codec) record(r *Record) {
	if f.write {
		for m := f.message(recordNumber(*r), true); f.visit(&m); {
			f.recordFields(*r)
		}
		return
	}
	for f.num != 0 {
		if *r != nil {
			f.fail("a second kind of record")
			return
		}
		if *r = newRecord(f.num); *r == nil {
			f.unknown("kind", uint64(f.num), "a record")
			return
		}
		for m := f.message(f.num, true); f.visit(&m); {
			f.recordFields(*r)
		}
		f.settle(*r)
	}
}

func recordNumber(r Record) protowire.Number {
	switch r.(type) {
	case *Session:
		return 1
	case *Pool:
		return 2
	case *Client:
		return 3
	case *Policy:
		return 4
	case *Name:
		return 5
	case *Pins:
		return 6
	case *Counter:
		return 7
	case *Namespace:
		return 8
	case *Baseline:
		return 9
	case *Hash:
		return 10
	}
	panic(fmt.Sprintf("session: no encoding of %T", r))
}

func newRecord(number protowire.Number) Record {
	switch number {
	case 1:
		return new(Session)
	case 2:
		return new(Pool)
	case 3:
		return new(Client)
	case 4:
		return new(Policy)
	case 5:
		return new(Name)
	case 6:
		return new(Pins)
	case 7:
		return new(Counter)
	case 8:
		return new(Namespace)
	case 9:
		return new(Baseline)
	case 10:
		return new(Hash)
	}
	return nil
}

func (f *codec) recordFields(r Record) {
	switch r := r.(type) {
	case *Session:
		r.fields(f)
	case *Pool:
		r.fields(f)
	case *Client:
		r.fields(f)
	case *Policy:
		f.blob(1, &r.Tree)
		f.pin(2, &r.Pin)
		f.keptAll(3, &r.Names)
		f.kept(4, &r.First)
	case *Name:
		f.digest(1, &r.Digest)
		f.int32(2, &r.Version)
	case *Pins:
		f.int64(1, &r.N)
	case *Counter:
		f.value(1, &r.Value)
		f.duration(2, &r.Until)
	case *Namespace:
		f.uint64(1, &r.ForgotSessions)
		f.uint64(2, &r.ForgotClients)
		f.uint64(3, &r.TokenFloor)
	case *Baseline:
		f.digest(1, &r.Hash)
		f.kept(2, &r.Text)
	case *Hash:
		f.kept(1, &r.Hash)
	}
}

// settle checks of a record that was read what the state machine relies on, and
// computes what is derived.
func (f *codec) settle(r Record) {
	switch r := r.(type) {
	case *Session:
		f.require(r.Pin != nil, "a session without a pin")
	case *Client:
		for i := range r.Open {
			f.require(len(r.Open[i].Pools) == 1, "a slot of a client that is not of one pool")
		}
	case *Policy:
		f.require(r.Pin != nil, "a policy without a pin")
	case *Pool:
		last := uint64(0)
		for i := range r.Leases {
			l := &r.Leases[i]
			f.require(l.Token > last && l.Token <= r.Last, "leases that are not in the order of their tokens")
			f.require(l.Weight > 0 && l.Weight <= MaxSlots, "a lease of a weight that cannot be") // sums stay in an int32
			f.require(l.Claim == (l.Place != nil), "a claim without a place, or a place without a claim")
			last = l.Token
		}
		for i := range r.Queue {
			w := r.Queue[i].Weight
			f.require(w > 0 && w <= MaxSlots, "a ticket of a weight that cannot be")
		}
		r.Index()
	}
}

func (s *Session) fields(f *codec) {
	f.name(1, &s.Agent)
	f.name(2, &s.Policy)
	f.int32(3, &s.Version)
	unsigned(f, 4, &s.Phase, uint64(PhaseExpired))
	f.bool(5, &s.Pinned)
	f.pin(6, &s.Pin)
	f.fingerprint(7, &s.Content)
	f.duration(8, &s.Opened)
	f.duration(9, &s.IdleTTL)
	f.duration(10, &s.Used)
	f.uint32(12, &s.Attempts)
	f.uint32(13, &s.Calls)
	f.uint32(14, &s.Executions)
	f.uint32(15, &s.Failures)
	f.uint32(16, &s.Consecutive)
	f.sint64(17, &s.Tokens)
	f.sint64(18, &s.Reserved)
	for i, n := elements(f, 19, &s.Tools, MaxTools); i < n; i++ {
		for m := f.message(19, true); f.visit(&m); {
			f.name(1, &s.Tools[i].Tool)
			f.uint32(2, &s.Tools[i].Calls)
		}
	}
	f.open(20, &s.Open)
	f.ids(21, &s.IDs)
	f.more(22, &s.More)
}

func (c *Client) fields(f *codec) {
	f.duration(1, &c.Used)
	f.open(2, &c.Open)
	f.ids(3, &c.IDs)
	f.uint64(4, &c.Born)
}

func (f *codec) pin(num protowire.Number, v **Pin) {
	if f.write {
		for m := f.message(num, *v != nil); f.visit(&m); {
			(*v).fields(f)
		}
		return
	}
	if f.num != num {
		return
	}
	i, j := f.span()
	if f.err != nil {
		return
	}
	if *v = f.names.pin(f.b[i:j]); *v != nil {
		f.pos = j
		f.next()
		return
	}
	p := new(Pin)
	for m := f.message(num, true); f.visit(&m); {
		p.fields(f)
	}
	*v = p
	if f.err == nil {
		f.names.keep(f.b[i:j], p)
	}
}

func (p *Pin) fields(f *codec) {
	f.digest(1, &p.Digest)
	f.limits(2, &p.Limits)
}

func (f *codec) more(num protowire.Number, v **More) {
	if !f.write && f.num == num && *v == nil {
		*v = new(More)
	}
	for m := f.message(num, *v != nil); f.visit(&m); {
		f.kept(1, &(*v).Parent)
		f.attributes(2, &(*v).Attributes)
		f.digest(3, &(*v).Baseline)
		f.sint64(4, &(*v).Drift)
	}
}

func (f *codec) open(num protowire.Number, v *[]Held) {
	for i, n := elements(f, num, v, MaxOpen); i < n; i++ {
		for m := f.message(num, true); f.visit(&m); {
			(*v)[i].fields(f)
		}
	}
}

func (h *Held) fields(f *codec) {
	f.kept(1, &h.Holder)
	f.fingerprint(2, &h.Content)
	f.duration(3, &h.Started)
	f.duration(4, &h.Deadline)
	f.duration(5, &h.Until)
	f.sint64(6, &h.Tokens)
	f.name(7, &h.Tool)
	for i, n := elements(f, 8, &h.Pools, MaxPools+1); i < n; i++ {
		for m := f.message(8, true); f.visit(&m); {
			f.name(1, &h.Pools[i].Pool)
			f.uint64(2, &h.Pools[i].Token)
			f.int32(3, &h.Pools[i].Weight)
		}
	}
	f.uint16(9, &h.Rule)
	unsigned(f, 10, &h.Kind, uint64(Handoff))
}

func (p *Pool) fields(f *codec) {
	for i, n := elements(f, 1, &p.Leases, MaxSlots); i < n; i++ {
		for m := f.message(1, true); f.visit(&m); {
			leaseFields(f, &p.Leases[i])
		}
	}
	// What was handed over may have gone back into a full queue.
	for i, n := elements(f, 2, &p.Queue, MaxQueue+MaxSlots); i < n; i++ {
		for m := f.message(2, true); f.visit(&m); {
			ticketFields(f, &p.Queue[i])
		}
	}
	f.uint64(3, &p.Last)
	f.int32(4, &p.Slots)
	f.int32(5, &p.Threshold)
	f.int32(6, &p.MaxQueue)
	f.bool(7, &p.Put)
}

func leaseFields(f *codec, l *limiter.Lease) {
	f.kept(1, &l.Holder)
	f.name(2, &l.Label)
	f.uint64(3, &l.Token)
	f.duration(4, &l.Since)
	f.duration(5, &l.Expires)
	f.duration(6, &l.HoldUntil)
	f.int32(7, &l.Weight)
	f.bool(8, &l.Claim)
	if !f.write && f.num == 9 && l.Place == nil {
		l.Place = new(limiter.Place)
	}
	for m := f.message(9, l.Place != nil); f.visit(&m); {
		f.duration(1, &l.Place.Until)
		f.duration(2, &l.Place.Seen)
		f.int32(3, &l.Place.Slots)
		f.sint32(4, &l.Place.Priority)
	}
}

func ticketFields(f *codec, t *limiter.Ticket) {
	f.kept(1, &t.Holder)
	f.name(2, &t.Label)
	f.duration(3, &t.Until)
	f.duration(4, &t.Seen)
	f.int32(5, &t.Weight)
	f.int32(6, &t.Slots)
	f.sint32(7, &t.Priority)
}
