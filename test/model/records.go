package model

import (
	"encoding/hex"
	"slices"
	"strings"
	"unique"

	"example.com/govnode/limiter"
	"example.com/govnode/session"
	"example.com/govnode/session/budget"
	"example.com/govnode/session/ids"
)

// The records of a state that is as the model says.

// Record returns the record of a key as it stands, nil if it is absent or over.
// Remembered ids are left out: see Memory.
func (m *Model) Record(k session.Key) session.Record {
	s, id := m.space(k.Namespace()), k.Name()
	switch k.Kind() {
	case session.KindSession:
		if x := s.sessions[id]; x != nil && !x.over(m.Now) {
			return x.record(x.pinned)
		}
	case session.KindClient:
		if x := s.client(id); x != nil {
			return &session.Client{Used: x.used, Open: opens('c', id, x.open), Born: x.born}
		}
	case session.KindPool:
		if p := s.pools[id]; p != nil {
			return p.record()
		}
	case session.KindPolicy:
		for d, p := range s.policies {
			if k == session.PolicyKey(s.name, d) {
				return &session.Policy{Tree: p.tree, Pin: &session.Pin{Digest: d, Limits: p.limits}, Names: p.names, First: p.first}
			}
		}
	case session.KindName:
		if n := s.names[id]; n != nil {
			return &session.Name{Digest: n.digest, Version: n.version}
		}
	case session.KindPins:
		pins := int64(0)
		for _, x := range s.sessions {
			if x.pinned && strings.HasPrefix(id, hex.EncodeToString(x.digest[:])) && session.PinsKey(s.name, x.digest, x.id) == k {
				pins++
			}
		}
		if pins > 0 {
			return &session.Pins{N: pins}
		}
	case session.KindCounter:
		if x := s.counters[id]; x != nil {
			return &session.Counter{Value: x.Value, Until: x.until}
		}
	case session.KindNamespace:
		if s.tokenFloor|s.forgotClients|s.forgotSessions|s.budgetsMade != 0 {
			return &session.Namespace{ForgotSessions: s.forgotSessions, ForgotClients: s.forgotClients, TokenFloor: s.tokenFloor, Budgets: s.budgetsMade}
		}
	case session.KindBaseline:
		if x := s.sessions[id]; x != nil && x.baseline != (session.Digest{}) {
			return &session.Baseline{Hash: x.baseline, Text: x.text}
		}
	case session.KindBudget:
		if b := s.budgets[id]; b != nil {
			return b.record(s.children(id))
		}
	case session.KindApproval:
		if a := s.approvals[id]; a != nil {
			return a.record()
		}
	case session.KindStanding:
		if a := s.standings[id]; a != nil {
			return a.record()
		}
	case session.KindSignals:
		return s.signals()
	case session.KindAccess:
		if s.access != nil {
			return s.access.record()
		}
	case session.KindHash:
		if h := s.hashes[id]; h != "" {
			return &session.Hash{Hash: h}
		}
	case session.KindList:
		return s.listRecord(k)
	}
	return nil
}

// Memory says how many ids a session or a client remembers, how new the newest
// is of all that it ever finished, and up to when it has forgotten some.
func (m *Model) Memory(k session.Key) (n int, newest, forgot uint64) {
	s := m.space(k.Namespace())
	ids := memory{}
	if x := s.sessions[k.Name()]; x != nil && k.Kind() == session.KindSession {
		ids = x.ids
	} else if x := s.clients[k.Name()]; x != nil && k.Kind() == session.KindClient {
		ids = x.ids
	}
	return len(ids.done), ids.newest, ids.forgot
}

