package model

import (
	"math"
	"slices"

	"example.com/govnode/session"
	"example.com/govnode/session/approval"
)

// Requests that have an id in the record of a client, and what no caller sends.

// request carries a request out once. do reports whether it was carried out; a
// refusal changes nothing and is not remembered.
func (s *space) request(by session.Maker, r *session.Result, do func() bool) {
	if s.answered(by, r) || by.Request != "" && stale(by.Request, s.forgotten(by.Client), r) {
		return
	}
	if do() {
		s.remember(by, r.Value)
	}
}

// answered reports whether the id is known, and then says what became of it.
func (s *space) answered(by session.Maker, r *session.Result) bool {
	if by.Request == "" {
		return false
	}
	_, h, f := s.slot(by.Client, by.Request)
	switch {
	case h != nil: // the id of a slot that is open
		r.Code = session.IDReused
	case f == nil:
		return false
	case f.content != by.Content:
		r.Code = session.IDReused
	default:
		r.Repeat, r.Value = true, int64(f.value)
	}
	return true
}

func (s *space) remember(by session.Maker, value int64) {
	if by.Request != "" {
		s.makeClient(by.Client).ids.add(finished{by.Request, by.Content, session.Done, 0, uint64(value)})
	}
}

func (s *space) putPolicy(c *session.PutPolicy, r *session.Result) bool {
	tree := s.policies[c.Digest]
	if tree != nil && !slices.Contains(tree.names, c.Name) && len(tree.names) >= maxNames {
		r.Code, r.Limit = session.TooManyNames, maxNames
		return false
	}
	if tree == nil {
		tree = &policy{tree: c.Tree, limits: c.Limits, first: c.Name}
		s.policies[c.Digest] = tree
	}
	if !slices.Contains(tree.names, c.Name) {
		tree.names = append(tree.names, c.Name)
		slices.Sort(tree.names)
	}
	n := s.names[c.Name]
	if n == nil {
		n = &name{}
		s.names[c.Name] = n
	}
	if n.digest != c.Digest { // the same again is no new version
		n.digest, n.version = c.Digest, n.version+1
	}
	r.Value = int64(n.version)
	return true
}

// deletePolicy removes a name, or all names of a tree, and the tree if no name
// is left. Versions of a name go on where they were.
func (s *space) deletePolicy(c *session.DeletePolicy, r *session.Result) bool {
	if c.Name != "" {
		n := s.names[c.Name]
		if n == nil || n.digest == (session.Digest{}) {
			r.Code = session.NotFound
			return false
		}
		if n.digest != c.Digest {
			r.Code, r.Digest = session.StalePremise, n.digest
			return false
		}
	}
	tree := s.policies[c.Digest]
	if tree == nil {
		r.Code = session.NotFound
		return false
	}
	if !slices.Equal(tree.names, c.Names) {
		r.Code, r.Digest, r.Names = session.StalePremise, c.Digest, slices.Clone(tree.names)
		return false
	}
	for _, x := range s.sessions {
		if x.pinned && x.digest == c.Digest {
			r.Code = session.PolicyPinned
			return false
		}
	}
	var kept []string
	for _, id := range tree.names {
		switch n := s.names[id]; {
		case n.digest != c.Digest: // points elsewhere by now
		case c.Name != "" && c.Name != id:
			kept = append(kept, id)
		default:
			n.digest = session.Digest{}
		}
	}
	if tree.names = kept; kept == nil {
		delete(s.policies, c.Digest)
	}
	return true
}

func (s *space) set(c *session.Set, r *session.Result) bool {
	if s.conflict(c.Key, c.IfVersion, r) {
		return false
	}
	x := &counter{Value: c.Value}
	if c.TTL > 0 {
		x.until = s.Now + c.TTL
	}
	s.counters[c.Key] = x
	return true
}

func (s *space) delete(c *session.Delete, r *session.Result) bool {
	if s.conflict(c.Key, c.IfVersion, r) {
		return false
	}
	if s.counters[c.Key] != nil {
		r.Value = 1
	}
	delete(s.counters, c.Key)
	return true
}

