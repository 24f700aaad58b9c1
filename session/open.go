package session

import (
	"time"
	"unique"

	"example.com/govnode/session/ids"
)

// How a session is opened and closed, and what it is pinned to in between; and,
// behind that, how a call of it ends.

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
	if h := s.haltOf(c.NS, c.Agent, name, Kill); h != nil {
		r.Code, r.Signal = Killed, h
		return
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
	if c.Parent != "" || len(c.Attributes) > 0 || c.Token != (Digest{}) {
		x.More = &More{Parent: c.Parent, Attributes: c.Attributes, Token: c.Token}
	}
	s.write(k, x)
	s.pin(c.NS, c.Digest, c.Session, 1)
	r.Digest, r.Value, r.After = c.Digest, int64(version), s.afterSession(x)
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
	if c.Digest != x.Pin.Digest || !covers(c.Pools, x.Open) || !x.asksNamed(c.Asked) {
		r.Code, r.Digest, r.Pools, r.Names = StalePremise, x.Pin.Digest, x.OpenPools(), x.AskedCalls()
		return
	}
	x = s.ownSession(k, x)
	for len(x.Open) > 0 {
		h := x.Open[0]
		r.Value += s.letGo(c.NS, &h)
		x.Open = x.Open[1:]
		if h.Waiting() {
			s.forget(c.NS, x, &h)
			x.IDs.Add(remembered(h.ID(), h.Content, SessionClosed, h.Rule, 0))
			continue
		}
		s.noteLapse(k, &h)
		x.lapse(&h)
	}
	x.Open = nil
	x.Phase, x.Used = PhaseClosed, s.now
	if c.Killed {
		x.halt(Kill, c.Reason, s.now)
	}
	x.Pinned = false
	s.unpin(c.NS, x.Pin.Digest, c.Session)
	r.Counters, r.After = x.Counters(), s.afterSession(x)
}

// letGo gives up what something has in its pools, and returns how many leases
// it had there.
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

