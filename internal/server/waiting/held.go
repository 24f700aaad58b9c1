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

// Those whom a STOP keeps out. Nothing of them is stored: the node keeps the
// request, and its caller sends it again when the STOP is over.

// Held is what a request waits for that is kept out.
type Held struct {
	Key    session.Key               // of the record in which the signal stands
	Stands func(session.Record) bool // whether it stands there still
	Over   bool                      // its time has passed, and it stands still

	freed chan struct{} // closed when it does not stand any more
}

// Stand waits as x says: in a queue, until what was joined is admitted or given up,
// or for the end of a STOP.
func (w *Waiters) Stand(ctx context.Context, x *Wait) error {
	if x.Held == nil {
		w.Join(x)
		return w.Await(ctx, x)
	}
	return w.hold(ctx, x.Held, x.Length)
}

func (w *Waiters) hold(ctx context.Context, h *Held, length time.Duration) error {
	h.freed = make(chan struct{})
	w.keepOut(h)
	defer w.letGo(h)
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-h.freed:
	case <-timer.C:
		h.Over = true
	case <-w.drained:
		return errHeldHere()
	case <-ctx.Done():
		return fault.GaveUp(ctx)
	}
	return nil
}

func errHeldHere() error {
	return fault.New(connect.CodeUnavailable, fault.ReasonOutcomeUnknown, "this node is shutting down, and a STOP keeps the call out; send it again with the same id to another node")
}

func (w *Waiters) keepOut(h *Held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	same := w.held[h.Key]
	if same == nil {
		same = make(map[*Held]bool)
		w.held[h.Key] = same
	}
	same[h] = true
	w.stopped.Inc()
}

func (w *Waiters) letGo(h *Held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped.Dec()
	delete(w.held[h.Key], h)
	if len(w.held[h.Key]) == 0 {
		delete(w.held, h.Key)
	}
	w.tellIdle()
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
			continue // looked at again within pollWaits
		}
		w.mu.Lock()
		for h := range w.held[k] { // order-free: all go on at once
			if !h.Stands(found.Record) {
				close(h.freed)
				delete(w.held[k], h)
			}
		}
		w.mu.Unlock()
	}
}
