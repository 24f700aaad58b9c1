package model

import (
	"crypto/sha256"
	"fmt"
	"time"

	"example.com/govnode/session"
)

// Versions of values, and lists.

const (
	maxList = 4 << 20 // bytes of a list, of which each item counts 64 at least
	minItem = 64
)

// An itemList is what is reached of a list; items that were appended before it was
// deleted lie under their numbers until they lapse or others take their place.
type itemList struct {
	length, bytes int64
	until         time.Duration
	items         map[int64]item
}

type item struct {
	text  string
	until time.Duration
}

func (s *space) list(key string) *itemList {
	l := s.lists[key]
	if l == nil {
		l = &itemList{items: map[int64]item{}}
		s.lists[key] = l
	}
	return l
}

// settle takes away what lapsed: the list for those who read, and each item.
func (l *itemList) settle(now time.Duration) {
	if l.until <= now {
		l.length, l.bytes, l.until = 0, 0, 0
	}
	for n, i := range l.items {
		if i.until <= now {
			delete(l.items, n)
		}
	}
}

// versionOf is the version of a key: "0" if it is absent.
func (s *space) versionOf(key string) string {
	x := s.counters[key]
	if x == nil {
		return "0"
	}
	b := []byte("t" + x.Text)
	if x.Number {
		b = []byte{'n', 0, 0, 0, 0, 0, 0, 0, 0}
		for i := range 8 {
			b[8-i] = byte(x.N >> (8 * i))
		}
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))[:32]
}

// conflict reports whether a key has another version than the one that is named.
func (s *space) conflict(key, version string, r *session.Result) bool {
	if today := s.versionOf(key); version != "" && version != today {
		r.Code, r.Version = session.VersionConflict, today
		return true
	}
	return false
}

func (s *space) appendTo(c *session.Append, r *session.Result) bool {
	l := s.list(c.Key)
	if l.length != c.From {
		r.Code, r.Value = session.StalePremise, l.length
		if c.Exact {
			r.Code = session.VersionConflict
		}
		return false
	}
	bytes := l.bytes
	for _, text := range c.Items {
		bytes += max(minItem, int64(len(text)))
	}
	if bytes > maxList {
		r.Code, r.Limit = session.Overflow, maxList
		return false
	}
	for _, text := range c.Items {
		l.items[l.length] = item{text, s.Now + c.TTL}
		l.length++
	}
	l.bytes, l.until = bytes, max(l.until, s.Now+c.TTL)
	r.Value = l.length
	return true
}

func (s *space) deleteList(c *session.DeleteList, r *session.Result) bool {
	l := s.list(c.Key)
	if l.length > 0 {
		r.Value = 1
	}
	l.length, l.bytes, l.until = 0, 0, 0
	return true
}

// listRecord is the record of a list under a key: its head, or an item.
func (s *space) listRecord(k session.Key) session.Record {
	for id, l := range s.lists {
		if k == session.ListKey(s.name, id) && l.length > 0 {
			return &session.List{Length: l.length, Bytes: l.bytes, Until: l.until}
		}
		for n, i := range l.items {
			if k == session.ListItemKey(s.name, id, n) {
				return &session.ListItem{Text: i.text, Until: i.until}
			}
		}
	}
	return nil
}

func (s *space) listKeys() (all []session.Key) {
	for id, l := range s.lists {
		if l.length > 0 {
			all = append(all, session.ListKey(s.name, id))
		}
		for n := range l.items {
			all = append(all, session.ListItemKey(s.name, id, n))
		}
	}
	return all
}

// How they are made.

// version returns a version that a caller may name: of a key as it stands,
// mostly, or none, or a wrong one.
func (g *Generator) version(ns, key string) string {
	switch g.r.IntN(6) {
	case 0:
		return g.m.space(ns).versionOf(key)
	case 1:
		return "0"
	case 2:
		return "00000000000000000000000000000000"
	}
	return ""
}

func (g *Generator) append() session.Command {
	ns, key := g.ns(), g.key()
	c := &session.Append{NS: ns, By: g.maker(), Key: key, TTL: pick(g, time.Millisecond, time.Second, 20*time.Second, 30*24*time.Hour), Exact: g.once(3)}
	if c.From = g.m.space(ns).list(key).length; g.once(6) {
		c.From = int64(g.r.IntN(4))
	}
	size := pick(g, 0, 1, minItem, minItem+1, 1000)
	if g.large {
		size = session.MaxItem
	}
	for range 1 + g.r.IntN(3) {
		c.Items = append(c.Items, string(make([]byte, size)))
	}
	return c
}

func (g *Generator) deleteList() session.Command {
	return &session.DeleteList{NS: g.ns(), By: g.maker(), Key: g.key()}
}
