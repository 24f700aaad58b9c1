package redis

import (
	"math/bits"
	"strings"
	"sync"
	"time"

	"example.com/govnode/session"
)

// A swapCall is one call of swap.lua under construction.
type swapCall struct {
	at    *spot
	wants []want
	stamp stamp
	keys  []string
	// Places of the first index, record and part among the keys, as Lua counts.
	firstIndex, firstRecord, firstPart int
	before                             []int // how many parts are wanted of the records before each

	text    *[]byte // of values and of what is appended
	values  []span  // of each record; empty: it stays
	appends []span  // to each part
	ops     []any
	tell    bool // others may wait for what changes
	turn    turnWish
}

// A turnWish is what a swap says of turns.
type turnWish struct {
	name string // under which the node is called; empty: it takes none
	more string // "1": wants another after this
	told string // numbers of records that the next is told
}

// terms are what a swap is carried out under.
type terms struct {
	epoch, replid string
	now, latest   time.Duration // log time, and what the stored clock may be
	channel       string        // on which others are told
	node          string
	mark          uint64 // that the node knows to have left
}

// A span is a part of the text.
type span struct{ from, to int }

// newSwapCall returns a call that checks the stamps of the records wanted.
func newSwapCall(p *spot, st stamp, wants []want) swapCall {
	s := swapCall{at: p, wants: wants, stamp: st, firstIndex: len(p.first) + 1}
	s.keys = make([]string, 0, len(p.first)+3+2*len(wants))
	s.keys = append(s.keys, p.first[:]...)
	var known [256]bool
	for i := range wants {
		if kind := wants[i].key.Kind(); !known[kind] {
			known[kind] = true
			s.keys = append(s.keys, p.index(kind))
		}
	}
	s.firstRecord = len(s.keys) + 1
	for i := range wants {
		s.keys = append(s.keys, p.record(wants[i].key))
	}
	s.firstPart = len(s.keys) + 1
	s.keys = appendParts(s.keys, p, wants)
	s.before = make([]int, len(wants))
	for i := 1; i < len(wants); i++ {
		s.before[i] = s.before[i-1] + bits.OnesCount16(wants[i-1].parts)
	}
	return s
}

// indexKey and recordKey return the places of a record's keys.
func (s *swapCall) indexKey(i int) int {
	kind := s.wants[i].key.Kind()
	for at := s.firstIndex; ; at++ {
		if index := s.keys[at-1]; index[len(index)-1] == kind {
			return at
		}
	}
}

func (s *swapCall) recordKey(i int) int { return s.firstRecord + i }

// partKey returns the place of a part's key: among those wanted, or behind them.
func (s *swapCall) partKey(i, part int) int {
	if w := s.wants[i].parts; w&(1<<part) != 0 {
		return s.firstPart + s.before[i] + bits.OnesCount16(w&(1<<part-1))
	}
	s.keys = append(s.keys, s.at.part(s.wants[i].key, part))
	return len(s.keys)
}

// idle reports whether nothing is written.
func (s *swapCall) idle() bool { return s.values == nil && len(s.ops) == 0 }

// put adds what it takes to write a record in the place of another, and returns
// it as it will be found.
func (s *swapCall) put(i int, was entry, after session.Record, now time.Duration) entry {
	k := s.wants[i].key
	if after == nil {
		s.remove(i, was)
		return entry{}
	}
	if s.values == nil {
		s.values = make([]span, len(s.wants))
	}
	packed := session.Pack(k, after)
	next := entry{stamp: s.stamp, record: packed.Next, due: standing(after, was.due, now)}
	s.values[i] = s.write(func(b []byte) []byte { return appendValue(b, k, s.stamp, next.due, packed.Head) })
	next.value = s.values[i].to - s.values[i].from
	next.size = next.value + was.size/2 // with what is known of its parts, roughly
	for _, c := range packed.Parts {
		switch {
		case !c.Whole:
			key := s.partKey(i, c.Part)
			if session.HasIDs(was.record, c.Part) {
				s.ops = append(s.ops, "E", key) // else the rest of it would be all there ever was
			}
			if len(c.Bytes) > 0 {
				s.append(key, c.Bytes)
			}
			if c.Drop > 0 {
				s.ops = append(s.ops, "T", key, c.Drop)
			}
		case len(c.Bytes) > 0:
			s.ops = append(s.ops, "W", s.partKey(i, c.Part), c.Bytes)
		case was.record != nil:
			s.ops = append(s.ops, "X", s.partKey(i, c.Part))
		}
	}
	if was.record == nil {
		s.ops = append(s.ops, "I", s.indexKey(i), k.Name())
	}
	if next.due != was.due {
		if next.due == 0 {
			s.ops = append(s.ops, "R", string(k))
		} else {
			s.ops = append(s.ops, "Z", score(next.due), string(k))
		}
	}
	return next
}

