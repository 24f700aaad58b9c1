package session

import "time"

// Limits by kind, and the breaker: what a policy may have beside the limit of
// calls. Nothing is counted for it where the policy of the session has none.

func (l *Limits) kind(kind CallKind) (most uint32, ok bool) {
	for _, k := range l.Kinds {
		if k.Kind == kind {
			return k.Max, true
		}
	}
	return 0, false
}

// namesTool reports whether a call of that kind is counted among the tools of
// the session.
func (s *Session) namesTool(kind CallKind) bool {
	_, limited := s.Pin.Limits.kind(kind)
	return kind == Tool || kind == Sampling && limited
}

// KindCalls returns how many calls of a kind were admitted or wait; of sampling,
// those of one server. It is 0 where the policy does not limit them.
func (s *Session) KindCalls(kind CallKind, server string) uint32 {
	if kind == Sampling {
		for _, t := range s.Tools {
			if t.Tool.Value() == server {
				return t.Sampling
			}
		}
		return 0
	}
	if s.Gates == nil {
		return 0
	}
	return *s.Gates.of(kind)
}

func (g *Gates) of(kind CallKind) *uint32 {
	switch kind {
	case Model:
		return &g.ModelCalls
	case Agent:
		return &g.AgentCalls
	case Handoff:
		return &g.Handoffs
	}
	return new(uint32)
}

// countKind counts a call that is admitted or waits, or takes it back.
func (s *Session) countKind(h *Held, by int32) {
	if _, limited := s.Pin.Limits.kind(h.Kind); !limited {
		return
	}
	if h.Kind != Sampling {
		s.editGates(func(g *Gates) { *g.of(h.Kind) += uint32(by) })
		return
	}
	i := s.tool(h.Tool)
	if i < 0 {
		i = len(s.Tools)
		s.Tools = append(s.editTools(), ToolCount{Tool: h.Tool})
	}
	s.editTools()[i].Sampling += uint32(by)
}

// editGates replaces what is counted by a version of its own.
func (s *Session) editGates(edit func(*Gates)) {
	var g Gates
	if s.Gates != nil {
		g = *s.Gates
	}
	edit(&g)
	if s.Gates = &g; g == (Gates{}) {
		s.Gates = nil
	}
}

func kindAllows(c *Begin, x *Session, r *Result) Code {
	most, limited := x.Pin.Limits.kind(c.CallKind)
	if !limited || x.KindCalls(c.CallKind, c.Tool) < most {
		return Done
	}
	r.Limit = int64(most)
	return KindLimitReached
}

// failed notes when a call failed.
func (s *Session) failed(now time.Duration) {
	if s.Pin.Limits.MaxFailures > 0 {
		s.editGates(func(g *Gates) { g.FailedAt = now })
	}
}

// Breaker reports whether so many calls in a row failed that the breaker is
// open, and from when on one call at a time is tried.
func (s *Session) Breaker() (tried time.Duration, open bool) {
	l := &s.Pin.Limits
	if l.MaxFailures == 0 || s.Consecutive < l.MaxFailures {
		return 0, false
	}
	if s.Gates != nil {
		tried = s.Gates.FailedAt
	}
	return tried + l.BreakerReset, true
}

// breakerAllows refuses until the reset has passed since the latest failure, and
// then as long as another call is open that began after that: what comes of it
// decides.
func (s *State) breakerAllows(c *Begin, x *Session, r *Result) Code {
	tried, open := x.Breaker()
	if !open {
		return Done
	}
	r.RetryAfter = s.left(tried)
	for i := range x.Open {
		if h := &x.Open[i]; h.Started >= tried && !h.Parked() && h.ID() != c.Call {
			r.RetryAfter = time.Second
		}
	}
	if r.RetryAfter == 0 {
		return Done
	}
	r.Limit = int64(x.Pin.Limits.MaxFailures)
	return BreakerOpen
}
