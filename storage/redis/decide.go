package redis

import (
	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// What a round does with the records that it found: it applies its commands,
// and claims what they hand over.

// decide applies the commands of the round to what an attempt found, and makes
// its swap. It reports whether it could. What was found at different times may
// never have stood together, and the state machine takes for granted what always
// holds of records that do: then all is to be read anew.
func (x *round) decide(a *attempt) (decided bool) {
	defer func() {
		if !decided && !a.fresh && !x.doubts {
			_ = recover()
			x.doubts = true
		}
	}()
	x.apply(a)
	return true
}

func (x *round) apply(a *attempt) {
	a.now, a.mono = x.p.d.clock.now()
	state := session.NewPartial()
	state.SetClock(0, a.e.generation)
	a.batches = append(make([]*batch, 0, len(x.batches)), x.batches...)
	var cmds []session.Command
	for _, b := range a.batches {
		cmds = append(cmds, b.cmds...)
	}
	for i, w := range a.wants {
		if a.was[i].Record != nil {
			state.Put(w.Key, a.was[i].Record)
		}
	}
	a.results = state.ApplyAll(a.now, cmds)
	x.claim(a, state)
	a.s = x.r.beginSwap(x.p, a.e, a.wants)
	after := make([]session.Record, len(a.wants))
	for i, w := range a.wants {
		after[i] = state.Stored(w.Key)
	}
	a.change(after)
}

// change adds to the swap what has changed. A record that came up as due and had
// nothing to settle is moved to when it will.
func (a *attempt) change(after []session.Record) {
	a.next, a.wrote = make([]wire.Entry, len(a.was)), make([]bool, len(a.was))
	for i, was := range a.was {
		a.next[i] = was
		early := after[i] != nil && was.Due != 0 && was.Due <= a.now && wire.Standing(after[i], 0, a.now) != was.Due
		if after[i] != was.Record || early {
			a.s.Tell = a.s.Tell || handed(was.Record, after[i])
			a.next[i], a.wrote[i] = a.s.Put(i, was, after[i], a.now), true
		}
	}
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

// ClaimBy implements Handing.
func (r *Store) ClaimBy(claims func(session.Key, *session.Pool) []storage.Claim) {
	r.claims.Store(&claims)
}

// claim adds to an attempt the claims of those who wait at this node, and to whom
// its commands have handed a slot. It leaves out whom it would have to read
// records for: they claim in a round of their own, as all do who wait at other
// nodes. The claims are the attempt's and not the round's: if it is lost they
// are made anew, of what is handed over then.
func (x *round) claim(a *attempt, state *session.State) {
	by := x.r.claims.Load()
	if by == nil || x.doubts {
		return
	}
	var cmds []session.Command
	for i, n := 0, len(a.was); i < n; i++ { // not those that are added below
		p, ok := state.Stored(a.wants[i].Key).(*session.Pool)
		if !ok || !handed(a.was[i].Record, p) {
			continue
		}
		for _, c := range (*by)(a.wants[i].Key, p) {
			b := x.r.newBatch(x.r.ctx, []session.Command{c.Command})
			b.then = c.Answered
			if len(cmds) < x.r.cfg.RoundSize && x.include(a, state, &b.asks[0]) {
				a.batches = append(a.batches, b)
				cmds = append(cmds, c.Command)
			}
		}
	}
	if len(cmds) > 0 {
		a.results = append(a.results, state.ApplyAll(a.now, cmds)...)
	}
}

// include adds what a command touches to an attempt, if all of it is known.
func (x *round) include(a *attempt, state *session.State, k *ask) bool {
	wants, found := make([]wire.Want, len(k.keys)), make([]wire.Entry, len(k.keys))
	for i := range k.keys {
		wants[i] = wire.Want{Key: k.keys[i], Parts: k.parts(i)}
	}
	for i, known := range x.seen(wants, found) {
		if at, ok := a.at[wants[i].Key]; ok {
			known = knows(a.was[at], wants[i].Parts)
		}
		if !known {
			return false
		}
	}
	a.touch(k)
	for i, w := range wants {
		if a.at[w.Key] < len(a.was) {
			continue
		}
		a.was, a.fresh = append(a.was, found[i]), false
		if found[i].Record != nil {
			state.Put(w.Key, found[i].Record)
		}
	}
	return true
}

// leastAhead is how many commands are worth a round of their own while another
// is out: fewer are better off in one round with those that are still to come.
const leastAhead = 40

// prepare decides the next round on what an attempt writes that is out. It takes
// half of all that are under way here, so that rounds become neither large nor
// small by turns.
func (x *round) prepare(a *attempt) {
	l := x.l
	if l.ahead != nil {
		return // it was taken while this one was out before
	}
	l.gather()
	if l.waits() < leastAhead {
		return
	}
	batches := l.take(nil, min(x.r.cfg.RoundSize, (len(a.results)+l.waits()+1)/2))
	if batches == nil {
		return
	}
	y := l.round(batches)
	l.ahead = y
	defer func() { y.before = nil }() // so that no round keeps all before it
	y.before = func(k session.Key) (wire.Entry, bool) {
		i, ok := a.at[k]
		if !ok {
			return wire.Entry{}, false
		}
		return a.next[i], true
	}
	b := y.begin(a.e)
	for _, known := range y.seen(b.wants, b.was) {
		if !known {
			return // it is read once its turn comes
		}
	}
	if y.decide(b) {
		y.ready = b
	}
}
