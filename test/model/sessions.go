package model

import (
	"slices"
	"time"

	"example.com/govnode/session"
	"example.com/govnode/session/approval"
)

// Sessions: how they are opened and closed, and calls that wait or have run.

// look returns the session, nil if there is none or it is over, and tells what
// ran out in it since somebody last looked.
func (s *space) look(id string) *sess {
	x := s.sessions[id]
	if x == nil {
		return nil
	}
	for i := range x.unreported {
		x.unreported[i].NS = s.name
	}
	s.lapsed, x.unreported = append(s.lapsed, x.unreported...), nil
	if x.over(s.Now) {
		return nil
	}
	return x
}

func (s *space) openSession(c *session.Open, r *session.Result) {
	if x := s.look(c.Session); x != nil {
		if x.content != c.Content {
			r.Code = session.IDReused
			return
		}
		r.Repeat, r.Digest, r.Counters, r.After = true, x.digest, x.Counters, s.after(x)
		return
	}
	over, forgot := s.sessions[c.Session], s.forgotSessions
	if over != nil {
		forgot = max(forgot, timeOf(c.Session))
	}
	if stale(c.Session, forgot, r) {
		return
	}
	pool, version := c.Policy, int32(0)
	if pool != "" {
		n := s.names[pool]
		if n == nil || n.digest == (session.Digest{}) {
			r.Code = session.NotFound
			return
		}
		if n.digest != c.Digest {
			r.Code, r.Digest = session.StalePremise, n.digest
			return
		}
		version = n.version
	}
	tree := s.policies[c.Digest]
	if tree == nil {
		r.Code = session.NotFound
		return
	}
	if pool == "" {
		pool = tree.first
	}
	if h := s.against(c.Agent, pool); h != nil && h.Signal == session.Kill {
		r.Code, r.Signal = session.Killed, h
		return
	}
	if over != nil {
		if over.pinned && over.digest != c.Digest && over.digest != c.Over {
			r.Code, r.Digest, r.After = session.StalePremise, c.Digest, s.after(over)
			return
		}
		s.dropSession(over)
	}
	x := &sess{
		id: c.Session, agent: c.Agent, policy: pool, version: version, pinned: true, digest: c.Digest, limits: tree.limits,
		content: c.Content, opened: s.Now, used: s.Now, idle: c.IdleTTL, parent: c.Parent, attributes: c.Attributes, token: c.Token,
	}
	if timeOf(c.Session) == 0 { // there may have been another of that id
		x.ids = forgotten(s.forgotSessions)
	}
	s.sessions[c.Session] = x
	r.Digest, r.Value, r.After = c.Digest, int64(version), s.after(x)
}

// dropSession drops a session that is over. What it knew of ids is in what the
// namespace has forgotten: its own id, or those of its calls if that has no time.
func (s *space) dropSession(x *sess) {
	t := timeOf(x.id)
	if t == 0 {
		t = x.ids.newest
	}
	s.forgotSessions = max(s.forgotSessions, t)
	delete(s.sessions, x.id)
}

func (s *space) closeSession(c *session.Close, r *session.Result) {
	x := s.look(c.Session)
	switch {
	case x == nil:
		r.Code = session.NotFound
		return
	case x.phase != session.PhaseOpen:
		r.Repeat = true
	case c.Digest != x.digest || !names(c.Pools, x.open...) || slices.ContainsFunc(x.askedCalls(), func(id string) bool { return !slices.Contains(c.Asked, id) }):
		r.Code, r.Digest, r.Pools, r.Names = session.StalePremise, x.digest, poolsOf(x.open...), x.askedCalls()
		return
	default:
		for _, h := range x.open {
			r.Value += s.letGo(h, 's', x.id)
			if h.asked != nil {
				h.asked.finish(approval.Cancelled, s.Now)
			}
			if h.waits() {
				x.giveBack(h, session.SessionClosed, 0)
				continue
			}
			s.lapsed = append(s.lapsed, session.Lapse{NS: s.name, Session: x.id, Call: h.id, Tool: h.tool})
			x.lapse(h)
		}
		x.phase, x.used, x.pinned = session.PhaseClosed, s.Now, false
		if c.Killed {
			x.halt = &halt{kind: session.Kill, since: s.Now, reason: c.Reason}
		}
	}
	r.Counters, r.After = x.Counters, s.after(x)
}

