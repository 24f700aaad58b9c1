package wire

import (
	"bytes"
	"math/bits"
	"strings"
	"sync"
	"time"

	"example.com/govnode/session"
)

// A Swap is one call of swap.lua under construction.
type Swap struct {
	at    *Place
	Wants []Want
	Stamp Stamp
	Keys  []string
	// Places of the first index, record and part among the keys, as Lua counts.
	firstIndex, firstRecord, firstPart int
	before                             []int // how many parts are wanted of the records before each

	text    *[]byte // of values and of what is appended
	values  []span  // of each record; empty: it stays
	appends []span  // to each part
	Ops     []any
	Tell    bool // others may wait for what changes
	Turn    Turn
}

// A Turn is what a swap says of turns.
type Turn struct {
	Name string // under which the node is called; empty: it takes none
	More string // "1": wants another after this
	Told string // numbers of records that the next is told
}

// Terms are what a swap is carried out under.
type Terms struct {
	Epoch, ReplID string
	Now, Latest   time.Duration // log time, and what the stored clock may be
	Channel       string        // on which others are told
	Node          string
	Mark          uint64 // that the node knows to have left
}

// A span is a part of the text.
type span struct{ from, to int }

// NewSwap returns a call that checks the stamps of the records wanted.
func NewSwap(p *Place, st Stamp, wants []Want) Swap {
	s := Swap{at: p, Wants: wants, Stamp: st, firstIndex: len(p.first) + 1}
	s.Keys = make([]string, 0, len(p.first)+3+2*len(wants))
	s.Keys = append(s.Keys, p.first[:]...)
	var known [256]bool
	for i := range wants {
		if kind := wants[i].Key.Kind(); !known[kind] {
			known[kind] = true
			s.Keys = append(s.Keys, p.Index(kind))
		}
	}
	s.firstRecord = len(s.Keys) + 1
	for i := range wants {
		s.Keys = append(s.Keys, p.Record(wants[i].Key))
	}
	s.firstPart = len(s.Keys) + 1
	s.Keys = AppendParts(s.Keys, p, wants)
	s.before = make([]int, len(wants))
	for i := 1; i < len(wants); i++ {
		s.before[i] = s.before[i-1] + bits.OnesCount16(wants[i-1].Parts)
	}
	return s
}

// indexKey and recordKey return the places of a record's keys.
func (s *Swap) indexKey(i int) int {
	kind := s.Wants[i].Key.Kind()
	for at := s.firstIndex; ; at++ {
		if index := s.Keys[at-1]; index[len(index)-1] == kind {
			return at
		}
	}
}

func (s *Swap) recordKey(i int) int { return s.firstRecord + i }

// partKey returns the place of a part's key: among those wanted, or behind them.
func (s *Swap) partKey(i, part int) int {
	if w := s.Wants[i].Parts; w&(1<<part) != 0 {
		return s.firstPart + s.before[i] + bits.OnesCount16(w&(1<<part-1))
	}
	s.Keys = append(s.Keys, s.at.Part(s.Wants[i].Key, part))
	return len(s.Keys)
}

// Idle reports whether nothing is written.
func (s *Swap) Idle() bool { return s.values == nil && len(s.Ops) == 0 }

// Put adds what it takes to write a record in the place of another, and returns
// it as it will be found.
func (s *Swap) Put(i int, was Entry, after session.Record, now time.Duration) Entry {
	k := s.Wants[i].Key
	if after == nil {
		s.Remove(i, was)
		return Entry{}
	}
	if s.values == nil {
		s.values = make([]span, len(s.Wants))
	}
	packed := session.Pack(k, after)
	next := Entry{Stamp: s.Stamp, Record: packed.Next, Due: Standing(after, was.Due, now)}
	s.values[i] = s.write(func(b []byte) []byte { return AppendValue(b, k, s.Stamp, next.Due, packed.Head) })
	next.Value = s.values[i].to - s.values[i].from
	next.Size = next.Value + was.Size/2 // with what is known of its parts, roughly
	for _, c := range packed.Parts {
		switch {
		case !c.Whole:
			key := s.partKey(i, c.Part)
			if session.HasIDs(was.Record, c.Part) {
				s.Ops = append(s.Ops, "E", key) // else the rest of it would be all there ever was
			}
			if len(c.Bytes) > 0 {
				s.append(key, c.Bytes)
			}
			if c.Drop > 0 {
				s.Ops = append(s.Ops, "T", key, c.Drop)
			}
		case len(c.Bytes) > 0:
			s.Ops = append(s.Ops, "W", s.partKey(i, c.Part), c.Bytes)
		case was.Record != nil:
			s.Ops = append(s.Ops, "X", s.partKey(i, c.Part))
		}
	}
	if was.Record == nil {
		s.Ops = append(s.Ops, "I", s.indexKey(i), k.Name())
	}
	if next.Due != was.Due {
		if next.Due == 0 {
			s.Ops = append(s.Ops, "R", string(k))
		} else {
			s.Ops = append(s.Ops, "Z", Score(next.Due), string(k))
		}
	}
	return next
}

