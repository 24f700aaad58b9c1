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
	// abandonGrace is how long the place of a caller that is gone from this
	// node is left alone. One that was cut off asks again, here or at another
	// node, with the same id, and must not find its wait given up: the node
	// that has it renews its place within renewWaits, which shows.
	abandonGrace = renewWaits + time.Second
	// unclaimedGrace is how long a slot that was handed to such a place may
	// stay unclaimed: the node that has its caller claims it at once.
	unclaimedGrace = time.Second
)

// abandon gives up the place of a caller that is gone, unless it is seen to be
// asked for elsewhere. If the slot has come in the meantime it stays with the
// call: its caller may ask again with the same id, and else it lapses, as a
// place does that cannot be given up.
func (w *Waiters) abandon(x *Wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return
	}
	w.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), abandonGrace+waitWork)
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

// Withdraw gives up a place whose caller may not have it any more.
func (w *Waiters) Withdraw(x *Wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return
	}
	w.work.Go(func() {
		for _, a := range w.apply(context.Background(), []session.Command{x.Cancel}) {
			if a.Err != nil {
				w.log.Warn("a wait was not given up; its place lapses by itself", slog.String("holder", x.Holder), slog.Any("error", a.Err))
			}
		}
	})
}

// abandoned watches a place and reports whether nobody wants it, and when it was heard of
// before that.
func (w *Waiters) abandoned(ctx context.Context, x *Wait) (heard time.Duration, gone bool) {
	heard, _, there := w.place(ctx, x)
	poll := time.NewTicker(pollWaits)
	defer poll.Stop()
	for left := abandonGrace; there && left > 0; left -= pollWaits {
		select {
		case <-poll.C:
		case <-w.stop:
			return 0, false
		}
		var seen, unclaimed time.Duration
		if seen, unclaimed, there = w.place(ctx, x); !there || seen != heard {
			return 0, false
		}
		if unclaimed >= unclaimedGrace {
			break
		}
	}
	return heard, there
}

// place looks for the place of a wait: when it was last heard of, and for how
// long it has had a slot that nobody claimed. It is not there once somebody
// has claimed it, or it has lapsed.
func (w *Waiters) place(ctx context.Context, x *Wait) (seen, unclaimed time.Duration, there bool) {
	found, err := w.store.Get(ctx, x.Pool, storage.Nearby)
	p, ok := found.Record.(*session.Pool)
	if err != nil || !ok || p == nil {
		return 0, 0, false
	}
	for i := range p.Queue {
		if t := &p.Queue[i]; t.Holder == x.Holder {
			return t.Seen, 0, true
		}
	}
	for i := range p.Leases {
		if l := &p.Leases[i]; l.Holder == x.Holder && l.Claim {
			return l.Place.Seen, max(found.Now-l.Since, 1), true
		}
	}
	return 0, 0, false
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
