package window

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
)

// A Queue is a Window with a line before it, in which everybody keeps his turn.
type Queue[T Item] struct {
	Window
	line     []T
	size     Size // of those in line
	messages int  // of which nothing was heard
}

// ErrFull is why Add takes nothing more for now.
var ErrFull = errors.New("window: the line is full")

// An Item is what waits for its message: one member, or some that stay together.
type Item interface {
	Size() Size
	// Take is called when its turn has come, under the lock, and reports whether
	// somebody still wants it. If not it is in no message.
	Take() bool
}

// NewQueue makes a queue that is used under a lock.
func NewQueue[T Item](lock sync.Locker, limits Limits) *Queue[T] {
	q := &Queue[T]{}
	q.init(lock, limits, q.ready)
	return q
}

// Add puts an item into the line. It may refuse with ErrFull, or with the reason
// for which the queue was closed.
func (q *Queue[T]) Add(item T) error {
	if q.closed != nil {
		return q.closed
	}
	size := q.size.plus(item.Size())
	if !size.within(q.limits.Line) {
		return ErrFull
	}
	q.line, q.size = append(q.line, item), size
	q.changed()
	return nil
}

// AddFirst puts an item before all others, however many there are.
func (q *Queue[T]) AddFirst(item T) error {
	if q.closed != nil {
		return q.closed
	}
	q.line, q.size = slices.Insert(q.line, 0, item), q.size.plus(item.Size())
	q.changed()
	return nil
}

// Line returns those that wait, in their order, and their size.
func (q *Queue[T]) Line() ([]T, Size) { return q.line, q.size }

// Messages returns how many are under way.
func (q *Queue[T]) Messages() int { return q.messages }

// Next waits until there is a message to be sent, puts it behind what is there,
// and counts it and its members as under way. It returns an error when ctx is
// done, or when the queue is closed and nobody is in line.
func (q *Queue[T]) Next(ctx context.Context, message []T) ([]T, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if q.ready() {
			// Those whose answers have just come are about to ask again.
			q.lock.Unlock()
			runtime.Gosched()
			q.lock.Lock()
		}
		n := len(message)
		if message = q.cut(message); len(message) > n {
			return message, nil
		}
		if len(q.line) == 0 && q.closed != nil {
			return nil, q.closed
		}
		if err := q.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// ready reports whether a message may be made now.
func (q *Queue[T]) ready() bool {
	most := q.limits.Messages
	return len(q.line) > 0 && (most == 0 || q.messages < most) && q.room() > 0
}

// cut takes the next message off the line, if there may be one: as many as fit,
// in their order. What is larger than a message goes alone, and what is larger
// than the window when nothing else is in flight.
func (q *Queue[T]) cut(message []T) []T {
	if !q.ready() {
		return message
	}
	var size Size
	room, first, i := q.room(), len(message), 0
	for ; i < len(q.line); i++ {
		item := q.line[i].Size()
		both, alone := size.plus(item), len(message) == first
		if !alone && !both.within(q.limits.Message) || both.Count > room && (!alone || q.count[InFlight] > 0) {
			break
		}
		q.size = q.size.minus(item)
		if q.line[i].Take() {
			message, size = append(message, q.line[i]), both
		}
	}
	rest := copy(q.line, q.line[i:])
	clear(q.line[rest:])
	q.line = q.line[:rest]
	if len(message) > first {
		q.count[InFlight] += size.Count
		q.bytes += size.Bytes
		q.messages++
	}
	return message
}

// Heard notes that there was word of a message: another one may go.
func (q *Queue[T]) Heard() {
	q.messages--
	q.changed()
}

// Close ends the queue, for a reason, of which the first counts, and returns
// those that were in line. Whoever waits is woken.
func (q *Queue[T]) Close(why error) (left []T) {
	left, q.line, q.size = q.line, nil, Size{}
	q.Window.Close(why)
	return left
}

// Idle waits until no message is under way.
func (q *Queue[T]) Idle() {
	for q.messages > 0 {
		_ = q.wait(context.Background()) // which has no end
	}
}