// letGo frees the slots and gives up the places of something.
func (s *space) letGo(h *held, kind byte, maker string) (freed int64) {
	for _, at := range h.pools {
		p := s.pools[at.pool]
		switch {
		case p == nil: // deleted by force
		case at.token == 0:
			p.cancel(s.Now, holder(kind, maker, h.id))
		case p.release(s.Now, at.token):
			freed++
		}
	}
	return freed
}

// heard is when somebody who waits was last heard of, in the pool in which he waits.
func (s *space) heard(h *held, kind byte, maker string) (at time.Duration) {
	for _, in := range h.pools {
		if p := s.pools[in.pool]; p != nil && in.token == 0 {
			at = max(at, p.heard(holder(kind, maker, h.id)))
		}
	}
	return at
}

// holder is who holds a slot, in the words of the records.
func holder(kind byte, maker, id string) string { return string(kind) + maker + " " + id }

// names reports whether a premise names all pools in which something is open.
func names(pools []string, open ...*held) bool {
	for _, p := range poolsOf(open...) {
		if !slices.Contains(pools, p) {
			return false
		}
	}
	return true
}

func poolsOf(open ...*held) (all []string) {
	for _, h := range open {
		for _, at := range h.pools {
			if !slices.Contains(all, at.pool) {
				all = append(all, at.pool)
			}
		}
	}
	return all
}

func (s *space) end(c *session.End, r *session.Result) {
	x := s.look(c.Session)
	if x == nil {
		r.Code = session.NotFound
		return
	}
	r.Counters = x.Counters
	h := find(x.open, c.Call)
	switch {
	case h == nil:
		s.endAgain(c, x, r)
		return
	case h.waits():
		r.Code = session.StillWaiting
		return
	case c.Content != (session.Fingerprint{}) && c.Content != h.content:
		r.Code = session.Invalid
		return
	case !names(c.Pools, h) || !h.corrects(c.Rates):
		r.Code, r.Pools, r.Rates, r.Names = session.StalePremise, poolsOf(h), h.rates(), h.budgets()
		return
	case !h.billed(c, r):
		r.Rates = h.rates()
		return
	case c.Output.Hash != (session.Digest{}) && c.Output.Against != x.baseline:
		r.Code, r.Digest = session.StalePremise, x.baseline
		return
	}
	s.letGo(h, 's', x.id)
	s.correct(c, h)
	s.settled(c, h, r)
	x.open = without(x.open, h)
	x.ids.add(finished{h.id, h.content, session.Ended, h.rule, uint64(c.Status)})
	x.used = s.Now
	x.reserved -= h.tokens
	x.Executions++
	if c.Tokens >= 0 {
		x.Tokens += c.Tokens
	} else {
		x.Tokens += h.tokens
	}
	switch c.Status {
	case session.Succeeded:
		x.Consecutive = 0
	case session.Failed:
		x.Failures++
		x.Consecutive++
		if x.limits.MaxFailures > 0 {
			x.failedAt = s.Now
		}
	}
	switch {
	case c.Output.Hash == (session.Digest{}):
	case x.baseline == (session.Digest{}):
		x.baseline, x.text = c.Output.Hash, c.Output.Text
	default:
		x.drift = c.Output.Score
	}
	if n := x.limits.Checkpoint; n > 0 && x.Executions%n == 0 {
		r.Checkpoint = x.Executions
	}
	r.Code, r.Counters = session.Ended, x.Counters
}

