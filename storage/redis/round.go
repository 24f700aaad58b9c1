package redis

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// A round carries out the commands of some callers. It applies them to the
// records that they touch and swaps the outcome in, attempt after attempt until
// no other node has come between; what a lost attempt would have answered is
// never told to anybody.
type round struct {
	r       *Store
	l       *lane
	p       *place
	batches []*batch                             // that are not answered yet
	ready   *attempt                             // decided, and not sent
	before  func(session.Key) (wire.Entry, bool) // while ready is decided: what the round before it writes
	open    *attempt                             // sent, and nobody knows what became of it
	lost    time.Time                            // since when
	doubts  bool                                 // Redis found a wrong type, or records did not belong together: nothing is taken from the cache
}

// Pauses of a round: a lost swap means that another node is at it, a frozen or
// silent Redis needs longer.
const (
	lostPause   = 100 * time.Microsecond
	frozenPause = 20 * time.Millisecond
	silentPause = 50 * time.Millisecond
	// orphaned is for how long one finds out about an attempt whose callers have all
	// gone, where somebody wants to know it all the same.
	orphaned = time.Minute
)

// carryOut answers all batches.
func (r *Store) carryOut(x *round) {
	err := x.run()
	if err == nil {
		return
	}
	if errorKind(err, "WRONGTYPE") {
		r.reportTypes(x.p, x.begin(nil).wants)
	}
	for _, b := range x.batches {
		b.fail(storage.Refused(err))
	}
}

// run returns nil when all batches are answered, or why those that are left
// cannot be.
func (x *round) run() error {
	ctx := x.r.ctx
	for {
		if x.l.turns.waits {
			x.ready = nil
			x.l.finish()
			x.l.await()
			x.takeMore()
		}
		x.leaveLate()
		if x.over() {
			x.l.finish()
			return nil
		}
		pause, err := x.try()
		if err != nil || x.over() {
			return err
		}
		if pause > 0 && !x.l.turns.waits {
			rest(ctx, pause/2+rand.N(pause))
			x.takeMore()
		}
		if ctx.Err() != nil {
			return errClosed
		}
	}
}

// over reports whether there is nothing left to do.
func (x *round) over() bool {
	return len(x.batches) == 0 && (x.open == nil || !x.r.settled.Keeps() || time.Since(x.lost) > orphaned)
}

// try takes the next step: it finds out about the attempt that is open, or makes
// another. It returns how long to pause before the next.
func (x *round) try() (pause time.Duration, err error) {
	e, err := x.p.d.serving(x.r.ctx)
	if err != nil {
		x.l.finish()
		return 0, err
	}
	if x.open != nil {
		return x.findOut(e)
	}
	a := x.ready
	x.ready = nil
	if a == nil || a.e != e {
		x.l.finish() // what it wrote is read
		a, err = x.read(e)
		if err != nil || a == nil {
			return lostPause, err
		}
		if x.refuseDamaged(a) {
			return 0, nil
		}
		if !x.decide(a) {
			return 0, nil
		}
	}
	return x.carry(a)
}

// takeMore adds what has come meanwhile to a round that is decided anew anyway.
func (x *round) takeMore() {
	if x.open == nil && len(x.batches) > 0 {
		x.batches = x.l.take(x.batches, x.r.cfg.RoundSize)
	}
}

// rest pauses, or until ctx is done.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// leaveLate answers those whose callers wait no longer. What was decided in a
// lost attempt has no effect, so they were not applied; of the attempt that is
// open they stay a part.
func (x *round) leaveLate() {
	left, now := x.batches[:0], time.Now()
	for _, b := range x.batches {
		if b.over(now) {
			b.fail(storage.Refused(errLate))
			x.ready = nil
			continue
		}
		left = append(left, b)
	}
	clear(x.batches[len(left):])
	x.batches = left
}

// begin returns an attempt that has the records which the commands touch, with
// the parts of ids that they look at. What stands there is not known yet.
func (x *round) begin(e *epoch) *attempt {
	a := &attempt{e: e, at: make(map[session.Key]int, len(x.batches)+8)}
	for _, b := range x.batches {
		for i := range b.asks {
			a.touch(&b.asks[i])
		}
	}
	a.was = make([]wire.Entry, len(a.wants))
	return a
}

func (a *attempt) touch(k *ask) {
	for j, key := range k.keys {
		i, ok := a.at[key]
		if !ok {
			i = len(a.wants)
			a.at[key] = i
			a.wants = append(a.wants, wire.Want{Key: key})
		}
		a.wants[i].Refs++
		a.wants[i].Parts |= k.parts(j)
	}
}

// read returns an attempt with the records that the commands touch: the values
// seen last, or from Redis. It returns nil if one has to look again.
func (x *round) read(e *epoch) (*attempt, error) {
	a := x.begin(e)
	var missing []wire.Want
	var at []int
	var known []bool
	if x.doubts {
		known = make([]bool, len(a.wants))
	} else {
		known = x.r.cache.getAll(a.wants, a.was)
	}
	for i, w := range a.wants {
		if known[i] {
			continue
		}
		if a.was[i].Record != nil && session.HasParts(w.Key) {
			w.Parts = wire.AllParts // it is used here again and again, each time with another part
		}
		missing, at = append(missing, w), append(at, i)
	}
	if len(missing) == 0 {
		return a, nil
	}
	ctx, cancel := x.r.trip()
	defer cancel()
	found, status, err := x.r.load(ctx, x.p, e, missing, true)
	if err != nil {
		return nil, err
	}
	if status != wire.ReplyOK {
		return nil, x.p.d.note(ctx, e, status)
	}
	for i, f := range found {
		a.was[at[i]] = f
	}
	x.r.cache.putAll(missing, found)
	a.fresh = len(missing) == len(a.wants)
	return a, nil
}

