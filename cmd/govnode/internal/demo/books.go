package demo

import (
	"maps"
	"slices"
	"time"
)

// books is what all ledgers together say. It trusts nobody: what the service
// counts and grants is checked against it.
type books struct {
	sessions map[string]*sessionBook
	workers  []*workerBook
	stop     stopSpan
}

// A sessionBook is what a session must have counted.
type sessionBook struct {
	worker, attempts, calls, executions, failures int
	again                                         int // attempts that may have counted once more, see stopSpan.caught
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
	intent   entry
	outcome  string // of the answer; empty while there is none
	answered time.Duration
	token    uint64
	passed   uint64 // its number at the turnstile; 0 of a slot, and where it is not known
	entered  time.Duration
	left     time.Duration // 0: it was still in use when the ledger ended
	until    time.Duration // the lease's end
	finish   *entry        // nil: its end was not reported
	done     string        // outcome of that; empty while there is none
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
			t.outcome, t.answered, t.token, t.passed = e.Outcome, e.At, e.Token, e.Passed
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
// and neither is one whose session was closed, or that a STOP kept out.
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
			if b.stop.caught(t) {
				s.again++
			}
			switch t.outcome {
			case "", "ATTEMPT_LIMIT", "SESSION_CLOSED", "STOPPED":
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

// unmet says what the fleet has not come to so far: a check of nothing proves
// nothing.
func (b *books) unmet() (all []string) {
	_, refused := b.outcomes()
	if highest, _ := most(b.uses(), demoSlots); highest < demoSlots || refused["WAIT_TIMEOUT"] == 0 {
		all = append(all, "the pool was never full, so its limit was not put to the test")
	}
	if refused["CALL_LIMIT"] == 0 {
		all = append(all, "no session had all of its calls, so their limit was not put to the test")
	}
	if refused["DENIED_BY_POLICY"] == 0 {
		all = append(all, "the policy refused nothing, so it was not put to the test")
	}
	return all
}

// calls returns what was asked for in sessions.
func (b *books) calls() (calls []*thing) {
	for _, w := range b.workers {
		for _, t := range w.order {
			if t.intent.Session != "" {
				calls = append(calls, t)
			}
		}
	}
	return calls
}

// sessionIDs returns the sessions in order.
func (b *books) sessionIDs() []string { return slices.Sorted(maps.Keys(b.sessions)) }
