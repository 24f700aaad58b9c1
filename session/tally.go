package session

import (
	"slices"
	"strings"
)

// How much there is in a namespace: derived from the records, so that quotas cost no
// record that every command writes.

// A Tally is how many records of some kinds are in a namespace.
type Tally struct {
	Sessions int64 // open, and closed ones that are remembered
	Clients  int64
	Pools    int64 // pools and rates that were put
	Policies int64 // names
	Keys     int64 // values, lists and their items, budgets, hashes, approvals, standing approvals
}

var policyPools = []string{policyPrefix, policyRatePrefix}

// PolicyPools are what the names of those pools begin with that come with calls: nobody
// has put them, and a Tally does not count them.
func PolicyPools() []string { return slices.Clone(policyPools) }

// of returns the number that a record counts in; nil where it counts in none.
func (t *Tally) of(k ref, r Record) *int64 {
	switch r.(type) {
	case *Session:
		return &t.Sessions
	case *Client:
		return &t.Clients
	case *Pool:
		if !slices.ContainsFunc(policyPools, func(p string) bool { return strings.HasPrefix(k.name, p) }) {
			return &t.Pools
		}
	case *Name:
		return &t.Policies
	case *Counter, *List, *ListItem, *Budget, *Hash, *Approval, *Standing:
		return &t.Keys
	}
	return nil
}

// count notes that a record is there now, or is not any more.
func (s *State) count(k ref, r Record, by int64) {
	t := s.tallies[k.ns]
	if t == nil {
		if s.tallies == nil {
			s.tallies = map[string]*Tally{}
		}
		t = &Tally{}
		s.tallies[strings.Clone(k.ns)] = t
	}
	if n := t.of(k, r); n != nil {
		*n += by
	}
}

// TallyOf returns how much there is in a namespace. What has lapsed and was not dropped
// yet counts.
func (s *State) TallyOf(ns string) Tally {
	if t := s.tallies[ns]; t != nil {
		return *t
	}
	return Tally{}
}