func (s *space) increment(c *session.Increment, r *session.Result) bool {
	x := counter{Value: session.Value{Number: true}}
	if old := s.counters[c.Key]; old != nil {
		x = *old
	}
	if !x.Number {
		r.Code = session.NotANumber
		return false
	}
	if c.Amount > 0 && x.N > math.MaxInt64-c.Amount || c.Amount < 0 && x.N < math.MinInt64-c.Amount {
		r.Code = session.Overflow
		return false
	}
	x.N += c.Amount
	r.Value = x.N
	s.counters[c.Key] = &x
	return true
}

func (s *space) putHash(c *session.PutHash) bool {
	if c.Hash != s.hashes[c.Tool] {
		s.hashed = max(s.hashed, s.Generation<<32) + 1
	}
	delete(s.hashes, c.Tool)
	if c.Hash != "" {
		s.hashes[c.Tool] = c.Hash
	}
	return true
}

// repair lowers what was forgotten. A client that is named forgets what it
// finished, and one that is over is dropped. Its own id is not held to what it
// repairs.
func (s *space) repair(c *session.Repair, r *session.Result) {
	if s.answered(c.By, r) {
		return
	}
	sessions, clients := s.forgotSessions, s.forgotClients
	s.forgotSessions, s.forgotClients = min(sessions, c.NewerThan), min(clients, c.NewerThan)
	if x := s.clients[c.Client]; x != nil && x.over(s.Now) {
		s.forgotClients = max(s.forgotClients, min(x.ids.newest, c.NewerThan))
		delete(s.clients, c.Client)
		r.Value = 1
	} else if x != nil {
		x.ids = forgotten(min(c.NewerThan, max(x.ids.newest, min(x.born, clients))))
		x.born = 0
		r.Value = 1
	}
	if s.forgotSessions != sessions || s.forgotClients != clients {
		r.Value = 1
	}
	s.remember(c.By, r.Value)
}

// tick drops what is over, and lets sessions that have ended go of their pins,
// as far as it names the records of what it changes. It changes no other answer.
func (m *Model) tick(c *session.Tick) {
	named := func(k session.Key) bool { return slices.Contains(c.Keys, k) }
	for _, k := range c.Keys {
		s, id := m.space(k.Namespace()), k.Name()
		switch k.Kind() {
		case session.KindSession:
			alive := s.look(id)
			x := s.sessions[id]
			if x == nil || alive != nil && x.phase == session.PhaseOpen {
				continue
			}
			if named(session.PinsKey(s.name, x.digest, id)) {
				x.pinned = false
			}
			if alive == nil && !x.pinned && named(session.NamespaceKey(s.name)) && named(session.BaselineKey(s.name, id)) {
				s.dropSession(x)
			}
		case session.KindClient:
			if s.client(id) == nil && named(session.NamespaceKey(s.name)) {
				s.dropClient(id)
			}
		}
	}
}

// restore ends all leases, and lets tokens go on above all that were ever given
// out: what happened after the snapshot that was restored is not known.
func (m *Model) restore() {
	m.Generation++
	var all []session.Key
	for _, s := range m.spaces {
		for id := range s.sessions {
			all = append(all, session.SessionKey(s.name, id))
		}
		for _, x := range s.clients {
			if len(x.open) > 0 {
				x.used = m.Now
			}
			for len(x.open) > 0 {
				x.lose(x.open[0])
			}
		}
		for _, a := range s.approvals {
			a.finish(approval.Cancelled, m.Now)
		}
		clear(s.standings)
		if s.access != nil {
			s.access.epoch = m.Generation<<32 + s.access.epoch&0xffffffff
		}
		if s.hashed != 0 {
			s.hashed = m.Generation<<32 + s.hashed&0xffffffff
		}
		for _, p := range s.pools {
			p.leases = slices.DeleteFunc(p.leases, func(l lease) bool { return l.holder != "" })
			p.queue, p.last = nil, max(p.last, m.Generation<<40)
		}
	}
	slices.Sort(all)
	for _, k := range all {
		x := m.space(k.Namespace()).look(k.Name())
		if x == nil {
			continue
		}
		if len(x.open) > 0 {
			x.used = m.Now
		}
		for len(x.open) > 0 {
			if h := x.open[0]; h.asked != nil {
				x.giveBack(h, session.ApprovalDenied, uint64(session.RefusedCancelled))
			} else {
				x.lapse(h)
			}
		}
	}
}
