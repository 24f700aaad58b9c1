package wire

import (
	"fmt"
	"net/url"
	"strconv"
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
//	{gov}:due                 sorted set: records by when they have something to settle, and "!"
//	{gov}:marks               sorted set: how far each node has seen this data; see epoch
//	{gov}:aside               sorted set: records that were set aside; see AsideMark
//	{gov:NS}:x:KIND           sorted set: names of all records of a kind
//	{gov:NS}:counts           sorted set: how many names each of these has, and "!"
//	{gov:NS}:r:KEY            a record; see Entry
//	{gov:NS}:a:KEY            what stood there before it was set aside
//	{gov:NS}:aN:KEY           and what was kept so before that, N from 1 to 9
//	{gov:NS}:turns            list: nodes that take turns; see swap.lua
//	{gov:NS}:iPART:KEY        a part of the ids that a maker remembers
//
// A key of session is binary; it comes last and is taken as it is. The tag comes
// first and has no brace in it, so no name can change the slot.

// A Prefix begins every key, in the braces of its hash tag.
type Prefix string

// Tag returns the hash tag of a namespace.
func (p Prefix) Tag(ns string) string { return "{" + string(p) + ":" + escape(ns) + "}" }

// Shared returns the hash tag of what all namespaces share.
func (p Prefix) Shared() string { return "{" + string(p) + "}" }

// Namespaces returns the key of the set of all namespaces.
func (p Prefix) Namespaces() string { return p.Shared() + ":namespaces" }

// Hints returns the channel on which nodes tell each other of changes.
func (p Prefix) Hints() string { return p.Shared() + ":hints" }

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

// A Place is where the records of a namespace are.
type Place struct {
	NS    string
	Tag   string
	first [7]string // the keys with which every swap begins
}

// NewPlace returns that of a namespace with a tag, whose epoch and clock stand
// under another; without a tag of its own it is good for a swap of no record.
func NewPlace(shared, ns, tag string) Place {
	p := Place{NS: ns, Tag: tag}
	if tag == "" {
		p.Tag = shared
	}
	key := func(name string) string { return shared + ":" + name }
	p.first = [...]string{key("epoch"), key("frozen"), key("clock"), key("due"), p.Turns(), p.Counts(), key("marks")}
	return p
}

// Record returns the key of a record.
func (p *Place) Record(k session.Key) string { return p.Tag + ":r:" + string(k) }

// Index returns the key of the index that lists the records of a kind.
func (p *Place) Index(kind byte) string { return p.Tag + ":x:" + string(kind) }

// Aside returns the key of what stood under a record's before it was set aside.
func (p *Place) Aside(k session.Key) string { return p.Tag + ":a:" + string(k) }

// Asides returns that key, and those to which it is moved if another is to be kept.
func (p *Place) Asides(k session.Key) []string {
	keys := []string{p.Aside(k)}
	for n := 1; n <= 9; n++ {
		keys = append(keys, p.Tag+":a"+strconv.Itoa(n)+":"+string(k))
	}
	return keys
}

// Counts returns the key of the counts of all indexes. Whoever enters a name in
// an index counts it there, so that an index that was lost, or whose names were,
// is not taken for one that never was.
func (p *Place) Counts() string { return p.Tag + ":counts" }

// Turns returns the key of the line of nodes that take turns.
func (p *Place) Turns() string { return p.Tag + ":turns" }

// CountsOf returns the namespace whose counts have that key; false if it is another's.
func (p Prefix) CountsOf(key string) (ns string, ok bool) {
	name, ok := strings.CutPrefix(key, "{"+string(p)+":")
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(name, "}:counts")
	if !ok {
		return "", false
	}
	ns, err := url.PathUnescape(name)
	return ns, err == nil && p.Tag(ns)+":counts" == key
}

// Part returns the key of a part of the ids that a record remembers.
func (p *Place) Part(k session.Key, part int) string {
	return p.Tag + ":i" + string("0123456789abcdef"[part]) + ":" + string(k)
}

// Kinds are the letters of all kinds of keys, in the order of keys.
const Kinds = "abcfghiklmnpsuwy"

// CountsMark is always among the counts of a namespace.
const CountsMark = "!"