// Keys returns the keys of all records that are there, and of those that are
// over and were not dropped, in order.
func (m *Model) Keys() []session.Key {
	var all []session.Key
	for ns, s := range m.spaces {
		for id, x := range s.sessions {
			all = append(all, session.SessionKey(ns, id))
			if x.baseline != (session.Digest{}) {
				all = append(all, session.BaselineKey(ns, id))
			}
			if x.pinned {
				all = append(all, session.PinsKey(ns, x.digest, id))
			}
		}
		for id := range s.clients {
			all = append(all, session.ClientKey(ns, id))
		}
		for id := range s.pools {
			all = append(all, session.PoolKey(ns, id))
		}
		for d := range s.policies {
			all = append(all, session.PolicyKey(ns, d))
		}
		for id := range s.names {
			all = append(all, session.NameKey(ns, id))
		}
		for id := range s.counters {
			all = append(all, session.CounterKey(ns, id))
		}
		for id := range s.budgets {
			all = append(all, session.BudgetKey(ns, id))
		}
		for id := range s.approvals {
			all = append(all, session.ApprovalKey(ns, id))
		}
		for id := range s.standings {
			all = append(all, session.StandingKey(ns, id))
		}
		for id := range s.hashes {
			all = append(all, session.HashKey(ns, id))
		}
		all = append(all, s.listKeys()...)
		if s.signalled || s.hashed != 0 {
			all = append(all, session.SignalsKey(ns))
		}
		if s.access != nil {
			all = append(all, session.AccessKey(ns))
		}
		if s.tokenFloor|s.forgotClients|s.forgotSessions|s.budgetsMade != 0 {
			all = append(all, session.NamespaceKey(ns))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// after is what a caller is shown of a session.
func (s *space) after(x *sess) *session.After {
	return &session.After{Now: s.Now, Session: x.record(false)}
}

func (x *sess) record(pinned bool) *session.Session {
	y := &session.Session{
		Agent: unique.Make(x.agent), Policy: unique.Make(x.policy), Version: x.version, Phase: x.phase, Pinned: pinned,
		Pin: &session.Pin{Digest: x.digest, Limits: x.limits}, Content: x.content, Opened: x.opened, IdleTTL: x.idle, Used: x.used,
		Attempts: x.Attempts, Calls: x.Calls, Executions: x.Executions, Failures: x.Failures, Consecutive: x.Consecutive,
		Tokens: x.Tokens, Reserved: x.reserved, Open: opens('s', x.id, x.open),
	}
	for _, t := range x.tools {
		y.Tools = append(y.Tools, session.ToolCount{Tool: unique.Make(t.name), Calls: t.calls, Sampling: t.sampling})
	}
	gates := session.Gates{ModelCalls: x.kinds[session.Model], AgentCalls: x.kinds[session.Agent], Handoffs: x.kinds[session.Handoff], FailedAt: x.failedAt}
	if h := x.halt; h != nil {
		gates.Signal, gates.Reason, gates.Since = h.kind, h.reason, h.since
	}
	if gates != (session.Gates{}) {
		y.Gates = &gates
	}
	if x.parent != "" || len(x.attributes) > 0 || x.baseline != (session.Digest{}) || x.token != (session.Digest{}) {
		y.More = &session.More{Parent: x.parent, Attributes: x.attributes, Baseline: x.baseline, Drift: x.drift, Token: x.token}
	}
	return y
}

func opens(kind byte, maker string, open []*held) (all []session.Held) {
	for _, h := range open {
		x := session.Held{
			Holder: holder(kind, maker, h.id), Content: h.content, Started: h.started, Deadline: h.deadline, Until: h.until,
			Tokens: h.tokens, Tool: unique.Make(h.tool), Rule: h.rule, Kind: h.kind,
		}
		for _, at := range h.spent {
			if x.Gates == nil {
				x.Gates = &session.HeldGates{}
			}
			x.Gates.Rates = append(x.Gates.Rates, session.Spent{Pool: unique.Make(at.pool), Token: at.token, Weight: at.weight, Per: at.per})
		}
		if h.charges != nil {
			if x.Gates == nil {
				x.Gates = &session.HeldGates{}
			}
			for _, ch := range h.charges {
				x.Gates.Charges = append(x.Gates.Charges, session.Charged{
					Budget: unique.Make(ch.Budget), Parent: unique.Make(ch.Parent), Amount: ch.Amount, Serial: ch.to.serial, Period: ch.period,
				})
			}
		}
		if h.owner != (session.Principal{}) {
			if x.Gates == nil {
				x.Gates = &session.HeldGates{}
			}
			x.Gates.Owner = h.owner
		}
		if h.asked != nil || h.agreed != (session.Digest{}) {
			if x.Gates == nil {
				x.Gates = &session.HeldGates{}
			}
			x.Gates.Request = h.agreed
		}
		if h.asked != nil {
			clock := h.asked.clock()
			x.Gates.Asked = &clock
		}
		for _, at := range h.pools {
			x.Pools = append(x.Pools, session.Hold{Pool: unique.Make(at.pool), Token: at.token, Weight: at.weight})
		}
		all = append(all, x)
	}
	return all
}

func (b *bud) record(children uint32) *session.Budget {
	return &session.Budget{
		Budget: budget.Budget{Amount: b.amount, Used: b.used, Per: b.per, Made: b.made, Period: b.period},
		Parent: b.parent, Depth: b.depth, Children: children, Serial: b.serial,
	}
}

func (p *pool) record() *session.Pool {
	y := &session.Pool{Threshold: p.threshold, MaxQueue: p.maxQueue, Put: p.put}
	y.Slots, y.Last, y.Per, y.Kept = p.slots, p.last, p.per, p.kept
	for _, l := range p.leases {
		x := limiter.Lease{
			Holder: l.holder, Label: unique.Make(l.label), Token: l.token, Since: l.since, Expires: l.expires,
			HoldUntil: l.holdUntil, Weight: l.weight, Claim: l.claim,
		}
		if l.claim {
			x.Place = l.place()
		}
		y.Leases = append(y.Leases, x)
	}
	for _, t := range p.queue {
		y.Queue = append(y.Queue, limiter.Ticket{Holder: t.holder, Label: unique.Make(t.label), Weight: t.weight, Place: *t.place()})
	}
	return y
}

func (t *ticket) place() *limiter.Place {
	return &limiter.Place{Until: t.until, Seen: t.seen, Slots: t.slots, Priority: t.priority}
}

// bare returns a record without what it remembers, which Record leaves out.
func bare(r session.Record) (session.Record, *ids.Set) {
	switch r := r.(type) {
	case *session.Session:
		x := *r
		x.IDs = ids.Set{}
		return &x, &r.IDs
	case *session.Client:
		x := *r
		x.IDs = ids.Set{}
		return &x, &r.IDs
	}
	return r, nil
}