// OpenPools lists the pools of everything that is open, each once, in the order in
// which they come.
func (x *Session) OpenPools() []string {
	open := x.Open
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

// How a call ends, or gives up its wait.

// end reports that a call has finished, and hands its slots on.
func (s *State) end(c *End, r *Result) {
	k := ref{KindSession, c.NS, c.Session}
	x := s.counted(k, r)
	if x == nil {
		return
	}
	h := x.Find(c.Call)
	if h == nil {
		s.endAgain(c, x, r)
		return
	}
	if h.Waiting() {
		r.Code = StillWaiting
		return
	}
	if !c.Ends(h.Content) {
		r.Code = Invalid
		return
	}
	if !h.within(c.Pools, r) || !h.ratesNamed(c.Rates) {
		r.Code, r.Pools, r.Rates, r.Names = StalePremise, h.PoolNames(), h.RateNames(), h.BudgetNames()
		return
	}
	if !h.budgetsNamed(c, r) {
		r.Rates = h.RateNames()
		return
	}
	var base Digest
	if x.More != nil {
		base = x.More.Baseline
	}
	if c.Output.Hash != (Digest{}) && c.Output.Against != base {
		r.Code, r.Digest = StalePremise, base
		return
	}

	done := *h
	x = s.ownSession(k, x)
	x.remove(c.Call)
	s.letGo(c.NS, &done)
	s.correct(c, &done)
	x.Used = s.now
	x.Executions++
	x.Reserved -= done.Tokens
	if c.Tokens >= 0 {
		x.Tokens += c.Tokens
	} else {
		x.Tokens += done.Tokens
	}
	switch c.Status {
	case Succeeded:
		x.Consecutive = 0
	case Failed:
		x.Failures++
		x.Consecutive++
		x.failed(s.now)
	}
	s.settleCharges(c, &done, r)
	x.IDs.Add(remembered(c.Call, done.Content, Ended, done.Rule, uint64(c.Status)))
	s.noteOutput(c, k, x)
	if n := x.Pin.Limits.Checkpoint; n > 0 && x.Executions%n == 0 {
		r.Checkpoint = x.Executions
	}
	r.Code, r.Counters = Ended, x.Counters()
}

func (s *State) endAgain(c *End, x *Session, r *Result) {
	m := x.IDs.Find(c.Call)
	switch {
	case m == nil && stale(c.Call, x.IDs.NewerThan(), r):
		// It may have been admitted, and ended.
	case m == nil:
		r.Code = NotFound
		if x.Phase != PhaseOpen {
			r.Code = SessionClosed
		}
	case Code(m.Code()) == Ended && m.Value != uint64(c.Status):
		r.Code = IDReused
	case (Code(m.Code()) == Ended || Code(m.Code()) == LeaseLost) && !c.Ends(m.Content):
		r.Code = Invalid
	case Code(m.Code()) == Ended:
		r.Code, r.Repeat = AlreadyEnded, true
	case Code(m.Code()) == LeaseLost:
		r.Code, r.Repeat, r.Signal = LeaseLost, true, x.killed(c.Session)
	default:
		r.Code = NotFound // it was never admitted
	}
}

// Ends reports whether what it ends is what its maker thinks it is.
func (c *End) Ends(content Fingerprint) bool {
	return c.Content == Fingerprint{} || c.Content == content
}

// noteOutput keeps the first output of a session, and the score of later ones.
func (s *State) noteOutput(c *End, k ref, x *Session) {
	if c.Output.Hash == (Digest{}) {
		return
	}
	more := More{}
	if x.More != nil {
		more = *x.More
	}
	if more.Baseline == (Digest{}) {
		more.Baseline = c.Output.Hash
		s.write(ref{KindBaseline, c.NS, c.Session}, &Baseline{c.Output.Hash, c.Output.Text})
	} else {
		more.Drift = c.Output.Score
	}
	x.More = &more
}

// cancel gives up a wait, of a call or of a client for a slot.
func (s *State) cancel(c *Cancel, r *Result) {
	if c.Session == "" {
		s.cancelSlot(c, r)
		return
	}
	k := ref{KindSession, c.NS, c.Session}
	x := s.counted(k, r)
	if x == nil {
		return
	}
	h := x.Find(c.Call)
	if h == nil {
		m := x.IDs.Find(c.Call)
		if m == nil {
			if !stale(c.Call, x.IDs.NewerThan(), r) {
				r.Code = NotFound
			}
			return
		}
		r.Code, r.Repeat = Code(m.Code()), true
		if r.Code == Ended {
			r.Code = AlreadyEnded
		}
		return
	}
	if !h.Waiting() {
		r.Code = NotWaiting
		return
	}
	if h.Asked() != nil && !c.Asked {
		r.Code, r.Pools, r.Approval = StalePremise, h.PoolNames(), &ApprovalCount{ID: ApprovalID(c.NS, c.Session, c.Call)}
		return
	}
	if !h.within(c.Pools, r) || s.wanted(c, h, r) {
		return
	}
	x = s.ownSession(k, x)
	x.Used = s.now
	r.Code = s.giveUp(c.NS, x, x.Find(c.Call), WaitCancelled, 0)
	r.Counters = x.Counters()
}

// wanted reports whether who gives up the place of another was wrong about that one: it was
// heard of since, as by the node at which he waits now. The answer then says that he does.
func (s *State) wanted(c *Cancel, h *Held, r *Result) bool {
	if c.Heard == 0 {
		return false
	}
	for _, hold := range h.Pools {
		if hold.Token > 0 {
			continue
		}
		if p := s.pool(ref{KindPool, c.NS, hold.Pool.Value()}); p != nil && p.Heard(s.now, h.Holder) > c.Heard {
			r.Code = Queued
			return true
		}
	}
	return false
}

// judged is a command that a node has judged by a session as it saw it: whose agent it
// has, which secret its calls bring. An id may be opened anew once its session is over,
// by somebody else, so Opened is a premise: when the session that was judged began, in
// log time. Where the id has another one by now the answer is StaleSession, and nothing
// is counted, written or remembered. Zero: it was judged by none.
type judged interface {
	judgedBy() (session string, opened time.Duration)
}

func (c *Begin) judgedBy() (string, time.Duration)  { return c.Session, c.Opened }
func (c *End) judgedBy() (string, time.Duration)    { return c.Session, c.Opened }
func (c *Cancel) judgedBy() (string, time.Duration) { return c.Session, c.Opened }
func (c *Close) judgedBy() (string, time.Duration)  { return c.Session, c.Opened }
func (c *Renew) judgedBy() (string, time.Duration)  { return c.Session, c.Opened }

// staleSession reports whether a command was judged by another session than the one that
// has the id now; the answer then says so.
func (s *State) staleSession(c Command, r *Result) bool {
	j, ok := c.(judged)
	if !ok {
		return false
	}
	id, opened := j.judgedBy()
	if opened == 0 {
		return false
	}
	x, _ := s.lookup(ref{KindSession, c.Namespace(), id}).(*Session)
	if x == nil || x.Opened == opened || x.At(s.now) == nil {
		return false
	}
	r.Code = StaleSession
	return true
}
