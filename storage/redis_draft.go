package storage

import (
	"context"
	"errors"
	"time"

	"example.com/govnode/session"
)

// A draft is a round that was decided, with the swap that makes it so.
type draft struct {
	e         *epoch
	s         *swapping
	was, next []entry // of the records wanted
	wrote     []bool
	results   []session.Result
	now, mono time.Duration
	fresh     bool // was is what stood in Redis at one instant
}

// decide applies the commands to what was read.
func (x *round) decide(e *epoch, was []entry, fresh bool) *draft {
	d := &draft{e: e, was: was, fresh: fresh}
	d.now, d.mono = x.p.d.clock.now()
	state := session.NewPartial()
	state.SetClock(0, e.generation)
	var cmds []session.Command
	for _, b := range x.batches {
		cmds = append(cmds, b.cmds...)
	}
	for i, w := range x.wants {
		if was[i].record != nil {
			state.Put(w.key, was[i].record)
		}
	}
	d.results = state.ApplyAll(d.now, cmds)
	x.claim(d, state)
	d.s = x.r.beginSwap(x.p, e, x.wants)
	after := make([]session.Record, len(x.wants))
	for i, w := range x.wants {
		after[i] = state.Stored(w.key)
	}
	x.changes(d, after)
	return d
}

// changes adds to the swap what has changed. A record that came up as due and
// had nothing to settle is moved to when it will.
func (x *round) changes(d *draft, after []session.Record) {
	d.next, d.wrote = make([]entry, len(d.was)), make([]bool, len(d.was))
	some := -1
	for i, was := range d.was {
		d.next[i] = was
		early := after[i] != nil && was.due != 0 && was.due <= d.now && standing(after[i], 0, d.now) != was.due
		switch {
		case after[i] != was.record || early:
			d.s.tell = d.s.tell || handed(was.record, after[i])
			d.put(i, after[i])
		case after[i] != nil:
			some = i
		}
	}
	if d.s.idle() && len(x.sent) > 0 && some >= 0 {
		// What was sent before and may still arrive must find a change.
		d.put(some, after[some])
	}
}

func (d *draft) put(i int, after session.Record) {
	d.next[i], d.wrote[i] = d.s.put(i, d.was[i], after, d.now), true
}

// handed reports whether a pool has handed a slot to somebody who waits, maybe
// at another node, and who has to claim it; or is gone under those who wait.
func handed(was, after session.Record) bool {
	before, _ := was.(*session.Pool)
	p, ok := after.(*session.Pool)
	if !ok {
		return before != nil && len(before.Queue) > 0
	}
	for i := len(p.Leases) - 1; i >= 0 && (before == nil || p.Leases[i].Token > before.Last); i-- {
		if p.Leases[i].Claim {
			return true
		}
	}
	return false
}

// carry swaps in what was decided. It returns how long to pause before the next
// attempt.
func (x *round) carry(d *draft) (pause time.Duration, err error) {
	if d.s.idle() && d.fresh {
		x.answer(x.batches, d.results)
		return 0, nil
	}
	ctx, cancel := x.r.trip()
	defer cancel()
	found, status, err := x.exchange(ctx, d)
	switch {
	case err != nil && (notSent(err) || errors.As(err, new(*badRecord))):
		return 0, x.refused(ctx, err)
	case errors.Is(err, errOlder):
		x.lostSight(d, err)
		return 0, x.p.d.damaged(ctx, d.e, err.Error())
	case err != nil:
		x.lostSight(d, err)
		return silentPause, nil
	case status == replyOK:
		x.l.standIn(d.s.waits)
		x.done(d)
	case status == replyLost:
		return x.yield(d, found), nil
	case status == replyFrozen:
		return frozenPause, nil
	default:
		return lostPause, x.p.d.note(ctx, d.e, status)
	}
	return 0, nil
}

// exchange sends the swap. Unless nodes take turns, the next round is decided
// meanwhile, on what this one will have written: so this node and Redis work at
// the same time. It is sent once this one was answered, and if this one came to
// nothing it is decided anew.
func (x *round) exchange(ctx context.Context, d *draft) (found []entry, status string, err error) {
	var alone bool
	if d.s.turn, alone = x.l.wish(x.wants, d.was, true); !alone {
		x.l.finish()
		return x.r.send(ctx, d.s, d.was, d.now, d.mono)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		found, status, err = x.r.send(ctx, d.s, d.was, d.now, d.mono)
	}()
	x.l.finish()
	x.prepare(d)
	<-done
	if ahead := x.l.ahead; ahead != nil && (err != nil || status != replyOK) {
		ahead.draft = nil
	}
	return found, status, err
}

// leastAhead is how many commands are worth a round of their own while another
// is out: fewer are better off in one round with those that are still to come.
const leastAhead = 40

// prepare decides the next round on what this one writes. It takes half of all
// that are under way here, so that rounds become neither large nor small by
// turns.
func (x *round) prepare(d *draft) {
	l := x.l
	if l.ahead != nil {
		return // it was taken while this one was out before
	}
	l.gather()
	if l.waits() < leastAhead {
		return
	}
	batches := l.take(nil, min(x.r.cfg.RoundSize, (len(d.results)+l.waits()+1)/2))
	if batches == nil {
		return
	}
	y := l.round(batches)
	l.ahead = y
	y.footprint()
	defer func() { y.before = nil }() // so that no round keeps all before it
	y.before = func(k session.Key) (entry, bool) {
		i, ok := x.at[k]
		if !ok {
			return entry{}, false
		}
		return d.next[i], true
	}
	was := make([]entry, len(y.wants))
	for _, known := range y.seen(y.wants, was) {
		if !known {
			return // it is read once its turn comes
		}
	}
	y.draft = y.decide(d.e, was, false)
}

// yield takes over what another node has written. It returns how long to pause,
// if this node has no turn to wait for.
func (x *round) yield(d *draft, found []entry) time.Duration {
	x.r.lost.Add(1)
	x.l.standIn(d.s.waits)
	var others []session.Key
	for i := range found {
		if found[i].stamp != d.was[i].stamp {
			others = append(others, x.wants[i].key)
		}
	}
	x.r.cache.putAll(x.wants, found)
	x.l.listen(others)
	if x.appliedBefore(found) {
		return 0
	}
	return lostPause
}

// done lets a round that was swapped in be kept and answered: once the next is on
// its way, if that is ready to be sent, so that Redis need not wait for it.
func (x *round) done(d *draft) {
	batches := x.batches
	x.l.unfinished = func() {
		x.keep(d)
		x.batches = batches
		x.answer(batches, d.results)
	}
	if next := x.l.ahead; next == nil || next.draft == nil {
		x.l.finish()
	}
	x.batches = nil
}

// finish keeps and answers a round that was swapped in, if one is left.
func (l *lane) finish() {
	if f := l.unfinished; f != nil {
		l.unfinished = nil
		f()
	}
}

// keep notes what is now in Redis.
func (x *round) keep(d *draft) {
	seen := x.r.cfg.monotonic()
	for i := range d.next {
		d.next[i].seen = seen
	}
	x.r.cache.putAll(x.wants, d.next)
	if !d.s.idle() {
		x.r.tell()
	}
}
