package redis

import (
	"fmt"
	"strings"

	"example.com/govnode/session"
)

// Every key of a namespace has one hash tag, so that a Redis Cluster keeps them
// together: {gov:default}. What is shared by all namespaces of a Redis that is
// not a cluster stands under {gov}; in a cluster each namespace has its own.
//
//	{gov}:namespaces          set: all namespaces
//	{gov}:epoch               whose data this is; see epoch
//	{gov}:clock               log time in nanoseconds, and the number of swaps
//	{gov}:frozen              there while a snapshot is saved
//	{gov}:due                 sorted set: records by when they have something to settle
//	{gov}:marks               sorted set: how far each node has seen this data; see epoch
//	{gov}:aside               sorted set: records that were set aside; see damaged
//	{gov:NS}:x:KIND           sorted set: names of all records of a kind
//	{gov:NS}:counts           sorted set: how many names each of these has, and "!"
//	{gov:NS}:r:KEY            a record; see entry
//	{gov:NS}:a:KEY            what stood there before it was set aside
//	{gov:NS}:turns            list: nodes that take turns; see swap.lua
//	{gov:NS}:iPART:KEY        a part of the ids that a maker remembers
//
// A key of session is binary; it comes last and is taken as it is. The tag comes
// first and has no brace in it, so no name can change the slot.

// A keyPrefix begins every key, in the braces of its hash tag.
type keyPrefix string

// tag returns the hash tag of a namespace.
func (p keyPrefix) tag(ns string) string { return "{" + string(p) + ":" + escape(ns) + "}" }

// shared returns the hash tag of what all namespaces share.
func (p keyPrefix) shared() string { return "{" + string(p) + "}" }

// namespaces returns the key of the set of all namespaces.
func (p keyPrefix) namespaces() string { return p.shared() + ":namespaces" }

// hints returns the channel on which nodes tell each other of changes.
func (p keyPrefix) hints() string { return p.shared() + ":hints" }

// escape writes all but letters, digits, dots, dashes and underscores as %XX.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// A spot is where the records of a namespace are.
type spot struct {
	ns    string
	tag   string
	first [7]string // the keys with which every swap begins
}

// newSpot returns that of a namespace with a tag, whose epoch and clock stand
// under another; without a tag of its own it is good for a swap of no record.
func newSpot(shared, ns, tag string) spot {
	p := spot{ns: ns, tag: tag}
	if tag == "" {
		p.tag = shared
	}
	key := func(name string) string { return shared + ":" + name }
	p.first = [...]string{key("epoch"), key("frozen"), key("clock"), key("due"), p.turns(), p.counts(), key("marks")}
	return p
}

func (p *spot) record(k session.Key) string { return p.tag + ":r:" + string(k) }
func (p *spot) index(kind byte) string      { return p.tag + ":x:" + string(kind) }

// aside returns the key of what stood under a record's before it was set aside.
func (p *spot) aside(k session.Key) string { return p.tag + ":a:" + string(k) }

// counts returns the key of the counts of all indexes. Whoever enters a name in
// an index counts it there, so that an index that was lost, or whose names were,
// is not taken for one that never was.
func (p *spot) counts() string { return p.tag + ":counts" }

// turns returns the key of the line of nodes that take turns.
func (p *spot) turns() string { return p.tag + ":turns" }

func (p *spot) part(k session.Key, part int) string {
	return p.tag + ":i" + string("0123456789abcdef"[part]) + ":" + string(k)
}

// kindsOfKeys are the letters of all kinds of keys, in the order of keys.
const kindsOfKeys = "bchikmnpsy"

// countsMark is always among the counts of a namespace.
const countsMark = "!"
