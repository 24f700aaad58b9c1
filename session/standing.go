package session

import (
	"time"

	"example.com/govnode/internal/seeded"
)

// Standing approvals: who may call a tool without being asked about each call.
// They answer an ask, never a deny.

// Standing is the record of one; immutable.
type Standing struct {
	Of    StandingOf
	Shown string // the arguments as people are shown them
	Uses  uint32 // that are left; 0: no limit
	Until time.Duration
	Made  time.Duration
	By    Principal // who made it; zero where nobody is asked who they are
}

// StandingOf is what a standing approval is for, and names it.
type StandingOf struct {
	Scope     Scope // OfSession, OfAgent or OfPolicy
	Name      string
	Server    string // label of the server that has the tool; empty for tools without one
	Tool      string
	Exact     bool // for these arguments alone, else for whatever the tool is called with
	Arguments Digest
}

type (
	// PutStanding makes a standing approval, or makes it anew.
	PutStanding struct {
		Authorized
		NS    string
		By    Maker
		Of    StandingOf
		Shown string
		Uses  uint32 // 0: no limit
		TTL   time.Duration
	}

	// DeleteStanding takes one back.
	DeleteStanding struct {
		Authorized
		NS string
		By Maker
		ID string
	}
)

// ID is the name of the standing approval for that.
func (o *StandingOf) ID() string {
	exact := ""
	if o.Exact {
		exact = string(o.Arguments[:])
	}
	return hashed("standing", string('0'+byte(o.Scope)), o.Name, o.Server, o.Tool, exact)
}

func (c *PutStanding) Touches() []Key {
	return append(c.By.touches(c.NS), StandingKey(c.NS, c.Of.ID()))
}

func (c *DeleteStanding) Touches() []Key {
	return append(c.By.touches(c.NS), StandingKey(c.NS, c.ID))
}

func (*PutStanding) Kind() uint16    { return 26 }
func (*DeleteStanding) Kind() uint16 { return 27 }

func (c *PutStanding) from() (ns string, by Maker)    { return c.NS, c.By }
func (c *DeleteStanding) from() (ns string, by Maker) { return c.NS, c.By }

func (a *Standing) Due() (time.Duration, bool) { return a.Until, true }

// At returns nil when its time is over.
func (a *Standing) At(now time.Duration) Record {
	if a.Until <= now {
		return nil
	}
	return a
}

// standings are the names that a standing approval for a call may have, the
// narrowest first: none but for tools, since the label of a server is no tool.
func (c *Begin) standings() []string {
	q := c.Asking
	if c.CallKind != Tool {
		return nil
	}
	policy := c.Pools[0].Pool[len(policyPrefix):]
	ids := make([]string, 0, 6)
	for _, of := range []StandingOf{{Scope: OfSession, Name: c.Session}, {Scope: OfAgent, Name: q.Agent}, {Scope: OfPolicy, Name: policy}} {
		of.Server, of.Tool = q.Server, c.Tool
		of.Exact, of.Arguments = true, q.Arguments
		ids = append(ids, of.ID())
		of.Exact = false
		ids = append(ids, of.ID())
	}
	return ids
}

// standingFor returns the narrowest standing approval for a call of a session that
// asks, or nil. What was for another session of its id is not for this one, and what
// somebody has made himself is for no call of his own.
func (s *State) standingFor(c *Begin, x *Session) (k ref, a *Standing) {
	for _, id := range c.standings() {
		k = ref{KindStanding, c.NS, id}
		a, _ = s.lookup(k).(*Standing)
		if a == nil || a.At(s.now) == nil || a.Of.Scope == OfSession && a.Made < x.Opened {
			continue
		}
		if a.By == (Principal{}) || a.By != c.principal() {
			return k, a
		}
	}
	return ref{}, nil
}

// useStanding spends one use of the one by which a call is approved.
func (s *State) useStanding(c *Begin, x *Session) {
	k, a := s.standingFor(c, x)
	if a.Uses == 0 || seeded.On(seeded.StandsOn) {
		return
	}
	if a.Uses == 1 {
		s.put(k, nil)
		return
	}
	next := *a
	next.Uses--
	s.write(k, &next)
}

func (s *State) putStanding(c *PutStanding) {
	s.write(ref{KindStanding, c.NS, c.Of.ID()}, &Standing{c.Of, c.Shown, c.Uses, s.now + c.TTL, s.now, c.principal()})
}

func (s *State) afterStanding(k ref) *After {
	after := &After{Now: s.now}
	if a, _ := s.lookup(k).(*Standing); a != nil && a.At(s.now) != nil {
		after.Standing = a // immutable
	}
	return after
}

func (s *State) deleteStanding(c *DeleteStanding, r *Result) {
	k := ref{KindStanding, c.NS, c.ID}
	if a, _ := s.lookup(k).(*Standing); a == nil || a.At(s.now) == nil {
		r.Code = NotFound
		return
	}
	s.put(k, nil)
}
