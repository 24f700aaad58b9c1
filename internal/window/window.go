package window

import (
	"context"
	"math"
	"sync"
)

// A Window counts what is under way. Its lock must be held for every method.
type Window struct {
	lock   sync.Locker
	limits Limits
	count  [classes]int
	bytes  int
	closed error

	may   func() bool   // whether who waits may go on
	waits bool          // somebody does
	wake  chan struct{} // capacity 1
}

// A Class is how a member counts that is under way.
type Class uint8

const (
	InFlight Class = iota
	Waiting        // for something that may be long in coming
	Apart          // it takes long, and holds up nobody
	classes
)

// A Size is a number of members and their bytes.
type Size struct{ Count, Bytes int }

func (s Size) plus(t Size) Size  { return Size{s.Count + t.Count, s.Bytes + t.Bytes} }
func (s Size) minus(t Size) Size { return Size{s.Count - t.Count, s.Bytes - t.Bytes} }

// within reports whether a bound allows a size.
func (s Size) within(bound Size) bool {
	return (bound.Count == 0 || s.Count <= bound.Count) && (bound.Bytes == 0 || s.Bytes <= bound.Bytes)
}

// Limits bound a window. 0 is no bound.
type Limits struct {
	InFlight, Waiting, Apart int // members of each class
	// Bytes are those of all members, whatever their class. Nobody is let in
	// while there are as many; who was let in last may have gone beyond.
	Bytes int
	// Message bounds what goes together. What is larger by itself goes alone.
	Message Size
	// Messages may be under way; only a Queue has them.
	Messages int
	// Line bounds what waits before a Queue.
	Line Size
}

// New makes a window that is used under a lock.
func New(lock sync.Locker, limits Limits) *Window {
	w := &Window{}
	w.init(lock, limits, func() bool { return w.room() > 0 })
	return w
}

func (w *Window) init(lock sync.Locker, limits Limits, may func() bool) {
	w.lock, w.limits, w.may, w.wake = lock, limits, may, make(chan struct{}, 1)
}

// Admit waits until there is room, and takes places in flight: as many as there
// are, and as are wanted, and as go together. It returns an error and takes none
// when the window is closed, or ctx done.
func (w *Window) Admit(ctx context.Context, wanted int) (int, error) {
	for w.closed == nil && w.room() <= 0 {
		if err := w.wait(ctx); err != nil {
			return 0, err
		}
	}
	if w.closed != nil {
		return 0, w.closed
	}
	n := min(wanted, w.room())
	if most := w.limits.Message.Count; most > 0 {
		n = min(n, most)
	}
	w.count[InFlight] += n
	return n, nil
}

// room returns how many members more may be in flight.
func (w *Window) room() int {
	if most := w.limits.Bytes; most > 0 && w.bytes >= most {
		return 0
	}
	if most := w.limits.InFlight; most > 0 {
		return most - w.count[InFlight]
	}
	return math.MaxInt
}

// Hold counts bytes of members that were admitted.
func (w *Window) Hold(bytes int) { w.bytes += bytes }

// Move changes the class of up to n members, and returns of how many: those that
// there is room for keep their bytes and give their places to others.
func (w *Window) Move(from, to Class, n int) int {
	most := [classes]int{w.limits.InFlight, w.limits.Waiting, w.limits.Apart}[to]
	if most > 0 {
		n = max(min(n, most-w.count[to]), 0)
	}
	w.count[from] -= n
	w.count[to] += n
	w.changed()
	return n
}

// Leave takes members out.
func (w *Window) Leave(from Class, size Size) {
	w.count[from] -= size.Count
	w.bytes -= size.Bytes
	w.changed()
}

// Count returns how many members there are of a class.
func (w *Window) Count(c Class) int { return w.count[c] }

// Close ends the letting in, for a reason, of which the first counts. Whoever
// waits is woken.
func (w *Window) Close(why error) {
	if w.closed == nil {
		w.closed = why
	}
	w.changed()
}

// Closed returns why nobody is let in any more; nil while somebody is.
func (w *Window) Closed() error { return w.closed }

// Over reports whether the window is closed and nothing is under way.
func (w *Window) Over() bool { return w.closed != nil && w.count == [classes]int{} }

// changed wakes who waits, if it may go on.
func (w *Window) changed() {
	if !w.waits || w.closed == nil && !w.may() {
		return
	}
	w.waits = false
	select {
	case w.wake <- struct{}{}:
	default: // a token is there that nobody took, whose context ended
	}
}

// wait lets go of the lock until there is a reason to look again, or ctx is done.
func (w *Window) wait(ctx context.Context) (err error) {
	w.waits = true
	w.lock.Unlock()
	select {
	case <-w.wake:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	w.lock.Lock()
	w.waits = false
	return err
}
