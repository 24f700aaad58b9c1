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
	f := codec{Coder: wire.NewWriter(dst)}
	for m := f.Top(); f.Visit(&m); {
		f.record(&r)
	}
	return f.Bytes()
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
	f := codec{Coder: wire.NewReader(b, nil)}
	var r Record
	for m := f.Top(); f.Visit(&m); {
		f.record(&r)
	}
	f.Require(r != nil, "a record of no kind")
	if f.Err() != nil {
		return nil, f.Err()
	}
	return r, nil
}

// record is the one field of message Record.
func (f *codec) record(r *Record) {
	if f.Writes() {
		for m := f.Message(recordNumber(*r), true); f.Visit(&m); {
			f.recordFields(*r)
		}
		return
	}
	for f.Field() != 0 {
		if *r != nil {
			f.Fail("a second kind of record")
			return
		}
		if *r = newRecord(f.Field()); *r == nil {
			f.Unknown("kind", uint64(f.Field()), "a record")
			return
		}
		for m := f.Message(f.Field(), true); f.Visit(&m); {
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
	case *Budget:
		return 14
	case *Signals:
		return 11
	case *Approval:
		return 12
	case *Standing:
		return 13
	case *List:
		return 15
	case *ListItem:
		return 16
	case *Access:
		return 17
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
	case 14:
		return new(Budget)
	case 11:
		return new(Signals)
	case 12:
		return new(Approval)
	case 13:
		return new(Standing)
	case 15:
		return new(List)
	case 16:
		return new(ListItem)
	case 17:
		return new(Access)
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
		f.Blob(1, &r.Tree)
		f.pin(2, &r.Pin)
		f.keptAll(3, &r.Names)
		f.Kept(4, &r.First)
	case *Name:
		f.digest(1, &r.Digest)
		f.Int32(2, &r.Version)
	case *Pins:
		f.Int64(1, &r.N)
	case *Counter:
		f.value(1, &r.Value)
		f.Duration(2, &r.Until)
	case *Namespace:
		f.Uint64(1, &r.ForgotSessions)
		f.Uint64(2, &r.ForgotClients)
		f.Uint64(3, &r.TokenFloor)
		f.Uint64(4, &r.Budgets)
		f.chain(5, &r.Chain)
	case *Baseline:
		f.digest(1, &r.Hash)
		f.Kept(2, &r.Text)
	case *Hash:
		f.Kept(1, &r.Hash)
	case *Budget:
		r.fields(f)
	case *List:
		r.fields(f)
	case *ListItem:
		r.fields(f)
	case *Signals:
		r.fields(f)
	case *Access:
		r.fields(f)
	case *Approval:
		r.fields(f)
	case *Standing:
		r.fields(f)
	}
}

// settle checks of a record that was read what the state machine relies on, and
// computes what is derived.
func (f *codec) settle(r Record) {
	switch r := r.(type) {
	case *Session:
		f.Require(r.Pin != nil, "a session without a pin")
	case *Client:
		for i := range r.Open {
			f.Require(len(r.Open[i].Pools) == 1, "a slot of a client that is not of one pool")
		}
	case *Policy:
		f.Require(r.Pin != nil, "a policy without a pin")
	case *Pool:
		last, most := uint64(0), int32(MaxSlots)
		if r.Per > 0 {
			most = MaxRate
		}
		f.Require(r.Per > 0 || len(r.Leases) <= MaxSlots, "more leases than a pool has slots")
		for i := range r.Leases {
			l := &r.Leases[i]
			f.Require(l.Token > last && l.Token <= r.Last, "leases that are not in the order of their tokens")
			f.Require(l.Weight > 0 && l.Weight <= most, "a lease of a weight that cannot be") // sums stay in an int32
			f.Require(l.Claim == (l.Place != nil), "a claim without a place, or a place without a claim")
			last = l.Token
		}
		for i := range r.Queue {
			w := r.Queue[i].Weight
			f.Require(w > 0 && w <= most, "a ticket of a weight that cannot be")
		}
		r.Index()
	}
}

func (s *Session) fields(f *codec) {
	f.Name(1, &s.Agent)
	f.Name(2, &s.Policy)
	f.Int32(3, &s.Version)
	f.Uint8(4, (*uint8)(&s.Phase), uint8(PhaseExpired))
	f.Bool(5, &s.Pinned)
	f.pin(6, &s.Pin)
	f.fingerprint(7, &s.Content)
	f.Duration(8, &s.Opened)
	f.Duration(9, &s.IdleTTL)
	f.Duration(10, &s.Used)
	f.Uint32(12, &s.Attempts)
	f.Uint32(13, &s.Calls)
	f.Uint32(14, &s.Executions)
	f.Uint32(15, &s.Failures)
	f.Uint32(16, &s.Consecutive)
	f.Sint64(17, &s.Tokens)
	f.Sint64(18, &s.Reserved)
	for i, n := elements(f, 19, &s.Tools, MaxTools); i < n; i++ {
		for m := f.Message(19, true); f.Visit(&m); {
			f.Name(1, &s.Tools[i].Tool)
			f.Uint32(2, &s.Tools[i].Calls)
			f.Uint32(3, &s.Tools[i].Sampling)
		}
	}
	f.open(20, &s.Open)
	s.IDs.Field(&f.Coder, 21)
	f.more(22, &s.More)
	f.gates(23, &s.Gates)
	f.chain(24, &s.Chain)
}

func (c *Client) fields(f *codec) {
	f.Duration(1, &c.Used)
	f.open(2, &c.Open)
	c.IDs.Field(&f.Coder, 3)
	f.Uint64(4, &c.Born)
	f.chain(5, &c.Chain)
}

// pins are shared by their bytes. They are bounded, for they come from clients;
// beyond the bound it costs memory and changes nothing.
type pins map[string]*Pin

const maxPins = 1 << 16

func (f *codec) pin(num protowire.Number, v **Pin) {
	if f.Writes() {
		for m := f.Message(num, *v != nil); f.Visit(&m); {
			(*v).fields(f)
		}
		return
	}
	if f.Field() != num {
		return
	}
	b := f.Peek()
	if f.Err() != nil {
		return
	}
	if *v = f.pins[string(b)]; *v != nil {
		f.Skip()
		return
	}
	p := new(Pin)
	for m := f.Message(num, true); f.Visit(&m); {
		p.fields(f)
	}
	*v = p
	if f.Err() == nil && f.pins != nil && len(f.pins) < maxPins {
		f.pins[string(b)] = p
	}
}

func (p *Pin) fields(f *codec) {
	f.digest(1, &p.Digest)
	f.limits(2, &p.Limits)
}

func (f *codec) more(num protowire.Number, v **More) {
	if f.Field() == num && *v == nil {
		*v = new(More)
	}
	for m := f.Message(num, *v != nil); f.Visit(&m); {
		f.Kept(1, &(*v).Parent)
		f.attributes(2, &(*v).Attributes)
		f.digest(3, &(*v).Baseline)
		f.Sint64(4, &(*v).Drift)
		f.digest(5, &(*v).Token)
	}
}

func (f *codec) open(num protowire.Number, v *[]Held) {
	for i, n := elements(f, num, v, MaxOpen); i < n; i++ {
		for m := f.Message(num, true); f.Visit(&m); {
			(*v)[i].fields(f)
		}
	}
}

func (h *Held) fields(f *codec) {
	f.Kept(1, &h.Holder)
	f.fingerprint(2, &h.Content)
	f.Duration(3, &h.Started)
	f.Duration(4, &h.Deadline)
	f.Duration(5, &h.Until)
	f.Sint64(6, &h.Tokens)
	f.Name(7, &h.Tool)
	for i, n := elements(f, 8, &h.Pools, MaxPools+1+MaxRates); i < n; i++ {
		for m := f.Message(8, true); f.Visit(&m); {
			f.Name(1, &h.Pools[i].Pool)
			f.Uint64(2, &h.Pools[i].Token)
			f.Int32(3, &h.Pools[i].Weight)
		}
	}
	f.Uint16(9, &h.Rule)
	f.Uint8(10, (*uint8)(&h.Kind), uint8(Sampling))
	if f.Field() == 11 && h.Gates == nil {
		h.Gates = new(HeldGates)
	}
	for m := f.Message(11, h.Gates != nil); f.Visit(&m); {
		h.Gates.fields(f)
	}
}

func (p *Pool) fields(f *codec) {
	for i, n := elements(f, 1, &p.Leases, maxLeases); i < n; i++ {
		for m := f.Message(1, true); f.Visit(&m); {
			leaseFields(f, &p.Leases[i])
		}
	}
	// What was handed over may have gone back into a full queue.
	for i, n := elements(f, 2, &p.Queue, MaxQueue+maxLeases); i < n; i++ {
		for m := f.Message(2, true); f.Visit(&m); {
			ticketFields(f, &p.Queue[i])
		}
	}
	f.Uint64(3, &p.Last)
	f.Int32(4, &p.Slots)
	f.Int32(5, &p.Threshold)
	f.Int32(6, &p.MaxQueue)
	f.Bool(7, &p.Put)
	f.Duration(8, &p.Per)
	f.Duration(9, &p.Kept)
}

func leaseFields(f *codec, l *limiter.Lease) {
	f.Kept(1, &l.Holder)
	f.Name(2, &l.Label)
	f.Uint64(3, &l.Token)
	f.Duration(4, &l.Since)
	f.Duration(5, &l.Expires)
	f.Duration(6, &l.HoldUntil)
	f.Int32(7, &l.Weight)
	f.Bool(8, &l.Claim)
	if f.Field() == 9 && l.Place == nil {
		l.Place = new(limiter.Place)
	}
	for m := f.Message(9, l.Place != nil); f.Visit(&m); {
		f.Duration(1, &l.Place.Until)
		f.Duration(2, &l.Place.Seen)
		f.Int32(3, &l.Place.Slots)
		f.Sint32(4, &l.Place.Priority)
	}
}

func ticketFields(f *codec, t *limiter.Ticket) {
	f.Kept(1, &t.Holder)
	f.Name(2, &t.Label)
	f.Duration(3, &t.Until)
	f.Duration(4, &t.Seen)
	f.Int32(5, &t.Weight)
	f.Int32(6, &t.Slots)
	f.Sint32(7, &t.Priority)
}
