package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"example.com/govnode/client/internal/wire"
	"example.com/govnode/internal/window"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// A link is a stream that is up. One goroutine sends and one receives.
type link struct {
	line   *line
	stream wire.Stream
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	window   *window.Queue[*frame]
	open     map[uint64]*frame // sent and not answered
	tag      uint64
	goneAway bool // the node has said goodbye
	retired  bool

	alarm   *time.Timer // calls expire
	alarmAt time.Time   // when it does; zero if it does not
}

const (
	// maxMessages is how many messages may be under way of which nothing has
	// been answered. What is asked for in the meantime goes together in the
	// next one, so that messages grow with the load and nothing waits for a
	// timer.
	maxMessages = 2
	// maxFrames and maxMessage bound one message; maxFrame what one operation
	// may have, since a message that is too large ends the stream for all.
	maxFrames  = 512
	maxMessage = 192 << 10
	maxFrame   = 64 << 10
	// maxWaits is how many of the stream may wait for slots or take long, with
	// something to spare for those that are under way.
	maxWaits = 3072
	// maxTold is the longest time that a node takes for one: no wait is longer, and who gives
	// his operations more than that has not said so of this one.
	maxTold = 11 * time.Minute
)

var errEOF = io.EOF

// errNotSent marks what never left this process.
var errNotSent = errors.New("not sent")

func notSent(err error) error { return fmt.Errorf("%w: %w", errNotSent, err) }

// A message is what was sent at once.
type message struct{ answered bool }

func newLink(ctx context.Context, cancel context.CancelCauseFunc, l *line, s wire.Stream, hello *wire.Inbox) *link {
	k := &link{line: l, stream: s, ctx: ctx, cancel: cancel, open: make(map[uint64]*frame)}
	k.window = window.NewQueue[*frame](&k.mu, window.Limits{
		InFlight: max(int(hello.MaxInFlight), 1),
		Message:  window.Size{Count: maxFrames, Bytes: maxMessage}, Messages: maxMessages,
	})
	k.alarm = time.AfterFunc(time.Hour, k.expire)
	k.take(hello)
	return k
}

// serve sends and receives until the stream ends.
func (k *link) serve() {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		k.send()
	}()
	var err error
	for err == nil {
		var m *wire.Inbox
		if m, err = k.stream.Receive(); err == nil {
			k.take(m)
		}
	}
	k.fail(err)
	<-sent
	_ = k.stream.CloseResponse()
}

// add lets a frame wait for its message, and reports whether it may.
func (k *link) add(f *frame) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.retired || f.mayWait && k.window.Count(window.Waiting) >= maxWaits {
		return errUnary
	}
	k.tag++
	f.tag = k.tag
	if err := k.window.Add(f); err != nil {
		return err
	}
	k.watch(f.limit)
	return nil
}

func (k *link) send() {
	var room []*frame
	for {
		frames, err := k.pack(room[:0])
		if err != nil {
			return
		}
		if err := k.stream.Send(); err != nil {
			k.cancel(err) // what it was is for Receive to say
			return
		}
		clear(frames)
		room = frames
	}
}

// pack waits for the next message, and makes it.
func (k *link) pack(room []*frame) (frames []*frame, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if frames, err = k.window.Next(k.ctx, room); err != nil {
		return nil, err
	}
	m, now := &message{}, time.Now()
	for _, f := range frames {
		k.stream.Put(&f.Parcel, f.tag, min(max(f.told.Sub(now), time.Millisecond), maxTold))
		f.message = m
		k.open[f.tag] = f
	}
	return frames, nil
}

// take gives answers to those who wait for them.
func (k *link) take(m *wire.Inbox) {
	defer m.Free()
	if m.Leader != "" {
		k.line.c.routes.leads(m.Leader)
	}
	k.mu.Lock()
	for _, tag := range m.Apart {
		if f := k.open[tag]; f != nil {
			k.heard(f)
			k.setAside(f)
		}
	}
	for i := range m.Answers {
		a := &m.Answers[i]
		f := k.open[a.Tag]
		if f == nil {
			continue
		}
		k.heard(f)
		if a.Result.Outcome == govnodev1.Outcome_OUTCOME_QUEUED {
			if !f.gone { // else its caller, who may look at it without the lock
				f.waits = true
			}
			k.setAside(f)
			continue
		}
		delete(k.open, f.tag)
		k.window.Leave(f.class, f.Size())
		if !f.gone {
			f.Deliver(a)
			f.done <- nil // f is no longer this link's
		}
	}
	var left []*frame
	var why error
	if m.GoAway {
		k.goneAway = true
		why = &breach{error: errors.New("the node shuts down")}
		left = k.window.Close(why)
	}
	over := k.over()
	k.mu.Unlock()
	if m.GoAway {
		k.line.lost(k)
		k.line.c.routes.failed(k.line.node, true)
		k.mu.Lock()
		giveBack(left, notSent(why))
		k.mu.Unlock()
	}
	if over {
		_ = k.stream.CloseRequest()
	}
}

// heard notes that there was word of a frame, and so of its message: the next one
// may be sent. k.mu must be held.
func (k *link) heard(f *frame) {
	if !f.message.answered {
		f.message.answered = true
		k.window.Heard()
	}
}

// setAside no longer counts a frame among the unanswered, which it may be for
// long. k.mu must be held.
func (k *link) setAside(f *frame) {
	if f.class == window.InFlight {
		k.window.Move(f.class, window.Waiting, 1)
		f.class = window.Waiting
	}
}

// retire ends the stream when everything on it has been answered.
func (k *link) retire() {
	k.line.lost(k)
	k.mu.Lock()
	k.retired = true
	over := k.over()
	k.mu.Unlock()
	if over {
		_ = k.stream.CloseRequest()
	}
}

// over reports whether nothing is left to do on a stream that is not to be used
// any more. k.mu must be held.
func (k *link) over() bool {
	queue, _ := k.window.Line()
	return k.retired && len(k.open) == 0 && !slices.ContainsFunc(queue, (*frame).Take)
}

// fail answers everything that the end of the stream leaves: what was sent may
// have been done.
func (k *link) fail(err error) {
	k.line.lost(k)
	k.mu.Lock()
	queue := k.window.Close(&breach{error: fmt.Errorf("the stream to %s broke: %w", k.line.node.address, err)})
	open, why := k.open, k.window.Closed()
	k.open = nil
	k.alarm.Stop()
	giveBack(queue, notSent(why))
	for _, f := range open {
		if !f.gone {
			f.done <- why
		}
	}
	k.mu.Unlock()
	k.cancel(err)
}

// well reports whether the stream ended because one of the two sides wanted it.
func (k *link) well() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.goneAway || k.retired || k.line.c.ctx.Err() != nil
}

// giveBack tells those who wait for frames that were not sent. link.mu must be
// held.
func giveBack(frames []*frame, err error) {
	for _, f := range frames {
		if !f.gone {
			f.done <- err
		}
	}
}
