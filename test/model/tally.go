package model

import (
	"strings"

	"example.com/govnode/session"
)

// How much there is in namespaces, counted anew from the keys of their records.

type tallies map[string]*session.Tally

func (t tallies) of(ns string) session.Tally {
	if x := t[ns]; x != nil {
		return *x
	}
	return session.Tally{}
}

func (t tallies) add(k session.Key) {
	x := t[k.Namespace()]
	if x == nil {
		x = &session.Tally{}
		t[k.Namespace()] = x
	}
	switch k.Kind() {
	case session.KindSession:
		x.Sessions++
	case session.KindClient:
		x.Clients++
	case session.KindPool:
		if !strings.HasPrefix(k.Name(), "policy/") && !strings.HasPrefix(k.Name(), "rate/policy/") { // which nobody has put
			x.Pools++
		}
	case session.KindName:
		x.Policies++
	case session.KindCounter, session.KindList, session.KindBudget, session.KindHash, session.KindApproval, session.KindStanding:
		x.Keys++
	}
}

// counted holds what replicas have counted by the way to the records: to those that are
// there, of which none is left out, and, where it is known what is stored, to that, since
// what has lapsed counts until it is dropped.
func (c *Checker) counted(there, stored tallies, known bool) error {
	parts := func(t session.Tally) [5]int64 { return [...]int64{t.Sessions, t.Clients, t.Pools, t.Policies, t.Keys} }
	for _, ns := range namespaces {
		got := c.whole.TallyOf(ns)
		for i, n := range parts(there.of(ns)) {
			if parts(got)[i] < n {
				return c.fail(CheckModel, "in %s there are %+v, and %+v are counted", ns, there.of(ns), got)
			}
		}
		if known && got != stored.of(ns) {
			return c.fail(CheckModel, "in %s %+v are stored, and %+v are counted", ns, stored.of(ns), got)
		}
		for of, s := range map[string]*session.State{"that is cut": c.cut, "with entries of one command": c.apart} {
			if again := s.TallyOf(ns); again != got {
				return c.fail(CheckReplicas, "in %s %+v are counted, and by the replica %s %+v", ns, got, of, again)
			}
		}
	}
	return nil
}
