package session

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"example.com/govnode/internal/seeded"
)

// Signals: who is stopped or killed, and what that does to calls and sessions.
// Those of agents, of policies and of everything stand in one record of their
// namespace, which every Begin and Open reads and only a Signal writes; that of
// a session stands in the session.

// SignalKind says what a signal asks for.
type SignalKind uint8

const (
	Stop SignalKind = iota + 1
	Continue
	Kill
)

// Scope says whom a signal is for.
type Scope uint8

const (
	Everything Scope = iota + 1 // of the namespace
	OfAgent
	OfPolicy // by the name of its pool, also for sessions that named a digest
	OfSession
)

// A Target is whom a signal is for. Everything has no name.
type Target struct {
	Scope Scope
	Name  string
}

func (t Target) compare(o Target) int {
	return cmp.Or(cmp.Compare(t.Scope, o.Scope), strings.Compare(t.Name, o.Name))
}

// Hits reports whether a session of that agent and policy is meant.
func (t Target) Hits(agent, policy string) bool {
	switch t.Scope {
	case Everything:
		return true
	case OfAgent:
		return t.Name == agent
	case OfPolicy:
		return t.Name == policy
	}
	return false
}

type (
	// Signal stops its target, kills it, or lets it go on.
	Signal struct {
		Authorized
		NS     string
		By     Maker
		Target Target
		Signal SignalKind
		Reason string
	}

	// Swept says that all sessions of a KILL are closed. Number is a premise: a
	// later KILL of the same target is another.
	Swept struct {
		Authorized
		NS     string
		Target Target
		Number uint64
	}
)

func (c *Signal) Touches() []Key {
	keys := c.By.touches(c.NS)
	if c.Target.Scope == OfSession {
		return append(keys, SessionKey(c.NS, c.Target.Name))
	}
	return append(keys, SignalsKey(c.NS))
}

func (c *Swept) Touches() []Key { return []Key{SignalsKey(c.NS)} }

// Signals are what every call of a namespace is held to: the STOPs and KILLs that
// stand there, beside those of single sessions, and by which content hashes of tools a
// node has to have judged it. The record is immutable, and stays when no signal stands
// any more, since it holds the last numbers.
type Signals struct {
	Halts []Halt // by target
	Last  uint64 // number that was given to a KILL
	// Hashes is raised by each change of a registered hash, so that a call is judged
	// anew that was judged by what was registered before, on a node that is behind.
	Hashes uint64
}

// HashesOf returns by which registered hashes calls of a namespace are judged, given the
// record of its signals; 0 where none was ever registered.
func HashesOf(r Record) uint64 {
	if x, _ := r.(*Signals); x != nil {
		return x.Hashes
	}
	return 0
}

// A Halt is a STOP or a KILL that stands.
type Halt struct {
	Target Target
	Signal SignalKind // Stop or Kill
	Number uint64     // of a KILL
	Swept  bool       // a KILL that has closed all its sessions
	Since  time.Duration
	Reason string
}

// Gates is what few sessions have of what a call has to pass; immutable.
type Gates struct {
	Signal SignalKind // the session's own: Stop or Kill, 0 if none stands
	Reason string
	Since  time.Duration

	// Calls of kinds that the policy limits.
	ModelCalls, AgentCalls, Handoffs uint32
	FailedAt                         time.Duration // the latest call that failed, for the breaker
}

func (x *Signals) At(time.Duration) Record    { return x }
func (x *Signals) Due() (time.Duration, bool) { return 0, false }

// Unswept reports whether a KILL has sessions to close, as far as is known.
func (x *Signals) Unswept() bool {
	return slices.ContainsFunc(x.Halts, func(h Halt) bool { return h.Signal == Kill && !h.Swept })
}

// noteSignals keeps the list of records of signals.
func (s *State) noteSignals(k Key, r Record) {
	x, _ := r.(*Signals)
	if x == nil {
		delete(s.signals, k)
		return
	}
	if s.signals == nil {
		s.signals = make(map[Key]bool)
	}
	s.signals[Key(strings.Clone(string(k)))] = x.Unswept()
}

