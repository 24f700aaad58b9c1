package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"example.com/govnode/session"
	"example.com/govnode/session/approval"
)

// Signals: who is stopped or killed.

// A halt is a STOP or KILL that stands.
type halt struct {
	kind   session.SignalKind
	number uint64 // of a KILL
	swept  bool
	since  time.Duration
	reason string
}

func (h *halt) at(t session.Target) *session.Halt {
	if h == nil {
		return nil
	}
	return &session.Halt{Target: t, Signal: h.kind, Number: h.number, Swept: h.swept, Since: h.since, Reason: h.reason}
}

// own is what stands in a session itself.
func (x *sess) own() *session.Halt {
	h := x.halt.at(session.Target{Scope: session.OfSession, Name: x.id})
	if h != nil {
		h.Swept = h.Signal == session.Kill && x.phase != session.PhaseOpen
	}
	return h
}

// killedBy is the KILL that a session has in itself.
func (x *sess) killedBy() *session.Halt {
	if h := x.own(); h != nil && h.Signal == session.Kill {
		return h
	}
	return nil
}

// against is what stands against the sessions of an agent under a policy: a KILL
// before a STOP, and of two that are the same the wider.
func (s *space) against(agent, policy string) *session.Halt {
	var first *session.Halt
	for _, t := range []session.Target{{Scope: session.Everything}, {Scope: session.OfAgent, Name: agent}, {Scope: session.OfPolicy, Name: policy}} {
		if h := s.halts[t].at(t); h != nil && (first == nil || first.Signal == session.Stop && h.Signal == session.Kill) {
			first = h
		}
	}
	return first
}

// stopped reports whether a call of a session is kept out.
func (s *space) stopped(x *sess, r *session.Result) bool {
	h, own := s.against(x.agent, x.policy), x.own()
	if h == nil || own != nil && own.Signal == session.Kill && h.Signal == session.Stop {
		h = own
	}
	switch {
	case h == nil:
		return false
	case h.Signal == session.Kill:
		r.Code = session.SessionClosed
	default:
		r.Code = session.Stopped
	}
	r.Signal = h
	return true
}

// halted is stopped for a call that waits: a KILL ends its wait, a STOP when it is
// its turn. It is not remembered then.
func (s *space) halted(x *sess, h *held, r *session.Result) bool {
	if !s.stopped(x, r) {
		return false
	}
	at := h.pools[slices.IndexFunc(h.pools, func(at hold) bool { return at.token == 0 })]
	p, who := s.pools[at.pool], holder('s', x.id, h.id)
	turn := p != nil && slices.ContainsFunc(p.leases, func(l lease) bool { return l.claim && l.holder == who })
	if r.Code == session.Stopped && !turn {
		r.Code, r.Signal = session.Done, nil
		return false
	}
	s.letGo(h, 's', x.id)
	switch {
	case h.asked != nil && r.Code == session.Stopped: // its approval is as before
		x.park(h)
	case h.asked != nil:
		h.asked.finish(approval.Cancelled, s.Now)
		x.takeOut(h)
	default:
		x.takeOut(h)
	}
	r.Repeat, r.Rule = false, 0
	return true
}

func (s *space) signal(c *session.Signal, r *session.Result) {
	s.request(c.By, r, func() bool { return s.signalOnce(c, r) })
	if r.Code != session.Done {
		return
	}
	if c.Target.Scope == session.OfSession {
		if x := s.look(c.Target.Name); x != nil {
			r.Signal = x.own()
		}
		return
	}
	r.Signal = s.halts[c.Target].at(c.Target)
}