// refuseDamaged answers the commands that need a record that is damaged, and
// reports whether there are such: then the others are looked at anew.
func (x *round) refuseDamaged(a *attempt) bool {
	var damaged map[session.Key]*wire.BadRecord
	for i := range a.was {
		if bad := a.was[i].Bad; bad != nil {
			if damaged == nil {
				damaged = map[session.Key]*wire.BadRecord{}
			}
			damaged[a.wants[i].Key] = bad
			x.r.setAside(x.p, a.e, a.wants[i].Key, bad)
		}
	}
	if damaged == nil {
		return false
	}
	var left []*batch
	for _, b := range x.batches {
		if b.touches(damaged) == nil {
			left = append(left, b)
			continue
		}
		for _, c := range b.split() {
			if bad := c.touches(damaged); bad != nil {
				c.fail(storage.Refused(bad))
			} else {
				left = append(left, c)
			}
		}
	}
	x.batches = left
	return true
}

// seen finds the values of records that a round is decided on without reading
// them, and says which are there with the parts that are wanted of them.
func (x *round) seen(wants []wire.Want, found []wire.Entry) (known []bool) {
	known = x.r.cache.getAll(wants, found)
	if x.before == nil {
		return known
	}
	for i, w := range wants {
		if e, ok := x.before(w.Key); ok {
			found[i], known[i] = e, knows(e, w.Parts)
		}
	}
	return known
}

// knows reports whether an entry has the parts that are wanted.
func knows(e wire.Entry, parts uint16) bool {
	if e.Record == nil || parts == 0 {
		return true
	}
	for part := range session.ForgottenParts {
		if parts&(1<<part) != 0 && !session.PartKnown(e.Record, part) {
			return false
		}
	}
	return true
}

// carry sends an attempt. It returns how long to pause before the next.
func (x *round) carry(a *attempt) (pause time.Duration, err error) {
	if a.s.Idle() && a.fresh {
		a.answer(x.r)
		x.batches = nil
		return 0, nil
	}
	ctx, cancel := x.r.trip()
	defer cancel()
	found, status, err := x.exchange(ctx, a)
	switch {
	case err != nil && notSent(err):
		return 0, x.refused(ctx, err)
	case errors.Is(err, errOlder) || errors.Is(err, errHalf):
		x.lostSight(a, err)
		return 0, x.p.d.lost(ctx, a.e, err.Error())
	case err != nil:
		x.lostSight(a, err)
		return silentPause, nil
	case status == wire.ReplyOK:
		x.l.standIn(a.s.waits)
		x.done(a)
	case status == wire.ReplyLost:
		return x.yield(a, found), nil
	case status == wire.ReplyFrozen:
		return frozenPause, nil
	default:
		return lostPause, x.p.d.note(ctx, a.e, status)
	}
	return 0, nil
}

// exchange sends the swap. Unless nodes take turns, the next round is decided
// meanwhile, on what this one will have written: so this node and Redis work at
// the same time. It is sent once this one was answered, and if this one came to
// nothing it is decided anew.
func (x *round) exchange(ctx context.Context, a *attempt) (found []wire.Entry, status string, err error) {
	var alone bool
	if a.s.Turn, alone = x.l.wish(a.wants, a.was, true); !alone {
		x.l.finish()
		return x.r.send(ctx, a.s, a.was, a.now, a.mono)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		found, status, err = x.r.send(ctx, a.s, a.was, a.now, a.mono)
	}()
	x.l.finish()
	x.prepare(a)
	<-done
	if ahead := x.l.ahead; ahead != nil && (err != nil || status != wire.ReplyOK) {
		ahead.ready = nil
	}
	return found, status, err
}

// refused handles an error that says that nothing was applied. What has a wrong
// type is found among the records by looking at each, once.
func (x *round) refused(ctx context.Context, err error) error {
	if errorKind(err, "WRONGTYPE") && !x.doubts {
		x.doubts = true
		return nil
	}
	for _, kind := range []string{"READONLY", "LOADING", "MASTERDOWN"} {
		if errorKind(err, kind) {
			_ = x.p.d.inspect(ctx, x.p.d.gate.Load()) // logged there
		}
	}
	return err
}

// yield takes over what another node has written. It returns how long to pause,
// if this node has no turn to wait for.
func (x *round) yield(a *attempt, found []wire.Entry) time.Duration {
	x.r.lost.Add(1)
	x.l.standIn(a.s.waits)
	var others []session.Key
	for i := range found {
		if found[i].Stamp != a.was[i].Stamp {
			others = append(others, a.wants[i].Key)
		}
	}
	x.r.cache.putAll(a.wants, found)
	x.l.listen(others)
	return lostPause
}

// done lets an attempt that was swapped in be kept and answered: once the next is
// on its way, if that is ready to be sent, so that Redis need not wait for it.
func (x *round) done(a *attempt) {
	x.l.unfinished = func() {
		x.keep(a)
		a.answer(x.r)
	}
	if next := x.l.ahead; next == nil || next.ready == nil {
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
func (x *round) keep(a *attempt) {
	seen := x.r.cfg.monotonic()
	for i := range a.next {
		a.next[i].Seen = seen
	}
	x.r.cache.putAll(a.wants, a.next)
	if !a.s.Idle() {
		x.r.tell()
	}
}
