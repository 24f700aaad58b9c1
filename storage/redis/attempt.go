package redis

import (
	"context"
	"time"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// An attempt is one swap: what it was decided on, what it writes and whom it
// answers. It keeps all of that until it is known what became of it, whoever of
// its callers goes away meanwhile: only with every record that it compares can
// anybody tell.
type attempt struct {
	e     *epoch // Redis refuses it under any other
	s     *swapping
	wants []wire.Want // all records that it compares
	at    map[session.Key]int
	was   []wire.Entry // as they stood when it was decided
	fresh bool         // all of was stood in Redis at one instant
	next  []wire.Entry // as they stand if it is applied
	wrote []bool       // those that it writes

	batches []*batch // in order; behind those of the round the claims that it makes
	results []session.Result

	now, mono time.Duration
	fences    []wire.Stamp // of what was written to keep it from being applied
}

// A verdict says what became of an attempt whose answer was lost.
type verdict int

const (
	// stillOpen: it was not applied so far, and it would be if it arrived now.
	stillOpen verdict = iota
	// wasApplied: what it writes stands there.
	wasApplied
	// neverApplied: it was not applied and cannot be any more. This alone allows
	// a command to be sent again that must not be repeated.
	neverApplied
	// cannotTell: others have written over all that would tell.
	cannotTell
)

// A sight is what was found of all the records of an attempt at one instant.
type sight struct {
	epoch  string // that held then
	stamps []wire.Stamp
}

// resolve tells what became of an attempt. A swap writes all of its records at
// once, and a stamp never comes back once another has taken its place, while
// that of a record that is absent does. So:
//
//   - a record with the attempt's own stamp says that it was applied;
//   - one that it writes, and that stands there as it did before, says that it
//     was not;
//   - any record that is not as it was before, or another epoch, says that Redis
//     will refuse it from now on;
//   - a fence compared the stamp of before and put its own in the place of it: it
//     says both at once.
func resolve(a *attempt, at sight) verdict {
	untouched, refused, writes := false, at.epoch != a.e.text, false
	for i, now := range at.stamps {
		before := a.was[i].Stamp
		if before != "" && now != before {
			refused = true
		}
		if !a.wrote[i] {
			continue
		}
		writes = true
		if after := a.next[i].Stamp; after != "" && now == after {
			return wasApplied
		}
		if before == "" {
			continue // absent before: if it is now, it may have been there meanwhile
		}
		untouched = untouched || now == before
		for _, f := range a.fences {
			if now == f {
				return neverApplied
			}
		}
	}
	switch {
	case !writes || untouched && refused:
		return neverApplied
	case untouched:
		return stillOpen
	}
	return cannotTell
}

// answer hands out the results to those who still wait for them, and tells of what
// they found, once the attempt was applied.
func (a *attempt) answer(r *Store) {
	r.metrics.roundCommands.Observe(float64(len(a.results)))
	r.TellLapses(a.results)
	results := a.results
	for _, b := range a.batches {
		mine := results[:len(b.cmds)]
		results = results[len(b.cmds):]
		r.settled.Note(b.cmds, mine, 0)
		if !b.answered {
			r.noteWaits(b.cmds, mine)
			b.finish(mine)
		}
	}
}

// keepOpen notes for those who wait whether nobody knows what became of the
// attempt: as long as that is so, nothing else that happens to them makes it "not
// applied".
func (a *attempt) keepOpen(yes bool) {
	for _, b := range a.batches {
		b.open = yes
	}
}

// lostSight notes that nobody knows what became of the attempt. Nothing else of
// the round is sent until that is known.
func (x *round) lostSight(a *attempt, err error) {
	x.r.log.Warn("the connection to Redis broke with a round under way; finding out what became of it",
		"namespace", x.p.NS, "error", err)
	keys := make([]session.Key, len(a.wants))
	for i := range keys {
		keys[i] = a.wants[i].Key
	}
	x.r.cache.forget(keys)
	a.keepOpen(true)
	x.open, x.lost = a, time.Now()
}

// findOut finds out what became of the attempt that is open. It returns how long
// to pause before the next look.
func (x *round) findOut(e *epoch) (pause time.Duration, err error) {
	a := x.open
	ctx, cancel := x.r.trip()
	defer cancel()
	wants := make([]wire.Want, len(a.wants)) // without ids
	for i := range wants {
		wants[i].Key = a.wants[i].Key
	}
	found, status, err := x.r.load(ctx, x.p, e, wants, false)
	switch {
	case err != nil && errorKind(err, "WRONGTYPE"):
		return 0, err
	case err != nil:
		return silentPause, nil
	case status != wire.ReplyOK:
		return lostPause, x.p.d.note(ctx, e, status)
	}
	at := sight{epoch: e.text, stamps: make([]wire.Stamp, len(found))}
	for i := range found {
		at.stamps[i] = found[i].Stamp
	}
	switch resolve(a, at) {
	case wasApplied:
		a.answer(x.r)
		x.batches, x.open = nil, nil
		x.r.tell()
	case neverApplied:
		a.keepOpen(false)
		x.open = nil
	case cannotTell:
		x.open = nil
		x.dropUnrepeatable()
	case stillOpen:
		return x.fence(ctx, e, found), nil
	}
	return 0, nil
}

// fence writes one of the records of the attempt that is open as it stands, under
// another stamp: from then on Redis refuses the attempt, however late it
// arrives. Whether the fence came first is for the next look to say.
func (x *round) fence(ctx context.Context, e *epoch, found []wire.Entry) time.Duration {
	a, at := x.open, -1
	for i := range found {
		if before := a.was[i].Stamp; a.wrote[i] && before != "" && found[i].Stamp == before && found[i].Bad == nil &&
			(at < 0 || found[i].Value < found[at].Value) {
			at = i
		}
	}
	if at < 0 {
		if len(x.batches) == 0 {
			x.open = nil // nobody waits for it any more
		}
		return silentPause // all of them are damaged
	}
	s := x.r.beginSwap(x.p, e, []wire.Want{{Key: a.wants[at].Key}})
	now, mono := x.p.d.clock.now()
	s.Put(0, found[at], found[at].Record, now)
	a.fences = append(a.fences, s.Stamp)
	if _, status, err := x.r.send(ctx, s, found[at:at+1], now, mono); err != nil || status != wire.ReplyOK {
		return silentPause
	}
	return 0
}

// dropUnrepeatable answers those who must not be applied twice.
func (x *round) dropUnrepeatable() {
	left := x.batches[:0]
	for _, b := range x.batches {
		if b.repeatable() {
			b.open, b.doubtful = false, true
			left = append(left, b)
		} else {
			b.fail(storage.Lost(errDoubtful))
		}
	}
	clear(x.batches[len(left):])
	x.batches = left
}
