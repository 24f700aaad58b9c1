package cluster

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"example.com/govnode/cluster/durable"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
)

// What a node remembers of the other members, to know them again.

const (
	// runsKnown is how many processes of one member are remembered.
	runsKnown = 4
	// rollEvery is how often it is written down how far others have come.
	rollEvery = 5 * time.Second
)

// A roll is what this node remembers of the other members, so that it knows
// them again: which data folder is that of which name, and how far its log went.
// It is kept on disk, for all may be down at once.
type roll struct {
	mu      sync.Mutex
	members map[string]*nodev1.KnownMember
	shunned map[string]bool // those whose folder is not that of the member
	anew    bool            // there is a folder or a process that is not on disk
	further bool            // somebody has come further than is on disk
	saved   time.Time
}

func newRoll(b []byte) (*roll, error) {
	r := &roll{members: map[string]*nodev1.KnownMember{}, shunned: map[string]bool{}}
	var all nodev1.KnownMembers
	if err := proto.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	for _, m := range all.GetMembers() {
		r.members[m.GetLatest().GetNode()] = m
	}
	return r, nil
}

// adviceReplace is what to do with a folder that must not take part again.
const adviceReplace = durable.AdviceReplace

// meet takes note of who speaks for a member, or says why it cannot be the
// member, to whoever that is.
func (r *roll) meet(id *nodev1.Identity) (refusal string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[id.GetNode()]
	was := m.GetLatest()
	switch {
	case m != nil && was.GetIncarnation() == id.GetIncarnation() && slices.Contains(m.GetRuns(), id.GetRun()):
	case m == nil || was.GetIncarnation() != id.GetIncarnation() && was.GetAdmitted() < id.GetAdmitted():
		m = &nodev1.KnownMember{Latest: proto.CloneOf(id), Runs: []string{id.GetRun()}}
		m.Latest.LastIndex = 0 // the end of its log may go that was never committed; see came
		r.members[id.GetNode()] = m
		r.anew = true
	case was.GetIncarnation() != id.GetIncarnation():
		r.shunned[id.GetNode()] = true
		return fmt.Sprintf("node %s was given another data folder since this one was its own; start it on that one, or %s", id.GetNode(), adviceReplace)
	case id.GetLastIndex() < was.GetLastIndex() || id.GetTerm() < was.GetTerm():
		r.shunned[id.GetNode()] = true
		return fmt.Sprintf("this data folder is an old copy of that of node %s: its log ended at entry %d in term %d, and had %d in term %d before; what it has forgotten was acknowledged. %s",
			id.GetNode(), id.GetLastIndex(), id.GetTerm(), was.GetLastIndex(), was.GetTerm(), capital(adviceReplace))
	default:
		m.Runs = append(m.Runs, id.GetRun())
		m.Runs = m.Runs[max(0, len(m.Runs)-runsKnown):]
		r.anew = true
	}
	delete(r.shunned, id.GetNode())
	return ""
}

func capital(s string) string { return string(s[0]-'a'+'A') + s[1:] }

// latest reports whether that process is the one that spoke for the member last.
func (r *roll) latest(id *nodev1.Identity) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[id.GetNode()]
	runs := m.GetRuns()
	return m != nil && m.GetLatest().GetIncarnation() == id.GetIncarnation() && runs[len(runs)-1] == id.GetRun()
}

// came notes how far a member has come that was met.
func (r *roll) came(id *nodev1.Identity, applied, term uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[id.GetNode()]
	if m == nil || m.GetLatest().GetIncarnation() != id.GetIncarnation() || !slices.Contains(m.GetRuns(), id.GetRun()) {
		return
	}
	if l := m.GetLatest(); applied > l.GetLastIndex() || term > l.GetTerm() {
		l.LastIndex, l.Term = max(l.GetLastIndex(), applied), max(l.GetTerm(), term)
		r.further = true
	}
}

// stood returns how far a member had come when it was heard of last.
func (r *roll) stood(node string) (applied uint64, met bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[node]
	return m.GetLatest().GetLastIndex(), m != nil
}

// shuns reports whether what speaks for that member is not the member.
func (r *roll) shuns(node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shunned[node]
}

// due returns what is to be written down, nil if nothing is; at the end, also
// what could have waited. Who is no member any more is forgotten.
func (r *roll) due(servers []raft.Server, end bool) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.anew && !(r.further && (end || time.Since(r.saved) >= rollEvery)) {
		return nil
	}
	r.anew, r.further, r.saved = false, false, time.Now()
	var all nodev1.KnownMembers
	is := map[string]bool{}
	for _, s := range servers {
		is[string(s.ID)] = true
		if m := r.members[string(s.ID)]; m != nil {
			all.Members = append(all.Members, m)
		}
	}
	for node := range r.members {
		if !is[node] {
			delete(r.members, node)
		}
	}
	b, _ := proto.Marshal(&all) // fails for text that is no UTF-8, and all of it came as messages
	return b
}