func (s *space) signalOnce(c *session.Signal, r *session.Result) bool {
	var old *halt
	var x *sess
	over := false
	if c.Target.Scope == session.OfSession {
		if x = s.look(c.Target.Name); x == nil {
			r.Code = session.NotFound
			return false
		}
		old, over = x.halt, x.phase != session.PhaseOpen
		if over && c.Signal != session.Kill {
			r.Code, r.Signal = session.SessionClosed, x.own()
			return false
		}
	} else {
		old = s.halts[c.Target]
	}
	killed := old != nil && old.kind == session.Kill
	switch {
	case over, c.Signal == session.Continue && old == nil, c.Signal != session.Continue && killed:
		return true
	case c.Signal == session.Continue && killed && !old.swept:
		r.Code, r.Signal = session.KillUnderWay, old.at(c.Target)
		return false
	case x == nil && old == nil && c.Target.Scope != session.Everything && len(s.halts) >= 256:
		r.Code, r.Limit = session.TooManySignals, 256
		return false
	}
	r.Value = 1
	var next *halt
	if c.Signal != session.Continue {
		next = &halt{kind: c.Signal, since: s.Now, reason: c.Reason}
	}
	switch {
	case x != nil:
		x.halt = next
	case next == nil:
		delete(s.halts, c.Target)
	default:
		if c.Signal == session.Kill {
			s.kills++
			next.number = s.kills
		}
		s.halts[c.Target], s.signalled = next, true
	}
	return true
}

func (s *space) swept(c *session.Swept) {
	if h := s.halts[c.Target]; h != nil && h.kind == session.Kill && h.number == c.Number {
		h.swept = true
	}
}

// goesOn reports whether a session is open, and has not been idle for too long.
func (x *sess) goesOn(now time.Duration) bool {
	return x.phase == session.PhaseOpen && (len(x.open) > 0 || now < x.used+x.idle)
}

// keptOut reports whether a signal stands against the calls of a session.
func (s *space) keptOut(x *sess) bool { return x.halt != nil || s.against(x.agent, x.policy) != nil }

// signals is the record of a namespace; nil if none ever stood.
func (s *space) signals() session.Record {
	if !s.signalled && s.hashed == 0 {
		return nil
	}
	x := &session.Signals{Last: s.kills, Hashes: s.hashed}
	for _, t := range s.targets() {
		x.Halts = append(x.Halts, *s.halts[t].at(t))
	}
	return x
}

func (s *space) targets() []session.Target {
	return slices.SortedFunc(maps.Keys(s.halts), func(a, b session.Target) int {
		if a.Scope != b.Scope {
			return int(a.Scope) - int(b.Scope)
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// signal makes a signal. What stands is lifted often, since nothing else gets far
// while it stands.
func (g *Generator) signal() session.Command {
	ns := g.ns()
	s := g.m.space(ns)
	c := &session.Signal{NS: ns, By: g.maker(), Signal: pick(g, session.Stop, session.Stop, session.Stop, session.Kill, session.Continue), Reason: pick(g, "", "look")}
	switch g.r.IntN(8) {
	case 0:
		c.Target.Scope = session.Everything
	case 1, 2:
		c.Target = session.Target{Scope: session.OfPolicy, Name: g.policy()}
	case 3, 4, 5:
		c.Target = session.Target{Scope: session.OfSession, Name: g.session(ns)}
	default:
		c.Target = session.Target{Scope: session.OfAgent, Name: g.agent()}
	}
	if g.agents > 100 {
		c.Target, c.Signal = session.Target{Scope: session.OfAgent, Name: g.agent()}, session.Stop
		return c
	}
	all := s.targets()
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		if x := s.sessions[id]; x.halt != nil && x.phase == session.PhaseOpen {
			all = append(all, session.Target{Scope: session.OfSession, Name: id})
		}
	}
	if len(all) > 0 && !g.once(2+2*len(all)) {
		c.Target, c.Signal = pick(g, all...), session.Continue
	}
	return c
}

// swept marks a KILL that stands, mostly.
func (g *Generator) swept() session.Command {
	ns := g.ns()
	s := g.m.space(ns)
	c := &session.Swept{NS: ns, Target: session.Target{Scope: session.OfAgent, Name: g.agent()}, Number: uint64(g.r.IntN(4))}
	if all := s.targets(); len(all) > 0 && !g.once(4) {
		c.Target = pick(g, all...)
		if c.Number = s.halts[c.Target].number; g.once(8) {
			c.Number++
		}
	}
	return c
}

// agent returns one of a few agents, or of many.
func (g *Generator) agent() string { return fmt.Sprintf("agent%d", g.r.IntN(g.agents)) }