func (s *space) endAgain(c *session.End, x *sess, r *session.Result) {
	f := x.ids.find(c.Call)
	switch {
	case f == nil && stale(c.Call, x.ids.forgot, r):
	case f == nil && x.phase != session.PhaseOpen:
		r.Code = session.SessionClosed
	case f == nil:
		r.Code = session.NotFound
	case f.code == session.Ended && f.value != uint64(c.Status):
		r.Code = session.IDReused
	case (f.code == session.Ended || f.code == session.LeaseLost) && c.Content != (session.Fingerprint{}) && c.Content != f.content:
		r.Code = session.Invalid
	case f.code == session.Ended:
		r.Code, r.Repeat = session.AlreadyEnded, true
	case f.code == session.LeaseLost:
		r.Code, r.Repeat, r.Signal = session.LeaseLost, true, x.killedBy()
	default: // it was never admitted
		r.Code = session.NotFound
	}
}

func (s *space) cancel(c *session.Cancel, r *session.Result) {
	if c.Session == "" {
		s.cancelSlot(c, r)
		return
	}
	x := s.look(c.Session)
	if x == nil {
		r.Code = session.NotFound
		return
	}
	r.Counters = x.Counters
	h := find(x.open, c.Call)
	switch {
	case h == nil:
		if f := x.ids.find(c.Call); f != nil {
			r.Code, r.Repeat = f.code, true
			if f.code == session.Ended {
				r.Code = session.AlreadyEnded
			}
		} else if !stale(c.Call, x.ids.forgot, r) {
			r.Code = session.NotFound
		}
	case !h.waits():
		r.Code = session.NotWaiting
	case h.asked != nil && !c.Asked:
		r.Code, r.Pools, r.Approval = session.StalePremise, poolsOf(h), &session.ApprovalCount{ID: h.asked.id}
	case !names(c.Pools, h):
		r.Code, r.Pools = session.StalePremise, poolsOf(h)
	case c.Heard > 0 && s.heard(h, 's', x.id) > c.Heard:
		r.Code = session.Queued
	default:
		x.used = s.Now
		s.letGo(h, 's', x.id)
		if h.asked != nil {
			h.asked.finish(approval.Cancelled, s.Now)
		}
		x.giveBack(h, session.WaitCancelled, 0)
		r.Code, r.Counters = session.WaitCancelled, x.Counters
	}
}

// judgedBySame reports whether the session by which a command was judged has its id still.
// One that is gone is not another.
func (m *Model) judgedBySame(c session.Command) bool {
	id, opened := judgedBy(c)
	x := m.space(c.Namespace()).sessions[id]
	return *opened == 0 || x == nil || x.over(m.Now) || x.opened == *opened
}

// judgedBy returns the session of a command and where it says when that began.
func judgedBy(c session.Command) (id string, opened *time.Duration) {
	switch c := c.(type) {
	case *session.Begin:
		return c.Session, &c.Opened
	case *session.End:
		return c.Session, &c.Opened
	case *session.Cancel:
		return c.Session, &c.Opened
	case *session.Close:
		return c.Session, &c.Opened
	case *session.Renew:
		return c.Session, &c.Opened
	}
	return "", new(time.Duration)
}

// judged returns the command as a node proposes it that has seen its session, as a rule
// the one that has the id.
func (g *Generator) judged(c session.Command) session.Command {
	id, _ := judgedBy(c)
	x := g.m.space(c.Namespace()).sessions[id]
	if id == "" {
		return c
	}
	c = copied(c)
	if b, ok := c.(*session.Begin); ok && !g.once(40) {
		b.Hashes = g.m.space(c.Namespace()).hashed
	}
	if x == nil || g.once(4) {
		return c
	}
	_, opened := judgedBy(c)
	if *opened = x.opened; g.once(20) {
		*opened = max(x.opened-time.Duration(g.r.IntN(3)), 0)
	}
	return c
}
