package session

import (
	"slices"

	"example.com/govnode/session/approval"
	"example.com/govnode/session/ids"
)

// What changes the state without a caller that asks for it: housekeeping, and
// what follows a restore; and what an operator sets right.

// tick settles the records named. It is housekeeping: every command would have
// found them settled anyway.
func (s *State) tick(c *Tick) {
	named := func(k Key) bool { return slices.Contains(c.Keys, k) }
	if len(c.Keys) > 16 {
		set := make(map[Key]bool, len(c.Keys))
		for _, k := range c.Keys {
			set[k] = true
		}
		named = func(k Key) bool { return set[k] }
	}
	for _, name := range c.Keys {
		k := refOf(name)
		r := s.lookup(k)
		if r == nil {
			continue
		}
		if at, ok := r.Due(); !ok || at > s.now {
			continue
		}
		switch x := r.(type) {
		case *Session:
			s.tickSession(k, named)
		case *Client:
			if s.client(k) == nil && named(NamespaceKey(k.ns)) {
				s.dropClient(k)
			}
		case *Pool:
			if s.pool(k) == nil {
				s.put(k, nil)
			}
		case *Budget:
			s.budget(k)
		case *Approval:
			if s.approval(k) == nil {
				s.put(k, nil)
			}
		case *Counter, *List, *ListItem, *Standing:
			if x.At(s.now) == nil {
				s.put(k, nil)
			}
		}
	}
}

// tickSession lets a session that has ended go of its pin, and drops it when
// its time is over.
func (s *State) tickSession(k ref, named func(Key) bool) {
	over := s.session(k) == nil
	x := s.lookup(k).(*Session)
	if x.Pinned && (over || x.Phase != PhaseOpen) && named(PinsKey(k.ns, x.Pin.Digest, k.name)) {
		x = s.ownSession(k, x)
		x.Pinned = false
		s.unpin(k.ns, x.Pin.Digest, k.name)
	}
	if over && !x.Pinned && named(NamespaceKey(k.ns)) && named(BaselineKey(k.ns, k.name)) {
		s.dropSession(k)
	}
}

// tickNeeds returns the keys that a Tick names beside that of a record that is
// due, so that what it holds elsewhere can be let go.
func tickNeeds(k Key, r Record) []Key {
	ns := k.Namespace()
	switch x := r.(type) {
	case *Session:
		return []Key{PinsKey(ns, x.Pin.Digest, k.Name()), NamespaceKey(ns), BaselineKey(ns, k.Name())}
	case *Client:
		return []Key{NamespaceKey(ns)}
	}
	return nil
}

// restore follows a snapshot that an operator put in place: whoever held or
// waited did so in a state that is gone. Tokens go on above all that were ever
// given out.
func (s *State) restore() {
	s.generation++
	for _, name := range s.keys() {
		k := refOf(name)
		switch x := s.lookup(k).(type) {
		case *Session:
			if s.session(k) == nil {
				continue
			}
			x = s.ownSession(k, s.lookup(k).(*Session))
			if len(x.Open) > 0 {
				x.Used = s.now // until now somebody had something open here
			}
			for len(x.Open) > 0 {
				h := x.Open[0]
				x.Open = x.Open[1:]
				if h.Asked() != nil {
					x.endAsked(&h, RefusedCancelled)
				} else {
					x.lapse(&h)
				}
			}
			x.Open = nil
		case *Approval:
			if s.approval(k) != nil {
				s.finishApproval(k, approval.Cancelled)
			}
		case *Access:
			s.restoreAccess(k, x)
		case *Signals: // no number comes back, as no epoch does
			if next := *x; x.Hashes != 0 {
				next.Hashes = uint64(s.generation)<<32 + x.Hashes&(1<<32-1)
				s.write(k, &next)
			}
		case *Standing: // it may have been taken back since, or used up
			s.put(k, nil)
		case *Client:
			if s.client(k) == nil {
				continue
			}
			x = s.ownClient(k, s.lookup(k).(*Client))
			if len(x.Open) > 0 {
				x.Used = s.now
			}
			for len(x.Open) > 0 {
				h := &x.Open[0]
				code, token := LeaseLost, h.Pools[0].Token
				if h.Waiting() {
					code = WaitTimeout
				}
				x.finish(h, code, token)
			}
		case *Pool:
			x = s.ownPool(k, x)
			if x.Per > 0 {
				x.EndWaits() // what was spent stays spent
			} else {
				x.Clear()
			}
			x.RaiseToken(s.firstToken())
		}
	}
}

// keys returns the keys of all records in a fixed order.
func (s *State) keys() []Key {
	var keys []Key
	for _, sh := range s.shards {
		for k := range sh.records { // order-free: sorted below
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// repair lowers what was forgotten. It is not held to what it repairs: an id of
// its own that is dated at the present would be refused, where one dated in the
// future has closed the namespace.
func (s *State) repair(c *Repair, r *Result) {
	ns := s.namespace(c.NS)
	was := ns
	ns.ForgotSessions = min(ns.ForgotSessions, c.NewerThan)
	ns.ForgotClients = min(ns.ForgotClients, c.NewerThan)
	if c.Client != "" && s.repairClient(c, &ns) || ns != was {
		r.Value = 1 // something was lowered
	}
	if ns != was {
		s.write(ref{KindNamespace, c.NS, ""}, &ns)
	}
}

// repairClient lets a client forget what it finished, and reports whether it is
// there. The times of its ids would raise what was lowered as soon as they are
// forgotten one by one, and a backend that stores ids apart has not read them.
func (s *State) repairClient(c *Repair, ns *Namespace) bool {
	k := ref{KindClient, c.NS, c.Client}
	x := s.client(k)
	if x == nil {
		over, _ := s.lookup(k).(*Client)
		if over == nil {
			return false
		}
		ns.ForgotClients = max(ns.ForgotClients, min(over.IDs.Newest(), c.NewerThan))
		s.fold(k, over.Chain, ns)
		s.put(k, nil)
		return true
	}
	forgot := min(c.NewerThan, max(x.IDs.Newest(), s.newerThan(k, x)))
	x = s.ownClient(k, x)
	x.Born, x.IDs = 0, ids.Forgotten(forgot)
	return true
}
