package session

import (
	"time"
	"unique"

	"example.com/govnode/session/ids"
)

// How a session is opened and closed, and what it is pinned to in between.

// open starts a session under the tree that its policy points to now.
func (s *State) open(c *Open, r *Result) {
	k := ref{KindSession, c.NS, c.Session}
	if x := s.session(k); x != nil {
		if x.Content != c.Content {
			r.Code = IDReused
			return
		}
		r.Repeat, r.Digest, r.Counters, r.After = true, x.Pin.Digest, x.Counters(), s.afterSession(x)
		return
	}
	over, _ := s.lookup(k).(*Session)
	forgot := s.namespace(c.NS).ForgotSessions
	if over != nil {
		forgot = max(forgot, ids.Time(c.Session))
	}
	if stale(c.Session, forgot, r) {
		return
	}
	name := c.Policy
	var version int32
	if name != "" {
		n := s.named(c.NS, name, c.Digest, r)
		if n == nil {
			return
		}
		version = n.Version
	}
	policy, _ := s.Stored(PolicyKey(c.NS, c.Digest)).(*Policy)
	if policy == nil {
		r.Code = NotFound
		return
	}
	if name == "" {
		name = policy.First
	}
	if over != nil {
		if d := over.Pin.Digest; over.Pinned && d != c.Digest && d != c.Over {
			r.Code, r.Digest, r.After = StalePremise, c.Digest, s.afterSession(over)
			return
		}
		if over.Pinned {
			s.unpin(c.NS, over.Pin.Digest, c.Session)
		}
		s.dropSession(k)
	}
	x := &Session{
		entry: s.entry, Agent: unique.Make(c.Agent), Policy: unique.Make(name), Version: version, Pinned: true,
		Pin: policy.Pin, Content: c.Content, Opened: s.now, Used: s.now, IdleTTL: c.IdleTTL,
	}
	if ids.Time(c.Session) == 0 {
		// One of its id may be among those that were dropped, or was just now.
		x.IDs = ids.Forgotten(s.namespace(c.NS).ForgotSessions)
	}
	if c.Parent != "" || len(c.Attributes) > 0 {
		x.More = &More{Parent: c.Parent, Attributes: c.Attributes}
	}
	s.write(k, x)
	s.pin(c.NS, c.Digest, c.Session, 1)
	r.Digest, r.Value = c.Digest, int64(version)
}

func (s *State) pin(ns string, d Digest, session string, by int64) {
	k := refOf(PinsKey(ns, d, session))
	var n int64
	if p, ok := s.lookup(k).(*Pins); ok {
		n = p.N
	}
	if n += by; n <= 0 {
		s.put(k, nil)
		return
	}
	s.write(k, &Pins{n})
}

func (s *State) unpin(ns string, d Digest, session string) { s.pin(ns, d, session, -1) }

// close ends a session. What is open is settled: calls that run count as
// executed, since nobody can say that they were not; calls that wait give
// back what they had reserved.
func (s *State) close(c *Close, r *Result) {
	k := ref{KindSession, c.NS, c.Session}
	x := s.session(k)
	if x == nil {
		r.Code = NotFound
		return
	}
	if x.Phase != PhaseOpen {
		r.Repeat, r.Counters, r.After = true, x.Counters(), s.afterSession(x)
		return
	}
	if c.Digest != x.Pin.Digest {
		r.Code, r.Digest, r.Pools = StalePremise, x.Pin.Digest, openPools(x.Open)
		return
	}
	if !covers(c.Pools, x.Open) {
		r.Code, r.Digest, r.Pools = StalePremise, x.Pin.Digest, openPools(x.Open)
		return
	}
	x = s.ownSession(k, x)
	for len(x.Open) > 0 {
		h := x.Open[0]
		r.Value += s.letGo(c.NS, &h)
		x.Open = x.Open[1:]
		if h.Waiting() {
			x.Reserved -= h.Tokens
			x.unreserve(&h)
			x.IDs.Add(remembered(h.ID(), h.Content, SessionClosed, h.Rule, 0))
			continue
		}
		s.noteLapse(k, &h)
		x.lapse(&h)
	}
	x.Open = nil
	x.Phase, x.Used = PhaseClosed, s.now
	x.Pinned = false
	s.unpin(c.NS, x.Pin.Digest, c.Session)
	r.Counters, r.After = x.Counters(), s.afterSession(x)
}

// letGo gives up what something has in its pools, and returns how many slots
// were freed.
func (s *State) letGo(ns string, h *Held) (freed int64) {
	for _, hold := range h.Pools {
		k := ref{KindPool, ns, hold.Pool.Value()}
		p := s.pool(k)
		if p == nil {
			continue // was deleted by force
		}
		p = s.ownPool(k, p)
		if hold.Token == 0 {
			p.Cancel(s.now, h.Holder)
		} else if p.Release(s.now, hold.Token) {
			freed++
		}
	}
	return freed
}

// within reports whether the premise names every pool in which h has a slot or
// waits; where it does not, the answer says which they are.
func (h *Held) within(pools []string, r *Result) bool {
	if covers(pools, []Held{*h}) {
		return true
	}
	r.Code, r.Pools = StalePremise, h.PoolNames()
	return false
}

// covers reports whether the premise names every pool in which something open
// has a slot or waits.
func covers(pools []string, open []Held) bool {
	if len(pools) > 16 {
		set := make(map[string]bool, len(pools))
		for _, p := range pools {
			set[p] = true
		}
		return coveredBy(open, func(pool string) bool { return set[pool] })
	}
	return coveredBy(open, func(pool string) bool { return contains(pools, pool) })
}

func coveredBy(open []Held, named func(pool string) bool) bool {
	for i := range open {
		for _, h := range open[i].Pools {
			if !named(h.Pool.Value()) {
				return false
			}
		}
	}
	return true
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

// openPools lists the pools of everything that is open, each once, in the order
// in which they come.
func openPools(open []Held) []string {
	var names []string
	seen := map[unique.Handle[string]]bool{}
	for i := range open {
		for _, h := range open[i].Pools {
			if !seen[h.Pool] {
				seen[h.Pool] = true
				names = append(names, h.Pool.Value())
			}
		}
	}
	return names
}

// waitDeadline is until when something that waits is kept, if it is heard of
// now: its ticket may be handed a slot at the last instant, and then has
// limiter.ClaimTTL to claim it.
func (s *State) waitDeadline(until time.Duration) time.Duration {
	return min(until, s.now+ticketTTL) + claimTTL
}
