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
//	{gov:NS}:iPART:KEY        a part of the ids that a maker remembers
//
// A key of session is binary; it comes last and is taken as it is. The tag comes
// first and has no brace in it, so no name can change the slot.

// tag returns the hash tag of a namespace.
func (c *Config) tag(ns string) string { return "{" + c.Prefix + ":" + escape(ns) + "}" }

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

func (c *Config) namespacesKey() string { return "{" + c.Prefix + "}:namespaces" }
func (c *Config) hintsChannel() string  { return "{" + c.Prefix + "}:hints" }

// A place is where the records of a namespace are.
type place struct {
	ns    string
	tag   string
	d     *domain
	first [7]string // the keys with which every swap begins
}

func newPlace(d *domain, ns, tag string) *place {
	p := &place{ns: ns, tag: tag, d: d}
	p.first = [...]string{d.key("epoch"), d.key("frozen"), d.key("clock"), d.key("due"), p.turns(), p.counts(), d.key("marks")}
	return p
}

func (p *place) record(k session.Key) string { return p.tag + ":r:" + string(k) }
func (p *place) index(kind byte) string      { return p.tag + ":x:" + string(kind) }
func (p *place) aside(k session.Key) string  { return p.tag + ":a:" + string(k) }

// counts returns the key of the counts of all indexes. Whoever enters a name in
// an index counts it there, so that an index that was lost, or whose names were,
// is not taken for one that never was.
func (p *place) counts() string {
	if p.tag == "" {
		return p.d.key("counts")
	}
	return p.tag + ":counts"
}

func (p *place) part(k session.Key, part int) string {
	return p.tag + ":i" + string("0123456789abcdef"[part]) + ":" + string(k)
}
