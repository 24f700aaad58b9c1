package session

import (
	"example.com/govnode/session/ids"
)

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
		s.put(k, nil)
		return true
	}
	forgot := min(c.NewerThan, max(x.IDs.Newest(), s.newerThan(k, x)))
	x = s.ownClient(k, x)
	x.Born, x.IDs = 0, ids.Forgotten(forgot)
	return true
}
