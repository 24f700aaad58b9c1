package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"example.com/govnode/session"
)

func notApplied(err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func unknownOutcome(err error) error { return fmt.Errorf("%w: %w", ErrUnknown, err) }

// A round applies the commands of some callers to the records that they touch
// and swaps the outcome in. It is applied again until no other node has come
// between; what a lost round would have answered is never told to anybody.
type round struct {
	r       *Redis
	l       *lane
	p       *place
	batches []*batch
	wants   []want
	sent    []*attempt // whose outcome is not known
}

// An attempt is a swap that was sent.
type attempt struct {
	stamp   stamp
	batches []*batch
	results []session.Result
	writes  map[session.Key]stamp // what was there before
}

// Pauses of a round: a lost swap means that another node is at it, a frozen or
// silent Redis needs longer.
const (
	lostPause   = 100 * time.Microsecond
	frozenPause = 20 * time.Millisecond
	silentPause = 50 * time.Millisecond
)

// carryOut answers all batches. If a record is damaged, those that do not touch
// it are answered all the same.
func (r *Redis) carryOut(l *lane, batches []*batch) {
	p := l.p
	x := &round{r: r, l: l, p: p, batches: batches}
	err := x.run()
	if err == nil {
		return
	}
	var bad *badRecord
	alone := len(x.batches) == 1
	if !alone && len(x.sent) == 0 && (errors.As(err, &bad) || redisErrorKind(err, "WRONGTYPE")) {
		for _, b := range x.batches {
			r.carryOut(&lane{r: r, p: p}, []*batch{b})
		}
		return
	}
	if bad != nil || redisErrorKind(err, "WRONGTYPE") {
		r.report(p, x.wants, err)
	}
	for _, b := range x.batches {
		b.fail(notApplied(err))
	}
}

// run returns nil when all batches are answered, or why those that are left
// cannot be.
func (x *round) run() error {
	ctx := x.r.ctx
	for {
		x.leaveLate()
		if len(x.batches) == 0 {
			return nil
		}
		e, err := x.p.d.serving(ctx)
		if err != nil {
			return err
		}
		was, fresh, err := x.read(e)
		var pause time.Duration
		switch {
		case errors.Is(err, errAgain):
			pause = lostPause
		case err != nil && len(x.sent) > 0 && notServed(err):
			pause = silentPause // find out what became of it
		case err != nil:
			return err
		default:
			pause, err = x.apply(e, was, fresh)
			if err != nil {
				return err
			}
		}
		if pause > 0 {
			rest(ctx, pause/2+rand.N(pause))
		}
		if len(x.sent) == 0 && len(x.batches) > 0 {
			x.batches = x.l.take(x.batches) // it is decided anew anyway
		}
		if ctx.Err() != nil {
			return errRedisClosed
		}
	}
}

// errAgain asks for another look.
var errAgain = errors.New("storage: look again")

// notServed reports whether Redis could not be asked, which may pass.
func notServed(err error) bool {
	var bad *badRecord
	return !errors.As(err, &bad) && !redisErrorKind(err, "WRONGTYPE")
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

// leaveLate answers those whose callers wait no longer. What was applied in a
// lost round has no effect, so they were not applied.
func (x *round) leaveLate() {
	left := x.batches[:0]
	for _, b := range x.batches {
		if b.over() {
			b.fail(notApplied(errLate))
			continue
		}
		left = append(left, b)
	}
	clear(x.batches[len(left):])
	x.batches = left
}

// footprint lists the records that the commands touch, with the parts of ids
// that they look at.
func (x *round) footprint() {
	x.wants = x.wants[:0]
	at := map[session.Key]int{}
	for _, b := range x.batches {
		for _, c := range b.cmds {
			for _, k := range c.Touches() {
				if _, ok := at[k]; !ok {
					at[k] = len(x.wants)
					x.wants = append(x.wants, want{key: k})
				}
			}
			if k, part, ok := session.IDOf(c); ok {
				x.wants[at[k]].parts |= 1 << part
			}
		}
	}
}

// read returns the records that the commands touch: the values seen last, or
// from Redis. Fresh means that all were read now, at one instant.
func (x *round) read(e *epoch) (was []entry, fresh bool, err error) {
	x.footprint()
	was = make([]entry, len(x.wants))
	var missing []want
	var at []int
	for i, w := range x.wants {
		c, ok := x.r.cache.get(w.key)
		if ok && len(x.sent) == 0 && knows(c, w.parts) {
			was[i] = c
			continue
		}
		missing, at = append(missing, w), append(at, i)
	}
	if len(missing) == 0 {
		return was, false, nil
	}
	ctx, cancel := x.r.trip()
	defer cancel()
	found, status, err := x.r.load(ctx, x.p, e, missing, true)
	if err != nil {
		return nil, false, err
	}
	if status != replyOK {
		if err := x.p.d.note(ctx, e, status); err != nil {
			return nil, false, err
		}
		return nil, false, errAgain
	}
	for i, f := range found {
		was[at[i]] = f
		x.r.cache.put(missing[i].key, f)
	}
	return was, len(missing) == len(x.wants), nil
}

// knows reports whether an entry has the parts that are wanted.
func knows(e entry, parts uint16) bool {
	if e.record == nil || parts == 0 {
		return true
	}
	for part := range session.ForgottenParts {
		if parts&(1<<part) != 0 && !session.PartKnown(e.record, part) {
			return false
		}
	}
	return true
}

// apply carries the commands out on what was read and swaps the outcome in. It
// returns how long to pause before the next attempt.
func (x *round) apply(e *epoch, was []entry, fresh bool) (pause time.Duration, err error) {
	if x.appliedBefore(was) {
		return 0, nil
	}
	now, mono := x.p.d.clock.now()
	results, after := x.decide(e, was, now)
	s := x.r.beginSwap(x.p, e, x.wants)
	next, wrote := x.changes(s, was, after, now)
	if len(s.ops) == 0 && fresh {
		x.answer(x.batches, results)
		return 0, nil
	}
	a := &attempt{stamp: s.stamp, batches: x.batches, results: results, writes: wrote}
	ctx, cancel := x.r.trip()
	defer cancel()
	found, status, err := x.r.send(ctx, s, was, now, mono)
	switch {
	case err != nil && (notSent(err) || errors.As(err, new(*badRecord))):
		return 0, x.refused(ctx, err)
	case errors.Is(err, errOlder):
		x.lostSight(a, err)
		return 0, x.p.d.damaged(ctx, e, err.Error())
	case err != nil:
		x.lostSight(a, err)
		return silentPause, nil
	case status == replyOK:
		x.keep(was, next, wrote)
		x.answer(x.batches, results)
	case status == replyLost:
		x.r.lost.Add(1)
		seen := x.r.cfg.monotonic()
		for i := range found {
			found[i].seen = seen
			x.r.cache.put(x.wants[i].key, found[i])
		}
		if !x.appliedBefore(found) {
			return lostPause, nil
		}
	case status == replyFrozen:
		return frozenPause, nil
	default:
		return lostPause, x.p.d.note(ctx, e, status)
	}
	return 0, nil
}

// refused handles an error that says that nothing was applied.
func (x *round) refused(ctx context.Context, err error) error {
	for _, kind := range []string{"READONLY", "LOADING", "MASTERDOWN"} {
		if redisErrorKind(err, kind) {
			_ = x.p.d.inspect(ctx, x.p.d.gate.Load()) // logged there
		}
	}
	return err
}

// decide applies the commands. It returns what became of each record.
func (x *round) decide(e *epoch, was []entry, now time.Duration) ([]session.Result, []session.Record) {
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
	results := state.ApplyAll(now, cmds)
	after := make([]session.Record, len(x.wants))
	for i, w := range x.wants {
		after[i] = state.Stored(w.key)
	}
	return results, after
}

// changes adds to the swap what has changed. A record that came up as due and
// had nothing to settle is moved to when it will.
func (x *round) changes(s *swapping, was []entry, after []session.Record, now time.Duration) (next []entry, wrote map[session.Key]stamp) {
	next, wrote = make([]entry, len(was)), map[session.Key]stamp{}
	put := func(i int) {
		next[i] = s.put(i, was[i], after[i], now)
		wrote[x.wants[i].key] = was[i].stamp
	}
	some := -1
	for i := range was {
		early := after[i] != nil && was[i].due != 0 && was[i].due <= now && standing(after[i], 0, now) != was[i].due
		switch {
		case after[i] != was[i].record || early:
			s.tell = s.tell || waitedFor(was[i].record) || waitedFor(after[i])
			put(i)
		case after[i] != nil:
			some = i
		}
	}
	if len(wrote) == 0 && len(x.sent) > 0 && some >= 0 {
		// What was sent before and may still arrive must find a change.
		put(some)
	}
	return next, wrote
}

// waitedFor reports whether somebody waits in a pool, or has yet to claim.
func waitedFor(r session.Record) bool {
	p, ok := r.(*session.Pool)
	return ok && len(p.Queue) > 0
}

// keep notes what is now in Redis.
func (x *round) keep(was, next []entry, wrote map[session.Key]stamp) {
	seen := x.r.cfg.monotonic()
	for i, w := range x.wants {
		n := was[i]
		if _, ok := wrote[w.key]; ok {
			n = next[i]
		}
		n.seen = seen
		x.r.cache.put(w.key, n)
	}
	if len(wrote) > 0 {
		x.r.tell()
	}
}

// answer hands out the results of the commands of batches that still wait.
func (x *round) answer(batches []*batch, results []session.Result) {
	batches = append([]*batch(nil), batches...)
	for _, b := range batches {
		mine := results[:len(b.cmds)]
		results = results[len(b.cmds):]
		if x.remove(b) {
			x.r.noteWaits(b.cmds, mine)
			b.finish(mine)
		}
	}
}
