package storage

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"example.com/govnode/session"
)

// A round applies the commands of some callers to the records that they touch
// and swaps the outcome in. It is applied again until no other node has come
// between; what a lost round would have answered is never told to anybody.
type round struct {
	r       *Redis
	l       *lane
	p       *place
	batches []*batch
	wants   []want
	at      map[session.Key]int             // places of the records among wants
	draft   *draft                          // if it was decided while the round before was out
	before  func(session.Key) (entry, bool) // finds what the round before writes, if draft was decided on it
	sent    []*attempt                      // whose outcome is not known
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
func (r *Redis) carryOut(x *round) {
	p := x.p
	err := x.run()
	if err == nil {
		return
	}
	var bad *badRecord
	alone := len(x.batches) == 1
	if !alone && len(x.sent) == 0 && (errors.As(err, &bad) || redisErrorKind(err, "WRONGTYPE")) {
		for _, b := range x.batches {
			r.carryOut((&lane{r: r, p: p}).round([]*batch{b}))
		}
		return
	}
	if bad != nil || redisErrorKind(err, "WRONGTYPE") {
		r.report(p, x.wants, err)
	}
	for _, b := range x.batches {
		b.fail(Refused(err))
	}
}

// run returns nil when all batches are answered, or why those that are left
// cannot be.
func (x *round) run() error {
	ctx := x.r.ctx
	for {
		if x.l.turns.waits {
			x.draft = nil
			x.l.finish()
			x.l.await()
			x.takeMore()
		}
		x.leaveLate()
		if len(x.batches) == 0 {
			x.l.finish()
			return nil
		}
		pause, err := x.try()
		if err != nil || len(x.batches) == 0 {
			return err
		}
		if pause > 0 && !x.l.turns.waits {
			rest(ctx, pause/2+rand.N(pause))
			x.takeMore()
		}
		if ctx.Err() != nil {
			return errRedisClosed
		}
	}
}

// try makes one attempt. It returns how long to pause before the next.
func (x *round) try() (pause time.Duration, err error) {
	e, err := x.p.d.serving(x.r.ctx)
	if err != nil {
		x.l.finish()
		return 0, err
	}
	d := x.draft
	x.draft = nil
	if d == nil || d.e != e {
		x.l.finish() // what it wrote is read
		was, fresh, err := x.read(e)
		switch {
		case errors.Is(err, errAgain):
			return lostPause, nil
		case err != nil && len(x.sent) > 0 && notServed(err):
			return silentPause, nil // find out what became of it
		case err != nil:
			return 0, err
		case x.appliedBefore(was):
			return 0, nil
		}
		d = x.decide(e, was, fresh)
	}
	return x.carry(d)
}

// takeMore adds what has come meanwhile to a round that is decided anew anyway.
func (x *round) takeMore() {
	if len(x.sent) == 0 && len(x.batches) > 0 {
		x.batches = x.l.take(x.batches, x.r.cfg.RoundSize)
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
	left, now := x.batches[:0], time.Now()
	for _, b := range x.batches {
		if b.over(now) {
			b.fail(Refused(errLate))
			x.draft = nil
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
	x.at = make(map[session.Key]int, len(x.batches)+8)
	for _, b := range x.batches {
		for i := range b.asks {
			x.touch(&b.asks[i])
		}
	}
}

func (x *round) touch(a *ask) {
	for j, k := range a.keys {
		i, ok := x.at[k]
		if !ok {
			i = len(x.wants)
			x.at[k] = i
			x.wants = append(x.wants, want{key: k})
		}
		x.wants[i].refs++
		x.wants[i].parts |= a.parts(j)
	}
}

// read returns the records that the commands touch: the values seen last, or
// from Redis. Fresh means that all were read now, at one instant.
func (x *round) read(e *epoch) (was []entry, fresh bool, err error) {
	x.footprint()
	was = make([]entry, len(x.wants))
	var missing []want
	var at []int
	known := x.r.cache.getAll(x.wants, was)
	for i, w := range x.wants {
		if known[i] && len(x.sent) == 0 {
			continue
		}
		if was[i].record != nil && session.HasParts(w.key) {
			w.parts = allParts // it is used here again and again, each time with another part
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

// seen finds the values of records that a round is decided on without reading
// them, and says which are there with the parts that are wanted of them.
func (x *round) seen(wants []want, found []entry) (known []bool) {
	known = x.r.cache.getAll(wants, found)
	if x.before == nil {
		return known
	}
	for i, w := range wants {
		if e, ok := x.before(w.key); ok {
			found[i], known[i] = e, knows(e, w.parts)
		}
	}
	return known
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

// refused handles an error that says that nothing was applied.
func (x *round) refused(ctx context.Context, err error) error {
	for _, kind := range []string{"READONLY", "LOADING", "MASTERDOWN"} {
		if redisErrorKind(err, kind) {
			_ = x.p.d.inspect(ctx, x.p.d.gate.Load()) // logged there
		}
	}
	return err
}

// answer hands out the results of the commands of batches that still wait.
func (x *round) answer(batches []*batch, results []session.Result) {
	x.r.metrics.roundCommands.Observe(float64(len(results)))
	all := len(batches) == len(x.batches)
	if all = all && (len(batches) == 0 || batches[0] == x.batches[0]); all {
		x.batches = nil
	} else {
		batches = append([]*batch(nil), batches...)
	}
	for _, b := range batches {
		mine := results[:len(b.cmds)]
		results = results[len(b.cmds):]
		if all || x.remove(b) {
			x.r.noteWaits(b.cmds, mine)
			b.finish(mine)
		}
	}
}