// append adds what is appended to the part whose key has a place.
func (s *swapCall) append(key int, bytes []byte) {
	n := key - s.firstPart
	for len(s.appends) <= n {
		s.appends = append(s.appends, span{})
	}
	s.appends[n] = s.write(func(text []byte) []byte { return append(text, bytes...) })
}

// texts are used again, since each is long and short-lived.
var texts = sync.Pool{New: func() any { return new([]byte) }}

func (s *swapCall) write(f func([]byte) []byte) span {
	if s.text == nil {
		s.text = texts.Get().(*[]byte)
		*s.text = (*s.text)[:0]
	}
	from := len(*s.text)
	*s.text = f(*s.text)
	return span{from, len(*s.text)}
}

func (s *swapCall) remove(i int, was entry) {
	k := s.wants[i].key
	s.ops = append(s.ops, "D", s.recordKey(i), "J", s.indexKey(i), k.Name())
	if was.due != 0 {
		s.ops = append(s.ops, "R", string(k))
	}
	if session.HasParts(k) {
		for part := range session.ForgottenParts {
			s.ops = append(s.ops, "X", s.partKey(i, part))
		}
	}
}

// smallRecords is up to how many bytes of values a swap reads whole to find
// their stamps, which costs Redis less than to cut each out.
const smallRecords = 256 << 10

// arguments returns the call, with three places for the command before it.
// Pointers to texts go to the connection without a copy.
func (s *swapCall) arguments(was []entry, t terms) []any {
	n := len(was)
	all := make([]any, 3, 3+len(s.keys)+18+n+len(s.keys)-s.firstPart+1+len(s.ops))
	for i := range s.keys {
		if i == 0 {
			all = append(all, s.keys[i])
		} else {
			all = append(all, &s.keys[i])
		}
	}
	stamps, indexes, parts := make([]byte, 0, stampLen*n), make([]byte, n), make([]byte, n)
	small, size := "1", 0
	name := 1
	for i := range was {
		k := s.wants[i].key
		if was[i].stamp == "" {
			stamps = append(stamps, noStamp...)
		} else {
			stamps = append(stamps, was[i].stamp...)
		}
		indexes[i] = 'A' + byte(s.indexKey(i)-s.firstIndex)
		parts[i] = 'A' + byte(bits.OnesCount16(s.wants[i].parts))
		if i == 0 {
			name = len(s.keys[s.firstRecord-1]) - len(k.Name()) + 1
		}
		size += was[i].value
	}
	if size > smallRecords {
		small = "0"
	}
	message := ""
	if s.tell {
		message = t.node + " " + s.at.ns
	} else {
		t.channel = ""
	}
	all = append(all, t.epoch, t.replid, clockText(t.now), clockText(t.latest),
		s.firstRecord-s.firstIndex, n, t.channel, message, s.turn.name, s.turn.more, s.turn.told, name,
		stamps, indexes, parts, small, t.node, t.mark)
	if s.idle() {
		return all
	}
	return append(s.appendWrites(all, n), s.ops...)
}

// noStamp stands for that of an absent record.
var noStamp = strings.Repeat("\x00", stampLen)

// appendWrites appends the values of n records and what is appended to parts.
func (s *swapCall) appendWrites(all []any, n int) []any {
	text := ""
	if s.text != nil {
		text = string(*s.text)
		texts.Put(s.text)
		s.text = nil
	}
	parts := len(s.keys) - s.firstPart + 1
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
