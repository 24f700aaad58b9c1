package demo

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// books is what all ledgers together say. It trusts nobody: what the service
// counts and grants is checked against it.
type books struct {
	sessions map[string]*sessionBook
	workers  []*workerBook
}

// A sessionBook is what a session must have counted.
type sessionBook struct {
	worker, attempts, calls, executions, failures int
}

// A workerBook is what one worker has written down.
type workerBook struct {
	things  map[string]*thing // calls and slots, by session and id
	order   []*thing
	answers []time.Duration // when outcomes came
	lost    int             // leases
	holding bool
}

// A thing is one call, or one slot that was asked for without a call.
type thing struct {
	intent  entry
	outcome string // of the answer; empty while there is none
	token   uint64
	entered time.Duration
	left    time.Duration // 0: it was still in use when the ledger ended
	until   time.Duration // the lease's end
	finish  *entry        // nil: its end was not reported
	done    string        // outcome of that; empty while there is none
}

const admitted = "ADMITTED"

func newBooks(workers int) *books {
	b := &books{sessions: map[string]*sessionBook{}}
	for range workers {
		b.workers = append(b.workers, &workerBook{things: map[string]*thing{}})
	}
	return b
}

// add takes over entries of one worker, in the order in which they were
// written.
func (b *books) add(worker int, entries []entry) {
	w := b.workers[worker]
	for _, e := range entries {
		if e.What == wroteSession {
			b.sessions[e.Session] = &sessionBook{worker: worker}
			continue
		}
		key := e.Session + " " + e.ID
		t := w.things[key]
		if t == nil {
			t = &thing{intent: e}
			w.things[key] = t
			w.order = append(w.order, t)
		}
		switch e.What {
		case wroteAnswer:
			t.outcome, t.token = e.Outcome, e.Token
			w.answers = append(w.answers, e.At)
		case wroteEnter:
			t.entered, t.until = e.At, e.Until
		case wroteRenewed:
			t.until = e.Until
		case wroteLost:
			w.lost++
		case wroteLeave:
			t.left = e.At
		case wroteFinish:
			t.finish = &e
		case wroteDone:
			t.done = e.Outcome
			w.answers = append(w.answers, e.At)
		case wroteHolding:
			w.holding = true
		}
	}
}

// unresolved returns the things of a worker whose answer, or the answer to
// whose end, nobody has seen.
func (w *workerBook) unresolved() (open []*thing) {
	for _, t := range w.order {
		if t.outcome == "" || t.finish != nil && t.done == "" {
			open = append(open, t)
		}
	}
	return open
}

// count fills in what each session must have counted, from what is resolved.
// An attempt that the limit of attempts refused is not counted by the service,
// and neither is one whose session was closed.
func (b *books) count() {
	for _, s := range b.sessions {
		*s = sessionBook{worker: s.worker}
	}
	for _, w := range b.workers {
		for _, t := range w.order {
			s := b.sessions[t.intent.Session]
			if s == nil {
				continue // a slot without a call
			}
			switch t.outcome {
			case "", "ATTEMPT_LIMIT", "SESSION_CLOSED":
				continue
			}
			s.attempts++
			if !wasAdmitted(t.outcome) {
				continue
			}
			s.calls++
			s.executions++ // ended, or settled when its lease ran out
			if t.finish != nil && t.finish.Failed && (t.done == "ENDED" || t.done == "ALREADY_ENDED") {
				s.failures++
			}
		}
	}
}

// wasAdmitted reports whether an answer says that a call was admitted, now or
// when it was asked for first.
func wasAdmitted(outcome string) bool {
	return outcome == admitted || outcome == "LEASE_LOST" || outcome == "ALREADY_ENDED"
}

// outcomes returns how many calls and slots were admitted, and how many were
// refused with each outcome.
func (b *books) outcomes() (admittedCount int, refused map[string]int) {
	refused = map[string]int{}
	for _, w := range b.workers {
		for _, t := range w.order {
			switch {
			case t.outcome == "":
			case wasAdmitted(t.outcome):
				admittedCount++
			default:
				refused[t.outcome]++
			}
		}
	}
	return admittedCount, refused
}

// A use is the time for which somebody was in a slot: from entering it to
// leaving it, or to the end of the lease where that comes first, as it does for
// a process that was killed.
type use struct {
	from, to time.Duration
	token    uint64
}

func (b *books) uses() (uses []use) {
	for _, w := range b.workers {
		for _, t := range w.order {
			if t.entered == 0 || t.token == 0 {
				continue
			}
			to := t.until
			if t.left != 0 {
				to = min(to, t.left)
			}
			if to > t.entered {
				uses = append(uses, use{t.entered, to, t.token})
			}
		}
	}
	return uses
}

// most returns the most slots that were ever in use at once, and how often
// somebody entered who made it more than the limit.
func most(uses []use, limit int) (highest, over int) {
	type step struct {
		at    time.Duration
		enter bool
	}
	var steps []step
	for _, u := range uses {
		steps = append(steps, step{u.from, true}, step{u.to, false})
	}
	slices.SortFunc(steps, func(a, b step) int {
		if c := cmp.Compare(a.at, b.at); c != 0 {
			return c
		}
		// At the same instant leaving comes first: a use ends before its end.
		return cmp.Compare(btoi(a.enter), btoi(b.enter))
	})
	now := 0
	for _, s := range steps {
		if !s.enter {
			now--
			continue
		}
		now++
		highest = max(highest, now)
		if now > limit {
			over++
		}
	}
	return highest, over
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// repeatedTokens returns how many uses had the token of another: a token is
// given out once.
func repeatedTokens(uses []use) (n int) {
	seen := map[uint64]bool{}
	for _, u := range uses {
		if seen[u.token] {
			n++
		}
		seen[u.token] = true
	}
	return n
}

// overCalls returns how many calls were admitted beyond the limit of their
// session.
func (b *books) overCalls(limit int) (n int) {
	for _, s := range b.sessions {
		n += max(0, s.calls-limit)
	}
	return n
}

// silence returns the longest time without an outcome for anybody, and when it
// ended, between two instants.
func (b *books) silence(from, to time.Duration) (longest, at time.Duration) {
	var all []time.Duration
	for _, w := range b.workers {
		all = append(all, w.answers...)
	}
	all = slices.DeleteFunc(all, func(d time.Duration) bool { return d < from || d > to })
	all = append(all, to)
	slices.Sort(all)
	last := from
	for _, d := range all {
		if d-last > longest {
			longest, at = d-last, d
		}
		last = d
	}
	return longest, at
}

// present returns how many slots are in use now, and how many requests have no
// answer yet. Workers that are dead use nothing that their lease does not
// cover.
func (b *books) present(now time.Duration, dead map[int]bool) (inUse, waiting int) {
	for i, w := range b.workers {
		for _, t := range w.order[max(0, len(w.order)-4):] { // a worker does one thing at a time
			switch {
			case t.outcome == "" && !dead[i]:
				waiting++
			case t.token != 0 && t.entered != 0 && t.left == 0 && now < t.until:
				inUse++
			}
		}
	}
	return inUse, waiting
}

// sessionIDs returns the sessions in order.
func (b *books) sessionIDs() []string { return slices.Sorted(maps.Keys(b.sessions)) }
