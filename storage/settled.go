package storage

import (
	"sync"

	"example.com/govnode/session"
)

// A Settling store learns what became of commands though their answers were lost: it
// applies all of them itself, or keeps looking.
type Settling interface {
	// Settled is where it says so.
	Settled() *Settled
}

const (
	// settledKept is how many changes are remembered, since one may have been applied
	// here before its answer is given up.
	settledKept = 1 << 16
	// settledAsked is after how many others somebody is forgotten who asks: most of what
	// was not applied by then never is.
	settledAsked = 4096
)

// Settled remembers what the latest commands have changed, by the digest of what the
// audit says of them. The zero value remembers nothing until it is asked to. It is safe
// for concurrent use.
type Settled struct {
	mu     sync.Mutex
	keeps  bool
	count  uint64 // of all that were noted
	latest []settled
	asked  map[session.Digest]func(Answer)
	turn   []session.Digest // who asks, the longest first
}

// A settled command has no pointers, so that many cost the collector nothing.
type settled struct {
	audited session.Digest
	chain   session.Chain
	code    session.Code
	index   uint64
}

func (s *settled) answer() Answer {
	chain := s.chain
	return Done(session.Result{Code: s.code, Chain: &chain}, s.index)
}

// Keep has changes remembered from now on.
func (s *Settled) Keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeps, s.asked = true, map[session.Digest]func(Answer){}
}

// Keeps reports whether changes are remembered.
func (s *Settled) Keeps() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keeps
}

// Note notes what an entry has changed. The store calls it once for each, in order.
func (s *Settled) Note(cmds []session.Command, results []session.Result, index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.keeps {
		return
	}
	for i := range results {
		by := cmds[i].Authority()
		if results[i].Chain == nil || by == nil || by.Audited == (session.Digest{}) {
			continue
		}
		x := settled{by.Audited, *results[i].Chain, results[i].Code, index}
		if len(s.latest) < settledKept {
			s.latest = append(s.latest, x)
		} else {
			s.latest[s.count%settledKept] = x
		}
		s.count++
		if tell := s.asked[x.audited]; tell != nil {
			go tell(x.answer()) // who applies entries waits for nobody
		}
	}
}

// Mark is a place behind which everything is that is proposed from now on.
func (s *Settled) Mark() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// Find returns what a command has changed behind a mark, each time that it did. Of each time
// that comes later tell is called, from a goroutine of its own: a command that was sent twice
// may change something twice, as one that waits and is then let in, and nobody can say which
// of the two is the one whose answer was lost. Whoever has asked for the same before is told
// in his place.
func (s *Settled) Find(audited session.Digest, mark uint64, tell func(Answer)) (found []Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.keeps {
		return nil
	}
	for at := max(mark, s.count-uint64(len(s.latest))); at < s.count; at++ {
		if x := &s.latest[at%settledKept]; x.audited == audited {
			found = append(found, x.answer())
		}
	}
	if s.asked[audited] != nil {
		return found
	}
	s.asked[audited] = tell
	if s.turn = append(s.turn, audited); len(s.turn) > settledAsked {
		delete(s.asked, s.turn[0])
		s.turn = s.turn[1:]
	}
	return found
}
