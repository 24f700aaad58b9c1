package client

import (
	"errors"
	"sync"
	"time"

	"example.com/govnode/client/internal/wire"
	"example.com/govnode/internal/window"
)

// A frame is a parcel on its way over a stream. It is encoded by whoever asks for
// it.
type frame struct {
	wire.Parcel
	mayWait bool
	told    time.Time  // when it is over, as the node is told
	limit   time.Time  // when it is over; guarded by link.mu once it is added
	done    chan error // capacity 1; nil says that there is a result

	// Guarded by link.mu.
	tag     uint64
	gone    bool         // nobody waits for it any more
	waits   bool         // it has a place in a queue
	class   window.Class // Waiting, too, if it takes long to be judged
	message *message     // nil until it is sent
}

// Size implements window.Item.
func (f *frame) Size() window.Size { return window.Size{Count: 1, Bytes: f.Parcel.Size} }

// Take implements window.Item.
func (f *frame) Take() bool { return !f.gone }

var frames = sync.Pool{New: func() any { return &frame{done: make(chan error, 1)} }}

// free makes a frame ready for its next use. Nobody else must know it any more.
func (f *frame) free() {
	f.gone, f.waits, f.class, f.message = false, false, window.InFlight, nil
	if f.Reset() {
		frames.Put(f)
	}
}

// do sends a frame over the stream to the node. If there is no error the frame
// holds the result, and its caller frees it. errUnary says that it is not
// possible over a stream.
func (l *line) do(e *errand, f *frame) error {
	if f.Parcel.Size > maxFrame {
		return errUnary // says what is wrong with it
	}
	k, err := l.ready(e)
	if err != nil {
		return err
	}
	f.limit = e.limit()
	f.told = e.told()
	if err := k.add(f); err != nil {
		if errors.Is(err, errUnary) {
			return err
		}
		return notSent(err)
	}
	return k.wait(e, f)
}

// wait waits for what becomes of a frame. The link sees to its limit.
func (k *link) wait(e *errand, f *frame) error {
	for {
		select {
		case err := <-f.done:
			e.placed = e.placed || f.waits
			return f.outcome(err)
		case <-e.done():
		}
		if now := time.Now(); e.ctx == nil && e.lingers(now) {
			k.shorten(f, e.limit())
			continue
		}
		return k.leave(e, f)
	}
}

// leave gives up a frame whose caller is done.
func (k *link) leave(e *errand, f *frame) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case err := <-f.done: // it was about to be told
		return f.outcome(err)
	default:
	}
	f.gone = true
	why := e.over(time.Now())
	if f.message == nil {
		return notSent(why)
	}
	return why
}

// outcome turns what became of a frame into the error of its request, if it
// has none that is an answer.
func (f *frame) outcome(err error) error {
	if err == nil {
		err = f.Err()
	}
	if err != nil && !f.gone {
		f.free()
	}
	return err
}
