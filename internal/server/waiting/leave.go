package waiting

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// How somebody leaves a queue who is gone, or whose node ends.

const (
	// abandonGrace is for how much log time the place of a caller that is gone from
	// this node is left alone. One that was cut off asks again, here or at another
	// node, with the same id, and must not find its wait given up: the node
	// that has it renews its place within renewWaits, which shows.
	abandonGrace = renewWaits + time.Second
	// unclaimedGrace is for how much of it a slot that was handed to such a place may
	// stay unclaimed: the node that has its caller claims it at once.
	unclaimedGrace = time.Second
	// standstill is by how much log time goes on at once behind a time without a leader,
	// in which nobody could be heard of. A leader writes it twice in a second.
	standstill = 3 * pollWaits
	// lapsed is by when a place has lapsed for long of which nobody is heard.
	lapsed = 20 * time.Second
)

// Abandon gives up the place of a caller that is gone, or may not have it any more,
// unless it is seen to be asked for by another. If the slot has come in the meantime it
// stays with the call: its caller may ask again with the same id, and else it lapses,
// as a place does that cannot be given up.
func (w *Waiters) Abandon(x *Wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return
	}
	w.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), lapsed)
		defer cancel()
		heard, gone := w.abandoned(ctx, x)
		if !gone {
			return
		}
		// This node may see a state of some time ago: who asks at another one is left alone.
		c := *x.Cancel
		c.Heard = heard
		for _, a := range w.apply(ctx, []session.Command{&c}) {
			if a.Err != nil {
				w.log.Warn("a wait was not given up; its place lapses by itself", slog.String("holder", x.Holder), slog.Any("error", a.Err))
			}
		}
	})
}

// abandoned watches a place and reports whether nobody wants it, and when it was heard of
// before that.
func (w *Waiters) abandoned(ctx context.Context, x *Wait) (heard time.Duration, gone bool) {
	first, there := w.place(ctx, x)
	since, last := first.now, first.now
	poll := time.NewTicker(pollWaits)
	defer poll.Stop()
	for there && !w.waits(x) {
		select {
		case <-poll.C:
		case <-w.stop:
			return 0, false
		case <-ctx.Done():
			return 0, false
		}
		var p place
		if p, there = w.place(ctx, x); !there || p.seen != first.seen {
			return 0, false
		}
		if p.now-last > standstill {
			since = p.now
		}
		last = p.now
		if p.now-since >= abandonGrace || p.handed > 0 && p.now-max(since, p.handed) >= unclaimedGrace {
			return first.seen, true
		}
	}
	return 0, false
}

// waits reports whether somebody waits here for the same.
func (w *Waiters) waits(x *Wait) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.pools[x.Pool]
	return q != nil && len(q.holders[x.Holder]) > 0
}

// A place is one in a queue, in log time.
type place struct {
	now    time.Duration // when it was looked at
	seen   time.Duration // when it was last heard of
	handed time.Duration // since when it has a slot that nobody claimed; 0 if it has none
}

// place looks for the place of a wait. It is not there once somebody has claimed what it
// was handed, or it has lapsed.
func (w *Waiters) place(ctx context.Context, x *Wait) (found place, there bool) {
	at, err := w.store.Get(ctx, x.Pool, storage.Nearby)
	p, ok := at.Record.(*session.Pool)
	if err != nil || !ok || p == nil {
		return place{}, false
	}
	for i := range p.Queue {
		if t := &p.Queue[i]; t.Holder == x.Holder {
			return place{now: at.Now, seen: t.Seen}, true
		}
	}
	for i := range p.Leases {
		if l := &p.Leases[i]; l.Holder == x.Holder && l.Claim {
			return place{at.Now, l.Place.Seen, max(l.Since, 1)}, true
		}
	}
	return place{}, false
}

// A removable store is that of a node that can cease to be a member of its
// cluster while it runs. From then on it orders nothing, so that those who wait
// here would lose their places to others without hearing of it.
type removable interface{ Removed() bool }

// errNodeRemoved is the answer to the waits of a node that was removed.
var errNodeRemoved = errors.New("this node was removed from its cluster")

// errRemovedHere is errNodeRemoved as its callers read it, who can go on as
// those of a node that drains; see errHandedOver.
func errRemovedHere() error {
	return fault.New(connect.CodeUnavailable, fault.ReasonOutcomeUnknown, "this node was removed from the cluster; the place in the queue is kept for ten seconds, send it again with the same id to another node")
}

// removed reports whether this node is no member of its cluster any more.
func (w *Waiters) removed() bool {
	r, ok := w.store.(removable)
	return ok && r.Removed()
}

// handOver answers all who wait here. Their places are kept for another node,
// which they have to ask.
func (w *Waiters) handOver() {
	w.freeAll(errNodeRemoved.Error())
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, q := range w.pools {
		for _, same := range q.holders {
			for _, x := range same {
				x.answered = true
				x.done <- storage.Answer{Err: errNodeRemoved}
				n++
			}
		}
	}
	clear(w.pools) // nothing of it is claimed or renewed here
	if n > 0 {
		w.log.Warn("this node was removed from the cluster: its waiters go on at other nodes", slog.Int("waiters", n))
	}
}

// Idle returns when nobody waits here.
func (w *Waiters) Idle(ctx context.Context) error {
	w.mu.Lock()
	if w.n == 0 && len(w.held) == 0 {
		w.mu.Unlock()
		return nil
	}
	empty := make(chan struct{})
	w.empty = append(w.empty, empty)
	w.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errHandedOver answers a wait on a node that drains. The wait itself stands in
// the replicated state and lasts ten seconds without a node that renews it.
func errHandedOver() error {
	return fault.New(connect.CodeUnavailable, fault.ReasonOutcomeUnknown, "this node is shutting down; the place in the queue is kept for ten seconds, send it again with the same id to another node")
}

// ErrStreamEnded is why a wait ends whose stream has. Its place is given up by
// nobody: the same id may be asked for over another stream.
var ErrStreamEnded = errors.New("server: the stream has ended")
