package waiting

import (
	"context"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Those whom a STOP keeps out, and those who wait for the decision of an approval.
// Nothing of the wait is stored: the node keeps the request, and its caller sends it
// again when that is over.

// Held is what a request waits for that is kept out.
type Held struct {
	For    string                    // what keeps it out, as in "a STOP stands"
	Key    session.Key               // of the record in which that stands
	Stands func(session.Record) bool // whether it stands there still
	Over   bool                      // its time has passed, and it stands still

	freed chan error // capacity 1: it does not stand any more, or why that cannot be known here
}

// keptOut are those of this node whom one record keeps out.
type keptOut struct {
	seen session.Record // when it was last looked at
	all  map[*Held]bool
}

// Stand waits as x says: in a queue, until what was joined is admitted or given up,
// or until what keeps it out is over.
func (w *Waiters) Stand(ctx context.Context, x *Wait) error {
	if x.Held == nil {
		w.Join(x)
		return w.Await(ctx, x)
	}
	return w.hold(ctx, x.Held, x.Length)
}

func (w *Waiters) hold(ctx context.Context, h *Held, length time.Duration) error {
	h.freed = make(chan error, 1)
	w.keepOut(h)
	defer w.letGo(h)
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case err := <-h.freed:
		return err
	case <-timer.C:
		h.Over = true
		return nil
	case <-w.drained:
		return errHeldHere(h.For, "this node is shutting down")
	case <-ctx.Done():
		return fault.GaveUp(ctx)
	}
}

func errHeldHere(what, why string) error {
	return fault.New(connect.CodeUnavailable, fault.ReasonOutcomeUnknown, why+", and "+what+"; send it again with the same id to another node")
}

func (w *Waiters) keepOut(h *Held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	same := w.held[h.Key]
	if same == nil {
		same = &keptOut{all: make(map[*Held]bool)}
		w.held[h.Key] = same
	}
	same.all[h] = true
	same.seen = nil // it may have changed before it was looked at for h
	w.stopped.Inc()
}

func (w *Waiters) letGo(h *Held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped.Dec()
	same := w.held[h.Key]
	if same == nil {
		return
	}
	if delete(same.all, h); len(same.all) == 0 {
		delete(w.held, h.Key)
		w.tellIdle()
	}
}

// free lets those go on against whom nothing stands any more, as far as this node
// has seen: who is wrong about that is kept out again.
func (w *Waiters) free(ctx context.Context) {
	w.mu.Lock()
	keys := slices.Collect(maps.Keys(w.held))
	w.mu.Unlock()
	for _, k := range keys {
		found, err := w.store.Get(ctx, k, storage.Nearby)
		if err != nil {
			continue // looked at again within pollHeld
		}
		w.mu.Lock()
		if same := w.held[k]; same != nil && (same.seen == nil || same.seen != found.Record) {
			same.seen = found.Record
			for h := range same.all { // order-free: all go on at once
				if !h.Stands(found.Record) {
					h.free(nil)
				}
			}
		}
		w.mu.Unlock()
	}
}

// freeAll answers all who are kept out at this node.
func (w *Waiters) freeAll(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, same := range w.held {
		for h := range same.all { // order-free: each has the same answer
			h.free(errHeldHere(h.For, why))
		}
	}
}

func (h *Held) free(err error) {
	select {
	case h.freed <- err:
	default: // he is on his way
	}
}
