package client

import (
	"context"
	"time"
)

// What becomes of frames whose limit is reached before their answer comes.

// watch lets the alarm go off at a frame's limit, if it does not before. One
// timer serves all frames of a link: most are answered long before it goes off.
// k.mu must be held.
func (k *link) watch(limit time.Time) {
	if k.alarmAt.IsZero() || limit.Before(k.alarmAt) {
		k.alarmAt = limit
		k.alarm.Reset(time.Until(limit))
	}
}

// shorten gives a frame another limit, if it still waits.
func (k *link) shorten(f *frame, limit time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f.limit = limit
	k.watch(limit)
}

// expire tells those whose frames have reached their limit, and sets the alarm
// for the next.
func (k *link) expire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.alarmAt = time.Time{}
	queue, _ := k.window.Line()
	for _, f := range queue {
		k.expireOne(f, now, notSent(context.DeadlineExceeded))
	}
	for _, f := range k.open {
		k.expireOne(f, now, context.DeadlineExceeded)
	}
}

func (k *link) expireOne(f *frame, now time.Time, why error) {
	switch {
	case f.gone:
	case now.Before(f.limit):
		k.watch(f.limit)
	default:
		f.gone = true
		f.done <- why
	}
}
