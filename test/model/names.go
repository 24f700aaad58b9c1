package model

import (
	"fmt"
	"slices"
	"strings"

	"example.com/govnode/session"
)

// The names and ids that a Generator gives, and what it finds in the model.

func (g *Generator) ns() string {
	if g.once(12) {
		return namespaces[1]
	}
	return namespaces[0]
}

// id returns an id that is new: one with a time, as they are drawn one after the
// other, sometimes an old one or one of the future; or one without.
func (g *Generator) id(kind string) string {
	g.n++
	if g.r.IntN(10) >= g.timed {
		return fmt.Sprintf("%s%d", kind, g.n)
	}
	t := uint64(1_700_000_000_000 + g.n)
	switch g.r.IntN(400) {
	case 0:
		t += 1 << 40
	case 1, 2, 3, 4, 5:
		t -= uint64(g.r.IntN(3000))
	}
	if g.once(5) { // UUIDv7
		h := fmt.Sprintf("%012x", t)
		return fmt.Sprintf("%s-%s-7000-8000-%012x", h[:8], h[8:], g.n)
	}
	b := []byte(fmt.Sprintf("%010d%016d", 0, g.n))
	for i := 9; i >= 0; i-- {
		b[i] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"[t%32]
		t /= 32
	}
	return string(b)
}

// recent returns one of the ids that were drawn lately, or a new one.
func (g *Generator) recent(of *[]string, kind string, most int) string {
	if len(*of) > 0 && !g.once(8) {
		return (*of)[max(0, len(*of)-1-g.r.IntN(most))]
	}
	id := g.id(kind)
	if *of = append(*of, id); len(*of) > 200 {
		*of = (*of)[100:]
	}
	return id
}

func (g *Generator) content() session.Fingerprint {
	return session.Fingerprint{byte(g.n), byte(g.n >> 8)}
}
func (g *Generator) client() string         { return fmt.Sprintf("w%d", g.r.IntN(g.clients)) }
func (g *Generator) key() string            { return fmt.Sprintf("k%d", g.r.IntN(3)) }
func (g *Generator) tool() string           { return fmt.Sprintf("t%d", g.r.IntN(g.tools)) }
func (g *Generator) policy() string         { return fmt.Sprintf("p%d", g.r.IntN(g.names)) }
func (g *Generator) digest() session.Digest { return session.Digest{byte(1 + g.r.IntN(4))} }

// maker returns whose request it is. Some have no id, and some that of a slot.
func (g *Generator) maker() session.Maker {
	m := session.Maker{Client: g.client(), Request: g.id("r"), Content: g.content()}
	switch g.r.IntN(30) {
	case 0:
		m.Request = ""
	case 1:
		m.Request = g.recent(&g.slots, "l", 10)
	}
	return m
}

// session returns a session: one that is open, mostly; else one of a few names,
// or one that was there lately, or a new one.
func (g *Generator) session(ns string) string {
	var open []string
	for id, x := range g.m.space(ns).sessions {
		if x.goesOn(g.m.Now) {
			open = append(open, id)
		}
	}
	if slices.Sort(open); len(open) > 0 && !g.once(12) {
		return pick(g, open...)
	}
	if g.once(3) {
		return fmt.Sprintf("s%d", g.r.IntN(g.sessions))
	}
	return g.recent(&g.opened, "s", g.sessions)
}

// pool returns the name of a pool, mostly of one that is there.
func (g *Generator) pool(ns string) string {
	id := string(rune('a' + g.r.IntN(g.pools)))
	for range 3 {
		if g.m.space(ns).pools[id] == nil {
			id = string(rune('a' + g.r.IntN(g.pools)))
		}
	}
	return id
}

// weight returns how many slots of a pool are asked for.
func (g *Generator) weight(ns, pool string) int32 {
	w := pick[int32](g, 1, 1, 1, 2, 5)
	if p := g.m.space(ns).pools[pool]; p != nil && !g.once(20) {
		w = min(w, p.slots)
	}
	return w
}

// ref names what is open somewhere.
type ref struct {
	ns, maker string
	call      bool
	*held
}

func (r *ref) key() string { return fmt.Sprint(r.ns, " ", r.maker, " ", r.call, " ", r.id) }

// open lists what is open in a namespace, in a fixed order.
func (m *Model) open(ns string, keep func(*held) bool) (all []ref) {
	s := m.space(ns)
	for id, x := range s.sessions {
		for _, h := range x.open {
			if keep(h) {
				all = append(all, ref{ns, id, true, h})
			}
		}
	}
	for id, x := range s.clients {
		for _, h := range x.open {
			if keep(h) {
				all = append(all, ref{ns, id, false, h})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b ref) int { return strings.Compare(a.maker, b.maker) })
	return all
}
