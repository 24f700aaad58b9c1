package server

import (
	"sync"
	"time"
)

// A report is how it stands with the audit log, as far as that was not said yet.
type report struct {
	lines   int   // that were lost
	why     error // they were; nil if none were
	turned  bool  // there is trouble, or no more
	trouble error
}

// reports tell the node's own log how it stands with the audit log. That one may hang
// as well, where both go to one collector: so a goroutine tells it, which is there while
// there is something to tell, and nobody else waits for it. The first word is said at
// once, and what follows together: the latest state, and all lines that were lost.
type reports struct {
	say func(report)

	mu   sync.Mutex
	next report
	idle chan struct{} // closed when all is said; nil if it is

	closed chan struct{} // what is left is said at once then
	ends   sync.Once     // closes closed
}

const (
	// reportsEvery is how often something is said. On a full disk every call loses a
	// line, and the node's own log may stand on the same disk.
	reportsEvery = time.Second
	// reportsLast is how long the last word may take when the node ends.
	reportsLast = 500 * time.Millisecond
)

func newReports(say func(report)) *reports { return &reports{say: say, closed: make(chan struct{})} }

func (r *reports) lost(lines int, why error) {
	r.add(func(next *report) { next.lines, next.why = next.lines+lines, why })
}

func (r *reports) state(trouble error) {
	r.add(func(next *report) { next.turned, next.trouble = true, trouble })
}

func (r *reports) add(to func(next *report)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	to(&r.next)
	if r.idle == nil {
		r.idle = make(chan struct{})
		go r.tell()
	}
}

// tell says what there is to say, until that is all.
func (r *reports) tell() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.next.turned || r.next.why != nil {
		next := r.next
		r.next = report{}
		r.mu.Unlock()
		r.say(next)
		select {
		case <-time.After(reportsEvery):
		case <-r.closed:
		}
		r.mu.Lock()
	}
	close(r.idle)
	r.idle = nil
}

// close gives what was not said yet a little time.
func (r *reports) close() {
	r.ends.Do(func() { close(r.closed) })
	r.mu.Lock()
	idle := r.idle
	r.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-time.After(reportsLast):
	}
}
