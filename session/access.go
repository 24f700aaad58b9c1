package session

import (
	"fmt"
	"time"

	"example.com/govnode/session/ids"
)

// The functions here hand a command the records that it works on: settled, and,
// before it writes, its entry's own copy.

// write publishes a version that the present entry may go on writing into.
func (s *State) write(k ref, r Record) {
	s.writes(k)
	s.written = append(s.written, writtenRecord{s.put(k, r), r})
}

type writtenRecord struct {
	shard  int
	record Record
}

// session returns the session as it stands, or nil.
func (s *State) session(k ref) *Session {
	x, _ := s.lookup(k).(*Session)
	if x == nil {
		return nil
	}
	if at, _ := x.Due(); at > s.now {
		return x
	}
	if x.Phase != PhaseOpen && s.now < x.Used+KeptFor {
		return x
	}
	x = s.ownSession(k, x)
	if !x.settle(s.now, func(h *Held) { s.noteLapse(k, h) }) {
		return nil // stays stored until a Tick drops it
	}
	return x
}

// counted returns the session as it stands, with its counters in the answer; nil
// says that there is none, and so does the answer.
func (s *State) counted(k ref, r *Result) *Session {
	x := s.session(k)
	if x == nil {
		r.Code = NotFound
		return nil
	}
	r.Counters = x.Counters()
	return x
}

func (s *State) noteLapse(k ref, h *Held) {
	s.lapsed = append(s.lapsed, Lapse{NS: k.ns, Session: k.name, Call: h.ID(), Tool: h.Tool.Value()})
}

func (s *State) ownSession(k ref, x *Session) *Session {
	if x.entry == s.entry {
		s.writes(k)
		return x
	}
	y := x.copy()
	y.entry = s.entry
	s.write(k, y)
	return y
}

// client returns the client as it stands, or nil.
func (s *State) client(k ref) *Client {
	x, _ := s.lookup(k).(*Client)
	if x == nil {
		return nil
	}
	if at, _ := x.Due(); at > s.now {
		return x
	}
	x = s.ownClient(k, x)
	if !x.settle(s.now) {
		return nil
	}
	return x
}

// ownClient returns the entry's own copy of a client. One that is absent is
// made; one that is stored but over is dropped first.
func (s *State) ownClient(k ref, x *Client) *Client {
	if x == nil {
		s.dropClient(k)
		x = &Client{Used: s.now, entry: s.entry, Born: s.namespace(k.ns).ForgotClients}
		s.write(k, x)
		return x
	}
	if x.entry == s.entry {
		s.writes(k)
		return x
	}
	y := x.copy()
	y.entry = s.entry
	s.write(k, y)
	return y
}

// dropClient drops a client that is over, with the ids that it remembers.
func (s *State) dropClient(k ref) {
	x, _ := s.lookup(k).(*Client)
	if x == nil {
		return
	}
	ns := s.namespace(k.ns)
	t := x.IDs.Newest()
	if folded := s.fold(k, x.Chain, &ns); folded || t > ns.ForgotClients {
		ns.ForgotClients = max(ns.ForgotClients, t)
		s.write(ref{KindNamespace, k.ns, ""}, &ns)
	}
	s.put(k, nil)
}

// dropSession drops a session that is over. Its id is not taken again if it has
// a time; if it has none, the ids of its calls are not, in whatever session is
// opened under it.
func (s *State) dropSession(k ref) {
	ns := s.namespace(k.ns)
	t := ids.Time(k.name)
	x, _ := s.lookup(k).(*Session)
	if x != nil && t == 0 {
		t = x.IDs.Newest()
	}
	if folded := x != nil && s.fold(k, x.Chain, &ns); folded || t > ns.ForgotSessions {
		ns.ForgotSessions = max(ns.ForgotSessions, t)
		s.write(ref{KindNamespace, k.ns, ""}, &ns)
	}
	s.put(k, nil)
	s.put(ref{KindBaseline, k.ns, k.name}, nil)
}

// namespace returns a copy of the namespace's record.
func (s *State) namespace(ns string) Namespace {
	if x, ok := s.lookup(ref{KindNamespace, ns, ""}).(*Namespace); ok {
		return *x
	}
	return Namespace{}
}

// pool returns the pool as it stands, or nil.
func (s *State) pool(k ref) *Pool {
	x, _ := s.lookup(k).(*Pool)
	if x == nil {
		return nil
	}
	if at, ok := x.Due(); !ok || at > s.now {
		return x
	}
	x = s.ownPool(k, x)
	x.Settle(s.now)
	if x.over() {
		return nil // stays stored until a Tick drops it
	}
	return x
}

func (s *State) ownPool(k ref, x *Pool) *Pool {
	if x == nil {
		x = &Pool{entry: s.entry}
		x.RaiseToken(s.firstToken())
		s.write(k, x)
		return x
	}
	if x.entry == s.entry {
		return x
	}
	y := x.copy()
	y.entry = s.entry
	s.write(k, y)
	return y
}

// firstToken is below every token of this generation.
func (s *State) firstToken() uint64 { return uint64(s.generation) << 40 }

func (s *State) counter(k ref) *Counter {
	x, _ := s.lookup(k).(*Counter)
	if x == nil || x.At(s.now) == nil {
		return nil
	}
	return x
}

// left returns how long it is until at.
func (s *State) left(at time.Duration) time.Duration { return max(0, at-s.now) }

// stale reports whether an id that is not known may once have been: its time is
// not newer than what was forgotten.
func stale(id string, forgot uint64, r *Result) bool {
	if t := ids.Time(id); t != 0 && t <= forgot {
		r.Code, r.NewerThan = StaleID, forgot
		return true
	}
	return false
}

var guarded bool

// GuardFootprints is for the init of tests. From then on all states panic where
// a command reads or writes a record that its Touches does not name: a backend
// that fetches what is named alone would answer otherwise, and lose the write.
func GuardFootprints() { guarded = true }

func (s *State) guard(c Command) {
	s.touched = nil
	if _, whole := c.(*Restore); whole || !guarded {
		return
	}
	s.touched = make(map[Key]bool)
	for _, k := range Footprint(c) {
		s.touched[k] = true
	}
}

// touch keeps nothing of key, so that a text is handed in without being copied.
func (s *State) touch(key []byte) {
	if s.touched != nil && !s.touched[Key(key)] {
		panic(fmt.Sprintf("session: %s is not in the footprint of the command", string(key)))
	}
}