// Unswept returns the records of signals in which a KILL stands that has sessions
// to close, as far as is known.
func (s *State) Unswept() (keys []Key) {
	for k, unswept := range s.signals { // order-free: sorted below
		if unswept {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func (x *Signals) find(t Target) (int, bool) {
	return slices.BinarySearchFunc(x.Halts, t, func(h Halt, t Target) int { return h.Target.compare(t) })
}

// HaltOf returns what stands against the sessions of an agent under a policy,
// the widest KILL if there is one, else the widest STOP; nil if nothing does.
func (x *Signals) HaltOf(agent, policy string) *Halt {
	var found *Halt
	for i := range x.Halts {
		if h := &x.Halts[i]; h.Target.Hits(agent, policy) && (found == nil || h.Signal == Kill && found.Signal == Stop) {
			found = h
		}
	}
	return found
}

// Stronger returns the one of two signals that says more: a KILL, else the first
// that is there.
func Stronger(a, b *Halt) *Halt {
	if a == nil || b != nil && b.Signal == Kill && a.Signal == Stop {
		return b
	}
	return a
}

// Halt returns the signal that stands in the session itself, or nil.
func (x *Session) Halt(id string) *Halt {
	if x.Gates == nil || x.Gates.Signal == 0 {
		return nil
	}
	g := x.Gates
	return &Halt{
		Target: Target{OfSession, id}, Signal: g.Signal, Since: g.Since, Reason: g.Reason,
		Swept: g.Signal == Kill && x.Phase != PhaseOpen,
	}
}

// killed returns the KILL that closed the session; nil if none did.
func (x *Session) killed(id string) *Halt {
	if h := x.Halt(id); h != nil && h.Signal == Kill {
		return h
	}
	return nil
}

// halt puts a signal into the session; with nothing of any it takes it away.
func (x *Session) halt(signal SignalKind, reason string, now time.Duration) {
	var g Gates
	if x.Gates != nil {
		g = *x.Gates
	}
	g.Signal, g.Reason, g.Since = signal, reason, now
	if x.Gates = &g; g == (Gates{}) {
		x.Gates = nil
	}
}

// signal lets a signal stand, or lifts what stands at exactly its target.
func (s *State) signal(c *Signal, r *Result) {
	if c.Target.Scope == OfSession {
		s.signalSession(c, r)
		return
	}
	k := ref{KindSignals, c.NS, ""}
	var next Signals
	if x, _ := s.lookup(k).(*Signals); x != nil {
		next = *x
	}
	i, there := next.find(c.Target)
	switch {
	case c.Signal == Continue && !there:
		return
	case c.Signal == Continue && next.Halts[i].Signal == Kill && !next.Halts[i].Swept:
		r.Code, r.Signal = KillUnderWay, told(next.Halts[i])
		return
	case c.Signal == Continue:
		next.Halts = slices.Delete(slices.Clone(next.Halts), i, i+1)
		r.Value = 1
	case there && next.Halts[i].Signal == Kill: // nothing is stronger
		return
	case !there && c.Target.Scope != Everything && len(next.Halts) >= MaxSignals: // who has to stop all finds room
		r.Code, r.Limit = TooManySignals, MaxSignals
		return
	default:
		h := Halt{Target: c.Target, Signal: c.Signal, Since: s.now, Reason: c.Reason}
		if c.Signal == Kill {
			next.Last++
			h.Number = next.Last
		}
		next.Halts = slices.Clone(next.Halts)
		if there {
			next.Halts[i] = h
		} else {
			next.Halts = slices.Insert(next.Halts, i, h)
		}
		r.Value = 1
	}
	if len(next.Halts) == 0 {
		next.Halts = nil
	}
	s.write(k, &next)
}

// signalSession is signal for one session. A KILL stands there until the session
// is closed, which its command does not do: it does not know the pools.
func (s *State) signalSession(c *Signal, r *Result) {
	k := ref{KindSession, c.NS, c.Target.Name}
	x := s.session(k)
	if x == nil {
		r.Code = NotFound
		return
	}
	switch h := x.Halt(c.Target.Name); {
	case x.Phase != PhaseOpen && c.Signal == Kill: // it admits nothing any more
		return
	case x.Phase != PhaseOpen:
		r.Code, r.Signal = SessionClosed, h
		return
	case h != nil && h.Signal == Kill && c.Signal == Continue:
		r.Code, r.Signal = KillUnderWay, h
		return
	case h != nil && h.Signal == Kill, h == nil && c.Signal == Continue:
		return
	}
	x = s.ownSession(k, x)
	if r.Value = 1; c.Signal == Continue {
		x.halt(0, "", 0)
		return
	}
	x.halt(c.Signal, c.Reason, s.now)
}

// standing returns what stands at exactly a target; nil if nothing does.
func (s *State) standing(ns string, t Target) *Halt {
	if t.Scope == OfSession {
		if x := s.session(ref{KindSession, ns, t.Name}); x != nil {
			return x.Halt(t.Name)
		}
		return nil
	}
	x, _ := s.lookup(ref{KindSignals, ns, ""}).(*Signals)
	if x == nil {
		return nil
	}
	if i, there := x.find(t); there {
		return told(x.Halts[i])
	}
	return nil
}

// swept marks a KILL all of whose sessions are closed.
func (s *State) swept(c *Swept) {
	k := ref{KindSignals, c.NS, ""}
	x, _ := s.lookup(k).(*Signals)
	if x == nil {
		return
	}
	i, there := x.find(c.Target)
	if !there || x.Halts[i].Number != c.Number || x.Halts[i].Swept || x.Halts[i].Signal != Kill {
		return
	}
	next := *x
	next.Halts = slices.Clone(x.Halts)
	next.Halts[i].Swept = true
	s.write(k, &next)
}

func told(h Halt) *Halt { return &h }

// haltOf returns what stands in a namespace against the sessions of an agent
// under a policy, and is at least as strong; nil if nothing is.
func (s *State) haltOf(ns, agent, policy string, least SignalKind) *Halt {
	if len(s.signals) == 0 {
		return nil // as a rule
	}
	x, _ := s.lookup(ref{KindSignals, ns, ""}).(*Signals)
	if x == nil {
		return nil
	}
	if h := x.HaltOf(agent, policy); h != nil && h.Signal >= least {
		return h // of a record that is immutable
	}
	return nil
}

// stopped reports whether a signal keeps new calls of a session out; the answer
// then says which. Nothing is counted or remembered.
func (s *State) stopped(ns, id string, x *Session, r *Result) bool {
	h := Stronger(s.haltOf(ns, x.Agent.Value(), x.Policy.Value(), Stop), x.Halt(id))
	if h == nil {
		return false
	}
	if r.Code, r.Signal = Stopped, h; h.Signal == Kill {
		r.Code = SessionClosed
	}
	return true
}

// halted is stopped for a call that waits. It keeps its place until its turn, and
// then gives back what it has: who waits for the end of the STOP keeps nobody
// from a slot. A KILL it does not survive.
func (s *State) halted(c *Begin, x *Session, h *Held, r *Result) bool {
	if seeded.On(seeded.ClaimUnderStop) || !s.stopped(c.NS, c.Session, x, r) {
		return false
	}
	if r.Code == Stopped && !s.handed(c.NS, h) {
		r.Code, r.Signal = Done, nil
		return false
	}
	over := *h
	s.letGo(c.NS, &over)
	if r.Code == Stopped && over.Asked() != nil {
		x.park(h)
	} else {
		s.forget(c.NS, x, &over)
	}
	r.Repeat, r.Rule = false, 0 // as it is answered from now on
	return true
}

// handed reports whether the queue in which a call stands has handed it a slot.
func (s *State) handed(ns string, h *Held) bool {
	for _, hold := range h.Pools {
		if hold.Token != 0 {
			continue
		}
		p := s.pool(ref{KindPool, ns, hold.Pool.Value()})
		return p != nil && p.Claimable(h.Holder)
	}
	return false
}

func (v *validator) signal(c *Signal) {
	v.of = "Signal"
	v.request(c.NS, c.By)
	v.target(c.Target)
	between(v, "Signal", c.Signal, Stop, Kill)
	v.text("Reason", c.Reason, 0, MaxReason)
}

func (v *validator) target(t Target) {
	between(v, "Target.Scope", t.Scope, Everything, OfSession)
	if t.Scope != Everything {
		v.id("Target.Name", t.Name)
	} else if t.Name != "" {
		v.fail("Target.Name", "stands beside everything; give one of the two")
	}
}

func (c *Signal) fields(f *codec) {
	f.request(&c.NS, &c.By)
	for m := f.Optional(3, c.Target != Target{}); f.Visit(&m); {
		c.Target.fields(f)
	}
	f.Uint8(4, (*uint8)(&c.Signal), uint8(Kill))
	f.Kept(5, &c.Reason)
}

func (c *Swept) fields(f *codec) {
	f.Text(1, &c.NS)
	for m := f.Optional(2, c.Target != Target{}); f.Visit(&m); {
		c.Target.fields(f)
	}
	f.Uint64(3, &c.Number)
}

func (t *Target) fields(f *codec) {
	f.Uint8(1, (*uint8)(&t.Scope), uint8(OfSession))
	f.Kept(2, &t.Name)
}

func (x *Signals) fields(f *codec) {
	for i, n := elements(f, 1, &x.Halts, MaxSignals+1); i < n; i++ {
		for m := f.Message(1, true); f.Visit(&m); {
			x.Halts[i].fields(f)
		}
	}
	f.Uint64(2, &x.Last)
	f.Uint64(3, &x.Hashes)
}

func (h *Halt) fields(f *codec) {
	for m := f.Optional(1, h.Target != Target{}); f.Visit(&m); {
		h.Target.fields(f)
	}
	f.Uint8(2, (*uint8)(&h.Signal), uint8(Kill))
	f.Uint64(3, &h.Number)
	f.Bool(4, &h.Swept)
	f.Duration(5, &h.Since)
	f.Kept(6, &h.Reason)
}

func (f *codec) gates(num protowire.Number, v **Gates) {
	if f.Field() == num && *v == nil {
		*v = new(Gates)
	}
	for m := f.Message(num, *v != nil); f.Visit(&m); {
		f.Uint8(1, (*uint8)(&(*v).Signal), uint8(Kill))
		f.Kept(2, &(*v).Reason)
		f.Duration(3, &(*v).Since)
		f.Uint32(10, &(*v).ModelCalls)
		f.Uint32(11, &(*v).AgentCalls)
		f.Uint32(12, &(*v).Handoffs)
		f.Duration(13, &(*v).FailedAt)
	}
}
