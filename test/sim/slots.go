package sim

import (
	"context"
	"time"

	"example.com/govnode/client"
	"example.com/govnode/test/check"
)

// Slots and rates of workers.

// slot takes a slot, does its work for a while, and gives it back, or once in a
// while lets its lease lapse.
func (w *worker) slot(ctx context.Context) {
	pool := "narrow"
	if w.rng.IntN(2) == 0 {
		pool = "wide"
	}
	weight := 1 + w.rng.IntN(min(2, pools[pool]))
	ttl := time.Duration(1+w.rng.IntN(4)) * time.Second
	wait := client.NoWait
	if w.rng.IntN(2) == 0 {
		wait = time.Duration(1 + w.rng.Int64N(int64(longestWait)))
	}
	o := check.Op{Client: w.name, Kind: check.Acquire, Object: pool, ID: newID(), Call: w.recorder.now()}
	w.recorder.begun(o)
	s, err := w.client.Acquire(ctx, pool, client.SlotID(o.ID), client.Weight(weight), client.TTL(ttl), client.Wait(wait))
	o.Return = w.recorder.now()
	w.recorder.took(o.Call, o.Return, max(0, wait))
	o.Outcome, o.Text = outcome(err), text(err)
	if err == nil {
		o.Granted, o.Token = true, s.Token()
	}
	w.recorder.done(o)
	if err != nil {
		return
	}
	h := check.Hold{Pool: pool, ID: o.ID, Weight: weight, Token: s.Token(), From: o.Return}
	work := time.Duration(w.rng.Int64N(int64(6 * time.Second)))
	if w.rng.IntN(4) > 0 {
		work = time.Duration(w.rng.Int64N(int64(w.think) + 1))
	}
	end := time.Now().Add(work)
	admitted := w.enters(h, s)
	for ctx.Err() == nil && s.State() != client.Lost && time.Now().Before(end) {
		look := time.Until(end)
		if admitted {
			look = min(look, 100*time.Millisecond)
		}
		select {
		case <-s.Lost():
		case <-time.After(look):
		case <-ctx.Done():
		}
		if admitted && s.State() != client.Lost {
			broken, err := w.site.stay(h.Pool, h.Token, s.Deadline().Sub(w.recorder.start))
			w.atSite(broken, err)
		}
	}
	if admitted {
		w.atSite(nil, w.site.leave(h.Pool, h.Token))
	}
	// A lease is no longer trusted from its deadline on, whether anybody has
	// noticed or not.
	h.Until = min(w.recorder.now(), s.Deadline().Sub(w.recorder.start))
	w.recorder.held(h)
	r := check.Op{Client: w.name, Kind: check.Release, Object: pool, ID: o.ID, Call: w.recorder.now()}
	w.recorder.begun(r)
	err = s.Release()
	r.Return = w.recorder.now()
	w.recorder.took(r.Call, r.Return, 0)
	r.Outcome, r.Text = outcome(err), text(err)
	w.recorder.done(r)
}

// take takes from a rate, at once or after a wait.
func (w *worker) take(ctx context.Context) {
	rate := []string{"slow", "fast"}[w.rng.IntN(2)]
	wait := client.NoWait
	if w.rng.IntN(2) == 0 {
		wait = time.Duration(1 + w.rng.Int64N(int64(longestWait)))
	}
	w.takeFrom(ctx, client.Take{Rate: rate, Cost: int32(1 + w.rng.IntN(3)), Wait: wait})
}

// takeFrom reports whether it was admitted.
func (w *worker) takeFrom(ctx context.Context, t client.Take) bool {
	t.ID = newID()
	o := check.Op{Client: w.name, Kind: check.Take, Object: t.Rate, ID: t.ID, Amount: int64(t.Cost), Call: w.recorder.now()}
	w.recorder.begun(o)
	err := w.client.TakeRate(ctx, t)
	o.Return = w.recorder.now()
	w.recorder.took(o.Call, o.Return, max(0, t.Wait))
	o.Outcome, o.Text, o.Granted = outcome(err), text(err), err == nil
	w.recorder.done(o)
	return err == nil
}

// enters begins the work of a holder at the site, if there is one, and reports
// whether it was let in.
func (w *worker) enters(h check.Hold, s *client.Slot) bool {
	if w.site == nil {
		return false
	}
	admitted, broken, err := w.site.enter(h.Pool, pools[h.Pool], inside{h.Token, h.Weight, s.Deadline().Sub(w.recorder.start)})
	w.atSite(broken, err)
	return admitted && err == nil
}

func (w *worker) atSite(broken *check.Violation, err error) {
	if err != nil {
		w.recorder.broke("site", "%v", err)
	}
	if broken != nil {
		w.recorder.broke(broken.Check, "%s", broken.Text)
	}
}
