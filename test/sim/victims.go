package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"example.com/govnode/client"
	"example.com/govnode/test/check"
)

// victims are clients that vanish without a word while they hold a slot or wait
// for one.
type victims struct {
	recorder *recorder
	weather  *weather

	mu      sync.Mutex
	active  int           // that take slots, or wait for them
	until   time.Duration // the latest of them takes itself for a holder
	resting bool          // and there are to be none
	made    int
	took    []time.Duration // until slots were free
	broken  []check.Violation
	under   sync.WaitGroup // who looks whether they are
}

const (
	victimPool   = "victims" // where they take their slots, which others do not
	heirPool     = "heirs"   // where others wait for the one slot of a victim
	killedClient = "kill client"
)

// killClient lets a client take a slot and vanish, and looks when the slot is
// free again: time in which something is wrong with the cluster does not count,
// since log time may stand still then.
func (n *nemesis) killClient(rng *rand.Rand) func() {
	v := n.victims
	v.mu.Lock()
	if v.resting {
		v.mu.Unlock()
		return nil
	}
	v.made++
	v.active++
	name := fmt.Sprintf("v%d", v.made)
	v.mu.Unlock()
	defer v.left()
	w, err := newWorker(name, n.fleet, rng, v.recorder, 0, n.workers[0].log)
	if err != nil {
		return nil
	}
	vanish := func() {
		n.fleet.network.hold(links(name, n.fleet.names(), true, true)...)
		v.under.Go(func() { _ = w.close() }) // of which nobody hears
	}
	if rng.IntN(3) == 0 {
		return n.heir(rng, w, vanish)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	ttl := time.Duration(1+rng.IntN(5)) * time.Second
	o := check.Op{Client: name, Kind: check.Acquire, Object: victimPool, ID: newID(), Call: v.recorder.now()}
	s, err := w.client.Acquire(ctx, victimPool, client.SlotID(o.ID), client.TTL(ttl), client.Wait(2*time.Second))
	o.Return = v.recorder.now()
	o.Outcome, o.Text = outcome(err), text(err)
	if err != nil {
		v.recorder.done(o)
		vanish()
		return nil
	}
	o.Granted, o.Token = true, s.Token()
	v.recorder.done(o)
	if rng.IntN(2) == 0 { // it waits for another one as well when it vanishes
		v.under.Go(func() {
			o := check.Op{Client: name, Kind: check.Acquire, Object: "narrow", ID: newID(), Call: v.recorder.now()}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			_, err := w.client.Acquire(ctx, "narrow", client.SlotID(o.ID), client.TTL(ttl), client.Wait(10*time.Second))
			o.Return, o.Text = v.recorder.now(), text(err)
			v.recorder.done(o) // unknown: it vanishes, whatever it was told
		})
	}
	time.Sleep(time.Duration(rng.Int64N(int64(3 * time.Second)))) // and keeps it by renewals
	vanish()
	gone := v.recorder.now()
	h := check.Hold{Pool: victimPool, ID: o.ID, Weight: 1, Token: o.Token, From: o.Return, Until: min(gone+ttl, s.Deadline().Sub(v.recorder.start))}
	v.recorder.held(h)
	v.holds(h.Until)
	v.under.Go(func() { v.watch(n.workers[0], o.ID, gone, ttl) })
	return func() {}
}

// heir lets a client hold a slot by renewals whose answers are late, and vanish, while
// another one waits for the slot. Until when it was the holder the client says by itself:
// from no later answer than that it has heard.
func (n *nemesis) heir(rng *rand.Rand, w *worker, vanish func()) func() {
	v := n.victims
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	ttl := time.Duration(3+rng.IntN(3)) * time.Second
	acquire := func(w *worker, wait time.Duration) (*client.Slot, check.Hold) {
		o := check.Op{Client: w.name, Kind: check.Acquire, Object: heirPool, ID: newID(), Call: v.recorder.now()}
		s, err := w.client.Acquire(ctx, heirPool, client.SlotID(o.ID), client.TTL(ttl), client.Wait(wait))
		o.Return = v.recorder.now()
		if o.Outcome, o.Text = outcome(err), text(err); err == nil {
			o.Granted, o.Token = true, s.Token()
		}
		v.recorder.done(o)
		return s, check.Hold{Pool: heirPool, ID: o.ID, Weight: 1, Token: o.Token, From: o.Return}
	}
	s, held := acquire(w, time.Second)
	if s == nil {
		vanish()
		return nil
	}
	other := n.workers[rng.IntN(len(n.workers))]
	ctx, cancel = context.WithTimeout(context.Background(), 15*time.Second)
	v.enters()
	v.under.Go(func() {
		defer v.left()
		defer cancel()
		next, held := acquire(other, 12*time.Second)
		if next == nil {
			return
		}
		time.Sleep(time.Duration(rng.Int64N(int64(200 * time.Millisecond))))
		held.Until = min(v.recorder.now(), next.Deadline().Sub(v.recorder.start))
		v.recorder.held(held)
		r := check.Op{Client: other.name, Kind: check.Release, Object: heirPool, ID: held.ID, Call: v.recorder.now()}
		err := next.Release()
		r.Return = v.recorder.now()
		r.Outcome, r.Text = outcome(err), text(err)
		v.recorder.done(r)
	})
	late := n.fleet.network.slow(time.Duration(150+rng.IntN(300))*time.Millisecond, links(w.name, n.fleet.names(), false, true)...)
	time.Sleep(time.Duration(rng.Int64N(int64(4 * time.Second))))
	vanish()
	late()
	held.Until = s.Deadline().Sub(v.recorder.start)
	v.recorder.held(held)
	v.holds(held.Until)
	return func() {}
}

// rest waits until no victim takes itself for a holder, and lets there be none until it
// is called off: a restore ends what they hold, and they are in nobody's turn.
func (v *victims) rest() (off func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.resting = true
	for v.active > 0 || v.recorder.now() < v.until {
		v.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
		v.mu.Lock()
	}
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.resting = false
	}
}

func (v *victims) enters() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.active++
}

func (v *victims) left() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.active--
}

// holds notes until when a victim takes itself for a holder.
func (v *victims) holds(until time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.until = max(v.until, until)
}

// watch waits until a slot is free.
func (v *victims) watch(w *worker, id string, gone, ttl time.Duration) {
	for {
		asked := v.recorder.now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		list, err := w.client.ListSlots(ctx, victimPool)
		cancel()
		if err != nil { // whether that may be is judged as for all operations
			time.Sleep(200 * time.Millisecond)
			continue
		}
		now := v.recorder.now()
		held := false
		for _, s := range list.Slots {
			held = held || s.SlotId == id
		}
		fair := v.weather.fair()
		v.mu.Lock()
		if !held {
			if took := within(fair, gone, now); took == now-gone {
				v.took = append(v.took, max(0, took-ttl))
			}
			v.mu.Unlock()
			return
		}
		if within(fair, gone, asked) > ttl+leaseEnds { // when the answer was true is not known closer than that
			v.broken = append(v.broken, check.Violation{Check: "killed clients", Text: fmt.Sprintf(
				"the client of slot %s, with a TTL of %v, vanished at %v; at %v it is not free", id, ttl, gone, asked)})
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
		time.Sleep(200 * time.Millisecond)
	}
}