// append adds what is appended to the part whose key has a place.
func (s *Swap) append(key int, bytes []byte) {
	n := key - s.firstPart
	for len(s.appends) <= n {
		s.appends = append(s.appends, span{})
	}
	s.appends[n] = s.write(func(text []byte) []byte { return append(text, bytes...) })
}

// texts are used again, since each is long and short-lived.
var texts = sync.Pool{New: func() any { return new([]byte) }}

func (s *Swap) write(f func([]byte) []byte) span {
	if s.text == nil {
		s.text = texts.Get().(*[]byte)
		*s.text = (*s.text)[:0]
	}
	from := len(*s.text)
	*s.text = f(*s.text)
	return span{from, len(*s.text)}
}

// Remove adds what it takes to remove a record.
func (s *Swap) Remove(i int, was Entry) {
	k := s.Wants[i].Key
	s.Ops = append(s.Ops, "D", s.recordKey(i), "J", s.indexKey(i), k.Name())
	if was.Due != 0 {
		s.Ops = append(s.Ops, "R", string(k))
	}
	if session.HasParts(k) {
		for part := range session.ForgottenParts {
			s.Ops = append(s.Ops, "X", s.partKey(i, part))
		}
	}
}

// Lose adds what it takes to remove a record that is to be missed: its index goes on
// to list it.
func (s *Swap) Lose(i int) { s.Ops = append(s.Ops, "D", s.recordKey(i)) }

// Decided adds what it takes to end that a record is set aside: its name leaves the
// list of those, and nothing is kept of it.
func (s *Swap) Decided(i int, list string) {
	k := s.Wants[i].Key
	s.Keys = append(s.Keys, list)
	s.Ops = append(s.Ops, "L", len(s.Keys), string(k))
	for _, kept := range s.at.Asides(k) {
		s.Keys = append(s.Keys, kept)
		s.Ops = append(s.Ops, "D", len(s.Keys))
	}
}

// SmallRecords is up to how many bytes of values a swap reads whole to find
// their stamps, which costs Redis less than to cut each out.
const SmallRecords = 256 << 10

// Arguments returns the call, with three places for the command before it.
// Pointers to texts go to the connection without a copy.
func (s *Swap) Arguments(was []Entry, t Terms) []any {
	n := len(was)
	all := make([]any, 3, 3+len(s.Keys)+18+n+len(s.Keys)-s.firstPart+1+len(s.Ops))
	for i := range s.Keys {
		if i == 0 {
			all = append(all, s.Keys[i])
		} else {
			all = append(all, &s.Keys[i])
		}
	}
	stamps, indexes, parts := make([]byte, 0, StampLen*n), make([]byte, n), make([]byte, n)
	small, size := "1", 0
	name := 1
	for i := range was {
		k := s.Wants[i].Key
		if was[i].Stamp == "" {
			stamps = append(stamps, noStamp...)
		} else {
			stamps = append(stamps, was[i].Stamp...)
		}
		indexes[i] = 'A' + byte(s.indexKey(i)-s.firstIndex)
		parts[i] = 'A' + byte(bits.OnesCount16(s.Wants[i].Parts))
		if i == 0 {
			name = len(s.Keys[s.firstRecord-1]) - len(k.Name()) + 1
		}
		size += was[i].Value
	}
	if size > SmallRecords {
		small = "0"
	}
	message := ""
	if s.Tell {
		message = t.Node + " " + s.at.NS
	} else {
		t.Channel = ""
	}
	all = append(all, t.Epoch, t.ReplID, ClockText(t.Now), ClockText(t.Latest),
		s.firstRecord-s.firstIndex, n, t.Channel, message, s.Turn.Name, s.Turn.More, s.Turn.Told, name,
		stamps, indexes, parts, small, t.Node, t.Mark)
	if s.Idle() {
		return all
	}
	return append(s.appendWrites(all, n), s.Ops...)
}

// Clone returns a swap that can be carried out when this one was.
func (s *Swap) Clone() Swap {
	c := *s
	if s.text != nil {
		text := bytes.Clone(*s.text)
		c.text = &text
	}
	return c
}

// noStamp stands for that of an absent record.
var noStamp = strings.Repeat("\x00", StampLen)

// appendWrites appends the values of n records and what is appended to parts.
func (s *Swap) appendWrites(all []any, n int) []any {
	text := ""
	if s.text != nil {
		text = string(*s.text)
		texts.Put(s.text)
		s.text = nil
	}
	parts := len(s.Keys) - s.firstPart + 1
	cut := make([]string, n+parts)
	for i, at := range s.values {
		cut[i] = text[at.from:at.to]
	}
	for i, at := range s.appends {
		cut[n+i] = text[at.from:at.to]
	}
	for i := range cut {
		all = append(all, &cut[i])
	}
	return all
}
